"""Layouts: what a row's reader needs, and what a table has lost since some layout."""

from __future__ import annotations

from instar.catalog.descriptors import Column, Layout
from instar.catalog.layouts import (
    columns_left,
    decode_layout,
    encode_layout,
    layout_key,
    recorded_layouts,
    wide_layout,
)
from instar.store.engine import Commit
from instar.store.memory import MemoryStore
from instar.types import BIGINT, TEXT

B = Column(id=2, name="b", type=TEXT, missing="x")
C = Column(id=3, name="c", type=BIGINT, nullable=False)
LAYOUTS = (
    Layout(1, ((1, BIGINT), (2, TEXT), (3, BIGINT))),
    Layout(2, ((1, BIGINT), (3, BIGINT)), left=(B,)),
    Layout(4, ((1, BIGINT), (4, TEXT)), (0, 9), (C,), has_wide=True),
)


def test_a_record_is_the_layout() -> None:
    for layout in LAYOUTS:
        assert decode_layout(encode_layout(layout)) == layout
        assert hash(decode_layout(encode_layout(layout))) == hash(layout)
    assert [layout.ids for layout in LAYOUTS] == [(1,), (2,), (3, 4)]


def test_the_wide_layout_has_what_was_left_on_the_way() -> None:
    lost = columns_left(LAYOUTS)
    assert lost == {2: B, 3: C}
    assert wide_layout(LAYOUTS[-1], lost.values()) == Layout(
        3, ((1, BIGINT), (4, TEXT), (2, TEXT), (3, BIGINT)), (0, 9)
    )


def test_what_came_back_is_not_lost_and_what_left_again_is_as_it_was_last() -> None:
    renamed = Column(id=2, name="renamed", type=TEXT)
    back = Layout(5, ((1, BIGINT), (2, TEXT)))
    again = Layout(6, ((1, BIGINT),), left=(renamed,))
    assert wide_layout(back, columns_left((*LAYOUTS, back)).values()).columns == (*back.columns, (3, BIGINT))
    assert columns_left((*LAYOUTS, back, again)) == {2: renamed, 3: C}


def test_layouts_on_record_come_in_order_and_of_one_table() -> None:
    store = MemoryStore()
    records: list[tuple[bytes, bytes | None]] = [
        (layout_key(7, layout.id), encode_layout(layout)) for layout in reversed(LAYOUTS)
    ]
    records += [(layout_key(6, 1), encode_layout(LAYOUTS[0])), (layout_key(8, 1), encode_layout(LAYOUTS[0]))]
    store.commit(Commit(catalog_version=0, raw=records))
    with store.read() as reader:
        assert tuple(recorded_layouts(reader, 7, 5)) == LAYOUTS
        assert tuple(recorded_layouts(reader, 7, 4, 2)) == LAYOUTS[1:2]
