"""The matrix's jobs on Spark, whose JVM is killed in the middle of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from instar.schemachange.jobs import LEASE_SECONDS, JobState
from matrix.disturbances import quiet
from matrix.kinds import load
from matrix.on_spark import work_on_spark
from matrix.processes import OnFiles, bound
from support.victims import Victim


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_jobs_end_though_spark_is_killed_in_the_middle_of_each(tmp_path: Path) -> None:
    """A backfill, and a validation by an anti-join."""
    arenas = [OnFiles(load(name), tmp_path / name) for name in ("create_index", "validate_foreign_key")]
    for arena in arenas:
        arena.change()
        arena.world.clock.advance(LEASE_SECONDS + 1)
    jobs = {arena.path: arena.job for arena in arenas}
    victim = Victim(bound(work_on_spark, arenas[0].times, jobs), "", 0)
    victim.wait(len(arenas), 230.0)
    assert victim.said == [1] * len(arenas)
    assert victim.end() == 0
    for arena in arenas:
        made = quiet(arena.kind)[0]
        arena.recovered(made)
        assert arena.job_state is JobState.SUCCEEDED
        arena.settle(made)
        arena.store.close()
