"""What rows get for a column that comes back (ALTER TABLE ... UNDROP COLUMN) if they were written since it went.

Each row that was there at the drop has the value that it had then, though it may have been changed since, or have
another key by now; the log tells. A row that has come since has the column's default, as if the column had been added
now. Both are updates of the statement's own transaction, so that they are bounded, logged and judged like any other.
Rows that nobody has written since are not touched: they are in layouts that have the column.

Nobody may write to the table between what was read of it and the commit. Of a statement in autocommit nobody sees
anything before that, so the log is followed in passes (`Restoration`), each of which only looks at what was written
since the one before, and the last, of a few changes, is made in the atomic section. In a transaction of several
statements, which goes on with the values, a write of others since its snapshot ends it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from instar import errors
from instar.catalog.changes import deallocated
from instar.catalog.descriptors import Column, Table
from instar.catalog.history import DroppedColumn, dropped_columns
from instar.sql.defaults import compile_default
from instar.store.engine import (
    ROW_HEADER,
    Commit,
    LogRecord,
    Reader,
    Refused,
    RowWrite,
    StaleRow,
    TableWrites,
    rowset_prefix,
)
from instar.store.engine import View as StoreView
from instar.store.log import decode, log_key
from instar.store.versions import read_row
from instar.tables.layout import body_encoder
from instar.tables.locks import RowLocks
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.rowset import TableReader
from instar.transactions.buffer import Change, too_many_rows

if TYPE_CHECKING:
    from instar.database.session import Session

# Records of the log after which it is looked whether the statement was cancelled; rows that one reader looks at.
_BATCH = 1000
# Passes are made until one meets no more keys than this; after so many it is given up.
_FEW = 16
_MOST_PASSES = 100
# So many changes, and of others' tables, may be looked at in the atomic section; with more, one more pass is made.
_IN_SECTION = 64
_LOOKED_AT = 1000
_LAYOUT = struct.Struct("<I")


class _Row(NamedTuple):
    """A row as it stands, and as it is to be with its value."""

    key: bytes  # in the store
    stored: bytes
    base: int
    old: tuple[object, ...]
    image: tuple[object, ...]
    is_needed: bool  # whether the value has to be written


class Origins:
    """Where the rows that were written since the drop were at the drop, by their keys now; None if they have come
    since."""

    def __init__(self) -> None:
        self.of: dict[bytes, bytes | None] = {}
        self._unknown: set[bytes] = set()

    def follow(self, records: Iterable[LogRecord]) -> set[bytes]:
        """Learn what was done by later commits, whole ones; returns the keys that they have written."""
        touched: set[bytes] = set()
        for _timestamp, group in groupby(records, lambda record: record.timestamp):
            commit = list(group)
            touched.update(one.key for one in commit)
            self._follow(commit)
        return touched

    def _follow(self, commit: Sequence[LogRecord]) -> None:
        origins, unknown = self.of, self._unknown
        moved = {one.pair: origins.get(one.key, one.key) for one in commit if one.deleted and one.pair}
        lost = {one.pair for one in commit if one.deleted and one.key in unknown}
        for one in commit:
            if one.deleted or (not one.pair and (one.before is None or one.renewed)):
                unknown.discard(one.key)
                origins[one.key] = None
        for one in commit:
            if one.deleted:
                continue
            if not one.pair:
                origins.setdefault(one.key, one.key)
                continue
            origins[one.key] = moved.get(one.pair)
            if one.pair in moved and one.pair not in lost:
                unknown.discard(one.key)
            else:
                unknown.add(one.key)

    @property
    def are_lost(self) -> bool:
        """Whether some are not known."""
        return bool(self._unknown)

    def require_known(self, table: Table) -> None:
        """55000 for rows that have come to others' places by changes of keys: the log does not tell from where."""
        if self._unknown:
            raise errors.error(
                errors.OBJECT_NOT_READY,
                f'it is not known which rows of table "{table.name}" had which values of the column',
                detail=f"Since it was dropped, {len(self._unknown)} rows have taken others' places by changes of keys.",
            )


