"""SELECT ... FOR UPDATE of one row by its key: the short way locks and gives what the general way does, and leaves to
that what only it knows about."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from instar import errors
from instar.database.queries import Queries
from instar.dbapi import Connection
from instar.store.lock_modes import Mode
from integration.test_join_and_split_strategies import SPLIT, switched, until
from support.databases import Engine, fails, rows, run, value
from support.ways import Ways

LOCK, NOWAIT, SKIP = (f"SELECT a FROM t WHERE id = ? FOR UPDATE{wait}" for wait in ("", " NOWAIT", " SKIP LOCKED"))
LOOK, PUT = "SELECT a FROM t WHERE id = ?", "UPDATE t SET a = ? WHERE id = ?"


@pytest.fixture
def one(engine: Engine) -> Connection:
    """A session with a table of some rows, in which all the texts are known."""
    made = engine.connect()
    run(
        made,
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 8) AS s (g)",
    )
    know(made)
    return made


def know(session: Connection) -> None:
    """Execute the texts as they are executed for the first time."""
    for text in (LOCK, NOWAIT, SKIP, LOOK):
        session.execute(text, (1,))
    session.execute(PUT, (1, 1))


def held(session: Connection) -> dict[bytes, Mode]:
    return dict(session.session.locks.held)


def test_the_short_way(engine: Engine, one: Connection, ways: Ways) -> None:
    two = engine.connect(lock_timeout="1ms")
    run(one, "BEGIN")
    assert [value(one, text, key) for text, key in ((LOCK, 1), (NOWAIT, 2), (SKIP, 3), (LOCK, 1))] == [1, 2, 3, 1]
    assert [value(one, LOOK, key) for key in (1, 4)] == [1, 4]
    assert one.execute(PUT, (10, 1)).rowcount == 1
    assert ways.taken() == 0
    assert len(held(one)) == 3
    for key in (1, 2, 3):
        with fails(errors.LOCK_NOT_AVAILABLE):
            two.execute(PUT, (20, key))
    two.execute(PUT, (20, 4))
    run(one, "COMMIT")
    assert [two.execute(PUT, (30, key)).rowcount for key in (1, 2, 3)] == [1, 1, 1]


def test_what_others_have_committed_is_locked(engine: Engine, one: Connection, ways: Ways) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    assert value(one, LOCK, 1) == 1
    two.execute(PUT, (20, 2))
    assert value(one, LOCK, 2) == 20
    assert one.execute(PUT, (21, 2)).rowcount == 1
    assert ways.taken() == 0
    run(one, "COMMIT")
    assert value(two, LOOK, 2) == 21


def test_a_row_that_is_not_there_is_not_locked(engine: Engine, one: Connection, ways: Ways) -> None:
    two = engine.connect(lock_timeout="1ms")
    run(one, "DELETE FROM t WHERE id = 8", "BEGIN")
    ways.taken()
    assert [rows(one, LOCK, key) for key in (8, 9)] == [[], []]
    assert ways.taken() == 0
    assert held(one) == {}
    run(two, "INSERT INTO t VALUES (8, 80), (9, 90)")
    assert [value(one, LOCK, key) for key in (8, 9)] == [80, 90]
    run(one, "COMMIT")


def test_rows_that_the_transaction_has_changed(one: Connection, ways: Ways) -> None:
    run(one, "BEGIN")
    one.execute(PUT, (10, 1))
    assert value(one, LOCK, 1) == 10
    run(one, "DELETE FROM t WHERE id = 2")
    assert rows(one, LOCK, 2) == []
    assert ways.taken() > 0
    assert value(one, LOCK, 3) == 3
    run(one, "COMMIT")


def test_savepoints(engine: Engine, one: Connection, ways: Ways) -> None:
    """As in PostgreSQL, locks may stay when a savepoint takes back what came after it; here they do."""
    two = engine.connect(lock_timeout="1ms")
    run(one, "BEGIN", "SAVEPOINT s")
    assert value(one, LOCK, 1) == 1
    run(one, "ROLLBACK TO s")
    assert value(one, LOCK, 1) == 1
    assert ways.taken() == 0
    with fails(errors.LOCK_NOT_AVAILABLE):
        two.execute(PUT, (20, 1))
    run(one, "ROLLBACK")
    assert two.execute(PUT, (20, 1)).rowcount == 1


def test_what_another_has_locked_is_waited_for(engine: Engine, one: Connection, threads: ThreadPoolExecutor) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    run(two, "BEGIN")
    assert value(two, LOCK, 1) == 1
    two.execute(PUT, (20, 1))
    with fails(errors.LOCK_NOT_AVAILABLE):
        one.execute(NOWAIT, (1,))
    run(one, "ROLLBACK", "BEGIN")
    assert rows(one, SKIP, 1) == []
    assert value(one, LOCK, 2) == 2
    waits = threads.submit(value, one, LOCK, 1)
    until(lambda: bool(rows(two, "SELECT 1 FROM instar.transaction_locks WHERE NOT granted")))
    run(two, "COMMIT")
    assert waits.result() == 20
    run(one, "COMMIT")


def test_in_autocommit_it_waits_as_well(engine: Engine, one: Connection) -> None:
    two = engine.connect(lock_timeout="1ms")
    run(one, "BEGIN")
    assert value(one, LOCK, 1) == 1
    with fails(errors.LOCK_NOT_AVAILABLE):
        two.execute(LOCK, (1,))
    assert value(two, LOOK, 1) == 1
    run(one, "COMMIT")
    assert value(two, LOCK, 1) == 1
    assert held(two) == {}


def test_a_deadlock(engine: Engine, one: Connection, threads: ThreadPoolExecutor) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    run(two, "BEGIN")
    assert [value(one, LOCK, 1), value(two, LOCK, 2)] == [1, 2]
    waits = threads.submit(value, one, LOCK, 2)
    until(lambda: bool(rows(engine.connect(), "SELECT 1 FROM instar.transaction_locks WHERE NOT granted")))
    with fails(errors.DEADLOCK_DETECTED):
        two.execute(LOCK, (1,))
    run(two, "ROLLBACK")
    assert waits.result() == 2
    run(one, "COMMIT")


@pytest.mark.parametrize("change", [PUT, "DELETE FROM t WHERE id = ?"])
def test_a_row_that_moves_before_it_is_locked(
    engine: Engine, one: Connection, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """What is given is what is locked."""
    two, store = engine.connect(), one.database.store
    lock = store.lock

    def late(*given: Any, **named: Any) -> None:
        monkeypatch.setattr(store, "lock", lock)
        two.execute(change, (20, 2) if change == PUT else (2,))
        lock(*given, **named)

    run(one, "BEGIN")
    monkeypatch.setattr(store, "lock", late)
    assert rows(one, LOCK, 2) == ([(20,)] if change == PUT else [])
    if change == PUT:
        assert one.execute("UPDATE t SET a = a + 1 WHERE id = 2").rowcount == 1
    run(one, "COMMIT")
    assert rows(two, LOOK, 2) == ([(21,)] if change == PUT else [])


@pytest.mark.parametrize("mode", ["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
@pytest.mark.parametrize(
    "definition", ["id int PRIMARY KEY, a int", "a int, id text, PRIMARY KEY (id)", "id int UNIQUE, a int"]
)
def test_the_locks_are_those_of_the_general_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, definition: str, mode: str
) -> None:
    one = engine.connect()
    run(one, f"CREATE TABLE t ({definition})", "INSERT INTO t (id, a) VALUES ('1', 1), ('2', 2)")
    text, key = f"SELECT a FROM t WHERE id = ? FOR {mode}", "1" if "text" in definition else 1
    found = []
    for way in ("general", "general", "short"):
        with monkeypatch.context() as patch:
            if way == "general":
                patch.setattr(Queries, "within", lambda *_given: None)
            run(one, "BEGIN")
            assert rows(one, text, key) == [(1,)]
            found.append((held(one), {table: meant.name for table, meant in one.session.locks.selected_of.items()}))
            run(one, "ROLLBACK")
    assert found[0] == found[1] == found[2]
    assert list(found[0][0].values()) == [Mode[mode.replace(" ", "_")]]


def test_rows_of_several_parts(engine: Engine, ways: Ways) -> None:
    """A lock for each part, as the general way takes them."""
    one, two = engine.connect(), engine.connect(lock_timeout="1ms")
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)",
        "ALTER TABLE t ADD LOCK p COVERS (b)",
        "INSERT INTO t VALUES (1, 1, 1)",
    )
    know(one)
    ways.taken()
    run(one, "BEGIN")
    assert value(one, LOCK, 1) == 1
    assert ways.taken() == 1
    for column in "ab":
        with fails(errors.LOCK_NOT_AVAILABLE):
            run(two, f"UPDATE t SET {column} = 5 WHERE id = 1")
    run(one, "COMMIT")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_transaction_that_keeps_its_snapshot_is_told_of_newer_rows(
    engine: Engine, one: Connection, ways: Ways, level: str
) -> None:
    two = engine.connect()
    run(one, f"BEGIN ISOLATION LEVEL {level}")
    assert value(one, LOCK, 1) == 1
    assert ways.taken() > 0
    two.execute(PUT, (20, 2))
    with fails(errors.SERIALIZATION_FAILURE):
        one.execute(LOCK, (2,))
    run(one, "ROLLBACK")


def test_read_only_transactions_lock_nothing(one: Connection) -> None:
    run(one, "BEGIN READ ONLY")
    with fails(errors.READ_ONLY_TRANSACTION):
        one.execute(LOCK, (1,))
    run(one, "ROLLBACK")


def test_a_lock_that_cannot_be_written_fails_the_transaction(one: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say."""

    def full(*_given: object) -> None:
        raise errors.error(errors.DISK_FULL, "no space is left")

    run(one, "BEGIN")
    with monkeypatch.context() as patch, fails(errors.DISK_FULL):
        patch.setattr(type(one.database.store), "lock", full)
        one.execute(LOCK, (1,))
    with fails(errors.IN_FAILED_TRANSACTION):
        one.execute(LOCK, (1,))
    run(one, "ROLLBACK")
    assert held(one) == {}


