"""Starting the background process on demand: one per store, which ends by itself when it has been idle for a while."""

from __future__ import annotations

import subprocess
import sys

from instar.store.engine import Store

# What Python runs, before the path of the store.
PROGRAM = ("-m", "instar.worker")


class WorkerLauncher:
    """Sees to it that a store has a worker. `path` None: no other process can open the store, so it never has one."""

    def __init__(self, store: Store, path: str | None) -> None:
        self._store = store
        self._path = path

    def ensure(self) -> None:
        """Start a worker, unless one is there or has just been started. Two at once do no harm: jobs are claimed."""
        if self._path is None or not self._store.wants_worker():
            return
        # A process group of its own: neither a Ctrl-C at the client nor the client's end reaches it. Not a session of
        # its own: where the kernel shares the processors out among sessions (sched(7), autogroups), how far the
        # worker's processes stand back would count among themselves only. Its parent may be gone before it is, so
        # nobody waits for it; a subprocess that has ended is reaped by the next Popen.
        subprocess.Popen(
            [sys.executable, *PROGRAM, self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            close_fds=True,
        )
