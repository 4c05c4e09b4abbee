"""Propagation of lock timestamps (F1 §3.4): where columns are in dual coverage, the lock to come catches up.

Behind the fence every writer moves both locks, so that only rows which nobody has written since are behind. Each gets
for the lock to come the newest timestamp of the locks that it takes columns from, in the atomic section and judged on
the bytes that stand there: all of it may be done again. It is maintenance: no log record, no other commit timestamp.
A row whose layout does not know the lock has its commit timestamp, which no lock's is newer than.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice

from instar.catalog.descriptors import CoverageChange, Table
from instar.schemachange.tasks import BATCH_ROWS, Derived, RowTask, Step
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Section, Store, View
from instar.tables.locks import lock_places

# Rows per step of the gate (a step cannot be interrupted).
STEP_ROWS = 16

_TIMESTAMP = struct.Struct("<Q")
_ROW_TIMESTAMP = 0  # where a stored row has its commit timestamp: that of a lock which its layout does not know


class Propagation(RowTask[bytes]):
    """The work of one job on one change of coverage. It makes the store keys of rows that are behind."""

    def __init__(
        self,
        store: Store,
        table: Table,
        change: CoverageChange,
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        rows: int,
        place: int = 0,
    ) -> None:
        super().__init__(store, table, job=job, stage=stage, claim=claim, rows=rows, place=place)
        self.change = change
        # (the lock to come, one that it takes a column from)
        self._pairs = sorted(
            {(coming, lock) for column, coming in change.covers for lock in table.covering(column) if lock != coming}
        )
        self._places: dict[int, tuple[tuple[int, int], ...]] = {}

    def derive(self, start: bytes, stop: bytes) -> Derived[bytes]:
        """As in `RowTask`."""
        most = self.at_once(BATCH_ROWS)
        with self.store.read() as reader:
            keys, rows = self.read_rows(reader, start, stop, most)
        behind = [key for key, row in zip(keys, rows, strict=True) if self._caught_up(row) != row]
        done = len(keys) < most
        return Derived(behind, stop if done else keys[-1] + b"\x00", len(keys), done)

    def steps(self, made: Sequence[bytes]) -> Iterator[Step]:
        """Gated steps that have the locks to come of these rows catch up."""
        source = iter(made)
        while chunk := list(islice(source, STEP_ROWS)):
            yield self._step(chunk)

    def _step(self, chunk: list[bytes]) -> Step:
        def step(section: Section) -> None:
            for key in chunk:
                stored = section.get(key)
                if stored is not None:
                    row = self._caught_up(stored, section)
                    if row != stored:
                        section.put(key, row)

        return step

    def _caught_up(self, stored: bytes, view: View | None = None) -> bytes:
        """The row as it is to be stored; the very bytes if there is nothing to do."""
        tag = ROW_HEADER.unpack_from(stored)[2]
        if tag & ROW_TOMBSTONE:
            return stored
        places = self._places.get(tag >> 8)
        if places is None:
            places = self._places[tag >> 8] = self._stored_pairs(tag >> 8, view)
        row = stored
        for coming, lock in places:
            newer = row[lock : lock + _TIMESTAMP.size]
            if _TIMESTAMP.unpack(newer)[0] > _TIMESTAMP.unpack_from(row, coming)[0]:
                row = row[:coming] + newer + row[coming + _TIMESTAMP.size :]
        return row

    def _stored_pairs(self, layout: int, view: View | None) -> tuple[tuple[int, int], ...]:
        """Where the timestamps of the pairs lie in rows of a layout that knows the lock to come."""
        places = lock_places(self.layout(layout, view))
        return tuple(
            (places[coming], places.get(lock, _ROW_TIMESTAMP)) for coming, lock in self._pairs if coming in places
        )
