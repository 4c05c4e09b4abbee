"""In an open transaction the short way of writes and look-ups gives what the general way gives, and leaves to that what
only it knows about."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import ANY

import pytest

import instar
from instar import errors
from instar.database.queries import Queries
from instar.dbapi import Connection
from instar.store.lock_modes import Mode
from integration.test_join_and_split_strategies import SPLIT, switched, until
from support.databases import Engine, fails, rows, run, value
from support.ways import Ways

INSERT, PUT, ADD, DELETE, LOOK = (
    "INSERT INTO t (id, a) VALUES (?, ?)",
    "UPDATE t SET a = ? WHERE id = ?",
    "UPDATE t SET a = a + ? WHERE id = ?",
    "DELETE FROM t WHERE id = ?",
    "SELECT a FROM t WHERE id = ?",
)


@pytest.fixture
def one(engine: Engine) -> Connection:
    """A session with a table of some rows, in which all the texts are known."""
    made = engine.connect()
    run(made, "CREATE TABLE t (id int PRIMARY KEY, a int CHECK (a < 1000))", "CREATE INDEX t_a ON t (a)")
    for key in range(8):
        made.execute(INSERT, (key, key))
    for text, given in ((INSERT, (9, 9)), (PUT, (9, 9)), (ADD, (0, 9)), (DELETE, (9,)), (LOOK, (1,))):
        for _ in range(2 if text != INSERT else 1):
            made.execute(text, given)
    return made


def test_writes_and_look_ups_take_the_short_way(engine: Engine, one: Connection, ways: Ways) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    assert [one.execute(text, given).rowcount for text, given in (
        (INSERT, (10, 1)), (PUT, (5, 1)), (ADD, (5, 2)), (DELETE, (3,)), (DELETE, (11,)), (PUT, (1, 11)),
    )] == [1, 1, 1, 1, 0, 0]  # fmt: skip
    assert value(one, LOOK, 4) == 4
    assert ways.taken() == 0
    assert value(one, LOOK, 2) == 7  # its own
    assert rows(one, LOOK, 3) == []
    assert ways.taken() == 2
    assert value(two, LOOK, 2) == 2
    run(one, "COMMIT")
    assert rows(two, "SELECT id, a FROM t ORDER BY id") == [
        (0, 0),
        (1, 5),
        (2, 7),
        (4, 4),
        (5, 5),
        (6, 6),
        (7, 7),
        (10, 1),
    ]
    assert rows(two, "SELECT id FROM t WHERE a = 5 ORDER BY id") == [(1,), (5,)]
    assert rows(two, "CHECK DATABASE") == []


@pytest.mark.parametrize("first", [(PUT, (5, 1)), (LOOK, (1,))])
def test_the_statement_that_opens_a_transaction_takes_it_too(
    engine: Engine, one: Connection, ways: Ways, first: tuple[str, tuple[int, ...]]
) -> None:
    two = engine.connect()
    one.autocommit = False
    for _ in range(2):
        one.execute(*first)
        assert one.execute(PUT, (6, 2)).rowcount == 1
        assert ways.taken() == 0
        assert value(two, LOOK, 2) == 2
        one.rollback()
    assert ways.taken() == 0
    assert [value(one, LOOK, key) for key in (1, 2)] == [1, 2]
    one.rollback()
    with fails(errors.CHECK_VIOLATION):
        one.execute(PUT, (1000, 1))
    with fails(errors.IN_FAILED_TRANSACTION):
        one.execute(*first)
    one.rollback()
    one.execute(*first)
    one.commit()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_transaction_of_another_level_keeps_its_snapshot_from_the_first_statement_on(
    engine: Engine, one: Connection, level: str
) -> None:
    two = engine.connect()
    run(one, f"SET default_transaction_isolation = '{level}'")
    one.autocommit = False
    assert value(one, LOOK, 1) == 1
    two.execute(PUT, (9, 1))
    assert value(one, LOOK, 1) == 1
    one.commit()
    assert value(one, LOOK, 1) == 9
    one.commit()


def test_a_row_that_was_changed_before_is_changed_again(one: Connection) -> None:
    run(one, "BEGIN")
    for text, given in (
        (INSERT, (10, 1)), (ADD, (5, 10)), (DELETE, (10,)), (INSERT, (10, 2)), (ADD, (1, 10)),
        (PUT, (50, 1)), (ADD, (1, 1)), (DELETE, (2,)), (INSERT, (2, 20)), (PUT, (30, 3)), (DELETE, (3,)),
    ):  # fmt: skip
        assert one.execute(text, given).rowcount == 1
    for _ in range(2):
        assert [rows(one, LOOK, key) for key in (1, 2, 3, 10)] == [[(51,)], [(20,)], [], [(3,)]]
        run(one, "COMMIT")


def test_savepoints_take_back_what_was_buffered(one: Connection) -> None:
    run(one, "BEGIN")
    one.execute(PUT, (10, 1))
    run(one, "SAVEPOINT s")
    one.execute(PUT, (20, 1))
    one.execute(PUT, (20, 2))
    one.execute(INSERT, (10, 10))
    run(one, "ROLLBACK TO s")
    assert [rows(one, LOOK, key) for key in (1, 2, 10)] == [[(10,)], [(2,)], []]
    one.execute(INSERT, (10, 11))
    run(one, "COMMIT")
    assert [rows(one, LOOK, key) for key in (1, 2, 10)] == [[(10,)], [(2,)], [(11,)]]


def test_others_wait_for_rows_written_and_are_waited_for(
    engine: Engine, one: Connection, threads: ThreadPoolExecutor
) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    run(two, "BEGIN")
    one.execute(ADD, (100, 1))
    one.execute(INSERT, (10, 1))
    two.execute(ADD, (100, 2))
    adds = threads.submit(two.execute, ADD, (10, 1))
    until(lambda: bool(rows(one, "SELECT 1 FROM instar.transaction_locks WHERE NOT granted")))
    run(one, "COMMIT")
    assert adds.result().rowcount == 1
    run(two, "COMMIT", "BEGIN")
    two.execute(ADD, (1, 1))
    with fails(errors.UNIQUE_VIOLATION, "10"):
        two.execute(INSERT, (10, 2))
    run(two, "ROLLBACK")
    assert [value(one, LOOK, key) for key in (1, 2, 10)] == [111, 102, 1]


@pytest.mark.parametrize(
    ("definition", "locks"),
    [
        ("id int PRIMARY KEY, a int", [1, 1, 1]),
        ("id int PRIMARY KEY, a int UNIQUE", [2, 3, 2]),
        ("id int UNIQUE, a int", [1, 1, 2]),
        ("id int, a int", [0, 1, 1]),
    ],
)
def test_the_locks_are_those_of_the_general_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, ways: Ways, definition: str, locks: list[int]
) -> None:
    one = engine.connect()
    run(one, f"CREATE TABLE t ({definition})", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    wanted: list[dict[bytes, Mode]] = []
    for way in ("general", "short"):
        ways.taken()
        with monkeypatch.context() as patch:
            if way == "general":
                patch.setattr(Queries, "within", lambda *_given: None)
            for number, (text, given) in enumerate([(INSERT, (4, 4)), (PUT, (5, 1)), (DELETE, (2,))]):
                for _ in range(2):  # the second time it is known
                    run(one, "BEGIN")
                    one.execute(text, given)
                    held = dict(one.session.locks.held)
                    run(one, "ROLLBACK")
                if way == "general":
                    wanted.append(held)
                assert held == wanted[number]
    assert [len(held) for held in wanted] == locks
    assert ways.taken() == (0 if definition == "id int PRIMARY KEY, a int" else ANY)


@pytest.mark.parametrize(
    ("text", "given", "state"),
    [
        (INSERT, (1, 1), errors.UNIQUE_VIOLATION),
        (INSERT, (20, 1000), errors.CHECK_VIOLATION),
        (ADD, (5000, 2), errors.CHECK_VIOLATION),
        (INSERT, (None, 2), errors.NOT_NULL_VIOLATION),
        (PUT, (1 << 40, 2), errors.NUMERIC_OUT_OF_RANGE),
        (PUT, ("x", 2), errors.INVALID_TEXT),
    ],
)
def test_a_statement_that_fails_fails_the_transaction(
    one: Connection, text: str, given: tuple[object, ...], state: str
) -> None:
    run(one, "BEGIN")
    one.execute(PUT, (70, 7))
    with fails(state):
        one.execute(text, given)
    for again in (LOOK, DELETE):
        with fails(errors.IN_FAILED_TRANSACTION):
            one.execute(again, (7,))
    run(one, "ROLLBACK")
    assert value(one, LOOK, 7) == 7


def test_limits_and_read_only_transactions(one: Connection) -> None:
    run(one, "SET max_transaction_rows = 2", "BEGIN")
    one.execute(PUT, (10, 1))
    one.execute(PUT, (10, 2))
    with fails(errors.LIMIT_EXCEEDED):
        one.execute(PUT, (10, 3))
    run(one, "ROLLBACK", "BEGIN READ ONLY")
    assert value(one, LOOK, 3) == 3
    with fails(errors.READ_ONLY_TRANSACTION):
        one.execute(PUT, (10, 3))
    run(one, "ROLLBACK")


def test_what_is_cancelled_is_the_statement_that_runs(one: Connection) -> None:
    run(one, "BEGIN")
    one.cancel()  # nothing runs
    assert one.execute(PUT, (10, 1)).rowcount == 1
    run(one, "COMMIT")


def test_locks_that_cannot_be_written_fail_the_statement(one: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say."""
    run(one, "BEGIN")
    one.execute(PUT, (10, 1))

    def full(*_given: object) -> None:
        raise errors.error(errors.DISK_FULL, "no space is left")

    with monkeypatch.context() as patch, fails(errors.DISK_FULL):
        patch.setattr(type(one.database.store), "lock", full)
        one.execute(PUT, (10, 2))
    with fails(errors.IN_FAILED_TRANSACTION):
        one.execute(PUT, (10, 2))
    run(one, "ROLLBACK")
    assert [value(one, LOOK, key) for key in (1, 2)] == [1, 2]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_transactions_that_keep_their_snapshot_see_nothing_newer(engine: Engine, one: Connection, level: str) -> None:
    two = engine.connect()
    run(one, f"BEGIN ISOLATION LEVEL {level}")
    assert value(one, LOOK, 1) == 1
    two.execute(PUT, (50, 1))
    assert value(one, LOOK, 1) == 1
    with fails(errors.SERIALIZATION_FAILURE):
        one.execute(PUT, (60, 1))
        run(one, "COMMIT")
    run(one, "ROLLBACK")


