-- 1 of 1
-- stage 1: table "sale": rename index "sale_customer" to "by_customer", version 3 -> 4
ALTER INDEX sale_customer RENAME TO by_customer;
