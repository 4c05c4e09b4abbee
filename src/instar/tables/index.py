"""Index entries: their keys, and reading an index at a snapshot.

An entry is (commit timestamp, live or tombstone) and has no history (rule 4): at snapshot s a live entry with
timestamp <= s is accepted, a tombstone with timestamp <= s skipped, and anything newer is decided by the row version
at s. Long keys are cut and hashed (encoding/keys.py): such entries are candidates, rechecked against the row, and
brought into the order of their whole keys within each run that shares a cut prefix.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from instar.catalog.descriptors import Index, Table
from instar.catalog.layouts import Layouts
from instar.encoding import keys
from instar.store.engine import Reader, rowset_prefix
from instar.store.versions import entry_at, read_row
from instar.tables.rowset import TableReader, described, scanned
from instar.tables.view import END, RowVersion, View
from instar.transactions.buffer import Change, TableBuffer
from instar.transactions.reads import Place

# A scan's first read, which is all that most take, and the largest that follow.
_FIRST_ENTRIES, ENTRIES_PER_READ = 8, 512
CUT = keys.MAX_INDEX_PART_BYTES


class IndexCodec:
    """Row images (all columns of the table, in descriptor order) to entry keys of one index."""

    def __init__(self, table: Table, index: Index) -> None:
        self.index = index
        self.table = table.id
        self.prefix = rowset_prefix(index.rowset)
        ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
        self.ordinals = tuple(ordinals[part.column] for part in index.columns)
        self.types = tuple(table.columns[ordinal].type for ordinal in self.ordinals)
        self.descending = tuple(part.descending for part in index.columns)
        self._encode = keys.compile_encoder(self.types, self.descending)
        self.order = self.ordinals, self.types, self.descending  # what `whole` depends on
        self._columns = [table.columns[ordinal] for ordinal in self.ordinals]

    def values(self, image: Sequence[object]) -> list[object]:
        """The indexed values of a row."""
        return [image[ordinal] for ordinal in self.ordinals]

    def has_same(self, old: Sequence[object], new: Sequence[object]) -> bool:
        """Whether the indexed values of both rows are the very same objects, as those that an update leaves alone."""
        for ordinal in self.ordinals:  # noqa: SIM110 - a generator takes as long as encoding the values
            if old[ordinal] is not new[ordinal]:
                return False
        return True

    def whole(self, image: Sequence[object]) -> bytes:
        """The index columns' part of the entry's key, however long."""
        return self._encode(self.values(image))

    def part(self, image: Sequence[object]) -> bytes:
        """The index columns' part of the entry's key, cut and hashed if it is too long."""
        return keys.limited_index_key(self._encode(self.values(image)))

    def entry(self, image: Sequence[object], key: bytes) -> bytes:
        """The whole store key of the row's entry; `key` is its encoded primary key."""
        return self.prefix + self.part(image) + key

    def primary_offset(self, entry: bytes, key: bytes) -> int:
        """Where in the entry's store key the primary key begins."""
        return len(entry) - len(key)

    def unique_prefix(self, image: Sequence[object]) -> bytes | None:
        """The prefix that at most one live entry may have; None where a value is NULL, which equals nothing."""
        if any(image[ordinal] is None for ordinal in self.ordinals):
            return None
        return self.prefix + self.part(image)

    def detail(self, image: tuple[object, ...]) -> str:
        """PostgreSQL's DETAIL for a duplicate: Key (a, b)=(1, x) already exists."""
        return f"Key {described(self._columns, self.values(image))} already exists."


class _Hit(NamedTuple):
    """An accepted entry with its row: `part` is the whole index key, `cut` whether its entry is cut and hashed."""

    part: bytes
    version: RowVersion
    cut: bool


def _order(hit: _Hit) -> tuple[bytes, bytes]:
    return hit.part, hit.version.key


def _ordered(hits: Iterator[_Hit], reverse: bool) -> Iterator[_Hit]:
    """Hits in the order of their whole keys: runs of cut ones with one prefix come in the order of their hashes."""
    run: list[_Hit] = []
    for hit in hits:
        if run and (not hit.cut or run[0].part[:CUT] != hit.part[:CUT]):
            yield from sorted(run, key=_order, reverse=reverse)
            run.clear()
        if hit.cut:
            run.append(hit)
        else:
            yield hit
    yield from sorted(run, key=_order, reverse=reverse)


