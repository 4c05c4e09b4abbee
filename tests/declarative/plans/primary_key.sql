-- 1 of 2
-- stage 1: table "sale": index "sale_note_key": public -> absent, version 3 -> 4, floor 4, waits for old snapshots, to free 1 rowset
ALTER TABLE sale DROP CONSTRAINT sale_note_key;

-- 2 of 2
-- stage 1: table "sale": not null constraint of column "note": absent -> write-only, version 4 -> 5, revertible
-- stage 1: table "sale": primary key "sale_pkey": absent -> delete-only, revertible
-- stage 2: table "sale": primary key "sale_pkey": delete-only -> write-only, version 5 -> 6, floor 5, revertible
-- stage 3: table "sale": all writers maintain it, version 6, floor 6, reorganize: backfill of primary key "sale_pkey", about 2 rows, in the call, revertible
-- stage 3: table "sale": all writers maintain it, version 6, floor 6, validate of not null constraint of column "note", about 2 rows, in the call, revertible
-- stage 4: table "sale": primary key (id) -> (note), rows and indexes in the rowsets made for it, version 6 -> 7, floor 7, waits for old snapshots, to free 3 rowsets
-- stage 4: table "sale": not null constraint of column "note": write-only -> public
-- stage 4: table "customer": told of a change in a related table, version 2 -> 3, floor 3
ALTER TABLE sale DROP CONSTRAINT sale_pkey, ADD CONSTRAINT sale_pkey PRIMARY KEY (note);
