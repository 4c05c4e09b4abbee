"""The executor: takes a job through its stages, from wherever a crash left it, forward or back.

Each stage is one store commit: descriptors, floors, rowsets and the job's record together, under the job's claim (rule
9). The work of a stage begins when that commit stands. So the record alone says where a job is: the work of the last
published stage is done again from its checkpoints, which is idempotent, and then the next stage follows.

With leases of zero nobody has to be waited for: a committer who has not seen a stage is turned back by the floor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

import msgspec

from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table
from instar.catalog.ids import IdAllocator
from instar.clock import Clock
from instar.schemachange import planner
from instar.schemachange.dependents import require_unused, rest_of
from instar.schemachange.draft import TableBusy
from instar.schemachange.job_records import (
    KEPT_EVENTS,
    Job,
    JobState,
    Problem,
    decode_job,
    encode_job,
    job_key,
    paused,
    problem_of,
)
from instar.schemachange.jobs import Held, Jobs
from instar.schemachange.online.kept_views import outliving
from instar.schemachange.online.seeing import inherited
from instar.schemachange.online.tail import Behind
from instar.schemachange.populate import CompileDefault
from instar.schemachange.publishing import advance
from instar.schemachange.pulse import Interrupted, Pulse
from instar.schemachange.queued import deserted, in_the_way, planned_job, waits_for, with_wait
from instar.schemachange.replacements import handed_on
from instar.schemachange.retrying import is_aside, put_off, step_aside
from instar.schemachange.stages import Plan, Publication, Stage, Superseded, passes
from instar.schemachange.standing import orphaned, standing, table_of, unseen_of
from instar.schemachange.tasks import Reorganizer, Task
from instar.schemachange.validate import CompileCheck
from instar.schemachange.violations import judge_moves, require_unviolated
from instar.schemachange.waiting import (
    StepsAside,
    doomed_tables,
    moved_tables,
    wait_for_leases,
    wait_for_locks,
    wait_for_writers,
)
from instar.schemachange.works import Works
from instar.store.engine import (
    ClaimLost,
    Commit,
    PreconditionFailed,
    Reader,
    StaleRow,
    StaleSchema,
    Store,
    ValueUnchanged,
)
from instar.store.lock_table import Locked

# Plans the statement of a job that has waited, on the given change.
Replan = Callable[[CatalogChange, Job], Plan]


class Executor:
    """Runs jobs of one store in one process. `overtaken`: a job that should be worked on in place of the given one.
    `failed` is told what a run has ended with once the job's record says it; without it, nothing is written, and raised
    as is what cannot be. `aside`: whether the job, which waits for locks, is to let another be run meanwhile. `beside`:
    as in `Pulse`."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        ids: IdAllocator,
        clock: Clock,
        owner: bytes,
        reorganizer: Callable[[Task], Reorganizer],
        compile_check: CompileCheck,
        replan: Replan,
        compile_default: CompileDefault,
        *,
        stopping: Callable[[], bool] = lambda: False,
        overtaken: Callable[[Job], int | None] = lambda job: None,
        beside: Callable[[Callable[[], None]], None] = lambda beat: None,
        hook: Callable[[Job], str] | None = None,
        failed: Callable[[Exception], None] | None = None,
        aside: Callable[[Job, Locked], bool] = lambda job, met: False,
    ) -> None:
        self.jobs = Jobs(store, clock)
        self._store = store
        self._catalog = catalog
        self._ids = ids
        self._clock = clock
        self._owner = owner
        self._reorganizer = reorganizer
        self._compile_check = compile_check
        self._replan = replan
        self._works = Works(store, self.jobs, catalog, compile_check, compile_default)
        self._stopping = stopping
        self._overtaken = overtaken
        self._beside = beside
        self._hook = hook
        self._failed = failed
        self._aside = aside
        self._published_ns = 0  # when the newest stage was surely there
        self._who = owner.partition(b":")[0].decode()  # for the history: the rest of it makes it unique

    def run(self, job: int) -> Job | None:
        """Take the job as far as it goes: finished or paused, or until the process is to stop; then it is left to
        others. None if another holds it, or took it over."""
        held = self.jobs.claim(job, self._owner)
        if held is None:
            return None
        try:
            found = self._run(job, held)
            if not found.is_finished:
                self.jobs.release(held)
        except ClaimLost:
            return None
        except (Exception, KeyboardInterrupt) as failed:
            put = self._put_off(held, failed)
            with contextlib.suppress(Exception):
                self.jobs.release(held)
            if put is None:
                raise
            return put
        return found

    def _run(self, job: int, held: Held) -> Job:
        again = is_aside(self.jobs.get(job))
        found = self.jobs.update(job, self._begun, held)
        if not again:
            found = self._entered(found, held)
        pulse = Pulse(
            self._store,
            self.jobs,
            self._clock,
            held,
            stopping=self._stopping,
            overtaken=self._overtaken,
            judge=self._require_unviolated,
            beside=self._beside,
        )
        going = found.state in (JobState.RUNNING, JobState.WAITING)
        if found.after is not None and going and found.requested is None:
            found = self._plan(found, held, pulse)
            if found.after is not None and found.requested is None:
                return found
        # Whoever published the stage before, and whenever: it is there now.
        self._published_ns = self._clock.monotonic_ns()
        if not found.stages and found.state is not JobState.REVERTING and found.requested is None:
            return self._give_up(found, held, Problem(errors.OBJECT_NOT_READY, "the process that ran the job is gone"))
        while not (found.is_finished or self._stopping()):
            if found.requested is not None and (found.state is JobState.REVERTING or not self._is_heeded(found)):
                found = self.jobs.update(job, lambda asked: msgspec.structs.replace(asked, requested=None), held)
            elif found.requested == "cancel":
                cancelled = errors.error(errors.QUERY_CANCELED, f"job {job} was cancelled")
                found = self._revert(found, held, problem_of(cancelled))
            elif found.requested == "pause":
                stopped = self.jobs.update(job, lambda asked: paused(asked).noted(self._now(), self._who), held)
                return self._entered(stopped, held)
            elif found.state is JobState.PAUSED:
                return found
            elif pulse.gives_way_to is not None:
                return self._entered(self.jobs.update(job, self._giving_way(pulse.gives_way_to), held), held)
            else:
                found = self._next(found, held, pulse)
                if found.retry_at is not None:
                    return found
        return found

    def _plan(self, job: Job, held: Held, pulse: Pulse) -> Job:
        """Plan a statement that has waited, and publish its first stage; it waits again if its table is moving. First
        it waits for transactions that the stage would doom, as any statement does, and is planned once more then."""
        waited = job.ready == job.stage
        pulse.attend(job)
        since = self._clock.monotonic_ns()
        while True:
            with self._store.read() as reader:
                stored = reader.get(job_key(job.id))
                current = decode_job(stored, job.id)
                if current.requested is not None:
                    return current
                if (gone := deserted(current, self._store)) is not None:
                    return self._give_up(current, held, gone)
                change = CatalogChange(self._catalog.at(reader), self._ids)
                try:
                    made = self._replan(change, current)
                except TableBusy as busy:
                    return self._wait_again(job, held, busy)
                except Exception as failed:  # noqa: BLE001 - whatever it is, the job's record says it
                    return self._give_up(job, held, with_wait(problem_of(failed), current, self.jobs))
                doomed, moved = doomed_tables(made.first), moved_tables(made.first)
                apply(made.first, change)
                after = planned_job(current, made)
                if not made.needs_job:
                    after = _finish(after, self._now())
                after = after.noted(self._now(), self._who, "planned")
                change.write(job_key(job.id), encode_job(after))
                change.describe(job.statement)
                request = Commit(catalog_version=reader.catalog_version, claim=held.claim)
                change.parts(reader).add_to(request)
            if not waited:
                waited = True
                if not self._outwaits(doomed, moved, current, pulse):
                    return self.jobs.get(job.id)
                since = self._clock.monotonic_ns()
                continue
            request.preconditions.append(ValueUnchanged(job_key(job.id), stored, None))
            if after.is_finished:
                request.raw.extend(self.jobs.finished_records(after))
            try:
                self._store.commit(request)
            except (StaleRow, StaleSchema, PreconditionFailed):
                continue
            except Locked as met:
                if (left := self._left_for_locks(met, current, held, pulse, since)) is not None:
                    return left
                continue
            return self._entered(after, held)

    def _outwait_locks(self, met: Locked, job: Job, pulse: Pulse, since_ns: int) -> None:
        """Wait for transactions at a locking level. Interrupted, StepsAside."""
        wait_for_locks(self._store, self._clock, met, pulse.wait, lambda met: self._aside(job, met), since_ns)

    def _left_for_locks(self, met: Locked, job: Job, held: Held, pulse: Pulse, since_ns: int) -> Job | None:
        """Wait for them; the job as it is if it is to stop meanwhile."""
        try:
            self._outwait_locks(met, job, pulse, since_ns)
        except Interrupted:
            return self.jobs.get(job.id)
        except StepsAside as why:
            return self._step_aside(job, held, str(why))
        return None

    def _step_aside(self, job: Job, held: Held, reason: str) -> Job:
        """Let other jobs be run; the hook is told the first time."""
        after = self.jobs.update(job.id, lambda found: step_aside(found, reason, self._now(), self._who), held)
        return after if job.ready == job.stage or not is_aside(after) else self._entered(after, held)

    def _outwaits(self, doomed: Collection[int], moved: Collection[int], job: Job, pulse: Pulse) -> bool:
        """Wait until all have the version that the change was planned on, then for the writers of these tables, for the
        job's `ddl_wait` at most; False if it is to stop meanwhile."""
        pulse.attend(job)
        try:
            if self._store.schema_lease:
                wait_for_leases(self._store.schema_lease, self._clock, self._clock.monotonic_ns(), pulse.wait)
            wait_for_writers(self._store, self._clock, doomed, job.ddl_wait / 1e6, pulse.wait, moved=moved)
            pulse.wait("")
        except Interrupted:
            return False
        return True

    def _wait_again(self, job: Job, held: Held, busy: TableBusy) -> Job:
        """The table is moved by another job by now."""
        first = in_the_way(self.jobs.all(), busy)

        def wait(found: Job) -> Job:
            if first is None:  # it has ended in this very moment
                return msgspec.structs.replace(found, state=JobState.WAITING, ready=None)
            reason = waits_for(first)
            return msgspec.structs.replace(found, state=JobState.WAITING, after=first.id, reason=reason, ready=None)

        return self.jobs.update(job.id, wait, held)

    def _begun(self, found: Job) -> Job:
        if is_aside(found):  # it is shown as it was until it goes on
            return msgspec.structs.replace(found, retry_at=None, met=found.requested)
        state = JobState.RUNNING if found.state in (JobState.PENDING, JobState.WAITING) else found.state
        after = msgspec.structs.replace(found, state=state, reason="", retry_at=None, met=found.requested)
        if found.state is JobState.PAUSED:
            return after
        after = msgspec.structs.replace(after, started=found.started or self._now())
        return after.noted(self._now(), self._who, "claimed")

    @staticmethod
    def _is_heeded(job: Job) -> bool:
        """Whether what is requested can still be done: a cancel may have come too late."""
        return job.requested != "cancel" or job.is_revertible

    def _giving_way(self, other: int) -> Callable[[Job], Job]:
        def give_way(found: Job) -> Job:
            after = msgspec.structs.replace(found, state=JobState.PENDING, reason="")
            return after.noted(self._now(), self._who, f"gives way to job {other}")

        return give_way

    def _next(self, job: Job, held: Held, pulse: Pulse) -> Job:
        """The work of the stage that was published last, then the next stage."""
        try:
            self._prepare(job, held, pulse)
            since = self._clock.monotonic_ns()
            while True:
                try:
                    return self._publish(job, held)
                except Locked as met:
                    self._outwait_locks(met, job, pulse, since)
                except Behind:  # nobody is waited for once more, or it would be so for ever
                    self._works.behind()
                    self._work(job, job.stages[job.stage - 1], held, pulse)
        except Interrupted:
            return self.jobs.get(job.id)
        except StepsAside as why:
            return self._step_aside(job, held, str(why))
        except Superseded as why:
            problem = Problem(errors.OBJECT_NOT_READY, str(why))
            if job.state is JobState.REVERTING or job.is_revertible:
                # Of all that the job moves, something is gone or was changed; the rest of it is not to stay half way.
                return self._revert(job, held, job.problem or problem)
            return self._give_up(job, held, problem)
        except ClaimLost:
            raise
        except Exception as failed:  # noqa: BLE001 - whatever it is, the job's record says it
            stands = self.jobs.get(job.id)
            if _place(stands) != _place(job):
                # The commit that failed stands all the same, or what failed came after it.
                self._published_ns = self._clock.monotonic_ns()
                return stands
            if job.state is JobState.REVERTING or not job.is_revertible:
                return self._retry_later(job, held, problem_of(failed))
            # Whatever went wrong: a change that fails leaves the schema as it was.
            return self._revert(job, held, problem_of(failed))

    def _prepare(self, job: Job, held: Held, pulse: Pulse) -> None:
        """All that comes before the commit of the next stage; once, for a job that has stepped aside since."""
        if job.ready == job.stage:
            pulse.attend(job, worked=True)
            return
        if job.stage:
            self._work(job, job.stages[job.stage - 1], held, pulse)
        if job.stage < len(job.stages):
            self._await(job, job.stages[job.stage], pulse)

    def _retry_later(self, job: Job, held: Held, problem: Problem) -> Job:
        """Leave the job for a while, longer each time: what cannot be taken back has to be done."""
        put = self.jobs.update(job.id, lambda found: put_off(found, problem, self._now(), self._who), held)
        return self._entered(put, held)

    def _put_off(self, held: Held, failed: BaseException) -> Job | None:
        """Have the job's record say what its run has ended with; None if that is for the caller: nobody else is to be
        told of it, or the record cannot be written."""
        if self._failed is None or not isinstance(failed, Exception):
            return None
        problem = problem_of(failed)
        try:
            put = self.jobs.update(held.job, lambda found: put_off(found, problem, self._now(), self._who), held)
        except Exception:  # noqa: BLE001 - a full disk, say: it is the first failure that is raised
            return None
        self._failed(failed)
        with contextlib.suppress(Exception):  # the hook is told of a record that stands
            self._entered(put, held)
        return put

    def _entered(self, job: Job, held: Held) -> Job:
        """Tell the hook, if there is one, of the state and stage that the job is in now; returns the job, with what
        went wrong with the hook in its history."""
        if self._hook is None:
            return job
        if not job.is_finished:
            self.jobs.renew(held)
        failed = self._hook(job)
        if not failed:
            return job
        # The claim of a job that has ended is gone, and nobody else writes its record.
        under = None if job.is_finished else held
        return self.jobs.update(job.id, lambda found: found.noted(self._now(), self._who, failed), under)

    # --- work --------------------------------------------------------------------------------------------------------

    def _work(self, job: Job, stage: Stage, held: Held, pulse: Pulse) -> None:
        pulse.attend(job)
        if stage.work:
            self._require_unviolated(job)
        for place, works in passes(stage.work):
            task = self._works.task(job, works, place, held)
            task.pace = pulse.pace
            pulse.pace.urgency = task.urgency
            pulse.attend(job, task)
            self._reorganizer(task).run(task, pulse)

    # --- stages ------------------------------------------------------------------------------------------------------

    def _publish(self, job: Job, held: Held) -> Job:
        """Publish the next stage and count it, in one commit; the last one finishes the job if no work follows it."""
        if job.stage == len(job.stages):
            return self._commit(job, held, None, _finish(job, self._now()))
        stage = job.stages[job.stage]
        after = msgspec.structs.replace(
            job,
            state=JobState.RUNNING if job.state is JobState.WAITING else job.state,
            stage=job.stage + 1,
            rows_total=self._counted(job),
            attempts=0,
            retry_at=None,
            reason="",
            ready=None,
            told=self._works.told() if stage.reveals else job.told,
            analysis=self._works.analysis(job) or job.analysis,
        )
        if after.stage == len(after.stages) and not stage.work:
            after = _finish(after, self._now())
        return self._commit(job, held, stage, after)

    def _require_unviolated(self, job: Job) -> None:
        """Raises what a job fails with that gives way to a write."""
        with self._store.read() as reader:
            require_unviolated(reader, self._catalog.at(reader), job.elements, self._compile_check)

    def _await(self, job: Job, stage: Stage, pulse: Pulse) -> None:
        """Wait for servers and transactions, as long as the next stage has to."""
        pulse.attend(job, worked=True)
        if self._store.schema_lease:
            wait_for_leases(self._store.schema_lease, self._clock, self._published_ns, pulse.wait)
        with self._store.read() as reader:
            catalog = self._catalog.at(reader)
        publication = advance(catalog.by_id, stage, job.statement)
        doomed, moved = doomed_tables(publication), moved_tables(publication)
        longest = job.ddl_wait if stage.grace is None else stage.grace
        wait_for_writers(self._store, self._clock, doomed, longest / 1e6, pulse.wait, moved=moved)

    def _counted(self, job: Job) -> int:
        """The job's rows: those of the work that has just ended are no longer an estimate."""
        work = job.stages[job.stage - 1].work if job.stage else ()
        if not work:
            return job.rows_total
        done = sum(checkpoint.rows for checkpoint in self.jobs.checkpoints(job.id, job.stage).values())
        return job.rows_total - sum(one.rows for one in work) + done

    def _revert(self, job: Job, held: Held, problem: Problem) -> Job:
        """Turn the job round: from now on its stages are those that lead back from where its elements stand."""
        with self._store.read() as reader:
            catalog = self._catalog.at(reader)
        stages = planner.reverse(standing(job, catalog), unseen_of(job, catalog))
        after = msgspec.structs.replace(
            job,
            stages=stages,
            stage=0,
            state=JobState.REVERTING,
            problem=problem,
            requested=None,
            attempts=0,
            reason="",
            ready=None,
            analysis=self._works.analysis(job) or job.analysis,
        )
        return self._commit(job, held, None, after)

    def _give_up(self, job: Job, held: Held, problem: Problem) -> Job:
        """What the job moved is gone, so there is nothing to go on with and nothing to take back."""
        after = msgspec.structs.replace(job, state=JobState.REVERTING, problem=job.problem or problem)
        return self._commit(job, held, None, _finish(after, self._now()))

    def _commit(self, before: Job, held: Held, stage: Stage | None, after: Job) -> Job:
        """One commit of a stage (or of the record alone) under the claim; tried again when another change came first.

        What was asked for meanwhile is kept; a request to pause or cancel comes up at the next turn. If the job is not
        where it was before, as after a commit of which it was not known whether it would stand, it is left there.
        """
        after = after.noted(self._now(), self._who, after.problem.message if after.problem is not None else "")
        made = after
        while True:
            with self._store.read() as reader:
                key = job_key(before.id)
                stored = reader.get(key)
                current = decode_job(stored, before.id)
                if _place(current) != _place(before):
                    self._published_ns = self._clock.monotonic_ns()
                    return current
                if current != before:
                    after = _merged(before, current, made)
                if _is_asked(before, current, stage):
                    return current
                request = self._request(reader, before, stage, after)
                request.preconditions.append(ValueUnchanged(key, stored, None))
                request.claim = held.claim
                if after.is_finished:
                    request.raw.extend(self.jobs.finished_records(after))
                if stage is not None and stage.reveals:
                    self._works.add_tail(request, reader)
            try:
                self._store.commit(request)
            except (StaleRow, StaleSchema, PreconditionFailed):
                continue
            if stage is not None:
                self._published_ns = self._clock.monotonic_ns()
            return self._entered(after, held)

    def _request(self, reader: Reader, job: Job, stage: Stage | None, after: Job) -> Commit:
        if stage is None:
            return Commit(catalog_version=reader.catalog_version, raw=[(job_key(job.id), encode_job(after))])
        catalog = self._catalog.at(reader)
        change = CatalogChange(catalog, self._ids)
        publication = advance(catalog.by_id, stage, job.statement)
        require_unused(catalog, publication)
        if job.is_revertible and not stage.revertible and job.state is not JobState.REVERTING:
            require_unused(catalog, rest_of(job, catalog))
        apply(publication, change)
        targets = [found.after for found in publication.published if found.after.id in stage.reveals]
        orphans = list(orphaned(catalog, stage))
        inheriting = list(inherited(targets, orphans))
        views = [found.after for found in publication.published if found.before is None]
        heirless = [sequence for sequence in orphans if sequence.id not in {found.id for found in inheriting}]
        inheriting += outliving(heirless, views)
        kept = {sequence.id for sequence in inheriting}
        for sequence in orphans:
            if sequence.id not in kept:
                change.drop(sequence)
        for sequence in inheriting:
            change.update(sequence)
        for sequence in handed_on(publication.published, catalog.sequences()):
            change.update(sequence)
        for table in stage.fences:
            change.fence(table_of(change.view, table))
        for view in stage.shows:
            change.write(*self._works.begun(view))
        change.write(job_key(job.id), encode_job(after))
        way = "back, " if after.problem is not None else ""
        change.describe(f"{job.statement} ({way}stage {job.stage + 1} of {len(job.stages)})")
        request = Commit(catalog_version=reader.catalog_version)
        change.parts(reader).add_to(request)
        judge_moves(request, reader, catalog, stage.moves, self._compile_check)
        return request

    def _now(self) -> int:
        return self._clock.wall_ns() // 1000


