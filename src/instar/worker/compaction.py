"""When a table's rows are put into its newest layout, and when its older layouts are forgotten (thesis §3.2, rule 26).

Rows migrate as they are written. What is left is compacted by a job, like any other, if it is worth the walk: once the
table has kept its shape for a while (whoever alters it every few minutes would only have its rows rewritten again and
again) and a good share of its rows is in older layouts; sooner where reads pay much for it, because rows lie side by
side in many of them. Whether the table is written to meanwhile does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from instar.catalog.catalog import Catalog
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table
from instar.catalog.ids import IdAllocator
from instar.catalog.layouts import layout_key
from instar.catalog.system import descriptor_key
from instar.clock import Clock
from instar.pipeline.older_rows import older_share
from instar.schemachange import wanted as want
from instar.schemachange.compact import is_at_rest
from instar.schemachange.creation import FIRST_LAYOUT
from instar.schemachange.draft import Facts, TableBusy
from instar.schemachange.job_records import Job, JobState, encode_job, job_key, new_job, this_process
from instar.schemachange.jobs import Jobs
from instar.schemachange.planner import plan
from instar.schemachange.states import Work
from instar.store.engine import ROW_HEADER, Commit, Reader, Refused, Store
from instar.store.gate import deletion
from instar.store.header import TIMESTAMP_SHIFT

# How often tables are looked at.
LOOK_SECONDS = 10.0
# Whose last change is so long ago, or longer than snapshots live, has kept its shape.
REST_SECONDS = 600.0
# With rows in so many older layouts a scan takes some tenths longer; such a table is not left until it is at rest.
DEAR_LAYOUTS = 8
# A reader of each layout is compiled and kept, and each is on record: with more than this, it is time anyway.
MANY_LAYOUTS = 64
# A table at one version that was not worth it is not looked at again sooner: writes alone make it worth less.
AGAIN_SECONDS = 300.0
# What users ask for goes first.
PRIORITY = -1


class Compactor:
    """Begins jobs that compact tables of one store, one at a time, and forgets layouts that no row is in."""

    def __init__(
        self, store: Store, catalog: Catalog, ids: IdAllocator, jobs: Jobs, facts: Facts, clock: Clock
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._ids = ids
        self._jobs = jobs
        self._facts = facts
        self._clock = clock
        self._looked_ns: int | None = None
        self._version = -1  # of the catalog that was gone through for tables of more than one layout
        self._known: list[int] = []  # their ids
        self._begun: dict[int, int] = {}  # of each table, the version that a job was begun for: it may have failed
        # Of those that were not worth it: the version, whether that was at rest, and when they are looked at again.
        self._left: dict[int, tuple[int, bool, int]] = {}

    def turn(self) -> bool:
        """Look at the tables, if it is time to; returns whether there was anything to do."""
        now = self._clock.monotonic_ns()
        if self._looked_ns is not None and now - self._looked_ns < LOOK_SECONDS * 1e9:
            return False
        self._looked_ns = now
        forgotten = self._forget_layouts()
        return self._begin() or forgotten

    def _begin(self) -> bool:
        under_way = [job for job in self._jobs.all() if is_compaction(job) and not job.is_finished]
        if any(job.state is not JobState.PAUSED for job in under_way):
            return False
        paused = {work.element.table for job in under_way for stage in job.stages for work in stage.work}
        with self._store.read() as reader:
            found = [
                table
                for table in self._altered(reader)
                if table.id not in paused and self._begun.get(table.id) != table.version
            ]
        due = ((table, why) for table in found if (why := self._is_due(table)) is not None)
        return any(self._compact(table, why) for table, why in due)

    def _altered(self, reader: Reader) -> Iterator[Table]:
        """The tables that have, or had, more than one layout. All are gone through only if the schema has changed."""
        catalog = self._catalog.at(reader)
        if catalog.version != self._version:
            self._known = [table.id for table in catalog.tables() if table.layout.id > FIRST_LAYOUT]
            self._version = catalog.version
        return (table for table in map(catalog.by_id, self._known) if isinstance(table, Table))

    def _is_due(self, table: Table) -> str | None:
        """Why it is time to put all rows of the table into its newest layout, if it is and all of them may be."""
        older = table.layout.id - table.oldest_layout
        rested = self._has_rested(table)
        if not older or (not rested and older < DEAR_LAYOUTS) or not self._facts.is_settled(table):
            return None
        now = self._clock.monotonic_ns()
        version, was_rested, until = self._left.get(table.id, (0, False, 0))
        if (version, was_rested) == (table.version, rested) and now < until:
            return None
        found = older_share(self._store.read, table)
        worth = found.layouts >= DEAR_LAYOUTS or (rested and found.share >= table.compaction_share)
        # To fill an empty one, a load needs it as it is.
        if found.rows and (worth or older > MANY_LAYOUTS):
            return f"{found.share:.1%} of the rows in older layouts, in {found.layouts} of them"
        self._left[table.id] = table.version, rested, now + int(AGAIN_SECONDS * 1e9)
        return None

    def _has_rested(self, table: Table) -> bool:
        """Whether the last change of the table is long ago."""
        with self._store.read() as reader:
            stored = reader.get(descriptor_key(table.id))
        if stored is None:
            return False
        since_ms = (self._store.now() >> TIMESTAMP_SHIFT) - (ROW_HEADER.unpack_from(stored)[0] >> TIMESTAMP_SHIFT)
        return bool(since_ms >= min(REST_SECONDS, self._store.retention_seconds) * 1000)

    def _compact(self, table: Table, why: str) -> bool:
        """Put a job on record that compacts the table, and says why; False if it cannot be done now."""
        with self._store.read() as reader:
            change = CatalogChange(self._catalog.at(reader), self._ids)
            statement = f'COMPACT TABLE "{table.name}"'
            try:
                made = plan(change.view, change, self._facts, [want.CompactTable(table.name)], statement)
            except TableBusy:
                return False
            now_us = self._clock.wall_ns() // 1000
            job = new_job(self._ids.next_job(), made, now_us).noted(now_us, this_process(), why)
            record = encode_job(msgspec.structs.replace(job, priority=PRIORITY))
            request = Commit(catalog_version=reader.catalog_version, raw=[(job_key(job.id), record)])
        try:
            self._store.commit(request)
        except Refused:
            return False
        self._begun[table.id] = table.version
        return True

    def _forget_layouts(self) -> bool:
        """Remove the records of layouts below the oldest of a table, once nothing that is logged is in one."""
        with self._store.read() as reader:
            gone = [
                key
                for table in self._altered(reader)
                if is_at_rest(reader, table)
                for key in _layouts_below(reader, table)
            ]
        if gone:
            self._store.background([deletion(gone)])
        return bool(gone)


def is_compaction(job: Job) -> bool:
    """Whether the job compacts a table."""
    return any(work.work is Work.COMPACT for stage in job.stages for work in stage.work)


def _layouts_below(reader: Reader, table: Table) -> Iterator[bytes]:
    first, last = layout_key(table.id, 0), layout_key(table.id, table.oldest_layout)
    return (key for key, _ in reader.scan(first, last))
