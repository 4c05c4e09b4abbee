"""What CHECK TABLE finds by reading a table's rows and entries, range by range, at one snapshot (consistency.py).

An entry has no history (rule 4): one that is newer than the snapshot says nothing about it, one that is not must fit
the row as of the snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import DEFAULT_LOCK, Check, ForeignKey, Index, State, Table
from instar.catalog.layouts import Layouts
from instar.encoding import keys
from instar.schemachange.validate import CompileCheck
from instar.store.engine import ENTRY_VALUE, Reader, Store, prefix_end, rowset_prefix
from instar.store.versions import read_row, scan_rows
from instar.tables.derivations import DerivedColumn, derived_columns
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


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of a table's checks: rows (`item` is 0) or the entries of an index (its id) by their keys without prefix,
    or parents of a foreign key (its id) by whole store keys."""

    item: int
    start: bytes
    stop: bytes
    parents: bool = False


class Unplaced(NamedTuple):
    """A row that a unique index (`item`, its id) lacks: what at most one row may have, and the row's key."""

    item: int
    part: bytes
    primary: bytes


class Pair(NamedTuple):
    """What a row says to other rows: by a foreign key, or a unique index, of that id, as bytes, under its own key."""

    item: int
    key: bytes
    primary: bytes


class Pairs:
    """What tasks on Spark make of the rows beside problems, for a join and a grouping of all of them."""

    def __init__(self) -> None:
        self.references: list[Pair] = []
        self.unique: list[Pair] = []


class _Indexed:
    """One index of the table, as the rows see it."""

    def __init__(self, table: Table, index: Index) -> None:
        self.codec = IndexCodec(table, index)
        self.id = index.id
        self.name = index.name
        self.unique = index.unique


class Referenced:
    """One foreign key of the table: whether the parent of a row is there as of the snapshot. `parents`: the rowset in
    which the parents stand."""

    def __init__(self, snapshot: Snapshot, table: Table, foreign_key: ForeignKey) -> None:
        self.foreign_key = foreign_key
        self._probe = ForeignKeyProbe(table, foreign_key, snapshot.catalog)
        self._snapshot = snapshot
        self._timestamp = snapshot.timestamp
        self._parent: tuple[TableReader, IndexCodec] | None = None
        parent = snapshot.catalog.table(foreign_key.parent)
        self.parents = rowset_prefix(parent.rowset)
        if foreign_key.parent_index is not None:
            index = next(found for found in parent.indexes if found.id == foreign_key.parent_index)
            codec = IndexCodec(parent, index)
            self.parents = codec.prefix
            self._parent = TableReader(parent, range(len(parent.columns)), snapshot.layouts), codec
        self._last: bytes | None = None  # children of one parent often stand together

    def key(self, image: tuple[object, ...]) -> bytes | None:
        """What a row refers to, as bytes in the rowset of the parents; None: nothing, for a column is NULL."""
        return self._probe.key(image)

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

    def standing(self, start: bytes, stop: bytes) -> Iterator[list[bytes]]:
        """What can be referred to of [start, stop) of the parents' rowset, as `key` has it, batch by batch."""
        position: bytes | None = start
        while position is not None:
            with self._snapshot.store.read_at(self._timestamp) as reader:
                if self._parent is None:
                    found, _, position = scan_rows(reader, position, stop, self._timestamp, BATCH)
                else:
                    entries, values = reader.batch(position, stop, BATCH)
                    position = entries[-1] + b"\x00" if len(entries) == BATCH else None
                    found = [
                        entry[: ENTRY_VALUE.unpack(value)[2]]
                        for entry, value in zip(entries, values, strict=True)
                        if self._stands(reader, entry, value, *self._parent)
                    ]
            yield found

    def _by_index(self, reader: Reader, prefix: bytes, rows: TableReader, codec: IndexCodec) -> bool:
        entries = reader.scan(prefix, prefix_end(prefix))
        return any(self._stands(reader, entry, value, rows, codec) for entry, value in entries)

    def _stands(self, reader: Reader, entry: bytes, value: bytes, rows: TableReader, codec: IndexCodec) -> bool:
        """Whether an entry is that of a row as of the snapshot."""
        if len(value) != ENTRY_VALUE.size:
            return False
        timestamp, live, offset = ENTRY_VALUE.unpack(value)
        if timestamp <= self._timestamp:
            return bool(live)
        stored = read_row(reader, rows.prefix + entry[offset:], self._timestamp)
        return stored is not None and codec.prefix + codec.part(rows.decode(stored)) == entry[:offset]


