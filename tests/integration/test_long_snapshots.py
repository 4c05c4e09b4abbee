"""What was there before hundreds of changes is there for who looks from before, rows and schema, by a snapshot and
by AS OF SYSTEM TIME; and a table with rows in a thousand layouts is a table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from instar.clock import ManualClock
from instar.database import Database
from instar.dbapi import Connection
from instar.store import MemoryStore, open_store
from support.databases import fails, rows, run, value

CHANGES = 500
LAYOUTS = 1000

TABLES = (
    "CREATE TABLE parent (id int PRIMARY KEY, name text)",
    "CREATE TABLE t (id int PRIMARY KEY, a int, b text DEFAULT 'b', p int REFERENCES parent)",
    "CREATE TABLE other (x int PRIMARY KEY, y varchar(5))",
    "CREATE INDEX ta ON t (a, b)",
    "CREATE VIEW v AS SELECT id, upper(b) AS b FROM t WHERE a > 10",
    "INSERT INTO parent SELECT g, 'name ' || g FROM generate_series(1, 5) g",
    "INSERT INTO t SELECT g, g % 20, 'b' || g, 1 + g % 5 FROM generate_series(1, 60) g",
    "INSERT INTO other SELECT g, 'y' || g FROM generate_series(1, 10) g",
)
# What somebody reads, by key, by index, by scan, in DuckDB, through a view and a join.
QUERIES = (
    "SELECT * FROM t ORDER BY id",
    "SELECT * FROM t WHERE id = 17",
    "SELECT id, b FROM t WHERE a = 7 ORDER BY id",
    "SELECT a, count(*), max(b) FROM t GROUP BY a ORDER BY a",
    "SELECT * FROM v ORDER BY id",
    "SELECT t.id, name FROM t JOIN parent ON parent.id = t.p ORDER BY 1",
    "SELECT * FROM other ORDER BY x",
)


@pytest.fixture(params=["memory", "lmdb"])
def connections(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Connection, ...]]:
    """Sessions of two servers of one store, whose clock stands still unless it is moved."""
    clock = ManualClock()
    store = (
        MemoryStore(clock=clock)
        if request.param == "memory"
        else open_store(tmp_path / "db", synchronous="off", clock=clock)
    )
    databases = [Database(store, ":memory:", clock) for _ in range(2)]
    made = [Connection(databases[number % 2], autocommit=True, settings={"ddl_wait": "0"}) for number in range(4)]
    run(made[0], *TABLES)
    yield tuple(made)
    for database in databases:
        database.sequences.close()
    for connection in made:
        connection.close()


def advance(connection: Connection, seconds: float) -> None:
    clock = connection.database.clock
    assert isinstance(clock, ManualClock)
    clock.advance(seconds)


def seen(connection: Connection, moment: str = "") -> list[tuple[Any, ...]]:
    """What each query shows: its columns, their types, and its rows."""
    shown = []
    for query in QUERIES:
        cursor = connection.execute(query + moment)
        shown.append((query, [column[:2] for column in cursor.description or ()], cursor.fetchall()))
    return shown


# Changes of every kind, made with another number each time.
ROUND = (
    "ALTER TABLE t ADD COLUMN c{n} int NOT NULL DEFAULT {n}",
    "CREATE INDEX i{n} ON t (c{n}, a)",
    "ALTER TABLE t RENAME COLUMN c{n} TO d{n}",
    "ALTER TABLE t ALTER COLUMN d{n} FIRST",
    "ALTER TABLE t ALTER COLUMN d{n} TYPE bigint",
    "ALTER TABLE t ADD CONSTRAINT k{n} CHECK (d{n} >= 0)",
    "ALTER TABLE t ADD CONSTRAINT u{n} UNIQUE (id, d{n})",
    "ALTER TABLE t ALTER COLUMN b SET DEFAULT 'b{n}'",
    "ALTER TABLE t ALTER COLUMN d{n} DROP NOT NULL",
    "ALTER TABLE t DROP CONSTRAINT k{n}",
    "ALTER TABLE t ADD COLUMN s{n} serial",
    "DROP INDEX i{n}",
    "ALTER TABLE t DROP COLUMN d{n}",
    "ALTER TABLE parent ADD LOCK l COVERS (name)",
    "ALTER TABLE parent DROP LOCK l",
    "ALTER TABLE other RENAME TO o",
    "ALTER TABLE o RENAME COLUMN y TO z",
    "ALTER TABLE parent RENAME TO other",
    "ALTER TABLE other RENAME TO parent",
    "ALTER TABLE o RENAME TO other",
    "ALTER TABLE other RENAME COLUMN z TO y",
    "CREATE TABLE x (id int)",
    "DROP TABLE x",
    "CREATE OR REPLACE VIEW v AS SELECT id, b FROM t WHERE a = {n}",
    "ALTER TABLE t DROP COLUMN s{n}",
    "COMPACT TABLE t",
)
WRITES = (
    "UPDATE t SET a = a + 1 WHERE id % 7 = {n} % 7",
    "DELETE FROM t WHERE id = {n}",
    "INSERT INTO t (id, a, p) VALUES (1000 + {n}, {n}, 1) ON CONFLICT DO NOTHING",
    "UPDATE other SET y = 'w{n}' WHERE x = {n} % 10",
    "UPDATE parent SET name = name || '{n}'",
)
# Those that can be made once.
LAST = (
    "ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (p, id)",
    "ALTER TABLE other ALTER COLUMN y TYPE text",
    "DROP VIEW v",
    "ALTER TABLE t DROP COLUMN b",
    "ALTER TABLE t ADD COLUMN b int DEFAULT 5",
    "TRUNCATE t",
    "DROP TABLE other",
    "CREATE TABLE other (x text PRIMARY KEY, y int)",
    "INSERT INTO other VALUES ('x', 1)",
    "ALTER TABLE t DROP CONSTRAINT t_p_fkey",
    "DROP TABLE parent",
)


def change_all(connection: Connection) -> int:
    """Make hundreds of changes with writes in between; how many they were."""
    made = 0
    for number in range(CHANGES // len(ROUND)):
        for place, statement in enumerate(ROUND):
            connection.execute(statement.format(n=number))
            made += 1
            if place in (2, 8, 12):
                run(connection, *[write.format(n=number) for write in WRITES])
    run(connection, *LAST)
    return made + len(LAST)


def test_a_snapshot_from_before_hundreds_of_changes_repeats_exactly(connections: tuple[Connection, ...]) -> None:
    reader, serializable, writer, other = connections
    advance(reader, 1)
    run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    run(serializable, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    before = seen(reader)
    assert seen(serializable) == before
    moment = value(other, "SELECT CAST(now() AS text)")
    time.sleep(0.002)  # what is committed in the same millisecond was there then
    assert isinstance(moment, str)
    advance(reader, 1)
    assert change_all(writer) >= CHANGES
    assert seen(reader) == seen(serializable) == before
    assert seen(other, f" AS OF SYSTEM TIME '{moment}'") == before
    run(reader, "COMMIT")
    run(serializable, "COMMIT")
    assert rows(reader, "SELECT * FROM other") == [("x", 1)]
    with fails("42P01", '"v"'):
        seen(reader)
    assert rows(writer, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_transaction_crosses_hundreds_of_changes_if_all_are_compatible(
    connections: tuple[Connection, ...], level: str, dropped: bool
) -> None:
    """The steps of a table that are listed are fewer than that: of the others the last that dooms is remembered."""
    writer, changer, *_ = connections
    run(changer, "SET ddl_wait = 0", "ALTER TABLE other ADD COLUMN z int")
    run(writer, f"BEGIN ISOLATION LEVEL {level}", "UPDATE other SET y = 'mine' WHERE x = 1")
    if dropped:
        run(changer, "ALTER TABLE other DROP COLUMN z")
    for number in range(70):
        run(
            changer,
            f"ALTER TABLE other RENAME COLUMN y TO y{number}",
            f"ALTER TABLE other RENAME COLUMN y{number} TO y",
        )
    if dropped:
        with fails("40001", "drop column", "The change was: ALTER TABLE other DROP COLUMN z"):
            run(writer, "COMMIT")
    else:
        run(writer, "SELECT y FROM other WHERE x = 1", "COMMIT")
    assert value(changer, "SELECT y FROM other WHERE x = 1") == ("y1" if dropped else "mine")


@pytest.mark.parametrize("connections", ["lmdb"], indirect=True)
def test_rows_in_a_thousand_layouts(connections: tuple[Connection, ...]) -> None:
    """A layout per row: each has the default of then in the column that comes and goes, and frozen values of later."""
    writer, reader, *_ = connections
    run(
        writer, "CREATE TABLE chain (id int PRIMARY KEY, kept int DEFAULT 0)", "CREATE INDEX chain_kept ON chain (kept)"
    )
    for number in range(LAYOUTS // 2):
        run(
            writer,
            f"INSERT INTO chain VALUES ({2 * number}, {number})",
            f"ALTER TABLE chain ADD COLUMN c{number} int DEFAULT {number}",
            f"INSERT INTO chain (id, kept) VALUES ({2 * number + 1}, {number})",
        )
        if number >= 3:
            run(writer, f"ALTER TABLE chain DROP COLUMN c{number - 3}")
    last = LAYOUTS // 2 - 1
    expected = [(number, number // 2, last - 2, last - 1, last) for number in range(LAYOUTS)]
    assert value(writer, "SELECT layout - oldest FROM instar.layouts WHERE table_name = 'chain'") >= LAYOUTS - 5
    for connection in (writer, reader):
        assert rows(connection, "SELECT * FROM chain ORDER BY id") == expected
        assert rows(connection, "SELECT *, count(*) OVER () FROM chain ORDER BY id") == [
            (*r, LAYOUTS) for r in expected
        ]
        assert rows(connection, "SELECT * FROM chain WHERE id = 0") == expected[:1]
        assert rows(connection, f"SELECT id, c{last} FROM chain WHERE kept = 7 ORDER BY id") == [(14, last), (15, last)]
    writer.database.store.collect(1 << 62, lambda record: [])  # else the log's rows may need what columns had
    run(writer, "COMPACT TABLE chain")
    assert value(writer, "SELECT layout - oldest FROM instar.layouts WHERE table_name = 'chain'") == 0
    assert rows(reader, "SELECT * FROM chain ORDER BY id") == expected
    assert rows(writer, "CHECK TABLE chain") == []
