"""What CHECK TABLE finds by reading a table's rows and entries, range by range, at one snapshot (consistency.py).

An entry has no history (rule 4): one that is newer than the snapshot says nothing about it, one that is not must fit
the row as of the snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import DEFAULT_LOCK, Check, Index, State, Table
from instar.catalog.layouts import Layouts
from instar.encoding import keys
from instar.schemachange.validate import CompileCheck
from instar.store.engine import ENTRY_VALUE, Reader, Store, prefix_end
from instar.store.versions import read_row, scan_rows
from instar.tables.index import IndexCodec
from instar.tables.locks import LockTimestamps
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.rowset import TableReader, describe_key
from instar.tables.writes import ForeignKeyProbe

# Clauses of definition 4 that rows and entries are judged by.
ROWS, COLUMNS, COMPLETE, VALID, CONSTRAINTS = "1 rows", "2 columns", "4 complete", "5 valid", "6 constraints"
# Rows or entries per read transaction: about 20 ms of checking.
BATCH = 2_048

_TIMESTAMP = struct.Struct("<Q")


class Problem(NamedTuple):
    """Something that should not be: which part of which table it is about, and which row. `table` and `key` are as
    people read them, "" where there is none."""

    table: str
    object: str
    clause: str
    key: str
    message: str


class Snapshot(NamedTuple):
    """What is checked: `store` as of `timestamp`, under `catalog`, both read from one header."""

    store: Store
    layouts: Layouts
    timestamp: int
    catalog: CatalogSnapshot


class _Indexed:
    """One index of the table, as the rows see it."""

    def __init__(self, table: Table, index: Index) -> None:
        self.codec = IndexCodec(table, index)
        self.name = index.name
        self.complete = index.state is State.PUBLIC


class _Referenced:
    """One foreign key of the table: whether the parent of a row is there as of the snapshot."""

    def __init__(self, snapshot: Snapshot, table: Table, probe: ForeignKeyProbe) -> None:
        self.name = probe.foreign_key.name
        self._probe = probe
        self._timestamp = snapshot.timestamp
        self._parent: tuple[TableReader, IndexCodec] | None = None
        if probe.foreign_key.parent_index is not None:
            parent = snapshot.catalog.table(probe.foreign_key.parent)
            index = next(found for found in parent.indexes if found.id == probe.foreign_key.parent_index)
            codec = IndexCodec(parent, index)
            self._parent = TableReader(parent, range(len(parent.columns)), snapshot.layouts), codec
        self._last: bytes | None = None  # children of one parent often stand together

    def holds(self, reader: Reader, image: tuple[object, ...]) -> bool:
        """Whether the row's parent is there; true where a column is NULL."""
        key = self._probe.key(image)
        if key is None or key == self._last:
            return True
        if self._parent is None:
            found = read_row(reader, key, self._timestamp) is not None
        else:
            found = self._by_index(reader, key, *self._parent)
        if found:
            self._last = key
        return found

    def _by_index(self, reader: Reader, prefix: bytes, rows: TableReader, codec: IndexCodec) -> bool:
        for entry, value in reader.scan(prefix, prefix_end(prefix)):
            timestamp, live, offset = ENTRY_VALUE.unpack(value)
            if timestamp <= self._timestamp:
                if live:
                    return True
                continue
            stored = read_row(reader, rows.prefix + entry[offset:], self._timestamp)
            if stored is not None and codec.prefix + codec.part(rows.decode(stored)) == entry[:offset]:
                return True
        return False


class _RowChecker:
    """Clauses 1, 2, 4 and 6 (but UNIQUE) of one table's rows."""

    def __init__(self, snapshot: Snapshot, table: Table, compile_check: CompileCheck) -> None:
        self.table = table
        self.timestamp = snapshot.timestamp
        self.reader = TableReader(table, range(len(table.columns)), snapshot.layouts)
        ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
        self._key = [ordinals[column] for column in table.primary_key]
        self._required = [
            (ordinal, column.name)
            for ordinal, column in enumerate(table.columns)
            if not column.nullable and column.state is State.PUBLIC
        ]
        self._locks = [DEFAULT_LOCK, *(lock.id for lock in table.locks)] if table.locks else []
        self._timestamps = LockTimestamps(table, snapshot.layouts)
        self._checks = [(found.name, compile_check(table, found)) for found in table.checks if _is_public(found)]
        self._indexes = [_Indexed(table, index) for index in table.indexes if index.state is State.PUBLIC]
        self._parents = [
            _Referenced(snapshot, table, ForeignKeyProbe(table, found, snapshot.catalog))
            for found in table.foreign_keys
            if found.state is State.PUBLIC
        ]

    def problem(self, what: str, clause: str, key: bytes, message: str) -> Problem:
        return Problem(self.table.name, what, clause, _described(self.table, key), message)

    def check(self, reader: Reader, key: bytes, stored: bytes) -> Iterator[Problem]:
        """One row as of the snapshot; `key` is its encoded primary key."""
        layout = int.from_bytes(stored[LAYOUT_OFFSET : LAYOUT_OFFSET + 4], "little") >> 8
        if layout < self.table.oldest_layout:
            message = f"the row is in layout {layout}, which is said to be used no more"
            yield self.problem(f"layout {layout}", ROWS, key, message)
        try:
            image = self.reader.decode(stored)
            own = self.reader.encode_key([image[ordinal] for ordinal in self._key])
        except errors.Error as failed:
            yield self.problem("rows", ROWS, key, f"the row cannot be read: {failed.message}")
            return
        if own != key:
            yield self.problem("rows", ROWS, key, f"the row stands under a key that is not its own, {own.hex()}")
        if self._locks and self._timestamps.newest(stored, self._locks) > _TIMESTAMP.unpack_from(stored)[0]:
            yield self.problem("locks", COLUMNS, key, "a lock of the row is newer than the row")
        if None in image:
            for ordinal, name in self._required:
                if image[ordinal] is None:
                    what = f'column "{name}"'
                    yield self.problem(what, COLUMNS, key, f"{what} is NULL, which it must not be")
        for name, holds in self._checks:
            if holds(image) is False:
                yield self.problem(f'check "{name}"', CONSTRAINTS, key, f'the row violates check constraint "{name}"')
        for indexed in self._indexes:
            what = f'index "{indexed.name}"'
            entry = reader.get(indexed.codec.entry(image, key))
            if entry is None or not _may_be_live(entry, self.timestamp):
                yield self.problem(what, COMPLETE, key, f"the row has no entry in {what}")
        for parent in self._parents:
            if not parent.holds(reader, image):
                message = f'the row violates foreign key constraint "{parent.name}"'
                yield self.problem(f'foreign key "{parent.name}"', CONSTRAINTS, key, message)


