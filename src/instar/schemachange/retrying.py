"""Leaving a job alone for a while after an attempt that failed, longer each time, with the reason in its record.

So it is with a step that cannot be taken back, and in the worker with whatever else a run ends with: a bug, a disk that
is full. Who looks at the job is told of it, and the worker goes on with others meanwhile.
"""

from __future__ import annotations

import msgspec

from instar.schemachange.jobs import LONGEST_RETRY_SECONDS, Job, JobState, Problem


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
        retry_at=now + int(seconds * 1e6),
        reason=f"{said}; tried again after {seconds:g} s",
    )
    return after.noted(now, who, said)
