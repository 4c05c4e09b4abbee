"""Schema locks of sessions (MD-MVCC §3.3), on both engines: who takes which, who waits for whom."""

from __future__ import annotations

import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from instar import errors
from instar.catalog.schema_locks import NON_VERSIONED, demands_of, object_of, resource_of
from instar.database.bulk import SMALLEST_LOAD
from instar.dbapi import Connection
from instar.schemachange.job_records import JobState
from instar.store.engine import Commit
from instar.store.lock_modes import Mode
from support.databases import Engine, fails, rows, run, value
from support.servers import Servers
from support.slow import Slow
from support.waiting import give_up, later, waiting

HELD = "SELECT table_name, mode FROM instar.transaction_locks WHERE key IS NULL AND mode LIKE 'SCH%' ORDER BY 1, 2"
SNAPSHOT_LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
LOCKING_LEVELS = ["READ UNCOMMITTED", "READ COMMITTED LOCK"]
WRITES = [
    "INSERT INTO t VALUES (9, 0, 9, 'x')",
    "UPDATE t SET a = 1 WHERE id = 1",
    "DELETE FROM t WHERE id = 4",
    "UPDATE t SET a = 1 FROM q WHERE q.a = t.id",
]
# Changes of t, and what is taken for them.
CHANGES = {
    "ALTER TABLE t ADD COLUMN n int": "SCH-C",
    "ALTER TABLE t DROP COLUMN s": "SCH-C",
    "ALTER TABLE t RENAME TO v": "SCH-C",
    "ALTER TABLE t ALTER COLUMN a SET DEFAULT 5": "SCH-C",
    "ALTER TABLE t ALTER COLUMN a TYPE bigint": "SCH-C",
    "ALTER TABLE t ADD CHECK (a > -1)": "SCH-C",
    "ALTER TABLE t ADD LOCK l COVERS (a)": "SCH-C",
    "ALTER TABLE t SET (migration = 'read')": "SCH-C",
    "CREATE INDEX i ON t (a)": "SCH-C",
    "CREATE TABLE r (t int REFERENCES t)": "SCH-C",
    "TRUNCATE t, c": "SCH-M",
    "DROP TABLE c, t": "SCH-M",
    "DROP TABLE t CASCADE": "SCH-M",
}


# Who takes which.


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_snapshot_levels_write_nothing_down(sessions: list[Connection], level: str) -> None:
    """SCH-A is theirs by not being in anybody's way: DML included."""
    one, two, *_ = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", "SELECT * FROM t", *WRITES)
    assert rows(one, HELD) == rows(two, HELD) == []
    run(one, "ROLLBACK")


@pytest.mark.parametrize("level", LOCKING_LEVELS)
def test_a_query_at_a_locking_level_holds_what_it_reads_while_it_runs(sessions: list[Connection], level: str) -> None:
    one, two, *_ = sessions
    run(one, "CREATE VIEW w AS SELECT id FROM t", f"BEGIN ISOLATION LEVEL {level}")
    seen = HELD.replace("FROM", "FROM q RIGHT JOIN").replace("WHERE", "ON q.a = 1 WHERE")
    assert rows(one, seen) == [("q", "SCH-S")]
    with_view = HELD.replace("FROM", "FROM (SELECT max(id) FROM w) AS m, ")
    assert rows(one, with_view) == [("t", "SCH-S"), ("w", "SCH-S")]
    assert rows(two, HELD) == []
    run(two, "DROP VIEW w", "ALTER TABLE t ADD COLUMN n int")  # between two statements
    assert rows(one, "SELECT n FROM t WHERE id = 1") == [(None,)]
    run(one, "COMMIT")


@pytest.mark.parametrize("level", LOCKING_LEVELS)
@pytest.mark.parametrize("write", WRITES)
def test_dml_at_a_locking_level_holds_what_it_depends_on_to_the_end(
    sessions: list[Connection], level: str, write: str
) -> None:
    one, two, *_ = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", write)
    expected = {("t", "SCH-S"), ("c", "SCH-S")} | ({("q", "SCH-S")} if " q " in write else set())
    assert set(rows(two, HELD)) == expected
    run(one, "SAVEPOINT s", "SELECT * FROM q", "ROLLBACK TO s")
    assert set(rows(two, HELD)) == expected
    run(one, "COMMIT")
    assert rows(two, HELD) == []


