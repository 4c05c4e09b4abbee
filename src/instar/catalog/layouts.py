"""Row layouts by id, outside any schema version or lease (rule 26).

A row may be stored in a layout that is newer or older than the schema of whoever reads it, so layouts are not part of
a descriptor's version: they are immutable records read at their latest state, and cached for ever.
"""

from __future__ import annotations

import struct

import msgspec

from instar import errors
from instar.catalog.descriptors import Layout, Table
from instar.store.engine import Store
from instar.store.records import Latest, latest_key

_KEY = struct.Struct(">II")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Layout)


def layout_key(table: int, layout: int) -> bytes:
    """The store key of a layout's record."""
    return latest_key(Latest.LAYOUT, _KEY.pack(table, layout))


def encode_layout(layout: Layout) -> bytes:
    """The record's bytes (MessagePack): what reading rows takes. What the table has dropped, its descriptor knows."""
    return _ENCODER.encode(layout.bare)


class Layouts:
    """The process's cache of layouts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[int, int], Layout] = {}

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
        return found

    def of_row(self, table: Table, layout: int) -> Layout:
        """The layout of a row that is stored in the one of that id; a table's own is known without a look."""
        return table.layout if table.layout.id == layout else self.get(table.id, layout)
