"""Schema changes of a session, as far as they depend on what is around it: the worker, and the disk."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import instar
from instar.database import schema
from instar.schemachange import executor
from instar.schemachange.job_records import JobState, Problem
from instar.store import presence
from instar.worker.work import Worker
from support.databases import Engine, fails, run
from support.victims import Victim

ROWS = 20_000


@contextmanager
def files_may_not_grow(path: Path) -> Iterator[None]:
    """No file may become larger than the data file is without the hole at its end: for this process, and for those
    that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path / "data.mdb").st_blocks * 512, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_index_build_that_meets_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker cannot write down why it fails; whoever waits is told all the same, and nothing is damaged."""
    monkeypatch.setattr(schema, "_UNATTENDED_SECONDS", 1.0)
    path = tmp_path / "db"
    with instar.connect(path, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, f"{number:040}") for number in range(ROWS)])
        with files_may_not_grow(path), pytest.raises(instar.Error) as caught:
            connection.execute("CREATE INDEX i ON t (a)")
        assert caught.value.sqlstate == "53100"
        assert "the disk is full" in caught.value.message
        assert "Make room on the device" in str(caught.value.hint)
        assert connection.execute("SELECT count(*) FROM t WHERE a >= ''").fetchone() == (ROWS,)
        assert connection.execute("CHECK DATABASE").fetchall() == []


def test_a_worker_that_cannot_start_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its work would wait for ever."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "msgspec.py").write_text("raise ImportError('not this one')")
    with instar.connect(tmp_path / "db", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, f"{number:040}") for number in range(ROWS)])
        with monkeypatch.context() as there:
            there.setattr(schema, "_UNATTENDED_SECONDS", 0.5)
            there.setattr(presence, "LAUNCH_NS", 500_000_000)
            there.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
            with pytest.raises(instar.Error) as caught:
                connection.execute("CREATE INDEX i ON t (a)")
        assert caught.value.sqlstate == "58030"
        assert caught.value.message == "job 2 cannot go on: the background process has ended with status 1"
        assert str(caught.value.hint).startswith(f'"instar worker {tmp_path / "db"}" shows why. The job stays')
        assert connection.execute("SELECT state FROM instar.jobs WHERE id = 2").fetchone() == ("pending",)


def test_a_worker_takes_no_module_from_where_the_client_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("msgspec", "instar"):
        (tmp_path / "elsewhere" / f"{name}.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", "")
    with instar.connect(tmp_path / "db", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, f"{number:040}") for number in range(ROWS)])
        connection.execute("CREATE INDEX i ON t (a)")
        assert connection.execute("CHECK DATABASE").fetchall() == []


def test_a_check_survives_the_rename_of_its_table() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a integer CHECK (t.a > 0))")
        connection.execute("ALTER TABLE t RENAME TO u")
        connection.execute("INSERT INTO u VALUES (1)")
        with pytest.raises(instar.Error) as caught:
            connection.execute("INSERT INTO u VALUES (0)")
        assert caught.value.sqlstate == "23514"
        assert connection.execute("CHECK DATABASE").fetchall() == []


# A change that cannot be planned while a job moves its table waits, as a job.


def wait_for(connection: instar.Connection, job: int) -> tuple[str, str]:
    deadline = time.monotonic() + 60
    while True:
        ((state, reason),) = connection.execute("SELECT state, reason FROM instar.jobs WHERE id = ?", (job,)).fetchall()
        if state in ("succeeded", "failed", "cancelled"):
            return state, reason
        assert time.monotonic() < deadline, (state, reason)
        time.sleep(0.05)


@pytest.fixture
def building(tmp_path: Path) -> Iterator[instar.Connection]:
    """Table t, an index of which is being built by job 1, which is paused."""
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, number) for number in range(6_000)])
        connection.execute("SET schema_change_mode = async")
        connection.execute("CREATE INDEX i ON t (a)")
        connection.execute("PAUSE JOB 1")
        yield connection


def test_a_full_disk_that_a_change_cannot_be_taken_back_on_is_told(
    building: instar.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker may have the job all the time, and no room to write down what each attempt fails of."""
    monkeypatch.setattr(schema, "_UNATTENDED_SECONDS", 0.2)
    monkeypatch.setattr(building.database, "ensure_worker", lambda: None)
    full = Problem("53100", "the disk is full")
    jobs = building.database.jobs
    building.execute("SET schema_change_mode = wait")
    assert jobs.claim(1, b"somebody") is not None
    jobs.update(1, lambda job: msgspec.structs.replace(job, state=JobState.REVERTING, problem=full))
    with pytest.raises(instar.OperationalError, match="job 1 cannot go on: the disk is full") as caught:
        building.session._schema.finish_job(jobs.get(1), alone=True)
    assert (caught.value.sqlstate, caught.value.hint) == (
        "53100",
        "The job stays, and takes back what it has done once this is mended.",
    )


