from __future__ import annotations

from collections.abc import Callable

import pytest

from instar import types
from instar.schemachange import wanted as want
from instar.schemachange.job_records import Checkpoint, JobState
from instar.schemachange.reorganize import Backfill, InProcess
from instar.schemachange.tasks import Task
from instar.schemachange.wanted import Default, Frozen, NewColumn
from instar.store.engine import ENTRY_VALUE, Section
from schemachange.online.tables import ENGINES, stored_in
from support.changes import ChangingWorld, Server


def backfill_of(world: ChangingWorld, *columns: tuple[str, bool], unique: bool = False) -> tuple[int, Backfill]:
    job = world.execute(want.CreateIndex("t", columns, "i", unique))
    assert job is not None
    made: list[Backfill] = []

    class Capture:
        def run(self, task, pulse):
            made.append(task)

    # The build "ends" without any work: what follows puts the entries itself.
    assert world.executor(reorganizer=lambda task: Capture()).run(job) is not None
    backfill = made[0]
    backfill.claim = None  # type: ignore[assignment]  # finished jobs have none
    return job, backfill


def entries(world: ChangingWorld, backfill: Backfill):
    with world.store.read() as reader:
        keys, stored = backfill.read_rows(reader, backfill.start, backfill.stop, 1000)
    return backfill.entries(keys, stored)


def test_entries_in_bulk_are_those_of_one_row_at_a_time() -> None:
    world = ChangingWorld()
    world.create_t([(1, 5, "x"), (2, None, "y"), (3, 7, None), (4, -1, "long " * 60), (5, 5, "")])
    for change in (
        want.AddColumn("t", NewColumn("c", types.REAL, default=Default(lambda t: Frozen("", ()), False, "0.1"))),
        want.SetType("t", "a", types.BIGINT),
    ):
        world.execute(change)
        writer = Server(world)
        writer.update(1, b="written under the newer layout")
        writer.commit()
    writer = Server(world)
    writer.delete(5)
    writer.commit()
    _, backfill = backfill_of(world, ("a", True), ("b", False), ("c", False), unique=True)
    made = entries(world, backfill)
    assert len(made) == 4
    with world.store.read() as reader:
        for entry in made:
            one = backfill._derivation(entry).one(reader, entry.row, reader.get(entry.row))  # type: ignore[arg-type] # a reader reads as a section does
            assert entry == one
    assert [entry.unique for entry in made] == [True, False, False, True]
    world.store.background(backfill.steps(made, -1))
    world.check_index("i")


