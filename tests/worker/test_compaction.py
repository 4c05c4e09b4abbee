"""Compaction by policy: when it begins, what it leaves, and what is forgotten after it."""

from __future__ import annotations

import msgspec
import pytest

from instar.catalog.descriptors import Table
from instar.catalog.layouts import layout_key
from instar.schemachange import wanted as want
from instar.schemachange.compact import Compaction
from instar.schemachange.job_records import Checkpoint, JobState
from instar.store.engine import ROW_HEADER, prefix_end, rowset_prefix
from instar.tables.rowset import TableReader
from instar.types import INTEGER
from instar.worker import compaction
from instar.worker.work import Worker
from support.changes import ChangingWorld, Server


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t([(number, number * 10, "x") for number in range(1, 6)])
    return made


def add(world: ChangingWorld, name: str) -> None:
    frozen = want.Default(lambda _: want.Frozen("7", ()), False, "7")
    assert world.execute(want.AddColumn("t", want.NewColumn(name, INTEGER, default=frozen))) is None


def pass_retention(world: ChangingWorld, worker: Worker) -> None:
    """The watermark comes to be past what there is now; two turns at that."""
    for _ in range(2):
        world.clock.advance(world.store.retention_seconds + 60)
        writer = Server(world)
        writer.update(1, b="tick")
        writer.commit()
        worker.turn()
    world.clock.advance(compaction.LOOK_SECONDS + 1)
    worker.turn()


def layouts(world: ChangingWorld) -> set[int]:
    start = rowset_prefix(world.table().rowset)
    with world.store.read() as reader:
        return {ROW_HEADER.unpack_from(value)[2] >> 8 for _, value in reader.scan(start, prefix_end(start))}


def records(world: ChangingWorld, table: Table) -> list[int]:
    """The layouts that are on record."""
    first = layout_key(table.id, 0)
    with world.store.read() as reader:
        return [int.from_bytes(key[-4:], "big") for key, _ in reader.scan(first, layout_key(table.id, 1 << 31))]


def states(world: ChangingWorld) -> list[tuple[str, JobState]]:
    return [(job.kind, job.state) for job in world.jobs.all()]