def test_columns_that_come_and_go(engine: Engine, one: Connection, ways: Ways) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    assert value(one, LOCK, 1) == 1
    run(two, "ALTER TABLE t ADD COLUMN b int NOT NULL DEFAULT 5 FIRST")
    assert [value(one, LOCK, key) for key in (1, 2, 3)] == [1, 2, 3]
    one.execute(PUT, (10, 1))
    run(one, "COMMIT", "BEGIN")
    ways.taken()
    assert [value(one, LOCK, key) for key in (1, 2)] == [10, 2]
    assert ways.taken() == 0
    run(two, "ALTER TABLE t DROP COLUMN a")
    with fails(errors.UNDEFINED_COLUMN):
        one.execute(LOCK, (3,))
    run(one, "ROLLBACK")


def test_a_table_that_goes(engine: Engine, one: Connection) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    assert value(one, LOCK, 1) == 1
    run(one, "COMMIT", "BEGIN", "SELECT 1")
    run(two, "ALTER TABLE t RENAME TO u")
    assert value(one, LOCK, 2) == 2  # a name that it has for transactions which began before
    run(one, "COMMIT", "BEGIN")
    with fails(errors.UNDEFINED_TABLE):
        one.execute(LOCK, (1,))
    run(one, "ROLLBACK")
    run(two, "ALTER TABLE u RENAME TO t", "DROP TABLE t")
    run(one, "BEGIN")
    with fails(errors.UNDEFINED_TABLE):
        one.execute(LOCK, (1,))
    run(one, "ROLLBACK")


