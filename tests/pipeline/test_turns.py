"""Idle descendants rest while foreground commits are about; nobody else does, and nobody is left at rest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instar import scheduling
from instar.pipeline.turns import MOST_RESTS, REST_SECONDS, RUN_SECONDS, Family, turns

_COMPUTE = "while True: pass"
_IDLE = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); print('ready', flush=True)\n"
# A parent whose child computes too; it says the child's number.
_WITH_CHILD = (
    _IDLE + "import subprocess, sys\n"
    f"child = subprocess.Popen([sys.executable, '-c', {_COMPUTE!r}])\n"  # of idle class like its parent
    "print(child.pid, flush=True)\n" + _COMPUTE
)
_STATE = 0


@pytest.fixture(autouse=True)
def _stands_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in every process that runs no tests (tests/conftest.py)."""
    monkeypatch.setattr(scheduling, "STANDS_BACK", os.SCHED_IDLE)


class Commits:
    """What a store says of its foreground."""

    def __init__(self, *, about: bool, queue: bool = False) -> None:
        self._about, self._queue = about, queue

    def foreground_about(self) -> bool:
        return self._about

    def foreground_queues(self) -> bool:
        return self._queue


def status(pid: int, field: int) -> str:
    """A field of /proc/PID/stat, counted from the state."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[field]


def is_stopped(pid: int) -> bool:
    """Whether the process rests, or is to as soon as it is given a processor: others may keep all of them busy."""
    if status(pid, _STATE) == "T":
        return True
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines())
    pending = int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)
    return bool(pending >> signal.SIGTSTP - 1 & 1)


def is_alive(pid: int) -> bool:
    try:
        return status(pid, _STATE) not in "ZX"
    except FileNotFoundError:
        return False


def share_stopped(pid: int, seconds: float) -> float:
    """In which share of a time the process was seen at rest."""
    seen = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        seen.append(is_stopped(pid))
        time.sleep(0.001)
    return sum(seen) / len(seen)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended with the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def launch(started: list[subprocess.Popen[bytes]], program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, process_group=0)
    started.append(process)
    return process


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_idle_descendants_rest_most_of_the_time_beside_commits(started: list[subprocess.Popen[bytes]]) -> None:
    parent = launch(started, _WITH_CHILD)
    assert line(parent) == "ready"
    child = int(line(parent))
    busy = launch(started, _COMPUTE)
    rest = REST_SECONDS / (RUN_SECONDS + REST_SECONDS)
    try:
        with turns(Commits(about=True), lambda: REST_SECONDS):
            time.sleep(0.1)
            assert share_stopped(parent.pid, 0.5) > rest / 2
            assert share_stopped(child, 0.5) > rest / 2
            assert share_stopped(busy.pid, 0.3) == 0
            wait_until(lambda: not is_stopped(child))  # it goes on all the same
        assert share_stopped(parent.pid, 0.2) == 0
        assert share_stopped(child, 0.2) == 0
    finally:
        os.kill(child, signal.SIGKILL)


def test_they_rest_longer_while_commits_queue(started: list[subprocess.Popen[bytes]]) -> None:
    idle = launch(started, _IDLE + _COMPUTE)
    assert line(idle) == "ready"
    with turns(Commits(about=True, queue=True), lambda: REST_SECONDS):
        time.sleep(0.1)
        rest = MOST_RESTS * REST_SECONDS / (RUN_SECONDS + MOST_RESTS * REST_SECONDS)
        assert 1.0 > share_stopped(idle.pid, 1.0) > (rest + REST_SECONDS / (RUN_SECONDS + REST_SECONDS)) / 2


def test_nobody_rests_without_commits(started: list[subprocess.Popen[bytes]]) -> None:
    idle = launch(started, _IDLE + _COMPUTE)
    assert line(idle) == "ready"
    with turns(Commits(about=False), lambda: REST_SECONDS):
        assert share_stopped(idle.pid, 0.3) == 0


def test_how_long_they_rest_may_change(started: list[subprocess.Popen[bytes]]) -> None:
    idle = launch(started, _IDLE + _COMPUTE)
    assert line(idle) == "ready"
    rest = 0.0
    with turns(Commits(about=True), lambda: rest):
        assert share_stopped(idle.pid, 0.3) == 0
        rest = 0.3
        time.sleep(0.2)
        assert share_stopped(idle.pid, 1.0) > (REST_SECONDS / (RUN_SECONDS + REST_SECONDS) + 1) / 2
        rest = 0.0
        time.sleep(0.5)
        assert share_stopped(idle.pid, 0.3) == 0


def test_what_has_ended_is_forgotten(started: list[subprocess.Popen[bytes]]) -> None:
    idle = launch(started, _IDLE + _COMPUTE)
    assert line(idle) == "ready"
    family = Family()
    family.find()
    idle.kill()
    idle.wait()
    family.send(signal.SIGTSTP)
    family.find()
    family.send(signal.SIGCONT)
    family.close()


def test_who_rests_when_its_parent_is_killed_is_woken() -> None:
    """As the JVM beside a worker: in a process group of its own, which the kernel wakes and hangs up on."""
    program = (
        "import subprocess, sys, time\n"
        "from instar.pipeline import turns\n"
        "turns.REST_SECONDS = 600.0\n"
        f"child = subprocess.Popen([sys.executable, '-c', {_IDLE + _COMPUTE!r}], process_group=0, stdout=-1)\n"
        "child.stdout.readline()\n"  # from now on it is of idle class, as the JVM is when it is forked
        "print(child.pid, flush=True)\n"
        "class Commits:\n"
        "    def foreground_about(self): return True\n"
        "    def foreground_queues(self): return True\n"
        "with turns.turns(Commits(), lambda: 0.015): time.sleep(600)\n"
    )
    # In a session of its own, as what starts it is the parent of orphans nowhere but there.
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    child = int(line(parent))
    try:
        wait_until(lambda: is_stopped(child))
        parent.kill()
        parent.wait()
        # Hung up on, or, where it had not come to a stop yet, going on.
        wait_until(lambda: not is_alive(child) or not is_stopped(child))
        assert not is_alive(child) or share_stopped(child, 0.5) == 0
    finally:
        parent.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
