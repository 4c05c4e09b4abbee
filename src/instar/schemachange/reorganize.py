"""Reorganization (F1 §4.4): the backfill of indexes, shared by the in-process reorganizer and the one on Spark.

A backfill walks the *current* keys of the table and needs no snapshot (rule 20). Entries are derived in bulk outside
the atomic section, and put in the order of their own keys: many at once, so that those of one page come together. The
log tells which rows were changed since they were derived, just before the section and in it: of these the row is read
again and the entry derived anew, so no row is ever "skipped because changed". An entry bears its row's timestamp
(rule 4); to put one that stands already does no harm, so all of it may be done again after a crash. A unique index
probes in the same section (rule 21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from instar.catalog.descriptors import Column, Index, Layout, Table
from instar.encoding.key_batches import compile_key_batch_encoder
from instar.encoding.keys import compile_encoder, limited_index_key
from instar.schemachange.duplicates import Duplicates
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.tasks import BATCH_ROWS, Step, Task, tags_of
from instar.schemachange.touched import Touched
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, ROW_TOMBSTONE, Section, Store, View, prefix_end, rowset_prefix
from instar.tables.resolver import mixed_batch_reader, resolver
from instar.tables.rowset import describe_key, described, wanted
from instar.types import BIGINT, DOUBLE, INTEGERS, NUMERIC, STRINGS, TEXT, Kind, Type

# Up to so many rows the DDL's own call reorganizes (about 10 ms of work); beyond, the worker does.
SMALL_ROWS = 5_000

# Rows per step of the gate (a step cannot be interrupted).
STEP_ROWS = 16
# Entries per step, which are compared with their rows before.
STEP_ENTRIES = 64
# How many entries are sorted together. The more, the more of them in a row go to the same page: an index over 500,000
# rows has some 4,000. But beside commits no more than have lately taken so long, from being read to being put: they go
# on record together, progress is to be seen, and what is not on record is lost when the work is interrupted.
SORTED_ENTRIES = 16_384
SORTED_NS = 1_000_000_000

_HEADER_BYTES = ROW_HEADER.size
_LIVE = 8  # where an entry's live byte lies
_BY_KEY = itemgetter(0)
_PREFIX_BYTES = len(rowset_prefix(0))

FindLayout = Callable[[int, View], Layout]


class Entry(NamedTuple):
    """One index entry to be put: its store key, where the primary key begins in it, the store key of its row, and the
    16 bytes of row header that it was derived from. `unique`: no other row may have a live entry of this prefix."""

    key: bytes
    offset: int
    row: bytes
    header: bytes
    unique: bool


def widest(column: Column) -> Type:
    """A type that reads whatever a compatible step may make of the column, with the same key encoding."""
    kind = column.type.kind
    if kind in INTEGERS:
        return BIGINT
    if kind in STRINGS:
        return TEXT
    return {Kind.REAL: DOUBLE, Kind.NUMERIC: NUMERIC}.get(kind, column.type)


def entry_value(entry: Entry) -> bytes:
    """A live entry as it is stored; it bears its row's timestamp (rule 4)."""
    return ENTRY_VALUE.pack(ROW_HEADER.unpack_from(entry.header)[0], 1, entry.offset)


class Derivation:
    """How the entries of one index are derived from rows: in bulk, and one by one in the atomic section."""

    def __init__(self, table: Table, index: Index, layout: FindLayout) -> None:
        self.index = index
        self.duplicates = Duplicates(index.name)
        self._table = table
        self.prefix = rowset_prefix(index.rowset)
        self._layout = layout
        by_id = {column.id: column for column in table.columns}
        self._columns = [by_id[part.column] for part in index.columns]
        types = [widest(column) for column in self._columns]
        descending = [part.descending for part in index.columns]
        self._wanted = [wanted(column)._replace(type=type_) for column, type_ in zip(self._columns, types, strict=True)]
        self._encode = compile_encoder(types, descending)
        self._encode_batch = compile_key_batch_encoder(types, descending, prefix=self.prefix)
        self._decoders: dict[int, Callable[[bytes], tuple[object, ...]]] = {}

    def many(self, layouts: Mapping[int, Layout], keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Entry]:
        """The entries of live rows (whole store keys and values, in any of `layouts`), in their order."""
        columns = mixed_batch_reader(layouts.__getitem__, self._wanted)(stored)
        encoded = self._encode_batch(columns)
        unique = [self.index.unique] * len(keys)
        if self.index.unique:
            for column in columns:
                if column.null_count:
                    unique = [kept and valid for kept, valid in zip(unique, column.is_valid().to_pylist(), strict=True)]
        skip = len(self.prefix)
        made = []
        for row, value, whole, probed in zip(keys, stored, encoded, unique, strict=True):
            part = limited_index_key(whole, skip)
            made.append(Entry(part + row[skip:], len(part), row, value[:_HEADER_BYTES], probed))
        return made

    def one(self, section: View, row: bytes, stored: bytes) -> Entry:
        """The entry of one row, derived from its bytes as stored."""
        row_values = self._values(section, stored)
        part = self.prefix + limited_index_key(self._encode(row_values))
        unique = self.index.unique and None not in row_values
        return Entry(part + row[len(self.prefix) :], len(part), row, stored[:_HEADER_BYTES], unique)

    def met(self, section: Section, row: bytes, stored: bytes) -> None:
        """The row as stored shares its key with another: noted."""
        key = described(self._columns, self._values(section, stored))
        self.duplicates.add(key, describe_key(self._table, row[len(self.prefix) :]))

    def _values(self, section: View, stored: bytes) -> tuple[object, ...]:
        layout = ROW_HEADER.unpack_from(stored)[2] >> 8
        decode = self._decoders.get(layout)
        if decode is None:
            decode = self._decoders[layout] = resolver(self._layout(layout, section), self._wanted)
        return decode(stored)


