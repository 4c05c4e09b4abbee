-- 1 of 1
-- stage 1: table "sale": not null constraint of column "amount": absent -> write-only, version 3 -> 4, revertible
-- stage 2: table "sale": all writers maintain it, version 4, floor 4, validate of not null constraint of column "amount", about 2 rows, in the call, revertible
-- stage 3: table "sale": not null constraint of column "amount": write-only -> public, version 4 -> 5, floor 4
ALTER TABLE sale ALTER COLUMN amount SET NOT NULL;
