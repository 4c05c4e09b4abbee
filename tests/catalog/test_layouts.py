"""Layouts: what a table keeps of those before, and what a row's reader needs."""

from __future__ import annotations

import msgspec

from instar.catalog.descriptors import Column, Layout
from instar.catalog.encoded_columns import encoded_columns, may_have_column
from instar.catalog.layouts import encode_layout
from instar.types import BIGINT, TEXT

DROPPED = (Column(id=2, name="b", type=TEXT, missing="x"), Column(id=3, name="c", type=BIGINT, nullable=False))
LAYOUT = Layout(7, ((1, BIGINT), (4, TEXT)), (0, 9), encoded_columns(DROPPED), has_wide=True)


def test_columns_that_are_gone_come_along_undecoded() -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(LAYOUT), type=Layout)
    assert (again, hash(again), again.dropped) == (LAYOUT, hash(LAYOUT), DROPPED)
    assert again != msgspec.structs.replace(LAYOUT, encoded=encoded_columns(DROPPED[:1]))
    assert Layout(1, ()).dropped == ()
    assert again.wide == Layout(6, ((1, BIGINT), (4, TEXT), (2, TEXT), (3, BIGINT)), (0, 9))


def test_a_record_says_what_reading_takes() -> None:
    found = msgspec.msgpack.decode(encode_layout(LAYOUT), type=Layout)
    assert found == LAYOUT.bare == Layout(7, LAYOUT.columns, LAYOUT.locks)


def test_more_columns_are_put_behind_those_that_are_gone() -> None:
    def made(ids: range) -> tuple[Column, ...]:
        return tuple(Column(id=number, name=f"c{number}", type=TEXT, missing="id") for number in ids)

    encoded = b""
    for begin, end in ((1, 2), (2, 2), (2, 5), (5, 80), (80, 70_000)):
        encoded = encoded_columns(made(range(begin, end)), encoded)
        assert Layout(1, (), encoded=encoded).dropped == made(range(1, end))
    as_before = msgspec.msgpack.encode(made(range(1, 4)))
    assert Layout(1, (), encoded=encoded_columns(made(range(4, 6)), as_before)).dropped == made(range(1, 6))


def test_which_columns_are_gone_is_told_without_decoding_them() -> None:
    encoded = encoded_columns(tuple(Column(id=number, name="c", type=TEXT) for number in (5, 127, 128, 300)))
    assert [number for number in (0, 5, 127, 128, 129, 255, 300, 1 << 20) if may_have_column(encoded, number)] == [
        5, 127, 128, 300,
    ]  # fmt: skip
    assert not may_have_column(b"", 5)
