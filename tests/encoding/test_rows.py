"""Row bodies: round trips, chosen columns, damaged bytes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar import errors
from instar.encoding.rows import (
    BODY_OFFSET,
    Output,
    Tags,
    compile_decoder,
    compile_encoder,
    compile_reader,
    row_format,
)
from instar.store.engine import ROW_HEADER
from instar.types import BIGINT, BOOLEAN, BYTEA, DOUBLE, INTEGER, NUMERIC, REAL, SMALLINT, TEXT, UUID, Kind, Type
from support.values import TYPES, rows, same

HEADER = bytes(BODY_OFFSET)
TYPE_LISTS = st.lists(TYPES, min_size=1, max_size=10)


def test_the_body_follows_the_header_of_the_store() -> None:
    assert ROW_HEADER.size == BODY_OFFSET


@given(TYPE_LISTS, st.data())
@settings(max_examples=200)
def test_round_trip(types: list[Type], data: st.DataObject) -> None:
    """Whether or not lock timestamps stand between header and body."""
    locks = data.draw(st.integers(0, 3))
    form = row_format(tuple(types), locks)
    encode, decode = compile_encoder(form), compile_decoder(form)
    for row in data.draw(rows(types)):
        body = encode(row)
        assert all(map(same, decode(HEADER + b"timestmp" * locks + body), row))
        assert all(map(same, compile_decoder(form, 0)(body), row))


@given(TYPE_LISTS, st.data())
@settings(max_examples=100)
def test_a_reader_of_some_columns(types: list[Type], data: st.DataObject) -> None:
    """Any columns in any order, doubled, converted, with constants between them."""
    form = row_format(tuple(types))
    row = data.draw(rows(types))[0]
    outputs = data.draw(
        st.lists(
            st.builds(Output, st.integers(0, len(types) - 1), st.sampled_from([None, lambda value: [value]]), st.none())
            | st.builds(Output, st.none(), st.none(), st.integers()),
            max_size=6,
        )
    )
    expected: list[Any] = []
    for position, convert, constant in outputs:
        value = constant if position is None else row[position]
        expected.append([value] if position is not None and convert and value is not None else value)
    found = compile_reader(form, outputs)(HEADER + compile_encoder(form)(row))
    assert len(found) == len(expected)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("columns", [1, 8, 9, 16, 17, 32, 33, 64, 65, 200])
def test_bitmaps_of_all_sizes(columns: int) -> None:
    form = row_format((SMALLINT,) * columns)
    encode, decode = compile_encoder(form), compile_decoder(form)
    for null in {0, columns // 2, columns - 1}:
        row = tuple(None if i == null else i for i in range(columns))
        assert decode(HEADER + encode(row)) == row
    assert compile_reader(form, [Output(columns - 1)])(HEADER + encode((None,) * columns)) == (None,)


@given(TYPE_LISTS, st.binary(max_size=120))
@settings(max_examples=300)
def test_hostile_bytes(types: list[Type], value: bytes) -> None:
    assert problem_of(types, value) in (None, errors.DATA_CORRUPTED)


@given(TYPE_LISTS, st.data())
@settings(max_examples=200)
def test_damaged_rows(types: list[Type], data: st.DataObject) -> None:
    form = row_format(tuple(types))
    value = bytearray(HEADER + compile_encoder(form)(data.draw(rows(types))[0]))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    assert problem_of(types, bytes(value)) in (None, errors.DATA_CORRUPTED)
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    assert problem_of(types, cut) in (None, errors.DATA_CORRUPTED)


def problem_of(types: list[Type], value: bytes) -> str | None:
    """The SQLSTATE with which a value is refused, None if it is read."""
    try:
        compile_decoder(row_format(tuple(types)))(value)
    except errors.Error as e:
        return e.sqlstate
    return None


def test_a_truncated_row_is_never_read() -> None:
    types = (INTEGER, TEXT, BYTEA)
    form = row_format(types)
    value = HEADER + compile_encoder(form)((1, "hello", b"world"))
    for size in range(len(value)):
        assert problem_of(list(types), value[:size]) == errors.DATA_CORRUPTED


@pytest.mark.parametrize(
    ("type_", "value", "sqlstate"),
    [
        (SMALLINT, 2**15, errors.NUMERIC_OUT_OF_RANGE),
        (BIGINT, 2**63, errors.NUMERIC_OUT_OF_RANGE),
        (REAL, 1e300, errors.NUMERIC_OUT_OF_RANGE),
        (TEXT, "\ud800", errors.CHARACTER_NOT_IN_REPERTOIRE),
        (Type(Kind.NUMERIC, 5, 1), Decimal("1.25"), errors.NUMERIC_OUT_OF_RANGE),
        (Type(Kind.NUMERIC, 5, 1), Decimal("1e30"), errors.NUMERIC_OUT_OF_RANGE),
        (Type(Kind.NUMERIC, 38, 1), Decimal("1e60"), errors.NUMERIC_OUT_OF_RANGE),
        (NUMERIC, Decimal("-Infinity"), errors.FEATURE_NOT_SUPPORTED),
    ],
)
def test_what_does_not_fit(type_: Type, value: Any, sqlstate: str) -> None:
    with pytest.raises(errors.Error) as caught:
        compile_encoder(row_format((type_,)))((value,))
    assert caught.value.sqlstate == sqlstate


def test_a_precision_above_the_limit_is_refused() -> None:
    with pytest.raises(errors.NotSupportedError):
        row_format((Type(Kind.NUMERIC, 39, 0),))


def test_sizes() -> None:
    """What the documents promise: one byte of bitmap, slots of their size, four bytes per variable column."""
    assert row_format((BOOLEAN, INTEGER, DOUBLE, UUID)).fixed_size == 1 + 1 + 4 + 8 + 16
    assert row_format((Type(Kind.NUMERIC, 18, 2), Type(Kind.NUMERIC, 19, 2), TEXT)).fixed_size == 1 + 8 + 16 + 4


@given(st.integers(0, 40), st.lists(st.integers(0, 40)))
def test_tags_of_layouts(first: int, others: list[int]) -> None:
    """They are a set, however much of it is a run. Tags with flags are not in it."""
    tags = Tags(first)
    for layout in others:
        tags.add(layout)
    expected = {first, *others}
    assert {layout for layout in range(50) if layout << 8 in tags} == expected
    assert not any(layout << 8 | flags in tags for layout in range(50) for flags in (1, 2, 255))
    run = next(n for n in range(first, 99) if n + 1 not in expected) - first
    assert tags.high - tags.low >= run << 8
    assert not any(tags.low <= tag <= tags.high for tag in tags.others)


@given(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=30), st.lists(st.integers(0, 12), max_size=12))
@settings(max_examples=300)
def test_tags_that_threads_add_at_once(first: int, others: list[int], switches: list[int]) -> None:
    """Wherever a thread is interrupted by others, nothing is there that none has added: it would be read wrongly."""
    tags, left, added, waits = Tags(first), list(others), {first}, iter(switches)

    def add() -> None:
        if left:
            added.add(layout := left.pop())
            tags.add(layout)

    class Switching(set[int]):
        wait = next(waits, None)

        def __contains__(self, tag: object) -> bool:
            found = super().__contains__(tag)
            if self.wait is not None:
                self.wait -= 1
                if self.wait < 0:
                    self.wait = next(waits, None)
                    add()
            return found

    tags.others = Switching()
    while left:
        add()
    assert {layout for layout in range(-30, 60) if layout << 8 in tags} <= added


def test_a_reader_of_several_layouts() -> None:
    """What is stored alike is read by one function; with tags, rows of their layouts only, and none that is deleted."""
    narrow, wide, text = (
        row_format((BIGINT, INTEGER)),
        row_format((BIGINT, INTEGER, BIGINT)),
        row_format((BIGINT, TEXT)),
    )
    outputs = [Output(1), Output(0)]
    assert compile_reader(narrow, outputs) is compile_reader(wide, outputs)
    assert compile_reader(narrow, outputs) is not compile_reader(text, outputs)
    constant = [*outputs, Output(None, None, 5)]
    assert compile_reader(narrow, constant) is not compile_reader(wide, constant)

    tags = Tags(7)
    read = compile_reader(narrow, outputs, tags=tags)

    def stored(layout: int, flags: int, body: bytes) -> bytes:
        return ROW_HEADER.pack(1, 0, layout << 8 | flags) + body

    body = compile_encoder(wide)((1, 2, 3))
    assert read(stored(7, 0, body)) == (2, 1)
    assert read(stored(6, 0, body)) is read(stored(6, 0, b"")) is None
    for layout in (9, 6, 8):
        tags.add(layout)
        assert read(stored(layout, 0, body)) == (2, 1)
        assert read(stored(layout, 1, body)) is read(stored(layout, 1, b"")) is None
    with pytest.raises(errors.Error, match="damaged"):
        read(stored(8, 0, b""))
    with pytest.raises(errors.Error, match="damaged"):
        read(b"")
