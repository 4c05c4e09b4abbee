"""How a job is shown whose worker is gone."""

from __future__ import annotations

import pytest

from instar.schemachange.job_records import Job, JobState
from instar.schemachange.progress import Progress, Status
from instar.schemachange.shown import STARTING, process_of, shown
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
