"""Schema changes of a session: planned within its transaction, committed with it, and finished by jobs after it.

The first stage of a change is part of the transaction that made it: it takes effect, or leaves nothing, together with
the transaction's rows. What needs a job gets its record in the same commit; COMMIT then runs the job here if the table
is small, or waits for the worker (mode `wait`), or leaves it to the worker (mode `async`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table
from instar.database.former_names import by_former_names
from instar.database.jobs import rate_of, seen_now
from instar.database.past import timestamp_of
from instar.database.restoring import Restoration, Restoring, require_known_values, restore_values
from instar.database.result import Result, rows_of
from instar.database.settings import duration_us
from instar.pipeline.facts import StoreFacts
from instar.schemachange import explain
from instar.schemachange.draft import TableBusy
from instar.schemachange.elements import ElementKind
from instar.schemachange.executor import apply
from instar.schemachange.explain import Row
from instar.schemachange.job_records import Job, JobState, Problem, encode_job, job_key, new_job
from instar.schemachange.planner import combine, plan
from instar.schemachange.publishing import advance
from instar.schemachange.queued import in_the_way, queued_job, withdraw
from instar.schemachange.reorganize import SMALL_ROWS
from instar.schemachange.stages import Change, Plan, Publication
from instar.schemachange.waiting import (
    doomed_tables,
    lock_holders,
    moved_tables,
    named,
    wait_for_leases,
    wait_for_writers,
    writers_of,
)
from instar.schemachange.wanted import Truncate, UndropColumn, UndropTables, Wanted
from instar.sql import ddl
from instar.sql import statements as ast
from instar.sql.replan import named_tables
from instar.tables.validation import UnseenRows
from instar.transactions.commit import Conflict
from instar.types import TEXT

if TYPE_CHECKING:
    from instar.database.session import Session

_POLL_SECONDS = 0.01
_POLL_AT_MOST = 0.2
# How often the client of a job that is run in its statement's call is told of it.
_TELL_SECONDS = 0.3
# Nobody works on the job for so long: it is time to see whether anybody can.
_UNATTENDED_SECONDS = 5.0
# What is mended by somebody, if at all, and not by trying again.
_OF_THE_DISK = (errors.DISK_FULL, errors.IO_ERROR)


class _Telling:
    """Whether a statement was cancelled; asked again and again while its job runs in its call, of which the client is
    told meanwhile by `tell`: it is given what it has told last. Where that fails there is no more of it: `failed` is to
    be raised once the job has ended, which goes on."""

    def __init__(self, tell: Callable[[str], str], is_cancelled: Callable[[], bool]) -> None:
        self._tell = tell
        self._is_cancelled = is_cancelled
        self._looked, self._told = time.monotonic(), ""
        self.failed: Exception | None = None

    def __call__(self) -> bool:
        if self.failed is None and time.monotonic() - self._looked > _TELL_SECONDS:
            self._looked = time.monotonic()
            try:
                self._told = self._tell(self._told)
            except Exception as failed:  # noqa: BLE001 - the client's, whatever it is
                self.failed = failed
        return self._is_cancelled()


class SchemaChanges:
    """The schema changes of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._planned: list[Plan] = []  # of the open transaction, those that need jobs
        self._queued: Job | None = None  # the statement's own job, if it waits for another one
        self._doomed: set[int] = set()  # tables whose other writers the transaction will doom
        self._moved: set[int] = set()  # tables whose other writers it may turn back
        self._restored: list[Table] = []  # tables that get a column back
        self._restorations: list[Restoration] = []  # as far as the rows' values are not buffered
        self._copied: dict[int, int] = {}  # rowsets of rehearsed changes, and those that have the rows
        self._patient_until_ns = 0  # until when what it commits waits for others

    def execute(self, statement: ast.Ddl, text: str) -> Result:
        """Plan the change on what the session sees, and put its first stage into the transaction."""
        session = self._session
        if isinstance(statement, ast.CompactTable) and session.in_block:
            raise errors.error(errors.ACTIVE_TRANSACTION, "COMPACT TABLE cannot run inside a transaction block")
        change = session.change()
        translation = self._translate(statement, change)
        session.open_transaction().require_writable(translation.tag)
        if translation.wanted:
            try:
                made = self._plan(translation.wanted, text, change, self._begun())
            except TableBusy as busy:
                self._queue(busy, text, translation.wanted)
                return Result(translation.tag)
            self._require_alone(made)
            before = change.view
            self._apply(made, change)
            if any(isinstance(action, Truncate) for action in translation.wanted):
                self._require_seen(made, change)
            session.schema_locks.hold_change(change)
            for action in translation.wanted:
                if isinstance(action, UndropColumn):
                    self._restore(action, before, change)
        if translation.populate is not None:
            return Result(translation.tag, rowcount=session.run_statement(translation.populate).rowcount)
        return Result(translation.tag)

    def _require_alone(self, made: Plan) -> None:
        """A join or split has stages of its own, which it shares with no other change of its transaction."""
        if made.needs_job and self._planned and any(map(_is_transformation, (made, *self._planned))):
            raise errors.unsupported("joining or splitting tables in a transaction whose other changes take a job")

    def _require_seen(self, made: Plan, change: CatalogChange) -> None:
        """A transaction that keeps its snapshot takes no rows away that are newer, or changed since, as its DELETE
        would not. An autocommit statement, and one of READ COMMITTED, empties the table as it is when it commits."""
        open_ = self._session.open_transaction()
        if not open_.keeps_snapshot or not self._session.in_block:
            return
        assert open_.snapshot is not None  # a statement is running
        for published in made.first.published:
            if isinstance(published.before, Table) and published.before.id in made.first.emptied:
                unseen = UnseenRows(published.before)
                change.require_untouched(published.before, open_.snapshot.timestamp, conflict=unseen)

    def _restore(self, action: UndropColumn, before: CatalogSnapshot, change: CatalogChange) -> None:
        """The values of a column that is back, in rows that were written since it was dropped."""
        after, table = _undropped(action, before, change)
        self._restored.append(after)
        if self._session.in_block:
            restore_values(self._session, after, table)
            return
        restoration = Restoration(self._session, after, table)
        restoration.follow()
        self._restorations.append(restoration)

    @property
    def restoring(self) -> Restoring | None:
        """The columns that the transaction which is about to commit brings back."""
        if not self._restored:
            return None
        return Restoring(tuple(self._restored), tuple(self._restorations), self._patient_until_ns)

    def explain(self, explained: ast.Explain, text: str) -> Result:
        """EXPLAIN (DDL): the stages, without doing anything: planned on a change that is thrown away."""
        statement = explained.statement
        if not ddl.is_schema_change(statement):
            message = "EXPLAIN (DDL) shows the stages of schema changes"
            raise errors.error(errors.SYNTAX_ERROR, message, position=explained.position)
        change = self._session.change().copy()
        wanted = self._translate(statement, change).wanted
        rows: list[Row] = []
        planned = None
        try:
            planned = self._plan(wanted, text, change) if wanted else None
        except TableBusy as busy:
            rows = [explain.queued(self._waited_for(busy, wanted))]
        if planned is not None:
            for notice in planned.notices:
                self._session.notice(notice)
            waits = partial(self._waits, planned.needs_job)
            rows = explain.explain(planned, change.view, waits, self._is_in_call)
            if isinstance(action := wanted[0], UndropColumn):  # which comes alone
                before = change.view
                apply(planned.first, change)
                require_known_values(self._session, *_undropped(action, before, change))
        columns = tuple((name, TEXT) for name in explain.COLUMNS)
        return rows_of("EXPLAIN", columns, (tuple(map(str, row)) for row in rows))

    def _waits(self, by_job: bool, publication: Publication, number: int) -> str:
        """Whom the stage of that number would wait for, if its turn were now."""
        store = self._session.database.store
        lease = f"a schema lease of {store.schema_lease:g} s" if (by_job or number > 1) and store.schema_lease else ""
        doomed, moved = doomed_tables(publication), moved_tables(publication)
        writers = writers_of(store, doomed, self._session.enlisted, moved)
        locked = lock_holders(store, publication, self._session.locks.owner)
        return "; ".join(filter(None, (lease, named(writers), locked)))

    def rehearse(self, statement: ast.Ddl, text: str) -> list[Row]:
        """The stages of a change, which is then taken to its end, jobs included, as far as this transaction sees.

        Only for a transaction that is rolled back: nothing has been done to any row. See rehearsal.py.
        """
        change = self._session.change()
        wanted = self._translate(statement, change).wanted
        if not wanted:
            return []
        made = self._plan(wanted, text, change)
        rows = explain.explain(made, change.view, in_call=self._is_in_call)
        apply(made.first, change)
        for stage in made.stages[1:]:
            publication = advance(change.view.by_id, stage, made.statement)
            self._note_copies(publication)
            apply(publication, change)
        return rows

    def _note_copies(self, rehearsed: Publication) -> None:
        """Another primary key swaps the rowset for one with copies of the rows, which nobody has made."""
        for published in rehearsed.published:
            before, after = published.before, published.after
            if isinstance(before, Table) and isinstance(after, Table) and before.rowset != after.rowset:
                self._copied[after.rowset] = self._copied.get(before.rowset, before.rowset)

    def _queue(self, busy: TableBusy, text: str, wanted: tuple[Wanted, ...]) -> None:
        """The change waits, as a job of its own, for the job that moves its table. Not within a transaction of several
        statements, the others of which cannot wait; nor a TRUNCATE that nobody waits for: it would take rows along
        that came after it."""
        session = self._session
        waits = session.settings.get("schema_change_mode") == "wait"
        first = self._waited_for(busy, wanted)
        database = session.database
        self._queued = queued_job(
            database.ids.next_job(),
            text.strip().rstrip("; "),  # it will be parsed again: literals and comments are to be what they are
            first,
            database.clock.wall_ns() // 1000,
            session.settings.get("timezone"),
            named_tables(wanted, session.change().view),
            duration_us(session.settings.get("ddl_wait")) or 0,
            database.store.this_process() if waits else None,
            max_rows_per_second=rate_of(session.settings.get("max_rows_per_second")),
            latency_target=duration_us(session.settings.get("reorganize_latency_target")),
        )
        session.change().write(job_key(self._queued.id), encode_job(self._queued))

    def _waited_for(self, busy: TableBusy, wanted: tuple[Wanted, ...]) -> Job:
        """The job that the change is to wait for, if it may."""
        session = self._session
        waits = session.settings.get("schema_change_mode") == "wait"
        if session.in_block or (not waits and any(isinstance(action, Truncate) for action in wanted)):
            raise busy
        if any(isinstance(action, UndropTables | UndropColumn) for action in wanted):  # it means what it finds now
            raise busy
        first = in_the_way(session.database.jobs.all(), busy)
        if first is None:
            raise Conflict(busy)  # it has ended meanwhile: planned again
        return first

    def begin_job(self) -> Job | None:
        """The job of the transaction that is about to commit, if it takes one; its commit writes the record."""
        planned, self._planned = self._planned, []
        queued, self._queued = self._queued, None
        if queued is not None:
            return queued
        if not planned:
            return None
        database = self._session.database
        made = planned[0] if len(planned) == 1 else combine(planned)
        settings = self._session.settings
        job = new_job(
            database.ids.next_job(),
            made,
            database.clock.wall_ns() // 1000,
            max_rows_per_second=rate_of(settings.get("max_rows_per_second")),
            latency_target=duration_us(settings.get("reorganize_latency_target")),
            ddl_wait=duration_us(settings.get("ddl_wait")) or 0,
            zone=settings.get("timezone"),
        )
        self._session.change().write(job_key(job.id), encode_job(job))
        return job

    def await_writers(self, own: Collection[int]) -> None:
        """Wait, for `ddl_wait` at most, for transactions that what is about to be committed would doom, or turn back
        once more; `own` are the tokens of this very one."""
        session = self._session
        store, clock = session.database.store, session.database.clock
        seconds = (duration_us(session.settings.get("ddl_wait")) or 0) / 1e6
        self._patient_until_ns = clock.monotonic_ns() + int(seconds * 1e9)
        if not self._moved and not self._doomed:
            return
        tick = self._telling(f", until ddl_wait ({session.settings.get('ddl_wait')}) has passed")
        wait_for_writers(store, clock, self._doomed, seconds, tick, own, self._moved)

    def await_leases(self) -> None:
        """Wait until the version before the first stage of a job is one lease period old, as all its other stages do:
        else a server that still has the version before that one would be two behind."""
        session = self._session
        repository, clock = session.database.repository, session.database.clock
        if repository is None or not self._planned:
            return
        repository.schema()
        wait_for_leases(session.database.store.schema_lease, clock, repository.since_ns, self._telling())

    def _telling(self, until: str = "") -> Callable[[str], None]:
        """What is called again and again while a commit waits, with what for: the user is told once, and may cancel."""
        session = self._session
        told = False

        def tick(reason: str) -> None:
            nonlocal told
            session.check_cancel()
            if not told:
                told = True
                session.notice(f"waits for {reason}{until}")
                session.deliver_notices()

        return tick

    def forget(self) -> None:
        """The transaction has ended."""
        self._planned = []
        self._queued = None
        self._doomed = set()
        self._moved = set()
        self._restored = []
        self._restorations = []
        self._copied = {}

    def mark(self) -> int:
        """For savepoints: how many changes have been planned."""
        return len(self._planned)

    def restore(self, mark: int) -> None:
        """Forget the changes planned since `mark`."""
        del self._planned[mark:]

    def finish_job(self, job: Job, *, alone: bool) -> None:
        """Run a small job here, wait for another unless the mode is async.

        Raises what the job failed with, if its statement was `alone`; else the transaction stands, and it is XXS01 with
        that in it.
        """
        try:
            self._finish_job(job, alone=alone)
        except BaseException:
            if job.after is not None:
                self._withdraw(job.id)
            raise

    def _withdraw(self, job_id: int) -> None:
        """A statement that has been answered with an error is not to be run later."""
        database = self._session.database
        try:
            withdraw(database.jobs, job_id, database.clock.wall_ns() // 1000)
        except errors.Error as failed:  # a full disk, say
            self._session.notice(
                f"job {job_id} could not be cancelled and may still run, unless CANCEL JOB {job_id} ends it: {failed}"
            )
            self._session.deliver_notices()

    def _finish_job(self, job: Job, *, alone: bool) -> None:
        database = self._session.database
        if job.after is not None:
            seen = seen_now(database, job)[2]
            self._session.notice(f"job {job.id} {seen.reason}")
            database.ensure_worker()
        elif self._is_in_call(job.rows_at_once):
            telling = _Telling(partial(self._tell_of, job.id), self._session.is_cancelled)
            database.run_job(job.id, telling)
            if self._session.is_cancelled():  # somebody is to go on with it
                database.ensure_worker()
            if telling.failed is not None:
                raise telling.failed
        else:
            database.ensure_worker()
        if self._session.settings.get("schema_change_mode") == "wait":
            self._wait(job.id, alone=alone)
        else:
            self._session.check_cancel()
            self._session.notice(f"job {job.id} goes on in the background")
            self._session.deliver_notices()

    def _tell_of(self, job_id: int, told: str) -> str:
        return self._tell(self._session.database.jobs.get(job_id), told)

    def _is_in_call(self, rows: int) -> bool:
        """Whether a job of pieces of so many rows is done in the call of its statement, and not by the worker.

        Under leases there is a wait between two stages, in which the session must heed its user. At a rate a few rows
        may take minutes, for which a statement that is not to wait does not stay."""
        database, settings = self._session.database, self._session.settings
        if database.in_memory:
            return True
        stays = settings.get("schema_change_mode") == "wait" or rate_of(settings.get("max_rows_per_second")) is None
        return stays and rows <= SMALL_ROWS and not database.store.schema_lease

    def _wait(self, job_id: int, *, alone: bool) -> None:
        """Wait until the job has ended, while it is paused too: else the statement would seem to be done. 57014 leaves
        it as it is, and so does what keeps all from it (53100, 58030)."""
        pause = _POLL_SECONDS
        database = self._session.database
        begun = attended = time.monotonic()
        told = ""
        while True:
            job = database.jobs.get(job_id)
            if self._session.on_wait is not None:
                self._session.on_wait(job)
            if job.is_finished:
                break
            told = self._tell(job, told)
            self._session.check_cancel()
            rests = job.state is JobState.PAUSED and job.requested is None and job.after is None
            if rests:
                attended = time.monotonic()
            elif database.in_memory:
                self._run_runnable(job)
            else:
                database.ensure_worker()
            # Who takes a change back on a full disk may hold the job for ever, and not be able to write down why.
            if database.jobs.is_held(job_id) and _of_the_disk(job) is None:
                attended = time.monotonic()
            elif time.monotonic() - attended > _UNATTENDED_SECONDS:
                self._require_possible(job_id, begun)
                attended = time.monotonic()
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_AT_MOST)
        if job.state is JobState.SUCCEEDED:
            if job.told:
                self._session.notice(job.told)
            return
        if job.problem is not None and alone:
            raise job.problem.error()
        why = "" if job.problem is None else f": {job.problem.sqlstate} {job.problem.message}"
        raise errors.error(
            errors.SCHEMA_CHANGE_FAILED,
            f"the transaction was committed, but job {job_id} ({job.statement}) failed and was reverted{why}",
            detail=None if job.problem is None else job.problem.detail,
        )

    def _run_runnable(self, job: Job) -> None:
        """Run a job that is waited for, or the one that it waits for, where there is no worker to do it: whoever ran
        that may have been cancelled."""
        database = self._session.database
        for found in database.jobs.runnable():
            if found.id in (job.id, job.after):
                database.run_job(found.id, self._session.is_cancelled)

    def _tell(self, job: Job, told: str) -> str:
        """Tell the client what has changed since it was `told`: the job's stage, or what it waits for."""
        database = self._session.database
        job, _, seen = seen_now(database, job)
        text = f"job {job.id}: stage {job.stage} of {len(job.stages)}, {seen.state.value}"
        if seen.state is JobState.WAITING or seen.state is JobState.REVERTING or job.reason:
            text += f": {seen.reason}"
        if seen.state is JobState.PAUSED:
            text += f"; RESUME JOB {job.id} lets it go on"
        if text != told:
            self._session.notice(text)
            self._session.deliver_notices()
        return text

    def _require_possible(self, job_id: int, since: float) -> None:
        """What a worker fails of that cannot even write down why it fails, why there has been none `since`, or what of
        the disk keeps it from going on however often it tries."""
        database = self._session.database
        stays = f"The job stays, and goes on once this is mended; CANCEL JOB {job_id} takes it back."
        try:
            database.jobs.probe(job_id)
            database.require_worker(since)
            job = database.jobs.get(job_id)
            if job.state is JobState.REVERTING:
                stays = "The job stays, and takes back what it has done once this is mended."
            problem = _of_the_disk(job)
            if problem is not None:
                raise problem.error()
        except errors.Error as failed:
            raise errors.error(
                failed.sqlstate,
                f"job {job_id} cannot go on: {failed.message}",
                hint=stays if failed.hint is None else f"{failed.hint} {stays}",
            ) from failed

    def _translate(self, statement: ast.Ddl, change: CatalogChange) -> ddl.Translation:
        session = self._session
        as_of = None
        if isinstance(statement, ast.UndropTable) and statement.as_of is not None:
            as_of = timestamp_of(session, statement.as_of.moment, statement.as_of)
        context = session.function_context()
        try:
            return ddl.translate(statement, change.view, context, session.notice, as_of)
        except errors.Error as failed:
            if not isinstance(statement, ast.CreateView):
                raise
            return by_former_names(
                session, failed, lambda names: ddl.translate(statement, names, context, session.notice, as_of)
            )

    def _begun(self) -> Change | None:
        """What the statements of the transaction have begun so far."""
        return combine(self._planned).change if self._planned else None

    def _plan(self, wanted: tuple[Wanted, ...], text: str, change: CatalogChange, begun: Change | None = None) -> Plan:
        database = self._session.database
        buffer = self._session.open_transaction().buffer
        facts = StoreFacts(database.store, database.jobs, database.sequences, buffer, self._copied)
        return plan(change.view, change, facts, wanted, _one_line(text), begun)

    def _apply(self, made: Plan, change: CatalogChange) -> None:
        session = self._session
        apply(made.first, change)
        change.describe(made.statement)
        self._doomed |= doomed_tables(made.first)
        self._moved |= moved_tables(made.first)
        for table in made.first.emptied:
            # What was written to it in this very transaction goes with it.
            session.open_transaction().buffer.drop_table(table)
        for notice in made.notices:
            session.notice(notice)
        if made.needs_job:
            self._planned.append(made)


def _undropped(action: UndropColumn, before: CatalogSnapshot, change: CatalogChange) -> tuple[Table, Table]:
    """The table with the column that is back, and the one without."""
    table = before.lookup("public", action.table)
    assert isinstance(table, Table)  # as it was planned
    return change.view.table(table.id), table


def _of_the_disk(job: Job) -> Problem | None:
    """What of the disk the job failed of last, or is taken back for: it may not be possible now to write down more."""
    last = job.problem if job.state is JobState.REVERTING else None
    if job.attempts and job.failed is not None:
        last = job.failed
    return last if last is not None and last.sqlstate in _OF_THE_DISK else None


def _is_transformation(made: Plan) -> bool:
    return any(move.element.kind is ElementKind.TRANSFORMATION for move in made.stages[0].moves)


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip("; ")
