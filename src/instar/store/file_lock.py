"""Locks of whole files (flock(2)), for what whoever opens a store does while nobody else may: making the store, taking
a slot, doing the log again, opening LMDB's environment.

A process that is stopped (Ctrl-Z, SIGSTOP) while it has such a lock must hold nobody up. The kernel tells who has it,
so whoever has waited for long lets that process go on until it has given the lock up, and stops it again (as `watch`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from instar.store.watch import LEAVE_SECONDS, LOOK_SECONDS, is_stopped, let_run

_TICK = 0.001


@contextlib.contextmanager
def locked(file: int) -> Iterator[None]:
    """Have the lock of an open file, which no other process has meanwhile. OSError."""
    look_at = time.monotonic() + LOOK_SECONDS
    while not _try(file):
        if time.monotonic() < look_at:
            time.sleep(_TICK)
        elif _let_go(file):
            break
        else:
            look_at = time.monotonic() + LOOK_SECONDS
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go(file: int) -> bool:
    """Let whoever has the lock, if it is stopped, go on for a moment; whether this process has the lock then."""
    holder = _holder(file)
    if holder is None or not is_stopped(holder) or not let_run(holder, True):
        return False
    until = time.monotonic() + LEAVE_SECONDS
    try:
        while not (has := _try(file)) and time.monotonic() < until:
            time.sleep(_TICK)
    finally:  # also if this wait is interrupted (Ctrl-C)
        let_run(holder, False)
    return has


def _holder(file: int) -> int | None:
    """The process that has the lock; None where the kernel does not tell."""
    found = os.fstat(file)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as locks:
        for fields in map(str.split, locks):
            if fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
                return int(fields[4])
    return None