class IndexReader:
    """Reads rows through one index. `start` and `stop` of the scans bound the index columns' part of the key.

    `ordinals`, `reads`: as in `TableReader`.
    """

    def __init__(
        self,
        table: Table,
        index: Index,
        ordinals: Sequence[int],
        layouts: Layouts,
        reads: Sequence[int] | None = None,
    ) -> None:
        self.table = table
        self.codec = IndexCodec(table, index)
        self._rows = TableReader(table, range(len(table.columns)), layouts)
        self._wanted = TableReader(table, ordinals, layouts, reads)
        self._place = Place(table.id, index.id, index.rowset, frozenset(part.column for part in index.columns))

    def scan(
        self, view: View, start: bytes, stop: bytes, *, reverse: bool = False, early: bool = False
    ) -> Iterator[tuple[object, ...]]:
        """The wanted columns of the rows whose index part is in [start, stop), in index order. As of `TableReader`; an
        entry costs a row, so few are read first in any case."""
        for version in self.scan_versions(view, start, stop, reverse=reverse):
            yield version.values

    def scan_versions(self, view: View, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[RowVersion]:
        """As `scan`, with keys and stored timestamps: what DML reads."""
        overlay = view.overlay(self.table.id)
        if overlay is None:
            return (hit.version for hit in self._stored(view, start, stop, reverse, {}))
        stored = self._stored(view, start, stop, reverse, overlay.changes)
        buffered = self._buffered(overlay, start, stop, reverse)
        self._wanted.note_own(view, [hit.version.key for hit in buffered], overlay)
        merged = heapq.merge(stored, buffered, key=_order, reverse=reverse)
        return (hit.version for hit in merged)

    def _buffered(self, overlay: TableBuffer, start: bytes, stop: bytes, reverse: bool) -> list[_Hit]:
        """This transaction's own rows in the range, in index order."""
        changes, project = overlay.changes, self._wanted.project
        hits = [
            _Hit(part, RowVersion(key, changes[key].base, project(image)), False)
            for part, key in overlay.rows_between(self.codec.order, self.codec.whole, start, stop)
            if (image := changes[key].image) is not None
        ]
        if reverse:
            hits.reverse()
        return hits

    def _stored(
        self, view: View, start: bytes, stop: bytes, reverse: bool, changes: dict[bytes, Change]
    ) -> Iterator[_Hit]:
        """Accepted entries with their rows in index order; rows that the buffer changed left out."""
        cut_start, cut_stop = keys.limited_index_range(start, stop)
        hits = self._accepted(view, cut_start, cut_stop, reverse, changes)
        return (hit for hit in _ordered(hits, reverse) if not hit.cut or start <= hit.part < stop)

    def _accepted(
        self, view: View, start: bytes, stop: bytes, reverse: bool, changes: dict[bytes, Change]
    ) -> Iterator[_Hit]:
        """Accepted entries with their rows, at most some hundred per short read."""
        prefix = self.codec.prefix
        lower, upper = prefix + start, prefix + stop
        size = _FIRST_ENTRIES
        while True:
            guarded = view.guard is not None and view.guard.is_held(self._rows.prefix, self._rows.prefix + END)
            with view.store.read_at(view.snapshot) as reader:
                entries = list(islice(reader.scan(lower, upper, reverse=reverse), size))
                hits = [hit for key, value in entries if (hit := self._accept(view, reader, key, value, changes))]
            if view.reads is not None:
                keys_read = [key for key, _value in entries]
                read = scanned(lower, upper, keys_read, size, reverse=reverse)
                view.reads.add_range(self._place, *read, len(entries))
                rows_read = [self._rows.prefix + hit.version.key for hit in hits]
                view.reads.add_keys(self._wanted.place, rows_read)
            if guarded:
                hits = [now for hit in hits if (now := self._now(view, hit)) is not None]
            yield from hits
            if len(entries) < size:
                return
            size = min(size * 4, ENTRIES_PER_READ)
            if reverse:
                upper = entries[-1][0]
            else:
                lower = entries[-1][0] + b"\x00"

    def _now(self, view: View, hit: _Hit) -> _Hit | None:
        """The row of an entry once nobody is about to change it, if it is still where the entry has it."""
        row = self._rows.get_version(view, hit.version.key)
        if row is None or self.codec.whole(row.values) != hit.part:
            return None
        return hit._replace(version=RowVersion(row.key, row.base, self._wanted.project(row.values)))

    def _accept(
        self, view: View, reader: Reader, key: bytes, value: bytes, changes: dict[bytes, Change]
    ) -> _Hit | None:
        visible, offset = entry_at(value, view.snapshot)
        if visible is False:
            return None
        primary = key[offset:]
        if primary in changes:
            return None
        stored = read_row(reader, self._rows.prefix + primary, view.snapshot)
        if stored is None:
            return None
        if view.older is not None:
            view.older.note(self.table.id, self._rows.prefix + primary, stored)
        part = key[len(self.codec.prefix) : offset]
        cut = keys.is_cut(offset)
        if cut or visible is None:
            whole = self.codec.whole(self._rows.decode(stored))
            if keys.limited_index_key(whole) != part:
                return None
            part = whole
        return _Hit(part, self._wanted.version(primary, stored), cut)
