"""Compaction: rows in older layouts are put into the newest, and nobody notices but the reader who has less to do."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from instar.catalog.descriptors import Layout, Table
from instar.schemachange import wanted as want
from instar.schemachange.compact import Compaction, is_lossless
from instar.schemachange.draft import TableBusy
from instar.schemachange.job_records import Checkpoint, Job, JobState
from instar.schemachange.publishing import move_elements
from instar.schemachange.reorganize import InProcess
from instar.schemachange.stages import Edit, Superseded
from instar.schemachange.tasks import Task
from instar.store.engine import ROW_HEADER, Commit, prefix_end, rowset_prefix
from instar.tables.locks import LockTimestamps
from instar.tables.rowset import TableReader
from instar.types import BIGINT, INTEGER, TEXT, Kind, Type
from support.changes import ChangingWorld, Server

JOBS = itertools.count(1)  # each has checkpoints of its own
CLAIM = (b"\x08claim", b"the test's")


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t([(number, number * 10, "x") for number in range(1, 11)])
    made.store.commit(Commit(catalog_version=made.catalog().version, raw=[CLAIM]))
    return made


def add(world: ChangingWorld, name: str) -> None:
    frozen = want.Default(lambda _: want.Frozen("7", ()), False, "7")
    assert world.execute(want.AddColumn("t", want.NewColumn(name, INTEGER, default=frozen))) is None


def compaction(world: ChangingWorld) -> Compaction:
    job = next(JOBS)
    return Compaction(
        world.store, world.catalog_cache, world.table(), job=job, stage=1, claim=CLAIM, rows=10, whole=False
    )


def compact_all(world: ChangingWorld) -> int:
    """How many rows are left in older layouts."""
    InProcess().run(compaction(world), lambda: None)
    live = (value for value in stored(world).values() if not ROW_HEADER.unpack_from(value)[2] & 1)
    return sum(ROW_HEADER.unpack_from(value)[2] >> 8 != world.table().layout.id for value in live)


def cut_log(world: ChangingWorld) -> None:
    """No snapshot of before is read any more."""
    world.store.collect(world.now(), lambda record: [])


def stored(world: ChangingWorld, table: Table | None = None) -> dict[bytes, bytes]:
    start = rowset_prefix((table or world.table()).rowset)
    with world.store.read() as reader:
        return dict(reader.scan(start, prefix_end(start)))


def layouts(world: ChangingWorld) -> Counter[int]:
    return Counter(ROW_HEADER.unpack_from(value)[2] >> 8 for value in stored(world).values())


def whole(task: Compaction) -> Checkpoint:
    return Checkpoint(task.start, task.stop, task.start, 0)


def read(world: ChangingWorld, table: Table, snapshot: int) -> dict[object, tuple[object, ...]]:
    reader = TableReader(table, range(len(table.columns)), world.layouts)
    view = world.view(snapshot)
    found = [reader.get_version(view, reader.encode_key((number,))) for number in range(1, 20)]
    return {version.values[0]: version.values for version in found if version is not None}


def test_all_rows_come_into_the_newest_layout_and_nothing_else_changes(world: ChangingWorld) -> None:
    snapshots: list[tuple[Table, int, dict[object, tuple[object, ...]]]] = []
    for name in ("c", "d", "e"):
        add(world, name)
        writer = Server(world)
        writer.update(len(snapshots) + 1, b=name)
        writer.delete(10 - len(snapshots))
        writer.commit()
        snapshots.append((world.table(), world.now(), read(world, world.table(), world.now())))
    assert len(layouts(world)) == 4
    before, log = stored(world), world.store.log_bytes()
    assert compact_all(world) == 0
    after = stored(world)
    tombstones = {key for key, value in before.items() if ROW_HEADER.unpack_from(value)[2] & 1}
    assert {ROW_HEADER.unpack_from(value)[2] >> 8 for key, value in after.items() if key not in tombstones} == {
        world.table().layout.id
    }
    assert {key: value[:12] for key, value in before.items()} == {key: value[:12] for key, value in after.items()}
    assert world.store.log_bytes() == log
    for table, snapshot, rows in snapshots:
        assert read(world, table, snapshot) == rows
    again = stored(world)
    assert compact_all(world) == 0
    assert stored(world) == again


def test_a_transaction_under_way_notices_nothing(world: ChangingWorld) -> None:
    late = Server(world)
    late.update(1, a=11)
    late.delete(2)
    add(world, "c")
    later = Server(world)
    later.update(3, c=1)
    assert compact_all(world) == 0
    late.commit()
    later.commit()
    rows = read(world, world.table(), world.now())
    assert (rows[1], rows.get(2), rows[3]) == ((1, 11, "x", 7), None, (3, 30, "x", 1))


def test_who_writes_while_rows_are_rewritten_wins(world: ChangingWorld) -> None:
    add(world, "c")
    task = compaction(world)
    ((steps, _),) = task.batches(whole(task))
    made = list(steps)
    writer = Server(world)
    writer.update(1, a=-1)
    writer.delete(2)
    writer.commit()
    world.store.background(made, claim=CLAIM)
    rows = read(world, world.table(), world.now())
    assert (rows[1], rows.get(2), rows[3]) == ((1, -1, "x", 7), None, (3, 30, "x", 7))
    assert len(rows) == 9


def test_rows_that_would_lose_something_wait(world: ChangingWorld) -> None:
    add(world, "c")
    before = world.table(), world.now(), read(world, world.table(), world.now())
    world.execute(want.DropColumn("t", "b"))
    assert compact_all(world) == 10
    assert read(world, before[0], before[1]) == before[2]
    cut_log(world)
    assert compact_all(world) == 0
    assert set(layouts(world)) == {world.table().layout.id}
    assert read(world, world.table(), world.now())[1] == (1, 10, 7)


def test_a_newer_layout_ends_it(world: ChangingWorld) -> None:
    """What was rewritten for the layout of before may be put all the same: nothing in it is wrong."""
    add(world, "c")
    task = compaction(world)
    ((steps, _),) = task.batches(whole(task))
    made = list(steps)
    snapshot = world.table(), world.now(), read(world, world.table(), world.now())
    world.execute(want.DropColumn("t", "c"))
    world.store.background(made, claim=CLAIM)
    assert read(world, snapshot[0], snapshot[1]) == snapshot[2]
    with pytest.raises(Superseded, match="has changed meanwhile"):
        list(task.batches(whole(task)))


def compact(world: ChangingWorld) -> Job:
    number = world.execute(want.CompactTable("t"), statement="COMPACT TABLE t")
    assert number is not None
    done = world.executor().run(number)
    assert done is not None
    return done


def test_the_job_leaves_one_layout(world: ChangingWorld) -> None:
    assert world.execute(want.CompactTable("t")) is None  # there is one
    late = Server(world)
    late.update(1, a=11)
    add(world, "c")
    version = world.table().version
    done = compact(world)
    assert (done.kind, done.state) == ("compact", JobState.SUCCEEDED)
    table = world.table()
    assert (table.oldest_layout, table.version) == (table.layout.id, version + 1)
    assert set(layouts(world)) == {table.layout.id}
    late.commit()  # it has written before all of it
    assert set(layouts(world)) == {table.layout.id}
    assert read(world, table, world.now())[1] == (1, 11, "x", 7)


def test_nobody_writes_in_an_older_layout_behind_the_fence(world: ChangingWorld) -> None:
    """Rule 26: a server that holds the schema of before is turned back, and derives anew."""
    stale = Server(world)
    stale.insert(20, 1, "late")
    add(world, "c")
    assert compact(world).state is JobState.SUCCEEDED
    stale.commit()
    assert stale.refused == 1
    assert set(layouts(world)) == {world.table().layout.id}


def test_what_waits_is_said_and_the_table_keeps_its_layouts(world: ChangingWorld) -> None:
    world.execute(want.DropColumn("t", "b"))
    made = world.plan(want.CompactTable("t"))
    assert made.notices == ('rows of table "t" that older snapshots may read with what it has lost stay as they are',)
    before = world.table()
    assert compact(world).state is JobState.SUCCEEDED
    assert world.table() == before
    cut_log(world)
    assert compact(world).state is JobState.SUCCEEDED
    assert world.table().oldest_layout == world.table().layout.id


def test_cancelled_or_overtaken_it_leaves_what_is_put(world: ChangingWorld) -> None:
    add(world, "c")
    number = world.execute(want.CompactTable("t"))
    assert number is not None
    world.jobs.cancel(number)
    done = world.executor().run(number)
    assert done is not None
    assert done.state is JobState.CANCELLED

    number = world.execute(want.CompactTable("t"))
    assert number is not None

    class Changed:
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            add(world, "d")
            InProcess().run(task, pulse)

    done = world.executor(reorganizer=lambda task: Changed()).run(number)
    assert done is not None
    assert done.problem is not None
    assert (done.state, done.problem.message) == (JobState.FAILED, 'table "t" has changed meanwhile')
    assert world.table().oldest_layout == 1
    assert compact(world).state is JobState.SUCCEEDED


# A job on record is no reason for other changes to wait: so it is judged again when its work begins, and at its end.


def on_record(world: ChangingWorld) -> int:
    number = world.execute(want.CompactTable("t"), statement="COMPACT TABLE t")
    assert number is not None
    return number


def superseded(world: ChangingWorld, number: int) -> None:
    before = world.table()
    done = world.executor().run(number)
    assert done is not None
    assert done.problem is not None
    assert (done.state, done.problem.sqlstate) == (JobState.FAILED, "55000")
    assert "meanwhile" in done.problem.message
    assert world.table() == before


def test_a_column_whose_rows_are_to_be_given_values_comes_first(world: ChangingWorld) -> None:
    add(world, "c")
    number = on_record(world)
    serial = want.NewColumn("e", BIGINT, False, sequence=want.SequenceOptions())
    populating = world.execute(want.AddColumn("t", serial))
    assert populating is not None
    superseded(world, number)
    assert world.executor().run(populating) is not None
    assert sorted(row[-1] for row in read(world, world.table(), world.now()).values()) == list(range(1, 11))  # type: ignore[type-var]


def test_rows_that_have_to_be_left_after_all(world: ChangingWorld) -> None:
    """The table was at rest when the job was planned, and is not when it begins."""
    world.execute(want.DropColumn("t", "b"))
    cut_log(world)
    number = on_record(world)
    world.execute(want.RenameColumn("t", "a", "z"))
    superseded(world, number)
    assert set(layouts(world)) == {1}
    assert world.table().oldest_layout == 1


def test_another_primary_key_meanwhile(world: ChangingWorld) -> None:
    """Its copies are in the layouts that the rows had."""
    add(world, "c")
    number = on_record(world)
    rekeying = world.execute(want.AlterPrimaryKey("t", ("a",)))
    assert rekeying is not None
    walked = InProcess()

    class Halfway:
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            walked.run(task, pulse)

    done = world.executor(reorganizer=lambda task: Halfway()).run(number)
    assert done is not None
    assert done.state is JobState.FAILED
    assert world.table().oldest_layout == 1
    again = world.executor().run(rekeying)
    assert again is not None
    assert again.state is JobState.SUCCEEDED
    assert len(world.rows(world.table())) == 10
    # One that was on record before the swap walks nothing of the new rowset by the old one's checkpoints.
    assert world.table().oldest_layout == 1
    assert compact(world).state is JobState.SUCCEEDED


@pytest.mark.parametrize("swap", [want.AlterPrimaryKey("t", ("a",)), want.Truncate(("t",))], ids=["key", "truncate"])
def test_another_rowset_meanwhile(world: ChangingWorld, swap: want.Wanted) -> None:
    add(world, "c")
    number = on_record(world)
    job = world.execute(swap)
    if job is not None:
        assert world.executor().run(job) is not None
    superseded(world, number)


def test_the_oldest_layout_never_goes_back(world: ChangingWorld) -> None:
    add(world, "c")
    edit = Edit(world.table().id, (), (), (world.table().rowset, 1))
    newer = msgspec.structs.replace(world.table(), oldest_layout=2)
    assert move_elements(newer, [], [edit], "").oldest_layout == 2


def test_a_table_that_a_job_moves_waits_for_it(world: ChangingWorld) -> None:
    add(world, "c")
    assert world.execute(want.CreateIndex("t", (("a", False),), "i")) is not None
    with pytest.raises(TableBusy):
        world.execute(want.CompactTable("t"))


def test_lock_timestamps_stay(world: ChangingWorld) -> None:
    assert world.execute(want.AddLock("t", "l", ("b",))) is not None
    assert world.executor().run(1) is not None
    writer = Server(world)
    writer.update(1, b="newer")
    writer.commit()
    add(world, "c")
    table = world.table()
    read_locks = LockTimestamps(table, world.layouts)
    lock = table.locks[0].id
    before = {key: (read_locks.of(value, 0), read_locks.of(value, lock)) for key, value in stored(world).items()}
    assert len(set(before.values())) > 1
    assert compact_all(world) == 0
    after = {key: (read_locks.of(value, 0), read_locks.of(value, lock)) for key, value in stored(world).items()}
    assert after == before
    assert set(layouts(world)) == {table.layout.id}


def test_what_is_lossless() -> None:
    two = Layout(1, ((1, BIGINT), (2, INTEGER)))
    assert is_lossless(two, Layout(2, ((1, BIGINT), (2, BIGINT), (3, TEXT))))
    assert not is_lossless(two, Layout(2, ((1, BIGINT),)))
    assert not is_lossless(two, Layout(2, ((1, BIGINT), (2, Type(Kind.SMALLINT)))))
