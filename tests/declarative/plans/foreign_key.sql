-- 1 of 2
-- stage 1: table "sale": index "sale_customer_fkey_idx": public -> absent, version 3 -> 4, floor 4, waits for old snapshots, to free 1 rowset
-- stage 1: table "sale": foreign key "sale_customer_fkey": public -> absent
-- stage 1: table "customer": told of a change in a related table, version 2 -> 3, floor 3
ALTER TABLE sale DROP CONSTRAINT sale_customer_fkey;

-- 2 of 2
-- NOT SUPPORTED: 0A000: adding a foreign key to table "sale", which has rows, is not supported
ALTER TABLE sale ADD CONSTRAINT sale_customer_fkey FOREIGN KEY (customer) REFERENCES customer (id);
