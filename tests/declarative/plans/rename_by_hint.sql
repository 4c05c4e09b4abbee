-- 1 of 8
-- stage 1: table "purchase": rename table, version 3 -> 4
ALTER TABLE sale RENAME TO purchase;

-- 2 of 8
-- stage 1: table "purchase": rename column "remark", version 4 -> 5
ALTER TABLE purchase RENAME COLUMN note TO remark;

-- 3 of 8
-- stage 1: sequence "purchase_id_seq": renamed, version 1 -> 2
ALTER SEQUENCE sale_id_seq RENAME TO purchase_id_seq;

-- 4 of 8
-- stage 1: table "purchase": rename constraint "sale_pkey" to "purchase_pkey", version 5 -> 6
ALTER TABLE purchase RENAME CONSTRAINT sale_pkey TO purchase_pkey;

-- 5 of 8
-- stage 1: table "purchase": rename index "sale_customer" to "purchase_customer", version 6 -> 7
ALTER INDEX sale_customer RENAME TO purchase_customer;

-- 6 of 8
-- stage 1: table "purchase": rename constraint "sale_note_key" to "purchase_remark_key", version 7 -> 8
ALTER TABLE purchase RENAME CONSTRAINT sale_note_key TO purchase_remark_key;

-- 7 of 8
-- stage 1: table "purchase": rename constraint "sale_amount_check" to "purchase_amount_check", version 8 -> 9
ALTER TABLE purchase RENAME CONSTRAINT sale_amount_check TO purchase_amount_check;

-- 8 of 8
-- stage 1: table "purchase": rename constraint "sale_customer_fkey" to "purchase_customer_fkey", version 9 -> 10
ALTER TABLE purchase RENAME CONSTRAINT sale_customer_fkey TO purchase_customer_fkey;
