"""The backfill on Spark: the same index as in process, beside writers, across kills, under its claim."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import accumulators

from instar import errors
from instar.catalog.descriptors import Index, State, Table
from instar.clock import SystemClock
from instar.pipeline import backfill as spark_backfill
from instar.pipeline import reorganizer, session, spark_job
from instar.pipeline.reorganizer import SparkReorganizer
from instar.pipeline.turns import LONG_REST_SECONDS, REST_SECONDS
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.jobs import Held, Jobs
from instar.schemachange.reorganize import Backfill, Entry, InProcess
from instar.schemachange.tasks import Task
from instar.store.engine import ENTRY_VALUE, ClaimLost, View, prefix_end, rowset_prefix
from instar.store.pace import Pace
from instar.types import BIGINT, INTEGER, TEXT
from pipeline.small_database import SmallDatabase

pytestmark = pytest.mark.spark

COLUMNS = [("id", BIGINT), ("a", INTEGER), ("b", TEXT)]
STAGE = 3


def entries(database: SmallDatabase, index: Index) -> list[tuple[bytes, int, int]]:
    """(key without rowset prefix, timestamp, offset) of every live entry."""
    prefix = rowset_prefix(index.rowset)
    with database.store.read() as reader:
        found = [(key, *ENTRY_VALUE.unpack(value)) for key, value in reader.scan(prefix, prefix_end(prefix))]
    return [(key[len(prefix) :], timestamp, offset) for key, timestamp, live, offset in found if live]


def drawn_rows(count: int) -> list[tuple[object, ...]]:
    """Rows whose column a has NULLs and equals, and b long values now and then."""
    drawn = random.Random(count)
    return [
        (i, drawn.choice([None, *range(50)]), "x" * 300 if i % 1000 == 0 else f"v{drawn.randrange(count)}")
        for i in range(count)
    ]


def filled(database: SmallDatabase, count: int) -> Table:
    table = database.create("t", COLUMNS, ["id"])
    rows = drawn_rows(count)
    for begin in range(0, count, 20_000):
        database.insert(table, rows[begin : begin + 20_000])
    return table


def backfill(database: SmallDatabase, table: Table, held: Held, rows: int = 1_000) -> Backfill:
    return Backfill(database.store, table, table.indexes[-1:], job=held.job, stage=STAGE, claim=held.claim, rows=rows)


def with_index(database: SmallDatabase, table: Table, columns: list[str], *, unique: bool = False) -> Table:
    number = 50 + len(table.indexes)
    return database.add_index(table, f"i{number}", columns, State.WRITE_ONLY, unique=unique, id_=number)


def in_process(database: SmallDatabase, table: Table, columns: list[str], job: int) -> Table:
    """The table with one more index, which the in-process reorganizer has filled."""
    table = with_index(database, table, columns)
    InProcess().run(backfill(database, table, database.claimed(job)), lambda: None)
    return table


def java() -> list[psutil.Process]:
    """The JVM of this process's session."""
    return [child for child in psutil.Process().children() if child.name() == "java"]


def kill_jvm() -> None:
    """Kill the JVM; it is gone then, though nobody has been told."""
    for jvm in java():
        jvm.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)


def killed_before(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, when: Callable[..., bool] = lambda *given: True
) -> list[str]:
    """Have the JVM killed just before the first call of a function, of those that `when` names; [name] once it was."""
    killed: list[str] = []
    function = getattr(owner, name)

    def called(*given: object, **named: object) -> object:
        if not killed and when(*given):
            killed.append(name)
            kill_jvm()
        return function(*given, **named)

    monkeypatch.setattr(owner, name, called)
    return killed


class Midway:
    """A pulse that does something once: as soon as `ready` says so. `happened` says whether it came to that."""

    def __init__(self, ready: Callable[[], bool], action: Callable[[], None]) -> None:
        self.happened = False
        self._ready = ready
        self._action = action

    def __call__(self) -> None:
        if not self.happened and self._ready():
            self.happened = True
            self._action()


def first_range(database: SmallDatabase) -> Callable[[], bool]:
    """Whether a range of job 1 is done: the first runs are put, Spark may be sorting others."""
    jobs = Jobs(database.store, SystemClock())
    return lambda: any(found.done for found in jobs.checkpoints(1, STAGE).values())


