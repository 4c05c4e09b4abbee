"""Rows compared in bytes, against the encodings of their columns one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar import errors
from instar.encoding.comparing import compile_comparer
from instar.encoding.rows import compile_encoder, row_format
from instar.store.engine import ROW_HEADER
from instar.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, TEXT, Kind, Type
from support.values import TYPES, rows

HEADERS = ROW_HEADER.pack(1, 2, 7 << 8), ROW_HEADER.pack(9, 8, 7 << 8)
NUMERIC = Type(Kind.NUMERIC)


@given(st.lists(TYPES, min_size=1, max_size=10), st.integers(0, 3), st.data())
@settings(max_examples=200)
def test_what_is_alike(types: list[Type], locks: int, data: st.DataObject) -> None:
    form = row_format(tuple(types), locks)
    places = st.lists(st.integers(0, len(types) - 1), unique=True)
    alike, filled = set(data.draw(places)), set(data.draw(places))
    encode = compile_encoder(form)
    first, second = data.draw(rows(types, 2))[:2]
    # Most columns are the same, else no two rows were alike.
    changed = data.draw(places)
    second = tuple(new if place in changed else old for place, (old, new) in enumerate(zip(first, second, strict=True)))
    one, other = (
        header + b"timestmp" * locks + encode(row) for header, row in zip(HEADERS, (first, second), strict=True)
    )
    bodies = [compile_encoder(row_format((type_,))) for type_ in types]
    expected = all(
        (first[place] is None) is (second[place] is None)
        and bodies[place]((first[place],)) == bodies[place]((second[place],))
        for place in alike
    ) and all(second[place] is not None for place in filled)
    assert compile_comparer(form, alike, filled)(one, other) is expected


@pytest.mark.parametrize(
    ("types", "one", "other"),
    [
        ((DOUBLE,), (0.0,), (-0.0,)),
        ((BIGINT, TEXT, TEXT), (1, "ab", "c"), (1, "a", "bc")),
        ((BOOLEAN, TEXT), (None, "a"), (False, "a")),
        ((TEXT, TEXT), (None, "a"), ("", "a")),
    ],
)
def test_equal_bytes_in_other_places_are_not_alike(
    types: tuple[Type, ...], one: tuple[object, ...], other: tuple[object, ...]
) -> None:
    form = row_format(types)
    encode, everything = compile_encoder(form), set(range(len(types)))
    stored = [HEADERS[0] + encode(row) for row in (one, other)]
    assert not compile_comparer(form, everything)(*stored)
    assert compile_comparer(form, everything)(stored[0], stored[0])


def test_of_nothing() -> None:
    form = row_format((INTEGER,))
    stored = HEADERS[0] + compile_encoder(form)((1,))
    assert compile_comparer(form, set())(stored, stored)


def test_the_bitmap_of_many_columns() -> None:
    """Words of 64 columns are read each by itself."""
    form = row_format((INTEGER,) * 130)
    encode = compile_encoder(form)
    row = tuple(range(130))
    for place in (0, 63, 64, 129):
        other = (*row[:place], None, *row[place + 1 :])
        stored = [HEADERS[0] + encode(values) for values in (row, other)]
        assert not compile_comparer(form, set(), {place})(*stored)
        assert compile_comparer(form, set(), {place})(stored[1], stored[0])
        assert compile_comparer(form, set(range(130)) - {place})(*stored)


@pytest.mark.parametrize("short", [0, 1])
def test_a_row_that_is_too_short_is_damaged(short: int) -> None:
    form = row_format((INTEGER, TEXT))
    stored = [HEADERS[0] + compile_encoder(form)((1, "text")) for _ in range(2)]
    stored[short] = stored[short][: form.start + form.fixed_size - 1]
    with pytest.raises(errors.Error) as failed:
        compile_comparer(form, {0})(*stored)
    assert failed.value.sqlstate == errors.DATA_CORRUPTED
    assert stored[short].hex() in str(failed.value)