def test_autocommit_leaves_nothing(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "SET default_transaction_isolation = 'read committed lock'", "SELECT * FROM t", *WRITES)
    run(one, "ALTER TABLE t ADD COLUMN n int", "TRUNCATE q")
    assert rows(two, "SELECT * FROM instar.transaction_locks") == []
    with fails(errors.UNDEFINED_COLUMN):
        run(one, "SELECT nothing FROM t")
    with fails("22012"):
        run(one, "SELECT 1 / (id - id) FROM t")
    assert rows(two, "SELECT * FROM instar.transaction_locks") == []


@pytest.mark.parametrize("level", LOCKING_LEVELS)
@pytest.mark.parametrize(("change", "mode"), CHANGES.items())
def test_a_change_at_a_locking_level_holds_its_lock_to_the_end(
    sessions: list[Connection], level: str, change: str, mode: str
) -> None:
    one, two, *_ = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", change)
    assert ("t", mode) in rows(two, HELD)
    assert {found for _, found in rows(two, HELD)} <= {"SCH-C", "SCH-M"}
    run(one, "ROLLBACK")
    assert rows(two, HELD) == []


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
@pytest.mark.parametrize(("change", "mode"), CHANGES.items())
def test_a_change_at_a_snapshot_level_meets_locks_when_it_commits(
    sessions: list[Connection], threads: ThreadPoolExecutor, level: str, change: str, mode: str
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "DELETE FROM t WHERE id = 77")
    run(two, f"BEGIN ISOLATION LEVEL {level}", change)
    commits = later(threads, two, "COMMIT")
    waiting(three)
    shown = rows(three, "SELECT table_name, mode, waits_for IS NULL FROM instar.transaction_locks WHERE NOT granted")
    assert shown in ([("t", mode, False)], [("c", mode, False)])  # c's key leads to t: the DELETE depends on it too
    run(one, "COMMIT")
    assert commits.result() == []
    assert rows(three, HELD) == []


def test_all_that_takes_sch_m_is_listed(engine: Engine) -> None:
    """What the list has is what the documentation has, and each of it is SCH-M."""
    page = (Path(__file__).parents[2] / "docs/sql/locks.md").read_text()
    told = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page.partition("SCH-M is taken by")[2].partition("\n## ")[0], re.M)
    assert told[1:] == [(operation.name, operation.why) for operation in NON_VERSIONED]

    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE VIEW v AS SELECT a FROM t")

    loaded = pa.table({name: pa.array(range(SMALLEST_LOAD), pa.int32()) for name in ("id", "a")})

    def taken(name: str, statement: str) -> list[Mode]:
        before = _object(engine, name)
        connection.execute(statement) if statement else connection.insert_arrow("t", loaded)
        after = _object(engine, name)
        put, dropped = ([], [before]) if after is None else ([after], [])
        return [mode for _resource, mode in demands_of(put, dropped, {before.id: before})]

    assert taken("v", "DROP VIEW v") == [Mode.SCH_M]
    assert taken("t", "") == [Mode.SCH_M]
    assert taken("t", "TRUNCATE t") == [Mode.SCH_M]
    assert taken("t", "ALTER TABLE t ADD COLUMN n int") == [Mode.SCH_C]
    assert taken("t", "DROP TABLE t") == [Mode.SCH_M]


def _object(engine: Engine, name: str):
    with engine.database.store.read() as reader:
        return engine.database.catalog.at(reader).lookup("public", name)


def test_resources_are_told_by_their_first_byte() -> None:
    assert object_of(resource_of(12345)) == 12345
    assert object_of(b"\x10\x00\x00\x00\x01key") is None


# Who waits for whom.


