"""Where the worker computes: in a thread that yields to everybody while others commit; by itself if that starves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from instar import gently
from instar.clock import ManualClock, SystemClock
from instar.schemachange import wanted as want
from instar.schemachange.job_records import JobState
from instar.schemachange.reorganize import Derivation, Entry
from instar.store import open_store
from instar.store.base import BaseStore
from instar.store.engine import View
from instar.store.memory import MemoryStore
from instar.worker import standing_back
from instar.worker.standing_back import StandingBack
from instar.worker.work import Worker
from support.changes import ChangingWorld

HOG = "while True: pass"


class Beside(MemoryStore):
    """A store beside which others commit, or do not."""

    others = True

    def others_commit(self) -> bool:
        return self.others


@pytest.fixture
def store() -> Beside:
    return Beside(clock=ManualClock())


@pytest.fixture(autouse=True)
def _yields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gently, "STANDS_BACK", os.SCHED_IDLE)  # as in every process that runs no tests


@pytest.fixture
def back(store: Beside) -> Iterator[StandingBack]:
    made = StandingBack(store, SystemClock())
    yield made
    made.close()


def scheduled() -> tuple[int, int]:
    """The calling thread and its scheduling class."""
    return threading.get_ident(), os.sched_getscheduler(0)


def test_it_computes_in_a_thread_of_idle_class_while_others_commit(store: Beside, back: StandingBack) -> None:
    here = scheduled()
    thread, class_ = back.run(scheduled)
    assert thread != here[0]
    assert class_ == os.SCHED_IDLE
    assert scheduled() == here
    assert back.run(scheduled) == (thread, class_)
    store.others = False
    assert back.run(scheduled) == here


def test_what_goes_wrong_there_is_raised_here(back: StandingBack) -> None:
    def fail() -> None:
        raise KeyError("there")

    with pytest.raises(KeyError, match="there"):
        back.run(fail)
    assert back.run(lambda: 1) == 1


def test_what_is_asked_for_meanwhile_is_done_here_and_its_errors_end_it_there(back: StandingBack) -> None:
    seen: list[object] = []

    def pulse() -> None:
        seen.append(threading.get_ident())
        if len(seen) > 2:
            raise InterruptedError

    felt = back.outside(pulse)

    def compute() -> None:
        try:
            for _ in range(9):
                felt()
        finally:
            seen.append("ended there")

    with pytest.raises(InterruptedError):
        back.run(compute)
    assert seen == [*[threading.get_ident()] * 3, "ended there"]
    with pytest.raises(InterruptedError):
        felt()


def test_while_it_waits_the_worker_goes_on(store: Beside, back: StandingBack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_back, "_BEAT_SECONDS", 0.02)
    heard = threading.Event()
    monkeypatch.setattr(store, "worker_goes_on", heard.set)
    assert back.run(lambda: heard.wait(60.0))


def test_starved_it_leaves_it_to_the_worker_for_a_while(store: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have work for all processors."""
    monkeypatch.setattr(standing_back, "_WINDOW_NS", 100_000_000)
    clock = ManualClock()
    back = StandingBack(store, clock)
    here = scheduled()

    def compute() -> tuple[int, int]:
        until = time.thread_time() + 0.005
        while time.thread_time() < until:
            pass
        return scheduled()

    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        found = (back.run(compute) for _ in range(2000))
        assert any(where == here for where in found)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert back.run(scheduled) == here
    clock.advance(standing_back._ALONE_NS / 1e9 + 1)
    assert back.run(scheduled) != here
    back.close()


def test_without_competition_it_is_never_starved(store: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_back, "_WINDOW_NS", 1_000_000)
    monkeypatch.setattr(standing_back, "_scheduled", lambda: (int(time.thread_time() * 1e9), 0))
    back = StandingBack(store, SystemClock())
    thread, _ = back.run(scheduled)

    def compute() -> tuple[int, int]:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        return scheduled()

    assert {back.run(compute)[0] for _ in range(50)} == {thread}
    back.close()


def test_jobs_compute_there_and_enter_the_section_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index over a table of several batches, on a store of files."""
    clock = ManualClock()
    store = open_store(str(tmp_path / "store"), synchronous="off", clock=clock)
    monkeypatch.setattr(type(store), "others_commit", lambda self: True)
    world = ChangingWorld(store, clock)
    world.create_t([(number, number % 7, "x") for number in range(10_000)])
    computed, entered = set(), set()
    derive, begin = Derivation.many, BaseStore._run_batch

    def noted(self: Derivation, reader: View, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Entry]:
        computed.add(threading.get_ident())
        return derive(self, reader, keys, stored)

    def run_batch(self: BaseStore, *arguments: Any) -> tuple[int, int]:
        entered.add(threading.get_ident())
        return begin(self, *arguments)

    monkeypatch.setattr(Derivation, "many", noted)
    monkeypatch.setattr(BaseStore, "_run_batch", run_batch)
    assert world.execute(want.CreateIndex("t", (("a", False),), "i")) is not None
    back = StandingBack(store, SystemClock())
    assert Worker(store, clock, computing=back).turn()
    assert [job.state for job in world.jobs.all()] == [JobState.SUCCEEDED]
    world.check_index("i")
    assert len(computed) == 1
    assert entered == {threading.get_ident()} != computed
    back.close()
    store.close()
