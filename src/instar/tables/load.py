"""Bulk loads: Arrow batches into rowsets that nobody sees until one publishing commit.

A table that was found empty gets second rowsets for its rows and indexes; batches fill them under a claim (rule 9),
and the publishing commit swaps them in, with "still empty" as a precondition. No log record is written per row: a
snapshot from before the swap reads the old rowsets, under its own schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from instar import errors
from instar.catalog.descriptors import Column, Index, State, Table
from instar.encoding.arrow_values import arrow_array, internal_values
from instar.encoding.key_batches import compile_key_batch_encoder
from instar.encoding.keys import MAX_PRIMARY_KEY_BYTES, limited_index_key, limited_primary_key
from instar.encoding.row_batches import conformed
from instar.store.engine import ENTRY_VALUE, Section, prefix_end, rowset_prefix
from instar.tables.derivations import derived_columns
from instar.tables.layout import batch_encoder, row_start
from instar.tables.rowset import describe_key

# Rows that are encoded together; rows per step, which is atomic and cannot be interrupted.
ROWS_PER_BATCH = 65_536
ROWS_PER_STEP = 1024

Step = Callable[[Section], None]


class TableLoad:
    """Encodes batches for the new rowsets of one table, and puts them.

    `table` is the descriptor to be published, with its new rowsets. Batches have one column per column of the table,
    in order, in `arrow_type`s; what they have in columns that are derived of the others is of no account.
    """

    def __init__(self, table: Table, timestamp: int) -> None:
        self.table = table
        self._derived = derived_columns(table)
        self._header = row_start(table.layout, timestamp)
        self._encode = batch_encoder(table.layout)
        places = {column.id: place for place, column in enumerate(table.columns)}
        self._key_places = [places[column] for column in table.primary_key]
        self._prefix = rowset_prefix(table.rowset)
        key_types = [table.columns[place].type for place in self._key_places]
        self._encode_keys = compile_key_batch_encoder(key_types, [False] * len(key_types), prefix=self._prefix)
        self._indexes = [_IndexLoad(table, index, timestamp) for index in table.indexes]
        self._last_key = b""

    def steps(self, batch: pa.RecordBatch) -> Iterator[Step]:
        """Atomic steps that put the rows and entries of a batch. 23502, 23505 naming column, constraint and key."""
        batch = self._with_derived(batch)
        self._require_values(batch)
        keys = self._encode_keys([batch.column(place) for place in self._key_places])
        if len(keys) and max(map(len, keys)) > MAX_PRIMARY_KEY_BYTES:
            for key in keys:
                limited_primary_key(key, len(self._prefix))
        rows = self._encode(batch, self._header)
        ordered = self._in_order(keys)
        if not ordered:
            order = sorted(range(len(keys)), key=keys.__getitem__)
            keys, rows = [keys[place] for place in order], [rows[place] for place in order]
            batch = batch.take(pa.array(order))
            self._require_distinct(keys)
        for begin in range(0, len(keys), ROWS_PER_STEP):
            chunk = slice(begin, begin + ROWS_PER_STEP)
            yield self._put_rows(keys[chunk], rows[chunk], probe=not ordered)
        for index in self._indexes:
            yield from index.steps(batch, keys)

    def _with_derived(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with what is derived of its rows, row by row: expressions have no other form here."""
        if not self._derived:
            return batch
        arrays = list(batch.columns)
        for ordinal, compute, places in self._derived:
            types = [self.table.columns[place].type for place in places]
            sources = [conformed(arrays[place], type_) for place, type_ in zip(places, types, strict=True)]
            values = [internal_values(array, type_) for array, type_ in zip(sources, types, strict=True)]
            rows = zip(*values, strict=True) if values else [()] * batch.num_rows
            arrays[ordinal] = arrow_array(self.table.columns[ordinal].type, [compute(row) for row in rows])
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    def _in_order(self, keys: list[bytes]) -> bool:
        """Whether the keys ascend and follow all those before them: then none of them can be there already."""
        if not keys:
            return True
        ordered = keys[0] > self._last_key and all(a < b for a, b in pairwise(keys))
        self._last_key = max(self._last_key, keys[-1] if ordered else max(keys))
        return ordered

    def _require_values(self, batch: pa.RecordBatch) -> None:
        for place, column in enumerate(self.table.columns):
            if column.refuses_null and batch.column(place).null_count:
                raise errors.error(
                    errors.NOT_NULL_VIOLATION,
                    f'null value in column "{column.name}" of relation "{self.table.name}" '
                    "violates not-null constraint",
                )

    def _require_distinct(self, keys: list[bytes]) -> None:
        for key, following in pairwise(keys):
            if key == following:
                raise self._duplicate(key)

    def _put_rows(self, keys: list[bytes], rows: list[bytes], *, probe: bool) -> Step:
        def step(section: Section) -> None:
            found = section.any_of(keys) if probe else None
            if found is not None:
                raise self._duplicate(found)
            section.put_many(list(zip(keys, rows, strict=True)))

        return step

    def _duplicate(self, key: bytes) -> errors.Error:
        return errors.error(
            errors.UNIQUE_VIOLATION,
            f'duplicate key value violates unique constraint "{self.table.primary_key_name}"',
            detail=f"Key {describe_key(self.table, key[len(self._prefix) :])} already exists.",
        )