def test_indexes_of_one_table_are_built_side_by_side() -> None:
    """F1 §4.4 reads each row once; the entries of both go into one pass, sorted, under one series of checkpoints."""
    world = ChangingWorld()
    world.create_t([(number, number % 7, f"v{number % 5}") for number in range(100)])
    passes: list[tuple[str, ...]] = []

    class Watched(InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            assert isinstance(task, Backfill)
            passes.append(tuple(index.name for index in task.indexes))
            super().run(task, pulse)

    wanted = (want.CreateIndex("t", (("a", False),), "i"), want.CreateIndex("t", (("b", True),), "j"))
    job = world.execute(*wanted)
    assert job is not None
    done = world.executor(reorganizer=lambda task: Watched()).run(job)
    assert done is not None
    assert (done.state, done.rows_total) == (JobState.SUCCEEDED, 200)
    assert passes == [("i", "j")]
    world.check_index("i")
    world.check_index("j")


def test_of_indexes_built_side_by_side_the_one_that_meets_duplicates_is_named() -> None:
    world = ChangingWorld()
    world.create_t([(1, 5, "x"), (2, 5, "y")])
    wanted = (want.CreateIndex("t", (("b", False),), "i"), want.CreateIndex("t", (("a", False),), "u", unique=True))
    job = world.execute(*wanted)
    assert job is not None
    done = world.executor().run(job)
    assert done is not None
    assert done.problem is not None
    assert done.problem.message == 'could not create unique index "u"'
    assert world.table().indexes == ()


def test_an_entry_that_stands_is_left_alone_and_a_tombstone_is_not() -> None:
    world = ChangingWorld()
    world.create_t([(1, 5, "x")])
    job = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    assert job is not None
    assert world.executor().run(job) is not None
    (key,) = world.entries(world.table().indexes[0])
    with world.store.read() as reader:
        before = reader.get(key)
        row = reader.get(next(iter(reader.scan(b"\x10" + world.table().rowset.to_bytes(4, "big"), b"\x11")))[0])
    backfill = Backfill(world.store, world.table(), world.table().indexes, job=job, stage=3, claim=(b"", b""), rows=1)
    made = entries(world, backfill)
    writer = Server(world)
    writer.update(1, b="another column")
    writer.commit()
    world.store.background(backfill.steps(made, -1))
    with world.store.read() as reader:
        assert reader.get(key) == before

    def delete(section: Section) -> None:
        section.put(key, ENTRY_VALUE.pack(1, 0, made[0].offset))

    world.store.background([delete])
    world.store.background(backfill.steps(made, -1))
    timestamp = world.entries(world.table().indexes[0])[key]
    assert timestamp > int.from_bytes(row[:8], "little")  # type: ignore[index]  # the row's own, of its newest version


def test_checkpoints_never_go_back() -> None:
    world = ChangingWorld()
    world.create_t([(1, 5, "x")])
    job, backfill = backfill_of(world, ("a", False))
    for position, rows, done in ((b"b", 2, False), (b"a", 1, False), (b"z", 3, True), (b"c", 9, False)):
        world.store.background([backfill.checkpoint(4, Checkpoint(b"", b"z", position, rows, done))])
    assert world.jobs.checkpoints(job, backfill.stage) == {4: Checkpoint(b"", b"z", b"z", 3, True)}


def test_every_key_type_can_be_backfilled() -> None:
    kinds = [
        types.BOOLEAN, types.SMALLINT, types.INTEGER, types.BIGINT, types.REAL, types.DOUBLE, types.NUMERIC,
        types.Type(types.Kind.NUMERIC, precision=10, scale=2), types.TEXT,
        types.Type(types.Kind.VARCHAR, length=10), types.BYTEA, types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ,
        types.UUID,
    ]  # fmt: skip
    from decimal import Decimal

    rows = [
        (True, 1, 2, 3, 1.5, 2.5, Decimal("1.50"), Decimal("7.25"), "t", "v", b"b", 9, 10, 11, b"u" * 16),
        (False, -1, -2, -3, -1.5, -2.5, Decimal("-1"), Decimal("-7.25"), "", "", b"", -9, -10, -11, b"\0" * 16),
        (None,) * len(kinds),
    ]
    world = ChangingWorld()
    columns = (NewColumn("id", types.BIGINT), *(NewColumn(f"c{i}", kind) for i, kind in enumerate(kinds)))
    world.execute(want.CreateTable("t", columns, ("id",)))
    writer = Server(world)
    for number, row in enumerate(rows):
        writer.insert(number, *row)
    writer.commit()
    for i in range(len(kinds)):
        job = world.execute(want.CreateIndex("t", ((f"c{i}", i % 2 == 1),), f"i{i}"))
        assert job is not None
        assert world.executor().run(job).problem is None  # type: ignore[union-attr]
        world.check_index(f"i{i}")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_done_twice_is_left_as_it_stands(engine: str) -> None:
    """Without fsync LMDB writes through a map, where many entries are allowed for at once, or none."""
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        world.create_t([(number, number % 3, "x") for number in range(200)])
        _, backfill = backfill_of(world, ("a", False))
        made = entries(world, backfill)
        assert world.entries(world.table().indexes[0]) == {}
        for _ in range(2):
            world.store.background(backfill.steps(made, -1))
            world.check_index("i")
            assert len(world.entries(world.table().indexes[0])) == 200
