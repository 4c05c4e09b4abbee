"""Spark's processes take turns with foreground commits: while any are about, they stand still most of the time.

To run only when nobody else wants the processor (SCHED_IDLE, session.py) is not enough beside commits that wait for the
disk. Linux sends an fsync's flush from a kernel thread that is bound to the processor of whoever asked for it; where
sessions share the processors out (sched(7), autogroups), that thread may owe the session a few microseconds, and then
what computes there goes on until the next tick of the clock, four milliseconds later. Two flushes to a commit, and
commits queue: with a computing process on each of two processors the 99.9th percentile of writes was 20 to 34 ms, with
these turns 5 to 17 ms, without such processes 3 to 12 ms.

A process that stands still is not left so. If this process is killed meanwhile, the kernel wakes its children, for each
is in a process group of its own, which is orphaned then (setpgid(2)); and in one that has been told to stop but had no
processor to do so yet, an orphaned group ignores SIGTSTP, which is why it is not SIGSTOP.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from instar import scheduling

# Short, since what commits wait for while others run adds up to a queue: the 99.9th percentile of clients at half of
# their peak beside an index build was 66 ms with turns of 10 and 30 ms, 26 ms with these.
RUN_SECONDS = 0.005
REST_SECONDS = 0.015
# Of a job that is to cost its clients no more than they notice (a priority below 0): what idle processes take of the
# processors' caches and memory costs clients a fourth of it.
LONG_REST_SECONDS = 0.06
# How often it is asked whether anybody is to rest, where nobody is.
_ASKING_SECONDS = 0.1
# How many rests in a row a queue of foreground commits may cost: the work still ends, whatever the foreground does.
MOST_RESTS = 3
# Of the time, how much looking for processes may take: a host may have very many.
_LOOKING_SHARE = 0.05


class Foreground(Protocol):
    """Of a store, what is known of commits in the foreground."""

    def foreground_about(self) -> bool: ...

    def foreground_queues(self) -> bool: ...


@contextlib.contextmanager
def turns(store: Foreground, rest: Callable[[], float]) -> Iterator[None]:
    """Within it, the processes that descend from this one and have been told to yield to everybody (SCHED_IDLE) rest
    for `rest()` seconds, 0 for not at all, after each `RUN_SECONDS` while foreground commits are about, and longer
    while these queue."""
    ended = threading.Event()
    thread = threading.Thread(target=_take_turns, args=(store, rest, ended), name="instar-turns", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _take_turns(store: Foreground, rest: Callable[[], float], ended: threading.Event) -> None:
    family = Family()
    look_at = 0.0
    try:
        while not ended.wait(RUN_SECONDS if (seconds := rest()) else _ASKING_SECONDS):
            if seconds and store.foreground_about():
                begin = time.monotonic()
                if begin >= look_at:
                    family.find()
                    look_at = begin + (time.monotonic() - begin) / _LOOKING_SHARE
                family.send(signal.SIGTSTP)
                try:
                    _rest(store, seconds)
                finally:
                    family.send(signal.SIGCONT)
    finally:
        family.close()


def _rest(store: Foreground, seconds: float) -> None:
    """What is late for clients catches up soonest when nobody is in the way (as at the gate)."""
    for _ in range(MOST_RESTS):
        time.sleep(seconds)
        if not store.foreground_queues():
            return


class Family:
    """The idle processes that descend from this one, as handles that never come to mean another process."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {os.getpid(): -1}  # process to its handle; this one is its root only
        self._strangers: set[int] = set()

    def find(self) -> None:
        """Look for new ones. Each process of the host is looked at once."""
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._strangers &= present
        for pid in sorted(present - self._strangers - self._handles.keys()):
            if not self._adopt(pid):
                self._strangers.add(pid)

    def send(self, number: signal.Signals) -> None:
        """Send all of them a signal; those that have ended are forgotten."""
        for pid, handle in list(self._handles.items()):
            if handle >= 0:
                try:
                    signal.pidfd_send_signal(handle, number)
                except OSError:
                    os.close(handle)
                    del self._handles[pid]

    def close(self) -> None:
        """Give up the handles."""
        for handle in self._handles.values():
            if handle >= 0:
                os.close(handle)
        self._handles.clear()

    def _adopt(self, pid: int) -> bool:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False  # it has ended, or the host has no handle left
        try:
            if self._is_ours(pid):
                self._handles[pid] = handle
                return True
        except OSError:
            pass  # it has ended
        os.close(handle)
        return False

    def _is_ours(self, pid: int) -> bool:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        return parent in self._handles and os.sched_getscheduler(pid) == scheduling.STANDS_BACK
