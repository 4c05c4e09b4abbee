"""Reads of the newest state, with and without a guard: what comes between two short reads, and who is waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from instar.catalog.descriptors import Table
from instar.store.engine import rowset_prefix
from instar.store.lock_modes import Mode
from instar.store.lock_table import Locked
from instar.tables.guard import ReadGuard
from instar.tables.index import IndexReader
from instar.tables.rowset import FIRST_BATCH, TableReader
from instar.tables.view import END, NEWEST, View
from instar.transactions.buffer import Buffer
from support.world import World

COUNT = 3 * FIRST_BATCH


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def table(world: World) -> Table:
    """Rows (n, n, 'x') for n below COUNT; an index on a."""
    made = world.create_table(indexes=[("i", (2,), False)])
    put(world, made, {number: number for number in range(COUNT)})
    return made


def put(world: World, table: Table, values: dict[int, int]) -> None:
    """Commit rows, new or not."""
    buffer = Buffer()
    reader = TableReader(table, (0, 1, 2), world.layouts)
    for number, value in values.items():
        key = reader.encode_key((number,))
        version = reader.get_version(world.view(), key)
        if version is None:
            buffer.insert(table.id, table.version, key, (number, value, "x"))
        else:
            image = (number, value, "x")
            buffer.update(table.id, table.version, key, version.base, version.values, image, frozenset({2}))
    world.commit(buffer)


def key_of(world: World, table: Table, number: int) -> bytes:
    return rowset_prefix(table.rowset) + TableReader(table, (0,), world.layouts).encode_key((number,))


class Others:
    """An owner that holds rows; whoever waits for him has him commit another value of each, and end."""

    def __init__(self, world: World, table: Table) -> None:
        self._world, self._table = world, table
        self._owner = world.store.locks.new_owner()
        self._rows: list[int] = []
        self.waited: list[bytes] = []

    def hold(self, *numbers: int, mode: Mode = Mode.NO_KEY_UPDATE) -> None:
        self._rows += numbers
        self._world.store.lock(self._owner, [(key_of(self._world, self._table, number), mode) for number in numbers])

    def wait(self, met: Locked) -> None:
        assert met.mode is Mode.SHARE
        self.waited.append(met.resource)
        self._world.store.locks.end(self._owner)
        put(self._world, self._table, {number: 1000 + number for number in self._rows})

    def view(self) -> View:
        guard = ReadGuard(self._world.store.locks, lambda: b"", self.wait)
        return View(self._world.store, NEWEST, None, self._world.layouts, None, guard)


def newest(world: World) -> View:
    return View(world.store, NEWEST, None, world.layouts)


def test_without_a_snapshot_each_batch_is_of_its_own_moment(world: World, table: Table) -> None:
    """What READ UNCOMMITTED permits: of one commit the second half, and not the first."""
    reader = TableReader(table, (0, 1), world.layouts)
    snapshot = world.view()
    for view, seen in ((newest(world), [0, 1000 + COUNT - 1]), (snapshot, [0, COUNT - 1])):
        found = reader.scan(view, b"", END)
        first = next(found)
        put(world, table, {0: 1000, COUNT - 1: 1000 + COUNT - 1})
        assert [first[1], list(found)[-1][1]] == seen
        put(world, table, {0: 0, COUNT - 1: COUNT - 1})


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("held", [0, FIRST_BATCH - 1, FIRST_BATCH, 2 * FIRST_BATCH + 1, COUNT - 1])
def test_a_scan_waits_where_it_comes_to_a_row_that_is_about_to_change(
    world: World, table: Table, held: int, reverse: bool
) -> None:
    others = Others(world, table)
    others.hold(held)
    reader = TableReader(table, (0, 1), world.layouts)
    found = list(reader.scan(others.view(), b"", END, reverse=reverse))
    assert others.waited == [key_of(world, table, held)]
    expected = [(number, number + 1000 if number == held else number) for number in range(COUNT)]
    assert found == (expected[::-1] if reverse else expected)


@pytest.mark.parametrize("mode", list(Mode)[:4])
def test_it_waits_for_writers_only(world: World, table: Table, mode: Mode) -> None:
    others = Others(world, table)
    others.hold(3, mode=mode)
    reader = TableReader(table, (0, 1), world.layouts)
    key = key_of(world, table, 3)[len(reader.prefix) :]
    changed = mode in (Mode.NO_KEY_UPDATE, Mode.UPDATE)
    assert reader.get(others.view(), key) == (3, 1003 if changed else 3)
    assert bool(others.waited) == changed


def test_what_a_scan_does_not_come_to_is_not_waited_for(world: World, table: Table) -> None:
    others = Others(world, table)
    others.hold(5, COUNT - 1)
    reader = TableReader(table, (0,), world.layouts)
    prefix = len(reader.prefix)
    low, high = (key_of(world, table, number)[prefix:] for number in (6, COUNT - 1))
    assert len(list(reader.scan(others.view(), low, high))) == COUNT - 7
    found: Iterator[tuple[object, ...]] = reader.scan(others.view(), low, END)
    assert next(found) == (6,)
    assert others.waited == []


def test_keys_and_blocks_and_indexes_wait_too(world: World, table: Table) -> None:
    numbers = [2, 4, COUNT - 1]
    reader = TableReader(table, (0, 1), world.layouts)
    index = IndexReader(table, table.indexes[0], (0, 1), world.layouts)
    wanted = [key_of(world, table, number)[len(reader.prefix) :] for number in numbers]

    others = Others(world, table)
    others.hold(4)
    assert [version.values for version in reader.get_many(others.view(), wanted)] == [
        (2, 2), (4, 1004), (COUNT - 1, COUNT - 1)
    ]  # fmt: skip
    put(world, table, {4: 4})

    others = Others(world, table)
    others.hold(4)
    batches = list(reader.arrow(others.view()))
    assert pa.Table.from_batches(batches).column(1).to_pylist()[4] == 1004
    put(world, table, {4: 4})

    others = Others(world, table)
    others.hold(4)
    # The entry by which it comes is gone when it has waited; where the row is now, it does come by later.
    found = {row[0] for row in index.scan(others.view(), b"", END)}
    assert set(range(COUNT)) - found <= {4}
    assert others.waited == [key_of(world, table, 4)]
