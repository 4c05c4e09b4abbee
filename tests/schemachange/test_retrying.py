"""What a job's record says after an attempt that failed."""

from __future__ import annotations

import msgspec
import pytest

from instar.schemachange.job_records import Job, JobState, Problem
from instar.schemachange.retrying import put_off

FULL = Problem("53100", "the disk is full")


def job(state: JobState, **fields: object) -> Job:
    made = Job(id=1, kind="change", statement="s", stages=(), stage=0, state=state, rows_total=0, created=0)
    return msgspec.structs.replace(made, **fields)


def test_it_says_what_failed_and_is_left_alone_longer_each_time() -> None:
    found = job(JobState.RUNNING)
    pauses = []
    for _ in range(7):
        found = put_off(found, FULL, 100, "worker 9")
        assert found.retry_at is not None
        pauses.append((found.retry_at - 100) / 1e6)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert (found.state, found.attempts, found.failed) == (JobState.WAITING, 7, FULL)
    assert found.reason == "attempt 7 failed: 53100 the disk is full; tried again after 30 s"
    assert found.history[-1].note == "attempt 7 failed: 53100 the disk is full"


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED])
def test_who_has_ended_or_is_paused_stays_as_he_is(state: JobState) -> None:
    assert put_off(job(state), FULL, 100, "worker 9") == job(state)


@pytest.mark.parametrize(
    ("state", "requested"), [(JobState.REVERTING, None), (JobState.PAUSED, "cancel")], ids=["reverting", "paused"]
)
def test_a_job_is_not_turned_round_and_a_paused_one_stays_paused(state: JobState, requested: str | None) -> None:
    after = put_off(job(state, requested=requested), FULL, 100, "worker 9")
    assert (after.state, after.attempts, after.requested) == (state, 1, requested)
