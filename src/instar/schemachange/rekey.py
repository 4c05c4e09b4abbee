"""The backfill of a next primary key (rule 24): a copy of each row under the new key, with its index entries.

As the backfill of an index does, it walks the current keys and needs no snapshot (rule 20): what is derived outside the
atomic section is compared there with the row's header, and derived anew if that is another; a copy bears its row's
timestamp; one that stands already, and is the row's own, is up to date, since writers keep it. Another row's means that
the new key is not unique (rule 21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from instar import errors
from instar.catalog.descriptors import Column, Table
from instar.encoding.keys import compile_encoder, limited_index_key, limited_primary_key
from instar.schemachange.duplicates import Duplicates
from instar.schemachange.reorganize import STEP_ROWS, widest
from instar.schemachange.tasks import BATCH_ROWS, Derived, RowTask, Step
from instar.store.engine import ENTRY_VALUE, NO_RECORD, ROW_HEADER, ROW_TOMBSTONE, Section, Store, View, rowset_prefix
from instar.tables.resolver import resolver
from instar.tables.rowset import describe_key, described, wanted

_HEADER_BYTES = ROW_HEADER.size


class Copy(NamedTuple):
    """A row's copy to be put: the store key of the row, the header that it was derived from, its own store key, and its
    entries' store keys with the place where the primary key begins in each."""

    row: bytes
    header: bytes
    key: bytes
    entries: Sequence[bytes]
    offsets: Sequence[int]


class KeyBackfill(RowTask[Copy]):
    """The work of one job on the next primary key of a table."""

    def __init__(
        self, store: Store, table: Table, *, job: int, stage: int, claim: tuple[bytes, bytes], rows: int, place: int = 0
    ) -> None:
        super().__init__(store, table, job=job, stage=stage, claim=claim, rows=rows, place=place)
        key = table.next_key
        if key is None:
            raise errors.error(errors.INTERNAL_ERROR, f'table "{table.name}" is to get no other primary key')
        self._duplicates = Duplicates(key.name)
        self._prefix = rowset_prefix(key.rowset)
        by_id = {column.id: column for column in table.columns}
        self._columns = [by_id[column] for column in key.columns]
        parts = [*key.columns, *table.primary_key]
        parts += [part.column for index in table.indexes for part in index.columns]
        columns = [by_id[number] for number in dict.fromkeys(parts)]
        self._wanted = [wanted(column)._replace(type=widest(column)) for column in columns]
        self._decoders: dict[int, Callable[[bytes], tuple[object, ...]]] = {}
        places = {column.id: place for place, column in enumerate(columns)}
        self._key = _Part(by_id, places, key.columns)
        self._own_key = _Part(by_id, places, table.primary_key)
        rowsets = dict(key.indexes)
        self._indexes = [
            (
                rowset_prefix(rowsets[index.id]),
                _Part(
                    by_id,
                    places,
                    [part.column for part in index.columns],
                    [part.descending for part in index.columns],
                ),
            )
            for index in table.indexes
        ]

    def derive(self, start: bytes, stop: bytes) -> Derived[Copy]:
        """As in `RowTask`."""
        most = self.at_once(BATCH_ROWS)
        with self.store.read() as reader:
            keys, rows = self.read_rows(reader, start, stop, most)
        copies = [self._copy(key, stored) for key, stored in zip(keys, rows, strict=True) if not _is_gone(stored)]
        copies.sort(key=lambda copy: copy.key)
        done = len(keys) < most
        return Derived(copies, stop if done else keys[-1] + b"\x00", len(copies), done)

    def steps(self, made: Sequence[Copy]) -> Iterator[Step]:
        """Gated steps that put the copies, in the order given. 23505 in the last of them, if a key is not unique."""
        source = iter(made)
        while chunk := list(islice(source, STEP_ROWS)):
            yield self._step(chunk)
        yield self._duplicates.require_none

    def _step(self, chunk: list[Copy]) -> Step:
        def step(section: Section) -> None:
            if self.pace is not None:
                self.pace.rows += len(chunk)
            for copy in chunk:
                stored = section.get(copy.row)
                if stored is None or _is_gone(stored):
                    continue
                if stored[:_HEADER_BYTES] != copy.header:
                    copy = self._copy(copy.row, stored, section)
                self._put(section, copy, stored)

        return step

    def _put(self, section: Section, copy: Copy, stored: bytes) -> None:
        standing = section.get(copy.key)
        if standing is not None:
            if self._own_key.of(self._decode(standing, section)) != copy.row[len(self.start) :]:
                shown = described(self._columns, self._key.values(self._decode(stored, section)))
                self._duplicates.add(shown, describe_key(self.table, copy.row[len(self.start) :]))
            return
        timestamp, _, tag = ROW_HEADER.unpack_from(stored)
        section.put(copy.key, ROW_HEADER.pack(timestamp, NO_RECORD, tag) + stored[_HEADER_BYTES:])
        for entry, offset in zip(copy.entries, copy.offsets, strict=True):
            section.put(entry, ENTRY_VALUE.pack(timestamp, 1, offset))

    def _copy(self, row: bytes, stored: bytes, view: View | None = None) -> Copy:
        found = self._decode(stored, view)
        for column, value in zip(self._columns, self._key.values(found), strict=True):
            if value is None:
                raise errors.error(
                    errors.NOT_NULL_VIOLATION,
                    f'column "{column.name}" of relation "{self.table.name}" contains null values',
                )
        key = limited_primary_key(self._key.of(found))
        parts = [prefix + limited_index_key(part.of(found)) for prefix, part in self._indexes]
        entries = tuple([part + key for part in parts])
        return Copy(row, stored[:_HEADER_BYTES], self._prefix + key, entries, tuple(map(len, parts)))

    def _decode(self, stored: bytes, view: View | None) -> tuple[object, ...]:
        """What is wanted of a row as stored, whichever layout it is in."""
        layout = ROW_HEADER.unpack_from(stored)[2] >> 8
        decode = self._decoders.get(layout)
        if decode is None:
            decode = self._decoders[layout] = resolver(self.layout(layout, view), self._wanted)
        return decode(stored)


class _Part:
    """Some of the columns that are wanted of a row, and their encoding as a key."""

    def __init__(
        self, columns: dict[int, Column], places: dict[int, int], wanted: Sequence[int], ways: Sequence[bool] = ()
    ) -> None:
        self._places = [places[column] for column in wanted]
        self._encode = compile_encoder([widest(columns[column]) for column in wanted], ways)

    def values(self, found: tuple[object, ...]) -> list[object]:
        return [found[place] for place in self._places]

    def of(self, found: tuple[object, ...]) -> bytes:
        return self._encode(self.values(found))


def _is_gone(stored: bytes) -> bool:
    return bool(ROW_HEADER.unpack_from(stored)[2] & ROW_TOMBSTONE)
