"""The image of a split on bytes: the very rows that are made of the values, and of which rows none are made."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.catalog.layouts import Layouts
from instar.schemachange.online.image_rows import Pair, SourceImage, SplitOperator
from instar.schemachange.online.plain_image import SplitCopies
from instar.schemachange.online.transformation import OnlineSplit, split_of
from instar.store.engine import Store, prefix_end, rowset_prefix
from instar.store.versions import iterate_rows
from instar.transformations.records import Row
from instar.types import BIGINT, DOUBLE, NUMERIC, Type
from schemachange.online.following import commit
from schemachange.online.plain import NUMBERS, VALUES
from schemachange.online.tables import CONSISTENT, COUNTER, ENGINES, split_world, stored_in
from schemachange.online.test_plain_split import altered, kept, without_index
from support.changes import ChangingWorld
from transformations.histories import T, row

Made = list[tuple[bytes, Pair]]


def made(split: OnlineSplit, store: Store, *, by_values: bool = False) -> Made:
    """The rows of the targets, with their groups."""
    operator = SplitOperator(Layouts(store), split.source.table, split.targets.r.table, split.targets.s.table)
    prefix = rowset_prefix(split.source.table.rowset)
    with store.read() as reader:
        now = reader.timestamp
    items = [
        item
        for keys, stored in iterate_rows(store, prefix, prefix_end(prefix), now, lambda: 100)
        for item in operator.items(0, keys, stored)
    ]
    with pytest.MonkeyPatch.context() as patch:
        if by_values:
            patch.setattr(SplitCopies, "r_body", lambda *_given: None)
            patch.setattr(SplitCopies, "say_the_same", lambda *_given: False)
        return list(operator.rows(iter(sorted(items)), 1))


def decoded(split: OnlineSplit, store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Made]:
    """How many rows are looked at by their values, and what is made."""
    found: list[bytes] = []
    part = SourceImage.part

    def counted(image: SourceImage, stored: bytes) -> object:
        found.append(stored)
        return part(image, stored)

    with monkeypatch.context() as patch:
        patch.setattr(SourceImage, "part", counted)
        rows = made(split, store)
    return len(found), rows


def of_s(split: OnlineSplit, rows: Made) -> dict[object, tuple[object, object]]:
    """Counter and flag of the records of S, by the split value."""
    table = split.targets.s.table
    places = [[column.id for column in table.columns].index(column) for column in (3, COUNTER, CONSISTENT)]
    read = SourceImage(Layouts(None), table).part  # type: ignore[arg-type]  # all are in the table's own layout
    found = (read(value).values for group, (_, value) in rows if group.startswith(split.targets.s.prefix))
    return {values[places[0]]: (values[places[1]], values[places[2]]) for values in found}


ROWS = st.lists(st.tuples(NUMBERS, VALUES, st.sampled_from("AB"), NUMBERS), max_size=12)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60)
@given(older=ROWS, newer=ROWS, indexed=st.booleans(), type_=st.sampled_from([None, BIGINT]))
def test_the_same_as_by_values(
    engine: str, older: list[Row], newer: list[Row], indexed: bool, type_: Type | None
) -> None:
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        split = split_world(world)
        split = split if indexed else without_index(without_index(split, 300), 301)
        for key, values in enumerate(older):
            commit(world, split, kept(row(T, key, *values)))
        split = split_of(altered(world, world.table(), type_), split.targets.r.table, split.targets.s.table)
        for key, values in enumerate(newer, len(older) // 2):
            more = () if type_ else ("m",)
            commit(
                world, split, {place: (*(found or ()), *more) for place, found in kept(row(T, key, *values)).items()}
            )
        assert made(split, store) == made(split, store, by_values=True)


def test_of_what_no_values_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those of each record of S."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = split_world(world)
        for key in range(9):
            commit(world, split, row(T, key, key, "xz"[key % 2], "A", 0))
        found, rows = decoded(split, store, monkeypatch)
        assert (found, len(rows)) == (2, 11)
        assert of_s(split, rows) == {"x": (5, True), "z": (4, True)}
        commit(world, split, row(T, 4, 4, "x", "B", 0))
        commit(world, split, row(T, 6, 4, "x", "B", 0))
        found, rows = decoded(split, store, monkeypatch)
        assert found == 2 + 2  # the first that differed, and what it differed from
        assert of_s(split, rows) == {"x": (5, False), "z": (4, True)}


@pytest.mark.parametrize("type_", [None, BIGINT])
def test_rows_in_two_layouts(type_: Type | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = split_world(world)
        commit(world, split, row(T, 1, 5, "x", "A", 0))
        commit(world, split, row(T, 2, 5, "x", "A", 0))
        split = split_of(altered(world, world.table(), type_), split.targets.r.table, split.targets.s.table)
        commit(world, split, row(T, 3, 5, "x", "A", 0, *(() if type_ else ("m",))))
        found, rows = decoded(split, store, monkeypatch)
        assert found == 1
        assert of_s(split, rows) == {"x": (3, True)}
        assert rows == made(split, store, by_values=True)


@pytest.mark.parametrize(
    ("type_", "values", "agree"),
    [
        (NUMERIC, (Decimal("1.0"), Decimal("1.00")), True),
        (NUMERIC, (Decimal("1.0"), Decimal("1.01")), False),
        (DOUBLE, (0.0, -0.0), True),
        (DOUBLE, (float("nan"), float("nan")), True),
        (DOUBLE, (float("nan"), 0.0), False),
        (NUMERIC, (None, Decimal(0)), False),
        (NUMERIC, (None, None), True),
    ],
)
def test_values_that_are_equal_and_not_the_same(type_: Type, values: Row, agree: bool) -> None:
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = split_world(world)
        columns = tuple(
            msgspec.structs.replace(column, type=type_) if column.name == "n" else column
            for column in split.targets.s.table.columns
        )
        layout = split.targets.s.table.layout
        stored = tuple((column, type_ if column == 5 else old) for column, old in layout.columns)
        s = msgspec.structs.replace(
            split.targets.s.table, columns=columns, layout=msgspec.structs.replace(layout, columns=stored)
        )
        split = split_of(altered(world, world.table(), type_), split.targets.r.table, s)
        for key, value in enumerate(values):
            commit(world, split, row(T, key, 5, "x", "A", value))
        rows = made(split, store)
        assert rows == made(split, store, by_values=True)
        assert of_s(split, rows) == {"x": (2, agree)}
