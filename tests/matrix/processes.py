"""What the processes of a killed worker do, apart from what starts them: a worker that dies where it is told to.

They are forked from a server that has everything imported (support/victims.py), and work on a real store; their clock
is the test's, as it stood when they were started.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from instar.clock import ManualClock
from instar.database import Database, Session
from instar.schemachange import breath, reorganize, validate
from instar.schemachange.job_records import JobState
from instar.schemachange.jobs import LEASE_SECONDS, Jobs
from instar.store import open_store
from instar.store.engine import Store
from instar.store.lmdb_section import LmdbSection
from instar.worker import process
from matrix.arena import Arena
from matrix.kinds import Kind
from support.victims import Victim

IDLE_SECONDS = 0.5


class Death(NamedTuple):
    """Where a worker dies: once `stage` is published and its work has come to batch `batch`, at once; or within the
    next write, in the middle of the atomic section; or when that write has been committed."""

    stage: int
    batch: int
    place: str


PLACES = ("between writes", "in a write", "after a write")


def clock_at(times: tuple[int, int]) -> ManualClock:
    """A clock that stands where another one stood: (wall, monotonic)."""
    clock = ManualClock(times[0])
    clock.monotonic = times[1]
    return clock


def die() -> None:
    """SIGKILL: nothing is cleaned up, no lock is given back."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_the_next_write(place: str) -> None:
    """The process dies in the next write, its changes made and not committed, or right after it."""
    commit = LmdbSection.commit

    def dying(section: LmdbSection, *, durably: bool = True) -> None:
        if place == "in a write":
            die()
        commit(section, durably=durably)
        die()

    LmdbSection.commit = dying  # type: ignore[method-assign, assignment]  # this process has not long to live


def small_steps() -> None:
    """As in conftest.py: work goes in small batches."""
    reorganize.BATCH_ROWS = reorganize.SORTED_ENTRIES = validate.BATCH_ROWS = 5
    breath.FIRST_ROWS = breath.LEAST_ROWS = breath.MOST_ROWS = 2
    reorganize.STEP_ROWS = 2
    reorganize.STEP_ENTRIES = 2


def work(
    times: tuple[int, int], job: int, death: Death | None, path: str, number: int, say: Callable[[object], None]
) -> None:
    """The worker process, as it is; it ends when nothing is left to do, or dies. `number` is of no use."""
    small_steps()
    clock = clock_at(times)
    stopping = None if death is None else Executioner(path, clock, job, death)
    process.serve(path, clock, stopping or _going_on, idle_seconds=IDLE_SECONDS)


def _going_on() -> bool:
    return False


class Executioner:
    """Asked by the worker, between stages and between batches, whether it is to stop: it does not come back from there,
    or from its next write."""

    def __init__(self, path: str, clock: ManualClock, job: int, death: Death) -> None:
        self._store = open_store(path, create=False, clock=clock)
        self._jobs = Jobs(self._store, clock)
        self._job = job
        self._death = death
        self._asked = 0

    def __call__(self) -> bool:
        found = self._jobs.get(self._job)
        if found.state is not JobState.RUNNING or found.stage < self._death.stage:
            return False
        self._asked += 1
        if self._asked > self._death.batch:
            if self._death.place == PLACES[0]:
                die()
            die_at_the_next_write(self._death.place)
        return False


def change(
    times: tuple[int, int],
    statements: tuple[str, ...],
    place: str,
    path: str,
    number: int,
    say: Callable[[object], None],
) -> None:
    """A process that changes the schema by statements of one transaction, and dies at its commit."""
    clock = clock_at(times)
    session = Session(Database(open_store(path, create=False, clock=clock), path, clock), autocommit=True)
    session.execute("set schema_change_mode = async")
    session.execute("begin")
    for statement in statements:
        session.execute(statement)
    if place == PLACES[0]:
        die()
    die_at_the_next_write(place)
    session.execute("commit")


def bound(function: Callable[..., None], *arguments: Any) -> Callable[[str, int, Callable[[object], None]], None]:
    """What support.victims takes."""
    return functools.partial(function, *arguments)


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
        victim = Victim(bound(work, self.times, self.job, death), self.path, 0)
        return victim.end()
