"""Turns of background work: jobs that nobody works on, the log as far as retention allows, rowsets that nobody sees."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator

from instar import errors
from instar.catalog import system
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table
from instar.catalog.history import dropped_table
from instar.catalog.ids import IdAllocator
from instar.catalog.layouts import Layouts, layout_key
from instar.catalog.sequences import Sequences
from instar.clock import Clock
from instar.pipeline.facts import StoreFacts
from instar.scheduling import gives_way
from instar.schemachange.breath import Breath
from instar.schemachange.executor import Executor
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.jobs import Jobs
from instar.schemachange.online.followed import followed_key
from instar.schemachange.online.image import Image
from instar.schemachange.online.keeping import ViewKeeper
from instar.schemachange.online.retention import kept, needed
from instar.schemachange.pulse import Interrupted
from instar.schemachange.reorganize import InProcess
from instar.schemachange.stages import Plan
from instar.schemachange.tasks import Reorganizer, Task
from instar.schemachange.validate import Validation
from instar.sql.checks import compile_check
from instar.sql.defaults import Defaults
from instar.sql.replan import replan
from instar.store.collector import collection_limit
from instar.store.engine import (
    PREFIX_ROWSET,
    PREFIX_TABLE,
    Commit,
    PreconditionFailed,
    Reader,
    Section,
    Store,
    ValueUnchanged,
    prefix_end,
    rowset_prefix,
)
from instar.store.gate import deletion, with_calls
from instar.store.lock_table import Locked
from instar.store.records import (
    RowsetRecord,
    RowsetState,
    decode_rowset_record,
    decode_table_header,
    rowset_record,
)
from instar.tables.garbage import DeadEntries
from instar.worker.compaction import Compactor

# Up to so many rows are reorganized in this process: it takes less than starting Spark does, above all beside clients.
WITHOUT_SPARK_ROWS = 500_000
# An image reads its sources once for each range of its targets, one after the other.
IMAGED_WITHOUT_SPARK_ROWS = 100_000
# A validation only reads, a million rows per second and core.
VALIDATED_WITHOUT_SPARK_ROWS = 2_000_000
_COLLECT_SECONDS = 1.0
# A job that was run is not run again in the same turn before.
_PASSED_SECONDS = 1.0
# Beside a job views are kept up, and garbage is removed, so often, for so long at most each; a commit that takes longer
# is applied as a whole.
_BESIDE_SECONDS = 1.0
_BESIDE_AT_MOST = 0.2
# After a job has failed for a reason outside it (a full disk), it is left alone for so long.
_BACKOFF_SECONDS = 5.0
# A job that has come before another, and met locks again, is not put before others sooner than this.
_VAIN_SECONDS = 30.0
_KEYS_PER_STEP = 256

# What Spark may report that says nothing of the data: the job is done in this process instead.
_NOT_THE_JOBS_FAULT = frozenset({errors.OBJECT_NOT_READY, errors.IO_ERROR, errors.INTERNAL_ERROR})


class _Enough(Exception):
    """What is done beside a job has taken its time."""


class Worker:
    """Turns of background work on one store. It reads no clock but the given one, and stops between two batches."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        large: Callable[[], Reorganizer] = InProcess,
        *,
        stopping: Callable[[], bool] = lambda: False,
        hook: Callable[[Job], str] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._large = large
        self._stopping = stopping
        self._catalog = Catalog(store, clock, loaded=lambda version: store.publish_schema(version, 0))
        self._layouts = Layouts(store)
        self._breath = Breath(store, clock, gives_way=gives_way())
        self._jobs = Jobs(store, clock)
        self._sequences = Sequences(store)
        owner = b"worker %d:%s" % (os.getpid(), os.urandom(8))
        self._executor = Executor(
            store,
            self._catalog,
            IdAllocator(store),
            clock,
            owner,
            self._reorganizer,
            compile_check,
            replanner(store, clock),
            Defaults(self._sequences),
            stopping=stopping,
            overtaken=self._more_urgent,
            beside=self._beside_a_job,
            hook=hook,
            failed=traceback.print_exception,
            aside=self._steps_aside,
        )
        facts = StoreFacts(store, self._jobs, self._sequences)
        self._keeper = ViewKeeper(store, self._catalog, IdAllocator(store), self._jobs, facts, clock, compile_check)
        self._compactor = Compactor(store, self._catalog, IdAllocator(store), self._jobs, facts, clock)
        self._dead_entries = DeadEntries(self._newest, self._dropped_table, self._layouts)
        self._collected_ns = 0
        self._views_ns = 0  # until then they are let alone
        self._beside_ns = 0  # and until then beside a job
        self._retry_ns: dict[int, int] = {}
        self._passed: dict[int, int] = {}  # jobs that are not run again in this turn until then
        # Of jobs that have stepped aside: what they have met, and from when on they may be put before others.
        self._aside: dict[int, tuple[Locked, int]] = {}
        self._first: int | None = None  # the one of them that is to be run next

    def turn(self) -> bool:
        """Do what there is to do now; returns whether there was anything."""
        self._store.worker_goes_on()
        self._catalog.cache.tend()
        worked = self._run_jobs()
        worked |= self._keep_views(self._stopping, self._store.worker_goes_on)  # one commit may take a minute
        self._sequences.close()
        now = self._clock.monotonic_ns()
        if now - self._collected_ns >= _COLLECT_SECONDS * 1e9:
            self._collected_ns = now
            for part in (self.collect, self._prune, self.deallocate, self._compactor.turn):
                try:
                    worked |= part()
                except Exception:  # noqa: BLE001 - a full disk or a bug: garbage can wait, and so can what is said of it
                    traceback.print_exc()
                    self._collected_ns = now + int(_BACKOFF_SECONDS * 1e9)
        return worked

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _run_jobs(self) -> bool:
        """Run what nobody works on, the most urgent first, each once a second at most; but again what gave way to more
        urgent work."""
        worked = False
        self._passed.clear()
        while not self._stopping() and (job := next(self._eligible(), None)) is not None:
            self._pass(job.id)
            self._aside.pop(job.id, None)
            try:
                found = self._executor.run(job.id)
            except Exception:  # noqa: BLE001 - of one job, so that the others go on
                # What not even the job's record could be told: the next turn may fare better.
                traceback.print_exc()
                self._retry_ns[job.id] = self._clock.monotonic_ns() + int(_BACKOFF_SECONDS * 1e9)
                continue
            finally:
                self._sequences.close()  # what is left of their blocks is for others
                self._pass(job.id)
                if self._first == job.id:
                    self._first = None
            worked |= found is not None
            if found is not None and found.state is JobState.PENDING:
                self._passed.pop(job.id, None)
        return worked

    def _pass(self, job: int) -> None:
        if job in self._aside:  # its turn comes when it is put before others, or in the next turn
            self._passed[job] = sys.maxsize
            return
        # Others may keep coming, and this turn last for hours: what is resumed, or waits no more, is not to wait.
        self._passed[job] = self._clock.monotonic_ns() + int(_PASSED_SECONDS * 1e9)

    def _is_passed(self, job: int) -> bool:
        return self._clock.monotonic_ns() < self._passed.get(job, 0)

    def _eligible(self) -> Iterator[Job]:
        found = sorted(self._jobs.runnable(), key=lambda job: job.id != self._first)
        return (job for job in found if not self._is_passed(job.id) and self._may_be_run(job))

    def _may_be_run(self, job: Job) -> bool:
        return self._clock.monotonic_ns() >= self._retry_ns.get(job.id, 0)

    def _is_asked(self, job: Job) -> bool:
        """Whether something was requested of it since it was run last: that is soon done, and somebody waits for it."""
        return job.requested not in (None, job.met) and self._may_be_run(job)

    def _overtakes(self, job: Job, than: Job) -> bool:
        # A statement that is not planned yet: what it has waited for has ended.
        waits = job.after is None and (job.state is not JobState.PENDING or bool(job.reason))
        return job.priority > than.priority and not waits and not self._is_passed(job.id) and self._may_be_run(job)

    def _steps_aside(self, job: Job, met: Locked) -> bool:
        """Whether another job could be run while this one waits for locks; that it is not run again in this turn does
        not count, for two may wait."""
        if not any(self._may_be_run(found) for found in self._jobs.runnable() if found.id != job.id):
            return False
        vain = self._first == job.id
        self._aside[job.id] = met, self._clock.monotonic_ns() + (int(_VAIN_SECONDS * 1e9) if vain else 0)
        return True

    def _comes_first(self, job: Job, than: Job) -> bool:
        """Whether a job that has stepped aside is to be put before another: it was before that in the order of jobs,
        and what it has met is free."""
        met, since = self._aside[job.id]
        if (-job.priority, job.id) > (-than.priority, than.id) or self._clock.monotonic_ns() < since:
            return False
        return not self._store.locks.is_blocked(met)

    def _more_urgent(self, than: Job) -> int | None:
        """A job that is to be cancelled or paused; one that waits for nothing but this worker, of a higher priority; or
        one that need not stand aside now."""
        for job in self._jobs.runnable():
            if self._is_asked(job) or (job.id in self._aside and self._comes_first(job, than)):
                self._first = job.id
                self._passed.pop(job.id, None)
                return job.id
            if job.id not in self._aside and self._overtakes(job, than):
                return job.id
        return None

    def _reorganizer(self, task: Task) -> Reorganizer:
        if task.breathes:
            task.breath = self._breath
        if task.rows <= _without_spark(task):
            return InProcess()
        return _WithFallback(self._large())

    # --- materialized views ------------------------------------------------------------------------------------------

    def _keep_views(self, enough: Callable[[], bool], beat: Callable[[], None]) -> bool:
        """Have materialized views follow the log."""
        now = self._clock.monotonic_ns()
        if now < self._views_ns:
            return False
        try:
            return self._keeper.turn(enough, beat)
        except Interrupted:
            raise
        except Exception:  # noqa: BLE001 - a full disk or a bug: the views are as old as they are
            traceback.print_exc()
            self._views_ns = now + int(_BACKOFF_SECONDS * 1e9)
            return False

    def _beside_a_job(self, beat: Callable[[], None]) -> None:
        """Between two batches of a job: views do not wait for its end, nor does what takes space in vain."""
        begun = self._clock.monotonic_ns()
        if begun < self._beside_ns:
            return
        until = begun + int(_BESIDE_AT_MOST * 1e9)
        try:
            self._keep_views(lambda: self._clock.monotonic_ns() >= until, beat)
            self._remove_garbage(beat)
        finally:
            self._beside_ns = self._clock.monotonic_ns() + int(_BESIDE_SECONDS * 1e9)

    def _remove_garbage(self, beat: Callable[[], None]) -> None:
        """Beside a job, which may take hours: cut the log, and free what nobody sees any more."""
        begun = self._clock.monotonic_ns()
        if begun < self._collected_ns:  # it has failed a moment ago
            return
        self._catalog.cache.tend()
        for part in (self.collect, self.deallocate):
            until = self._clock.monotonic_ns() + int(_BESIDE_AT_MOST * 1e9)

            def between(until: int = until) -> None:
                beat()
                if self._clock.monotonic_ns() > until:
                    raise _Enough

            try:
                part(between)
            except _Enough:
                continue
            except Interrupted:
                raise
            except Exception:  # noqa: BLE001 - as in a turn
                traceback.print_exc()
                self._collected_ns = begun + int(_BACKOFF_SECONDS * 1e9)

    @property
    def is_owing(self) -> bool:
        """Whether a view could not be brought up just now, so that the next turns are to try again."""
        return self._keeper.is_owing

    # --- garbage -----------------------------------------------------------------------------------------------------

    def collect(self, between: Callable[[], None] = lambda: None) -> bool:
        """Cut the log as far as retention and live snapshots allow. `between` is called now and then."""
        with self._store.read() as reader:
            watermark, newest = reader.watermark, reader.timestamp
        holds = list(needed(self._jobs))
        with self._store.read() as reader:
            holds += kept(reader, self._catalog.at(reader))
        oldest = self._store.oldest_snapshot()
        limit = collection_limit(
            now=self._store.now(),
            watermark=watermark,
            holds=[*holds, *(() if oldest is None else (oldest,))],
            retention_seconds=self._store.retention_seconds,
            log_bytes=self._store.log_bytes(),
            log_max_bytes=self._store.log_max_bytes,
        )
        limit = min(limit, newest)
        return limit > watermark and self._store.collect(limit, self._dead_entries, between) > 0

    def _prune(self) -> bool:
        """Forget old jobs; that they are gone is no reason to look for more to do."""
        self._jobs.prune()
        return False

    def deallocate(self, between: Callable[[], None] = lambda: None) -> bool:
        """Remove dead rowsets that no snapshot sees, and building ones whose job has ended (rules 9, 22). `between` is
        called now and then."""
        with self._store.read() as reader:
            watermark = reader.watermark
            found = list(_rowsets(reader))
        worked = False
        for key, stored, rowset, record in found:
            if self._stopping():
                break
            if record.state is RowsetState.BUILDING:
                if self._is_over(record.owner):
                    worked |= self._replace(key, stored, rowset_record(record.owner, RowsetState.DEAD, 1))
            elif record.state is RowsetState.DEAD and not record.since:
                # Its death was committed before this moment: so the newest timestamp is late enough.
                with self._store.read() as reader:
                    since = reader.timestamp
                worked |= self._replace(key, stored, rowset_record(record.owner, RowsetState.DEAD, max(since, 1)))
            elif record.state is RowsetState.DEAD and record.since <= watermark:
                self._store.background(with_calls(self._removal(rowset, key), between))
                worked = True
        return self._forget_tables() or worked

    def _is_over(self, job: int) -> bool:
        """Whether a job has ended, or was forgotten. One whose record is damaged may be under way."""
        try:
            return self._jobs.get(job).is_finished
        except errors.Error as failed:
            if failed.sqlstate not in (errors.UNDEFINED_OBJECT, errors.DATA_CORRUPTED):
                raise
            return failed.sqlstate == errors.UNDEFINED_OBJECT

    def _replace(self, key: bytes, before: bytes, after: bytes) -> bool:
        with self._store.read() as reader:
            version = reader.catalog_version
        unchanged = ValueUnchanged(key, before, None)
        try:
            self._store.commit(Commit(catalog_version=version, preconditions=[unchanged], raw=[(key, after)]))
        except PreconditionFailed:
            return False
        return True

    def _removal(self, rowset: int, record: bytes) -> Iterator[Callable[[Section], None]]:
        """Gated steps that delete every key of the rowset, and its record last."""
        start = rowset_prefix(rowset)
        stop = prefix_end(start)
        left = True
        while left:
            with self._store.read() as reader:
                keys, _ = reader.batch(start, stop, 16 * _KEYS_PER_STEP)
            left = bool(keys)
            for begin in range(0, len(keys), _KEYS_PER_STEP):
                yield deletion(keys[begin : begin + _KEYS_PER_STEP])
            if keys:
                start = keys[-1] + b"\x00"
        yield deletion([record])

    def _forget_tables(self) -> bool:
        """Remove headers and layouts of dropped tables once nothing can refer to them: when the collector has removed
        the tombstone of the descriptor, the watermark has passed the drop."""
        gone: list[bytes] = []
        with self._store.read() as reader:
            for key, value in reader.scan(PREFIX_TABLE, prefix_end(PREFIX_TABLE)):
                table = int.from_bytes(key[len(PREFIX_TABLE) :], "big")
                if decode_table_header(value).dropped and reader.get(system.descriptor_key(table)) is None:
                    layouts = layout_key(table, 0)[:-4]
                    gone += [key, *(found for found, _ in reader.scan(layouts, prefix_end(layouts)))]
                    if reader.get(followed_key(table)) is not None:
                        gone.append(followed_key(table))
        if gone:
            self._store.background([deletion(gone)])
        return bool(gone)

    def _newest(self) -> CatalogSnapshot:
        with self._store.read() as reader:
            return self._catalog.at(reader)

    def _dropped_table(self, table: int) -> Table | None:
        with self._store.read() as reader:
            return dropped_table(reader, table)