def python_workers() -> list[psutil.Process]:
    """Spark's Python workers: below the JVM is the daemon, below that the workers."""
    return [worker for jvm in java() for daemon in jvm.children() for worker in daemon.children()]


def tasks(database: SmallDatabase) -> Callable[[], bool]:
    """Whether a task is at work in Python: rows are being read."""
    return lambda: any(worker.status() == psutil.STATUS_RUNNING for worker in python_workers())


MOMENTS = pytest.mark.parametrize("moment", [tasks, first_range])


@pytest.fixture
def narrow(monkeypatch) -> None:
    """Ranges of a few thousand entries, so that small tables have many, and frequent pulses, to meet them midway."""
    monkeypatch.setattr(spark_backfill, "ENTRIES_PER_RANGE", 5_000)
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)


@pytest.mark.parametrize("columns", [["a"], ["-b", "a"]])
def test_same_index_as_in_process(spark, database, narrow, columns):
    table = filled(database, 20_000)
    table = with_index(database, table, columns)
    SparkReorganizer(database.path).run(backfill(database, table, database.claimed(1), 20_000), lambda: None)
    made = entries(database, table.indexes[-1])
    table = in_process(database, table, columns, 2)
    assert made == entries(database, table.indexes[-1])
    checkpoints = Jobs(database.store, SystemClock()).checkpoints(1, STAGE)
    assert len(checkpoints) >= 4
    assert all(found.done for found in checkpoints.values())
    assert sum(found.rows for found in checkpoints.values()) == 20_000


def test_two_indexes_in_one_pass(spark, database, narrow):
    table = filled(database, 20_000)
    wanted = []
    for job, columns in ((2, ["a"]), (3, ["-b", "a"])):
        table = in_process(database, table, columns, job)
        wanted.append(entries(database, table.indexes[-1]))
    for columns in (["a"], ["-b", "a"]):
        table = with_index(database, table, columns)
    both = Backfill(
        database.store, table, table.indexes[-2:], job=1, stage=STAGE, claim=database.claimed(1).claim, rows=40_000
    )
    SparkReorganizer(database.path).run(both, lambda: None)
    made = [entries(database, index) for index in table.indexes[-2:]]
    assert [[entry[1:] for entry in found] for found in made] == [[entry[1:] for entry in found] for found in wanted]
    assert [len(found) for found in made] == [20_000] * 2


def test_writers_go_on(spark, database, narrow):
    table = filled(database, 20_000)
    table = with_index(database, table, ["b"])
    stop = threading.Event()
    drawn = random.Random(5)
    failures: list[errors.Error] = []

    def write() -> None:
        known: dict[int, tuple[object, ...]] = {}
        fresh = 100_000
        try:
            while not stop.is_set():
                fresh += 1
                known[fresh] = (fresh, 1, f"n{fresh}")
                database.insert(table, [known[fresh]])
                victim = drawn.choice(list(known))
                if drawn.random() < 0.3:
                    database.delete(table, known.pop(victim))
                else:
                    new = (victim, 2, f"u{drawn.randrange(10_000)}")
                    database.update(table, known[victim], new)
                    known[victim] = new
        except errors.Error as failure:
            failures.append(failure)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        SparkReorganizer(database.path).run(backfill(database, table, database.claimed(1), 20_000), lambda: None)
    finally:
        stop.set()
        writer.join()
    assert failures == []
    made = [(key, offset) for key, _, offset in entries(database, table.indexes[-1])]
    table = in_process(database, table, ["b"], 2)
    assert made == [(key, offset) for key, _, offset in entries(database, table.indexes[-1])]


