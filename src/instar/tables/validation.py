"""Validation of what a SERIALIZABLE transaction has read: nothing of it has changed from its snapshot to its commit.

Few keys and rows are looked at one by one in the atomic section (`RangeUnchanged`). Many are not: whoever holds the
writer for a scan of a table holds up everybody. There the log is read instead, which has each change since the
snapshot, tombstones too (rule 5), and is complete as long as the watermark has not passed the snapshot (rule 6): most
of it before the commit is derived, by `check`, and in the atomic section only what came since (`LogUntouched`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Index, State, Table, transformation_of
from instar.catalog.layouts import Layouts
from instar.encoding.keys import decode_key, is_cut
from instar.store.engine import (
    ROW_TOMBSTONE,
    LogRecord,
    LogUntouched,
    Precondition,
    RangeUnchanged,
    Store,
    prefix_end,
    rowset_prefix,
)
from instar.store.engine import View as StoreView
from instar.tables.index import IndexCodec
from instar.tables.locks import LockTimestamps, guarding
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.rowset import TableReader, described, named_row
from instar.transactions.commit import Conflict
from instar.transactions.reads import KeyRanges, Place, Range, ReadSet

# So many keys and rows are looked at in the atomic section, some 0.2 ms of work.
DIRECT = 256
# So many changes of the log are judged there; if there are more, the commit goes out once more, to judge them outside.
SECTION_CHANGES = 512

_PREFIX_BYTES = len(rowset_prefix(0))
_DEPENDENCIES = "due to read/write dependencies among transactions"


class ReadConflict(msgspec.Struct, frozen=True):
    """Handed back by the store: what was read of a table (in an index of it) has changed."""

    table: Table
    index: Index | None = None

    def error(self, found: bytes | None = None) -> errors.Error:
        """40001 that names what stands at `found`."""
        return _refused(self.table, None if found is None else self._detail(found))

    def _detail(self, found: bytes) -> str:
        if self.index is None:
            what = named_row(self.table, found[_PREFIX_BYTES:])
        elif is_cut(len(found)):  # longer than what is surely whole, and a part that was cut cannot be shown
            what = f'A key of index "{self.index.name}"'
        else:
            by_id = {column.id: column for column in self.table.columns}
            columns = [by_id[part.column] for part in self.index.columns]
            shown = described(columns, decode_key(found[_PREFIX_BYTES:])[: len(columns)])
            what = f'Key {shown} of index "{self.index.name}"'
        return f"{what}, which the transaction read or looked for, was changed by a transaction that committed first."


def _overtaken(source: Table, target: Table) -> errors.Error:
    """What a transaction has read of a table that was joined or split may have changed in one that was made of it."""
    return errors.error(
        errors.SERIALIZATION_FAILURE,
        f'could not serialize access to table "{source.name}", joined or split meanwhile, {_DEPENDENCIES}',
        detail=f'Table "{target.name}", which was made of it, was written to by a transaction that committed first. '
        f"The change was: {transformation_of(source)}",
        hint="Retry the transaction, on the new tables.",
    )


def _refused(table: Table, detail: str | None) -> errors.Error:
    return errors.error(
        errors.SERIALIZATION_FAILURE,
        f'could not serialize access to table "{table.name}" {_DEPENDENCIES}',
        detail=detail,
        hint="Retry the transaction.",
    )


class UnseenRows(msgspec.Struct, frozen=True):
    """Handed back by the store: a table that was to be emptied as a snapshot shows it has been written to since."""

    table: Table

    def error(self, found: bytes | None = None) -> errors.Error:
        """40001 that names the row at `found`."""
        name = self.table.name
        detail = None
        if found is not None:
            row = named_row(self.table, found[_PREFIX_BYTES:])
            detail = f"{row}, which TRUNCATE would take away unseen, was written by a transaction that committed first."
        return errors.error(
            errors.SERIALIZATION_FAILURE,
            f'could not truncate table "{name}" due to concurrent changes',
            detail=detail,
            hint="Retry the transaction.",
        )


# Whether a row stored as these bytes, newer than the snapshot, is another one for who has read certain columns of it.
Moved = Callable[[bytes], bool]


def _moved(table: Table, place: Place, snapshot: int, layouts: Layouts) -> Moved | None:
    """By the locks that cover the columns that were read; None: each newer row is another one, since the table has one
    lock, or this is an index, or a column has gone since and what covered it is not known any more."""
    columns = {column.id for column in table.columns}
    if place.index_id is not None or not table.layout.locks or not place.columns <= columns:
        return None
    timestamps = LockTimestamps(table, layouts)
    # A key never changes: a row under another key is another row, and moves all locks.
    read = place.columns.difference(table.primary_key)
    covering = {lock for column in table.columns if column.id in read for lock in guarding(table, column)}
    everything = table.layout.locks

    def moved(stored: bytes) -> bool:
        if stored[LAYOUT_OFFSET] & ROW_TOMBSTONE:
            return True
        if covering:
            return timestamps.newest(stored, covering) > snapshot
        return min(timestamps.of(stored, lock) for lock in everything) > snapshot  # as those of a new row

    return moved


class _Ranges:
    """Ranges of keys, disjoint and in order, to find a key in."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        found = list(ranges)
        self._starts = [start for start, _ in found]
        self._stops = [stop for _, stop in found]

    def __contains__(self, key: bytes | None) -> bool:
        if key is None:
            return False
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and key < self._stops[at]


