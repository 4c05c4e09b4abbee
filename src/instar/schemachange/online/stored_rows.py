"""Rows of an unseen table, read and written one by one, with the entries of its indexes: what the rules' targets are
stored in.

An unseen table has one layout, and nothing of it is logged: entries that go are gone without a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from instar.catalog.descriptors import Index
from instar.encoding.keys import ROWSET_PREFIX_BYTES
from instar.schemachange.online.overlay import Writable
from instar.schemachange.online.shapes import comparable
from instar.schemachange.online.target_rows import NewRow, TargetTable
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, prefix_end
from instar.tables.index import IndexCodec
from instar.tables.resolver import resolver
from instar.tables.rowset import wanted
from instar.transformations.records import Row

# So many rows are kept as they were decoded.
_MOST_KNOWN = 1_000


class StoredRow(NamedTuple):
    """A row as it was found: its store key, its timestamp, those of its layout's locks by their ids, all columns."""

    key: bytes
    timestamp: int
    locks: dict[int, int]
    image: Row


class StoredRows:
    """The rows of one target over something to write to. `written`: how many were put or removed."""

    def __init__(self, target: TargetTable, store: Writable) -> None:
        table = target.table
        self.target = target
        self.store = store
        self.written = 0
        self._decode = resolver(table.layout, [wanted(column) for column in table.columns])
        self._comparable = comparable(table.columns)
        self._locks = table.layout.locks
        self._stamps = struct.Struct(f"<{len(self._locks)}Q")
        self._known: dict[bytes, tuple[bytes, StoredRow]] = {}

    def get(self, key: bytes) -> StoredRow | None:
        """The row at this store key."""
        value = self.store.get(key)
        return None if value is None else self.row(key, value)

    def row(self, key: bytes, value: bytes) -> StoredRow:
        """A stored value as a row. The rules come to a row again and again before they are done with it, so the last
        ones are kept as they were decoded."""
        known = self._known.get(key)
        if known is not None and known[0] == value:
            return known[1]
        locks = dict(zip(self._locks, self._stamps.unpack_from(value, ROW_HEADER.size), strict=True))
        row = StoredRow(key, ROW_HEADER.unpack_from(value)[0], locks, self._comparable(self._decode(value)))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = value, row
        return row

    def put(self, row: NewRow) -> None:
        """Put a row, or overwrite the one at its key; the entries follow."""
        old = self.get(row.key) if self.target.table.indexes else None
        if old is None or not self.target.indexed_alike(old.image, row.image):
            self._put_entries(row, set() if old is None else set(self._entries(old)))
        self.store.put(row.key, row.value)
        self.written += 1

    def _put_entries(self, row: NewRow, before: set[bytes]) -> None:
        entries = self.target.with_entries(row).entries
        timestamp = ROW_HEADER.unpack_from(row.value)[0]
        for entry in before.difference(entries):
            self.store.delete(entry)
        for entry in entries:
            if entry not in before:
                offset = len(entry) - len(row.key) + ROWSET_PREFIX_BYTES
                self.store.put(entry, ENTRY_VALUE.pack(timestamp, 1, offset))

    def remove(self, row: StoredRow) -> None:
        """Take away a row that is there, with its entries."""
        for entry in self._entries(row):
            self.store.delete(entry)
        self.store.delete(row.key)
        self.written += 1

    def found(self, look_up: LookUp, values: Sequence[object]) -> Iterator[StoredRow]:
        """The rows with these values in the columns that are looked up."""
        image = look_up.image(values)
        whole = look_up.codec.whole(image)
        for key in self.keys(look_up, values):
            row = self.get(key)
            assert row is not None, "an entry of no row"
            if look_up.codec.whole(row.image) == whole:
                yield row

    def keys(self, look_up: LookUp, values: Sequence[object]) -> Iterator[bytes]:
        """The store keys of these rows, and of rows whose entries cannot be told from theirs, since they are cut and
        hashed."""
        prefix = look_up.codec.prefix + look_up.codec.part(look_up.image(values))
        for entry, value in self.store.scan(prefix, prefix_end(prefix)):
            yield self.target.prefix + entry[ENTRY_VALUE.unpack(value)[2] :]

    def _entries(self, row: StoredRow) -> tuple[bytes, ...]:
        return self.target.entries(row.image, row.key[ROWSET_PREFIX_BYTES:])


class LookUp:
    """Finding rows of a target by values of some columns, which an index has, in whatever order."""

    def __init__(self, target: TargetTable, index: Index, columns: Sequence[int]) -> None:
        self.codec = IndexCodec(target.table, index)
        places = {column.id: place for place, column in enumerate(target.table.columns)}
        assert {part.column for part in index.columns} == set(columns), "an index on other columns"
        self._places = [places[column] for column in columns]
        self._width = len(places)

    def image(self, values: Sequence[object]) -> Row:
        """A row that has these values, and nothing else."""
        image: list[object] = [None] * self._width
        for place, value in zip(self._places, values, strict=True):
            image[place] = value
        return tuple(image)


def index_on(target: TargetTable, columns: Sequence[int]) -> Index:
    """An index of the target on just these columns; there is one by the way in which the target is made."""
    return next(index for index in target.table.indexes if {part.column for part in index.columns} == set(columns))
