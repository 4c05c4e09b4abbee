"""`kill -9` of the worker in the middle of an index build, under writers: whoever comes next ends it, exactly."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import instar
from instar.catalog.descriptors import State, Table
from instar.dbapi import Connection
from instar.schemachange.job_records import FINISHED, Job, JobState, lease_key
from instar.store.engine import Section
from support.databases import rows, run, value

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
ROWS = 40_000
# Spark has one processor, and is to be met while it reads, and when it puts.
ON_SPARK = 150_000

# Two of these write while the index is built. Each owns the keys of its parity, and goes on until its input ends; what
# it prints is what it was told is committed: its inserts less its deletes.
WRITER = """
import random, select, sys, instar
path, parity, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw, fresh, balance = random.Random(parity), rows + parity, 0
connection = instar.connect(path, synchronous=None, autocommit=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:
    number = 2 * draw.randrange(rows // 2) + parity
    deed = draw.random()
    if deed < 0.3:
        connection.execute("INSERT INTO t VALUES (?, ?, 'new')", (fresh, draw.randrange(1000)))
        fresh, balance = fresh + 2, balance + 1
    elif deed < 0.8:
        connection.execute("UPDATE t SET a = ? WHERE id = ?", (draw.randrange(1000), number))
    else:
        balance -= connection.execute("DELETE FROM t WHERE id = ?", (number,)).rowcount
print(balance)
"""

# The worker as it is, but for where Spark begins; and it does not stand back, for the tests beside this one never end.
WORKER = """
import os, sys
from instar import scheduling
from instar.worker import process, work
work.WITHOUT_SPARK_ROWS = {}
scheduling.STANDS_BACK = os.SCHED_BATCH
sys.exit(process.main(sys.argv[1:]))
"""


class Build:
    """A database under two writers, whose index is built by workers that this test starts and kills."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = str(path)
        self.count = count
        self.connection: Connection = instar.connect(path, synchronous="off", autocommit=True)
        run(self.connection, "CREATE TABLE t (id bigint PRIMARY KEY, a integer, b text)")
        numbers = range(count)
        columns = {"id": numbers, "a": [i * 7919 % 1_000 for i in numbers], "b": ["b"] * count}
        self.connection.insert_arrow("t", pa.table(columns))
        # A worker must be there when the statement comes: else the statement starts one of its own.
        self._worker: subprocess.Popen[bytes] | None = None
        self._writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, self.path, str(parity), str(count)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
            )
            for parity in (0, 1)
        ]  # fmt: skip

    def start_worker(self, without_spark: int = 1 << 40) -> psutil.Process:
        assert self._worker is None
        command = [sys.executable, "-c", WORKER.format(without_spark), self.path]
        self._worker = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        self.wait_for(self.connection.database.store.worker_present)
        return psutil.Process(self._worker.pid)

    def kill_worker(self) -> None:
        assert self._worker is not None
        self._worker.kill()
        self._worker.wait()
        self._worker = None

    @property
    def job(self) -> Job:
        """The newest job."""
        return self.connection.database.jobs.all()[-1]

    @property
    def rows_done(self) -> int:
        return self.connection.database.jobs.progress(self.job).rows_done

    def begin(self, statement: str) -> None:
        """Begin a build that somebody else has to end."""
        run(self.connection, "SET schema_change_mode = async", statement)
        assert self.job.state not in FINISHED

    @staticmethod
    def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.005)

    def end(self) -> None:
        """The writers' work is there to the last row; nothing is wrong anywhere; the index says what the table says."""
        balance = self.count
        for writer in self._writers:
            said, _ = writer.communicate("stop", timeout=30)
            assert writer.returncode == 0
            balance += int(said)
        assert rows(self.connection, "CHECK DATABASE") == []
        assert value(self.connection, "SELECT count(*) FROM t") == balance

    def index(self) -> list[tuple[str, State]]:
        with self.connection.database.store.read() as reader:
            table = self.connection.database.catalog.at(reader).lookup("public", "t")
        assert isinstance(table, Table)
        return [(index.name, index.state) for index in table.indexes]

    def close(self) -> None:
        for process in (*self._writers, self._worker):
            if process is not None:
                process.kill()
                process.communicate()
        self.connection.close()


@pytest.fixture
def build(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Build]:
    made = Build(tmp_path / "db", getattr(request, "param", ROWS))
    yield made
    made.close()


