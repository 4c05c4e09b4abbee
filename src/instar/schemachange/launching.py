"""Starting the background process on demand: one per store, which ends by itself when it has been idle for a while."""

from __future__ import annotations

import subprocess
import sys

from instar.clock import Clock
from instar.store.engine import Store

# A worker that was started is given so long to announce itself before another one is started.
_START_SECONDS = 5.0


class WorkerLauncher:
    """Sees to it that a store has a worker. `path` None: no other process can open the store, so it never has one."""

    def __init__(self, store: Store, path: str | None, clock: Clock) -> None:
        self._store = store
        self._path = path
        self._clock = clock
        self._started_ns: int | None = None

    def ensure(self) -> None:
        """Start a worker, unless one is there or has just been started. Two at once do no harm: jobs are claimed."""
        if self._path is None or self._store.worker_present():
            return
        now = self._clock.monotonic_ns()
        if self._started_ns is not None and now - self._started_ns < _START_SECONDS * 1e9:
            return
        self._started_ns = now
        # A process group of its own: neither a Ctrl-C at the client nor the client's end reaches it. Not a session of
        # its own: where the kernel shares the processors out among sessions (sched(7), autogroups), how far the
        # worker's processes stand back would count among themselves only. Its parent may be gone before it is, so
        # nobody waits for it; a subprocess that has ended is reaped by the next Popen.
        subprocess.Popen(
            [sys.executable, "-m", "instar.worker", self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            close_fds=True,
        )
