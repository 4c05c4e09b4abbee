SELECT * FROM customer
SELECT 1, 'a', NULL, 1.5, -2147483648, 3000000000, true, 1e3, .5, 0x1F, 1_000
SELECT c.name, count(*), sum(total) FROM customer c JOIN orders o ON o.customer_id = c.id GROUP BY c.name HAVING count(*) > 3 ORDER BY 2 DESC LIMIT 10
SELECT * FROM customer JOIN orders USING (id)
SELECT c.*, o.total FROM customer c NATURAL FULL JOIN orders o
SELECT * FROM customer c LEFT JOIN orders o ON c.id = o.customer_id, heap h RIGHT JOIN heap i ON h.a = i.b
SELECT id, name FROM customer GROUP BY id ORDER BY name NULLS FIRST
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t
WITH x AS MATERIALIZED (SELECT a FROM heap), y(z) AS (SELECT a + 1 FROM x) SELECT * FROM x, y WHERE x.a = y.z
SELECT * FROM rich r WHERE who LIKE 'A%' AND NOT who ILIKE '_b%' ESCAPE '!'
SELECT rank() OVER w, sum(a) FILTER (WHERE a > 1) OVER (w ROWS BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING) FROM heap WINDOW w AS (PARTITION BY b ORDER BY a DESC NULLS LAST)
SELECT lag(a, 1) OVER (ORDER BY b), first_value(a) OVER (PARTITION BY b ORDER BY a RANGE 5 PRECEDING) FROM heap
SELECT a FROM heap UNION SELECT 1.5 UNION ALL SELECT NULL ORDER BY a
(SELECT a FROM heap ORDER BY a LIMIT 1) EXCEPT ALL SELECT b FROM heap INTERSECT SELECT 3 LIMIT 5 OFFSET 1
SELECT x FROM generate_series(1, 10) AS x
SELECT g.n FROM heap, generate_series(1, a) AS g(n)
SELECT date '2020-01-01' + 1, extract(year from born), 'a' || name, id IN (1, 2), name IS DISTINCT FROM 'x', coalesce(code, 'x'), nullif(name, '') FROM customer
SELECT at > '2020-01-01', at AT TIME ZONE 'UTC', timestamp '2020-01-01 10:00', note ->> 'a', note -> 'b' FROM orders
SELECT (SELECT max(total) FROM orders o WHERE o.customer_id = c.id), EXISTS (SELECT 1 FROM heap), id NOT IN (SELECT id FROM orders), id > ALL (SELECT a FROM heap), id = ANY (SELECT b FROM heap) FROM customer c
SELECT a, b, count(DISTINCT a) FROM heap GROUP BY ROLLUP (a, b), GROUPING SETS ((a), ())
SELECT a, b FROM heap GROUP BY CUBE (a, b)
SELECT a, GROUPING(b, a) FROM heap GROUP BY ROLLUP (a, b) HAVING grouping(b) = 0 ORDER BY grouping(a)
SELECT a, -(-2147483648) FROM heap ORDER BY true::boolean, NULL::integer, a
SELECT DISTINCT ON (b) b, a FROM heap ORDER BY b, a DESC
SELECT DISTINCT b AS "B b", a FROM heap ORDER BY a
SELECT string_agg(name, ', ' ORDER BY born DESC), count(*) FILTER (WHERE born IS NOT NULL) FROM customer
SELECT CASE a WHEN 1 THEN 'x' WHEN 2 THEN 'y' END, CASE WHEN a > b THEN a ELSE b END FROM heap
SELECT CAST(a AS numeric(10, 2)), a::text::varchar(3), b::double precision, (a, b) = (1, 2), (a, b) <= (3, 4) FROM heap
SELECT trim(leading 'x' from name), substring(name from 2 for 3), position('a' in name), overlay(name placing 'b' from 2), upper(name) FROM customer
SELECT a BETWEEN 1 AND 3, a NOT BETWEEN SYMMETRIC 3 AND 1, paid IS NOT TRUE, paid IS UNKNOWN, a IS NOT NULL FROM heap, orders
SELECT l.m FROM heap h, LATERAL (SELECT max(total) AS m FROM orders o WHERE o.id = h.a) l
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(n, s) JOIN (heap JOIN orders ON heap.a = orders.id) ON v.n = heap.b
SELECT o.id FROM public.orders o WHERE paid AND total < 10 OR NOT paid FETCH FIRST 3 ROWS ONLY
VALUES (1, 'a'), (2.5, NULL) ORDER BY 1 LIMIT 1
TABLE heap
SELECT id, state FROM instar.jobs
SELECT nextval('counter'), current_date, now(), $$dollar$$, E'\n', U&'\0061'
SELECT -a, +b, - -a, 7 / 2, 7 % 3, 2 ^ 3, a & 3, a | 1, a # 2, ~a, a << 1, abs(a), 'xy' FROM heap
SELECT
SELECT FROM heap
