"""A worker process that does everything on Spark, and kills it in the middle of each job."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import psutil

from instar import scheduling
from instar.pipeline import session
from instar.worker import process
from instar.worker import work as work_module
from matrix.processes import IDLE_SECONDS, clock_at

# After how many different times a JVM is killed, each 30 ms later than the one before.
MOMENTS = 8


def work_on_spark(
    times: tuple[int, int], jobs: dict[str, int], path: str, number: int, say: Callable[[object], None]
) -> None:
    """A worker process that does everything on Spark, for one store after the other: `jobs` by path. The JVM is killed
    once in the middle of each job. `path` and `number` are of no use."""
    work_module.WITHOUT_SPARK_ROWS = work_module.VALIDATED_WITHOUT_SPARK_ROWS = 0
    scheduling.STANDS_BACK = os.SCHED_BATCH  # the tests beside this one leave nothing over
    for place, (store, job) in enumerate(jobs.items()):
        killer = Killer(job, place % MOMENTS * 0.03)
        process.serve(store, clock_at(times), lambda: False, idle_seconds=IDLE_SECONDS)
        say(killer.ended())
    session.stop_session()


class Killer:
    """Kills this process's JVM so many seconds after Spark has begun on a job, or sooner if it ends before that."""

    def __init__(self, job: int, after: float) -> None:
        self._name = f"instar-job-{job}-"
        self._after = after
        self._killed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def ended(self) -> int:
        """How many were killed; none is any more."""
        self._over.set()
        self._thread.join()
        return self._killed

    def _run(self) -> None:
        while not self._killed and not self._over.wait(0.003):
            if not self._works():
                continue
            if self._over.wait(self._after) or not self._works():
                self._after /= 2  # of the job's next piece of work, if there is one
                continue
            for child in psutil.Process().children():
                if child.name() == "java":
                    child.kill()
                    self._killed += 1

    def _works(self) -> bool:
        return any(thread.name.startswith(self._name) for thread in threading.enumerate())
