"""SELECT ... FOR UPDATE and its like, on both engines: what they lock, skip and refuse."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from instar import errors
from instar.dbapi import Connection
from instar.worker.work import Worker
from support.databases import fails, rows, run
from support.victims import Later
from support.waiting import give_up, later, waiting


def test_a_queue(sessions: list[Connection]) -> None:
    one, two, three, _ = sessions
    take = "SELECT id FROM t ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
    for session, wanted in ((one, 1), (two, 2), (three, 3)):
        run(session, "BEGIN")
        assert rows(session, take) == [(wanted,)]
    run(one, "DELETE FROM t WHERE id = 1", "COMMIT")
    run(two, "ROLLBACK")
    assert rows(one, "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED") == [(2,), (4,)]
    assert rows(one, "SELECT id FROM t ORDER BY id DESC LIMIT 1 OFFSET 1 FOR NO KEY UPDATE SKIP LOCKED") == [(2,)]


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET a = 9 WHERE id = (SELECT id FROM t ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id",
        "DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id",
        """WITH x AS (SELECT id FROM t ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
        UPDATE t SET a = 9 FROM x WHERE t.id = x.id RETURNING t.id""",
        """INSERT INTO t SELECT id + 100, a, u + 100, s FROM t ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
        RETURNING id - 100""",
    ],
)
def test_a_queue_within_one_statement(sessions: list[Connection], statement: str, explicit: bool) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "SELECT * FROM t WHERE id = 1 FOR UPDATE")
    run(two, "BEGIN") if explicit else None
    assert rows(two, statement) == [(2,)]
    if explicit:
        give_up(three, "DELETE FROM t WHERE id = 2")
        run(two, "COMMIT")
    held = rows(three, "SELECT key FROM instar.transaction_locks")
    assert held == [("(id)=(1)",)]


def test_for_update_of_some_tables_of_a_join(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "INSERT INTO c VALUES (1, 1), (2, 2)", "BEGIN")
    assert rows(one, "SELECT c.id FROM t JOIN c ON c.t = t.id WHERE t.id = 1 FOR UPDATE OF c") == [(1,)]
    run(two, "UPDATE t SET a = 1 WHERE id = 1", "UPDATE c SET t = 1 WHERE id = 2")
    give_up(two, "UPDATE c SET t = 2 WHERE id = 1")
    assert rows(one, "SELECT c.id FROM t AS x, c WHERE c.t = x.id AND c.id = 2 FOR SHARE OF x FOR UPDATE OF c NOWAIT")
    give_up(two, "UPDATE t SET a = 1 WHERE id = 1")
    run(one, "COMMIT")
    assert rows(one, "SELECT t.id, c.id FROM t LEFT JOIN c ON c.t = t.id AND c.id = 1 WHERE t.id < 3 FOR UPDATE OF t")


def test_only_what_limit_lets_through_is_locked(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "BEGIN")
    assert rows(one, "SELECT id FROM t ORDER BY id LIMIT 2 FOR UPDATE") == [(1,), (2,)]
    assert rows(two, "SELECT id FROM t ORDER BY id FOR UPDATE SKIP LOCKED") == [(3,), (4,)]


def test_for_update_waits_and_reads_what_is_there_then(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")
    waits = later(threads, two, "BEGIN", "SELECT id, a FROM t WHERE id < 3 ORDER BY id FOR UPDATE")
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == [(1, 5), (2, 0)]
    give_up(three, "UPDATE t SET a = 0 WHERE id = 2")
    run(two, "COMMIT")


def test_for_update_sees_and_locks_what_its_transaction_wrote(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(
        one,
        "BEGIN",
        "INSERT INTO t VALUES (7, 7, 7, '')",
        "UPDATE t SET a = 9 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    assert rows(one, "SELECT id, a FROM t WHERE id <> 3 ORDER BY id FOR UPDATE SKIP LOCKED") == [(1, 9), (4, 0), (7, 7)]
    give_up(two, "UPDATE t SET a = 0 WHERE id = 4")
    run(one, "COMMIT")


def test_a_whole_table_for_update(sessions: list[Connection]) -> None:
    """What would be read by the analytic engine is read by the executor."""
    one, two, *_ = sessions
    one.executemany("INSERT INTO q VALUES (?)", [(number,) for number in range(5000)])
    run(one, "BEGIN")
    assert len(rows(one, "SELECT a FROM q WHERE a % 2 = 0 FOR UPDATE")) == 2500
    assert len(rows(two, "SELECT a FROM q FOR UPDATE SKIP LOCKED")) == 2500
    run(one, "COMMIT")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("mode", ["NO KEY UPDATE", "SHARE"])
def test_a_new_optimistic_lock_lets_nobody_write_unseen(sessions: list[Connection], mode: str, level: str) -> None:
    """The row has a part more than were locked, and none was before. Who has it whole for an update is waited for."""
    one, two, *_ = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", f"SELECT s FROM t WHERE id = 1 FOR {mode}")
    run(two, "ALTER TABLE t ADD LOCK words COVERS (s)")
    if mode == "SHARE":
        run(two, "UPDATE t SET s = 'y' WHERE id = 1")
    else:
        give_up(two, "UPDATE t SET s = 'y' WHERE id = 1")
    with fails(errors.SERIALIZATION_FAILURE, "locked were divided into more parts", "ADD LOCK words"):
        run(one, "INSERT INTO q VALUES (1)", "COMMIT")
    run(one, "ROLLBACK")
    assert rows(two, "SELECT * FROM q") == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_plan_from_before_a_new_optimistic_lock_locks_the_rows_of_now(sessions: list[Connection], level: str) -> None:
    """Whoever begins after the change has nothing to do with it, however old his plan is."""
    one, two, *_ = sessions
    select = "SELECT s FROM t WHERE id = 1 FOR UPDATE"
    run(one, select, select)
    run(two, "ALTER TABLE t ADD LOCK words COVERS (s)")
    run(one, f"BEGIN ISOLATION LEVEL {level}", select)
    give_up(two, "UPDATE t SET s = 'z' WHERE id = 1")
    run(one, "UPDATE t SET s = 'y' WHERE id = 1", "COMMIT")
    assert rows(two, "SELECT s FROM t WHERE id = 1") == [("y",)]


def test_an_optimistic_lock_that_goes_takes_no_row_lock_along(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "ALTER TABLE t ADD LOCK words COVERS (s)", "BEGIN", "SELECT s FROM t WHERE id = 1 FOR SHARE")
    run(two, "ALTER TABLE t DROP LOCK words")
    give_up(two, "UPDATE t SET s = 'y' WHERE id = 1")
    run(one, "INSERT INTO q VALUES (1)", "COMMIT")
    assert rows(two, "SELECT * FROM q") == [(1,)]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_row_whose_end_the_log_has_forgotten_is_not_locked(
    sessions: list[Connection], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the snapshot and the lock it is deleted, and the log is cut: nothing is left to tell of it (rule 6)."""
    one, two, *_ = sessions
    store = one.database.store
    store.retention_seconds = 0
    take = type(store).lock

    def lock(*given: Any) -> None:
        monkeypatch.undo()
        run(two, "DELETE FROM t WHERE id = 1")
        Worker(store, clock).collect()
        take(*given)

    clock = Later(1)
    run(one, f"BEGIN ISOLATION LEVEL {level}")
    monkeypatch.setattr(type(store), "lock", lock)
    if level == "READ COMMITTED":
        assert rows(one, "SELECT id FROM t WHERE id < 3 FOR SHARE") == [(2,)]
    else:
        with fails(errors.SERIALIZATION_FAILURE):
            run(one, "SELECT id FROM t WHERE id < 3 FOR SHARE")
    run(one, "ROLLBACK")


NOT_ALLOWED = [
    ("SELECT DISTINCT a FROM t FOR UPDATE", "FOR UPDATE is not allowed with DISTINCT clause"),
    ("SELECT a FROM t GROUP BY a FOR NO KEY UPDATE", "FOR NO KEY UPDATE is not allowed with GROUP BY clause"),
    ("SELECT 1 FROM t HAVING true FOR SHARE", "FOR SHARE is not allowed with HAVING clause"),
    ("SELECT count(*) FROM t FOR KEY SHARE", "FOR KEY SHARE is not allowed with aggregate functions"),
    ("SELECT row_number() OVER () FROM t FOR UPDATE", "FOR UPDATE is not allowed with window functions"),
    ("SELECT a FROM t UNION SELECT a FROM q FOR UPDATE", "FOR UPDATE is not allowed with UNION/INTERSECT/EXCEPT"),
    ("VALUES (1) FOR UPDATE", "FOR UPDATE is not allowed with VALUES"),
    ("SELECT * FROM t LEFT JOIN c ON c.t = t.id FOR UPDATE", "cannot be applied to the nullable side of an outer join"),
    ("SELECT * FROM (SELECT * FROM t) x FOR UPDATE", "cannot be applied to a view, a subquery, a function or VALUES"),
    ("SELECT * FROM v FOR UPDATE", "cannot be applied to a view"),
    ("SELECT * FROM instar.tables FOR UPDATE", "cannot be applied to a view"),
    ("WITH x AS (SELECT 1) SELECT * FROM x, t FOR UPDATE OF x", "cannot be applied to a WITH query"),
    ("CREATE VIEW w AS SELECT * FROM t FOR UPDATE", "a row lock in a view"),
    ("SELECT * FROM t FOR UPDATE AS OF SYSTEM TIME now()", "a row lock AS OF SYSTEM TIME"),
]


@pytest.mark.parametrize(("statement", "message"), NOT_ALLOWED)
def test_where_rows_are_not_to_be_locked(sessions: list[Connection], statement: str, message: str) -> None:
    run(sessions[0], "CREATE VIEW v AS SELECT id FROM t")
    with fails(errors.FEATURE_NOT_SUPPORTED, message):
        run(sessions[0], statement)


def test_names_that_for_update_does_not_find(sessions: list[Connection]) -> None:
    with fails(errors.UNDEFINED_TABLE, 'relation "x" in FOR UPDATE clause not found in FROM clause'):
        run(sessions[0], "SELECT * FROM t FOR UPDATE OF x")
    with fails(errors.UNDEFINED_TABLE):
        run(sessions[0], "SELECT * FROM t AS y FOR UPDATE OF t")
    with fails(errors.SYNTAX_ERROR):
        run(sessions[0], "SELECT * FROM t FOR NO UPDATE")
    with fails(errors.SYNTAX_ERROR):
        run(sessions[0], "SELECT * FROM t FOR UPDATE SKIP")
    assert rows(sessions[0], "WITH x AS (SELECT 1) SELECT id FROM x, t WHERE id = 1 FOR UPDATE LIMIT 1") == [(1,)]


def test_a_transaction_that_only_reads_locks_nothing(sessions: list[Connection]) -> None:
    with fails(errors.READ_ONLY_TRANSACTION, "cannot execute SELECT FOR SHARE in a read-only transaction"):
        run(sessions[0], "BEGIN READ ONLY", "SELECT * FROM t FOR SHARE")
