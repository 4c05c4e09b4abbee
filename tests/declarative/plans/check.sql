-- 1 of 1
-- stage 1: table "sale": check constraint "sale_amount_check": absent -> write-only, version 3 -> 4, revertible
-- stage 2: table "sale": all writers maintain it, version 4, floor 4, validate of check constraint "sale_amount_check", about 2 rows, in the call, revertible
-- stage 3: table "sale": check constraint "sale_amount_check": public -> absent, version 4 -> 5, floor 5
-- stage 3: table "sale": check constraint "sale_amount_check": write-only -> public
ALTER TABLE sale DROP CONSTRAINT sale_amount_check, ADD CONSTRAINT sale_amount_check CHECK ((amount > '0'::numeric));
