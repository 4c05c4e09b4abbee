"""Starting the background process on demand: one per store, which ends by itself when it has been idle for a while."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import time
from pathlib import Path

from instar import gently
from instar.store.engine import Store

# What Python runs, before the path of the store.
PROGRAM = ("-m", "instar.worker")
# One that has not come after so long never will.
_LOADING_SECONDS = 120.0
# What lies in the client's working directory is no module of ours.
SAFELY = "-P"


def environment() -> dict[str, str]:
    """That of a process which runs a program of this package: the very package that runs here, however it was found."""
    own = Path(__file__).resolve().parents[2]
    if any(Path(found).resolve() == own for found in (*site.getsitepackages(), site.getusersitepackages())):
        # It is installed, and found without that. Told of it, Python would look for its own modules there first, and
        # so would whatever else the process runs: another Python's hook.
        return dict(os.environ)
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": str(own) if not inherited else os.pathsep.join((str(own), inherited))}


class WorkerLauncher:
    """Sees to it that a store has a worker. `path` None: no other process can open the store, so it never has one."""

    def __init__(self, store: Store, path: str | None) -> None:
        self._store = store
        self._path = path
        self._started: subprocess.Popen[bytes] | None = None
        self._begun = 0.0
        self._failed: tuple[float, int] | None = None  # when the last one that ended with an error began; its status

    def ensure(self) -> bool:
        """Start a worker, unless one is there or on its way. Two at once do no harm: jobs are claimed. Whether one is
        there; who is told that none is should ask again in a while: what is on its way may be killed."""
        self._look()
        if self._path is None or self._store.worker_present():
            return True
        if not self._store.wants_worker() or self._is_loading():
            return False
        # A process group of its own: neither a Ctrl-C at the client nor the client's end reaches it. Not a session of
        # its own: where the kernel shares the processors out among sessions (sched(7), autogroups), how far the
        # worker's processes stand back would count among themselves only. Its parent may be gone before it is, so
        # nobody waits for it; one that has ended is reaped when the next is asked for.
        self._begun = time.monotonic()
        self._started = subprocess.Popen(
            [sys.executable, SAFELY, *PROGRAM, self._path, *([gently.OPTION] if self._store.others_commit() else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            close_fds=True,
            env=environment(),
        )
        return False

    def _is_loading(self) -> bool:
        """Whether one that was started here lives, and has not said yet that it is there. Where the processors are busy
        that takes long, and would take longer still with another one beside it."""
        if self._started is None or time.monotonic() - self._begun > _LOADING_SECONDS:
            return False
        pid = self._started.pid
        return not any(process.worker and process.pid == pid for process in self._store.processes())

    def failed(self, since: float) -> int | None:
        """The status of a worker that was started here after `since` (time.monotonic) and has ended with an error, if
        there is none now: it cannot start, or ends over its work. One that was killed does not count."""
        self._look()
        if self._failed is None or self._failed[0] < since or self._store.worker_present():
            return None
        return self._failed[1]

    def _look(self) -> None:
        if self._started is not None and (status := self._started.poll()) is not None:
            self._started = None
            if status > 0:
                self._failed = self._begun, status
