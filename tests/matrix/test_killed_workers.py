"""Every kind on a store of files, with a worker process that is killed at one of the stages, and another that comes."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from instar.schemachange.job_records import JobState
from matrix import processes
from matrix.disturbances import quiet
from matrix.kinds import NAMES, Kind, load
from matrix.processes import PLACES, Death, OnFiles
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


def test_workers_are_killed_at_every_stage_and_everywhere() -> None:
    deaths = [death for name in NAMES if (death := death_of(load(name))) is not None]
    longest = max(point[0] for name in NAMES for point in quiet(load(name))[1] if point[0] < 99)
    assert {death.stage for death in deaths} == set(range(1, longest + 1))
    assert {death.place for death in deaths} == set(PLACES)
