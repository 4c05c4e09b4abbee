"""Compaction: rows in older layouts are put into the newest, and nobody notices but the reader who has less to do."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from instar.catalog.descriptors import Layout, Table
from instar.schemachange import wanted as want
from instar.schemachange.compact import Compaction, is_lossless
from instar.schemachange.jobs import Checkpoint
from instar.schemachange.reorganize import InProcess
from instar.store.engine import ROW_HEADER, prefix_end, rowset_prefix
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
    made.store.background([lambda section: section.put(*CLAIM)])
    return made


def add(world: ChangingWorld, name: str) -> None:
    frozen = want.Default(lambda _: want.Frozen("7", ()), False, "7")
    assert world.execute(want.AddColumn("t", want.NewColumn(name, INTEGER, default=frozen))) is None


def compaction(world: ChangingWorld, settled: Callable[[Layout], bool] | None = None) -> Compaction:
    table = world.table()
    allowed = settled or (lambda layout: is_lossless(layout, table.layout))
    job = next(JOBS)
    return Compaction(world.store, table, allowed, job=job, stage=1, claim=CLAIM, rows=10)


def compact_all(world: ChangingWorld, settled: Callable[[Layout], bool] | None = None) -> int:
    task = compaction(world, settled)
    InProcess().run(task, lambda: None)
    return task.left


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
    assert compact_all(world, lambda layout: True) == 0  # once nobody can read the column any more
    assert set(layouts(world)) == {world.table().layout.id}
    assert read(world, world.table(), world.now())[1] == (1, 10, 7)


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
