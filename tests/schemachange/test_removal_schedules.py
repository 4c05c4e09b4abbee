"""DROP INDEX in one step (collapsed), against servers that lag behind, the collector, and snapshots from before."""

from __future__ import annotations

import random

import pytest

from instar import errors
from instar.catalog.descriptors import Index, Table
from instar.schemachange import rules
from instar.schemachange import wanted as want
from instar.tables.garbage import DeadEntries
from instar.tables.index import IndexReader
from instar.tables.rowset import TableReader
from instar.tables.view import END
from instar.worker.work import Worker
from schemachange.test_schedules import chaos
from support.changes import ChangingWorld


def same_by_index(world: ChangingWorld, table: Table, index: Index, snapshot: int) -> bool:
    """Whether the index gives the rows of the table as of the snapshot; True where the snapshot is gone."""
    view = world.view(snapshot)
    every = range(len(table.columns))
    try:
        by_key = sorted(TableReader(table, every, world.layouts).scan(view, b"", END), key=repr)
        by_index = sorted(IndexReader(table, index, every, world.layouts).scan(view, b"", END), key=repr)
    except errors.Error as gone:
        if gone.sqlstate != "72000":
            raise
        return True
    return by_key == by_index


def run(seed: int) -> bool:
    """Whether every snapshot of the index's public time reads right through it, until it is gone, in this schedule."""
    draw = random.Random(seed)
    world = ChangingWorld()
    world.create_t([(number, number, "x") for number in range(4)])
    job = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    assert job is not None
    world.executor().run(job)
    table = world.table()
    (index,) = table.indexes
    hook = chaos(world, seed)
    dead_entries = DeadEntries(world.catalog, lambda table: None, world.layouts)
    snapshots: list[int] = []
    dropped_at = draw.randrange(2, 6)
    for turn in range(10):
        hook("a turn")
        if turn == dropped_at:
            snapshots.append(world.now())
            world.execute(want.DropIndexes(("i",)))
        if turn < dropped_at:
            snapshots.append(world.now())
        if draw.random() < 0.3:
            world.store.collect(draw.choice(snapshots), dead_entries)
        if not all(same_by_index(world, table, index, snapshot) for snapshot in snapshots):
            return False
    world.clock.advance(2)
    worker = Worker(world.store, world.clock)
    worker.deallocate()
    if not all(same_by_index(world, table, index, snapshot) for snapshot in snapshots):
        return False
    world.store.collect(world.now(), dead_entries)
    worker.deallocate()
    assert world.entries(index) == {}
    return True


def test_old_snapshots_read_right_through_an_index_that_is_dropped_in_one_step() -> None:
    assert all(run(seed) for seed in range(40))


def test_f_equal_to_c_is_what_makes_it_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a floor that stays behind, laggards go on writing entries into a rowset that is about to be removed."""
    kept = tuple(rule for rule in rules.FLOOR_RULES if rule.name != "collapsed")
    monkeypatch.setattr(rules, "FLOOR_RULES", kept)
    orphaned = 0
    for seed in range(60):
        world = ChangingWorld()
        world.create_t([(number, number, "x") for number in range(4)])
        job = world.execute(want.CreateIndex("t", (("a", False),), "i"))
        assert job is not None
        world.executor().run(job)
        (index,) = world.table().indexes
        hook = chaos(world, seed)
        hook("before")
        world.execute(want.DropIndexes(("i",)))
        before = world.entries(index)
        hook("after")
        orphaned += world.entries(index) != before
    assert orphaned
