"""SHOW JOBS, PAUSE, RESUME and CANCEL JOB; the rows of instar.jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING

from instar.clock import Clock
from instar.database.result import Result
from instar.database.utility import rows_of
from instar.schemachange.jobs import Job, Jobs
from instar.sql import statements as ast
from instar.types import BIGINT, DOUBLE, INTEGER, TEXT, TIMESTAMPTZ, Type

if TYPE_CHECKING:
    from instar.database.session import Session

COLUMNS: tuple[tuple[str, Type], ...] = (
    ("id", BIGINT), ("kind", TEXT), ("statement", TEXT), ("state", TEXT), ("reason", TEXT), ("stage", INTEGER),
    ("stages", INTEGER), ("progress", DOUBLE), ("rows_done", BIGINT), ("rows_total", BIGINT),
    ("rows_per_second", DOUBLE), ("started_at", TIMESTAMPTZ), ("finished_at", TIMESTAMPTZ),
)  # fmt: skip


def job_rows(jobs: Jobs, clock: Clock) -> Iterator[tuple[object, ...]]:
    """A row of internal values per job, oldest first; times are microseconds since the epoch."""
    for job in jobs.all():
        yield _row(jobs, job, clock)


def _row(jobs: Jobs, job: Job, clock: Clock) -> tuple[object, ...]:
    progress = jobs.progress(job)
    share = 1.0 if job.is_finished else progress.rows_done / progress.rows_total if progress.rows_total else 0.0
    rate = None
    if job.started is not None and progress.rows_done:
        ended = job.finished if job.finished is not None else clock.wall_ns() // 1000
        rate = progress.rows_done * 1e6 / max(1, ended - job.started)
    return (
        job.id, job.kind, job.statement, job.state.value, job.problem.message if job.problem else None, job.stage,
        len(job.stages), share, progress.rows_done, progress.rows_total, rate, job.started, job.finished,
    )  # fmt: skip


def show(session: Session) -> Result:
    """SHOW JOBS: every job on record; a notice where one waits and no worker runs."""
    database = session.database
    rows = list(job_rows(database.jobs, database.clock))
    if any(not job.is_finished for job in database.jobs.all()) and not database.store.worker_present():
        session.notice("no worker runs: jobs go on when a statement waits for them or `instar worker` is started")
    return rows_of("SHOW JOBS", COLUMNS, (tuple(row[:-2]) + tuple(map(_moment, row[-2:])) for row in rows))


def _moment(microseconds: object) -> dt.datetime | None:
    if not isinstance(microseconds, int):
        return None
    return dt.datetime.fromtimestamp(microseconds / 1e6, dt.UTC)


def control(session: Session, statement: ast.JobControl) -> Result:
    """PAUSE, RESUME or CANCEL JOB n."""
    jobs = session.database.jobs
    getattr(jobs, statement.action)(statement.job)
    if statement.action != "pause":
        session.database.ensure_worker()
    return Result(f"{statement.action.upper()} JOB")
