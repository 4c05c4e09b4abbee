"""What planning a schema change must know of the data: whether a table is empty, about how many rows it has, how far a
sequence has counted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from instar.catalog.descriptors import Object, Sequence, Table
from instar.catalog.history import Dropped, DroppedColumn, dropped_columns, dropped_objects, object_at
from instar.catalog.sequences import Sequences
from instar.schemachange.compact import is_settled, older_layouts
from instar.schemachange.dependents import bound_elements
from instar.schemachange.elements import Element
from instar.schemachange.jobs import Jobs
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Store, prefix_end, rowset_prefix
from instar.store.key_ranges import estimate
from instar.transactions.buffer import Buffer


class StoreFacts:
    """Facts on the newest state, and on the buffer of the transaction that the change is part of, if it is of one.

    `copied`: rowsets that a rehearsed change would fill, each with the one that has the rows.
    """

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        sequences: Sequences,
        buffer: Buffer | None = None,
        copied: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._sequences = sequences
        self._buffer = buffer
        self._copied = copied
        self.schema_lease = store.schema_lease

    def stored_empty(self, table: Table) -> bool:
        """Whether no committed row of the table exists now."""
        with self._store.read() as reader:
            start = self._rows_of(table)
            return all(
                ROW_HEADER.unpack_from(value)[2] & ROW_TOMBSTONE for _, value in reader.scan(start, prefix_end(start))
            )

    def has_buffered(self, table: Table) -> bool:
        """Whether the transaction itself has buffered rows of the table."""
        return self._buffer is not None and self._buffer.table(table.id) is not None

    def estimated_rows(self, table: Table) -> int:
        """About how many rows the table has, found without walking it."""
        start = self._rows_of(table)
        return estimate(self._store.read, start, prefix_end(start))

    def _rows_of(self, table: Table) -> bytes:
        """The prefix of the keys under which the table's rows are."""
        return rowset_prefix(self._copied.get(table.rowset, table.rowset))

    def is_settled(self, table: Table) -> bool:
        """Whether all rows of the table may be put into its newest layout: no snapshot reads what they would lose."""
        with self._store.read() as reader:
            return all(is_settled(reader, table, layout) for layout in older_layouts(reader, table))

    def is_moved(self, element: Element) -> bool:
        """Whether a job that has not ended moves the element."""
        return any(element in job.elements for job in self._jobs.all() if not job.is_finished)

    def bound(self) -> dict[Element, int]:
        """What jobs past their last revertible stage are bound to drop or change, with the job."""
        return {element: job.id for job in self._jobs.all() for element in bound_elements(job)}

    def last_value(self, sequence: Sequence) -> int | None:
        """The last value that was handed out, or reserved by another process; None before the first."""
        return self._sequences.last_value(sequence)

    def dropped(self) -> list[Dropped]:
        """All that was dropped and can still come back."""
        with self._store.read() as reader:
            return list(dropped_objects(reader))

    def dropped_columns(self, table: Table) -> list[DroppedColumn]:
        """The columns that the table has lost and that can still come back, the one dropped last first."""
        with self._store.read() as reader:
            return list(dropped_columns(reader, table))

    def object_at(self, object_id: int, snapshot: int) -> Object | None:
        """An object as it was at a timestamp, None if it was not there; 72000 if that is longer ago than the store
        retains."""
        with self._store.read_at(snapshot) as reader:
            return object_at(reader, object_id, snapshot)
