"""Transactions that cross a change (IEP-110): every kind of change, whatever the transaction did with the table before
and after it, at every isolation level."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import instar
from instar.database.session import Session
from instar.dbapi import Connection
from support.databases import rows, run

CHANGE = "*"
WRITE = "UPDATE t SET a = a + 1 WHERE id = 1"
READ = "SELECT * FROM t WHERE id = 2"
READ_OTHER, WRITE_OTHER = "SELECT * FROM other", "UPDATE other SET x = x + 1"

# What a transaction does; the change is committed where the star is.
PATTERNS = {
    "written before": (WRITE, CHANGE),
    "written before, written after": (WRITE, CHANGE, WRITE),
    "written before, another read after": (WRITE, CHANGE, READ_OTHER),
    "read before, written after": (READ, CHANGE, WRITE),
    "read before, another written after": (READ, CHANGE, WRITE_OTHER),
    "read before, read after": (READ, CHANGE, READ),
    "touched after, written": (READ_OTHER, CHANGE, WRITE),
    "touched after, read": (READ_OTHER, CHANGE, READ),
    "never touched": (WRITE_OTHER, CHANGE),
}

# The kinds of change: what there is before, and the statement.
KINDS = {
    "add column": ("", "ALTER TABLE t ADD COLUMN c int DEFAULT 5"),
    "add column, not null": ("", "ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 5"),
    "add column, populated": ("", "ALTER TABLE t ADD COLUMN c bigserial"),
    "drop column": ("", "ALTER TABLE t DROP COLUMN b"),
    "rename column": ("", "ALTER TABLE t RENAME COLUMN b TO c"),
    "rename table": ("", "ALTER TABLE t RENAME TO u"),
    "set default": ("", "ALTER TABLE t ALTER a SET DEFAULT 9"),
    "drop default": ("ALTER TABLE t ALTER a SET DEFAULT 3", "ALTER TABLE t ALTER a DROP DEFAULT"),
    "widen type": ("", "ALTER TABLE t ALTER a TYPE bigint"),
    "drop not null": ("", "ALTER TABLE t ALTER b DROP NOT NULL"),
    "set not null": ("ALTER TABLE t ALTER b DROP NOT NULL", "ALTER TABLE t ALTER b SET NOT NULL"),
    "add check": ("", "ALTER TABLE t ADD CHECK (a < 1000)"),
    "drop check": ("ALTER TABLE t ADD CONSTRAINT k CHECK (a < 1000)", "ALTER TABLE t DROP CONSTRAINT k"),
    "add unique": ("", "ALTER TABLE t ADD UNIQUE (a)"),
    "add foreign key": ("", "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent"),
    "create index": ("", "CREATE INDEX i ON t (a)"),
    "drop index": ("CREATE INDEX i ON t (a)", "DROP INDEX i"),
    "create view": ("", "CREATE VIEW v AS SELECT a FROM t"),
    "add lock": ("", "ALTER TABLE t ADD LOCK l COVERS (b)"),
    "compound": ("", "ALTER TABLE t ADD COLUMN c int, ALTER a SET DEFAULT 7, ADD CHECK (a < 1000)"),
    "compound, drop column": ("", "ALTER TABLE t ADD COLUMN c int, DROP COLUMN b"),
    "alter primary key": ("", "ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (a)"),
    "compact": ("ALTER TABLE t ADD COLUMN z int", "COMPACT TABLE t"),
    "truncate": ("", "TRUNCATE t"),
    "drop table": ("", "DROP TABLE t"),
}

# After these, what was written under an older version means nothing.
INCOMPATIBLE = {"drop column", "compound, drop column", "truncate", "drop table"}
# After these the rows that were read are others': a SERIALIZABLE transaction that writes cannot be ordered before them.
ROWS_REPLACED = {"truncate", "drop table", "alter primary key"}
# After these a statement on a snapshot of its own finds no table of that name.
NAME_GONE = {"rename table", "drop table"}

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
OK, DOOMED, GONE = "", "40001", "42P01"
AT_COMMIT, AT_ONCE = "COMMIT", "at once"


def expected(kind: str, pattern: str, level: str) -> tuple[str, str]:
    """SQLSTATE, and where it comes."""
    steps = PATTERNS[pattern]
    own_snapshots = level == "READ COMMITTED"
    wrote_before = WRITE in steps[: steps.index(CHANGE)]
    after = steps[steps.index(CHANGE) + 1 :]
    if kind in INCOMPATIBLE and wrote_before:
        return DOOMED, AT_ONCE if after else AT_COMMIT
    touches = WRITE in after or READ in after
    if own_snapshots:
        return (GONE, AT_ONCE) if kind in NAME_GONE and touches else (OK, "")
    if kind in INCOMPATIBLE and WRITE in after:
        return DOOMED, AT_ONCE
    writes = any(step in (WRITE, WRITE_OTHER) for step in steps)
    read = any(step in (READ, WRITE) for step in steps)
    if level == "SERIALIZABLE" and kind in ROWS_REPLACED and writes and read:
        return DOOMED, AT_COMMIT
    return OK, ""


@pytest.fixture
def connection() -> Iterator[Connection]:
    with instar.connect(":memory:", autocommit=True) as made:
        run(
            made,
            "SET ddl_wait = 0",
            "CREATE TABLE parent (id int PRIMARY KEY)",
            "INSERT INTO parent VALUES (1)",
            "CREATE TABLE t (id int PRIMARY KEY, a int, b int NOT NULL, p int)",
            "INSERT INTO t VALUES (1, 10, 1, 1), (2, 20, 2, 1)",
            "CREATE TABLE other (x int)",
            "INSERT INTO other VALUES (1)",
        )
        yield made


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", KINDS)
def test_which_transactions_cross(connection: Connection, kind: str, pattern: str, level: str) -> None:
    setup, change = KINDS[kind]
    if setup:
        run(connection, setup)
    session = Session(connection.database, autocommit=True)
    session.execute(f"BEGIN ISOLATION LEVEL {level}")
    seen: list[list[tuple[object, ...]]] = []
    outcome = (OK, "")
    for step in (*PATTERNS[pattern], AT_COMMIT):
        if step == CHANGE:
            run(connection, change)
            continue
        try:
            found = list(session.execute(step).rows)
        except instar.Error as refused:
            outcome = refused.sqlstate, AT_COMMIT if step == AT_COMMIT else AT_ONCE
            session.rollback()
            break
        if step == READ:
            seen.append(found)
    assert outcome == expected(kind, pattern, level)
    if level != "READ COMMITTED":
        # A snapshot sees its own schema, and its own rows, whatever comes.
        assert seen == seen[:1] * len(seen)
    if outcome == (OK, "") and kind not in {"truncate", *NAME_GONE}:
        assert rows(connection, "SELECT a FROM t WHERE id = 1") == [(10 + PATTERNS[pattern].count(WRITE),)]
    assert rows(connection, "CHECK DATABASE") == []


def test_a_doomed_transaction_may_go_back_to_before_it_wrote(connection: Connection) -> None:
    session = Session(connection.database, autocommit=True)
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    session.execute(READ)
    session.execute("SAVEPOINT s")
    session.execute(WRITE)
    run(connection, "ALTER TABLE t DROP COLUMN b")
    with pytest.raises(instar.Error) as caught:
        session.execute(READ_OTHER)
    assert caught.value.sqlstate == "40001"
    assert "drop column" in caught.value.message
    session.execute("ROLLBACK TO s")
    session.execute(WRITE_OTHER)
    session.execute("COMMIT")
    assert rows(connection, "SELECT x FROM other") == [(2,)]
