"""Migration on read (thesis §3.2.1): rows that queries have come by in older layouts are put into the newest.

It takes the same step as compaction, and is as little noticed: rows keep their timestamps and their place in the log,
nobody conflicts, and what a row would lose is left to compaction, until no snapshot is that old. But no job is behind
it, and nobody waits for it: what queries have noted is put in small batches, one at most per query, and after each
there is a pause of many times what it took. What comes meanwhile is forgotten; whoever reads it again notes it again.

A compaction leaves a row alone that is no longer as it was read, for whoever has changed it has put it into the newest
layout. So a row may be put nowhere else: in the atomic section the table still has the version that the query saw.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping

from instar import errors
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.clock import Clock
from instar.schemachange.compact import Rewriter, is_settled, row_rewriter
from instar.schemachange.elements import moving
from instar.schemachange.tasks import Step
from instar.store.engine import ROW_HEADER, Section, Store
from instar.store.forks import begin_anew_in_child
from instar.store.pace import Pace
from instar.store.records import decode_table_header, table_key
from instar.tables.older import OlderRows

# What a query notes at most, and what one batch puts: about a millisecond's work.
MOST_ROWS = 256
# Notes, repeated ones too, that are worth a batch, which has a commit of its own.
WORTH_A_BATCH = 64
# Between two batches a process pauses for so many times what the last one took.
PAUSES = 8


class MigrationOnRead:
    """What the queries of one process have noted, on its way to the store."""

    def __init__(self, store: Store, layouts: Layouts, clock: Clock) -> None:
        self._store = store
        self._layouts = layouts
        self._monotonic_ns = clock.monotonic_ns
        self._due = 0
        self._rewriters: dict[tuple[int, int, int], Rewriter] = {}  # by table, its version, and layout
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
        self._noted: dict[bytes, tuple[Table, bytes]] = {}
        self._count = 0

    def notes_for(self, tables: Mapping[int, Table]) -> OlderRows | None:
        """Where a query of these tables notes rows; None if none of them are migrated now."""
        if self._monotonic_ns() < self._due:
            return None
        found = {number: table for number, table in tables.items() if _is_migrated(table)}
        return OlderRows(found, MOST_ROWS) if found else None

    def take(self, notes: OlderRows, tables: Mapping[int, Table]) -> None:
        """What a query has noted. If there is enough of it, it is put now; what the store refuses can wait."""
        if not notes.found or not self._lock.acquire(blocking=False):
            return
        try:
            for table, key, value in notes:
                if len(self._noted) >= MOST_ROWS:
                    break
                self._noted[key] = (tables[table], value)
            self._count += len(notes.found)
            if self._count >= WORTH_A_BATCH:
                self._put()
        finally:
            self._lock.release()

    def _put(self) -> None:
        noted, self._noted, self._count = self._noted, {}, 0
        begun = self._monotonic_ns()
        with contextlib.suppress(errors.Error):  # a full disk, say: who writes hears of it
            self._store.background(self._steps(noted), pace=_Unhurried())
        now = self._monotonic_ns()
        self._due = now + PAUSES * (now - begun)

    def _steps(self, noted: dict[bytes, tuple[Table, bytes]]) -> Iterator[Step]:
        """One step per table."""
        tables: dict[tuple[int, int], tuple[Table, list[tuple[bytes, bytes, bytes]]]] = {}
        for key, (table, stored) in noted.items():
            rewrite = self._rewriter(table, ROW_HEADER.unpack_from(stored)[2] >> 8)
            if rewrite is not None:
                found = tables.setdefault((table.id, table.version), (table, []))
                found[1].append((key, stored, rewrite(stored)))
        for table, rows in tables.values():
            yield _step(table, rows)

    def _rewriter(self, table: Table, layout: int) -> Rewriter | None:
        """How rows of a layout become rows of the table's newest; None if they are newer, or would lose something."""
        place = table.id, table.version, layout
        known = self._rewriters.get(place)
        if known is not None or layout >= table.layout.id:
            return known
        written = self._layouts.get(table.id, layout)
        with self._store.read() as reader:
            if not is_settled(reader, table, written):
                return None
        if len(self._rewriters) >= MOST_ROWS:
            self._rewriters.clear()
        made = self._rewriters[place] = row_rewriter(table, written)
        return made


class _Unhurried(Pace):
    """The gate's pauses are made up for between the batches, where no query waits."""

    def follow(self, latency: int | None, now: int) -> float:
        return 0.0


def _is_migrated(table: Table) -> bool:
    """Whether queries put rows of the table into its newest layout. Not while a job moves something of it: rows may
    have to be given values by whoever puts them there, or be copied."""
    return table.migration == "read" and table.oldest_layout < table.layout.id and not moving(table)


def _step(table: Table, rows: list[tuple[bytes, bytes, bytes]]) -> Step:
    def step(section: Section) -> None:
        header = section.get(table_key(table.id))
        if header is None or decode_table_header(header).current != table.version:
            return
        for key, stored, value in rows:
            if section.get(key) == stored:
                section.put(key, value)

    return step
