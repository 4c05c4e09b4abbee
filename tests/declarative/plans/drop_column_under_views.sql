-- 1 of 8
-- stage 1: view "large_by_customer": dropped, version 1 ->
DROP VIEW large_by_customer;

-- 2 of 8
-- stage 1: view "large": dropped, version 2 ->
DROP VIEW large;

-- 3 of 8
-- stage 1: table "sale": check constraint "sale_amount_check": public -> absent, version 3 -> 4, floor 4
ALTER TABLE sale DROP CONSTRAINT sale_amount_check;

-- 4 of 8
-- stage 1: table "sale": index "sale_customer": public -> absent, version 4 -> 5, floor 5, waits for old snapshots, to free 1 rowset
DROP INDEX sale_customer;

-- 5 of 8
-- DESTRUCTIVE: the values of column "amount" of table "sale"
-- stage 1: table "sale": drop column "amount", version 5 -> 6, floor 6
ALTER TABLE sale DROP COLUMN amount;

-- 6 of 8
-- stage 1: table "sale": index "sale_customer": absent -> delete-only, version 6 -> 7, revertible
-- stage 2: table "sale": index "sale_customer": delete-only -> write-only, version 7 -> 8, floor 7, revertible
-- stage 3: table "sale": all writers maintain it, version 8, floor 8, reorganize: backfill of index "sale_customer", about 2 rows, in the call, revertible
-- stage 4: table "sale": index "sale_customer": write-only -> public, version 8 -> 9, floor 8
CREATE INDEX sale_customer ON sale (customer);

-- 7 of 8
-- stage 1: table "sale": depended on by something new, version 9 -> 10
-- stage 1: view "large": created, version -> 1
CREATE VIEW large (id, customer) AS
    SELECT sale.id AS id, sale.customer AS customer FROM sale WHERE (sale.id > 100);

-- 8 of 8
-- stage 1: view "large": replaced, version 1 -> 2
-- stage 1: view "large_by_customer": created, version -> 1
CREATE VIEW large_by_customer (customer, n) AS
    SELECT large.customer AS customer, count(*) AS n FROM large AS large(id, customer) GROUP BY large.customer;