def test_a_statement_that_waits_for_a_job_is_told_why_it_cannot_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug there: it is told in its notices, and done once that is mended."""
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as connection:
        database = connection.database
        monkeypatch.setattr(database, "ensure_worker", lambda: None)
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, number) for number in range(6_000)])
        connection.execute("SET schema_change_mode = async")
        connection.execute("CREATE INDEX i ON t (a)")
        connection.execute("SET schema_change_mode = wait")
        told: list[str] = []
        connection.on_notice = told.append
        worker = Worker(database.store, database.clock)
        with ThreadPoolExecutor() as threads, monkeypatch.context() as there:
            there.setattr(executor.Executor, "_plan", lambda *_: 1 / 0)
            dropped = threads.submit(connection.execute, "DROP TABLE t")
            deadline = time.monotonic() + 30
            while not any("waiting: attempt 1 failed: XX000 ZeroDivisionError" in text for text in told):
                assert time.monotonic() < deadline, told
                worker.turn()
                time.sleep(0.01)
            there.undo()
            while not dropped.done():
                assert time.monotonic() < deadline, told
                worker.turn()
                time.sleep(0.01)
            dropped.result()
        assert [job.attempts for job in database.jobs.all()] == [0, 0]


def test_a_statement_that_is_not_to_wait_leaves_what_is_kept_to_a_rate_to_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few rows there are: at one in a second a hundred take minutes."""
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as connection:
        wanted: list[bool] = []
        monkeypatch.setattr(connection.database, "ensure_worker", lambda: wanted.append(True))
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, number) for number in range(100)])
        connection.execute("SET schema_change_mode = async")
        connection.execute("CREATE INDEX at_once ON t (a)")
        assert not wanted
        connection.execute("SET max_rows_per_second = 1")
        stages = connection.execute("EXPLAIN (DDL) CREATE INDEX slowly ON t (a)").fetchall()
        assert [row[4].split(", ")[-1] for row in stages if row[4]] == ["by the worker"]
        connection.execute("CREATE INDEX slowly ON t (a)")
        assert wanted
        jobs = connection.execute("SELECT state FROM instar.jobs WHERE statement LIKE 'CREATE%' ORDER BY id")
        assert jobs.fetchall() == [("succeeded",), ("pending",)]


def test_a_statement_that_waits_for_a_job_keeps_to_the_rate_it_was_given(building: instar.Connection) -> None:
    building.execute("SET max_rows_per_second = 70")
    building.execute("SET reorganize_latency_target = '3 ms'")
    building.execute("ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (id, a)")
    query = "SELECT state, max_rows_per_second, latency_target_ms FROM instar.jobs WHERE id = 2"
    assert building.execute(query).fetchone() == ("waiting", 70, 3.0)


def test_who_waits_is_told_what_of_the_disk_keeps_a_job_from_going_on(building: instar.Connection) -> None:
    """Its record can be written, but what it has to do cannot, however often it is tried."""

    def failed(sqlstate: str) -> None:
        problem = Problem(sqlstate, "it is so", None, "Mend it.")
        building.database.jobs.update(1, lambda job: msgspec.structs.replace(job, attempts=3, failed=problem))
        building.session._schema._require_possible(1, time.monotonic())

    failed("40001")  # which goes away
    with pytest.raises(instar.Error) as caught:
        failed("53100")
    assert (caught.value.sqlstate, caught.value.message) == ("53100", "job 1 cannot go on: it is so")
    assert caught.value.hint == "Mend it. The job stays, and goes on once this is mended; CANCEL JOB 1 takes it back."