class _Values:
    """The values of one column that comes back."""

    def __init__(self, session: Session, table: Table, before: Table) -> None:
        """`before`: the table without the column. 72000 if the store has forgotten what rows had."""
        known = {column.id for column in before.columns}
        (column,) = (column for column in table.columns if column.id not in known)
        with session.database.store.read() as reader:
            lost = next((one for one in dropped_columns(reader, before) if one.column.id == column.id), None)
        if lost is None:
            raise errors.error(errors.SNAPSHOT_TOO_OLD, f'the values of column "{column.name}" are gone')
        layouts = session.database.layouts
        self.table, self.column = table, column
        self.kept = lost.timestamp - 1
        self.prefix = rowset_prefix(table.rowset)
        self.origins = Origins()
        self.without: set[bytes] = set()  # rows that have no value, though they must have one
        self._session = session
        self._ordinal = table.columns.index(column)
        # Of rows that were written since, nothing says that what the column is derived of could be converted.
        self._rows = TableReader(table, range(len(table.columns)), layouts, lenient=True)
        self._then = _reader_of(lost, session)
        self._default = _default(session, column)
        self._new: dict[bytes, object] = {}  # of rows that have come since, as it was made
        self._had: dict[bytes, object] = {}  # of those that were there, by their keys then: a row's past may be long
        self._draws = column.sequence is not None or "#" in (column.default or "")
        self._layouts: set[int] = set()  # those that rows were met in

    def follow(self, after: int, upto: int) -> set[bytes]:
        """What was written to the table after one timestamp and up to another: the keys."""
        store, table = self._session.database.store, self.table.id
        return self.origins.follow(
            record for record in self._checked(store.log(after, upto)) if record.table == table and not record.replaced
        )

    def rows(self, keys: Iterable[bytes], snapshot: int | None = None) -> Iterator[list[_Row]]:
        """The rows at these keys, those that are gone left out, in batches: as they stand, or at a snapshot."""
        store = self._session.database.store
        following = iter(keys)
        while batch := list(islice(following, _BATCH)):
            self._session.check_cancel()
            with store.read() if snapshot is None else store.read_at(snapshot) as reader:
                if reader.watermark > self.kept:
                    raise deallocated(self.table.name)
                found = [(key, self._stored(reader, key, snapshot), self._origin(reader, key)) for key in batch]
            yield [row for part in found if (row := self._row(*part)) is not None]

    def _stored(self, reader: Reader, key: bytes, snapshot: int | None) -> bytes | None:
        return read_row(reader, key, reader.timestamp if snapshot is None else snapshot)

    def _origin(self, reader: StoreView, key: bytes) -> bytes | None:
        """The version of the drop, if it is to be looked at."""
        origin = self.origins.of.get(key, key)
        return None if origin is None or origin in self._had else read_row(reader, origin, self.kept)

    def _row(self, key: bytes, stored: bytes | None, origin: bytes | None) -> _Row | None:
        """The reader is closed: a sequence may have to reserve its next values, and layouts to be read."""
        self._layouts.update(_layout_of(found) for found in (stored, origin) if found is not None)
        return self._restored(key, stored, origin)

    def row_in_section(self, section: StoreView, key: bytes) -> _Row | None:
        """The same where nothing else may be read. StaleRow if something would have to be."""
        stored, origin = read_row(section, key, section.timestamp), self._origin(section, key)
        is_met = all(_layout_of(found) in self._layouts for found in (stored, origin) if found is not None)
        is_new = origin is None and self.origins.of.get(key, key) not in self._had
        if not is_met or (self._draws and is_new and key not in self._new):
            raise StaleRow(key)
        return self._restored(key, stored, origin)

    def _restored(self, key: bytes, stored: bytes | None, origin: bytes | None) -> _Row | None:
        self.without.discard(key)
        if stored is None:
            self._new.pop(key, None)
            return None
        old = self._rows.decode(stored)
        value = self._value(key, origin)
        if value is None and self.column.refuses_null:
            self.without.add(key)
        # What it is derived of may have been changed since; then a NULL of the past is to stand in the row.
        needed = value is not None or old[self._ordinal] is not None or self.column.derived is not None
        image = (*old[: self._ordinal], value, *old[self._ordinal + 1 :])
        return _Row(key, stored, ROW_HEADER.unpack_from(stored)[0], old, image, needed)

    def _value(self, key: bytes, origin: bytes | None) -> object:
        was = self.origins.of.get(key, key)
        if was is not None and origin is not None:
            self._had[was] = self._then.decode(origin)[0]
        if was is not None and was in self._had:
            return self._had[was]
        if key not in self._new:
            self._new[key] = self._default()
        return self._new[key]

    def _checked(self, records: Iterable[LogRecord]) -> Iterator[LogRecord]:
        """The records, for as long as the statement is not cancelled."""
        for number, record in enumerate(records):
            if not number % _BATCH:
                self._session.check_cancel()
            yield record

    def forget(self) -> None:
        """All that was followed; new rows keep the values that were made for them."""
        self.origins = Origins()
        self.without = set()

    @property
    def is_lacking(self) -> bool:
        """Whether `require_values` raises."""
        return bool(self.without) or self.origins.are_lost

    def require_values(self) -> None:
        """23502 if rows have no value of a NOT NULL column, 55000 if it is not known where some come from."""
        self.origins.require_known(self.table)
        if self.without:
            raise errors.error(
                errors.NOT_NULL_VIOLATION,
                f'column "{self.column.name}" of relation "{self.table.name}" contains null values',
                detail=f"{len(self.without)} rows have come since it was dropped, and it has no default.",
                hint="UNDROP COLUMN ... CASCADE brings it back without NOT NULL.",
            )


