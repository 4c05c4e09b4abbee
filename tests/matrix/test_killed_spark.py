"""The matrix's jobs on Spark, whose JVM is killed in the middle of each. INSTAR_SPARK_KINDS=all takes every kind that
has a job, which is ten minutes; else a list of names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from instar.schemachange.job_records import JobState
from instar.schemachange.jobs import LEASE_SECONDS
from matrix.disturbances import quiet
from matrix.kinds import NAMES, load
from matrix.on_spark import work_on_spark
from matrix.processes import OnFiles, bound
from support.victims import Victim

# A backfill, and a validation by an anti-join, are long enough to be met for certain.
ON_SPARK = ("create_index", "validate_foreign_key")
# pipeline/test_reorganizer.py kills a backfill's JVM.
KINDS = os.environ.get("INSTAR_SPARK_KINDS", "validate_foreign_key")
TOLD = NAMES if KINDS == "all" else KINDS.split(",")


@pytest.mark.spark
@pytest.mark.timeout(180 * len(TOLD))
def test_jobs_end_though_spark_is_killed_in_the_middle_of_each(tmp_path: Path) -> None:
    arenas = [arena for name in TOLD if (arena := changing(name, tmp_path)) is not None]
    for arena in arenas:
        arena.world.clock.advance(LEASE_SECONDS + 1)
    jobs = {arena.path: arena.job for arena in arenas}
    victim = Victim(bound(work_on_spark, arenas[0].times, jobs), "", 0)
    victim.wait(len(arenas), 150.0 * len(arenas))
    killed = {arena.kind.name for arena, times in zip(arenas, victim.said, strict=True) if times}
    assert killed.issuperset(set(TOLD) & set(ON_SPARK))
    print(f"killed in the middle of {len(killed)} of {len(arenas)} jobs: {sorted(killed)}")
    assert victim.end() == 0
    for arena in arenas:
        made = quiet(arena.kind)[0]
        arena.recovered(made)
        assert arena.job_state is JobState.SUCCEEDED
        arena.settle(made)
        arena.store.close()


def changing(name: str, directory: Path) -> OnFiles | None:
    """A change that a job makes, which has begun; None if it takes none."""
    arena = OnFiles(load(name), directory / name)
    arena.change()
    if arena.job is not None:
        return arena
    arena.store.close()
    return None
