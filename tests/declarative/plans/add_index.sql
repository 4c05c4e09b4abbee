-- 1 of 1
-- stage 1: table "sale": index "sale_note": absent -> delete-only, version 3 -> 4, revertible
-- stage 2: table "sale": index "sale_note": delete-only -> write-only, version 4 -> 5, floor 4, revertible
-- stage 3: table "sale": all writers maintain it, version 5, floor 5, reorganize: backfill of index "sale_note", about 2 rows, in the call, revertible
-- stage 4: table "sale": index "sale_note": write-only -> public, version 5 -> 6, floor 5
CREATE UNIQUE INDEX sale_note ON sale (note, customer);