@pytest.mark.parametrize(
    ("statement", "query", "wanted"),
    [
        ("DROP INDEX i", "SELECT count(*) FROM instar.indexes", 0),
        ("ALTER TABLE t DROP COLUMN a", "SELECT count(*) FROM instar.columns WHERE name = 'a'", 0),
    ],
)
def test_a_second_change_waits_for_the_first(
    building: instar.Connection, statement: str, query: str, wanted: int
) -> None:
    told = building.execute(f"EXPLAIN (DDL) {statement}").fetchall()
    assert told == [("1", "planned when that job has ended", "", "", "", "yes", "job 1 (CREATE INDEX i ON t (a))")]
    building.execute(statement)
    ((state, reason),) = building.execute("SELECT state, reason FROM instar.jobs WHERE id = 2").fetchall()
    assert (state, reason) == ("waiting", "waits for job 1 (CREATE INDEX i ON t (a)), which is paused")
    assert f"NOTICE:  job 2 {reason}" in building.notices
    building.execute("INSERT INTO t VALUES (-1, 5)")
    building.execute("RESUME JOB 1")
    assert wait_for(building, 1)[0] == "succeeded"
    assert wait_for(building, 2)[0] == "succeeded"
    assert building.execute(query).fetchone() == (wanted,)
    assert building.execute("CHECK DATABASE").fetchall() == []


@pytest.mark.parametrize(
    ("added", "dropped", "wanted"),
    [
        ("ADD CONSTRAINT c CHECK (a >= 0)", "DROP CONSTRAINT c", ("YES", 0)),
        ("ADD CONSTRAINT c FOREIGN KEY (a) REFERENCES t", "DROP CONSTRAINT c", ("YES", 0)),
        ("ALTER a SET NOT NULL", "ALTER a DROP NOT NULL", ("YES", 0)),
        ("ALTER a SET NOT NULL", "DROP COLUMN a", (None, 0)),
    ],
)
def test_what_a_job_builds_is_dropped_after_it(
    building: instar.Connection, added: str, dropped: str, wanted: tuple[str | None, int]
) -> None:
    """Neither fails, and the last word is that of the second."""
    building.execute("CANCEL JOB 1")
    assert wait_for(building, 1)[0] == "cancelled"
    building.execute(f"ALTER TABLE t {added}")
    building.execute("PAUSE JOB 2")
    building.execute(f"ALTER TABLE t {dropped}")
    building.execute("RESUME JOB 2")
    assert [wait_for(building, job)[0] for job in (2, 3)] == ["succeeded", "succeeded"]
    nullable = "(SELECT is_nullable FROM information_schema.columns WHERE table_name = 't' AND column_name = 'a')"
    found = building.execute(f"SELECT {nullable}, (SELECT count(*) FROM instar.indexes)").fetchone()
    assert found == wanted
    assert building.execute("SELECT name FROM instar.constraints WHERE kind <> 'NOT NULL'").fetchall() == [("t_pkey",)]


def test_a_change_in_conflict_with_itself_does_not_wait(building: instar.Connection) -> None:
    with pytest.raises(instar.Error) as caught:
        building.execute("ALTER TABLE t ADD CONSTRAINT c UNIQUE (a), DROP CONSTRAINT c")
    assert caught.value.sqlstate == "42704"  # drops come first, as in PostgreSQL
    building.execute("CANCEL JOB 1")
    assert wait_for(building, 1)[0] == "cancelled"
    assert len(building.execute("SHOW JOBS").fetchall()) == 1


def test_a_statement_waits_for_the_job_that_it_became(building: instar.Connection, tmp_path: Path) -> None:
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as other, ThreadPoolExecutor(1) as pool:
        dropped = pool.submit(other.execute, "DROP TABLE t")
        time.sleep(0.5)
        assert not dropped.done()
        building.execute("CANCEL JOB 1")
        dropped.result(60)
    assert wait_for(building, 1)[0] == "cancelled"
    with pytest.raises(instar.Error) as caught:
        building.execute("SELECT 1 FROM t")
    assert caught.value.sqlstate == "42P01"


def wait_for_job(connection: instar.Connection, job: int) -> None:
    """Until there is a job of that number."""
    deadline = time.monotonic() + 60
    while not connection.execute("SELECT 1 FROM instar.jobs WHERE id = ?", (job,)).fetchall():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("statement", ["TRUNCATE t", "DROP TABLE t", "ALTER TABLE t DROP COLUMN a"])
