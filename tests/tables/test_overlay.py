"""Reads of a table, at every snapshot and with a buffer on top, against a dictionary (rules 4 and 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.catalog.descriptors import Table
from instar.encoding.keys import successor
from instar.tables import rowset
from instar.tables.index import IndexReader
from instar.tables.rowset import TableReader
from instar.tables.view import END, View
from instar.transactions.buffer import Buffer
from support.world import World

Row = tuple[Any, ...]
Model = dict[int, Row]

TEXTS = st.sampled_from(["", "x", "y" * 30, "z" * 150 + "1", "z" * 150 + "2", "z" * 113])
OPERATION = st.tuples(
    st.sampled_from(["put", "put", "delete", "move"]),
    st.integers(0, 6),
    st.one_of(st.none(), st.integers(-2, 2)),
    st.one_of(st.none(), TEXTS),
)
TRANSACTIONS = st.lists(st.lists(OPERATION, min_size=1, max_size=5), min_size=1, max_size=6)


def apply(world: World, table: Table, buffer: Buffer, snapshot: int, model: Model, operation: tuple) -> None:
    """One operation of a statement on `buffer` and on the model."""
    kind, number, a, b = operation
    reader = TableReader(table, range(len(table.columns)), world.layouts)
    key = reader.encode_key((number,))
    version = reader.get_version(world.view(snapshot, buffer), key)
    assert (version.values if version else None) == model.get(number)
    if kind == "delete" or (kind == "move" and version is not None):
        if version is None:
            return
        buffer.delete(table.id, table.version, key, version.base, version.values, pair=1)
        del model[number]
        if kind == "delete":
            return
        number += 10
        key = reader.encode_key((number,))
        version = reader.get_version(world.view(snapshot, buffer), key)
    image = (number, a, b)
    if version is None:
        buffer.insert(table.id, table.version, key, image)
    else:
        buffer.update(table.id, table.version, key, version.base, version.values, image, frozenset({2, 3}))
    model[number] = image


def sort_key(row: Row) -> tuple:
    """NULLS LAST, then the primary key: the order of the indexes (a) and (b)."""
    return (row[0] is None, row[0] if row[0] is not None else 0, row[1])


def check(table: Table, world: World, view: View, model: Model) -> None:
    reader = TableReader(table, [0, 1, 2], world.layouts)
    ordered = [model[number] for number in sorted(model)]
    assert list(reader.scan(view, b"", END)) == ordered
    assert list(reader.scan(view, b"", END, reverse=True)) == ordered[::-1]
    low, high = reader.encode_key((2,)), reader.encode_key((5,))
    assert list(reader.scan(view, low, high)) == [row for row in ordered if 2 <= row[0] < 5]
    batches = list(reader.arrow(view))
    arrow = pa.Table.from_batches(batches, schema=reader.schema).to_pylist() if batches else []
    assert sorted(tuple(row.values()) for row in arrow) == sorted(ordered)
    for index in table.indexes:
        through = IndexReader(table, index, [0, 1, 2], world.layouts)
        ordinal = through.codec.ordinals[0]
        wanted = sorted(model.values(), key=lambda row: sort_key((row[ordinal], row[0])))
        assert list(through.scan(view, b"", END)) == wanted
        assert list(through.scan(view, b"", END, reverse=True)) == wanted[::-1]
        for row in wanted:
            part = through.codec.whole(row)
            same = [other for other in wanted if other[ordinal] == row[ordinal]]
            assert list(through.scan(view, part, successor(part))) == same


@pytest.fixture(scope="module", autouse=True)
def _short_blocks() -> Iterator[None]:
    """Arrow batches of a few rows each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rowset, "BLOCK_BYTES", 150)
        yield


@given(TRANSACTIONS, st.lists(OPERATION, max_size=4))
@settings(max_examples=60)
def test_every_snapshot_and_buffer_reads_as_the_model(transactions: list, last: list) -> None:
    world = World()
    table = world.create_table(indexes=[("t_a", (2,), False), ("t_b", (3,), False)])
    model: Model = {}
    history = [(world.now(), dict(model))]
    for operations in transactions:
        buffer = Buffer()
        for operation in operations:
            apply(world, table, buffer, history[-1][0], model, operation)
        world.commit(buffer)
        history.append((world.now(), dict(model)))
    for snapshot, state in history:
        check(table, world, world.view(snapshot), state)
    buffer = Buffer()
    for operation in last:
        apply(world, table, buffer, world.now(), model, operation)
    check(table, world, world.view(buffer=buffer), model)
    mark = buffer.mark()
    snapshot = world.now()
    kept = dict(model)
    for operation in last:
        apply(world, table, buffer, snapshot, model, operation)
    buffer.rollback(mark)
    check(table, world, world.view(buffer=buffer), kept)
