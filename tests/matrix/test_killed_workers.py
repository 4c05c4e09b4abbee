"""Every kind on a store of files, with a worker process that is killed at one of the stages, and another that comes."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.schemachange.jobs import LEASE_SECONDS, JobState
from instar.store import open_store
from instar.store.engine import Store
from matrix import processes
from matrix.arena import Arena
from matrix.disturbances import quiet
from matrix.kinds import NAMES, Kind, load
from matrix.processes import PLACES, Death
from matrix.traffic import autocommit
from support.victims import Victim


def death_of(kind: Kind) -> Death | None:
    """Where the worker of this kind dies, by the kind's name; None if the kind has no job."""
    _, points, has_job = quiet(kind)
    if not has_job:
        return None
    draw = random.Random(f"killed {kind.name}")
    stage, batch = draw.choice([point for point in points if 0 < point[0] < 99 and point[1] <= 2])
    # A worker is asked once more before it takes the job at all.
    return Death(stage, max(batch - (stage == 1), 0), draw.choice(PLACES))


class OnFiles(Arena):
    """An arena on a store of files, whose jobs are done by processes."""

    def __init__(self, kind: Kind, path: Path) -> None:
        def open_(clock: ManualClock) -> Store:
            return open_store(path, synchronous="off", clock=clock)

        self.path = str(path)
        super().__init__(kind, "killed process", open_=open_)

    @property
    def times(self) -> tuple[int, int]:
        return self.world.clock.wall, self.world.clock.monotonic

    def end_of_worker(self, death: Death | None) -> int:
        """Have a worker process work until it ends; returns its exit code."""
        self.world.clock.advance(LEASE_SECONDS + 1)  # what leases others have had are over
        victim = Victim(processes.bound(processes.work, self.times, self.job, death), self.path, 0)
        return victim.end()


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_worker_leaves_a_job_that_another_ends(name: str, tmp_path: Path) -> None:
    kind = load(name)
    made, _, _ = quiet(kind)
    arena = OnFiles(kind, tmp_path / "db")
    death = death_of(kind)
    if death is None:
        place = random.Random(f"killed {name}").choice(PLACES)
        victim = Victim(processes.bound(processes.change, arena.times, kind.statements, place), arena.path, 0)
        assert victim.end() == -signal.SIGKILL
        arena.recovered(made)
        assert arena.job is None
        assert arena.changed is (place == "after a write")
    else:
        arena.change()
        assert arena.end_of_worker(death) == -signal.SIGKILL
        assert arena.job_state is JobState.RUNNING or death.place == "after a write"
        assert arena.get(arena.job or 0).stage in (death.stage, death.stage + 1)
        arena.check()
        if arena.job_state is JobState.RUNNING:
            autocommit(arena, arena.session(1))
        assert arena.end_of_worker(None) == 0
        assert arena.job_state is JobState.SUCCEEDED
        arena.recovered(made)
    arena.settle(made if arena.changed else None)
    arena.store.close()


@pytest.mark.spark
def test_jobs_end_though_spark_is_killed_in_the_middle_of_each(tmp_path: Path) -> None:
    """A backfill, an anti-join and a filter."""
    arenas = [OnFiles(load(name), tmp_path / name) for name in ("create_index", "validate_foreign_key", "add_check")]
    for arena in arenas:
        arena.change()
        arena.world.clock.advance(LEASE_SECONDS + 1)
    jobs = {arena.path: arena.job for arena in arenas}
    victim = Victim(processes.bound(processes.work_on_spark, arenas[0].times, jobs), "", 0)
    victim.wait(len(arenas), 150.0)
    assert victim.said == [1] * len(arenas)
    assert victim.end() == 0
    for arena in arenas:
        made = quiet(arena.kind)[0]
        arena.recovered(made)
        assert arena.job_state is JobState.SUCCEEDED
        arena.settle(made)
        arena.store.close()


def test_workers_are_killed_at_every_stage_and_everywhere() -> None:
    deaths = [death for name in NAMES if (death := death_of(load(name))) is not None]
    longest = max(point[0] for name in NAMES for point in quiet(load(name))[1] if point[0] < 99)
    assert {death.stage for death in deaths} == set(range(1, longest + 1))
    assert {death.place for death in deaths} == set(PLACES)