def test_a_statement_that_was_interrupted_while_it_waited_is_not_run(
    building: instar.Connection, tmp_path: Path, statement: str
) -> None:
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.execute, statement)
        wait_for_job(building, 2)
        other.cancel()
        with pytest.raises(instar.Error) as caught:
            waiting.result(60)
    assert caught.value.sqlstate == "57014"
    building.execute("INSERT INTO t VALUES (-1, 5)")
    building.execute("RESUME JOB 1")
    assert wait_for(building, 1)[0] == "succeeded"
    assert wait_for(building, 2) == ("cancelled", "canceling statement due to user request")
    assert building.execute("SELECT count(*), count(a) FROM t").fetchone() == (6_001, 6_001)


def truncate(path: str, number: int, say: Callable[[object], None]) -> None:
    with instar.connect(path, autocommit=True, synchronous="off") as connection:
        connection.execute("TRUNCATE t")


def test_a_statement_whose_process_died_while_it_waited_is_not_run(building: instar.Connection, tmp_path: Path) -> None:
    victim = Victim(truncate, str(tmp_path / "db"), 1)
    wait_for_job(building, 2)
    victim.kill()
    building.execute("INSERT INTO t VALUES (-1, 5)")
    building.execute("RESUME JOB 1")
    assert wait_for(building, 1)[0] == "succeeded"
    state, reason = wait_for(building, 2)
    assert state == "cancelled"
    assert reason.endswith("which waited for the statement, is gone")
    assert building.execute("SELECT count(*) FROM t").fetchone() == (6_001,)


def test_a_statement_waits_for_its_job_while_that_is_paused(building: instar.Connection, tmp_path: Path) -> None:
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.execute, "TRUNCATE t")
        wait_for_job(building, 2)
        building.execute("PAUSE JOB 2")
        building.execute("RESUME JOB 1")
        assert wait_for(building, 1)[0] == "succeeded"
        building.execute("INSERT INTO t VALUES (-1, 5)")
        time.sleep(0.3)
        assert not waiting.done()
        building.execute("RESUME JOB 2")
        waiting.result(60)
    assert building.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_change_that_waits_can_be_cancelled_and_may_fail(building: instar.Connection) -> None:
    building.execute("DROP INDEX i")
    building.execute("ALTER TABLE t DROP COLUMN a")
    building.execute("CANCEL JOB 2")
    assert wait_for(building, 2)[0] == "cancelled"
    building.execute("RESUME JOB 1")
    assert wait_for(building, 3)[0] == "succeeded"
    building.execute("CREATE INDEX j ON t (id)")
    assert wait_for(building, 4)[0] == "succeeded"


def test_what_cannot_wait_is_refused(building: instar.Connection) -> None:
    building.execute("BEGIN")
    with pytest.raises(instar.Error) as caught:
        building.execute("DROP TABLE t")
    assert caught.value.sqlstate == "55006"
    building.execute("ROLLBACK")
    building.execute("RESUME JOB 1")
    assert wait_for(building, 1)[0] == "succeeded"


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE t",
        "ALTER TABLE t SPLIT INTO r (id), s (id, a) ON (id)",
        "ALTER TABLE t JOIN u USING (id) INTO v (id, a)",
        "ALTER TABLE u JOIN t USING (id) INTO v (id, a)",
    ],
)
def test_a_statement_that_waited_does_not_take_another_table_of_the_name(
    building: instar.Connection, statement: str
) -> None:
    building.execute("CREATE TABLE u (id int PRIMARY KEY)")
    building.execute(statement)
    building.execute("ALTER TABLE t RENAME TO told")
    building.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    building.execute("RESUME JOB 1")
    assert wait_for(building, 2) == ("failed", '"t", which the statement named, is another by now')
    assert building.execute("SELECT count(*) FROM told").fetchone() == (6_000,)
    assert building.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_truncate_that_nobody_waits_for_does_not_wait(building: instar.Connection) -> None:
    with pytest.raises(instar.Error) as caught:
        building.execute("TRUNCATE t")
    assert caught.value.sqlstate == "55006"
    building.execute("CANCEL JOB 1")


