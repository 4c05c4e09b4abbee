"""Row layouts by id, outside any schema version or lease (rule 26).

A row may be stored in a layout that is newer or older than the schema of whoever reads it, so layouts are not part of
a descriptor's version: they are immutable records read at their latest state, and cached for ever.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.descriptors import Column, Layout, Table
from instar.store.engine import Store, View
from instar.store.records import Latest, latest_key
from instar.types import Type

_KEY = struct.Struct(">II")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Layout)


def layout_key(table: int, layout: int) -> bytes:
    """The store key of a layout's record."""
    return latest_key(Latest.LAYOUT, _KEY.pack(table, layout))


def encode_layout(layout: Layout) -> bytes:
    """The record's bytes (MessagePack)."""
    return _ENCODER.encode(layout)


def decode_layout(record: bytes) -> Layout:
    """The layout of a record."""
    return _DECODER.decode(record)


def recorded_layouts(view: View, table: int, stop: int, start: int = 0) -> Iterator[Layout]:
    """The layouts of a table that are on record, start <= id < stop, in their order."""
    found = view.scan(layout_key(table, start), layout_key(table, stop))
    return (_DECODER.decode(record) for _, record in found)


def columns_left(layouts: Iterable[Layout]) -> dict[int, Column]:
    """The columns, by id, that were left behind on the way through these layouts, as they were last. Some may have come
    back since."""
    return {column.id: column for layout in layouts for column in layout.left}


def wide_layout(layout: Layout, lost: Iterable[Column]) -> Layout:
    """The one beside `layout`, in which nobody writes new rows, of a table that has lost these columns, or most of
    them."""
    has = {column for column, _ in layout.columns}
    kept = tuple((column.id, column.type) for column in lost if column.id not in has)
    return Layout(layout.id - 1, (*layout.columns, *kept), layout.locks)


class Outline(NamedTuple):
    """A layout as those take it apart who ask which of its columns are wanted: their ids, and all else, which is the
    same object for all layouts of one shape (its columns have the id 0)."""

    columns: tuple[int, ...]
    shape: Layout


def outline_of(layout: Layout) -> Outline:
    """The outline of a layout."""
    shape = _shaped(tuple([type_ for _, type_ in layout.columns]), layout.locks)
    return Outline(tuple([column for column, _ in layout.columns]), shape)


@lru_cache(maxsize=1024)
def _shaped(types: tuple[Type, ...], locks: tuple[int, ...]) -> Layout:
    return Layout(0, tuple([(0, type_) for type_ in types]), locks)


class Layouts:
    """The process's cache of layouts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[int, int], Layout] = {}
        self._outlines: dict[int, dict[int, Outline]] = {}

    def get(self, table: int, layout: int) -> Layout:
        """The layout of that id; XX001 if its record is missing although a row names it."""
        found = self.find(table, layout)
        if found is None:
            raise errors.error(errors.DATA_CORRUPTED, f"table {table} has no layout {layout}")
        return found

    def find(self, table: int, layout: int) -> Layout | None:
        """The layout of that id, or None if nobody has committed one."""
        found = self._known.get((table, layout))
        if found is None:
            with self._store.read() as reader:
                record = reader.get(layout_key(table, layout))
            if record is not None:
                found = self._known[table, layout] = _DECODER.decode(record)
                self.outlines(table)[layout] = outline_of(found)
        return found

    def outlines(self, table: int) -> dict[int, Outline]:
        """The layouts of a table that were read before, by their ids."""
        return self._outlines.setdefault(table, {})

    def of_row(self, table: Table, layout: int) -> Layout:
        """The layout of a row that is stored in the one of that id; a table's own is known without a look."""
        return table.layout if table.layout.id == layout else self.get(table.id, layout)
