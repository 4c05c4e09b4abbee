"""Optimistic locks in SQL: who conflicts, what merges, schedule 2 of the design, changes of coverage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instar.dbapi import Connection
from instar.schemachange import reorganize
from instar.schemachange.tasks import Task
from support.databases import Engine, fails, rows, run, value

LEVELS = ["read committed", "repeatable read"]


@pytest.fixture
def sessions(engine: Engine) -> list[Connection]:
    """Three sessions; table t with an index on (a, b) and a CHECK on both, a under lock la, b under lock lb."""
    made = [engine.connect() for _ in range(3)]
    run(
        made[0],
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, c text, CONSTRAINT few CHECK (a + b <= 10))",
        "CREATE INDEX ab ON t (a, b)",
        "INSERT INTO t VALUES (1, 1, 1, 'x'), (2, 2, 2, 'y')",
        "ALTER TABLE t ADD LOCK la COVERS (a), ADD LOCK lb COVERS (b)",
    )
    return made


def whole(connection: Connection) -> list[tuple[object, ...]]:
    """The table's rows, which are the index's too."""
    found = rows(connection, "SELECT id, a, b, c FROM t ORDER BY id")
    for identity, a, b, _ in found:
        assert (identity,) in rows(connection, "SELECT id FROM t WHERE a = ? AND b = ?", a, b)
    assert rows(connection, "CHECK DATABASE") == []
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_schedule_2_two_locks_of_one_row(sessions: list[Connection], level: str) -> None:
    one, other, reader = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET a = 5 WHERE id = 1")
    run(other, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET b = 4 WHERE id = 1")
    run(one, "COMMIT")
    run(other, "COMMIT")
    assert whole(reader) == [(1, 5, 4, "x"), (2, 2, 2, "y")]


@pytest.mark.parametrize("level", LEVELS)
def test_schedule_2_a_check_that_only_the_merge_violates(sessions: list[Connection], level: str) -> None:
    """Rule 16: each of the two is right alone, so it is 40001 and not 23514."""
    one, other, reader = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET a = 9 WHERE id = 1")
    run(other, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET b = 9 WHERE id = 1")
    run(one, "COMMIT")
    with fails("40001", "few"):
        run(other, "COMMIT")
    assert whole(reader) == [(1, 9, 1, "x"), (2, 2, 2, "y")]
    with fails("23514", "few"):
        run(other, "UPDATE t SET b = 9 WHERE id = 1")


def test_changes_under_one_lock_conflict(sessions: list[Connection]) -> None:
    one, other, reader = sessions
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"  # under READ COMMITTED they would wait
    run(one, begin, "UPDATE t SET a = 3 WHERE id = 1")
    run(other, begin, "UPDATE t SET a = 4, b = 4 WHERE id = 1")
    run(one, "COMMIT")
    with fails("40001", "Row (id)=(1)"):
        run(other, "COMMIT")
    run(one, begin, "DELETE FROM t WHERE id = 1")
    run(other, "UPDATE t SET c = 'z' WHERE id = 1")
    with fails("40001"):
        run(one, "COMMIT")
    run(one, begin, "UPDATE t SET id = 3 WHERE id = 1")
    run(other, "UPDATE t SET b = 2 WHERE id = 1")
    with fails("40001"):
        run(one, "COMMIT")
    assert whole(reader) == [(1, 3, 2, "z"), (2, 2, 2, "y")]


def test_autocommit_statements_of_rows_under_locks(sessions: list[Connection]) -> None:
    """The short way for single rows leaves them to the general one."""
    one, other, reader = sessions
    run(other, "BEGIN", "UPDATE t SET c = 'late' WHERE id = 1")
    for number in range(4):
        one.execute("UPDATE t SET a = ? WHERE id = ?", (number, 1))
        one.execute("INSERT INTO t VALUES (?, 0, 0, 'new')", (10 + number,))
    run(other, "COMMIT")
    run(one, "DELETE FROM t WHERE id >= 10")
    assert whole(reader) == [(1, 3, 1, "late"), (2, 2, 2, "y")]


def test_a_merge_needs_the_parent_that_it_names(sessions: list[Connection]) -> None:
    one, other, reader = sessions
    run(
        one,
        "CREATE TABLE p (x int, y int, PRIMARY KEY (x, y))",
        "INSERT INTO p VALUES (1, 1), (2, 1), (1, 2)",
        "CREATE TABLE k (id int PRIMARY KEY, x int, y int, FOREIGN KEY (x, y) REFERENCES p)",
        "ALTER TABLE k ADD LOCK lx COVERS (x)",
        "INSERT INTO k VALUES (1, 1, 1)",
    )
    run(one, "BEGIN", "UPDATE k SET x = 2 WHERE id = 1")
    run(other, "BEGIN", "UPDATE k SET y = 2 WHERE id = 1")
    run(one, "COMMIT")
    with fails("40001", "k_x_y_fkey"):
        run(other, "COMMIT")
    assert rows(reader, "SELECT * FROM k") == [(1, 2, 1)]
    assert rows(reader, "CHECK DATABASE") == []


def test_what_there_is_to_see(sessions: list[Connection]) -> None:
    one = sessions[0]
    query = "SELECT name, columns, state FROM instar.locks WHERE table_name = 't' ORDER BY id"
    assert rows(one, query) == [
        ("default", "id, c", "public"), ("la", "a", "public"), ("lb", "b", "public"),
    ]  # fmt: skip
    plan = [row[1] for row in rows(one, "EXPLAIN (DDL) ALTER TABLE t DROP LOCK la")]
    assert plan == [
        'table "t": column "a": covered by lock "la" -> "la" and "default"',
        'table "t": all writers maintain it',
        'table "t": column "a": covered by lock "la" and "default" -> "default"',
        'table "t": lock "la": public -> absent',
    ]
    run(one, "ALTER TABLE t DROP LOCK la", "ALTER TABLE t ALTER LOCK lb COVERS (a, c)")
    assert rows(one, query) == [("default", "id, b", "public"), ("lb", "a, c", "public")]
    statements = [row[0] for row in rows(one, "SELECT statement FROM instar.jobs ORDER BY id DESC LIMIT 2")]
    assert statements == ["ALTER TABLE t ALTER LOCK lb COVERS (a, c)", "ALTER TABLE t DROP LOCK la"]


def test_a_transaction_from_before_a_change_of_coverage(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read before, changed by another before, committed after: the propagation has carried the conflict over."""
    one, other, ddl = sessions
    run(one, "BEGIN ISOLATION LEVEL REPEATABLE READ", "UPDATE t SET a = a + 1 WHERE id = 1")
    run(other, "UPDATE t SET a = a + 1 WHERE id = 1")
    work = reorganize.InProcess.run
    during: list[int] = []

    def run_beside(self: reorganize.InProcess, task: Task, pulse: Callable[[], None]) -> None:
        run(other, "UPDATE t SET a = a + 1 WHERE id = 2")
        during.append(value(other, "SELECT a FROM t WHERE id = 2"))
        work(self, task, pulse)

    with monkeypatch.context() as patched:
        patched.setattr(reorganize.InProcess, "run", run_beside)
        run(ddl, "ALTER TABLE t ALTER LOCK lb COVERS (a, b)")
    assert during == [3]
    with fails("40001", "Row (id)=(1)"):
        run(one, "COMMIT")
    assert whole(ddl) == [(1, 2, 1, "x"), (2, 3, 2, "y")]


