"""The background process: jobs, garbage, dead rowsets; as turns under a manual clock, and as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from instar.catalog.descriptors import Table
from instar.clock import SystemClock
from instar.schemachange import wanted as want
from instar.schemachange.jobs import Jobs, JobState
from instar.store import open_store
from instar.store.engine import Section, prefix_end, rowset_prefix
from instar.store.records import rowset_key, table_key
from instar.worker import NICENESS, Worker
from support.changes import ChangingWorld, Server


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t([(number, number * 10, "x") for number in range(1, 6)])
    return made


def later(world: ChangingWorld, worker: Worker) -> None:
    """Past retention, and a commit to carry the time."""
    world.clock.advance(world.store.retention_seconds + 60)
    writer = Server(world)
    writer.update(1, b="tick")
    writer.commit()
    world.clock.advance(world.store.retention_seconds + 60)
    worker.turn()
    world.clock.advance(2)
    worker.turn()


def keys(world: ChangingWorld, rowset: int) -> int:
    start = rowset_prefix(rowset)
    with world.store.read() as reader:
        return len(list(reader.scan(start, prefix_end(start))))


def build(world: ChangingWorld, worker: Worker) -> Table:
    assert world.execute(want.CreateIndex("t", (("a", False),), "i")) is not None
    assert worker.turn()
    return world.table()


def test_the_worker_runs_what_nobody_works_on(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    build(world, worker)
    assert [job.state for job in world.jobs.all()] == [JobState.SUCCEEDED]
    world.check_index("i")
    assert not worker.turn()


def test_collection_removes_the_tombstones_of_exactly_its_records(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    index = build(world, worker).indexes[0]
    writer = Server(world)
    writer.update(1, a=99)
    writer.delete(2)
    writer.commit()
    assert keys(world, index.rowset) == 6
    later(world, worker)
    assert keys(world, index.rowset) == 4
    world.check_index("i")
    assert keys(world, world.table().rowset) == 4


def test_a_dropped_index_is_removed_once_no_snapshot_sees_it(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    index = build(world, worker).indexes[0]
    world.execute(want.DropIndexes(("i",)))
    world.clock.advance(2)
    worker.turn()
    assert keys(world, index.rowset) == 5
    later(world, worker)
    assert keys(world, index.rowset) == 0
    with world.store.read() as reader:
        assert reader.get(rowset_key(index.rowset)) is None


def test_a_snapshot_that_lives_keeps_what_it_sees(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    index = build(world, worker).indexes[0]
    world.store.snapshot_max_age = 1e9
    token = world.store.register_snapshot(world.now())
    world.execute(want.DropIndexes(("i",)))
    later(world, worker)
    assert keys(world, index.rowset) == 5
    world.store.release_snapshot(token)
    later(world, worker)
    assert keys(world, index.rowset) == 0


def test_a_dropped_table_leaves_nothing(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    world.execute(want.CreateTable("d", (want.NewColumn("id", world.table().columns[0].type),), ("id",)))
    dropped = world.table("d")
    writer = Server(world, "d")
    writer.insert(1)
    writer.commit()
    world.execute(want.DropTables(("d",)))
    for _ in range(3):
        later(world, worker)
    assert keys(world, dropped.rowset) == 0
    with world.store.read() as reader:
        assert reader.get(table_key(dropped.id)) is None
        assert reader.get(table_key(world.table().id)) is not None
    world.rows(world.table())


def test_truncated_rows_stay_for_old_snapshots_and_go_later(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    before = world.table()
    world.execute(want.Truncate(("t",)))
    writer = Server(world)
    writer.insert(1, 1, "after")
    writer.commit()
    assert keys(world, before.rowset) == 5
    later(world, worker)
    later(world, worker)
    assert keys(world, before.rowset) == 0
    assert len(world.rows(world.table())) == 1


def test_rowsets_of_a_load_whose_process_died_are_removed(world: ChangingWorld) -> None:
    from instar.schemachange.loading import Loading

    worker = Worker(world.store, world.clock)
    world.execute(want.CreateTable("l", (want.NewColumn("id", world.table().columns[0].type),), ("id",)))
    loading = Loading(world.store, world.ids, world.clock, world.table("l"))
    row = rowset_prefix(loading.table.rowset) + b"\x10half a load"
    loading.put([putting(row, b"x" * 20)], 1)
    worker.turn()
    assert keys(world, loading.table.rowset) == 1
    for _ in range(3):
        later(world, worker)
    assert keys(world, loading.table.rowset) == 0


def putting(key: bytes, value: bytes) -> Callable[[Section], None]:
    def step(section: Section) -> None:
        section.put(key, value)

    return step


# --- as a process ----------------------------------------------------------------------------------------------------


def wait_for(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_process_adopts_the_job_of_a_dead_one_and_stops_when_told(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, synchronous="off", clock=SystemClock())
    world = ChangingWorld(store)
    world.clock = SystemClock()  # type: ignore[assignment]
    world.jobs = Jobs(store, world.clock)
    world.create_t([(number, number * 10, "x") for number in range(200)])
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    assert number is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    worker = subprocess.Popen([sys.executable, "-m", "instar.worker", str(path)], env=environment)
    try:
        wait_for(lambda: world.jobs.get(number).is_finished)
        assert world.jobs.get(number).state is JobState.SUCCEEDED
        world.check_index("i")
        assert store.worker_present()
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
        second = subprocess.run(
            [sys.executable, "-m", "instar.worker", str(path)], env=environment, timeout=20, check=False
        )
        assert second.returncode == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(10) == 0
        assert not store.worker_present()
    finally:
        worker.kill()
        worker.wait()
        store.close()


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    refused = subprocess.run(
        [sys.executable, "-m", "instar.worker", str(tmp_path / "nothing")],
        check=False,
        env=environment, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr[:5].isalnum()
