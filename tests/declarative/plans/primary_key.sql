-- 1 of 4
-- stage 1: table "sale": index "sale_note_key": public -> absent, version 3 -> 4, floor 4, waits for old snapshots, to free 1 rowset
ALTER TABLE sale DROP CONSTRAINT sale_note_key;

-- 2 of 4
-- NOT SUPPORTED: 0A000: dropping the primary key of table "sale" is not supported
ALTER TABLE sale DROP CONSTRAINT sale_pkey;

-- 3 of 4
-- stage 1: table "sale": not null constraint of column "note": absent -> write-only, version 4 -> 5, revertible
-- stage 2: table "sale": all writers maintain it, version 5, floor 5, validate of not null constraint of column "note", about 2 rows, in the call, revertible
-- stage 3: table "sale": not null constraint of column "note": write-only -> public, version 5 -> 6, floor 5
ALTER TABLE sale ALTER COLUMN note SET NOT NULL;

-- 4 of 4
-- FAILS: 42P16: multiple primary keys for table "sale" are not allowed
ALTER TABLE sale ADD CONSTRAINT sale_pkey PRIMARY KEY (note);
