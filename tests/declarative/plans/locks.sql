-- 1 of 2
-- stage 1: table "sale": column "amount": covered by lock "default" -> "default" and "money", version 3 -> 4, revertible
-- stage 1: table "sale": lock "money": absent -> write-only, revertible
-- stage 2: table "sale": all writers maintain it, version 4, floor 4, propagate lock timestamps of lock coverage of "amount", about 2 rows, in the call, revertible
-- stage 3: table "sale": column "amount": covered by lock "default" and "money" -> "money", version 4 -> 5, floor 4
-- stage 3: table "sale": lock "money": write-only -> public
ALTER TABLE sale ADD LOCK money COVERS (amount);

-- 2 of 2
-- stage 1: table "sale": column "customer": covered by lock "default" -> "default" and "words", version 5 -> 6, revertible
-- stage 1: table "sale": column "note": covered by lock "default" -> "default" and "words", revertible
-- stage 1: table "sale": lock "words": absent -> write-only, revertible
-- stage 2: table "sale": all writers maintain it, version 6, floor 6, propagate lock timestamps of lock coverage of "customer", "note", about 2 rows, in the call, revertible
-- stage 3: table "sale": column "customer": covered by lock "default" and "words" -> "words", version 6 -> 7, floor 6
-- stage 3: table "sale": column "note": covered by lock "default" and "words" -> "words"
-- stage 3: table "sale": lock "words": write-only -> public
ALTER TABLE sale ADD LOCK words COVERS (customer, note);
