"""Many processes that change one schema, and snapshots from before hundreds of changes, with metadata caches that hold
next to nothing."""

from __future__ import annotations

import hashlib
import itertools
import random
from multiprocessing.queues import Queue
from pathlib import Path

import msgspec
import pytest

import instar
from instar.dbapi import Connection
from support.databases import rows, run, value
from support.victims import CONTEXT

PROCESSES = 3
CHANGES = 60
# What others may have done to what a change is about: names taken or gone, objects that depend on each other, changes.
_MET_OTHERS = ("42", "2B", "40", "55", "0A")
_SHOWN = (
    "SELECT name, version, layout, columns FROM instar.tables ORDER BY id",
    "SELECT table_name, position, name, type FROM instar.columns ORDER BY table_id, position",
    "SELECT name, query FROM instar.views ORDER BY id",
    "SELECT name, columns FROM instar.indexes ORDER BY id, table_id",
)


def change(connection: Connection, draw: random.Random) -> None:
    """One change of one kind, on names that all processes use."""
    name, other = draw.sample(["a", "b", "c", "d"], 2)
    statement = draw.choice(
        (
            f"CREATE TABLE {name} (id int PRIMARY KEY, x int, y text)",
            f"CREATE TABLE {name} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, x int REFERENCES {other} (id))",
            f"ALTER TABLE {name} ADD COLUMN c{draw.randrange(5)} int DEFAULT 3",
            f"ALTER TABLE {name} DROP COLUMN c{draw.randrange(5)}",
            f"ALTER TABLE {name} RENAME TO {other}",
            f"CREATE INDEX i{draw.randrange(3)} ON {name} (x)",
            f"DROP INDEX i{draw.randrange(3)}",
            f"CREATE VIEW v{draw.randrange(3)} AS SELECT x FROM {name}",
            f"DROP VIEW v{draw.randrange(3)}",
            f"DROP TABLE {name} CASCADE",
            f"TRUNCATE {name}",
        )
    )
    try:
        connection.execute(statement)
    except instar.Error as refused:
        assert refused.sqlstate[:2] in _MET_OTHERS, (statement, refused)  # noqa: PT017 - what is let pass is looked at


def shown(connection: Connection) -> list[list[tuple[object, ...]]]:
    return [rows(connection, query) for query in _SHOWN]


def digest(connection: Connection) -> tuple[int, str]:
    """The newest catalog version, and what the process takes for it."""
    database = connection.database
    with database.store.read() as reader:
        catalog = database.catalog.at(reader)
    found = hashlib.sha256()
    for one in catalog.objects():
        assert catalog.by_id(one.id) == one
        assert catalog.lookup(None, one.name) == one
        found.update(msgspec.msgpack.encode(one))
    return catalog.version, found.hexdigest()


