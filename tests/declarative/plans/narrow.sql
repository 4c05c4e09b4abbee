-- 1 of 1
-- DESTRUCTIVE: what character varying(20) cannot hold of column "name" of table "customer"
-- stage 1: table "customer": column "name": absent -> write-only, version 2 -> 3, revertible
-- stage 2: table "customer": all writers maintain it, version 3, floor 3, validate of column "name", about 2 rows, in the call, revertible
-- stage 3: table "customer": change type "name", version 3 -> 4, floor 4
-- stage 3: table "customer": column "name": write-only -> public
ALTER TABLE customer ALTER COLUMN name TYPE character varying(20);
