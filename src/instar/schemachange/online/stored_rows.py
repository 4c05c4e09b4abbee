"""Rows of an unseen table, read and written one by one, with the entries of its indexes: what the rules' targets are
stored in.

An unseen table has one layout, and nothing of it is logged: entries that go are gone without a tombstone. Nobody else
writes to it either, so that a row which was met need not be read again before it is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from instar.catalog.descriptors import Index
from instar.encoding.keys import ROWSET_PREFIX_BYTES, compile_encoder, is_cut, limited_index_key
from instar.schemachange.online.overlay import Writable
from instar.schemachange.online.shapes import comparable
from instar.schemachange.online.target_rows import NewRow, TargetTable
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, prefix_end
from instar.tables.index import IndexCodec
from instar.tables.resolver import resolver
from instar.tables.rowset import wanted
from instar.transformations.records import Row, choosing

# So many rows are kept as they were decoded.
_MOST_KNOWN = 1_000


class StoredRow(NamedTuple):
    """A row as it was found: its store key, its timestamp, those of its layout's locks in its order, all columns."""

    key: bytes
    timestamp: int
    locks: tuple[int, ...]
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
        self._head = target.head.unpack_from
        # The rules come to a row again and again before they are done with it: the last ones that were met, and not
        # written since.
        self._known: dict[bytes, StoredRow] = {}

    def get(self, key: bytes) -> StoredRow | None:
        """The row at this store key."""
        known = self._known.get(key)
        if known is not None:
            return known
        value = self.store.get(key)
        if value is None:
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        row = self._known[key] = self.row(key, value)
        return row

    def row(self, key: bytes, value: bytes) -> StoredRow:
        """A stored value as a row."""
        timestamp, _record, _tag, *locks = self._head(value)
        return StoredRow(key, timestamp, tuple(locks), self._comparable(self._decode(value)))

    def put(self, row: NewRow, old: StoredRow | None = None) -> None:
        """Put a row, or overwrite the one at its key, which is `old` if that has been met; the entries follow."""
        if self.target.table.indexes:
            old = old or self.get(row.key)
            if old is None or not self.target.indexed_alike(old.image, row.image):
                self._put_entries(row, set() if old is None else set(self._entries(old)))
        self._known.pop(row.key, None)
        self.store.put(row.key, row.value)
        self.written += 1

    def overwrite(self, key: bytes, value: bytes) -> None:
        """Put what becomes of a row that is there, whose entries stay as they are."""
        self._known.pop(key, None)
        self.store.put(key, value)
        self.written += 1

    def overwrite_many(self, values: Mapping[bytes, bytes]) -> None:
        """The same of some rows: their stored values by their keys."""
        if self._known:
            for key in values:
                self._known.pop(key, None)
        self.store.put_many(values)
        self.written += len(values)

    def _put_entries(self, row: NewRow, before: set[bytes]) -> None:
        entries = self.target.entries(row.image, row.key[ROWSET_PREFIX_BYTES:])
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
        self._known.pop(row.key, None)
        self.store.delete(row.key)
        self.written += 1

    def found(self, look_up: LookUp, values: Row) -> Iterator[StoredRow]:
        """The rows with these values in the columns that are looked up."""
        wanted = look_up.whole(values)
        doubtful = is_cut(len(wanted))
        for key in self._keys(wanted):
            row = self.get(key)
            assert row is not None, "an entry of no row"
            if not doubtful or look_up.whole_of(row.image) == wanted:
                yield row

    def keys(self, look_up: LookUp, values: Row) -> Iterator[bytes]:
        """The store keys of these rows, and of rows whose entries cannot be told from theirs, since they are cut and
        hashed."""
        return self._keys(look_up.whole(values))

    def keys_at(self, start: bytes) -> list[bytes]:
        """The store keys of the rows whose entries begin so: with all columns that the index has, and not cut."""
        prefix, size = self.target.prefix, len(start)
        return [prefix + entry[size:] for entry, _ in self.store.scan(start, prefix_end(start))]

    def _keys(self, whole: bytes) -> Iterator[bytes]:
        start = limited_index_key(whole, ROWSET_PREFIX_BYTES)
        for entry, value in self.store.scan(start, prefix_end(start)):
            yield self.target.prefix + entry[ENTRY_VALUE.unpack(value)[2] :]

    def _entries(self, row: StoredRow) -> tuple[bytes, ...]:
        return self.target.entries(row.image, row.key[ROWSET_PREFIX_BYTES:])


class LookUp:
    """Finding rows of a target by values of some columns, which an index has, in whatever order."""

    def __init__(self, target: TargetTable, index: Index, columns: Sequence[int]) -> None:
        codec = IndexCodec(target.table, index)
        in_index = [part.column for part in index.columns]
        assert set(in_index) == set(columns), "an index on other columns"
        self._in_order = choosing(tuple([columns.index(column) for column in in_index]))
        self._of_image = choosing(codec.ordinals)
        self._encode = compile_encoder(codec.types, codec.descending, prefix=codec.prefix)

    def whole(self, values: Row) -> bytes:
        """What the entries of the rows with these values would begin with, however long."""
        return self._encode(self._in_order(values))

    def whole_of(self, image: Row) -> bytes:
        """The same of a row."""
        return self._encode(self._of_image(image))


def index_on(target: TargetTable, columns: Sequence[int]) -> Index:
    """An index of the target on just these columns; there is one by the way in which the target is made."""
    return next(index for index in target.table.indexes if {part.column for part in index.columns} == set(columns))
