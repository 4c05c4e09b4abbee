-- 1 of 2
-- stage 1: table "sale": check constraint "sale_amount_check": public -> absent, version 3 -> 4, floor 4
ALTER TABLE sale DROP CONSTRAINT sale_amount_check;

-- 2 of 2
-- stage 1: table "sale": check constraint "sale_amount_check": absent -> write-only, version 4 -> 5, revertible
-- stage 2: table "sale": all writers maintain it, version 5, floor 5, validate of check constraint "sale_amount_check", about 2 rows, in the call, revertible
-- stage 3: table "sale": check constraint "sale_amount_check": write-only -> public, version 5 -> 6, floor 5
ALTER TABLE sale ADD CONSTRAINT sale_amount_check CHECK ((amount > '0'::numeric));
