-- 1 of 1
-- DESTRUCTIVE: what character varying(20) cannot hold of column "name" of table "customer"
-- NOT SUPPORTED: 0A000: changing column "name" of table "customer" from character varying(40) to character varying(20) is not supported
ALTER TABLE customer ALTER COLUMN name TYPE character varying(20);
