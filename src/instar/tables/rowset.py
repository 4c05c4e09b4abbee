"""Rows under one rowset id, read at a snapshot and overlaid with the buffer of the transaction that reads.

A `TableReader` is built once per plan for one descriptor and the columns that the plan wants; it holds one decoder per
layout met so far. A table whose rows are all in one layout takes the same way with a single decoder (thesis §3.2.3).
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from instar.catalog.descriptors import Column, Layout, Table
from instar.catalog.layouts import Layouts
from instar.encoding import keys
from instar.encoding.joined import Joined, join_values
from instar.lazily import computed_once
from instar.store.blocks import Block
from instar.store.engine import ROW_TOMBSTONE, rowset_prefix
from instar.store.versions import BATCH_ROWS, headers, read_row, scan_rows, visible_rows, visible_values
from instar.tables.guard import ReadGuard
from instar.tables.layout import arrow_type, body_encoder, row_start
from instar.tables.older import OlderRows
from instar.tables.resolver import LAYOUT_OFFSET, Resolvers, Wanted, Wants, mixed_decoder
from instar.tables.view import END, RowVersion, View
from instar.transactions.buffer import TableBuffer
from instar.transactions.reads import Place
from instar.types import FLOATS, INTEGERS, TIMESTAMPS, Kind
from instar.values import from_text, to_text

Decoder = Callable[[bytes], tuple[object, ...]]

# Components of at most 17 bytes: a few of them cannot come near the limit of a key.
_SHORT = INTEGERS | FLOATS | TIMESTAMPS | {Kind.BOOLEAN, Kind.DATE, Kind.UUID}
_MANY = 16

FIRST_BATCH = 64
EARLY_BATCH = 8  # of a scan that is expected to be given up early
# What a scan of whole tables reads at once: a few milliseconds' work, and several megabytes while it is decoded.
BLOCK_BYTES = 4 << 20

_TIMESTAMP = struct.Struct("<Q")
_LAYOUT = struct.Struct("<I")


def wanted(column: Column) -> Wanted:
    """What a reader of `column` asks the resolver for: rows in layouts without it have its frozen value, or what is
    derived of their other columns."""
    missing = None if column.missing is None else from_text(column.type, column.missing)
    derived = None if column.per_row else column.derived
    # A row that has no value of the new type is found by the validation. It can be changed and deleted meanwhile.
    return Wanted(column.id, column.type, missing, derived, lenient=column.is_unproven)


def key_encoder(table: Table) -> Callable[[Sequence[object]], bytes]:
    """Primary key values, in key order, to the encoded key without rowset prefix."""
    by_id = {column.id: column for column in table.columns}
    encode = keys.compile_encoder([by_id[column].type for column in table.primary_key])
    if all(by_id[column].type.kind in _SHORT for column in table.primary_key) and len(table.primary_key) < _MANY:
        return encode
    return lambda values: keys.limited_primary_key(encode(values))


def describe_key(table: Table, key: bytes) -> str:
    """An encoded primary key for a message: (a, b)=(1, x)."""
    by_id = {column.id: column for column in table.columns}
    columns = [by_id[column] for column in table.primary_key]
    return described(columns, keys.decode_key(key))


def named_row(table: Table, key: bytes) -> str:
    """A row for a message, by its encoded primary key: Row (a)=(1); no user knows one by its row id."""
    if any(column.hidden for column in table.columns if column.id in table.primary_key):
        return "A row"
    return f"Row {describe_key(table, key)}"


def described(columns: Sequence[Column], values: Sequence[object]) -> str:
    """Values of columns for a message, as PostgreSQL writes them: (a, b)=(1, x)."""
    shown = ["null" if value is None else to_text(c.type, value) for c, value in zip(columns, values, strict=True)]
    return f"({', '.join(column.name for column in columns)})=({', '.join(shown)})"


def scanned(lower: bytes, upper: bytes, found: Sequence[bytes], size: int, *, reverse: bool) -> tuple[bytes, bytes]:
    """What of [lower, upper) a batch of `size` has read that found these keys: all up to the last of them, or all."""
    if len(found) < size:
        return lower, upper
    return (found[-1], upper) if reverse else (lower, found[-1] + b"\x00")


class TableReader:
    """Reads the columns `ordinals` (positions in `table.columns`) of a table.

    `reads`: those of them that decide what happens, where the others are only carried along. `lenient`: rows that went
    before a change of type was made, and may have no value of the new type, have NULL.
    """

    def __init__(
        self,
        table: Table,
        ordinals: Sequence[int],
        layouts: Layouts,
        reads: Sequence[int] | None = None,
        *,
        lenient: bool = False,
    ) -> None:
        self.table = table
        self.ordinals = tuple(ordinals)
        self.prefix = rowset_prefix(table.rowset)
        self._reads = self.ordinals if reads is None else reads
        self._layouts = layouts
        self.wanted = [wanted(table.columns[ordinal]) for ordinal in ordinals]
        if lenient:
            self.wanted = [found._replace(lenient=True) for found in self.wanted]
        self._decoders: dict[int, Decoder] = {}
        self.wants = Wants(self.wanted)
        self._resolvers = Resolvers(self.wants)

    @computed_once
    def encode_key(self) -> Callable[[Sequence[object]], bytes]:
        """See `key_encoder`."""
        return key_encoder(self.table)

    @computed_once
    def place(self) -> Place:
        """What is noted of reads."""
        table = self.table
        return Place(table.id, None, table.rowset, frozenset([table.columns[found].id for found in self._reads]))

    @computed_once
    def schema(self) -> pa.Schema:
        """The Arrow schema of the wanted columns."""
        columns = (self.table.columns[ordinal] for ordinal in self.ordinals)
        return pa.schema([pa.field(f"c{i}", arrow_type(column.type)) for i, column in enumerate(columns)])

    def decoder(self, layout_id: int) -> Decoder:
        """Stored bytes in that layout to the wanted columns."""
        return self._decoders.get(layout_id) or self.decoder_of(self._layout(layout_id))

    def decoder_of(self, layout: Layout) -> Decoder:
        """Stored bytes in that layout to the wanted columns. One function serves several layouts where it can."""
        found = self._decoders.get(layout.id)
        if found is None:
            found = self._decoders[layout.id] = self._resolvers.of(layout)
        return found

    def layout_of(self, value: bytes) -> Layout:
        """The layout that a stored row value is in."""
        return self._layout(_LAYOUT.unpack_from(value, LAYOUT_OFFSET)[0] >> 8)

    def found_layout(self, layout_id: int) -> Layout | None:
        """The layout of that id, unless no row can be in it."""
        return self._layouts.find(self.table.id, layout_id)

    def decode(self, value: bytes) -> tuple[object, ...]:
        """The wanted columns of a stored row value, whichever layout it is in."""
        layout_id = _LAYOUT.unpack_from(value, LAYOUT_OFFSET)[0] >> 8
        return (self._decoders.get(layout_id) or self.decoder(layout_id))(value)

    def project(self, image: tuple[object, ...]) -> tuple[object, ...]:
        """The wanted columns of a buffered image (all columns of the table, in descriptor order)."""
        return tuple([image[ordinal] for ordinal in self.ordinals])

    def get(self, view: View, key: bytes) -> tuple[object, ...] | None:
        """The row of that key, or None."""
        version = self.get_version(view, key)
        return None if version is None else version.values

    def get_version(self, view: View, key: bytes) -> RowVersion | None:
        """The row of that key with the timestamp of its stored version, or None."""
        overlay = view.overlay(self.table.id)
        if overlay is not None:
            change = overlay.changes.get(key)
            if change is not None:
                self.note_own(view, [key], overlay)
                return None if change.image is None else RowVersion(key, change.base, self.project(change.image))
        if view.guard is not None:
            view.guard.rows([self.prefix + key])
        with view.store.read_at(view.snapshot) as reader:
            value = read_row(reader, self.prefix + key, view.snapshot)
        if view.reads is not None:
            view.reads.add_key(self.place, self.prefix + key)
        if value is None:
            return None
        if view.older is not None:
            view.older.note(self.table.id, self.prefix + key, value)
        return self.version(key, value)

    def note_own(self, view: View, found: Sequence[bytes], overlay: TableBuffer) -> None:
        """Rows that the transaction itself has changed count as read too: in the columns that it left alone they are as
        they are stored. Not so those that it has inserted."""
        if view.reads is not None:
            changed = [self.prefix + key for key in found if overlay.changes[key].base is not None]
            view.reads.add_keys(self.place, changed)

    def get_many(self, view: View, wanted_keys: Sequence[bytes]) -> list[RowVersion]:
        """The rows of those keys, in their order, those that are not there left out; one store read per 8,192."""
        overlay = view.overlay(self.table.id)
        if view.reads is not None:
            own = overlay.changes if overlay is not None else {}
            view.reads.add_keys(self.place, [self.prefix + key for key in wanted_keys if key not in own])
            if overlay is not None:
                self.note_own(view, [key for key in wanted_keys if key in own], overlay)
        found: list[RowVersion] = []
        for begin in range(0, len(wanted_keys), 8192):
            if view.guard is not None:
                view.guard.rows(self.prefix + key for key in wanted_keys[begin : begin + 8192])
            with view.store.read_at(view.snapshot) as reader:
                for key in wanted_keys[begin : begin + 8192]:
                    change = overlay.changes.get(key) if overlay is not None else None
                    if change is not None:
                        if change.image is not None:
                            found.append(RowVersion(key, change.base, self.project(change.image)))
                        continue
                    value = read_row(reader, self.prefix + key, view.snapshot)
                    if value is not None:
                        found.append(self.version(key, value))
                        if view.older is not None:
                            view.older.note(self.table.id, self.prefix + key, value)
        return found

    def scan(
        self, view: View, start: bytes, stop: bytes, *, reverse: bool = False, early: bool = False
    ) -> Iterator[tuple[object, ...]]:
        """The rows with start <= key < stop in key order (END: no bound above). `early`: few may be asked for."""
        overlay = view.overlay(self.table.id)
        if overlay is None:
            decode = self.decode
            for _, values in self._batches(view, start, stop, reverse, EARLY_BATCH if early else FIRST_BATCH):
                for value in values:
                    yield decode(value)
            return
        for version in self.scan_versions(view, start, stop, reverse=reverse):
            yield version.values

    def scan_versions(self, view: View, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[RowVersion]:
        """As `scan`, with keys and stored timestamps: what DML reads."""
        stored = self._stored(view, start, stop, reverse)
        overlay = view.overlay(self.table.id)
        if overlay is None:
            return stored
        changes = overlay.changes
        buffered = (
            RowVersion(key, change.base, self.project(change.image))
            for key in sorted(overlay.keys_between(start, stop), reverse=reverse)
            if (change := changes[key]).image is not None
        )
        unchanged = (version for version in stored if version.key not in changes)
        return heapq.merge(unchanged, buffered, key=lambda version: version.key, reverse=reverse)

    def arrow(self, view: View, start: bytes = b"", stop: bytes = END) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches; the order of rows that this transaction changed is not promised."""
        overlay = view.overlay(self.table.id)
        decode = mixed_decoder(self._layout, self.wanted)
        for joined in self._blocks(view, overlay, start, stop):
            if len(joined.starts):
                yield self._record_batch(decode(joined), len(joined.starts))
        if overlay is None:
            return
        layout = self._own_layout
        buffered = self._buffered(overlay, layout, start, stop)
        if len(buffered.starts):
            decode = mixed_decoder(lambda _: layout, self.wanted)
            yield self._record_batch(decode(buffered), len(buffered.starts))

    @computed_once
    def _own_layout(self) -> Layout:
        """A layout of the wanted columns alone: a plan that goes on for another version of its table knows where they
        stand in an image, and of the others neither which there are nor their types (sql/holding.py)."""
        stored = dict(self.table.layout.columns)
        ids = [self.table.columns[ordinal].id for ordinal in self.ordinals]
        return Layout(self.table.layout.id, tuple([(number, stored[number]) for number in ids]))

    def _blocks(self, view: View, overlay: TableBuffer | None, start: bytes, stop: bytes) -> Iterator[Joined]:
        """The visible values of the range that this transaction has not changed, block by block, each read in a short
        read of its own."""
        lower, upper = self.prefix + start, self.prefix + stop
        last: bytes | None = b""
        while last is not None:
            met, high = None, upper
            if view.guard is not None:
                met, _, high = view.guard.free(lower, upper, parts=bool(self.table.locks))
            with view.store.read_at(view.snapshot) as reader:
                block = reader.block(lower, high, BLOCK_BYTES)
            if view.reads is not None:
                stop_read = upper if block.last is None else block.last + b"\x00"
                view.reads.add_range(self.place, lower, stop_read, len(block.values.starts))
            values = block.values if overlay is None else self._unchanged(block, overlay)
            if view.older is not None and view.older.room:
                self._note_block(view.older, block)
            yield visible_values(view.store, values, view.snapshot)
            last = block.last
            lower = (last or b"") + b"\x00"
            if last is None and view.guard is not None and met is not None:
                view.guard.wait(met)
                last, lower = b"", high

    def _note_block(self, older: OlderRows, block: Block) -> None:
        """Some rows of a block that are in older layouts; what is none any more is found out later."""
        if len(block.values.starts):
            tags = headers(block.values)["tag"]
            found = np.flatnonzero((tags & ROW_TOMBSTONE == 0) & (tags >> 8 != self.table.layout.id))[: older.room]
            pairs = ((block.keys.value(place), block.values.value(place)) for place in found.tolist())
            older.note_all(self.table.id, pairs)

    def _unchanged(self, block: Block, overlay: TableBuffer) -> Joined:
        """The values of a block whose keys the transaction has not changed."""
        skip, keys = len(self.prefix), block.keys
        count = len(keys.starts)
        if not count or not overlay.keys_between(keys.value(0)[skip:], keys.value(count - 1)[skip:] + b"\x00"):
            return block.values
        changes = overlay.changes
        return block.values.select(np.flatnonzero([key[skip:] not in changes for key in keys.values()]))

    def _buffered(self, overlay: TableBuffer, layout: Layout, start: bytes, stop: bytes) -> Joined:
        """This transaction's own rows in the range, as if they were stored in that layout."""
        header = row_start(layout, 0)
        encode = body_encoder(layout)
        changes = overlay.changes
        images = (image for key in overlay.keys_between(start, stop) if (image := changes[key].image) is not None)
        return join_values([header + encode(self.project(image)) for image in images])

    def _record_batch(self, arrays: list[Any], rows: int) -> pa.RecordBatch:
        if not arrays:
            # Arrow has no batch of so many rows and no column; whoever only counts gets a column of nothing.
            return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["rows"])
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _layout(self, layout_id: int) -> Layout:
        return self._layouts.of_row(self.table, layout_id)

    def _stored(self, view: View, start: bytes, stop: bytes, reverse: bool) -> Iterator[RowVersion]:
        skip = len(self.prefix)
        for row_keys, values in self._batches(view, start, stop, reverse):
            for key, value in zip(row_keys, values, strict=True):
                yield self.version(key[skip:], value)

    def version(self, key: bytes, value: bytes) -> RowVersion:
        """A stored row value as a RowVersion."""
        return RowVersion(key, _TIMESTAMP.unpack_from(value)[0], self.decode(value))

    def _batches(
        self, view: View, start: bytes, stop: bytes, reverse: bool, size: int = FIRST_BATCH
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Visible keys and values in batches, each read in a short read of its own.

        The first is small, since most ranges are and a LIMIT may want no more; they grow to what a bulk scan wants.
        """
        if view.guard is not None:
            yield from self._guarded(view, view.guard, start, stop, reverse)
            return
        lower, upper = self.prefix + start, self.prefix + stop
        while True:
            with view.store.read_at(view.snapshot) as reader:
                if reverse:
                    pairs = list(islice(reader.scan(lower, upper, reverse=True), size))
                    stored_keys, values = [key for key, _ in pairs], [value for _, value in pairs]
                else:
                    stored_keys, values = reader.batch(lower, upper, size)
                if view.reads is not None:
                    read = scanned(lower, upper, stored_keys, size, reverse=reverse)
                    view.reads.add_range(self.place, *read, len(stored_keys))
                if not stored_keys:
                    return
                visible = visible_rows(reader, stored_keys, values, view.snapshot)
            if visible[0]:
                if view.older is not None:
                    view.older.note_all(self.table.id, zip(*visible, strict=True))
                yield visible
            if len(stored_keys) < size:
                return
            if reverse:
                upper = stored_keys[-1]
            else:
                lower = stored_keys[-1] + b"\x00"
            size = min(size * 4, BATCH_ROWS)

    def _guarded(
        self, view: View, guard: ReadGuard, start: bytes, stop: bytes, reverse: bool
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """As `_batches`; it waits where it has come to a row that another is about to change, and not before."""
        lower, upper = self.prefix + start, self.prefix + stop
        size, parts = FIRST_BATCH, bool(self.table.locks)
        while True:
            met, low, high = guard.free(lower, upper, parts=parts, reverse=reverse)
            with view.store.read_at(view.snapshot) as reader:
                found, values, following = scan_rows(reader, low, high, view.snapshot, size, reverse=reverse)
            if found:
                if view.older is not None:
                    view.older.note_all(self.table.id, zip(found, values, strict=True))
                yield found, values
            if following is None:
                if met is None:
                    return
                guard.wait(met)
                following = low if reverse else high
            lower, upper = (lower, following) if reverse else (following, upper)
            size = min(size * 4, BATCH_ROWS)