class _IndexLoad:
    """The entries of one index."""

    def __init__(self, table: Table, index: Index, timestamp: int) -> None:
        self._table = table
        self._index = index
        self._timestamp = timestamp
        self._prefix = rowset_prefix(index.rowset)
        places = {column.id: place for place, column in enumerate(table.columns)}
        self._places = [places[part.column] for part in index.columns]
        self._columns: list[Column] = [table.columns[place] for place in self._places]
        types = [column.type for column in self._columns]
        self._encode = compile_key_batch_encoder(
            types, [part.descending for part in index.columns], prefix=self._prefix
        )

    def steps(self, batch: pa.RecordBatch, keys: list[bytes]) -> Iterator[Step]:
        """Steps that put the entries of rows whose store keys are `keys`, in the order of the index."""
        if self._index.state is State.DELETE_ONLY:
            return
        columns = [batch.column(place) for place in self._places]
        skip = len(self._prefix)
        nulls = np.zeros(len(keys), bool)
        for column in columns:
            if column.null_count:
                nulls |= column.is_null().to_numpy(zero_copy_only=False)
        unique = self._index.unique
        entries = []
        for whole, key, null in zip(self._encode(columns), keys, nulls.tolist(), strict=True):
            part = limited_index_key(whole, skip)
            entries.append((part + key[skip:], len(part), unique and not null))
        entries.sort()
        for begin in range(0, len(entries), ROWS_PER_STEP):
            yield self._put(entries[begin : begin + ROWS_PER_STEP])

    def _put(self, entries: list[tuple[bytes, int, bool]]) -> Step:
        def step(section: Section) -> None:
            before = b""
            for key, offset, probe in entries:
                if probe:
                    part = key[:offset]
                    # Those of one part follow each other.
                    if part == before or next(section.scan(part, prefix_end(part)), None) is not None:
                        raise self._duplicate()
                    before = part
            pack, timestamp = ENTRY_VALUE.pack, self._timestamp
            section.put_many([(key, pack(timestamp, 1, offset)) for key, offset, _probe in entries])

        return step

    def _duplicate(self) -> errors.Error:
        names = ", ".join(column.name for column in self._columns)
        return errors.error(
            errors.UNIQUE_VIOLATION,
            f'duplicate key value violates unique constraint "{self._index.name}"',
            detail=f"Two rows of the load have the same ({names}).",
        )


def loading_descriptor(table: Table, new_rowset: Callable[[int], int]) -> Table:
    """`table` one version on, with new rowsets for its rows and indexes."""
    indexes = tuple(msgspec.structs.replace(index, rowset=new_rowset(table.id)) for index in table.indexes)
    return msgspec.structs.replace(table, version=table.version + 1, rowset=new_rowset(table.id), indexes=indexes)
