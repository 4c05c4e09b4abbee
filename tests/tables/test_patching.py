"""Updates of rows of any layout without their values, against rows that are read and encoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.catalog.descriptors import Layout
from instar.catalog.layouts import Outline, outline_of
from instar.encoding.rows import RowFormat
from instar.tables.layout import body_encoder, layout_format
from instar.tables.patching import Patchers, never
from instar.tables.resolver import LAYOUT_OFFSET, Wanted, Wants
from instar.types import BIGINT, INTEGER, NUMERIC, TEXT, Kind, Type
from support.layouts import chains, drawn_row, model, numeric, stored, wanted_of
from support.values import values


def patchers(layouts: list[Layout], missing: dict[int, Any], positions: list[int]) -> Patchers:
    """Of an update in the last of the layouts."""
    by_id = {layout.id: layout for layout in layouts}

    def layout_of(row: bytes) -> Layout:
        return by_id[int.from_bytes(row[LAYOUT_OFFSET : LAYOUT_OFFSET + 4], "little") >> 8]

    outlines = {number: outline_of(layout) for number, layout in by_id.items()}
    return Patchers(layouts[-1], Wants(wanted_of(layouts[-1], missing)), layout_of, outlines, positions, 1, 100)


def alike(old: Type, new: Type) -> bool:
    return old == new or old.kind is not Kind.NUMERIC


def has_slot(form: RowFormat, position: int) -> bool:
    return form.slots[position].variable is None


@given(chains(), st.data())
@settings(max_examples=300)
def test_rows_of_any_layout(chain: tuple[list[Layout], dict[int, Any]], data: st.DataObject) -> None:
    """They come to the bytes that their values have in the newest layout; only conversions and NULLs that come and go
    are left to who knows values."""
    layouts, missing = chain
    newest = layouts[-1]
    positions = data.draw(st.lists(st.sampled_from(range(len(newest.columns))), min_size=1, unique=True))
    made = patchers(layouts, missing, positions)
    new = {place: data.draw(values(newest.columns[place][1], nan=False)) for place in positions}
    for written in layouts:
        row = drawn_row(data, written)
        value = stored(written, row)
        patch = made.learn(value)
        assert made.known[value[LAYOUT_OFFSET : LAYOUT_OFFSET + 4]] is patch
        assert patchers(layouts, missing, positions).at_hand(value) is (None if patch is never else patch)
        expected = [new.get(place, old) for place, old in enumerate(model(written, row, wanted_of(newest, missing)))]
        found = patch(value, [new[place] for place in positions])
        types = dict(written.columns)
        kept = [found for place, found in enumerate(newest.columns) if place not in positions]
        if all(alike(types.get(column, type_), type_) for column, type_ in kept):
            same = (written.columns, written.locks) == (newest.columns, newest.locks)
            in_place = same and all(has_slot(layout_format(newest), place) for place in positions)
            was_null = in_place and any(row[place] is None for place in positions)
            assert found == (None if was_null else body_encoder(newest)(expected))
        else:
            assert found is None


@pytest.mark.parametrize("wanted", [Wanted(2, BIGINT, lenient=True), Wanted(1, numeric(9, 3)), Wanted(1, NUMERIC)])
def test_what_needs_values(wanted: Wanted) -> None:
    """Columns that may have no value yet, and such whose stored form is another one."""
    old = Layout(1, ((1, numeric(5, 2)), (3, INTEGER)))
    new = Layout(2, ((wanted.column, wanted.type), (3, INTEGER)))
    value = stored(old, (None, 7))
    made = Patchers(new, Wants([wanted, Wanted(3, INTEGER)]), lambda _: old, {1: outline_of(old)}, [1], 1, 10)
    assert made.learn(value)(value, (8,)) is None
    # What gets a new value needs no old one.
    made = Patchers(new, Wants([wanted, Wanted(3, INTEGER)]), lambda _: old, {1: outline_of(old)}, [0], 1, 10)
    given_ = 5 if wanted.type == BIGINT else None
    assert made.learn(value)(value, (given_,)) == (None if given_ is None else body_encoder(new)((5, 7)))


def test_tables_that_change_alike_share_patchers() -> None:
    """Ids and names do not count: a column that comes and goes makes layouts without end, and few patchers."""
    found = set()
    for number in range(10):
        layouts = [
            Layout(number, ((1, TEXT), (2, INTEGER))),
            Layout(99, ((1, TEXT), (2, INTEGER), (50 + number, TEXT))),
        ]
        found.add(patchers(layouts, {}, [1]).learn(stored(layouts[0], ("a", 1))))
    assert len(found) == 1


def test_what_is_at_hand() -> None:
    """A layout that was read before, and a patcher that was made before: of any that asks for the same."""
    old, new = Layout(1, ((1, INTEGER), (2, TEXT))), Layout(9, ((1, INTEGER), (2, TEXT), (3, BIGINT)))
    known: dict[int, Outline] = {}
    wants = Wants(wanted_of(new, {3: 12345678901}))
    made = Patchers(new, wants, lambda _: old, known, [0], 1, 10)
    value = stored(old, (4, "a"))
    assert made.at_hand(value) is None
    known[1] = outline_of(old)
    assert made.at_hand(value) is None, "nobody has made it yet"
    patch = made.learn(value)
    alike = Layout(5, ((1, INTEGER), (2, TEXT)))
    known[5], other = outline_of(alike), stored(alike, (4, "a"))
    assert made.at_hand(other) is patch
    assert made.known[other[LAYOUT_OFFSET : LAYOUT_OFFSET + 4]] is patch


@st.composite
def histories(draw: Any) -> list[tuple[Layout, dict[int, Any]]]:
    """The layouts of a table whose columns come, go, come back and change places; with the missing values of each
    version's columns."""
    columns, gone, next_id = [1, 2], [], 3
    types = {1: INTEGER, 2: TEXT}
    missing: dict[int, Any] = {}
    versions = [(Layout(0, ((1, INTEGER), (2, TEXT))), missing)]
    for number in range(1, draw(st.integers(3, 14))):
        place = draw(st.integers(0, len(columns)))
        step = draw(st.sampled_from(["add", "add", "drop", "drop", "back", "move"]))
        if step == "drop" and len(columns) > 1:
            gone.append(columns.pop(place % len(columns)))
        elif step == "back" and gone:
            columns.insert(place, gone.pop(draw(st.integers(0, len(gone) - 1))))
        elif step == "move":
            columns.insert(place % len(columns), columns.pop(draw(st.integers(0, len(columns) - 1))))
        else:
            columns.insert(place, next_id)
            types[next_id] = draw(st.sampled_from([INTEGER, TEXT]))
            missing[next_id] = draw(st.sampled_from([None, 7])) if types[next_id] == INTEGER else None
            next_id += 1
        versions.append((Layout(number, tuple((column, types[column]) for column in columns)), dict(missing)))
    return versions


