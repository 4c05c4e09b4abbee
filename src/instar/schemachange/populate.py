"""Population (F1 §4.4): every row that has no value of a new column is given one, and put into the newest layout.

A row that has values of columns which were dropped, and which older snapshots may yet be asked for, keeps them: it is
put into the layout beside the newest one that has those columns too (`wide_layout`). Compaction takes them away once
the watermark has passed the drop.

The walk is over *current* keys and needs no snapshot (rule 20). Values are evaluated outside the atomic section, one
per row. Inside it a row is put only if it still has no value: as it was read, or, if somebody has changed it since,
made anew of the bytes that stand there now (rule 10). A row that has a value is left alone, so all of it may be done
again; and so is one in a layout that is newer than the schema which is known here (rule 11).

Values may be made, and rows derived, in other processes, which only read: numbers that defaults take from sequences are
counted beforehand, drawn by whoever may write, and lent (`Numbers`).

It is maintenance: the row keeps its commit timestamp, its lock timestamps and its place in the log, nothing is logged,
and nobody conflicts with it. So a version of a row has two forms, without the column before and with it after, and who
reads the version at an older snapshot may find either. That no reader of the column ever finds the first:

* Population begins behind the fence, so whoever writes a row since writes a value (rule 19): once the walk has ended,
  no row is without one.
* A statement that can name the column reads a snapshot s at which it was public, hence later than the end of the walk.
* It finds the row as it stands if that is not newer than s. Else it finds the before-image of the oldest change since
  s: that is the row as it stood when that change was made, which is later than s, and so after the walk.

Older before-images may be without the column for as long as the log has them. They are read at older snapshots only,
whose schema does not show it; what writes on such a snapshot is brought up to date by `tables/completion.py`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from instar import errors
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.descriptors import Column, Layout, State, Table
from instar.catalog.descriptors import Sequence as SequenceDescriptor
from instar.catalog.layouts import columns_left, recorded_layouts
from instar.encoding.rows import RowEncoder, RowReader
from instar.schemachange.elements import Element, is_required
from instar.schemachange.reorganize import STEP_ROWS
from instar.schemachange.stages import Superseded
from instar.schemachange.tasks import BATCH_ROWS, Derived, RowTask, Step
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Reader, Section, Store, View
from instar.tables.layout import body_encoder, layout_format
from instar.tables.locks import lock_places
from instar.tables.resolver import Wanted, resolver
from instar.tables.rowset import describe_key, wanted


class Numbers(Protocol):
    """Where the values of sequences come from."""

    def next_value(self, sequence: SequenceDescriptor) -> int:
        """nextval."""
        ...


class CompileDefault(Protocol):
    """What defaults are, which is SQL's business. An instance is made of `Numbers`, in whichever process."""

    def __call__(self, column: Column, catalog: CatalogSnapshot, now: int, zone: str) -> Callable[[], object]:
        """The function that evaluates a column's default for one row. Stable functions read the time and the zone:
        microseconds since 1970 UTC, and the time zone of the session that added the column."""
        ...

    def draws(self, column: Column, catalog: CatalogSnapshot) -> tuple[int, ...] | None:
        """The sequences that the default of one row takes a value of each from; None if rows differ in that."""
        ...


_TIMESTAMP = struct.Struct("<Q")
_ROW_TIMESTAMP = 0  # where it lies in a stored row


class Populated(NamedTuple):
    """One row to be put: its store key, what its bytes began with when they were read (header and lock timestamps,
    which no two of its states share), and its new bytes."""

    key: bytes
    seen: bytes
    value: bytes


class _Rewriter(NamedTuple):
    """What rows of one layout need: the one that they are put into, how they are read for that, the ordinals of the
    columns that they lack, how values of those are made, which ones they lack that are derived as they are read, where
    their lock timestamps lie, and where their bodies begin."""

    target: Layout
    encode: RowEncoder
    read: RowReader
    lacking: tuple[int, ...]
    make: tuple[Callable[[], object], ...]
    derived: tuple[int, ...]
    places: dict[int, int]
    start: int

    @property
    def is_needed(self) -> bool:
        """Whether the rows have no value yet of some column."""
        return bool(self.lacking or self.derived)


