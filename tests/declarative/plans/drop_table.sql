-- 1 of 3
-- stage 1: view "large_by_customer": dropped, version 1 ->
DROP VIEW large_by_customer;

-- 2 of 3
-- stage 1: view "large": dropped, version 2 ->
DROP VIEW large;

-- 3 of 3
-- DESTRUCTIVE: the rows of table "sale"
-- stage 1: sequence "sale_id_seq": dropped, version 1 ->, waits for old snapshots, to free 4 rowsets
-- stage 1: table "sale": dropped, version 3 ->
-- stage 1: table "customer": told of a change in a related table, version 2 -> 3, floor 3
DROP TABLE sale;