@given(histories(), st.data())
@settings(max_examples=500)
def test_versions_of_a_shape_share_what_holds_for_all(
    versions: list[tuple[Layout, dict[int, Any]]], data: st.DataObject
) -> None:
    """What is carried over to a version is what it would have learnt itself, whichever rows were met before, by
    whomever: threads that are late go on with what they have of former versions, and come with it to the newest."""
    rows = [stored(layout, drawn_row(data, layout)) for layout, _missing in versions]
    outlines = {layout.id: outline_of(layout) for layout, _missing in versions}
    next_ids = [1 + max(max(layout.columns)[0] for layout, _ in versions[: n + 1]) for n in range(len(versions))]
    there: list[tuple[object, int, Patchers]] = []

    def layout_of(row: bytes) -> Layout:
        return versions[rows.index(row)][0]

    def made(number: int) -> tuple[Patchers, Patchers]:
        """Those of a version, with a former one if there is any of its shape, and without."""
        layout, missing = versions[number]
        wanted = wanted_of(layout, missing)
        shape = tuple((one.type, one.missing) for one in wanted)
        alike = [found for its_shape, _number, found in there if its_shape == shape]
        former = data.draw(st.sampled_from(alike[-3:])) if alike else None
        rest = (layout_of, outlines, [0], number, next_ids[number])
        found = Patchers(layout, Wants(wanted), *rest, former)
        there.append((shape, number, found))
        return found, Patchers(layout, Wants(wanted), *rest)

    def meet(number: int, found: Patchers) -> None:
        for row in data.draw(st.lists(st.sampled_from(rows[: number + 1]))):
            found.at_hand(row) or found.learn(row)

    for number in range(len(versions)):
        newest, alone = made(number)
        meet(number, newest)
        late = data.draw(st.integers(0, number))
        if late < number:
            meet(late, made(late)[0])
        _shape, late, found = data.draw(st.sampled_from(there))
        meet(late, found)
        for row in rows[: number + 1]:
            tag = row[LAYOUT_OFFSET : LAYOUT_OFFSET + 4]
            assert (newest.known.get(tag) or newest.own.get(tag)) in (None, alone.learn(row))
            assert {find(tag) for find in newest.found_first} >= {newest.known.get(tag), newest.own.get(tag)}


def test_a_column_that_comes_and_goes_has_nothing_met_anew() -> None:
    """But rows in layouts that have that column. What has come back, or changed places, is met anew."""
    outlines: dict[int, Outline] = {}
    layouts: list[Layout] = []

    def version(columns: tuple[int, ...], former: Patchers | None, next_id: int, number: int | None = None) -> Patchers:
        layout = Layout(len(layouts), tuple((column, INTEGER) for column in columns))
        layouts.append(layout)
        outlines[layout.id] = outline_of(layout)
        wants, number = Wants(wanted_of(layout, {})), number or len(layouts)
        return Patchers(
            layout, wants, lambda row: layouts[row[LAYOUT_OFFSET + 1]], outlines, [1], number, next_id, former
        )

    def met(made: Patchers) -> tuple[list[int], list[int]]:
        for layout in layouts:
            row = stored(layout, tuple(range(len(layout.columns))))
            if not made.has_met(row):
                made.learn(row)
        return sorted(tag[1] for tag in made.known), sorted(tag[1] for tag in made.own)

    first = version((1, 2, 3), None, 4)
    assert met(first) == ([0], [])
    second = version((1, 2, 4), first, 5)
    assert met(second) == ([0], [1])
    third = version((1, 2, 5), second, 6)
    assert third.known is second.known
    assert met(third) == ([0, 1], [2])
    fourth = version((1, 2, 6), third, 7)
    assert (sorted(tag[1] for tag in fourth.known), fourth.own) == ([0, 1], {})
    assert met(fourth) == ([0, 1, 2], [3])
    assert version((1, 2, 5), fourth, 7).known == {}, "5 has come back"
    assert version((2, 1, 7), fourth, 8).known == {}, "1 stands elsewhere"
    fifth = version((1, 2, 6), fourth, 8)
    assert fifth.known is fourth.known
    assert version((1, 2, 8), fourth, 9).known == {}, "the fourth has an heir"
    assert version((1, 2, 6), fifth, 7, number=4).known == {}, (
        "who is late with a version inherits nothing of later ones"
    )
    assert version((1, 2, 8), fifth, 9).known is fifth.known