class Population(RowTask[Populated]):
    """The work of one job on one column whose values differ from row to row."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        element: Element,
        compile_default: CompileDefault,
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        rows: int,
        place: int = 0,
        now: int,
        zone: str,
    ) -> None:
        """Superseded if there is no such column."""
        with store.read() as reader:
            snapshot = catalog.at(reader)
        table = _table(snapshot, element)
        super().__init__(store, table, job=job, stage=stage, claim=claim, rows=rows, place=place)
        self.element = element
        self.compile_default = compile_default
        self.now, self.zone = now, zone
        self._catalog = catalog
        with store.read() as reader:
            self._adopt(table, snapshot, reader)

    def derive(self, start: bytes, stop: bytes) -> Derived[Populated]:
        """As in `RowTask`."""
        most = self.at_once(BATCH_ROWS)
        keys, stored, rewriters = self._read(start, stop, most)
        # The reader is closed: a sequence may have to reserve its next values.
        rows = [
            Populated(key, value[: rewriter.start], self._made(key, value, rewriter))
            for key, value, rewriter in zip(keys, stored, rewriters, strict=True)
            if rewriter is not None and rewriter.is_needed
        ]
        done = len(keys) < most
        live = sum(rewriter is not None for rewriter in rewriters)
        return Derived(rows, stop if done else keys[-1] + b"\x00", live, done)

    def _read(self, start: bytes, stop: bytes, most: int) -> tuple[list[bytes], list[bytes], list[_Rewriter | None]]:
        """A batch of at most so many rows, and what each needs."""
        with self.store.read() as reader:
            self._refresh(reader)
            keys, stored = self.read_rows(reader, start, stop, most)
        return keys, stored, [self._rewriter(value) for value in stored]

    # --- values of sequences -----------------------------------------------------------------------------------------

    def sequences(self) -> dict[int, SequenceDescriptor] | None:
        """The sequences that values are taken from; None if it cannot be told beforehand how many each row takes."""
        with self.store.read() as reader:
            self._refresh(reader)
            snapshot = self._catalog.at(reader)
        if None in self._draws.values():
            return None
        taken = {number: snapshot.by_id(number) for draws in self._draws.values() for number in draws or ()}
        return {number: found for number, found in taken.items() if isinstance(found, SequenceDescriptor)}

    def count_numbers(self, start: bytes, stop: bytes) -> Iterator[Counter[int]]:
        """How many values of which sequence the rows of [start, stop) take, batch by batch. They will not take more
        later, since no row loses a value."""
        done = False
        while not done:
            keys, _, rewriters = self._read(start, stop, BATCH_ROWS)
            lacking = Counter(ordinal for found in rewriters if found is not None for ordinal in found.lacking)
            taken: Counter[int] = Counter()
            for ordinal, rows in lacking.items():
                for number in self._draws[ordinal] or ():
                    taken[number] += rows
            yield taken
            done = len(keys) < BATCH_ROWS
            start = stop if done else keys[-1] + b"\x00"

    # --- the schema --------------------------------------------------------------------------------------------------

    def _refresh(self, reader: Reader) -> None:
        """Go on with the schema that `reader` sees: rows may be in its layout, and a sequence may have changed."""
        if reader.catalog_version == self._version:
            return
        snapshot = self._catalog.at(reader)
        table = _table(snapshot, self.element)
        if table.rowset != self.table.rowset:
            raise Superseded(f'the rows of table "{table.name}" were replaced')
        self._adopt(table, snapshot, reader)

    def _adopt(self, table: Table, snapshot: CatalogSnapshot, reader: Reader) -> None:
        self.table, self._version = table, snapshot.version
        self._layouts[table.layout.id] = table.layout
        # What is derived of the row is computed here and nowhere else: it may be another each time.
        self._wanted = [wanted(column)._replace(derived=column.derived, lenient=False) for column in table.columns]
        self._wide = self.layout(table.layout.id - 1, reader) if table.layout.has_wide else None
        self._dropped = [] if self._wide is None else self._lost(self._wide, reader)
        # All of them: a row in the newest layout has a value of every column of it.
        self._columns = {
            ordinal: (column, self._maker(column, self.compile_default(column, snapshot, self.now, self.zone)))
            for ordinal, column in enumerate(table.columns)
            if column.per_row and column.derived is None
        }
        self._draws = {
            ordinal: self.compile_default.draws(column, snapshot) for ordinal, (column, _) in self._columns.items()
        }
        self._rewriters: dict[int, _Rewriter] = {}

    def _lost(self, wide: Layout, reader: Reader) -> list[Wanted]:
        """What the wide layout has beside the newest one's columns, as it was when it was dropped: what is not of such
        a type, older snapshots were not told either. Of what no record tells any more no row has a value."""
        newest = self.table.layout.id
        lost = columns_left(recorded_layouts(reader, self.table.id, newest + 1, self.table.oldest_layout + 1))
        kept = wide.columns[len(self.table.layout.columns) :]
        return [
            wanted(lost[column])._replace(lenient=True) if column in lost else Wanted(column, type_)
            for column, type_ in kept
        ]

    def _rewriter(self, stored: bytes, view: View | None = None) -> _Rewriter | None:
        """What the row needs; None if it is no row, but a tombstone."""
        tag = ROW_HEADER.unpack_from(stored)[2]
        if tag & ROW_TOMBSTONE:
            return None
        found = self._rewriters.get(tag >> 8)
        if found is None:
            layout = self.layout(tag >> 8, view)
            found = self._rewriters[tag >> 8] = self._rewriter_of(layout)
        return found

    def _rewriter_of(self, layout: Layout) -> _Rewriter:
        has = {column for column, _ in layout.columns}
        lacking = {ordinal: make for ordinal, (column, make) in self._columns.items() if column.id not in has}
        target, columns = self.table.layout, self._wanted
        if self._wide is not None and any(column.column in has for column in self._dropped):
            target, columns = self._wide, self._wanted + self._dropped
        read = resolver(layout, columns)
        derived = [
            ordinal
            for ordinal, column in enumerate(self.table.columns)
            if column.per_row and column.derived is not None and column.id not in has
        ]
        start = layout_format(layout).start
        made = tuple(lacking), tuple(lacking.values()), tuple(derived)
        return _Rewriter(target, body_encoder(target), read, *made, lock_places(layout), start)

    def _maker(self, column: Column, evaluate: Callable[[], object]) -> Callable[[], object]:
        """Makes a value, which is not NULL where the column is NOT NULL."""
        if not is_required(column):
            return evaluate

        def make() -> object:
            value = evaluate()
            if value is None:
                raise self._is_null(column)
            return value

        return make

    def _is_null(self, column: Column) -> errors.Error:
        message = f'column "{column.name}" of relation "{self.table.name}" contains null values'
        return errors.error(errors.NOT_NULL_VIOLATION, message)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _made(self, key: bytes, stored: bytes, rewriter: _Rewriter) -> bytes:
        """The row at a store key with values of all columns. An error of what is derived of the row names it."""
        given = [make() for make in rewriter.make]
        try:
            return self._rewritten(stored, rewriter, given)
        except errors.Error as failed:
            failed.detail = failed.detail or f"It is row {describe_key(self.table, key[len(self.start) :])}."
            raise

    def _rewritten(self, stored: bytes, rewriter: _Rewriter, given: Sequence[object]) -> bytes:
        """The row in the newest layout, or the one beside it; its header stays but for the layout."""
        values = list(rewriter.read(stored))
        for ordinal, value in zip(rewriter.lacking, given, strict=True):
            values[ordinal] = value
        for ordinal in rewriter.derived:
            if values[ordinal] is None and is_required(self.table.columns[ordinal]):
                raise self._is_null(self.table.columns[ordinal])
        timestamp, sequence, tag = ROW_HEADER.unpack_from(stored)
        layout = rewriter.target
        header = ROW_HEADER.pack(timestamp, sequence, layout.id << 8 | tag & 0xFF)
        if not layout.locks:
            return header + rewriter.encode(values)
        # A lock that the old layout does not know moved when the row did, as far as is known.
        locks = [_TIMESTAMP.unpack_from(stored, rewriter.places.get(lock, _ROW_TIMESTAMP))[0] for lock in layout.locks]
        return header + b"".join([_TIMESTAMP.pack(lock) for lock in locks]) + rewriter.encode(values)

    def steps(self, made: Sequence[Populated]) -> Iterator[Step]:
        """As in `RowTask`."""
        source = iter(made)
        while chunk := list(islice(source, STEP_ROWS)):
            yield self._step(chunk)

    def _step(self, chunk: list[Populated]) -> Step:
        def step(section: Section) -> None:
            if self.pace is not None:
                self.pace.rows += len(chunk)
            for row in chunk:
                stored = section.get(row.key)
                if stored is None:
                    continue
                if stored.startswith(row.seen):
                    section.put(row.key, row.value)
                    continue
                if ROW_HEADER.unpack_from(stored)[2] >> 8 > self.table.layout.id:
                    # Written behind the fence, under a schema that is newer than the one known here: it has a value,
                    # and perhaps columns that would be lost; and what it lacks was dropped.
                    continue
                rewriter = self._rewriter(stored, section)
                if rewriter is not None and rewriter.is_needed:
                    given = self._values(row.value, section)
                    values = [given[ordinal] for ordinal in rewriter.lacking]
                    section.put(row.key, self._rewritten(stored, rewriter, values))

        return step

    def _values(self, row: bytes, view: View) -> tuple[object, ...]:
        """The values of a row that was made."""
        layout = self.layout(ROW_HEADER.unpack_from(row)[2] >> 8, view)
        return resolver(layout, self._wanted)(row)


def _table(snapshot: CatalogSnapshot, element: Element) -> Table:
    found = snapshot.by_id(element.table)
    if not isinstance(found, Table):
        raise Superseded(f"table {element.table} was dropped")
    for column in found.columns:
        if column.id == element.id and column.state is State.WRITE_ONLY:
            return found
    raise Superseded(f'column {element.id} of table "{found.name}" is no longer write-only')