def test_bulk_loads_and_own_rows_have_locks_too(engine: Engine) -> None:
    one, other = engine.connect(), engine.connect()
    run(one, "CREATE TABLE s (id int PRIMARY KEY, a int, b int)", "ALTER TABLE s ADD LOCK l COVERS (a)")
    one.executemany("INSERT INTO s VALUES (?, 0, 0)", [(number,) for number in range(300)])
    run(one, "BEGIN", "UPDATE s SET a = id", "INSERT INTO s VALUES (300, 300, 0)")
    assert value(one, "SELECT sum(a) FROM s") == sum(range(301))
    run(other, "UPDATE s SET b = 1 WHERE id < 300")
    run(one, "COMMIT")
    assert rows(other, "SELECT count(*), sum(a), sum(b) FROM s") == [(301, sum(range(301)), 300)]
    run(
        other,
        "CREATE INDEX sb ON s (b)",
        "ALTER TABLE s ADD COLUMN c int DEFAULT 7",
        "ALTER TABLE s ALTER a TYPE bigint",
    )
    run(other, "UPDATE s SET b = 2 WHERE id = 5")
    assert rows(other, "SELECT a, b, c FROM s WHERE id = 5") == [(5, 2, 7)]
    assert rows(other, "CHECK DATABASE") == []
