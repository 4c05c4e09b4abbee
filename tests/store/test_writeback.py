"""Writing back what a write map has made dirty: part by part, by one process at a time, while there is some."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from instar.clock import SystemClock
from instar.store import open_store, writeback
from instar.store.directory import DATA_FILE
from instar.store.presence import SharedPresence
from instar.store.writeback import CYCLE_SECONDS, PARTS, SLOWER, WriteBack, cycle_seconds
from store.building import change

PAGE = 4096


class Written:
    """In place of the system call: which parts were written; the call itself promises nothing that could be seen."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, _file: int, start: int, size: int) -> None:
        self.ranges.append((start, size))


class Threads:
    """Those that write back, without what the stores of other tests have left running."""

    def __init__(self) -> None:
        self._others = set(threading.enumerate())

    def count(self) -> int:
        found = [thread for thread in threading.enumerate() if thread.name == "instar-writeback"]
        return len([thread for thread in found if thread not in self._others])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    found = Written()
    monkeypatch.setattr(writeback, "write_out", found)
    monkeypatch.setattr(writeback, "CYCLE_SECONDS", 0.001 * PARTS)
    return found


def test_the_whole_file_is_gone_through_once_for_what_was_written_once(
    tmp_path: Path, written: Written, threads: Threads
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1_000_003))
    with path.open("r+b") as file:
        work = WriteBack(file.fileno(), PAGE, lambda _seconds: True)
        work.begin()
        until(lambda: len(written.ranges) >= PARTS)
        time.sleep(0.05)
        assert len(written.ranges) == PARTS
        covered = sorted(written.ranges)
        assert covered[0][0] == 0
        assert covered[-1][0] + covered[-1][1] >= 1_000_003
        assert all(start + size == following for (start, size), (following, _) in pairwise(covered))
        work.begin()
        until(lambda: len(written.ranges) >= 2 * PARTS)
        work.stop()
    until(lambda: not threads.count())


@pytest.mark.usefixtures("written")
def test_the_file_may_be_closed_at_any_time(tmp_path: Path, threads: Threads) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with path.open("r+b") as file:
            work = WriteBack(file.fileno(), PAGE, lambda _seconds: True)
            work.begin()
            work.stop()
    until(lambda: not threads.count())
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_dirty_again_at_once_is_gone_through_more_slowly() -> None:
    """A thousand pages, and a transaction makes one of them dirty at least."""
    assert cycle_seconds(0, 1000) == CYCLE_SECONDS
    assert cycle_seconds(2 * 1000 / CYCLE_SECONDS - 1, 1000) == CYCLE_SECONDS
    assert cycle_seconds(2 * 1000 / CYCLE_SECONDS + 1, 1000) == SLOWER * CYCLE_SECONDS


def test_all_transactions_of_the_store_are_counted(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", synchronous="off", write_map=False)
    with (tmp_path / "store" / DATA_FILE).open("rb") as file:
        work = WriteBack(file.fileno(), PAGE, lambda _seconds: True)
        before = work._transaction(file.fileno())
        for number in range(5):
            change(store, {number: b"a"})
            assert work._transaction(file.fileno()) == before + number + 1
    store.close()


def test_processes_take_turns(tmp_path: Path) -> None:
    first, second = (SharedPresence(str(tmp_path / "presence"), SystemClock(), 60.0) for _ in range(2))
    assert first.takes_turn(0.2)
    assert not second.takes_turn(0.2)
    assert not first.takes_turn(0.2)
    time.sleep(0.2)
    assert second.takes_turn(0.2)
    for presence in (first, second):
        presence.close()


def test_only_who_writes_through_a_map_writes_back(tmp_path: Path, threads: Threads) -> None:
    reads = open_store(tmp_path / "reads", synchronous="off")
    calls = open_store(tmp_path / "calls", synchronous="off", write_map=False)
    change(calls, {1: b"a"})
    assert not threads.count()
    writes = open_store(tmp_path / "writes", synchronous="off")
    change(writes, {1: b"a"})
    assert threads.count() == 1
    for store in (reads, calls, writes):
        store.close()
    until(lambda: not threads.count())