class _TableReads:
    """What was read of one table, to be compared with changes of its rows."""

    def __init__(self, table: Table, layouts: Layouts) -> None:
        self.table = table
        self._reader = TableReader(table, range(len(table.columns)), layouts, lenient=True)
        self._rows: list[tuple[_Ranges, Moved | None]] = []
        self._entries: list[tuple[IndexCodec, _Ranges]] = []

    def add(self, index: Index | None, ranges: Sequence[Range], moved: Moved | None) -> None:
        if index is None:
            self._rows.append((_Ranges(ranges), moved))
        else:
            self._entries.append((IndexCodec(self.table, index), _Ranges(ranges)))

    def touched(self, view: StoreView, record: LogRecord) -> bool:
        """Whether the change is one of a row that was read, or takes an entry out of a range read or into one.

        Of the versions that the row had, each is the before-image of the next change or stands in place. So if entries
        came or went meanwhile, one of the before-images has another entry than the row in place.
        """
        if not record.key.startswith(self._reader.prefix):
            return False
        stored = view.get(record.key)
        for rows, moved in self._rows:
            if record.key in rows and (moved is None or stored is None or moved(stored)):
                return True
        if not self._entries:
            return False
        key = record.key[_PREFIX_BYTES:]
        images = [self._image(record.before), self._image(stored)]
        for codec, ranges in self._entries:
            before, now = [None if image is None else codec.entry(image, key) for image in images]
            if before != now and (before in ranges or now in ranges):
                return True
        return False

    def _image(self, stored: bytes | None) -> tuple[object, ...] | None:
        if stored is None or stored[LAYOUT_OFFSET] & ROW_TOMBSTONE:
            return None
        return self._reader.decode(stored)


