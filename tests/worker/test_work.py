"""The background process: jobs, garbage, dead rowsets; as turns under a manual clock, and as a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from instar import errors
from instar.catalog.descriptors import Table
from instar.clock import SystemClock
from instar.schemachange import wanted as want
from instar.schemachange.job_records import Job, JobState, job_key
from instar.schemachange.jobs import Jobs
from instar.schemachange.launching import WorkerLauncher
from instar.schemachange.loading import Loading
from instar.schemachange.online import keeping
from instar.store.engine import Section, prefix_end, rowset_prefix
from instar.store.gate import deletion
from instar.store.records import RowsetState, rowset_key, rowset_record, table_key
from instar.worker.work import Worker
from support.changes import ChangingWorld, Server
from support.databases import Engine, run


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


def half_a_load(world: ChangingWorld) -> Loading:
    world.execute(want.CreateTable("l", (want.NewColumn("id", world.table().columns[0].type),), ("id",)))
    loading = Loading(world.store, world.ids, world.clock, world.table("l"))
    row = rowset_prefix(loading.table.rowset) + b"\x10half a load"
    loading.put([putting(row, b"x" * 20)], 1)
    return loading


def test_rowsets_of_a_load_whose_record_cannot_be_read_stay(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be under way: nothing but that there is no such job says that it is over."""
    worker = Worker(world.store, world.clock)
    loading = half_a_load(world)
    number = world.jobs.all()[-1].id

    def refused(jobs: Jobs, job: int) -> Job:
        raise errors.error(errors.TOO_MANY_CONNECTIONS, "too many reads of the store are open")

    with monkeypatch.context() as patch:
        patch.setattr(Jobs, "get", refused)
        with pytest.raises(errors.Error, match="too many reads"):
            worker.deallocate()
    world.store.background([putting(job_key(number), b"damaged")])
    later(world, worker)
    assert keys(world, loading.table.rowset) == 1
    with world.store.read() as reader:
        assert reader.get(rowset_key(loading.table.rowset)) == rowset_record(number, RowsetState.BUILDING, 0)
    world.store.background([deletion([job_key(number)])])
    for _ in range(2):
        later(world, worker)
    assert keys(world, loading.table.rowset) == 0


def test_rowsets_of_a_load_whose_process_died_are_removed(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    loading = half_a_load(world)
    worker.turn()
    assert keys(world, loading.table.rowset) == 1
    for _ in range(3):
        later(world, worker)
    assert keys(world, loading.table.rowset) == 0


def putting(key: bytes, value: bytes) -> Callable[[Section], None]:
    def step(section: Section) -> None:
        section.put(key, value)

    return step


def test_in_the_middle_of_a_large_commit_it_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or another worker would be started in its place."""
    monkeypatch.setattr(keeping, "_BEAT_LOOK_UPS", 4)
    monkeypatch.setattr(WorkerLauncher, "ensure", lambda launcher: True)
    engine = Engine(str(tmp_path / "db"))
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, g int)",
        "CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS SELECT g, count(*) FROM t GROUP BY g",
    )
    worker = Worker(engine.database.store, SystemClock())
    while worker.turn():
        pass
    said: list[int] = []
    monkeypatch.setattr(engine.database.store, "worker_goes_on", lambda: said.append(len(said)))
    assert not worker.turn()
    assert len(said) == 1
    run(connection, "INSERT INTO t SELECT i, i % 7 FROM generate_series(1, 200) i")
    assert worker.turn()
    assert len(said) > 20
    engine.close()
