"""How a job is shown whose worker is gone."""

from __future__ import annotations

import msgspec
import pytest

from instar.schemachange.job_records import Job, JobState
from instar.schemachange.progress import Progress, Status
from instar.schemachange.shown import STARTING, process_of, shown, unplanned
from instar.schemachange.stages import Stage


@pytest.mark.parametrize(
    ("stages", "lacking", "awaited"),
    [
        ((Stage(),), "", "the worker takes it up within 10 s"),
        ((), "", "the worker takes it up within 300 s"),  # a load
        ((Stage(),), STARTING, STARTING),
    ],
)
def test_a_job_whose_worker_is_gone_waits_whatever_that_did_last(
    stages: tuple[Stage, ...], lacking: str, awaited: str
) -> None:
    job = Job(1, "build index", "", stages, 1, JobState.RUNNING, 10, created=0, started=0)
    last = Status(False, 0.5, 0.1, 100.0, "held back by max_rows_per_second = 100", False, 0)
    seen = shown(job, Progress(5, 10, 0.5, last), held=False, lacking=lacking, now=1)
    assert (seen.state, seen.reason) == (JobState.WAITING, f"whoever worked on it is gone; {awaited}")
    assert seen.eta is None


@pytest.mark.parametrize(
    ("owner", "process"), [(b"worker 12:\n\xff7", 12), (b"session 3", 3), (b"load 4", 4), (b"another", None)]
)
def test_the_owner_of_a_claim_names_its_process(owner: bytes, process: int | None) -> None:
    assert process_of(owner) == process


QUEUED = Job(
    2,
    "change",
    "DROP INDEX i",
    (),
    0,
    JobState.WAITING,
    0,
    created=0,
    after=1,
    reason="waits for job 1 (CREATE INDEX i)",
)
FIRST = Job(1, "build index", "CREATE INDEX i", (Stage(),), 1, JobState.RUNNING, 10, created=0)


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.PENDING])  # the latter after RESUME JOB
@pytest.mark.parametrize(
    ("first", "seen"),
    [
        (JobState.RUNNING, (JobState.WAITING, "waits for job 1 (CREATE INDEX i)")),
        (JobState.PAUSED, (JobState.WAITING, "waits for job 1 (CREATE INDEX i), which is paused")),
        (JobState.SUCCEEDED, (JobState.PENDING, "waits for the worker")),
        (None, (JobState.PENDING, "waits for the worker")),  # it is forgotten
    ],
)
def test_a_queued_statement_waits_for_the_job_before_it_as_long_as_that_goes_on(
    first: JobState | None, seen: tuple[JobState, str], state: JobState
) -> None:
    job = msgspec.structs.replace(QUEUED, state=state)
    others = [] if first is None else [msgspec.structs.replace(FIRST, state=first)]
    found = shown(unplanned(job, [*others, job]), Progress(0, 0, 0.0), held=False, lacking="", now=1)
    assert (found.state, found.reason) == seen


def test_what_is_tried_again_later_says_so_though_it_is_not_planned() -> None:
    put_off = msgspec.structs.replace(QUEUED, retry_at=5, reason="attempt 1 failed")
    for job in (put_off, FIRST):
        assert unplanned(job, []) is job


def test_nobody_has_worked_on_a_queued_statement_that_is_cancelled() -> None:
    job = msgspec.structs.replace(QUEUED, requested="cancel")
    found = shown(unplanned(job, [FIRST, job]), Progress(0, 0, 0.0), held=False, lacking="", now=1)
    assert found.reason == "CANCEL JOB: waits for the worker"
