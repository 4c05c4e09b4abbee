"""A bulk load as a job: unseen rowsets that are filled under a claim and published by one commit (rule 9).

Publishing swaps the table's rowsets in, sets f = c, and stands only if the table is empty still: whoever wrote to it
meanwhile has won, and the load is abandoned. Indexes are filled with the rows, or afterwards from them (`LoadedIndex`),
which lets a large load put their entries in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import chain

import msgspec

from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Step, StepKind, Table
from instar.catalog.ids import IdAllocator
from instar.clock import Clock
from instar.schemachange import reorganize
from instar.schemachange.job_records import (
    Checkpoint,
    Job,
    JobState,
    Problem,
    checkpoint_key,
    encode_checkpoint,
    encode_job,
    job_key,
)
from instar.schemachange.jobs import LOAD_LEASE_SECONDS, Jobs
from instar.schemachange.publishing import listed
from instar.schemachange.reorganize import Backfill, Entry, entry_value
from instar.schemachange.waiting import wait_for_locks
from instar.store.engine import (
    ClaimLost,
    Commit,
    PreconditionFailed,
    Refused,
    Section,
    Store,
    View,
    prefix_end,
)
from instar.store.lock_table import Locked
from instar.store.records import RowsetState, rowset_key, rowset_record
from instar.tables.load import loading_descriptor

LOAD = "load"
# So many times as many entries are one step where none of them is probed or looked at again: by then it is more what
# they have in common that takes the time. Rows of an image, of which that is true too, took the atomic section 1.9 us
# each 64 at a time, and 1.1 us 256 at a time (docs/benchmarks-history.md).
_UNPROBED = 4
_RENEW_NS = 2_000_000_000
_LOOK_NS = 100_000_000


class LoadedIndex(Backfill):
    """The entries of the rows of a load, or of the image of a join or split, put by a reorganizer once the rows are
    there: nobody else knows the rowsets, so that no row is read again."""

    def _followed(self, view: View) -> int:
        return view.timestamp

    @property
    def _together(self) -> int:
        return reorganize.STEP_ENTRIES * (1 if any(index.unique for index in self.indexes) else _UNPROBED)

    def _step(self, chunk: list[Entry], derived: int) -> Callable[[Section], None]:
        pairs = [(entry.key, entry_value(entry)) for entry in chunk]
        probes = any(entry.unique for entry in chunk)

        def step(section: Section) -> None:
            if self.pace is not None:
                self.pace.rows += len(chunk)
            if not probes:
                section.put_many(pairs)
                return
            for entry, (key, value) in zip(chunk, pairs, strict=True):
                part = key[: entry.offset]
                if entry.unique and any(other != key for other, _ in section.scan(part, prefix_end(part))):
                    self._derivation(entry).met(section, entry.row, section.get(entry.row) or b"")
                else:
                    section.put(key, value)

        return step


class Loading:
    """One load of one table. `table` is the descriptor to be published, `timestamp` that of the loaded rows.

    `expected`: how many rows there will be, about; shown as the job's progress.
    """

    def __init__(self, store: Store, ids: IdAllocator, clock: Clock, table: Table, *, expected: int = 0) -> None:
        self._store = store
        self._ids = ids
        self._jobs = Jobs(store, clock)
        self._clock = clock
        self._before = table
        now = clock.wall_ns() // 1000
        job = ids.next_job()
        rowsets: list[int] = []

        def new_rowset(_owner: int) -> int:
            rowsets.append(ids.next_rowset())
            return rowsets[-1]

        self.table = loading_descriptor(table, new_rowset)
        self._rowsets = tuple(rowsets)
        record = Job(
            id=job,
            kind=LOAD,
            statement=f"load into {table.name}",
            stages=(),
            stage=0,
            state=JobState.RUNNING,
            rows_total=expected,
            created=now,
            started=now,
        )
        with store.read() as reader:
            self.timestamp = reader.timestamp
        self._renewed = self._looked = clock.monotonic_ns()
        self._rows = 0
        building: list[tuple[bytes, bytes | None]] = [
            (rowset_key(rowset), rowset_record(job, RowsetState.BUILDING, 0)) for rowset in rowsets
        ]
        self._held = self._jobs.begin(record, b"load %d" % os.getpid(), building, seconds=LOAD_LEASE_SECONDS)

    @property
    def job(self) -> int:
        """The id of the load's job."""
        return self._held.job

    def put(self, steps: Iterable[Callable[[Section], None]], rows: int) -> None:
        """Run steps that fill the rowsets, with `rows` rows. 57014 if the job was cancelled or taken over."""
        self._rows += rows
        record = encode_checkpoint(Checkpoint(b"", b"", b"", self._rows))
        key = checkpoint_key(self.job, 0, 0)

        def note(section: Section) -> None:
            section.put(key, record)

        try:
            self._store.background(chain(steps, [note]), claim=self._held.claim)
        except ClaimLost:
            raise self._taken_over() from None
        self.pulse()

    def index(self, place: int) -> LoadedIndex:
        """The work of filling `table.indexes[place]` from the rows, for a reorganizer; not also done by `put`."""
        return LoadedIndex(
            self._store,
            self.table,
            [self.table.indexes[place]],
            job=self.job,
            stage=place + 1,
            claim=self._held.claim,
            rows=self._rows,
        )

    def index_rows(self, place: int) -> int:
        """How many entries of `table.indexes[place]` are there, by the reorganizer's checkpoints."""
        return sum(found.rows for found in self._jobs.checkpoints(self.job, place + 1).values())

    def pulse(self) -> None:
        """Renew the lease in time; to be called every second or so. 57014 as in `put`."""
        now = self._clock.monotonic_ns()
        try:
            if now - self._renewed > _RENEW_NS:
                self._jobs.renew(self._held)
                self._renewed = now
        except ClaimLost:
            raise self._taken_over() from None
        if now - self._looked > _LOOK_NS:
            self._looked = now
            if self._jobs.get(self.job).requested == "cancel":
                raise errors.error(errors.QUERY_CANCELED, f"load job {self.job} was cancelled")

    def publish(self, catalog: Catalog, tick: Callable[[], None]) -> int:
        """Swap the rowsets in; returns the timestamp. 40001 if somebody has written to the table meanwhile.

        `tick` is called again and again while transactions at a locking level are waited for; it may raise.
        """
        before = self._before

        def wait(_reason: str) -> None:
            tick()
            self.pulse()

        while True:
            with self._store.read() as reader:
                change = CatalogChange(catalog.at(reader), self._ids)
                if change.view.by_id(before.id) != before:
                    raise self._conflict()
                step = Step(version=self.table.version, kind=StepKind.ELEMENT_STATE, statement="bulk load")
                change.require_empty(before)
                change.describe("bulk load")
                change.update(msgspec.structs.replace(self.table, **listed(before, step)), floor="current")
                for rowset in (before.rowset, *(index.rowset for index in before.indexes)):
                    change.free_rowset(rowset)
                request = Commit(catalog_version=reader.catalog_version, claim=self._held.claim)
                change.parts(reader).add_to(request)
                request.raw.extend(self._finished(JobState.SUCCEEDED, None))
            try:
                return self._store.commit(request)
            except PreconditionFailed:
                raise self._conflict() from None
            except ClaimLost:
                raise self._taken_over() from None
            except Locked as met:
                wait_for_locks(self._store, self._clock, met, wait)
            except Refused:
                continue

    def abandon(self) -> None:
        """Fail the job and leave its rowsets to the worker. Does nothing if somebody else holds the job by now."""
        problem = Problem(errors.QUERY_CANCELED, "the load was abandoned")
        with self._store.read() as reader:
            version = reader.catalog_version
        raw = self._finished(JobState.FAILED, problem)
        raw += [(rowset_key(rowset), rowset_record(0, RowsetState.DEAD, 0)) for rowset in self._rowsets]
        try:
            self._store.commit(Commit(catalog_version=version, raw=raw, claim=self._held.claim))
        except Refused:
            return

    def _finished(self, state: JobState, problem: Problem | None) -> list[tuple[bytes, bytes | None]]:
        job = self._jobs.get(self.job)
        finished = self._clock.wall_ns() // 1000
        after = msgspec.structs.replace(
            job, state=state, problem=problem, rows_total=self._rows, finished=finished, requested=None
        )
        raw: list[tuple[bytes, bytes | None]] = [(job_key(job.id), encode_job(after))]
        if state is JobState.SUCCEEDED:
            owner = self._before.id
            raw += [(rowset_key(rowset), rowset_record(owner, RowsetState.LIVE, 0)) for rowset in self._rowsets]
        return raw + self._jobs.finished_records(job)

    def _taken_over(self) -> errors.Error:
        return errors.error(errors.QUERY_CANCELED, f"load job {self.job} was taken over")

    def _conflict(self) -> errors.Error:
        return errors.error(
            errors.SERIALIZATION_FAILURE,
            f'table "{self._before.name}" was written to or changed while it was loaded',
            hint="Retry the load: a table with rows takes them through a transaction.",
        )
