"""One Spark job on a thread of its own, so that the caller's thread can go on renewing its lease."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from instar import errors
from instar.pipeline.session import activate, is_lost, jvm_runs, kill_session

PULSE_SECONDS = 0.5
# A JVM that has ended ends the connections that its jobs wait on, within so long.
GONE_SECONDS = 1.0
# A cancelled task is killed after spark.python.task.killTimeout; one that lives longer goes with its JVM.
CANCEL_SECONDS = 15.0


def patiently(action: Callable[[], Any], pulse: Callable[[], None], seconds: float) -> Any:
    """Run `action`, which may ask Spark for something, on another thread, and call `pulse` meanwhile.

    58030 if it takes longer than `seconds`: Spark stands still, or is given no processor. What `action` raises is
    raised here, and what `pulse` raises.
    """
    outcome: list[Any] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(action())
        except BaseException as problem:  # noqa: BLE001 - raised in the caller's thread
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until = time.monotonic() + seconds
    while thread.is_alive():
        thread.join(PULSE_SECONDS)
        pulse()
        if time.monotonic() > until and thread.is_alive():
            raise stands_still(seconds)
    if problems:
        raise problems[0]
    return outcome[0]


def stands_still(seconds: float) -> errors.Error:
    """58030: nothing was heard of Spark for so long."""
    return errors.error(
        errors.IO_ERROR,
        f"nothing was heard of Spark for {seconds:g} seconds",
        hint="In the background Spark gets only the processor time that nobody else on this host wants.",
    )


class SparkJob:
    """Runs `action`, which submits to `session`."""

    def __init__(self, session: Any, name: str, action: Callable[[], object]) -> None:
        self.failed: BaseException | None = None
        self._session = session
        self._action = action
        self._ended = threading.Event()
        self._tag = f"instar-{name}-{id(self)}"
        # PySpark's own kind of thread asks the JVM for properties that a job inherits, and hangs or fails where nobody
        # looks if that has gone; a job inherits none.
        self._thread = threading.Thread(target=self._run, name=self._tag, daemon=True)

    def wait(self, pulse: Callable[[], None], *, at_once: bool = False) -> None:
        """Run to the end; then `failed` is set if it failed, and no task is left that writes.

        If `pulse` raises, the job is cancelled and the exception passed on: when its tasks have ended, or, where
        nobody minds what they still write, at once.
        """
        self._thread.start()
        try:
            while not self._ended.wait(PULSE_SECONDS):
                pulse()
                if not jvm_runs(self._session) and not self._ended.wait(GONE_SECONDS):
                    self.failed = errors.error(errors.IO_ERROR, "Spark's JVM has gone, and a job still waits for it")
                    return
        except BaseException:
            if at_once:
                threading.Thread(target=self._cancel, daemon=True).start()
            else:
                self._cancel()
            raise
        if self.failed is not None and not is_lost():
            self._await_tasks()

    def _await_tasks(self) -> None:
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError, OSError):  # it has gone meanwhile, and its tasks with it
            _await_tasks(self._session)

    def _cancel(self) -> None:
        """Cancel the job; a Spark that does not answer is killed."""
        from py4j.protocol import Py4JError

        if jvm_runs(self._session):
            try:
                patiently(self._cancel_and_wait, lambda: None, 2 * CANCEL_SECONDS)
            except errors.Error:
                kill_session()
            except (Py4JError, OSError):
                return  # it has gone meanwhile, and its tasks with it

    def _cancel_and_wait(self) -> None:
        self._session.sparkContext.cancelJobsWithTag(self._tag)
        self._ended.wait(CANCEL_SECONDS)
        _await_tasks(self._session)

    @property
    def share(self) -> float:
        """Which share of the tasks is done, of the stages that Spark knows of so far; 0 of a Spark that has gone, which
        the job's end will tell."""
        from py4j.protocol import Py4JError

        try:
            return self._share()
        except (Py4JError, OSError):
            return 0.0

    def _share(self) -> float:
        tracker = self._session.sparkContext.statusTracker()
        done = total = 0
        for number in tracker.getJobIdsForGroup(self._tag):
            job = tracker.getJobInfo(number)
            for stage in map(tracker.getStageInfo, [] if job is None else job.stageIds):
                if stage is not None:
                    done, total = done + stage.numCompletedTasks, total + stage.numTasks
        return done / total if total else 0.0

    def _run(self) -> None:
        try:
            activate(self._session)
            self._session.sparkContext.addJobTag(self._tag)
            self._session.sparkContext.setJobGroup(self._tag, self._tag)
            self._action()
        except BaseException as problem:  # noqa: BLE001 - handed to the caller's thread, which tells them apart
            self.failed = problem
        finally:
            self._ended.set()


def _await_tasks(session: Any) -> None:
    """Return when no task runs any more: Spark reports a job as over while its tasks are still being killed, and what
    they write must not meet what the caller does next with the same files."""
    tracker = session.sparkContext._jsc.sc().statusTracker()  # the Python tracker does not count tasks of dead stages
    deadline = time.monotonic() + CANCEL_SECONDS
    while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
        if time.monotonic() > deadline:
            kill_session()
            return
        time.sleep(0.02)