REPLACED = {
    "TRUNCATE t": "replaced",
    "ALTER TABLE t ADD LOCK p COVERS (a)": "divided into more parts",
    "DROP TABLE t": "dropped",
}


@pytest.mark.parametrize("change", REPLACED)
def test_locked_rows_that_a_change_has_replaced(engine: Engine, one: Connection, change: str) -> None:
    """What was locked is not all that is there now: others may have changed that."""
    two = engine.connect()
    run(one, "CREATE TABLE u (id int PRIMARY KEY)", "BEGIN")
    assert value(one, LOCK, 1) == 1
    run(two, change)
    with fails(errors.SERIALIZATION_FAILURE, f'"t" that the transaction has locked were {REPLACED[change]}'):
        run(one, "INSERT INTO u VALUES (9)", "COMMIT")
    run(one, "ROLLBACK")


@pytest.mark.parametrize("change", [*REPLACED, "ALTER TABLE t ADD COLUMN b int"])
@pytest.mark.parametrize(
    ("text", "given"),
    [
        (LOOK, (2,)),
        (PUT, (20, 2)),
        ("DELETE FROM t WHERE id = ?", (2,)),
        ("INSERT INTO t (id, a) VALUES (?, ?)", (2, 2)),
        ("UPDATE u SET a = ? WHERE id = ?", (20, 2)),
    ],
)
def test_statements_on_the_short_way_are_told(
    engine: Engine, one: Connection, change: str, text: str, given: tuple[int, ...]
) -> None:
    """Also where they are known under the schema that the change has made."""
    two = engine.connect()
    run(one, "DELETE FROM t WHERE id = 2", "CREATE TABLE u (id int PRIMARY KEY, a int)", "INSERT INTO u VALUES (2, 2)")
    for _ in range(2):
        one.execute("UPDATE u SET a = ? WHERE id = ?", (2, 2))
    run(one, "BEGIN")
    assert value(one, LOCK, 1) == 1
    run(two, change, *(["CREATE TABLE t (id int PRIMARY KEY, a int)"] if change == "DROP TABLE t" else []))
    run(two, "BEGIN")
    for _ in range(2):
        run(two, "SAVEPOINT s")
        two.execute(text, given)
        run(two, "ROLLBACK TO s")
    run(two, "ROLLBACK")
    if change in REPLACED:
        with fails(errors.SERIALIZATION_FAILURE, "locked"):
            one.execute(text, given)
    else:
        for _ in range(2):
            run(one, "SAVEPOINT s")
            one.execute(text, given)
            run(one, "ROLLBACK TO s")
    run(one, "ROLLBACK")


