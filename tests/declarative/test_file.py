"""Schema files: what is read, and where what is wrong with them is."""

from __future__ import annotations

import pytest

from instar import errors
from instar.declarative import load
from instar.declarative.renames import Hint


def refused(text: str) -> tuple[str, str, str]:
    """SQLSTATE, message, and the text from where the error points to on."""
    with pytest.raises(errors.Error) as caught:
        load(text)
    assert caught.value.position is not None
    return caught.value.sqlstate, caught.value.message, text[caught.value.position - 1 :]


def test_an_empty_file_is_an_empty_schema() -> None:
    assert load("") == load(" -- nothing\n/* at all */;;\n")
    assert not load("").schema.tables


@pytest.mark.parametrize(
    ("text", "state", "message", "at"),
    [
        ("CREATE TABLE t (a int);\nCREATE TABEL u", "42601", 'syntax error at or near "TABEL"', "TABEL u"),
        ("CREATE TABLE t (a int);\nCREATE TABLE u (b\n  nosuch)", "42704", 'type "nosuch" does not exist', "nosuch)"),
        ("CREATE TABLE t (a int DEFAULT 'x", "42601", 'unterminated quoted string at or near "\'x"', "'x"),
        ("CREATE TABLE t (a int); /* b", "42601", 'unterminated /* comment at or near "/* b"', "/* b"),
        ("CREATE TABLE t (a int);\n INSERT INTO t VALUES (1)", "0A000",
         "INSERT in a schema file is not supported", "INSERT INTO t VALUES (1)"),
        ("CREATE TABLE t (a int); ALTER TABLE t ADD CHECK (a > 0) WITH (violation = 'abort change')", "0A000",
         "WITH (violation) in a schema file is not supported",
         "ALTER TABLE t ADD CHECK (a > 0) WITH (violation = 'abort change')"),
        ("CREATE TABLE t (a int); ALTER TABLE t ALTER a SET NOT NULL WITH (violation = 'abort change')", "0A000",
         "WITH (violation) in a schema file is not supported",
         "ALTER TABLE t ALTER a SET NOT NULL WITH (violation = 'abort change')"),
        ("CREATE TABLE t (a int); CREATE UNIQUE INDEX i ON t (a) WITH (violation = 'abort change')", "0A000",
         "WITH (violation) in a schema file is not supported",
         "CREATE UNIQUE INDEX i ON t (a) WITH (violation = 'abort change')"),
        ("SELECT 1", "0A000", "SELECT in a schema file is not supported", "SELECT 1"),
        ("BEGIN; CREATE TABLE t (a int)", "0A000", "BEGIN in a schema file is not supported",
         "BEGIN; CREATE TABLE t (a int)"),
        ("CREATE TABLE t AS SELECT 1 AS a", "0A000", "CREATE TABLE AS in a schema file is not supported",
         "CREATE TABLE t AS SELECT 1 AS a"),
        ("CREATE TABLE t (a int); ALTER TABLE t SPLIT INTO r (a), s (a) ON (a)", "0A000",
         "ALTER TABLE ... SPLIT in a schema file is not supported", "ALTER TABLE t SPLIT INTO r (a), s (a) ON (a)"),
        ("ALTER TABLE r JOIN s USING (a) INTO t (a)", "0A000",
         "ALTER TABLE ... JOIN in a schema file is not supported", "ALTER TABLE r JOIN s USING (a) INTO t (a)"),
        ("CREATE TABLE t (a int); DROP TABLE t", "0A000", "DROP TABLE in a schema file is not supported",
         "DROP TABLE t"),
        ("CREATE TABLE t (a int); TRUNCATE t", "0A000", "TRUNCATE TABLE in a schema file is not supported",
         "TRUNCATE t"),
        ("CREATE TABLE t (a int);\nCREATE INDEX i ON u (a)", "42P01", 'table "u" does not exist',
         "CREATE INDEX i ON u (a)"),
        ("CREATE VIEW v AS SELECT 1 AS a,\n b", "42703", 'column "b" does not exist', "b"),
        ("CREATE TABLE t (a int); CREATE TABLE t (a int)", "42P07", 'relation "t" already exists',
         "CREATE TABLE t (a int)"),
        ("CREATE TABLE t (a int) PARTITION BY RANGE (a)", "0A000", "PARTITION of CREATE TABLE is not supported",
         "PARTITION BY RANGE (a)"),
        ("CREATE TABLE t (a int CHECK (a > " + "(" * 5000 + "1" + ")" * 5000 + "))", "54001",
         "statement is too deeply nested", None),
        ("CREATE TABLE t (a \0 int)", "22021", "invalid character U+0000 in the statement", "\0 int)"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, state: str, message: str, at: str | None) -> None:
    assert refused(text) == (state, message, text if at is None else at)


def test_hints_stand_above_or_behind() -> None:
    text = """
    -- instar: renamed from "Old t"
    -- a comment in between
    CREATE TABLE t (
        a int, -- instar: renamed from A1
        -- instar: renamed from "B1"
        b int,
        c text DEFAULT '-- instar: renamed from nothing' -- instar:renamed  from  c1
    );
    CREATE VIEW v AS SELECT a
        FROM t;
    CREATE VIEW w AS SELECT b FROM t; -- instar: renamed from w1
    /* -- instar: renamed from nothing */
    CREATE SEQUENCE s; -- instar: renamed from s1
    CREATE TABLE x (a int, b int); -- instar: renamed from x1
    -- instar: renamed from y1
    CREATE TABLE y (a int, b int);
    CREATE TABLE z ( -- instar: renamed from z1
        a int
    );
    """
    assert load(text).hints == (
        Hint("table", "t", "Old t"),
        Hint("column", "a", "a1", "t"),
        Hint("column", "b", "B1", "t"),
        Hint("column", "c", "c1", "t"),
        Hint("view", "w", "w1"),
        Hint("sequence", "s", "s1"),
        Hint("table", "x", "x1"),
        Hint("table", "y", "y1"),
        Hint("table", "z", "z1"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- instar: renamed t\nCREATE TABLE u (a int)", '"renamed t" is no hint'),
        ("-- instar: renamed from a b\nCREATE TABLE u (a int)", '"renamed from a b" is no hint'),
        ("-- instar: renamed from\nCREATE TABLE u (a int)", '"renamed from" is no hint'),
        ("CREATE TABLE u (a int);\n-- instar: renamed from t\n",
         "a rename hint stands at no table, column, view or sequence"),
        ("CREATE TABLE u (a int);\n-- instar: renamed from i\nCREATE INDEX j ON u (a)",
         "a rename hint stands at no table, column, view or sequence"),
        ("CREATE TABLE u (a int,\n-- instar: renamed from i\nCONSTRAINT x CHECK (a > 0))",
         "a rename hint stands at no table, column, view or sequence"),
        ("CREATE TABLE u (\n a int, b int, -- instar: renamed from c\n d int)",
         'a rename hint may be about "a" or "b"'),
        ("CREATE TABLE u (\n-- instar: renamed from c\n a int, b int)", 'a rename hint may be about "a" or "b"'),
        ("CREATE TABLE u (a int, -- instar: renamed from c\n b int)", 'a rename hint may be about "u" or "a"'),
        ("CREATE TABLE u (a int); CREATE TABLE w (b int); -- instar: renamed from t",
         'a rename hint may be about "u" or "w"'),
    ],
)  # fmt: skip
def test_hints_that_mean_nothing_are_refused(text: str, message: str) -> None:
    state, said, at = refused(text)
    assert (state, said) == ("42601", message)
    assert at.startswith("-- instar")