class _RowChecker:
    """Clauses 1, 2, 4 and 6 (but UNIQUE) of one table's rows. With `pairs`, what they refer to is put there only."""

    def __init__(
        self,
        snapshot: Snapshot,
        table: Table,
        compile_check: CompileCheck,
        unplaced: list[Unplaced],
        pairs: Pairs | None,
    ) -> None:
        self.table = table
        self._unplaced = unplaced
        self._pairs = pairs
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
        self._generated = [found for found in derived_columns(table) if table.columns[found.ordinal].visible]
        self._indexes = [_Indexed(table, index) for index in table.indexes if index.state is State.PUBLIC]
        self._parents = [
            Referenced(snapshot, table, found) for found in table.foreign_keys if found.state is State.PUBLIC
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
        for found in self._generated:
            yield from self._computed(found, image, key)
        for indexed in self._indexes:
            yield from self._entry(reader, indexed, image, key)
        for parent in self._parents:
            if self._pairs is not None:
                wanted = parent.key(image)
                if wanted is not None:
                    self._pairs.references.append(Pair(parent.foreign_key.id, wanted, key))
            elif not parent.holds(reader, image):
                yield orphaned(self.table, parent.foreign_key, key)

    def _computed(self, found: DerivedColumn, image: tuple[object, ...], key: bytes) -> Iterator[Problem]:
        """Whether a generated column has what its expression gives."""
        what = f'column "{self.table.columns[found.ordinal].name}"'
        try:
            value = found.compute([image[source] for source in found.sources])
        except errors.Error as failed:
            yield self.problem(what, COLUMNS, key, f"{what} cannot be computed: {failed.message}")
            return
        # 1.0 and 1.00 are equal and not the same; NaN is the same and not equal.
        if repr(value) != repr(image[found.ordinal]):
            yield self.problem(what, COLUMNS, key, f"{what} is not what its expression gives")

    def _entry(self, reader: Reader, indexed: _Indexed, image: tuple[object, ...], key: bytes) -> Iterator[Problem]:
        part = indexed.codec.unique_prefix(image) if indexed.unique else None
        if part is not None and self._pairs is not None:
            self._pairs.unique.append(Pair(indexed.id, part, key))
        entry = reader.get(indexed.codec.entry(image, key))
        if entry is None or not _may_be_live(entry, self.timestamp):
            what = f'index "{indexed.name}"'
            yield self.problem(what, COMPLETE, key, f"the row has no entry in {what}")
            if part is not None:
                self._unplaced.append(Unplaced(indexed.id, part, key))


def _is_public(found: Check) -> bool:
    return found.state is State.PUBLIC


def _may_be_live(entry: bytes, snapshot: int) -> bool:
    """Whether an entry can be that of a row which the snapshot sees."""
    if len(entry) != ENTRY_VALUE.size:
        return False
    timestamp, live, _ = ENTRY_VALUE.unpack(entry)
    return bool(live) or timestamp > snapshot


def check_rows(
    snapshot: Snapshot,
    table: Table,
    compile_check: CompileCheck,
    start: bytes,
    stop: bytes,
    unplaced: list[Unplaced],
    pairs: Pairs | None = None,
) -> Iterator[list[Problem]]:
    """The rows of `table` whose encoded primary key is in [start, stop), and what must be there for each, batch by
    batch. Rows that are missing in a unique index are added to `unplaced`, for `check_entries`. With `pairs`, what they
    refer to is only put there, and what may not be there twice."""
    checker = _RowChecker(snapshot, table, compile_check, unplaced, pairs)
    prefix = checker.reader.prefix
    skip = len(prefix)
    position: bytes | None = prefix + start
    while position is not None:
        problems: list[Problem] = []
        with snapshot.store.read_at(snapshot.timestamp) as reader:
            row_keys, values, position = scan_rows(reader, position, prefix + stop, snapshot.timestamp, BATCH)
            for key, stored in zip(row_keys, values, strict=True):
                problems.extend(checker.check(reader, key[skip:], stored))
        yield problems


def check_entries(
    snapshot: Snapshot, table: Table, index: Index, start: bytes, stop: bytes, unplaced: Sequence[Unplaced] | None
) -> Iterator[Problem]:
    """The entries of an index whose key after the rowset prefix is in [start, stop): clause 5, and UNIQUE, for which
    `unplaced` has the rows without an entry. (None: others see to UNIQUE.)

    `start` should not lie between entries with equal index columns: UNIQUE looks at neighbours.
    """
    prefix = rowset_prefix(index.rowset)
    position, end = prefix + start, prefix + stop
    beside = None if unplaced is None else [row for row in unplaced if row.item == index.id]
    checker = _EntryChecker(snapshot, table, index, beside and [row for row in beside if position <= row.part < end])
    while True:
        problems: list[Problem] = []
        with snapshot.store.read_at(snapshot.timestamp) as reader:
            entry_keys, values = reader.batch(position, end, BATCH)
            for key, value in zip(entry_keys, values, strict=True):
                problems.extend(checker.check(reader, key, value))
        yield from problems
        if len(entry_keys) < BATCH:
            yield from checker.finish()
            return
        position = entry_keys[-1] + b"\x00"


class _EntryChecker:
    """Clause 5, and the UNIQUE part of clause 6, of one index; entries come in order."""

    def __init__(self, snapshot: Snapshot, table: Table, index: Index, unplaced: Sequence[Unplaced] | None) -> None:
        self.codec = IndexCodec(table, index)
        self._timestamp = snapshot.timestamp
        self._table = table
        self._index = index
        self._rows = TableReader(table, range(len(table.columns)), snapshot.layouts)
        self._unique = index.unique and index.state is State.PUBLIC and unplaced is not None
        # Rows without an entry, the next one last; index columns and primary key of the one before.
        self._unplaced = sorted(((row.part, row.primary) for row in unplaced or ()), reverse=True)
        self._before: tuple[bytes, bytes] | None = None

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
            yield from self._met(key[:offset], primary)

    def finish(self) -> Iterator[Problem]:
        """There are no more entries."""
        while self._unplaced:
            yield from self._next(*self._unplaced.pop())

    def _met(self, part: bytes, primary: bytes) -> Iterator[Problem]:
        """UNIQUE, with the rows that have no entry in their places."""
        while self._unplaced and self._unplaced[-1] < (part, primary):
            yield from self._next(*self._unplaced.pop())
        yield from self._next(part, primary)

    def _next(self, part: bytes, primary: bytes) -> Iterator[Problem]:
        if self._before is not None and self._before[0] == part:
            yield twice(self._table, self._index, primary, self._before[1])
        self._before = part, primary

    def _problem(self, clause: str, entry: bytes, primary: bytes, message: str) -> Problem:
        shown = _described(self._table, primary) if primary else entry.hex()
        return Problem(self._table.name, f'index "{self._index.name}"', clause, shown, message)


def orphaned(table: Table, foreign_key: ForeignKey, key: bytes) -> Problem:
    """That of a row whose parent is not there, by its encoded primary key."""
    message = f'the row violates foreign key constraint "{foreign_key.name}"'
    return Problem(table.name, f'foreign key "{foreign_key.name}"', CONSTRAINTS, _described(table, key), message)


def twice(table: Table, index: Index, key: bytes, before: bytes) -> Problem:
    """That of a row which has the same values as the one before it, by their encoded primary keys."""
    message = f'the row violates unique constraint "{index.name}", as does {_described(table, before)}'
    return Problem(table.name, f'index "{index.name}"', CONSTRAINTS, _described(table, key), message)


def _described(table: Table, key: bytes) -> str:
    """A primary key for people; its bytes if they are no key."""
    try:
        keys.decode_key(key)
        return describe_key(table, key)
    except (errors.Error, ValueError):
        return key.hex()
