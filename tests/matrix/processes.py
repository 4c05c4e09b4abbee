"""What the processes of a killed worker do, apart from what starts them: a worker that dies where it is told to.

They are forked from a server that has everything imported (support/victims.py), and work on a real store; their clock
is the test's, as it stood when they were started.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from instar.clock import ManualClock
from instar.database import Database, Session
from instar.schemachange import reorganize, validate
from instar.schemachange.jobs import Jobs, JobState
from instar.store import open_store
from instar.store.lmdb_section import LmdbSection
from instar.worker import process
from instar.worker import work as work_module

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

    def dying(section: LmdbSection) -> None:
        if place == "in a write":
            die()
        commit(section)
        die()

    LmdbSection.commit = dying  # type: ignore[method-assign, assignment]  # this process has not long to live


def small_steps() -> None:
    """As in conftest.py: work goes in small batches."""
    reorganize.BATCH_ROWS = validate.BATCH_ROWS = 5
    reorganize.STEP_ROWS = 2


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


def work_on_spark(
    times: tuple[int, int], jobs: dict[str, int], path: str, number: int, say: Callable[[object], None]
) -> None:
    """A worker process that does everything on Spark, for one store after the other: `jobs` by path. The JVM is killed
    once in the middle of each job. `path` and `number` are of no use."""
    from instar.pipeline import session

    work_module.WITHOUT_SPARK_ROWS = work_module.VALIDATED_WITHOUT_SPARK_ROWS = 0
    session._become_idle = lambda: None  # the tests beside this one leave nothing over
    for store, job in jobs.items():
        killed: list[int] = []

        def stopping(job: int = job, killed: list[int] = killed) -> bool:
            works = any(thread.name.startswith(f"instar-job-{job}-") for thread in threading.enumerate())
            if works and not killed:
                for child in psutil.Process().children():
                    if child.name() == "java":
                        child.kill()
                        killed.append(child.pid)
            return False

        process.serve(store, clock_at(times), stopping, idle_seconds=IDLE_SECONDS)
        say(len(killed))
    session.stop_session()


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
