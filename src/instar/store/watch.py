"""A process that is stopped (Ctrl-Z, SIGSTOP) inside the atomic section must hold nobody up.

LMDB's mutex passes to the next one when its holder dies, but not when it is stopped, and waiting for it cannot be cut
short. So while this process waits to enter for longer than any commit takes, a thread looks for processes of the same
store that are stopped, lets them go on until the wait is over, which takes them the rest of one commit, and stops them
again. What a debugger holds stays held.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

# Somebody who has not entered after one to two of these may be waiting for a stopped process.
LOOK_SECONDS = 0.25
# How long a process that was let go on is given to leave the section.
LEAVE_SECONDS = 0.1
_TICK = 0.001
# How long one that is to do something else may take for it: it may not be given a processor at once.
_WAKE_SECONDS = 1.0


class Watch:
    """The watch of one process over its waiting for one store, whose data file is `data`.

    `others` gives the numbers of the other processes that have the store open. A thread enters the section within
    `with watch:`, the first of which begins the watch; it lasts until `stop`. `entering` has an item for each thread
    that waits to enter, `entered` says how many have.
    """

    __slots__ = ("_data", "_others", "_started", "_stopped", "entered", "entering")

    def __init__(self, data: str, others: Callable[[], Iterable[int]]) -> None:
        self._started = False
        self.entering: list[None] = []
        self.entered = 0
        self._data = data
        self._others = others
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch from now on, until `stop`; once is enough."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="instar-watch", daemon=True).start()

    def __enter__(self) -> None:
        self.start()
        self.entering.append(None)

    def __exit__(self, *_caught: object) -> None:
        self.entering.pop()
        self.entered += 1

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()

    def _run(self) -> None:
        seen = -1
        while not self._stopped.wait(LOOK_SECONDS):
            entered = self.entered
            if self.entering and entered == seen:
                self._release(entered)
            seen = entered

    def _release(self, entered: int) -> None:
        """Let stopped processes of the store go on until this one has entered, or a moment has passed."""
        let_go = [pid for pid in self._others() if is_stopped(pid) and self._has_open(pid) and let_run(pid, True)]
        if not let_go:
            return
        until = time.monotonic() + LEAVE_SECONDS
        while self.entering and self.entered == entered and time.monotonic() < until:
            time.sleep(_TICK)
        for pid in let_go:
            let_run(pid, False)

    def wake(self, pid: int, is_done: Callable[[], bool]) -> None:
        """Let a process of the store that is stopped go on until something is done, or a second has passed."""
        if pid != os.getpid() and is_stopped(pid) and self._has_open(pid) and let_run(pid, True):
            until = time.monotonic() + _WAKE_SECONDS
            while not is_done() and time.monotonic() < until:
                time.sleep(_TICK)
            let_run(pid, False)

    def _has_open(self, pid: int) -> bool:
        """Whether the process maps the store's file: a number may have been given to another one since."""
        with contextlib.suppress(OSError):
            inode = str(os.stat(self._data).st_ino)
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
                return any(fields[4:5] == [inode] for fields in map(str.split, maps))
        return False


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal (and not by a debugger)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def let_run(pid: int, go_on: bool) -> bool:
    """Let a process go on, or stop it. False if the process is gone or another user's."""
    try:
        os.kill(pid, signal.SIGCONT if go_on else signal.SIGSTOP)
    except OSError:
        return False
    return True