def test_only_rows_that_others_have_changed_since_spark_began_are_read_again(spark, database, narrow, monkeypatch):
    """Those that were changed before their entries are put, and no others; a row that has gone gets no entry."""
    table = filled(database, 20_000)
    with database.store.read() as reader:
        keys, stored = reader.batch(rowset_prefix(table.rowset), prefix_end(rowset_prefix(table.rowset)), 20_000)
    table = with_index(database, table, ["b"])
    task = backfill(database, table, database.claimed(1), 20_000)
    asked: list[bytes] = []
    missing = task._missing

    def seen(view: View, entry: Entry) -> Entry | None:
        asked.append(entry.row)
        return missing(view, entry)

    monkeypatch.setattr(task, "_missing", seen)
    rows = drawn_rows(20_000)

    def change() -> None:
        for number in (7, 12_345):
            database.update(table, rows[number], (number, 1, f"changed {number}"))
        database.delete(table, rows[8])

    put = spark_backfill.SparkBackfill.put

    def putting(self: spark_backfill.SparkBackfill, *arguments: Any) -> None:
        if not changed:
            change()
            changed.append(True)
        put(self, *arguments)

    changed: list[bool] = []
    monkeypatch.setattr(spark_backfill.SparkBackfill, "put", putting)
    SparkReorganizer(database.path).run(task, lambda: None)
    assert set(asked) == {keys[7], keys[8], keys[12_345]}
    made = [(key, offset) for key, _, offset in entries(database, table.indexes[-1])]
    table = in_process(database, table, ["b"], 2)
    assert made == [(key, offset) for key, _, offset in entries(database, table.indexes[-1])]
    assert len(made) == len(stored) - 1


def test_duplicates_are_named(spark, database, narrow):
    table = database.create("t", COLUMNS, ["id"])
    database.insert(table, [(i, i if i % 700 != 5 else 5, None) for i in range(10_000)])
    table = with_index(database, table, ["a"], unique=True)
    with pytest.raises(errors.Error) as caught:
        SparkReorganizer(database.path).run(backfill(database, table, database.claimed(1)), lambda: None)
    assert caught.value.sqlstate == errors.UNIQUE_VIOLATION
    assert caught.value.message == 'could not create unique index "i50"'
    named = ", ".join(f"(id)=({705 + 700 * i})" for i in range(10))
    assert caught.value.detail == (
        f"Key (a)=(5) is duplicated. 14 rows found so far share their key with another, among them: {named}."
    )
    nulls = with_index(database, table, ["b"], unique=True)
    SparkReorganizer(database.path).run(backfill(database, nulls, database.claimed(2)), lambda: None)
    assert len(entries(database, nulls.indexes[-1])) == 10_000


def test_stops_when_told_and_resumes(spark, database, narrow):
    table = filled(database, 40_000)
    table = with_index(database, table, ["b"])
    held = database.claimed(1)
    jobs = Jobs(database.store, SystemClock())

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        SparkReorganizer(database.path).run(
            backfill(database, table, held, 40_000), Midway(first_range(database), stop)
        )
    before = jobs.checkpoints(1, STAGE)
    standing = entries(database, table.indexes[-1])
    time.sleep(0.5)
    assert entries(database, table.indexes[-1]) == standing  # nobody writes any more
    assert 0 < sum(found.done for found in before.values()) < len(before)
    SparkReorganizer(database.path).run(backfill(database, table, held, 40_000), lambda: None)
    resumed = jobs.checkpoints(1, STAGE)
    assert {number: (found.start, found.stop) for number, found in resumed.items()} == {
        number: (found.start, found.stop) for number, found in before.items()
    }
    assert len(entries(database, table.indexes[-1])) == 40_000


@MOMENTS
def test_survives_killed_python_workers(spark, database, narrow, moment):
    table = filled(database, 40_000)
    table = with_index(database, table, ["b"])

    def kill_workers() -> None:
        for worker in python_workers():
            worker.send_signal(signal.SIGKILL)

    pulse = Midway(moment(database), kill_workers)
    SparkReorganizer(database.path).run(backfill(database, table, database.claimed(1), 40_000), pulse)
    assert pulse.happened
    assert len(entries(database, table.indexes[-1])) == 40_000


def test_a_lost_claim_stops_it(spark, database, narrow):
    table = filled(database, 40_000)
    table = with_index(database, table, ["b"])
    held = database.claimed(1)
    jobs = Jobs(database.store, SystemClock())

    def take_over() -> None:
        jobs.release(held)
        assert jobs.claim(1, b"another") is not None

    with pytest.raises(ClaimLost):
        SparkReorganizer(database.path).run(
            backfill(database, table, held, 40_000), Midway(first_range(database), take_over)
        )


def test_survives_a_killed_jvm(spark, database, narrow):
    """While it reads; test_image.py kills it when a range is done."""
    table = filled(database, 40_000)
    table = with_index(database, table, ["b"])
    pulse = Midway(tasks(database), kill_jvm)
    SparkReorganizer(database.path).run(backfill(database, table, database.claimed(1), 40_000), pulse)
    assert pulse.happened
    assert len(entries(database, table.indexes[-1])) == 40_000


