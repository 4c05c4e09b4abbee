-- 1 of 4
-- stage 1: view "large_by_customer": dropped, version 1 ->
DROP VIEW large_by_customer;

-- 2 of 4
-- stage 1: view "large": dropped, version 2 ->
DROP VIEW large;

-- 3 of 4
-- stage 1: table "sale": depended on by something new, version 3 -> 4
-- stage 1: view "large": created, version -> 1
CREATE VIEW large (customer, amount) AS
    SELECT sale.customer AS customer, sale.amount AS amount FROM sale WHERE (sale.amount > '100'::numeric);

-- 4 of 4
-- stage 1: view "large": replaced, version 1 -> 2
-- stage 1: view "large_by_customer": created, version -> 1
CREATE VIEW large_by_customer (customer, n) AS
    SELECT large.customer AS customer, count(*) AS n FROM large AS large(customer, amount) GROUP BY large.customer;
