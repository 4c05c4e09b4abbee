"""How work in the background stands back where processors are short: its weight, its slices, its scheduling class.

A low weight (nice(2)) says how much of a processor it gets beside others, and nothing of when: who wakes up has to wait
until its slice ends, which Linux looks at when its clock ticks, up to four milliseconds later. The slice that a thread
asks for (sched_setattr(2), since Linux 6.12) decides that: one that asked for a longer slice than who wakes up gives
way at once. Beside a thread on each of two processors that computes for a millisecond of each four, the 99th percentile
of what a sleeper is late was 0.93 to 1.0 ms, at any weight, and is 0.10 to 0.14 ms with slices of 10 ms; beside nobody
0.09 to 0.17 ms.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# The scheduling class (sched(7)) of what runs only when nobody else wants the processor.
STANDS_BACK = os.SCHED_IDLE
# Longer than what a thread has that asks for none (3 ms at the most). Not the longest of all: beside one that never
# sleeps, it may be had at a stretch.
SLICE_NS = 10_000_000
# The system calls, by the processor: Python has no functions for them, and the C library of Debian 12 neither.
_SCHED_SETATTR, _SCHED_GETATTR = {
    "x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275),
}.get(platform.machine(), (None, None))  # fmt: skip
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def stand_back(niceness: int) -> None:
    """Take so much from the weight of this process, and have its threads give way to others at once.

    Called by the only thread of a process; others, and child processes, inherit it. What the system does not know, or
    refuses, is left as it is: a worker that competes is better than none.
    """
    os.nice(niceness)
    if _SCHED_SETATTR is None:
        return
    own = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, own, 0, SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(_SCHED_SETATTR, 0, wanted, 0)


def gives_way() -> bool:
    """Whether whoever wakes up has the processor of this thread at once: by what the system says, which may not have
    done what it was asked for."""
    if _SCHED_GETATTR is None:
        return False
    told = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if ctypes.CDLL(None).syscall(_SCHED_GETATTR, 0, told, len(told), 0) != 0:
        return False
    slice_ns: int = _ATTRIBUTES.unpack(told)[5]
    return slice_ns >= SLICE_NS


def in_idle_thread(action: Callable[[], Any]) -> Any:
    """Run `action` in a thread that yields to everybody, and whose child processes inherit that (sched(7), SCHED_IDLE).

    It has what nobody else wants, where one of low weight has its share. Nobody may come back from it without
    privileges, hence the thread.
    """
    with ThreadPoolExecutor(1, initializer=_become_idle) as pool:
        return pool.submit(action).result()


def _become_idle() -> None:
    os.sched_setscheduler(0, STANDS_BACK, os.sched_param(0))