@pytest.mark.parametrize("level", LOCKING_LEVELS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_waits_for_a_transaction_at_a_locking_level(
    sessions: list[Connection], level: str, change: str
) -> None:
    one, two, *_ = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", "DELETE FROM t WHERE id = 77")
    give_up(two, change)
    assert rows(two, "SELECT * FROM t WHERE id = 1") == [(1, 0, 1, "x")]  # it has left nothing
    run(one, "COMMIT")
    run(two, change)


@pytest.mark.parametrize("mine", LOCKING_LEVELS)
def test_a_locking_level_waits_for_a_change_at_one_and_sees_the_new_schema(
    sessions: list[Connection], threads: ThreadPoolExecutor, mine: str
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "ALTER TABLE t DROP COLUMN s")
    for level in SNAPSHOT_LEVELS:
        run(three, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET a = 7 WHERE id = 3")
        assert rows(three, "SELECT * FROM t WHERE id = 3") == [(3, 7, 3, "x")]
        run(three, "ROLLBACK")
    give_up(two, f"BEGIN ISOLATION LEVEL {mine}", "SELECT * FROM t WHERE id = 1")
    give_up(two, f"BEGIN ISOLATION LEVEL {mine}", "UPDATE t SET a = 2 WHERE id = 1")
    give_up(two, f"BEGIN ISOLATION LEVEL {mine}", "ALTER TABLE t ADD COLUMN n int")
    waits = later(threads, two, f"BEGIN ISOLATION LEVEL {mine}", "SELECT * FROM t WHERE id = 1")
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == [(1, 0, 1)]
    run(two, "COMMIT")


def test_changes_of_one_table_at_locking_levels_come_one_after_the_other(
    sessions: list[Connection], threads: ThreadPoolExecutor
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "ALTER TABLE t ADD COLUMN n int")
    second = later(
        threads, two, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "ALTER TABLE t ADD COLUMN m int", "COMMIT"
    )
    waiting(three)
    run(one, "COMMIT")
    second.result()
    assert rows(three, "SELECT n, m FROM t WHERE id = 1") == [(None, None)]


def test_who_reads_on_a_snapshot_is_held_up_by_nothing(sessions: list[Connection]) -> None:
    """SCH-M excludes SCH-A (table 1), but what a snapshot reads stays where it is (rule 22)."""
    one, two, *_ = sessions
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT * FROM q")
    run(one, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "TRUNCATE t, c", "INSERT INTO q VALUES (5)")
    assert value(two, "SELECT count(*) FROM t") == 4
    run(one, "COMMIT")
    assert (value(two, "SELECT count(*) FROM t"), value(two, "SELECT count(*) FROM q")) == (4, 0)
    run(two, "COMMIT")


def test_dml_at_a_locking_level_is_never_refused_for_a_change(
    sessions: list[Connection], threads: ThreadPoolExecutor
) -> None:
    """At READ COMMITTED the same is 40001 after `ddl_wait`."""
    one, two, three, _ = sessions
    run(two, "SET ddl_wait = '1 ms'")
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")
    run(two, "ALTER TABLE t DROP COLUMN s")
    with fails(errors.SERIALIZATION_FAILURE):
        run(one, "COMMIT")
    run(one, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "UPDATE t SET a = 5 WHERE id = 1")
    change = later(threads, two, "ALTER TABLE t DROP COLUMN u")
    waiting(three)
    run(one, "UPDATE t SET u = 50 WHERE id = 1", "COMMIT")
    change.result()
    assert rows(three, "SELECT * FROM t WHERE id = 1") == [(1, 5)]


def test_who_waits_for_the_change_that_waits_for_him_is_let_go_by_ddl_wait(
    sessions: list[Connection], threads: ThreadPoolExecutor
) -> None:
    """That a change waits for a writer is no edge of the graph of locks, since it ends by itself."""
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")
    run(two, "SET ddl_wait = '1 s'", "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "ALTER TABLE t DROP COLUMN s")
    commit = later(threads, two, "COMMIT")
    read = later(threads, one, "SELECT a FROM t WITH (READCOMMITTEDLOCK) WHERE id = 1")
    waiting(three)
    commit.result(5)
    with fails(errors.SERIALIZATION_FAILURE, "concurrent drop column"):
        read.result(5)
    run(one, "ROLLBACK")
    assert rows(three, "SELECT * FROM t WHERE id = 1") == [(1, 0, 1)]


def test_a_circle_of_row_and_schema_locks_is_found(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE t SET a = 1 WHERE id = 1")
    run(two, "BEGIN", "INSERT INTO q VALUES (1)", "UPDATE t SET a = 1 WHERE id = 2", "ALTER TABLE t ADD COLUMN n int")
    commits = later(threads, two, "COMMIT")
    waiting(three)
    with fails(errors.DEADLOCK_DETECTED, "NO KEY UPDATE on row", 'SCH-C on "t"'):
        run(one, "UPDATE t SET a = 1 WHERE id = 2")
    run(one, "ROLLBACK")
    commits.result()
    assert value(three, "SELECT n FROM t WHERE id = 2") is None


def test_two_who_have_written_and_would_change_the_table_are_a_circle(
    sessions: list[Connection], threads: ThreadPoolExecutor
) -> None:
    one, two, three, _ = sessions
    for number, connection in enumerate((one, two), 1):
        run(connection, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", f"UPDATE t SET a = 1 WHERE id = {number}")
    first = later(threads, one, "ALTER TABLE t ADD COLUMN n int")
    waiting(three)
    with fails(errors.DEADLOCK_DETECTED):
        run(two, "ALTER TABLE t ADD COLUMN m int")
    run(two, "ROLLBACK")
    first.result()
    run(one, "COMMIT")
    assert rows(three, "SELECT n, a FROM t WHERE id = 1") == [(None, 1)]


def test_a_change_in_the_transaction_that_has_written_is_in_nobodys_way(sessions: list[Connection]) -> None:
    one, *_ = sessions
    run(
        one, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE t SET a = 6 WHERE id = 1", "SELECT * FROM t",
        "CREATE INDEX i ON t (a)", "ALTER TABLE t ADD COLUMN n int DEFAULT 4", "UPDATE t SET n = 5 WHERE id = 2",
        "CREATE TABLE fresh AS SELECT id, n FROM t", "COMMIT",
    )  # fmt: skip
    assert rows(one, "SELECT id FROM t WHERE a = 6") == [(1,)]
    assert rows(one, "SELECT n FROM fresh ORDER BY id") == [(4,), (5,), (4,), (4,)]


def test_explain_says_who_would_be_waited_for(sessions: list[Connection]) -> None:
    one, two, *_ = sessions

    def waits(statement: str) -> list[str]:
        return [row[-1] for row in rows(two, f"EXPLAIN (DDL) {statement}")]

    run(one, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "DELETE FROM t WHERE id = 77")
    for change, mode in CHANGES.items():
        assert any(f"{mode} on a table that a transaction at a locking level uses" in found for found in waits(change))
    assert not any(waits("ALTER TABLE q ADD COLUMN n int"))
    run(one, "COMMIT")
    assert not any("locking level" in found for change in CHANGES for found in waits(change))


# Jobs.


def test_a_stage_waits_for_who_is_at_a_locking_level(
    monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
) -> None:
    slow = Slow(monkeypatch)
    run(slow.connection, "CREATE INDEX i ON t (a)")  # its first stage
    holder = slow.engine.connect()
    run(holder, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE t SET a = 9 WHERE id = 1")
    work = threads.submit(slow.finish)
    while "SCH-C" not in (value(slow.connection, "SELECT reason FROM instar.jobs WHERE id = 1") or ""):
        assert not work.done()
    run(holder, "COMMIT")
    (job,) = work.result()
    assert job.state is JobState.SUCCEEDED
    assert rows(slow.connection, "SELECT id FROM t WHERE a = 9") == [(1,)]
    slow.engine.close()


def test_a_stage_that_waits_can_be_cancelled(monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor) -> None:
    slow = Slow(monkeypatch)
    run(slow.connection, "CREATE INDEX i ON t (a)")
    holder = slow.engine.connect()
    run(holder, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "UPDATE t SET a = 9 WHERE id = 1")
    work = threads.submit(slow.finish)
    while "SCH-C" not in (value(slow.connection, "SELECT reason FROM instar.jobs WHERE id = 1") or ""):
        assert not work.done()
    run(slow.connection, "CANCEL JOB 1")
    while value(slow.connection, "SELECT state FROM instar.jobs WHERE id = 1") != "reverting":
        assert not work.done()
    run(holder, "COMMIT")  # the way back has stages too
    (job,) = work.result()
    assert job.state is JobState.CANCELLED
    slow.engine.close()


def test_a_swap_of_the_primary_key_is_sch_m(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, store = engine.connect(), engine.database.store
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)", "INSERT INTO t VALUES (1, 2)")
    modes: list[Mode] = []
    real = store.commit

    def commit(request: Commit) -> int:
        modes.extend(mode for _resource, mode in request.schema)
        return real(request)

    monkeypatch.setattr(store, "commit", commit)
    run(connection, "ALTER TABLE t ALTER PRIMARY KEY (a)")
    assert modes.count(Mode.SCH_M) == 1
    assert set(modes) == {Mode.SCH_C, Mode.SCH_M}


# Leases.


def test_a_locking_level_goes_by_the_newest_schema_whatever_the_lease() -> None:
    servers = Servers()
    one, two = servers.server(), servers.server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    run(two, "UPDATE t SET a = 2 WHERE id = 1")
    run(one, "ALTER TABLE t ADD COLUMN n int DEFAULT 3")
    run(two, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "UPDATE t SET n = 4 WHERE id = 1", "COMMIT")
    assert rows(one, "SELECT * FROM t") == [(1, 2, 4)]
    run(one, "ALTER TABLE t ADD COLUMN m int DEFAULT 5")
    run(two, "UPDATE t SET m = x.m + 1 FROM t AS x WITH (NOLOCK) WHERE t.id = x.id")
    assert rows(one, "SELECT * FROM t") == [(1, 2, 4, 6)]
    run(one, "ALTER TABLE t ADD COLUMN l int")
    run(two, "BEGIN", "UPDATE t SET m = x.m + 1 FROM t AS x WITH (NOLOCK) WHERE t.id = x.id", "COMMIT")
    assert rows(one, "SELECT * FROM t") == [(1, 2, 4, 7, None)]


@pytest.mark.parametrize("mode", ["wait", "async"])
def test_cancel_ends_a_statement_whose_job_waits(
    sessions: list[Connection], threads: ThreadPoolExecutor, engine: Engine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """`lock_timeout` is none of the job's. What has begun goes on, by whoever is there to do it."""
    monkeypatch.setattr(engine.database, "ensure_worker", lambda: None)
    one, two, three, _ = sessions
    run(one, "ALTER TABLE t ADD COLUMN n int")
    run(two, "SET lock_timeout = '1ms'", f"SET schema_change_mode = {mode}")
    run(one, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE t SET a = 1 WHERE id = 1")
    waits = later(threads, two, "COMPACT TABLE t")
    _told(three, 1, waits)
    time.sleep(0.1)
    assert not waits.done()
    two.cancel()
    with fails(errors.QUERY_CANCELED):
        waits.result(20)
    assert rows(three, "SELECT id, state FROM instar.jobs WHERE state = 'succeeded'") == []
    run(one, "COMMIT")
    engine.database.run_job(1)
    assert value(three, "SELECT state FROM instar.jobs WHERE id = 1") == "succeeded"
    assert rows(three, "CHECK DATABASE") == []


def test_in_memory_who_waits_for_a_job_that_was_left_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    run(slow.connection, "CREATE INDEX i ON t (a)")
    monkeypatch.undo()
    run(slow.connection, "SET schema_change_mode = wait", "DROP INDEX i")
    assert rows(slow.connection, "SELECT state FROM instar.jobs") == [("succeeded",), ("succeeded",)]
    assert slow.finish() != []
    slow.engine.close()


def test_in_memory_cancel_ends_cancel_job(monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor) -> None:
    slow = Slow(monkeypatch)
    run(slow.connection, "CREATE INDEX i ON t (a)")
    monkeypatch.undo()
    holder, other = slow.engine.connect(), slow.engine.connect()
    run(holder, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE t SET a = 9 WHERE id = 1")
    waits = later(threads, slow.connection, "CANCEL JOB 1")
    _told(other, 1, waits)
    slow.connection.cancel()
    with fails(errors.QUERY_CANCELED):
        waits.result(20)
    run(holder, "COMMIT")
    (job,) = slow.finish()
    assert job.state is JobState.CANCELLED
    slow.engine.close()


def test_cancel_ends_a_load_that_waits_to_be_published(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE q SET a = 1")  # no row, but the lock
    loaded = pa.table({"a": pa.array(range(SMALLEST_LOAD), pa.int32())})
    waits = threads.submit(two.insert_arrow, "q", loaded)
    while value(three, "SELECT count(*) FROM instar.jobs WHERE kind = 'load'") == 0:
        assert not waits.done()
    time.sleep(0.2)
    assert not waits.done()
    two.cancel()
    with fails(errors.QUERY_CANCELED):
        waits.result(20)
    run(one, "COMMIT")
    assert rows(three, "SELECT a FROM q") == rows(three, "CHECK DATABASE") == []


def _told(connection: Connection, job: int, waits: Future[list[tuple[Any, ...]]]) -> None:
    """Until the job says that it waits for a schema lock."""
    while "SCH-C" not in (value(connection, f"SELECT max(reason) FROM instar.jobs WHERE id = {job}") or ""):
        assert not waits.done()


def test_who_waits_for_a_schema_lock_is_told_for_whom(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    """Before anything of the change is committed, so that there is no job yet that would say it."""
    one, two, three, _ = sessions
    told: list[str] = []
    two.on_notice = told.append
    run(one, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE t SET a = 1 WHERE id = 1")
    changing = later(threads, two, "CREATE INDEX i ON t (a)")
    waiting(three)
    assert [notice.partition(" on a table")[0] for notice in told] == ["NOTICE:  waits for SCH-C"]
    run(one, "COMMIT")
    changing.result()
    assert len(told) == 1
