"""How a job is shown: its state, and in words what it waits for, what holds it back, or why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from instar.schemachange.job_records import Job, JobState
from instar.schemachange.jobs import LEASE_SECONDS, LOAD_LEASE_SECONDS
from instar.schemachange.progress import Progress
from instar.schemachange.queued import waits_for

NO_WORKER = "no worker runs"
STARTING = "a worker is starting"
# The state that is shown of a job whose record cannot be read.
DAMAGED = "damaged"
# What would take longer does not move, for all that anybody can tell.
_LONGEST_SECONDS = 10 * 365 * 86_400.0
_OWNER = re.compile(rb"[a-z]+ (\d+)(?::|$)")


class Shown(NamedTuple):
    """What an operator sees of a job. `eta`, in microseconds since the epoch, is None where nothing moves."""

    state: JobState
    reason: str
    rows_per_second: float | None
    eta: int | None


def process_of(owner: bytes) -> int | None:
    """The process that the owner of a claim names ("worker 12:..."); None if it names none."""
    found = _OWNER.match(owner)
    return None if found is None else int(found[1])


def unplanned(job: Job, jobs: Iterable[Job]) -> Job:
    """The job as it is shown if its statement is not planned yet: it waits for another one of `jobs`, and when that has
    ended for whoever plans it. Another job is left as it is, and so is one that was tried and is tried again later."""
    if job.after is None or job.state not in (JobState.PENDING, JobState.WAITING) or job.retry_at is not None:
        return job
    first = next((found for found in jobs if found.id == job.after), None)
    if first is None or first.is_finished:
        return msgspec.structs.replace(job, state=JobState.PENDING, reason="")
    paused = ", which is paused" if first.state is JobState.PAUSED else ""
    return msgspec.structs.replace(job, state=JobState.WAITING, reason=waits_for(first) + paused)


def shown(job: Job, progress: Progress, *, held: bool, lacking: str, now: int) -> Shown:
    """`held`: somebody who lives has a claim on the job that is believed; `lacking`: what there is to say where no
    worker runs, empty where one does; `now`: as in `Job`."""
    state = job.state
    if state is JobState.RUNNING and (not held or (progress.status is not None and progress.status.waits)):
        state = JobState.WAITING
    reason = _reason(job, progress, held, lacking)
    if not held or job.is_finished or progress.status is None:
        return Shown(state, reason, _average(job, progress, now), None)
    status = progress.status
    left = 1.0 - progress.share
    moves = status.share_per_second * _LONGEST_SECONDS > left and not status.waits
    return Shown(
        state, reason, status.rows_per_second, now + int(left / status.share_per_second * 1e6) if moves else None
    )


def _average(job: Job, progress: Progress, now: int) -> float | None:
    if job.started is None or not progress.rows_done or not (job.is_finished or not job.stages):
        return None
    return progress.rows_done * 1e6 / max(1, (job.finished or now) - job.started)


def _reason(job: Job, progress: Progress, held: bool, lacking: str) -> str:
    problem = "" if job.problem is None else ": ".join(filter(None, (job.problem.message, job.problem.detail)))
    if job.is_finished:
        told = problem or job.told
        return f"{told.removesuffix('.')}; {job.analysis}" if told and job.analysis else told or job.analysis
    going = _going(job, progress, held, lacking)
    if job.state is JobState.REVERTING:
        return f"is taken back: {problem}" + (f"; {going}" if going else "")
    return going


def _going(job: Job, progress: Progress, held: bool, lacking: str) -> str:
    """What keeps the job from going on, or how it goes on."""
    if job.retry_at is not None and job.requested == job.met and job.reason:
        return job.reason
    if job.state is JobState.PAUSED:
        return "cancelled while it was paused" if job.requested == "cancel" else "paused by PAUSE JOB"
    if job.requested is not None:
        asked = "PAUSE JOB" if job.requested == "pause" else "CANCEL JOB"
        return f"{asked} takes effect at the next batch" if held else f"{asked}: {_awaited(job, lacking)}"
    waits = held and progress.status is not None and progress.status.waits
    if job.reason and not waits:  # else that is newer
        return job.reason
    if not held:
        return _awaited(job, lacking)
    return "" if progress.status is None else progress.status.reason


def _awaited(job: Job, lacking: str) -> str:
    if job.state is JobState.PENDING or (job.state is JobState.WAITING and job.after is not None):
        return lacking or "waits for the worker"
    seconds = LEASE_SECONDS if job.stages or job.state is not JobState.RUNNING else LOAD_LEASE_SECONDS
    return "whoever worked on it is gone; " + (lacking or f"the worker takes it up within {seconds:g} s")
