"""Which columns an update leaves alone, by the stored rows in whichever layouts."""

from __future__ import annotations

import msgspec
import pytest

from instar.catalog.descriptors import Column, Layout
from instar.schemachange.online.changes import SourceRows
from instar.schemachange.online.plain_updates import Layouts, RulesAlone, key_types, layouts_of, tags_of
from instar.store.engine import LogRecord
from instar.tables.layout import body_encoder, row_start
from instar.transformations.records import Source
from instar.types import BIGINT, INTEGER, TEXT, Type
from support.changes import ChangingWorld

COLUMNS: tuple[tuple[str, Type], ...] = (("id", BIGINT), ("v", TEXT), ("n", INTEGER))
FIRST = Layout(1, ((1, BIGINT), (2, TEXT), (3, INTEGER)))
TURNED = Layout(2, ((3, INTEGER), (1, BIGINT), (2, TEXT)))
WITHOUT = Layout(3, ((1, BIGINT), (2, TEXT)))
CONVERTED = Layout(4, ((1, BIGINT), (2, TEXT), (3, TEXT)))


def stored(layout: Layout, *values: object) -> bytes:
    return row_start(layout, 5) + body_encoder(layout)(values)


@pytest.mark.parametrize(
    ("before", "after", "alike", "filled"),
    [
        ((FIRST, 1, "v", 7), (FIRST, 1, "v", 7), {1, 2, 3}, {1, 2, 3}),
        ((FIRST, 1, "v", 7), (FIRST, 1, "w", None), {1}, {1, 2}),
        ((FIRST, 1, "v", 7), (TURNED, 8, 1, "v"), {1, 2}, {1, 2, 3}),
        ((FIRST, 1, "v", 7), (TURNED, None, 1, "w"), {1}, {1, 2}),
        ((WITHOUT, 1, "v"), (FIRST, 1, "v", 7), {1, 2, 3}, {1, 2, 3}),  # the value that older rows have
        ((WITHOUT, 1, "v"), (WITHOUT, 1, "w"), {1, 3}, {1, 2, 3}),
        ((CONVERTED, 1, "v", "7"), (FIRST, 1, "v", 7), {1, 2}, {1, 2}),  # a value would have to be converted
        ((CONVERTED, 1, "v", "7"), (CONVERTED, 1, "v", "7"), {1, 2, 3}, {1, 2, 3}),
    ],
)
def test_columns_that_stay(
    before: tuple[Layout, ...], after: tuple[Layout, ...], alike: set[int], filled: set[int]
) -> None:
    table = ChangingWorld().create_table("t", COLUMNS)
    columns = (*table.columns[:2], Column(id=3, name="n", type=INTEGER, missing="7"))
    table = msgspec.structs.replace(table, columns=columns)
    layouts = Layouts(table, before[0], after[0])
    rows = stored(*before), stored(*after)
    for column in (1, 2, 3):
        assert layouts.alike({column})(*rows) is (column in alike)
        assert layouts.alike(set(), {column})(*rows) is (column in filled)
    assert layouts.alike(alike, filled)(*rows)
    assert layouts.alike(set())(*rows)


def test_layouts_are_told_by_the_rows() -> None:
    world = ChangingWorld()
    table = world.create_table("t", COLUMNS)
    newer = world.alter(table, layout=TURNED)
    rows = stored(table.layout, 1, "v", 7), stored(TURNED, 8, 1, "v")
    with world.store.read() as reader:
        found = layouts_of(SourceRows(Source.T, newer), *rows, reader)
    assert (found.before.columns, found.after) == (table.layout.columns, TURNED)
    pairs = [(one, other) for one in rows for other in rows]
    assert len({tags_of(*pair) for pair in pairs}) == 4
    assert tags_of(rows[0], rows[1]) == tags_of(stored(table.layout, 2, "w", 9), stored(TURNED, 1, 2, "w"))
    assert key_types(newer) == [(1, BIGINT)]


def test_rules_alone_take_a_commit_as_it_is() -> None:
    batch = RulesAlone()
    records = [LogRecord(5, number, 7, 1, b"k", None, None, 0, False) for number in range(3)]
    batch.add(records)
    assert batch.is_closed
    applied: list[list[LogRecord]] = []
    batch.apply(applied.append)
    assert applied == [records]