def test_what_others_commit_is_seen_by_the_next_statement(engine: Engine, one: Connection, ways: Ways) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    one.execute(PUT, (10, 1))
    two.execute(ADD, (100, 2))
    one.execute(ADD, (1, 2))
    two.execute(INSERT, (10, 1))
    assert value(one, LOOK, 10) == 1
    one.execute(ADD, (1, 10))
    assert ways.taken() == 0
    run(one, "COMMIT")
    assert [value(two, LOOK, key) for key in (1, 2, 10)] == [10, 103, 2]


def test_a_change_right_before_others_know_of_the_write(
    engine: Engine, one: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is told, not the commit."""
    other, store = engine.connect(), engine.database.store
    enlist = store.enlist

    def late(*given: Any, **named: Any) -> int:
        monkeypatch.setattr(store, "enlist", enlist)
        run(other, "ALTER TABLE t DROP COLUMN a")
        return enlist(*given, **named)

    run(one, "BEGIN")
    monkeypatch.setattr(store, "enlist", late)
    with fails(errors.UNDEFINED_COLUMN):
        one.execute(PUT, (5, 1))
    run(one, "ROLLBACK")


def test_what_is_buffered_follows_the_schema(engine: Engine, one: Connection) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    one.execute(PUT, (10, 1))
    run(two, "ALTER TABLE t ADD COLUMN b int NOT NULL DEFAULT 5 FIRST")
    one.execute(PUT, (20, 2))
    assert rows(one, "SELECT * FROM t WHERE id IN (1, 2, 3) ORDER BY id") == [(5, 1, 10), (5, 2, 20), (5, 3, 3)]
    run(two, "ALTER TABLE t ADD CONSTRAINT t_c CHECK (a <> 10)")
    with fails(errors.CHECK_VIOLATION, "t_c"):  # as soon as it is known
        one.execute(PUT, (20, 3))
    run(two, "ALTER TABLE t DROP CONSTRAINT t_c")
    run(one, "ROLLBACK", "BEGIN")
    one.execute(PUT, (10, 1))
    one.execute(PUT, (20, 2))
    assert [value(one, LOOK, key) for key in (1, 2, 3)] == [10, 20, 3]
    run(two, "ALTER TABLE t ALTER COLUMN b SET DEFAULT 6", "CREATE INDEX t_b ON t (b)")
    one.execute(INSERT, (10, 30))
    run(two, "ALTER TABLE t RENAME COLUMN a TO c")
    with fails(errors.UNDEFINED_COLUMN):
        one.execute(PUT, (40, 3))
    run(one, "ROLLBACK", "BEGIN")
    put = "UPDATE t SET c = ? WHERE id = ?"
    for _ in range(2):
        one.execute(put, (50, 4))
        one.execute(put, (50, 5))
        run(one, "COMMIT", "BEGIN")
    run(one, "ROLLBACK")
    assert rows(one, "SELECT c, b FROM t WHERE id > 3 ORDER BY id") == [(50, 5), (50, 5), (6, 5), (7, 5)]
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("change", ["ADD COLUMN n int DEFAULT 5", "DROP COLUMN z", "ADD COLUMN v serial"])
def test_a_plan_of_another_version_sees_what_is_buffered(engine: Engine, change: str) -> None:
    """In batches, as the analytic engine reads: it knows the columns that it reads, and no others."""
    one = engine.connect()
    query = "SELECT a, b, sum(a) OVER (ORDER BY id) FROM t ORDER BY id"
    counted = "SELECT count(*), count(*) OVER () FROM t GROUP BY ()"
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, m int, a int, b text, z int)",
        "INSERT INTO t VALUES (1, 0, 10, 'x', 0), (2, 0, 20, NULL, 0), (3, 0, 30, 'z', 0)",
    )
    assert rows(one, counted) == [(3, 1)]
    assert [row[2] for row in rows(one, query)] == [10, 30, 60]
    run(one, f"ALTER TABLE t {change}", "BEGIN", "UPDATE t SET a = 25, b = 'y' WHERE id = 2")
    run(one, "DELETE FROM t WHERE id = 1")
    run(one, "INSERT INTO t (id, b) VALUES (4, 'new')")
    assert rows(one, query) == [(25, "y", 25), (30, "z", 55), (None, "new", 55)]
    assert rows(one, counted) == [(3, 1)]
    run(one, "ROLLBACK")


def test_a_name_that_only_the_transaction_knows_stays_its_own(engine: Engine, one: Connection) -> None:
    """A table that was renamed since the transaction began has its old name there, and for nobody else."""
    two = engine.connect()
    run(one, "BEGIN", "SELECT 1")
    run(two, "ALTER TABLE t RENAME TO u")
    for key in range(3):
        assert one.execute("UPDATE t SET a = 100 + ? WHERE id = ?", (key, key)).rowcount == 1
        with fails(errors.UNDEFINED_TABLE):
            two.execute("UPDATE t SET a = 100 + ? WHERE id = ?", (key, key + 4))  # of a row that nobody has locked
    run(one, "COMMIT")
    assert rows(two, "SELECT a FROM u WHERE id < 4 ORDER BY id") == [(100,), (101,), (102,), (3,)]


def test_after_a_split_the_rows_of_the_targets_are_what_was_buffered_on_the_source(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, zip int, city int, v int)",
        "INSERT INTO t VALUES (1, 1, 1, 0), (2, 2, 2, 0)",
    )
    change, look = "UPDATE t SET v = ? WHERE id = ?", "SELECT v FROM p WHERE id = ?"
    two.execute(change, (0, 1))
    run(one, "BEGIN")
    one.execute(change, (7, 1))
    splitting = switched(engine, SPLIT.format("commit", "1 min"), "p")
    for _ in range(3):
        assert value(two, look, 1) == 0
    assert value(one, look, 1) == 7
    run(one, "COMMIT")
    splitting.end()
    assert value(two, look, 1) == 7


def _draw(chance: random.Random) -> tuple[str, tuple[object, ...]]:
    key, number = chance.randrange(8), chance.randrange(3) * 400
    return chance.choice([
        ("INSERT INTO {} (id, a) VALUES (?, ?)", (key, number)),
        ("UPDATE {} SET a = ? WHERE id = ?", (number, key)),
        ("UPDATE {} SET a = a + ? WHERE id = ?", (number, key)),
        ("DELETE FROM {} WHERE id = ?", (key,)),
        ("SELECT a FROM {} WHERE id = ?", (key,)),
        ("SELECT count(*), sum(a) FROM {}", ()),
        ("SELECT a FROM {} WHERE id = ? FOR UPDATE", (key,)),
        ("SELECT a, id FROM {} WHERE id = ? FOR SHARE SKIP LOCKED", (key,)),
    ])  # fmt: skip


def _done(connection: Connection, table: str, text: str, given: tuple[object, ...]) -> object:
    """What comes of a statement."""
    try:
        cursor = connection.execute(text.format(table), given)
        return cursor.rowcount, cursor.fetchall() if cursor.description else None
    except instar.Error as failed:
        return failed.sqlstate, str(failed.message).replace(table, "t"), str(failed.detail).replace(table, "t")


CHANGES = (
    "ALTER TABLE {} ADD COLUMN c int DEFAULT 1",
    "ALTER TABLE {} DROP COLUMN c",
    "CREATE INDEX {0}_a ON {0} (a)",
    "DROP INDEX {}_a",
    "ALTER TABLE {} ALTER COLUMN a TYPE bigint",
    "ALTER TABLE {} ALTER COLUMN a SET DEFAULT 3",
    "ALTER TABLE {0} ADD CONSTRAINT {0}_c CHECK (a < 1000)",
    "ALTER TABLE {0} DROP CONSTRAINT {0}_c",
)


@pytest.mark.parametrize(("seed", "lease"), [*((seed, None) for seed in range(12)), (12, 0.05), (13, 0.05)])
def test_both_ways_give_the_same(seed: int, lease: float | None) -> None:
    """Statements of transactions, with savepoints and with changes of the schema by another session in between: once in
    texts that are known, and once in texts that nobody has executed before."""
    engine, chance = Engine(":memory:", schema_lease=lease), random.Random(seed)
    short, general, other = engine.connect(), engine.connect(), engine.connect(lock_timeout="1ms")
    sides = ((short, "short"), (general, "general"))
    for _, table in sides:
        run(other, f"CREATE TABLE {table} (id int PRIMARY KEY, a int)")
        run(other, f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)")
    for number in range(300):
        what = chance.random()
        text, given = _draw(chance)
        if what < 0.1:
            text, given = chance.choice(("BEGIN", "COMMIT", "ROLLBACK")), ()
        elif what < 0.16:
            text, given = chance.choice(("SAVEPOINT s", "ROLLBACK TO s")), ()
        elif what < 0.18:
            change = chance.choice(CHANGES)
            assert _done(other, "short", change, ()) == _done(other, "general", change, ())
            continue
        elif what < 0.25:
            assert _done(other, "short", text, given) == _done(other, "general", text, given)
            continue
        found = [
            _done(side, table, text + (f" -- {number}" if side is general else ""), given) for side, table in sides
        ]
        assert found[0] == found[1], (number, text, given)
    for side, _ in sides:
        run(side, "ROLLBACK")
    assert rows(other, "SELECT id, a FROM short ORDER BY id") == rows(other, "SELECT id, a FROM general ORDER BY id")
    assert rows(other, "CHECK DATABASE") == []
    engine.close()