def test_explain_says_who_does_the_work(tmp_path: Path) -> None:
    """Under a lease there is a wait between two stages: the worker's; and a job is in one hand."""
    explain = "EXPLAIN (DDL) ALTER TABLE t ADD UNIQUE (a), ADD CHECK (a >= 0)"
    for path, lease, rows, done_by in (
        ("one", 0.0, 10, "in the call"),
        ("two", 0.0, 6_000, "by the worker"),
        ("three", 0.5, 10, "by the worker"),
    ):
        with instar.connect(tmp_path / path, autocommit=True, synchronous="off", schema_lease=lease) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, number) for number in range(rows)])
            work = [row[4] for row in connection.execute(explain).fetchall() if row[4]]
            assert len(work) == 2
            assert all(text.endswith(done_by) for text in work)


def test_stages_of_jobs_keep_the_distance_of_a_lease(tmp_path: Path) -> None:
    """Of the version before as well, whatever made it: else a server might be two behind."""
    lease = 0.3
    with instar.connect(tmp_path / "db", schema_lease=lease, synchronous="off", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        connection.execute("INSERT INTO t VALUES (1, 1)")
        for job in ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)", "CREATE INDEX i ON t (a)"):
            assert f"a schema lease of {lease:g} s" in str(connection.execute(f"EXPLAIN (DDL) {job}").fetchone())
            connection.execute(job)
        versions = connection.execute("SELECT change, committed_at FROM instar.schema_versions ORDER BY 2").fetchall()
    apart = {
        change: (committed - before).total_seconds()
        for (_, before), (change, committed) in itertools.pairwise(versions)
        if change.startswith(("ALTER", "CREATE INDEX"))
    }
    assert len(apart) == 7
    assert min(apart.values()) > lease - 0.01, apart  # timestamps are milliseconds


@pytest.mark.parametrize("where", ["db", ":memory:"])
def test_a_statement_waits_for_its_job_that_is_paused_at_work(where: str, tmp_path: Path) -> None:
    """Else it would seem to be done: whoever applies a schema goes on without its index."""
    path = tmp_path / where if where == "db" else where
    with instar.connect(path, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, number) for number in range(100)])
        jobs, run_job = connection.database.jobs, connection.database.run_job
        told: list[str] = []

        def pause(job: int, is_cancelled: Callable[[], bool]) -> None:
            connection.database.run_job = run_job  # type: ignore[method-assign]
            jobs.pause(job)

        connection.database.run_job = pause  # type: ignore[assignment, method-assign]
        connection.on_notice = told.append
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(connection.execute, "CREATE INDEX i ON t (a)")
            deadline = time.monotonic() + 60
            while not told:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.3)
            assert not waiting.done()
            assert told == ["NOTICE:  job 1: stage 1 of 4, paused; RESUME JOB 1 lets it go on"]
            jobs.resume(1)
            run_job(1)
            waiting.result(60)
        assert jobs.get(1).state is JobState.SUCCEEDED


def test_who_waits_for_a_job_in_the_call_is_told_what_that_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with instar.connect(path, autocommit=True, synchronous="off") as one, instar.connect(path, synchronous=None) as two:
        one.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        one.execute("INSERT INTO t VALUES (1, 1)")
        one.execute("SET ddl_wait = '1 min'")
        told: list[str] = []

        def end(notice: str) -> None:
            told.append(notice)
            two.rollback()

        one.on_notice = end
        with ThreadPoolExecutor() as threads:
            threads.submit(two.execute, "UPDATE t SET a = 2").result()
            began = time.monotonic()
            one.execute("ALTER TABLE t ALTER a TYPE text USING 'q' || a")
        assert time.monotonic() - began < 50
        assert "job 1: stage" in told[0]
        assert "waiting: the transaction of process" in told[0]
        assert one.execute("SELECT a FROM t").fetchall() == [("q1",)]


def test_a_check_that_fails_for_a_row_names_it(tmp_path: Path) -> None:
    """Whatever its expression fails with."""
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES (1), (2), (3)")
        with pytest.raises(instar.Error) as caught:
            connection.execute("ALTER TABLE t ADD CONSTRAINT k CHECK (1 / (id - 2) < 10)")
        assert (caught.value.sqlstate, caught.value.message) == ("22012", "division by zero")
        assert caught.value.detail == '1 row cannot be judged by check constraint "k": (id)=(2).'
        assert connection.execute("CHECK DATABASE").fetchall() == []


