"""How work in the background stands back: what the kernel says of a process that does."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from instar import scheduling
from instar.scheduling import SLICE_NS, in_idle_thread
from instar.schemachange.launching import environment

# Says weight and slice of a process that stands back, of a thread of it, and of its child. In a process of its own, for
# a weight that was given away does not come back.
SHOWN = """
import ctypes, os, threading
from instar import scheduling
scheduling._SCHED_SETATTR = {call}

def show():
    told = ctypes.create_string_buffer(scheduling._ATTRIBUTES.size)
    assert ctypes.CDLL(None).syscall({getattr}, 0, told, len(told), 0) == 0
    _, policy, _, nice, _, slice_ns, _, _ = scheduling._ATTRIBUTES.unpack(told)
    print(policy, nice, slice_ns, flush=True)

scheduling.stand_back(3)
show()
thread = threading.Thread(target=show)
thread.start()
thread.join()
if os.fork() == 0:
    show()
    os._exit(0)
os.wait()
"""
_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275, "riscv64": 275}[platform.machine()]


def shown(call: str) -> list[list[int]]:
    program = SHOWN.format(call=call, getattr=_SCHED_GETATTR)
    told = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment(), timeout=20
    )
    return [[int(word) for word in line.split()] for line in told.stdout.splitlines()]


def slices() -> bool:
    """Whether the kernel lets a thread of the usual class ask for its slice."""
    return tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 12)


def test_a_process_stands_back_with_its_threads_and_children() -> None:
    expected = [os.SCHED_OTHER, min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19), SLICE_NS if slices() else 0]
    assert shown("scheduling._SCHED_SETATTR") == [expected] * 3


@pytest.mark.parametrize("call", ["None", "10**6"])
def test_without_the_system_call_it_has_a_low_weight(call: str) -> None:
    told = shown(call)
    assert len(told) == 3
    for policy, nice, slice_ns in told:
        assert (policy, nice) == (os.SCHED_OTHER, min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19))
        assert slice_ns != SLICE_NS


def test_what_an_idle_thread_starts_is_idle_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "STANDS_BACK", os.SCHED_IDLE)  # as in every process that runs no tests
    command = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE)"]
    started = in_idle_thread(lambda: subprocess.run(command, check=True, capture_output=True))
    assert started.stdout == b"True\n"
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    with pytest.raises(ZeroDivisionError):
        in_idle_thread(lambda: 1 / 0)


def test_only_tests_have_idle_threads_compete() -> None:
    """tests/conftest.py has them compete, lest they starve beside other tests."""
    program = "import os; from instar import scheduling; print(scheduling.STANDS_BACK == os.SCHED_IDLE)"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment())
    assert told.stdout == b"True\n"
