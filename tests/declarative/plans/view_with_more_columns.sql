-- 1 of 1
-- stage 1: view "large": replaced, version 2 -> 3
-- stage 1: view "large_by_customer": replaced, version 1 -> 2
CREATE OR REPLACE VIEW large_by_customer (customer, n, last) AS
    SELECT large.customer AS customer, count(*) AS n, max(large.id) AS last FROM large AS large(id, customer, amount) GROUP BY large.customer;