def restore_values(session: Session, table: Table, before: Table) -> None:
    """Buffer what makes the rows of `table` have the values of the column that `before` had not. Errors: 23502 (rows
    that have come since have no value of a NOT NULL column), 54000 (too many rows), 55000 (it is not known where a row
    comes from), 72000 (the store has forgotten what rows had)."""
    open_ = session.open_transaction()
    assert open_.snapshot is not None  # a statement is running
    snapshot = open_.snapshot.timestamp
    values = _Values(session, table, before)
    session.change().require_untouched(table, snapshot, kept=values.kept)
    values.follow(values.kept, snapshot)
    values.origins.require_known(table)
    changed, skip = frozenset({values.column.id}), len(values.prefix)
    for rows in values.rows(values.origins.of, snapshot):
        for row in rows:
            if row.is_needed:
                key = row.key[skip:]
                open_.buffer.update(table.id, table.version, key, row.base, row.old, row.image, changed)
    values.require_values()
    session.enlist()


def require_known_values(session: Session, table: Table, before: Table) -> None:
    """As far as the log tells of it, without looking at a row: 55000 if it is not known where a row comes from, 72000
    if the store has forgotten what rows had."""
    values = _Values(session, table, before)
    with session.database.store.read() as reader:
        upto = reader.timestamp
    values.follow(values.kept, upto)
    values.origins.require_known(table)


class Restoring(NamedTuple):
    """What the columns that a transaction brings back have its commit do. `tables`: those that get one; until
    `until_ns`, on the monotonic clock, the commit waits for locks on their rows."""

    tables: tuple[Table, ...]
    restorations: tuple[Restoration, ...]
    until_ns: int


