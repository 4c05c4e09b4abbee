-- 1 of 2
-- stage 1: table "sale": index "sale_customer_fkey_idx": public -> absent, version 3 -> 4, floor 4, waits for old snapshots, to free 1 rowset
-- stage 1: table "sale": foreign key "sale_customer_fkey": public -> absent
-- stage 1: table "customer": told of a change in a related table, version 2 -> 3, floor 3
ALTER TABLE sale DROP CONSTRAINT sale_customer_fkey;

-- 2 of 2
-- stage 1: table "sale": foreign key "sale_customer_fkey": absent -> delete-only, version 4 -> 5, revertible
-- stage 1: table "customer": told of a change in a related table, version 3 -> 4, floor 4, revertible
-- stage 2: table "sale": foreign key "sale_customer_fkey": delete-only -> write-only, version 5 -> 6, floor 5, revertible
-- stage 2: table "customer": told of a change in a related table, version 4 -> 5, floor 5, revertible
-- stage 3: table "customer": all writers maintain it, version 5, floor 5, revertible
-- stage 3: table "sale": all writers maintain it, version 6, floor 6, validate of foreign key "sale_customer_fkey", about 2 rows, in the call, revertible
-- stage 4: table "sale": foreign key "sale_customer_fkey": write-only -> public, version 6 -> 7, floor 6
ALTER TABLE sale ADD CONSTRAINT sale_customer_fkey FOREIGN KEY (customer) REFERENCES customer (id);