def test_survives_a_jvm_killed_before_it_has_begun(spark, database, narrow, monkeypatch):
    """After the last piece of work, while it starts, and before it has heard of the job."""
    monkeypatch.setattr(reorganizer, "PATIENCE_SECONDS", 30.0)
    killed = [
        killed_before(monkeypatch, session, "_is_stopped"),
        killed_before(monkeypatch, accumulators, "_start_update_server"),
        killed_before(monkeypatch, threading.Thread, "start", lambda thread: thread.name.startswith("instar-job-")),
    ]
    table = filled(database, 5_000)
    table = with_index(database, table, ["b"])
    SparkReorganizer(database.path).run(backfill(database, table, database.claimed(1), 5_000), lambda: None)
    assert killed == [["_is_stopped"], ["_start_update_server"], ["start"]]
    assert len(entries(database, table.indexes[-1])) == 5_000
    # What has served the JVMs that are gone has ended: there is one server of accumulators.
    assert sum("serve_forever" in thread.name for thread in threading.enumerate()) == 1


def test_a_jvm_that_is_killed_is_noticed(spark):
    """Also by a job whose thread still waits for it."""
    begun = threading.Event()

    def waits() -> None:
        begun.set()
        threading.Event().wait()

    job = spark_job.SparkJob(spark, "test", waits)
    pulse = Midway(begun.is_set, kill_jvm)
    started = time.monotonic()
    job.wait(pulse)
    assert pulse.happened
    assert time.monotonic() - started < 30
    assert "Spark's JVM has gone" in str(job.failed)
    later = spark_job.SparkJob(spark, "test", lambda: None)
    later.wait(lambda: None)
    assert isinstance(later.failed, OSError)
    later._await_tasks()  # as if it had ended after the job had failed


def test_what_is_only_writes_is_done_without_spark(database, monkeypatch):
    class Writes(Task):
        def batches(self, at):
            yield (), Checkpoint(at.start, at.stop, at.stop, 7, True)

    def spark_session(*given: object, **named: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(reorganizer, "spark_session", spark_session)
    table = filled(database, 10)
    held = database.claimed(1)
    task = Writes(database.store, table, job=1, stage=STAGE, claim=held.claim, rows=10)
    SparkReorganizer(database.path).run(task, lambda: None)
    (found,) = Jobs(database.store, SystemClock()).checkpoints(1, STAGE).values()
    assert (found.rows, found.done) == (7, True)


def test_a_spark_that_does_not_start_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)
    pulses: list[None] = []
    never = threading.Event()
    with pytest.raises(errors.Error, match="nothing was heard of Spark") as caught:
        spark_job.patiently(never.wait, lambda: pulses.append(None), 0.2)
    never.set()
    assert caught.value.sqlstate == errors.IO_ERROR
    assert len(pulses) > 2


@pytest.mark.parametrize(
    ("synchronous", "expected"), [("off", [0.0, LONG_REST_SECONDS, 0.0]), ("full", [REST_SECONDS, LONG_REST_SECONDS])]
)
def test_how_long_spark_rests_beside_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str, expected: list[float]
) -> None:
    """By the priority of the moment; and only the session of a worker does."""
    rests: list[Callable[[], float]] = []

    @contextmanager
    def turns(_store: object, rest: Callable[[], float]) -> Iterator[None]:
        rests.append(rest)
        yield

    monkeypatch.setattr(reorganizer, "turns", turns)
    monkeypatch.setattr(SparkReorganizer, "_run", lambda *_given: None)
    database = SmallDatabase(tmp_path / "store", synchronous=synchronous)
    table = with_index(database, filled(database, 10), ["a"])
    task = backfill(database, table, database.claimed(1))
    SparkReorganizer(database.path).run(task, lambda: None)
    assert rests == []
    SparkReorganizer(database.path, background=True).run(task, lambda: None)
    (rest,) = rests
    found, task.pace = [rest()], Pace()
    assert rest() == found[0]
    for yields in (True, False)[: len(expected) - 1]:
        task.pace.yields = yields
        found.append(rest())
    assert found == expected
    database.close()
