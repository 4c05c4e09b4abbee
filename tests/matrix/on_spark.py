"""A worker process that does everything on Spark, and kills it in the middle of each job."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil

from instar.pipeline import session
from instar.worker import process
from instar.worker import work as work_module
from matrix.processes import IDLE_SECONDS, clock_at


def work_on_spark(
    times: tuple[int, int], jobs: dict[str, int], path: str, number: int, say: Callable[[object], None]
) -> None:
    """A worker process that does everything on Spark, for one store after the other: `jobs` by path. The JVM is killed
    once in the middle of each job. `path` and `number` are of no use."""
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