def test_killed_at_any_moment(build: Build):
    draw = random.Random(2)
    worker = build.start_worker()
    build.begin("CREATE INDEX t_a ON t (a)")
    kills = 0
    while kills < 4:
        target = build.rows_done + draw.randrange(1, ROWS // 4)
        build.wait_for(lambda target=target: build.job.is_finished or build.rows_done >= target)  # type: ignore[misc]
        if build.job.is_finished:
            break
        time.sleep(draw.random() / 50)
        build.kill_worker()
        kills += 1
        release(build)
        worker = build.start_worker()
    build.wait_for(lambda: build.job.is_finished)
    assert worker.is_running()
    assert kills >= 2
    assert build.job.state is JobState.SUCCEEDED
    assert build.index() == [("t_a", State.PUBLIC)]
    build.end()


def release(build: Build) -> None:
    """End the lease of a worker that is gone, as its ten seconds would."""
    jobs = build.connection.database.jobs

    def delete(section: Section) -> None:
        section.delete(lease_key(build.job.id))

    build.connection.database.store.background([delete])
    assert build.job.is_finished or build.job in jobs.runnable()


def test_paused_resumed_and_cancelled_through_sql(build: Build):
    build.start_worker()
    build.begin("CREATE INDEX t_a ON t (a)")
    number = build.job.id
    build.wait_for(lambda: build.rows_done)
    run(build.connection, f"PAUSE JOB {number}")
    build.wait_for(lambda: build.job.state is JobState.PAUSED)
    standing = build.rows_done
    time.sleep(0.3)
    assert build.rows_done == standing < ROWS
    assert build.index() == [("t_a", State.WRITE_ONLY)]
    run(build.connection, f"RESUME JOB {number}")
    build.wait_for(lambda: build.rows_done > standing)
    run(build.connection, f"CANCEL JOB {number}")
    build.wait_for(lambda: build.job.is_finished)
    assert build.job.state is JobState.CANCELLED
    assert build.index() == []
    build.end()


def test_killed_while_rows_are_given_values(build: Build):
    """Each row has one value in the end, whoever gave it: either worker, or a writer."""
    draw = random.Random(3)
    build.start_worker()
    build.begin("ALTER TABLE t ADD COLUMN c bigserial")
    kills = 0
    while kills < 2:
        target = build.rows_done + draw.randrange(1, ROWS // 3)
        build.wait_for(lambda target=target: build.job.is_finished or build.rows_done >= target)  # type: ignore[misc]
        if build.job.is_finished:
            break
        build.kill_worker()
        kills += 1
        release(build)
        build.start_worker()
    build.wait_for(lambda: build.job.is_finished)
    assert kills == 2
    assert build.job.state is JobState.SUCCEEDED
    build.end()
    assert value(build.connection, "SELECT count(*) - count(DISTINCT c) FROM t") == 0
    # A killed worker leaves a block at most behind.
    assert value(build.connection, "SELECT max(c) FROM t") < 2 * ROWS


@pytest.mark.spark
@pytest.mark.parametrize("build", [ON_SPARK], indirect=True)
def test_cancelled_and_killed_on_spark(build: Build):
    """One worker, one JVM: progress moves while it reads, and a cancel is heard then; the next job is killed."""
    worker = build.start_worker(without_spark=1_000)
    build.begin("CREATE INDEX t_a ON t (a)")
    cancelled_while_spark_reads(build)
    build.begin("CREATE INDEX t_a ON t (a)")
    build.wait_for(lambda: build.rows_done)
    jvms = [process for process in worker.children() if process.name() == "java"]
    assert len(jvms) == 1
    build.kill_worker()
    # The JVM follows it, and with it its Python workers, which might still write.
    psutil.wait_procs(jvms, timeout=10)
    assert not jvms[0].is_running()
    assert not build.job.is_finished
    release(build)
    build.start_worker()
    build.wait_for(lambda: build.job.is_finished, 200.0)  # 150,000 rows in its own process, beside writers
    assert build.job.state is JobState.SUCCEEDED
    assert build.index() == [("t_a", State.PUBLIC)]
    build.end()


def cancelled_while_spark_reads(build: Build) -> None:
    shares: list[float] = []
    reasons: set[str] = set()

    def reads() -> bool:
        progress = build.connection.database.jobs.progress(build.job)
        shares.append(progress.share)
        if progress.status is not None:
            reasons.add(progress.status.reason)
        assert not build.job.is_finished
        return progress.share > 0.1 and not progress.rows_done

    build.wait_for(reads, 200.0)
    assert shares == sorted(shares)
    assert "Spark starts" in reasons
    begun = time.monotonic()
    run(build.connection, f"CANCEL JOB {build.job.id}")
    build.wait_for(lambda: build.job.is_finished)
    took = time.monotonic() - begun
    assert build.job.state is JobState.CANCELLED
    assert took < 5, "a second or two, where others leave it a processor"
