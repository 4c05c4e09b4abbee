-- 1 of 2
-- stage 1: table "sale": add column "rate", version 3 -> 4
ALTER TABLE sale ADD COLUMN rate integer;

-- 2 of 2
-- stage 1: table "sale": column "gross": absent -> write-only, version 4 -> 5, revertible
-- stage 2: table "sale": all writers maintain it, version 5, floor 5, validate of column "gross", about 2 rows, in the call, revertible
-- stage 3: table "sale": column "gross": write-only -> public, version 5 -> 6, floor 5
ALTER TABLE sale ADD COLUMN gross numeric GENERATED ALWAYS AS ((amount * (rate)::numeric)) STORED;