def test_a_job_whose_worker_has_just_died_is_cancelled(tmp_path: Path) -> None:
    """Nobody can tell yet that it has, and nobody need do anything more: not even commit."""
    with instar.connect(tmp_path / "db", autocommit=True, synchronous="off") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, number) for number in range(10_000)])
        connection.execute("SET schema_change_mode = async")
        connection.execute("SET max_rows_per_second = 100")
        connection.execute("CREATE INDEX i ON t (a)")
        while not connection.execute("SELECT 1 FROM instar.jobs WHERE state = 'running' AND rows_done > 0").fetchall():
            time.sleep(0.05)
        ((job,),) = connection.execute("SELECT id FROM instar.jobs WHERE state = 'running'").fetchall()
        (worker,) = (found.pid for found in connection.database.store.processes() if found.worker)
        os.kill(worker, signal.SIGKILL)
        connection.execute(f"CANCEL JOB {job}")
        assert wait_for(connection, job)[0] == "cancelled"
        assert connection.execute("SELECT count(*) FROM instar.indexes WHERE name = 'i'").fetchone() == (0,)


BOTH = [
    ["ALTER TABLE t ADD UNIQUE (a), ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES t (a)"],
    [
        "BEGIN",
        "ALTER TABLE t ADD UNIQUE (a)",
        "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES t (a)",
        "COMMIT",
    ],
]


@pytest.mark.parametrize("statements", BOTH)
@pytest.mark.parametrize(("row", "sqlstate"), [("", ""), ("(9, 1, 1)", "23505"), ("(9, 9, 7)", "23503")])
def test_a_key_and_a_foreign_key_to_it_come_together(row: str, sqlstate: str, statements: list[str]) -> None:
    """The foreign key holds nobody to a key that is not complete yet; and if one of them fails, neither comes."""
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
        connection.execute("INSERT INTO t VALUES (1, 1, 2), (2, 2, 1), (3, 3, NULL)")
        if row:
            connection.execute(f"INSERT INTO t VALUES {row}")
        told = ""
        for statement in statements:
            try:
                connection.execute(statement)
            except instar.Error as failed:
                told = f"{failed.sqlstate} {failed.message}"
        assert sqlstate in told
        assert bool(told) == bool(row)
        names = connection.execute("SELECT name FROM instar.indexes WHERE table_name = 't' ORDER BY 1").fetchall()
        assert names == ([] if row else [("f_idx",), ("t_a_key",)])
        assert connection.execute("CHECK DATABASE").fetchall() == []
        connection.execute("DELETE FROM t WHERE id = 9")
        if row:
            connection.execute("INSERT INTO t VALUES (8, 3, 99)")
            return
        with pytest.raises(instar.Error, match="violates foreign key"):
            connection.execute("INSERT INTO t VALUES (8, 8, 99)")
        connection.execute("ALTER TABLE t DROP CONSTRAINT t_a_key CASCADE")
        assert connection.execute("SELECT name FROM instar.indexes WHERE table_name = 't'").fetchall() == []


def test_a_foreign_key_of_an_empty_table_waits_for_the_key_that_it_refers_to(building: instar.Connection) -> None:
    """Nothing of it holds while the index is built."""
    building.execute("CREATE TABLE child (a int)")
    building.execute("SET max_rows_per_second = 100")
    building.execute("BEGIN")
    building.execute("ALTER TABLE t ADD UNIQUE (a)")
    building.execute("ALTER TABLE child ADD FOREIGN KEY (a) REFERENCES t (a)")
    building.execute("COMMIT")
    ((job,),) = building.execute("SELECT max(id) FROM instar.jobs").fetchall()
    building.execute("INSERT INTO child VALUES (5999)")
    building.execute(f"ALTER JOB {job} SET (max_rows_per_second = 0)")
    assert wait_for(building, job)[0] == "succeeded"
    with pytest.raises(instar.Error, match="violates foreign key"):
        building.execute("INSERT INTO child VALUES (-5)")
    assert building.execute("CHECK DATABASE").fetchall() == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ALTER LOCK l COVERS (b), ALTER LOCK m COVERS (a)",
        "ALTER TABLE t ADD LOCK k COVERS (a), DROP LOCK l",
    ],
)
def test_actions_that_meet_one_another_are_told_to_be_statements_of_their_own(statement: str) -> None:
    """No job is there to wait for."""
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
        connection.execute("INSERT INTO t VALUES (1, 1, 1)")
        connection.execute("ALTER TABLE t ADD LOCK l COVERS (a), ADD LOCK m COVERS (b)")
        with pytest.raises(instar.Error) as caught:
            connection.execute(statement)
        assert caught.value.sqlstate == "55006"
        assert "make them statements of their own" in str(caught.value.hint)
        for action in statement.removeprefix("ALTER TABLE t ").split(", "):
            connection.execute(f"ALTER TABLE t {action}")