class Backfill(Task):
    """The work of one job on indexes of one table, side by side in one pass: how entries are derived and put."""

    gathers = True

    def __init__(
        self,
        store: Store,
        table: Table,
        indexes: Sequence[Index],
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        rows: int,
        place: int = 0,
    ) -> None:
        super().__init__(store, table, job=job, stage=stage, claim=claim, rows=rows, place=place)
        self.indexes = tuple(indexes)
        self._touched = Touched(table.id)
        derivations = [Derivation(table, index, self.layout) for index in indexes]
        self._derivations = {found.prefix: found for found in derivations}

    @property
    def rows_to_read(self) -> int:
        """As in `Task`: entries are what is put, one per row and index."""
        return self.rows // max(len(self.indexes), 1)

    def batches(self, at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
        """As in `Task`, in the order of the table's keys. The entries of a batch are put in that of their own."""
        breath = self.breath
        most = SORTED_ENTRIES if breath is None else BATCH_ROWS
        while not at.done:
            begun, before = 0 if breath is None else breath.now(), at.rows
            entries, derived, at = self._derived(at, self.together(min(most, SORTED_ENTRIES)), begun)
            entries.sort(key=_BY_KEY)
            yield self.steps(entries, derived), at
            if breath is not None and at.rows > before:
                most = max(STEP_ENTRIES, (at.rows - before) * SORTED_NS // max(breath.now() - begun, 1))

    def follow(self) -> int:
        """Learn which rows others have changed by now. The timestamp of that: entries that others derive of what is
        read from now on are derived at it, or later."""
        with self.store.read() as reader:
            return self._followed(reader)

    def _followed(self, view: View) -> int:
        return self._touched.follow(view)

    # --- deriving ----------------------------------------------------------------------------------------------------

    def _derived(self, at: Checkpoint, most: int, begun: int) -> tuple[list[Entry], int, Checkpoint]:
        """The next `most` entries or so; the timestamp since which a row must not have been changed for its entry to
        stand; and how far they go. Where the task breathes they are made in pieces, for as long as it gathers."""
        breath, before, made = self.breath, at.rows, list[Entry]()
        each = max(len(self.indexes), 1)
        derived: int | None = None
        while True:
            read = self.at_once(min(BATCH_ROWS, max((most - len(made)) // each, 1)))
            with self.store.read() as reader:
                timestamp = self._followed(reader)
                keys, rows = self.read_rows(reader, at.position, at.stop, read)
            made += self.entries(keys, rows)
            # That of the first piece: what was changed while the others were made counts as changed.
            derived = timestamp if derived is None else derived
            done = len(keys) < read
            at = Checkpoint(at.start, at.stop, at.stop if done else keys[-1] + b"\x00", before + len(made), done)
            self.rows_read = at.rows // each
            self.rest(read=True)
            if self.pace is not None:
                self.pace.interrupt()
            if done or len(made) >= most or (breath is not None and not breath.gathers(begun)):
                return made, derived, at

    def entries(self, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Entry]:
        """The entries of rows as `read_rows` gives them, tombstones left out; in bulk."""
        live = np.flatnonzero(tags_of(stored) & ROW_TOMBSTONE == 0).tolist()
        if not live:
            return []
        if len(live) < len(stored):
            keys, stored = [keys[i] for i in live], [stored[i] for i in live]
        return [
            entry for derivation in self._derivations.values() for entry in derivation.many(self._layouts, keys, stored)
        ]

    def _derivation(self, entry: Entry) -> Derivation:
        """That of the entry's index."""
        return self._derivations[entry.key[:_PREFIX_BYTES]]

    # --- putting -----------------------------------------------------------------------------------------------------

    def steps(self, entries: Iterable[Entry], derived: int) -> Iterator[Step]:
        """Gated steps that put the entries, in the order given; sorted by `key` they are cheapest. 23505 in the last of
        them, if a key is not unique. `derived`: the timestamp that they were derived at; rows that were changed since
        are read once more."""
        source = iter(entries)
        while chunk := list(islice(source, self._together)):
            yield self._step(chunk, derived)
        for derivation in self._derivations.values():
            yield derivation.duplicates.require_none

    @property
    def _together(self) -> int:
        """So many entries are one step."""
        return STEP_ENTRIES

    def _step(self, chunk: list[Entry], derived: int) -> Step:
        """A step that puts the entries of a few rows. They are compared with the rows here, where nobody waits for it:
        in the atomic section only what the log says was changed since is looked at once more."""
        with self.store.read() as reader:
            since = self._touched.follow(reader)
            wanted = self._still_missing(reader, chunk, derived)
        pairs = [(entry.key, entry_value(entry)) for entry in wanted]
        rows = {entry.row for entry in wanted}
        probes = any(entry.unique for entry in wanted)

        def step(section: Section) -> None:
            if self.pace is not None:
                self.pace.rows += len(chunk)
            touched = self._touched
            touched.follow(section)
            changed = touched.changed(rows, since)
            if not probes and not changed:
                if pairs:
                    section.put_many(pairs)
                return
            for entry, (key, value) in zip(wanted, pairs, strict=True):
                if entry.row not in changed:
                    self._put(section, entry, key, value)
                elif (current := self._missing(section, entry)) is not None:
                    self._put(section, current, current.key, entry_value(current))

        return step

    def _still_missing(self, view: View, chunk: list[Entry], derived: int) -> list[Entry]:
        """Of entries that were derived at that timestamp, those that are wanted in a later view, as they are by now."""
        changed = self._touched.changed({entry.row for entry in chunk}, derived)
        if not changed:
            return chunk
        current = (self._missing(view, entry) if entry.row in changed else entry for entry in chunk)
        return [entry for entry in current if entry is not None]

    def _put(self, section: Section, entry: Entry, key: bytes, value: bytes) -> None:
        """Put one entry, unless its key is unique and another row's."""
        if entry.unique and self._is_taken(section, entry):
            self._derivation(entry).met(section, entry.row, section.get(entry.row) or b"")
        else:
            section.put(key, value)

    def _missing(self, view: View, entry: Entry) -> Entry | None:
        """The entry that the row wants as it is in this view; None if it is there, or if the row is gone."""
        stored = view.get(entry.row)
        if stored is None or ROW_HEADER.unpack_from(stored)[2] & ROW_TOMBSTONE:
            return None
        if stored[:_HEADER_BYTES] != entry.header:
            entry = self._derivation(entry).one(view, entry.row, stored)
        standing = view.get(entry.key)
        return None if standing is not None and standing[_LIVE] else entry

    def _is_taken(self, section: Section, entry: Entry) -> bool:
        """Whether another row has a live entry under the same index columns."""
        prefix = entry.key[: entry.offset]
        return any(value[_LIVE] and key != entry.key for key, value in section.scan(prefix, prefix_end(prefix)))


class InProcess:
    """Does a task in the calling process, in key order: for small tables, and for stores that no other can open."""

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        """As in `Reorganizer`."""
        for number, at in task.ranges(pulse):
            pulse()
            for steps, reached in _gathered(task, at, pulse):
                task.put(number, steps, at, reached)
                at = reached
                if not reached.done:
                    pulse()


def _gathered(task: Task, at: Checkpoint, pulse: Callable[[], None]) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
    """The batches of a task; where it breathes, small ones together: a pause at the gate follows each commit, however
    little there is in it."""
    breath = task.breath
    if breath is None or task.gathers:
        yield from task.batches(at)
        return
    waiting: list[Iterable[Step]] = []
    put, since = at.rows, breath.now()
    for steps, reached in task.batches(at):
        task.rest(read=True)
        waiting.append(steps)
        if not reached.done and reached.rows - put < task.together(BATCH_ROWS) and breath.gathers(since):
            pulse()
            continue
        yield chain.from_iterable(waiting), reached
        waiting, put, since = [], reached.rows, breath.now()