def _is_public(found: Check) -> bool:
    return found.state is State.PUBLIC


def _may_be_live(entry: bytes, snapshot: int) -> bool:
    """Whether an entry can be that of a row which the snapshot sees."""
    timestamp, live, _ = ENTRY_VALUE.unpack(entry)
    return bool(live) or timestamp > snapshot


def check_rows(
    snapshot: Snapshot, table: Table, compile_check: CompileCheck, start: bytes, stop: bytes
) -> Iterator[Problem]:
    """The rows of `table` whose encoded primary key is in [start, stop), and what must be there for each."""
    checker = _RowChecker(snapshot, table, compile_check)
    prefix = checker.reader.prefix
    skip = len(prefix)
    position: bytes | None = prefix + start
    while position is not None:
        problems: list[Problem] = []
        with snapshot.store.read_at(snapshot.timestamp) as reader:
            row_keys, values, position = scan_rows(reader, position, prefix + stop, snapshot.timestamp, BATCH)
            for key, stored in zip(row_keys, values, strict=True):
                problems.extend(checker.check(reader, key[skip:], stored))
        yield from problems


def check_entries(snapshot: Snapshot, table: Table, index: Index, start: bytes, stop: bytes) -> Iterator[Problem]:
    """The entries of an index whose key after the rowset prefix is in [start, stop): clause 5, and UNIQUE.

    `start` should not lie between entries with equal index columns: UNIQUE looks at neighbours.
    """
    checker = _EntryChecker(snapshot, table, index)
    prefix = checker.codec.prefix
    position = prefix + start
    while True:
        problems: list[Problem] = []
        with snapshot.store.read_at(snapshot.timestamp) as reader:
            entry_keys, values = reader.batch(position, prefix + stop, BATCH)
            for key, value in zip(entry_keys, values, strict=True):
                problems.extend(checker.check(reader, key, value))
        yield from problems
        if len(entry_keys) < BATCH:
            return
        position = entry_keys[-1] + b"\x00"


class _EntryChecker:
    """Clause 5, and the UNIQUE part of clause 6, of one index; entries come in order."""

    def __init__(self, snapshot: Snapshot, table: Table, index: Index) -> None:
        self.codec = IndexCodec(table, index)
        self._timestamp = snapshot.timestamp
        self._table = table
        self._index = index
        self._rows = TableReader(table, range(len(table.columns)), snapshot.layouts)
        self._unique = index.unique and index.state is State.PUBLIC
        self._before: tuple[bytes, bytes] | None = None  # index columns and primary key of the entry before

    def check(self, reader: Reader, key: bytes, value: bytes) -> Iterator[Problem]:
        """One entry as stored."""
        if len(value) != ENTRY_VALUE.size:
            yield self._problem(VALID, key, b"", "the entry is damaged")
            return
        timestamp, live, offset = ENTRY_VALUE.unpack(value)
        if timestamp <= self._timestamp and not live:
            return
        primary = key[offset:]
        try:
            stored = read_row(reader, self._rows.prefix + primary, self._timestamp)
            image = None if stored is None else self._rows.decode(stored)
        except errors.Error:
            return  # the row itself is reported with the rows
        belongs = image is not None and self.codec.prefix + self.codec.part(image) == key[:offset]
        if timestamp <= self._timestamp and not belongs:
            what = "no row" if image is None else "a row with other values"
            yield self._problem(VALID, key, primary, f'an entry of index "{self._index.name}" points to {what}')
        if belongs and image is not None and self._unique and self.codec.unique_prefix(image) is not None:
            if self._before is not None and self._before[0] == key[:offset]:
                other = _described(self._table, self._before[1])
                message = f'the row violates unique constraint "{self._index.name}", as does {other}'
                yield self._problem(CONSTRAINTS, key, primary, message)
            self._before = key[:offset], primary

    def _problem(self, clause: str, entry: bytes, primary: bytes, message: str) -> Problem:
        shown = _described(self._table, primary) if primary else entry.hex()
        return Problem(self._table.name, f'index "{self._index.name}"', clause, shown, message)


def _described(table: Table, key: bytes) -> str:
    """A primary key for people; its bytes if they are no key."""
    try:
        keys.decode_key(key)
        return describe_key(table, key)
    except (errors.Error, ValueError):
        return key.hex()
