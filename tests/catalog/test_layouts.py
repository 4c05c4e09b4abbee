"""Layouts: what a table keeps of those before, and what a row's reader needs."""

from __future__ import annotations

import msgspec

from instar.catalog.descriptors import Column, Layout, encoded_columns
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
