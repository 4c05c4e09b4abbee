"""The process that takes the turns, until it is told to stop or has had nothing to do for a while.

Spark is started by the first job that is large enough for it, and kept warm until the process ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from instar import errors, gently
from instar.clock import Clock, SystemClock
from instar.schemachange import hooks
from instar.schemachange.job_records import Job
from instar.schemachange.tasks import Reorganizer
from instar.store import open_store
from instar.store.engine import Store
from instar.worker.work import Worker

# Nothing to do for so long, and the process ends.
IDLE_SECONDS = 60.0
_SWITCH_SECONDS = 0.0005
# While the log holds more than this, there will be something to cut when retention has passed.
LOG_WORTH_STAYING = 16 << 20
_TURN_SECONDS = 0.1


def serve(
    path: str,
    clock: Clock,
    stopping: Callable[[], bool],
    idle_seconds: float = IDLE_SECONDS,
    hook: Callable[[Job], str] | None = None,
) -> None:
    """Work on the store at `path` until told to stop, or idle for so long. Another worker there: return at once."""
    store = open_store(path, create=False, clock=clock)
    try:
        if store.worker_present():
            return
        worker = Worker(store, clock, lambda: _spark(path, store), stopping=stopping, hook=hook)
        while not store.worker_present():
            store.announce_worker(True)
            over = _until_idle(path, store, clock, worker, stopping, idle_seconds)
            store.announce_worker(False)
            # Who has committed since the last turn saw a worker here, and so started none: one turn more. From here on
            # whoever commits starts one, which may be there by now, and goes on with what this turn has begun.
            if over or not worker.turn():
                return
    finally:
        store.close()


def _until_idle(
    path: str, store: Store, clock: Clock, worker: Worker, stopping: Callable[[], bool], idle_seconds: float
) -> bool:
    """Take turns until there has been nothing to do for so long; returns whether it is over before that."""
    busy_ns = clock.monotonic_ns()
    while clock.monotonic_ns() - busy_ns < idle_seconds * 1e9:
        # A store whose directory was removed has nobody to work for.
        if stopping() or not os.path.isdir(path):
            return True
        worked = worker.turn()
        if worked or worker.is_owing or store.log_bytes() > LOG_WORTH_STAYING:
            busy_ns = clock.monotonic_ns()
        if not worked:
            clock.sleep(_TURN_SECONDS)
    return False


def _spark(path: str, store: Store) -> Reorganizer:
    """The reorganizer on this process's Spark session, which the first run starts."""
    from instar.pipeline.reorganizer import SparkReorganizer

    return SparkReorganizer(path, background=True)


def main(arguments: list[str]) -> int:
    """Run the worker of one store; SIGTERM and SIGINT end it after the batch that it is at."""
    parser = argparse.ArgumentParser("python -m instar.worker", description="The background process of a database.")
    parser.add_argument("path", metavar="PATH")
    parser.add_argument(gently.OPTION, action="store_true", help="it has been loaded gently, beside others' work")
    parser.add_argument("--job-hook", metavar="COMMAND", help=f"else that of {hooks.VARIABLE}")
    options = parser.parse_args(arguments)
    # The thread that starts Spark computes for a second. Whoever is in the atomic section gets the interpreter from it
    # soon: others wait for the section.
    sys.setswitchinterval(_SWITCH_SECONDS)
    gently.set_aside()
    stop: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    try:
        path = os.path.realpath(options.path)
        given = options.job_hook
        hook = hooks.from_environment(path) if given is None else hooks.Hook(given, path) if given else None
        serve(options.path, SystemClock(), lambda: bool(stop), hook=hook)
    except errors.Error as failed:
        print(f"ERROR:  {failed.sqlstate}: {failed}", file=sys.stderr)  # noqa: T201 - a command of its own
        return 1
    return 0
