-- 1 of 5
-- stage 1: table "egg": created, version -> 1
CREATE TABLE egg (
    id integer NOT NULL,
    hen integer,
    CONSTRAINT egg_pkey PRIMARY KEY (id)
);

-- 2 of 5
-- stage 1: table "hen": created, version -> 1
CREATE TABLE hen (
    id integer NOT NULL,
    egg integer,
    mother integer,
    CONSTRAINT hen_pkey PRIMARY KEY (id)
);

-- 3 of 5
-- stage 1: table "egg": index "egg_hen_fkey_idx": absent -> public, version 1 -> 2, floor 2
-- stage 1: table "egg": foreign key "egg_hen_fkey": absent -> public
-- stage 1: table "hen": told of a change in a related table, version 1 -> 2, floor 2
ALTER TABLE egg ADD CONSTRAINT egg_hen_fkey FOREIGN KEY (hen) REFERENCES hen (id) ON UPDATE CASCADE;

-- 4 of 5
-- stage 1: table "hen": index "hen_egg_fkey_idx": absent -> public, version 2 -> 3, floor 3
-- stage 1: table "hen": foreign key "hen_egg_fkey": absent -> public
-- stage 1: table "egg": told of a change in a related table, version 2 -> 3, floor 3
ALTER TABLE hen ADD CONSTRAINT hen_egg_fkey FOREIGN KEY (egg) REFERENCES egg (id);

-- 5 of 5
-- stage 1: table "hen": index "hen_mother_fkey_idx": absent -> public, version 3 -> 4, floor 4
-- stage 1: table "hen": foreign key "hen_mother_fkey": absent -> public
ALTER TABLE hen ADD CONSTRAINT hen_mother_fkey FOREIGN KEY (mother) REFERENCES hen (id);