def test_a_table_at_rest_is_compacted_and_its_older_layouts_are_forgotten(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    add(world, "c")
    world.execute(want.DropColumn("t", "b"))
    rows = world.rows(world.table())
    old = world.table()
    worker.turn()
    world.clock.advance(compaction.LOOK_SECONDS + 1)
    worker.turn()
    assert states(world) == []
    assert layouts(world) == {1}
    world.clock.advance(world.store.retention_seconds + 60)
    writer = Server(world)
    writer.update(2, c=8)
    writer.commit()
    for _ in range(3):
        world.clock.advance(compaction.LOOK_SECONDS + 1)
        worker.turn()
    assert states(world) == [("compact", JobState.SUCCEEDED)]
    assert world.jobs.all()[0].priority < 0
    table = world.table()
    assert layouts(world) == {table.layout.id} == {table.oldest_layout}
    found = world.rows(table)
    assert {key: row for key, row in found.items() if row[1][0] != 2} == {
        key: row for key, row in rows.items() if row[1][0] != 2
    }
    assert records(world, old) == [1, 2, 3]
    for _ in range(3):
        world.clock.advance(world.store.retention_seconds + 60)
        writer = Server(world)
        writer.update(2, c=9)
        writer.commit()
        world.clock.advance(compaction.LOOK_SECONDS + 1)
        worker.turn()
    assert records(world, table) == [3]
    assert states(world) == [("compact", JobState.SUCCEEDED)]
    # The table lives on, through changes and all.
    add(world, "d")
    writer = Server(world)
    writer.update(3, d=5)
    writer.commit()
    reader = TableReader(world.table(), range(4), world.layouts)
    version = reader.get_version(world.view(), reader.encode_key((3,)))
    assert version is not None
    assert version.values == (3, 30, 7, 5)


def test_many_layouts_are_not_waited_for(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MANY_LAYOUTS", 3)
    monkeypatch.setattr(compaction, "DEAR_LAYOUTS", 4)
    worker = Worker(world.store, world.clock)
    for name in ("c", "d", "e"):
        add(world, name)
    worker.turn()
    assert states(world) == []
    add(world, "f")
    world.clock.advance(compaction.LOOK_SECONDS + 1)
    worker.turn()
    worker.turn()
    assert states(world) == [("compact", JobState.SUCCEEDED)]
    assert layouts(world) == {world.table().layout.id}
    # But for what an older snapshot would miss.
    for name in ("c", "d", "e", "f"):
        world.execute(want.DropColumn("t", name))
    for _ in range(3):
        world.clock.advance(compaction.LOOK_SECONDS + 1)
        worker.turn()
    assert len(states(world)) == 1


def test_a_table_that_changes_is_left_alone(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    add(world, "c")
    assert world.execute(want.CreateIndex("t", (("a", False),), "i")) is not None
    paused = world.jobs.all()[0].id
    world.jobs.pause(paused)
    for _ in range(3):
        world.clock.advance(world.store.retention_seconds + 60)
        writer = Server(world)
        writer.update(2, c=8)
        writer.commit()
        worker.turn()
    assert [job.kind for job in world.jobs.all()] == ["build index"]


def test_what_is_under_way_is_not_begun_again(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    add(world, "c")
    number = world.execute(want.CompactTable("t"))
    assert number is not None
    world.jobs.pause(number)
    pass_retention(world, worker)
    assert [job.id for job in world.jobs.all()] == [number]
    assert compaction.is_compaction(world.jobs.get(number))
    assert not compaction.is_compaction(msgspec.structs.replace(world.jobs.get(number), stages=()))


def test_what_fails_is_not_begun_again_and_an_empty_table_is_left_alone(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(world.store, world.clock)
    add(world, "c")
    world.execute(want.CreateTable("empty", (want.NewColumn("id", INTEGER),), ("id",)))
    world.execute(want.AddColumn("empty", want.NewColumn("x", INTEGER)))

    def broken(self: Compaction, at: Checkpoint) -> None:
        raise ValueError("a damaged row")

    with monkeypatch.context() as patched:
        patched.setattr(Compaction, "batches", broken)
        pass_retention(world, worker)
        for _ in range(3):
            world.clock.advance(compaction.LOOK_SECONDS + 1)
            worker.turn()
    assert states(world) == [("compact", JobState.FAILED)]
    # Another worker tries.
    Worker(world.store, world.clock).turn()
    Worker(world.store, world.clock).turn()
    assert [state for _, state in states(world)][:1] == [JobState.FAILED]
    assert world.table("empty").oldest_layout < world.table("empty").layout.id


def test_few_older_rows_are_left_alone_until_the_table_asks_for_less(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    add(world, "c")
    writer = Server(world)
    for number in range(6, 46):
        writer.insert(number, number, "x", 7)
    writer.update(1, b="new")
    writer.commit()
    for _ in range(3):
        pass_retention(world, worker)
    assert states(world) == []  # four of 45 rows
    assert layouts(world) == {1, 2}
    world.execute(want.SetCompaction("t", 0.05))
    for _ in range(2):
        pass_retention(world, worker)
    assert states(world) == [("compact", JobState.SUCCEEDED)]
    assert "8.9% of the rows in older layouts, in 1 of them" in [e.note for e in world.jobs.all()[0].history]


def test_rows_in_many_layouts_are_not_waited_for_but_empty_layouts_are(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "DEAR_LAYOUTS", 3)
    worker = Worker(world.store, world.clock)

    def next_layout(name: str, row: int) -> None:
        add(world, name)
        writer = Server(world)
        writer.update(row, b=name)
        writer.commit()
        world.clock.advance(compaction.LOOK_SECONDS + 1)
        worker.turn()
        worker.turn()

    for name in ("c", "d", "e"):
        next_layout(name, 1)  # of four layouts rows are in two
    assert states(world) == []
    next_layout("f", 2)
    assert states(world) == []
    next_layout("g", 3)
    assert states(world) == [("compact", JobState.SUCCEEDED)]
    assert layouts(world) == {world.table().layout.id}


def test_a_table_that_is_written_all_the_time_is_compacted_under_an_old_snapshot(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    held = world.store.register_snapshot(world.now())
    add(world, "c")
    for _ in range(70):
        world.clock.advance(10)
        writer = Server(world)
        writer.update(2, b="again")
        writer.commit()
        worker.turn()
    assert states(world) == [("compact", JobState.SUCCEEDED)]
    assert layouts(world) == {world.table().layout.id}
    world.store.release_snapshot(held)
