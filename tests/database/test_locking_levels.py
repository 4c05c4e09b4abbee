"""READ UNCOMMITTED and READ COMMITTED LOCK (MD-MVCC §3.5), on both engines: what they see, permit and exclude."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from instar import errors
from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run, value
from support.waiting import give_up, later, waiting

UNCOMMITTED, LOCK = "READ UNCOMMITTED", "READ COMMITTED LOCK"
LEVELS = [UNCOMMITTED, LOCK]
ALL = "SELECT id, a FROM t ORDER BY id"
# Ways to row 2 of t, and what they give: by key, by keys, by range, by index, by a scan, on the analytic engine.
WAYS = {
    "SELECT a FROM t WHERE id = 2": [(5,)],
    "SELECT a FROM t WHERE id IN (2, 3)": [(5,), (0,)],
    "SELECT a FROM t WHERE id BETWEEN 2 AND 3": [(5,), (0,)],
    "SELECT a FROM t WHERE id <= 2 ORDER BY id DESC LIMIT 1": [(5,)],
    "SELECT a FROM t WHERE u = 2": [(5,)],
    "SELECT a FROM t WHERE u > 1 AND u < 3": [(5,)],
    "SELECT a FROM t ORDER BY id LIMIT 2": [(0,), (5,)],
    "SELECT sum(a) FROM t": [(5,)],
    "SELECT s, sum(a) FROM t GROUP BY ROLLUP (s) ORDER BY s": [("x", 5), (None, 5)],
    "SELECT t.a FROM c JOIN t ON t.id = c.t": [(5,)],
    "SELECT (SELECT a FROM t WHERE id = 2)": [(5,)],
}


def begin(connection: Connection, level: str) -> None:
    connection.execute(f"BEGIN ISOLATION LEVEL {level}")


# How they are asked for.


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_asked_for_and_shown(engine: Engine, level: str) -> None:
    connection = engine.connect()
    shown = level.lower()
    begin(connection, level)
    assert value(connection, "SHOW transaction_isolation") == shown
    assert value(connection, "SHOW TRANSACTION ISOLATION LEVEL") == shown
    run(connection, "COMMIT AND CHAIN")
    assert value(connection, "SHOW transaction_isolation") == shown
    run(connection, "COMMIT", "BEGIN", f"SET TRANSACTION ISOLATION LEVEL {level}")
    assert value(connection, "SHOW transaction_isolation") == shown
    run(connection, "SELECT 1", "COMMIT", f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
    assert value(connection, "SHOW transaction_isolation") == value(connection, "SHOW default_transaction_isolation")
    assert value(connection, "SHOW default_transaction_isolation") == shown
    run(connection, "RESET default_transaction_isolation", f"SET default_transaction_isolation = '{level}'")
    assert value(connection, "SHOW transaction_isolation") == shown
    run(connection, "BEGIN", "SET LOCAL default_transaction_isolation = 'serializable'", "ROLLBACK")
    assert value(connection, "SHOW transaction_isolation") == shown
    assert value(engine.connect(default_transaction_isolation=shown), "SHOW transaction_isolation") == shown


def test_a_level_that_there_is_not(engine: Engine) -> None:
    connection = engine.connect()
    for wrong in ("READ COMMITTED LOCKED", "READ LOCK", "REPEATABLE READ LOCK", "READ UNCOMMITTED LOCK"):
        with fails(errors.SYNTAX_ERROR):
            run(connection, f"BEGIN ISOLATION LEVEL {wrong}")
    with fails(errors.INVALID_PARAMETER):
        run(connection, "SET default_transaction_isolation = 'read locked'")
    run(connection, "BEGIN", "SELECT 1 FROM instar.jobs")
    with fails(errors.ACTIVE_TRANSACTION):
        run(connection, f"SET TRANSACTION ISOLATION LEVEL {LOCK}")
    run(connection, "ROLLBACK")


# Rows that another is about to change.


@pytest.mark.parametrize(("query", "seen"), WAYS.items())
def test_read_committed_lock_waits_for_the_writer_of_a_row(
    sessions: list[Connection], threads: ThreadPoolExecutor, query: str, seen: list[tuple[object, ...]]
) -> None:
    one, two, three, _ = sessions
    run(three, "INSERT INTO c VALUES (1, 2)")
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 2")
    give_up(two, f"BEGIN ISOLATION LEVEL {LOCK}", query)
    begin(two, LOCK)
    waits = later(threads, two, query)
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == seen
    run(two, "COMMIT")


@pytest.mark.parametrize("query", WAYS)
def test_others_do_not_wait_and_see_nothing_that_is_not_committed(sessions: list[Connection], query: str) -> None:
    one, two, *_ = sessions
    before = rows(two, query)
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 2", "INSERT INTO t VALUES (0, 9, 9, 'x')")
    for level in (UNCOMMITTED, "READ COMMITTED"):
        begin(two, level)
        assert rows(two, query) == before
        run(two, "COMMIT")
    run(one, "ROLLBACK")


@pytest.mark.parametrize("write", ["DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (7, 1, 7, 'x')"])
def test_read_committed_lock_waits_for_rows_that_come_and_go(
    sessions: list[Connection], threads: ThreadPoolExecutor, write: str
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", write)
    run(two, f"SET default_transaction_isolation = '{LOCK}'")
    waits = later(threads, two, "SELECT id FROM t ORDER BY id")
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == rows(three, "SELECT id FROM t ORDER BY id")


def test_read_committed_lock_minds_only_what_it_reads(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 3", "SELECT * FROM t WHERE id = 1 FOR KEY SHARE")
    run(one, "SELECT * FROM t WHERE id = 2 FOR SHARE")
    begin(two, LOCK)
    run(two, "SET LOCAL lock_timeout = '1ms'")
    assert rows(two, "SELECT id FROM t WHERE id < 3 ORDER BY id") == [(1,), (2,)]
    assert rows(two, "SELECT id FROM t ORDER BY id DESC LIMIT 1") == [(4,)]
    assert rows(two, "SELECT id FROM t WHERE u IN (1, 2, 4) ORDER BY id") == [(1,), (2,), (4,)]
    assert rows(two, "SELECT * FROM q") == []
    run(two, "COMMIT")
    run(one, "COMMIT")


def test_what_it_has_locked_itself_is_in_nobodys_way(sessions: list[Connection]) -> None:
    one, *_ = sessions
    begin(one, LOCK)
    run(one, "UPDATE t SET a = 5 WHERE id = 2", "INSERT INTO t VALUES (7, 1, 7, 'x')", "DELETE FROM t WHERE id = 1")
    assert rows(one, ALL) == [(2, 5), (3, 0), (4, 0), (7, 1)]
    assert rows(one, "SELECT u FROM t WHERE u < 8 ORDER BY u") == [(2,), (3,), (4,), (7,)]
    run(one, "COMMIT")


def test_for_update_skips_and_does_not_wait_as_at_read_committed(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 2")
    for level in LEVELS:
        begin(two, level)
        assert rows(two, "SELECT id FROM t ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED") == [(1,), (3,)]
        with fails(errors.LOCK_NOT_AVAILABLE):
            run(two, "SELECT id FROM t ORDER BY id FOR UPDATE NOWAIT")
        run(two, "ROLLBACK")
    run(one, "COMMIT")


def test_a_circle_of_reader_and_writer_is_found(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")
    begin(two, LOCK)
    run(two, "UPDATE t SET a = 5 WHERE id = 2")
    reads = later(threads, two, "SELECT * FROM t WHERE id = 1")
    waiting(three)
    with fails(errors.DEADLOCK_DETECTED, "SHARE on row (id)=(1)"):
        run(one, "UPDATE t SET a = 6 WHERE id = 2")
    run(one, "ROLLBACK")
    assert reads.result() == [(1, 0, 1, "x")]
    run(two, "COMMIT")


def test_a_reader_that_waits_is_cancelled(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")
    begin(two, LOCK)
    reads = later(threads, two, "SELECT sum(a) FROM t")
    waiting(three)
    two.cancel()
    with fails(errors.QUERY_CANCELED):
        reads.result()
    run(two, "ROLLBACK")
    run(one, "COMMIT")
    assert rows(three, "SELECT * FROM instar.transaction_locks") == []


def test_rows_of_several_locks_are_waited_for_by_parts(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "ALTER TABLE t ADD LOCK l COVERS (a)", "BEGIN", "UPDATE t SET a = 5 WHERE id = 2")
    give_up(two, f"BEGIN ISOLATION LEVEL {LOCK}", "SELECT * FROM t WHERE id = 2")
    give_up(two, f"BEGIN ISOLATION LEVEL {LOCK}", "SELECT * FROM t WHERE u = 2")
    begin(two, LOCK)
    assert rows(two, "SELECT id FROM t WHERE id > 2") == [(3,), (4,)]
    run(two, "COMMIT")
    run(one, "COMMIT")


# Anomalies.


@pytest.mark.parametrize("level", LEVELS)
def test_permitted_reads_that_do_not_repeat_and_phantoms(sessions: list[Connection], level: str) -> None:
    one, two, *_ = sessions
    begin(one, level)
    assert rows(one, ALL) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    run(two, "UPDATE t SET a = 1 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (9, 9, 9, 'x')")
    assert rows(one, ALL) == [(1, 1), (3, 0), (4, 0), (9, 9)]
    run(one, "COMMIT")


@pytest.mark.parametrize("level", LEVELS)
def test_permitted_read_skew_within_one_statement(
    sessions: list[Connection], threads: ThreadPoolExecutor, level: str
) -> None:
    """A transfer between two accounts, committed between two reads of one statement: nobody ever had that much. What it
    waits for in between is a row of c."""
    one, two, three, four = sessions
    first, second = ("(SELECT a FROM t WHERE id = 1)", "(SELECT a FROM t WHERE id = 4)")
    query = f"SELECT {first} + (SELECT count(*) FROM c WITH (READCOMMITTEDLOCK)) + {second}"
    for asked, total in ((level, 25), ("READ COMMITTED", 20), ("REPEATABLE READ", 20)):
        run(two, "UPDATE t SET a = 10")
        run(three, "BEGIN", "INSERT INTO c VALUES (1, 2)")
        begin(one, asked)
        reads = later(threads, one, query)
        waiting(four)
        run(two, "BEGIN", "UPDATE t SET a = a - 5 WHERE id = 1", "UPDATE t SET a = a + 5 WHERE id = 4", "COMMIT")
        run(three, "ROLLBACK")
        assert reads.result() == [(total,)]
        run(one, "COMMIT")


@pytest.mark.parametrize("level", LEVELS)
def test_excluded_dirty_reads_and_lost_updates(
    sessions: list[Connection], threads: ThreadPoolExecutor, level: str
) -> None:
    one, two, three, _ = sessions
    begin(one, level)
    run(one, "UPDATE t SET a = a + 1 WHERE id = 1")
    begin(three, UNCOMMITTED)
    assert value(three, "SELECT a FROM t WHERE id = 1") == 0
    run(three, "COMMIT")
    second = later(threads, two, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET a = a + 1 WHERE id = 1 RETURNING a")
    waiting(three)
    run(one, "COMMIT")
    assert second.result() == [(2,)]
    run(two, "COMMIT")


@pytest.mark.parametrize("level", LEVELS)
def test_permitted_write_skew(sessions: list[Connection], level: str) -> None:
    one, two, *_ = sessions
    begin(one, level)
    begin(two, level)
    assert value(one, "SELECT a FROM t WHERE id = 1") == value(two, "SELECT a FROM t WHERE id = 2") == 0
    run(one, "UPDATE t SET a = 1 WHERE id = 2")
    run(two, "UPDATE t SET a = 1 WHERE id = 1", "COMMIT")
    run(one, "COMMIT")
    assert rows(one, "SELECT a FROM t WHERE id < 3 ORDER BY id") == [(1,), (1,)]


@pytest.mark.parametrize("level", LEVELS)
def test_constraints_hold_at_every_level(sessions: list[Connection], threads: ThreadPoolExecutor, level: str) -> None:
    one, two, three, _ = sessions
    begin(one, level)
    run(one, "INSERT INTO t VALUES (9, 0, 90, 'x')")
    second = later(threads, two, f"BEGIN ISOLATION LEVEL {level}", "INSERT INTO t VALUES (10, 0, 90, 'x')")
    waiting(three)
    run(one, "COMMIT")
    with fails(errors.UNIQUE_VIOLATION):
        second.result()
    run(two, "ROLLBACK")
    begin(one, level)
    with fails(errors.FOREIGN_KEY_VIOLATION):
        run(one, "INSERT INTO c VALUES (1, 77)")
    run(one, "ROLLBACK")
    begin(one, level)
    run(one, "INSERT INTO c VALUES (1, 4)", "INSERT INTO t VALUES (4, 8, 4, 'x') ON CONFLICT (id) DO UPDATE SET a = 8")
    run(one, "INSERT INTO t SELECT id + 20, a, u + 20, s FROM t WHERE id < 3", "COMMIT")
    assert rows(one, "SELECT id, a FROM t WHERE id > 3 ORDER BY id") == [(4, 8), (9, 0), (21, 0), (22, 0)]
    assert rows(one, "CHECK DATABASE") == []
