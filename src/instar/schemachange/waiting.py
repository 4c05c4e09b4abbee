"""Seeing jobs through: small ones in the call itself, the others in the background process, which is started on demand.

A statement that waits polls the job's record; it holds no claim, so that it may go away at any time and the job goes
on.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from instar import errors
from instar.clock import Clock
from instar.schemachange.executor import Executor
from instar.schemachange.jobs import Job, JobState
from instar.schemachange.reorganize import SMALL_ROWS
from instar.store.engine import Store

# Between two looks at a job's record: at first short, since small jobs are done in no time.
_FIRST_POLL_SECONDS = 0.005
_LAST_POLL_SECONDS = 0.1
# A worker that was started is given so long to announce itself before another one is.
_START_SECONDS = 5.0


class JobWaiter:
    """Drives or awaits jobs for the sessions of one process. `path` None: a store that no other process can open."""

    def __init__(self, store: Store, path: str | None, clock: Clock, executor: Executor) -> None:
        self._store = store
        self._path = path
        self._clock = clock
        self._executor = executor
        self._started_ns: int | None = None

    def start(self, job: int) -> Job:
        """See to it that somebody works on the job: this call, if the job is small, else the worker."""
        found = self._executor.jobs.get(job)
        if self._path is None or found.rows_total <= SMALL_ROWS:
            self._executor.run(job)
            found = self._executor.jobs.get(job)
        if not found.is_finished and found.state is not JobState.PAUSED:
            self.ensure_worker()
        return found

    def wait(self, job: int, check_cancel: Callable[[], None]) -> Job:
        """The job once it is finished or paused. `check_cancel` may raise: the job goes on without its waiter."""
        found = self.start(job)
        pause = _FIRST_POLL_SECONDS
        while not found.is_finished and found.state is not JobState.PAUSED:
            check_cancel()
            self._clock.sleep(pause)
            pause = min(pause * 1.5, _LAST_POLL_SECONDS)
            found = self._executor.jobs.get(job)
            self._keep_going(found)
        return found

    def _keep_going(self, job: Job) -> None:
        if job.is_finished:
            return
        if self._path is None:
            self._executor.run(job.id)
        else:
            self.ensure_worker()

    def ensure_worker(self) -> None:
        """Start the background process, unless one is there or has just been started."""
        if self._path is None or self._store.worker_present():
            return
        now = self._clock.monotonic_ns()
        if self._started_ns is not None and now - self._started_ns < _START_SECONDS * 1e9:
            return
        self._started_ns = now
        # A session of its own: neither a Ctrl-C at the client nor the client's end reaches it.
        subprocess.Popen(
            [sys.executable, "-m", "instar.worker", self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=True,
        )

    def require_success(self, job: Job, *, committed: bool) -> None:
        """Raise what the job failed with. `committed`: it was begun by a transaction whose COMMIT has stood (XXS01)."""
        if job.problem is None:
            return
        failed = job.problem.error()
        if not committed:
            raise failed
        raise errors.error(
            errors.SCHEMA_CHANGE_FAILED,
            f"the transaction is committed, but its schema change failed and was reverted: {failed.message}",
            detail=failed.detail,
            hint=f"The change was: {job.statement}",
        )
