"""Schedules that every implementation gets wrong at first (1, 3 and 4 of the design's list; 7 is with the sessions), in
SQL: other sessions run at chosen moments of an index build."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from instar import errors
from instar.clock import SystemClock
from instar.database import Database
from instar.dbapi import Connection
from instar.schemachange import reorganize
from instar.schemachange.tasks import Task
from instar.worker.work import Worker
from support.databases import Engine, fails, rows, run, value

Hook = Callable[[], None]
MOMENTS = ["delete-only", "write-only", "backfilled"]


@pytest.fixture
def sessions(engine: Engine) -> list[Connection]:
    """Four sessions, and table t with 200 rows."""
    made = [engine.connect() for _ in range(4)]
    run(made[0], "CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    made[0].executemany("INSERT INTO t VALUES (?, ?, 0)", [(number, number % 20) for number in range(200)])
    return made


def build(monkeypatch: pytest.MonkeyPatch, connection: Connection, statement: str, hooks: dict[str, Hook]) -> None:
    """CREATE INDEX, with a hook called when the index is delete-only, write-only, and filled but not public."""
    whole, fill = Database.run_job, reorganize.InProcess.run

    def run_job(database: Database, job: int, stopping: Callable[[], bool]) -> None:
        hooks.get("delete-only", lambda: None)()
        whole(database, job, stopping)

    def run_reorganizer(self: reorganize.InProcess, task: Task, pulse: Hook) -> None:
        hooks.get("write-only", lambda: None)()
        fill(self, task, pulse)
        hooks.get("backfilled", lambda: None)()

    with monkeypatch.context() as patched:
        patched.setattr(Database, "run_job", run_job)
        patched.setattr(reorganize.InProcess, "run", run_reorganizer)
        connection.execute(statement)


def check(connection: Connection) -> None:
    """Every row is found through the index, and nothing else is."""
    for wanted, keys in rows(connection, "SELECT a, string_agg(id::text, ',' ORDER BY id) FROM t GROUP BY a"):
        found = rows(connection, "SELECT id FROM t WHERE a = ? ORDER BY id", wanted)
        assert ",".join(str(key) for (key,) in found) == keys
    assert any("ta" in line for (line,) in rows(connection, "EXPLAIN SELECT id FROM t WHERE a = 1"))
    assert rows(connection, "CHECK DATABASE") == []


WRITES = [
    "INSERT INTO t VALUES (1000, 7, 0)",
    "UPDATE t SET a = 777 WHERE id = 5",
    "UPDATE t SET b = 1 WHERE id = 6",
    "UPDATE t SET id = 2000 WHERE id = 8",
    "DELETE FROM t WHERE id = 7",
]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_schedule_1(sessions: list[Connection], monkeypatch: pytest.MonkeyPatch, moment: str, level: str) -> None:
    """Enlisted before delete-only, committed after write-only and the backfill: the index has the rows."""
    one, two, *_ = sessions
    run(two, f"BEGIN ISOLATION LEVEL {level}", *WRITES)
    build(monkeypatch, one, "CREATE INDEX ta ON t (a)", {moment: lambda: run(two, "COMMIT")})
    check(one)


@pytest.mark.parametrize("begun", MOMENTS)
@pytest.mark.parametrize("ended", [*MOMENTS, "public"])
def test_schedule_3(sessions: list[Connection], monkeypatch: pytest.MonkeyPatch, begun: str, ended: str) -> None:
    """Writers of every state, committing in every later one, beside autocommit writers in each."""
    if ended != "public" and MOMENTS.index(ended) < MOMENTS.index(begun):
        return
    one, two, three, _ = sessions
    number = iter(range(3000, 4000))

    def at(moment: str) -> None:
        run(
            three,
            f"INSERT INTO t VALUES ({next(number)}, 3, 0)",
            "UPDATE t SET a = a + 1 WHERE id = 50",
            "UPDATE t SET b = b + 1 WHERE id = 51",
            f"DELETE FROM t WHERE id = {60 + MOMENTS.index(moment)}",
        )
        if moment == begun:
            run(two, "BEGIN", *WRITES)
        if moment == ended:
            run(two, "COMMIT")

    build(monkeypatch, one, "CREATE INDEX ta ON t (a)", {moment: partial(at, moment) for moment in MOMENTS})
    if ended == "public":
        run(two, "COMMIT")
    check(one)


def test_writers_in_each_state_of_an_index_that_comes_and_goes(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In autocommit, with the same texts: what is compiled for one state, or without the index, is for that alone."""
    one, two, *_ = sessions
    number = count(3000)

    def write() -> None:
        two.execute("INSERT INTO t VALUES (?, ?, 0)", (key := next(number), 3))
        two.execute("UPDATE t SET a = a + ? WHERE id = ?", (1, key))
        two.execute("UPDATE t SET a = ? WHERE id = ?", (key % 20, key - 2))
        two.execute("UPDATE t SET b = ? WHERE id = ?", (key, key - 1))
        two.execute("DELETE FROM t WHERE id = ?", (key - 3,))

    for _ in range(3):
        write()
        build(monkeypatch, one, "CREATE INDEX ta ON t (a)", dict.fromkeys(MOMENTS, write))
        write()
        check(one)
        run(one, "DROP INDEX ta")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_duplicate_appears_while_a_unique_index_is_built(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Who comes second is refused: the build, which meets the row, or the writer, who meets the entry."""
    one, two, *_ = sessions
    one.execute("UPDATE t SET a = id")

    def duplicate() -> None:
        run(two, "INSERT INTO t VALUES (1000, 5, 0)")

    def refused() -> None:
        with fails(errors.UNIQUE_VIOLATION, '"ta"', "(a)=(5)"):
            duplicate()

    if moment == "backfilled":
        build(monkeypatch, one, "CREATE UNIQUE INDEX ta ON t (a)", {moment: refused})
    else:
        with fails(errors.UNIQUE_VIOLATION, '"ta"', "5"):
            build(monkeypatch, one, "CREATE UNIQUE INDEX ta ON t (a)", {moment: duplicate})
        assert rows(one, "SELECT state FROM instar.jobs") == [("failed",)]
        run(one, "DELETE FROM t WHERE id = 1000", "CREATE UNIQUE INDEX ta ON t (a)")
    check(one)


def test_snapshots_from_before_an_index_do_not_use_it(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, *_ = sessions
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    wanted = rows(two, "SELECT id FROM t WHERE a = 3 ORDER BY id")
    build(monkeypatch, one, "CREATE INDEX ta ON t (a)", {"write-only": lambda: run(one, "DELETE FROM t WHERE id = 3")})
    run(one, "UPDATE t SET a = 3")
    assert rows(two, "SELECT id FROM t WHERE a = 3 ORDER BY id") == wanted
    run(one, "DROP INDEX ta")
    assert rows(two, "SELECT id FROM t WHERE a = 3 ORDER BY id") == wanted


def test_schedule_4(sessions: list[Connection]) -> None:
    """A reader has its snapshot, the collector cuts, the reader reads: an error, not wrong rows."""
    one, two, *_ = sessions
    one.execute("CREATE INDEX ta ON t (a)")
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert value(two, "SELECT count(*) FROM t WHERE id < 100") == 100
    run(one, "DELETE FROM t WHERE id < 50", "UPDATE t SET a = 99")
    store = one.database.store
    store.retention_seconds = 0
    # Presence is a hint: without it, as when the reader has been there for too long, the collector goes on.
    store.release_snapshot(two.session._lasting)
    one.execute("INSERT INTO t VALUES (5000, 1, 1)")
    Worker(store, SystemClock()).collect()
    for query in ("SELECT * FROM t WHERE id = 60", "SELECT id FROM t WHERE a = 3", "SELECT sum(a) FROM t"):
        two.execute("SAVEPOINT s")
        with fails(errors.SNAPSHOT_TOO_OLD):
            two.execute(query).fetchall()
        two.execute("ROLLBACK TO s")
    two.execute("ROLLBACK")
    assert value(two, "SELECT count(*) FROM t WHERE a = 99") == 150
    assert rows(one, "CHECK DATABASE") == []