class Restoration:
    """The values of a column that comes back by a statement in autocommit: what its commit writes beside the schema
    change. Errors as of `restore_values`, from each step."""

    def __init__(self, session: Session, table: Table, before: Table) -> None:
        self._session = session
        self._values = _Values(session, table, before)
        self._upto = self._values.kept
        self._rows: dict[bytes, RowWrite] = {}
        self._encode = body_encoder(table.layout)
        self._locks = RowLocks(table, session.database.layouts) if table.layout.locks else None
        self._most = session.open_transaction().buffer.max_rows
        self._passes = 0
        self._completed = False
        self.table = table

    def follow(self, refused: Refused | None = None) -> None:
        """Outside of the atomic section: up to now, in passes, each as long as what was written during the one before.
        `refused`: what the last attempt failed of. 55006 if others write faster than that."""
        if self._completed:  # what was seen in the section may have come to nothing
            self._values.forget()
            self._rows.clear()
            self._upto, self._completed = self._values.kept, False
        elif isinstance(refused, StaleRow) and refused.key.startswith(self._values.prefix):
            self._derive({refused.key})  # maintenance has put it elsewhere, of which the log has nothing
        store = self._session.database.store
        touched: set[bytes] | None = None
        while touched is None or len(touched) > _FEW:
            self._passes += 1
            if self._passes > _MOST_PASSES:
                raise _too_fast(self.table)
            with store.read() as reader:
                upto = reader.timestamp
            touched = self._values.follow(self._upto, upto)
            self._derive(touched)
            self._upto = upto
        self._values.require_values()

    def _derive(self, keys: set[bytes]) -> None:
        """The writes of the rows at these keys, as they stand."""
        for key in keys:
            self._rows.pop(key, None)
        for rows in self._values.rows(sorted(keys)):
            for row in rows:
                if row.is_needed:
                    self._rows[row.key] = self._write(row)
            if len(self._rows) > self._most:
                raise too_many_rows(self._most)

    def _write(self, row: _Row) -> RowWrite:
        """No index and no constraint stands on the column, so that the row is all that changes."""
        stamps: tuple[int, ...] = ()
        if self._locks is not None:
            change = Change(row.base, row.image, row.old, frozenset({self._values.column.id}), self.table.version)
            stamps = self._locks.stamps(change, row.stored)
        return RowWrite(row.key, row.stored, self._encode(row.image), self.table.layout.id, stamps)

    def add_to(self, request: Commit, reader: Reader, *, heeds_locks: bool) -> None:
        """Make it part of the commit, as far as it is known."""
        if reader.watermark > self._values.kept:
            raise deallocated(self.table.name)
        rows: list[RowWrite] = []
        table = self.table
        names = (table.id, table.version, table.checks_version)
        request.tables.append(TableWrites(*names, rows, heeds_locks=heeds_locks, whole=table.logged_whole))
        request.complete = partial(self._complete, rows)
        kept = self._values.kept
        request.snapshot = kept if request.snapshot is None else min(kept, request.snapshot)

    def _complete(self, rows: list[RowWrite], section: StoreView) -> None:
        """The last pass, in the atomic section. StaleRow if it would be too long."""
        late = []
        pairs = section.scan(log_key(self._upto + 1, 0), log_key(section.timestamp + 1, 0))
        for seen, (key, value) in enumerate(pairs):
            late += [record for record in decode(key, value) if record.table == self.table.id]
            if seen > _LOOKED_AT or len(late) > _IN_SECTION:
                raise StaleRow(b"")
        self._completed = True
        for key in self._values.origins.follow(late):
            row = self._values.row_in_section(section, key)
            self._rows.pop(key, None)
            if row is not None and row.is_needed:
                self._rows[key] = self._write(row)
        if self._values.is_lacking or len(self._rows) > self._most:
            raise StaleRow(b"")  # which is told outside
        rows[:] = self._rows.values()


def _too_fast(table: Table) -> errors.Error:
    return errors.error(
        errors.OBJECT_IN_USE,
        f'rows of table "{table.name}" are written faster than they are given values of the column',
        hint="Try again when less is written to it.",
    )


def _layout_of(stored: bytes) -> int:
    number: int = _LAYOUT.unpack_from(stored, LAYOUT_OFFSET)[0]
    return number >> 8


def _reader_of(lost: DroppedColumn, session: Session) -> TableReader:
    """Reads the column as it was."""
    return TableReader(lost.table, [lost.table.columns.index(lost.column)], session.database.layouts, lenient=True)


def _default(session: Session, column: Column) -> Callable[[], object]:
    """What a row has that says nothing of the column."""
    database, catalog = session.database, session.catalog()

    def next_value(sequence: int) -> int:
        return database.sequences.next_value(database.sequence(sequence, catalog))

    return compile_default(column, catalog, session.function_context(), next_value)