def apply(publication: Publication, change: CatalogChange) -> None:
    """Put everything that a publication consists of into a catalog change."""
    for dropped in publication.dropped:
        change.drop(dropped)
    for table in publication.still_empty:  # of the rowset that it had, should it get another one
        found = change.view.by_id(table)
        if isinstance(found, Table):
            change.require_empty(found)
    for published in publication.published:
        if published.dropped_at is not None:
            change.revive(published.after, published.dropped_at)
        elif published.before is None and change.view.by_id(published.after.id) is None:
            change.create(published.after)
        else:
            change.update(published.after, floor=published.floor, checks_moved=published.checks_moved)
    for rowset in publication.freed:
        change.free_rowset(rowset)


def _place(job: Job) -> tuple[object, ...]:
    """Where a job is on its way."""
    return job.state, job.stages, job.stage


def _is_asked(before: Job, current: Job, stage: Stage | None) -> bool:
    """Whether something has been asked for of a job that could not be done any more once this stage is published."""
    asked = current.requested is not None and current.requested != before.requested
    return asked and stage is not None and not stage.revertible and current.is_revertible


def _merged(before: Job, current: Job, after: Job) -> Job:
    """`after`, made of `before`, with what others have made of it meanwhile in `current`."""
    requested = current.requested if current.requested != before.requested else after.requested
    return msgspec.structs.replace(
        after,
        requested=None if after.is_finished else requested,
        priority=current.priority,
        max_rows_per_second=current.max_rows_per_second,
        latency_target=current.latency_target,
        history=(*current.history, after.history[-1])[-KEPT_EVENTS:],
    )


def _finish(job: Job, now: int) -> Job:
    """The job's last record: what it was asked for, or what it was reverted for, has come to its end."""
    if job.problem is None:
        state = JobState.SUCCEEDED
    elif job.problem.sqlstate == errors.QUERY_CANCELED:
        state = JobState.CANCELLED
    else:
        state = JobState.FAILED
    return msgspec.structs.replace(job, state=state, finished=now, requested=None)
