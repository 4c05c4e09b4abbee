"""Statements that wait, as jobs of their own, for the job that moves their table: on record, and planned when it ends.

Until it is planned such a job has done nothing. A user who was told that his statement was cancelled goes on writing,
and a TRUNCATE that ran after that would take rows along which were acknowledged since. So a job that a user waits for
is run for him alone: it ends when he waits no longer, or when his process is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from instar import errors
from instar.schemachange.draft import TableBusy
from instar.schemachange.job_records import Job, JobState, Problem, kind_of, statement_hash, this_process
from instar.schemachange.jobs import Jobs
from instar.schemachange.stages import Plan
from instar.store.engine import Store

_NOT_THERE = frozenset({errors.UNDEFINED_COLUMN, errors.UNDEFINED_TABLE, errors.UNDEFINED_OBJECT})


def queued_job(
    job: int,
    statement: str,
    first: Job,
    now_us: int,
    zone: str,
    named: tuple[tuple[str, int], ...],
    ddl_wait: int,
    waiter: tuple[int, int] | None,
    *,
    max_rows_per_second: int | None = None,
    latency_target: int | None = None,
) -> Job:
    """The job of a statement that cannot be planned before job `first` has ended."""
    return Job(
        id=job,
        kind="change",
        statement=statement,
        stages=(),
        stage=0,
        state=JobState.WAITING,
        rows_total=0,
        created=now_us,
        statement_hash=statement_hash(statement),
        reason=waits_for(first),
        after=first.id,
        zone=zone,
        named=named,
        ddl_wait=ddl_wait,
        waiter=waiter,
        max_rows_per_second=max_rows_per_second,
        latency_target=latency_target,
    ).noted(now_us, this_process())


def planned_job(job: Job, plan: Plan) -> Job:
    """The job of a statement that has waited, as it is committed together with the first stage of its plan."""
    return msgspec.structs.replace(
        job,
        kind=kind_of(plan.stages) if plan.needs_job else job.kind,
        stages=plan.stages,
        stage=1,
        rows_total=sum(work.rows for stage in plan.stages for work in stage.work),
        after=None,
        attempts=0,
        state=JobState.RUNNING,
        reason="",
        ready=None,
        priority=plan.priority or job.priority,
    )


def in_the_way(jobs: Iterable[Job], busy: TableBusy) -> Job | None:
    """The job for which the change has to wait: the one that moves the element; where that is not known, the first one
    that moves anything of the table. None if it has ended meanwhile."""
    found = [job for job in jobs if not job.is_finished and busy.table in job.tables]
    return next((job for job in found if busy.element in job.elements), found[0] if found else None)


def waits_for(first: Job) -> str:
    """What a job says that waits for another one."""
    return f"waits for job {first.id} ({first.statement})"


def with_wait(problem: Problem, job: Job, jobs: Jobs) -> Problem:
    """Why the statement of the job cannot be planned; where it names what is not there, with the job that it has waited
    for: what it names may have got another name, or gone, meanwhile."""
    if problem.sqlstate not in _NOT_THERE or problem.detail is not None or job.after is None:
        return problem
    try:
        first = jobs.get(job.after)
    except errors.Error:  # it is forgotten
        return problem
    detail = f"The statement waited for job {first.id} ({first.statement}), and names what there was before."
    return msgspec.structs.replace(problem, detail=detail)


def withdraw(jobs: Jobs, job: int, now_us: int) -> None:
    """End a job whose statement is not planned yet, at once, whoever is about to plan it; any other is left alone."""

    def end(found: Job) -> Job:
        if found.after is None or found.is_finished:
            return found
        problem = Problem(errors.QUERY_CANCELED, "canceling statement due to user request")
        after = msgspec.structs.replace(
            found, state=JobState.CANCELLED, finished=now_us, requested=None, problem=problem, reason=""
        )
        return after.noted(now_us, this_process(), "its statement was cancelled")

    jobs.update(job, end)


def deserted(job: Job, store: Store) -> Problem | None:
    """Why the statement of the job is not to be run any more: its process waits for it no longer."""
    if job.waiter is None or any((found.pid, found.started_ns) == job.waiter for found in store.processes()):
        return None
    return Problem(errors.QUERY_CANCELED, f"process {job.waiter[0]}, which waited for the statement, is gone")
