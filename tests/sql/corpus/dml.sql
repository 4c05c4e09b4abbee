INSERT INTO customer (name, code) VALUES ('a', 'b'), (DEFAULT, NULL) RETURNING id
INSERT INTO heap DEFAULT VALUES
INSERT INTO heap (a) SELECT total FROM orders
INSERT INTO customer OVERRIDING SYSTEM VALUE VALUES (1, 'x')
INSERT INTO customer (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET code = excluded.code, balance = customer.balance + 1 WHERE customer.id > 3
INSERT INTO customer AS c (name) VALUES (?) ON CONFLICT ON CONSTRAINT customer_name_key DO NOTHING RETURNING c.*
WITH x AS (SELECT 1 AS y) INSERT INTO heap (a) SELECT y FROM x
UPDATE customer SET balance = balance * 1.1, code = DEFAULT FROM orders o WHERE o.customer_id = customer.id
UPDATE heap SET (a, b) = (SELECT 1, 2) WHERE b = 3
UPDATE heap AS h SET (a, b) = (h.b, DEFAULT) WHERE a = $1 AND b = $2 RETURNING h.a AS x
DELETE FROM orders USING customer c WHERE c.id = customer_id RETURNING *
DELETE FROM heap