def test_tables_that_the_transaction_itself_drops(engine: Engine, one: Connection) -> None:
    run(one, "CREATE TABLE u (id int PRIMARY KEY)", "BEGIN")
    assert value(one, LOCK, 1) == 1
    run(one, "DROP TABLE t", "INSERT INTO u VALUES (1)", "COMMIT")
    assert value(one, "SELECT count(*) FROM u") == 1
    with fails(errors.UNDEFINED_TABLE):
        one.execute(LOCK, (1,))


def test_the_next_statement_is_told_that_they_were(engine: Engine, one: Connection, ways: Ways) -> None:
    two = engine.connect()
    run(one, "BEGIN")
    assert value(one, LOCK, 1) == 1
    run(two, "TRUNCATE t", "INSERT INTO t VALUES (2, 2)", "BEGIN")
    for general in (1, 0):
        ways.taken()
        assert value(two, LOCK, 2) == 2
        assert ways.taken() == general
    run(two, "ROLLBACK")
    with fails(errors.SERIALIZATION_FAILURE, "locked"):
        one.execute(LOCK, (2,))
    run(one, "ROLLBACK")


def test_values_that_only_whoever_fetches_them_cannot_have(engine: Engine, ways: Ways) -> None:
    one, two = engine.connect(), engine.connect(lock_timeout="1ms")
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, a date)",
        "INSERT INTO t VALUES (1, '0044-03-15 BC'), (2, '2026-11-28')",
    )
    for text in (LOCK, PUT):
        one.execute(text, (2,) if text == LOCK else (None, 3))
    run(one, "BEGIN")
    ways.taken()
    cursor = one.execute(LOCK, (1,))
    assert ways.taken() == 1
    with fails("22008"):
        cursor.fetchall()
    with fails(errors.LOCK_NOT_AVAILABLE):
        two.execute(PUT, (None, 1))
    run(one, "ROLLBACK")


def test_locked_rows_of_a_table_that_is_split(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, zip int, city int, v int)",
        "INSERT INTO t VALUES (1, 1, 1, 0), (2, 2, 2, 0)",
    )
    lock, put = "SELECT v FROM t WHERE id = ? FOR UPDATE", "UPDATE t SET v = ? WHERE id = ?"
    for text, given in ((lock, (1,)), (put, (0, 1))):
        two.execute(text, given)
    run(one, "BEGIN")
    assert value(one, lock, 1) == 0
    one.execute(put, (7, 1))
    splitting = switched(engine, SPLIT.format("commit", "1 min"), "p")
    with fails(errors.SERIALIZATION_FAILURE, "locked"):
        run(one, "COMMIT")
    run(one, "ROLLBACK")
    splitting.end()
    assert rows(two, "SELECT v FROM p WHERE id = 1") == [(0,)]
