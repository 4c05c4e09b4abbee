"""What planning must know of the data: whether a table is empty, and about how many rows it has."""

from __future__ import annotations

from collections.abc import Callable

from instar.catalog.descriptors import Table
from instar.schemachange.reorganize import SMALL_ROWS
from instar.store.apply import is_live
from instar.store.engine import Store, prefix_end, rowset_prefix
from instar.transactions.buffer import Buffer

Estimate = Callable[[bytes, bytes], int]


class StoredFacts:
    """Facts of a store and of one transaction's buffer. `estimate` gives about how many keys a key range holds."""

    def __init__(self, store: Store, buffer: Buffer | None, estimate: Estimate) -> None:
        self._store = store
        self._buffer = buffer
        self._estimate = estimate

    def stored_empty(self, table: Table) -> bool:
        """As in `draft.Facts`; tombstones are passed over."""
        start = rowset_prefix(table.rowset)
        with self._store.read() as reader:
            return not any(is_live(value) for _, value in reader.scan(start, prefix_end(start)))

    def has_buffered(self, table: Table) -> bool:
        """As in `draft.Facts`."""
        return self._buffer is not None and self._buffer.table(table.id) is not None

    def estimated_rows(self, table: Table) -> int:
        """As in `draft.Facts`: exact for small tables, which are reorganized in the call that asks."""
        start = rowset_prefix(table.rowset)
        stop = prefix_end(start)
        with self._store.read() as reader:
            keys, _ = reader.batch(start, stop, SMALL_ROWS + 1)
        return len(keys) if len(keys) <= SMALL_ROWS else self._estimate(start, stop)