class Validation:
    """A read set to be validated under the catalog `newest` of the store (e; the store sees to it that e = c).

    `known` is the catalog of the transaction's snapshot: what it does not know is the transaction's own. Conflict if
    something was read of what is no longer there or no longer maintained (rule 13).
    """

    def __init__(
        self, reads: ReadSet, known: CatalogSnapshot, newest: CatalogSnapshot, snapshot: int, layouts: Layouts
    ) -> None:
        self._snapshot = snapshot
        self._layouts = layouts
        self._compared: dict[int, _TableReads] | None = None
        self._sources: dict[int, Table] = {}  # of which a table was made that is looked at in their place, by its id
        self._parts: list[tuple[Table, Index | None, Sequence[Range], Moved | None]] = []
        self._direct = True
        cost = 0
        if reads.catalog and known.version != newest.version:
            raise Conflict(
                errors.error(
                    errors.SERIALIZATION_FAILURE,
                    f"could not serialize access to the catalog {_DEPENDENCIES}",
                    detail="The schema, which the transaction read in a system view, was changed.",
                    hint="Retry the transaction.",
                )
            )
        for place, ranges in reads:
            meant = known.by_id(place.table)
            if isinstance(meant, Table) and _is_known(meant, place):
                self._add(meant, newest, place, ranges)
                cost += ranges.rows + len(ranges.ordered())
                self._direct &= not ranges.widened
        self._direct &= cost <= DIRECT

    def _add(self, meant: Table, newest: CatalogSnapshot, place: Place, ranges: KeyRanges) -> None:
        table = newest.by_id(place.table)
        if not isinstance(table, Table):
            table = self._crossed(meant, newest)
        if table is None:
            raise Conflict(
                _refused(meant, "The table, which the transaction read, was dropped by a concurrent drop table.")
            )
        index = None
        if table.rowset != meant.rowset:
            raise Conflict(
                _refused(
                    table,
                    "The rows of the table, which the transaction read, were replaced as a whole (truncate, load).",
                )
            )
        if place.index_id is not None:
            index = next((found for found in table.indexes if found.rowset == place.rowset), None)
            if index is None or index.state is State.DELETE_ONLY:
                name = next(found.name for found in meant.indexes if found.id == place.index_id)
                raise Conflict(_refused(table, f'Index "{name}", which the transaction read, is no longer kept.'))
            # One that is write-only again, on its way back, may not be filled yet; the log knows all the same.
            self._direct &= index.state is State.PUBLIC
        moved = _moved(table, place, self._snapshot, self._layouts)
        self._parts.append((table, index, ranges.ordered(), moved))

    def _crossed(self, meant: Table, newest: CatalogSnapshot) -> Table | None:
        """The table as it was last, if it was joined or split and changes of it may still come: its rows did not change
        since, and none of those may have that were made of it, whichever they are. Only the log tells that."""
        kept = newest.kept_of(meant.id)
        if kept is None:
            return None
        self._direct = False
        source = kept.sources[kept.made.sources.index(meant.id)]
        for number in kept.made.targets:
            target = newest.by_id(number)
            if not isinstance(target, Table):
                return None
            start = rowset_prefix(target.rowset)
            whole = [(start, prefix_end(start))]
            if (target, None, whole, None) not in self._parts:
                self._parts.append((target, None, whole, None))
                self._sources[target.id] = source
        return source

    @property
    def _tables(self) -> dict[int, _TableReads]:
        """The reads by table, compiled for the comparison with the log."""
        found = self._compared
        if found is None:
            found = self._compared = {}
            for table, index, ranges, moved in self._parts:
                if table.id not in found:
                    found[table.id] = _TableReads(table, self._layouts)
                found[table.id].add(index, ranges, moved)
        return found

    def check(self, store: Store, since: int, upto: int) -> int:
        """Judge the changes after `since` and up to `upto`, outside the atomic section; returns up to where it is done.

        Conflict if what was read is among them. Reads that are to be looked at one by one are left to the section.
        """
        if self._direct:
            return since
        tables = self._tables
        for record in store.log(since, upto):
            reads = tables.get(record.table)
            if reads is not None:
                with store.read() as reader:
                    touched = reads.touched(reader, record)
                if touched:
                    raise Conflict(self.error(record.key))
        return upto

    def preconditions(self, since: int) -> list[Precondition]:
        """What the store must judge if everything up to `since` is judged already."""
        if self._direct:
            return [
                RangeUnchanged(start, stop, self._snapshot, ReadConflict(table, index), moved)
                for table, index, ranges, moved in self._parts
                for start, stop in ranges
            ]
        return [LogUntouched(since, SECTION_CHANGES, self._touches, self)] if self._parts else []

    def error(self, found: bytes | None = None) -> errors.Error:
        """40001 for the row at `found`, which a change in the log has touched."""
        assert found is not None  # what `_touches` has given
        tables = (reads.table for reads in self._tables.values())
        table = next(table for table in tables if found.startswith(rowset_prefix(table.rowset)))
        source = self._sources.get(table.id)
        return ReadConflict(table).error(found) if source is None else _overtaken(source, table)

    def _touches(self, view: StoreView, record: LogRecord) -> bytes | None:
        reads = self._tables.get(record.table)
        return record.key if reads is not None and reads.touched(view, record) else None


def _is_known(table: Table, place: Place) -> bool:
    """Whether the rowset is one of the snapshot's, rather than one that the transaction itself has made."""
    if place.index_id is None:
        return table.rowset == place.rowset
    return any(index.id == place.index_id and index.rowset == place.rowset for index in table.indexes)
