-- 1 of 1
-- stage 1: table "sale": add column "paid", version 3 -> 4
ALTER TABLE sale ADD COLUMN paid boolean DEFAULT false NOT NULL;
