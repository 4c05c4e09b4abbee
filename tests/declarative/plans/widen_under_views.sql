-- 1 of 6
-- stage 1: view "large_by_customer": dropped, version 1 ->
DROP VIEW large_by_customer;

-- 2 of 6
-- stage 1: view "large": dropped, version 2 ->
DROP VIEW large;

-- 3 of 6
-- stage 1: table "customer": widen type "name", version 2 -> 3
ALTER TABLE customer ALTER COLUMN name TYPE text;

-- 4 of 6
-- stage 1: table "sale": widen type "amount", version 3 -> 4
ALTER TABLE sale ALTER COLUMN amount TYPE numeric(10,2);

-- 5 of 6
-- stage 1: table "sale": depended on by something new, version 4 -> 5
-- stage 1: view "large": created, version -> 1
CREATE VIEW large (id, customer, amount) AS
    SELECT sale.id AS id, sale.customer AS customer, sale.amount AS amount FROM sale WHERE (sale.amount > '100'::numeric);

-- 6 of 6
-- stage 1: view "large": replaced, version 1 -> 2
-- stage 1: view "large_by_customer": created, version -> 1
CREATE VIEW large_by_customer (customer, n) AS
    SELECT large.customer AS customer, count(*) AS n FROM large AS large(id, customer, amount) GROUP BY large.customer;