def replanner(store: Store, clock: Clock) -> Callable[[CatalogChange, Job], Plan]:
    """Plans statements that have waited, on what is stored."""
    facts = StoreFacts(store, Jobs(store, clock), Sequences(store))
    return lambda change, job: replan(change, facts, job, clock.wall_ns() // 1000)


def _without_spark(task: Task) -> int:
    """Up to how many rows the task is done in this process."""
    if isinstance(task, Validation):
        return VALIDATED_WITHOUT_SPARK_ROWS
    return min(IMAGED_WITHOUT_SPARK_ROWS, WITHOUT_SPARK_ROWS) if isinstance(task, Image) else WITHOUT_SPARK_ROWS


class _WithFallback:
    """A reorganizer that may be missing what it needs (Java, memory), and the one that needs nothing."""

    def __init__(self, first: Reorganizer) -> None:
        self._first = first

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        """As in `Reorganizer`. What the first one has put stands; the other finds it there."""
        try:
            self._first.run(task, pulse)
        except errors.Error as failed:
            if failed.sqlstate not in _NOT_THE_JOBS_FAULT:
                raise
            traceback.print_exc()
            task.doing = f"without Spark, for {failed.message}"
            InProcess().run(task, pulse)


def _rowsets(reader: Reader) -> Iterator[tuple[bytes, bytes, int, RowsetRecord]]:
    for key, value in reader.scan(PREFIX_ROWSET, prefix_end(PREFIX_ROWSET)):
        yield key, value, int.from_bytes(key[len(PREFIX_ROWSET) :], "big"), decode_rowset_record(value)
