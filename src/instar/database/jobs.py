"""SHOW JOBS, PAUSE, RESUME, CANCEL and ALTER JOB; the rows of instar.jobs and instar.job_history."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.system_tables import SYSTEM_VIEWS
from instar.database.result import Result, rows_of
from instar.database.settings import SETTINGS, duration_us
from instar.schemachange.damaged import cancel_damaged
from instar.schemachange.job_records import LEAST_PRIORITY, MOST_PRIORITY, Job, readable_jobs
from instar.schemachange.progress import Progress
from instar.schemachange.shown import DAMAGED, NO_WORKER, STARTING, Shown, process_of, shown, unplanned
from instar.sql import statements as ast
from instar.types import TIMESTAMPTZ, Type

if TYPE_CHECKING:
    from instar.database.database import Database
    from instar.database.session import Session

COLUMNS: tuple[tuple[str, Type], ...] = next(
    view.columns for view in SYSTEM_VIEWS if (view.schema, view.name) == ("instar", "jobs")
)


def seen_now(database: Database, job: Job) -> tuple[Job, Progress, Shown]:
    """The job as it is at this moment, how far it is, and how it is shown."""
    store = database.store
    found, progress, owner = database.jobs.seen(job)
    lacking = "" if store.worker_present() else STARTING if store.worker_starting() else NO_WORKER
    now = database.clock.wall_ns() // 1000
    if found.after is not None:
        found = unplanned(found, _on_record(database)[0])
    return found, progress, shown(found, progress, held=_lives(database, owner), lacking=lacking, now=now)


def _lives(database: Database, owner: bytes | None) -> bool:
    """Whether the owner of a claim that is believed lives: that of a killed process is, for a while."""
    if owner is None:
        return False
    number = process_of(owner)
    return number is None or any(process.pid == number for process in database.store.processes())


def job_rows(database: Database) -> Iterator[tuple[object, ...]]:
    """A row of internal values per job, oldest first; times are microseconds since the epoch."""
    jobs, damaged = _on_record(database)
    made = {job.id: _row(database, job) for job in jobs} | {number: _damaged_row(number) for number in damaged}
    yield from (made[number] for number in sorted(made))


def _on_record(database: Database) -> tuple[list[Job], list[int]]:
    with database.store.read() as reader:
        return readable_jobs(reader)


def _damaged_row(number: int) -> tuple[object, ...]:
    """What is shown of a job whose record says nothing."""
    known: dict[str, object] = {
        "id": number, "kind": "", "statement": "", "state": DAMAGED, "reason": f"the record of job {number} is damaged",
        "stage": 0, "stages": 0, "progress": 0.0, "rows_done": 0, "rows_total": 0, "priority": 0,
    }  # fmt: skip
    return tuple(known.get(name) for name, _ in COLUMNS)


def _row(database: Database, job: Job) -> tuple[object, ...]:
    job, progress, seen = seen_now(database, job)
    target = None if job.latency_target is None else job.latency_target / 1000
    rate = None if seen.rows_per_second is None else round(seen.rows_per_second, 1)
    return (
        job.id, job.kind, job.statement, seen.state.value, seen.reason or None, job.stage, len(job.stages),
        round(progress.share, 4), progress.rows_done, progress.rows_total, rate, seen.eta, job.priority,
        job.max_rows_per_second, target, job.statement_hash or None, job.created, job.started, job.finished,
    )  # fmt: skip


def history_rows(database: Database) -> Iterator[tuple[object, ...]]:
    """A row per event of each job whose record can be read, oldest first."""
    for job in _on_record(database)[0]:
        for event in job.history:
            yield (job.id, event.at, event.state.value, event.stage, event.by, event.note or None)


def show(session: Session) -> Result:
    """SHOW JOBS: every job on record; a notice where there is work and no worker runs, nor one is starting."""
    database = session.database
    rows = list(job_rows(database))
    store = database.store
    if database.jobs.runnable() and not store.worker_present() and not store.worker_starting():
        session.notice(f"{NO_WORKER}: jobs go on when a statement waits for them or `instar worker` is started")
    places = [place for place, (_, type_) in enumerate(COLUMNS) if type_ is TIMESTAMPTZ]
    return rows_of("SHOW JOBS", COLUMNS, (_with_moments(row, places) for row in rows))


def _with_moments(row: tuple[object, ...], places: list[int]) -> tuple[object, ...]:
    made = list(row)
    for place in places:
        microseconds = row[place]
        if isinstance(microseconds, int):
            made[place] = dt.datetime.fromtimestamp(microseconds / 1e6, dt.UTC)
    return tuple(made)


def control(session: Session, statement: ast.JobControl) -> Result:
    """PAUSE, RESUME or CANCEL JOB n. 25001 in a transaction block: no ROLLBACK would take it back."""
    _require_no_block(session, f"{statement.action.upper()} JOB")
    database = session.database
    now = database.clock.wall_ns() // 1000
    if statement.action != "cancel" or not cancel_damaged(
        database.store, database.catalog, database.jobs, now, statement.job
    ):
        getattr(database.jobs, statement.action)(statement.job)
    if statement.action != "pause":
        if database.in_memory:
            # There is nobody else; nothing happens if another thread holds it.
            database.run_job(statement.job, session.is_cancelled)
            session.check_cancel()
        database.see_to_request()
    return Result(f"{statement.action.upper()} JOB")


def alter(session: Session, statement: ast.AlterJob) -> Result:
    """ALTER JOB n SET (...). 25001 as above."""
    _require_no_block(session, "ALTER JOB")
    changes: dict[str, int | None] = {}
    for name, value in statement.options:
        read = _OPTIONS.get(name)
        if read is None:
            raise errors.error(
                errors.INVALID_PARAMETER,
                f'unrecognized job parameter "{name}"',
                hint=f"The parameters are {', '.join(_OPTIONS)}.",
            )
        changes |= read(value)
    session.database.jobs.alter(statement.job, changes)
    return Result("ALTER JOB")


def _require_no_block(session: Session, what: str) -> None:
    if session.has_work:
        raise errors.error(errors.ACTIVE_TRANSACTION, f"{what} cannot run inside a transaction block")


def _priority(value: str | None) -> dict[str, int | None]:
    if value is None:
        return {"priority": 0}
    try:
        priority = int(value)
    except ValueError:
        raise errors.error(errors.INVALID_PARAMETER, f'invalid value for parameter "priority": "{value}"') from None
    if not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        raise errors.error(
            errors.INVALID_PARAMETER,
            f'{priority} is outside the valid range for parameter "priority" ({LEAST_PRIORITY} .. {MOST_PRIORITY})',
        )
    return {"priority": priority}


def _normalised(name: str, value: str | None) -> str:
    setting = SETTINGS[name]
    return setting.default if value is None else setting.normalise(name, value)


def rate_of(value: str) -> int | None:
    """Rows per second of a normalised setting; 0 is no limit."""
    return int(value) or None


_OPTIONS: dict[str, Callable[[str | None], dict[str, int | None]]] = {
    "priority": _priority,
    "max_rows_per_second": lambda value: {"max_rows_per_second": rate_of(_normalised("max_rows_per_second", value))},
    "reorganize_latency_target": lambda value: {
        "latency_target": duration_us(_normalised("reorganize_latency_target", value))
    },
}
