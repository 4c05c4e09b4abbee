"""A bulk load as a job: unseen rowsets that are filled under a claim and published by one commit (rule 9).

Publishing swaps the table's rowsets in, sets f = c, and stands only if the table is empty still: whoever wrote to it
meanwhile has won, and the load is abandoned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import msgspec

from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Step, StepKind, Table
from instar.catalog.ids import IdAllocator
from instar.clock import Clock
from instar.schemachange.jobs import Held, Job, Jobs, JobState, Problem, encode_job, job_key
from instar.store.engine import (
    ClaimLost,
    Commit,
    PreconditionFailed,
    Refused,
    Section,
    Store,
)
from instar.store.records import RowsetState, rowset_key, rowset_record
from instar.tables.load import loading_descriptor

LOAD = "load"


class Loading:
    """One load of one table. `table` is the descriptor to be published, `timestamp` that of the loaded rows."""

    def __init__(self, store: Store, ids: IdAllocator, clock: Clock, table: Table) -> None:
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
            state=JobState.PENDING,
            rows_total=0,
            created=now,
        )
        with store.read() as reader:
            version = reader.catalog_version
            self.timestamp = reader.timestamp
        raw: list[tuple[bytes, bytes | None]] = [(job_key(job), encode_job(record))]
        raw += [(rowset_key(rowset), rowset_record(job, RowsetState.BUILDING, 0)) for rowset in rowsets]
        store.commit(Commit(catalog_version=version, raw=raw))
        held = self._jobs.claim(job, b"load %d" % os.getpid())
        if held is None:
            raise errors.error(errors.OBJECT_IN_USE, f"another process took over load job {job}")
        self._held: Held = held
        self._renewed = clock.monotonic_ns()
        self._jobs.update(job, lambda found: msgspec.structs.replace(found, state=JobState.RUNNING, started=now), held)

    def put(self, steps: Iterable[Callable[[Section], None]]) -> None:
        """Run steps that fill the rowsets. 57014 if the job was cancelled or taken over."""
        try:
            self._store.background(steps, claim=self._held.claim)
            if self._clock.monotonic_ns() - self._renewed > 2_000_000_000:
                self._jobs.renew(self._held)
                self._renewed = self._clock.monotonic_ns()
                if self._jobs.get(self._held.job).requested == "cancel":
                    raise errors.error(errors.QUERY_CANCELED, f"load job {self._held.job} was cancelled")
        except ClaimLost:
            raise errors.error(errors.QUERY_CANCELED, f"load job {self._held.job} was taken over") from None

    def publish(self, catalog: Catalog) -> int:
        """Swap the rowsets in; returns the timestamp. 40001 if somebody has written to the table meanwhile."""
        before = self._before
        while True:
            with self._store.read() as reader:
                change = CatalogChange(catalog.at(reader), self._ids)
                if change.view.by_id(before.id) != before:
                    raise self._conflict()
                step = Step(version=self.table.version, kind=StepKind.ELEMENT_STATE, statement="bulk load")
                change.require_empty(before)
                change.update(msgspec.structs.replace(self.table, steps=(*before.steps, step)[-64:]), floor="current")
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
                raise errors.error(errors.QUERY_CANCELED, f"load job {self._held.job} was taken over") from None
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
        job = self._jobs.get(self._held.job)
        after = msgspec.structs.replace(
            job, state=state, problem=problem, finished=self._clock.wall_ns() // 1000, requested=None
        )
        raw: list[tuple[bytes, bytes | None]] = [(job_key(job.id), encode_job(after))]
        if state is JobState.SUCCEEDED:
            owner = self._before.id
            raw += [(rowset_key(rowset), rowset_record(owner, RowsetState.LIVE, 0)) for rowset in self._rowsets]
        return raw + self._jobs.finished_records(job)

    def _conflict(self) -> errors.Error:
        return errors.error(
            errors.SERIALIZATION_FAILURE,
            f'table "{self._before.name}" was written to or changed while it was loaded',
            hint="Retry the load: a table with rows takes them through a transaction.",
        )