def keep_changing(path: str, number: int, cache: int | None, out: Queue[dict[int, str]]) -> None:
    """Change the schema, while transactions that keep their snapshots look at it again and again."""
    draw = random.Random(number)
    connection = instar.connect(path, synchronous=None, autocommit=True, metadata_cache_bytes=cache)
    old = [instar.connect(path, synchronous=None) for _ in range(3)]
    seen: list[list[list[tuple[object, ...]]]] = []
    for reader in old:
        run(reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        seen.append(shown(reader))
    digests: dict[int, str] = {}
    for done in range(CHANGES):
        change(connection, draw)
        version, found = digest(connection)
        assert digests.setdefault(version, found) == found
        chosen = done % len(old)
        assert shown(old[chosen]) == seen[chosen]
        if draw.random() < 0.2:
            old[chosen].rollback()
            run(old[chosen], "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            seen[chosen] = shown(old[chosen])
        connection.database.catalog.cache.collect()
    for each in (*old, connection):
        each.close()
    out.put(digests)


@pytest.mark.parametrize("cache", [0, 30_000, None])
def test_all_processes_see_the_same_schema_at_one_version(tmp_path: Path, cache: int | None) -> None:
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", autocommit=True, metadata_cache_bytes=cache)
    run(connection, "CREATE TABLE a (id int PRIMARY KEY, x int)")
    out: Queue[dict[int, str]] = CONTEXT.Queue()
    changing = [CONTEXT.Process(target=keep_changing, args=(path, n, cache, out)) for n in range(PROCESSES)]
    for process in changing:
        process.start()
    told = [out.get(timeout=120) for _ in changing]
    for process in changing:
        process.join()
    merged: dict[int, str] = {}
    for digests in told:
        for version, found in digests.items():
            assert merged.setdefault(version, found) == found
    assert value(connection, "SELECT count(*) FROM instar.tables") == sum(1 for _ in rows(connection, _SHOWN[0]))
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()


# --- long snapshots -------------------------------------------------------------------------------------------------

LONG = 500

SETUP = (
    "CREATE TABLE g (id int PRIMARY KEY, name text)",
    "CREATE TABLE t (id int PRIMARY KEY, a int, b text, c int DEFAULT 5, g int REFERENCES g (id))",
    "CREATE INDEX t_a ON t (a)",
    "CREATE UNIQUE INDEX t_b ON t (b)",
    "CREATE VIEW v AS SELECT g.name, t.a FROM t JOIN g ON t.g = g.id",
    "CREATE SEQUENCE s",
    "INSERT INTO g VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO t SELECT n, n % 7, 'b' || n, n, n % 2 + 1 FROM generate_series(1, 40) n",
)
QUERIES = (
    "SELECT * FROM t ORDER BY id",
    "SELECT id, c FROM t WHERE a = 3 ORDER BY id",
    "SELECT a FROM t WHERE b = 'b17'",
    "SELECT * FROM t WHERE id = 11",
    "SELECT name, count(*), sum(a) FROM v GROUP BY name ORDER BY name",
    "SELECT * FROM g ORDER BY id",
    "SELECT name, version, columns FROM instar.tables ORDER BY id",
    "SELECT table_name, name, columns, state FROM instar.indexes ORDER BY table_id, id",
    "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY 1, ordinal_position",
    "SELECT name FROM instar.constraints ORDER BY table_name, name",
)


def changes_of_a_round(draw: random.Random) -> list[str]:
    """One round: what comes and goes with it leaves `t`, `g` and `v` there, if in other shapes."""
    number = next(_numbers)
    rounds = (
        [f"ALTER TABLE t ADD COLUMN n{number} int DEFAULT {number}", f"UPDATE t SET n{number} = id WHERE a = 2"],
        [f"ALTER TABLE t ADD COLUMN d{number} text", f"ALTER TABLE t DROP COLUMN d{number}"],
        [f"CREATE INDEX i{number} ON t (c)", f"DROP INDEX i{number}"],
        ["DROP INDEX t_a", "CREATE INDEX t_a ON t (a DESC)"],
        [f"ALTER TABLE t ADD CONSTRAINT k{number} CHECK (a >= 0)", f"ALTER TABLE t DROP CONSTRAINT k{number}"],
        ["ALTER TABLE t RENAME COLUMN c TO z", "UPDATE t SET z = z + 1", "ALTER TABLE t RENAME COLUMN z TO c"],
        ["ALTER TABLE t RENAME TO u", "CREATE TABLE t (x int)", "DROP TABLE t", "ALTER TABLE u RENAME TO t"],
        ["DROP VIEW v", "CREATE VIEW v AS SELECT g.name, t.a FROM t JOIN g ON t.g = g.id WHERE t.id > 0"],
        [f"ALTER TABLE t ALTER COLUMN c SET DEFAULT {number}"],
        ["ALTER TABLE g ALTER COLUMN name SET NOT NULL", "ALTER TABLE g ALTER COLUMN name DROP NOT NULL"],
        ["DELETE FROM t WHERE id % 5 = 0", f"INSERT INTO t (id, a, b, g) VALUES (5, 1, 'new{number}', 1)"],
        ["TRUNCATE t", "INSERT INTO t (id, a, b, g) SELECT n, n % 7, 'c' || n, 1 FROM generate_series(1, 30) n"],
        ["DROP SEQUENCE s", "CREATE SEQUENCE s START 7"],
        [f"CREATE TABLE w{number} AS SELECT * FROM g", f"DROP TABLE w{number}"],
        ["DROP TABLE t CASCADE", *SETUP[1:5], SETUP[7]],
        ["ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (id, b)", "ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (id)"],
    )
    return draw.choice(rounds)


_numbers = itertools.count()


def read(connection: Connection) -> list[list[tuple[object, ...]]]:
    return [rows(connection, query) for query in QUERIES]


@pytest.mark.parametrize("cache", [0, None])
def test_snapshots_from_before_500_changes_repeat_exactly(tmp_path: Path, cache: int | None) -> None:
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", autocommit=True, metadata_cache_bytes=cache)
    run(connection, *SETUP)
    old: list[tuple[Connection, list[list[tuple[object, ...]]]]] = []
    draw = random.Random(4)
    done = 0
    while done < LONG:
        if done % 100 < 3 and len(old) < 8:
            for level in ("REPEATABLE READ", "SERIALIZABLE READ ONLY"):
                reader = instar.connect(path, synchronous=None)
                run(reader, f"SET TRANSACTION ISOLATION LEVEL {level}")
                old.append((reader, read(reader)))
        made = changes_of_a_round(draw)
        run(connection, *made)
        done += len(made)
        connection.database.catalog.cache.collect()
        if done % 7 == 0:
            reader, before = draw.choice(old)
            assert read(reader) == before
    for reader, before in old:
        assert read(reader) == before
        reader.close()
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()
