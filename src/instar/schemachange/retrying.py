"""Leaving a job alone for a while after an attempt that failed, longer each time, with the reason in its record; or in
a wait of which nobody knows the end.

So it is with a step that cannot be taken back, and in the worker with whatever else a run ends with: a bug, a disk that
is full. Who looks at the job is told of it, and the worker goes on with others meanwhile.
"""

from __future__ import annotations

import msgspec

from instar.schemachange.job_records import Job, JobState, Problem
from instar.schemachange.jobs import LONGEST_RETRY_SECONDS

# Who has stepped aside tries again after so long.
ASIDE_SECONDS = 1.0


def put_off(job: Job, problem: Problem, now: int, who: str) -> Job:
    """The job as an attempt leaves it that failed of `problem` at `now` (as in `Job`). One that has ended stays as it
    is, and so does one that is paused, unless it was to be cancelled."""
    if job.is_finished or (job.state is JobState.PAUSED and job.requested is None):
        return job
    seconds = min(2.0 ** min(job.attempts, 10), LONGEST_RETRY_SECONDS)
    said = f"attempt {job.attempts + 1} failed: {problem.sqlstate} {problem.message}"
    stays = job.state in (JobState.REVERTING, JobState.PAUSED)
    after = msgspec.structs.replace(
        job,
        state=job.state if stays else JobState.WAITING,
        attempts=job.attempts + 1,
        failed=problem,
        ready=None,
        retry_at=now + int(seconds * 1e6),
        reason=f"{said}; tried again after {seconds:g} s",
    )
    return after.noted(now, who, said)


def step_aside(job: Job, reason: str, now: int, who: str) -> Job:
    """The job as it lets another be run while it waits for what `reason` says. It is noted once, however often it is
    tried again. If something is requested of it, it stays as it is: that comes first."""
    if job.requested is not None:
        return job
    after = msgspec.structs.replace(
        job,
        state=job.state if job.state is JobState.REVERTING else JobState.WAITING,
        attempts=0,
        retry_at=now + int(ASIDE_SECONDS * 1e6),
        reason=reason,
        ready=job.stage,
    )
    return after if job.ready == job.stage else after.noted(now, who, f"steps aside for other jobs: {reason}")


def is_aside(job: Job) -> bool:
    """Whether the job has stepped aside, and not been tried again."""
    return job.retry_at is not None and job.ready == job.stage