def test_an_index_on_a_table_whose_key_has_two_columns(engine: Engine) -> None:
    """Seventy rows of each first column: by the distance between neighbours the table would have 10^21."""
    connection = engine.connect()
    run(connection, "CREATE TABLE readings (day int, number int, PRIMARY KEY (day, number))")
    connection.insert_arrow("readings", pa.table({"day": [i % 1000 for i in range(70_000)], "number": range(70_000)}))
    said = [line[4] for line in connection.execute("EXPLAIN (DDL) CREATE INDEX i ON readings (number)").fetchall()]
    (told,) = [found for line in said if (found := re.search(r"about (\d+) rows", line))]
    assert int(told[1]) == pytest.approx(70_000, rel=0.1)
    run(connection, "CREATE INDEX i ON readings (number)")
    jobs = connection.execute("SELECT state FROM instar.jobs WHERE statement LIKE 'CREATE INDEX%'")
    assert jobs.fetchall() == [("succeeded",)]


@pytest.mark.parametrize(
    "takes_a_job", ["ADD CONSTRAINT k UNIQUE (a)", "ADD CHECK (a > 1)", "ADD COLUMN z int CHECK (z > 0)"]
)
@pytest.mark.parametrize("generated", ["", "GENERATED BY DEFAULT AS IDENTITY"])
def test_an_identity_neither_comes_nor_goes_with_a_change_that_may_fail(generated: str, takes_a_job: str) -> None:
    """Its sequence would be there, or gone, whatever became of the job."""
    with instar.connect(":memory:", autocommit=True) as connection:
        run(connection, f"CREATE TABLE t (a int, e int NOT NULL {generated})", "INSERT INTO t VALUES (1, 1), (1, 2)")
        action = "DROP IDENTITY" if generated else "ADD GENERATED BY DEFAULT AS IDENTITY"
        with fails("0A000", "t_e_seq", "in one statement with what takes a job"):
            connection.execute(f"ALTER TABLE t ALTER e {action}, {takes_a_job}")
        if generated:
            run(connection, "INSERT INTO t (a) VALUES (7)")
        else:
            with fails("23502"):
                connection.execute("INSERT INTO t (a) VALUES (7)")
        run(connection, f"ALTER TABLE t ALTER e {action}", "INSERT INTO t VALUES (8, 8)")


def test_a_not_null_that_is_said_twice_is_one(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (a int PRIMARY KEY, b int)", "INSERT INTO t VALUES (1, 1)")
    run(connection, "ALTER TABLE t ALTER b SET NOT NULL, ALTER b SET NOT NULL")
    with fails("23502"):
        connection.execute("INSERT INTO t VALUES (2, NULL)")
    for actions in ("ALTER a SET NOT NULL, ALTER a DROP NOT NULL", "ALTER a DROP NOT NULL, ALTER a SET NOT NULL"):
        with fails("42P16", "primary key"):
            connection.execute(f"ALTER TABLE t {actions}")


def test_a_client_that_does_not_want_to_hear_of_a_job_in_its_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its handler raises ends the statement, once; the job goes on."""
    monkeypatch.setattr(schema, "_TELL_SECONDS", 0.0)
    connection = engine.connect()
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    connection.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 3000) AS s (g)")
    told: list[str] = []

    def refuse(notice: str) -> None:
        told.append(notice)
        raise ValueError(notice)

    connection.on_notice = refuse
    with pytest.raises(ValueError, match="job 1: stage"):
        connection.execute("CREATE INDEX i ON t (a)")
    assert len(told) == 1
    connection.on_notice = None
    assert connection.execute("SELECT state FROM instar.jobs").fetchall() == [("succeeded",)]
    assert connection.execute("CHECK DATABASE").fetchall() == []
    assert connection.execute("SELECT id FROM t WHERE a = 7").fetchall() == [(7,)]
