"""Whether another process is in the atomic section is seen without asking for it, and a commit waits for that awake."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from instar.store import open_store
from instar.store.engine import Section
from instar.store.lmdb import LmdbStore
from instar.store.writer_mutex import SPIN_NS, WriterMutex, find_writer_mutex
from store.building import ended, in_child, raw

KEY = b"\x03k"
HELD, WAITED_FOR = 0x1234, 0x8000_0000 | 0x1234
DIED = 0x4000_0000

# Opens the store at argv[1]; at each line it enters the section, says so, and leaves it at the next one.
ENTERS = """
import sys
from instar.store import open_store
store = open_store(sys.argv[1], synchronous=None, create=False)

def step(section):
    print("inside", flush=True)
    sys.stdin.readline()

print("open", flush=True)
while sys.stdin.readline():
    store.background([step])
    print("outside", flush=True)
"""


class Other:
    """A process that enters the section when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def told(self, expected: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.says(expected)

    def says(self, expected: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{expected}\n"


@contextmanager
def another(path: Path) -> Iterator[Other]:
    process = subprocess.Popen(
        [sys.executable, "-c", ENTERS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        other = Other(process)
        other.says("open")
        yield other
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["off", "full"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LmdbStore]:
    made = open_store(tmp_path / "store", synchronous=request.param)
    assert isinstance(made, LmdbStore)
    yield made
    made.close()


def mutex(store: LmdbStore) -> WriterMutex | None:
    return store._environment.mutex


def spun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the section was taken, each time that somebody was about to wait."""
    seen: list[bool] = []
    spin = WriterMutex.spin

    def watched(of: WriterMutex) -> None:
        seen.append(of.is_held)
        spin(of)

    monkeypatch.setattr(WriterMutex, "spin", watched)
    return seen


def test_it_is_seen_from_when_another_process_has_the_store_open(store: LmdbStore, tmp_path: Path) -> None:
    raw(store, (KEY, b"alone"))
    assert mutex(store) is None
    with another(tmp_path / "store") as other:
        raw(store, (KEY, b"together"))
        found = mutex(store)
        assert found is not None
        for _ in range(2):
            assert not found.is_held
            other.told("inside")
            assert found.is_held
            other.told("outside")
        assert not found.is_held


def test_its_own_section_is_seen(store: LmdbStore, tmp_path: Path) -> None:
    held: list[bool] = []
    with another(tmp_path / "store"):
        raw(store, (KEY, b"together"))
        found = mutex(store)
        assert found is not None
        store.background([lambda _section: held.append(found.is_held)])
    assert held == [True]
    assert not found.is_held


def test_a_process_that_dies_inside_has_it_no_more(store: LmdbStore, tmp_path: Path) -> None:
    with another(tmp_path / "store") as other:
        raw(store, (KEY, b"together"))
        other.told("inside")
    found = mutex(store)
    assert found is not None
    assert not found.is_held
    raw(store, (KEY, b"after it"))


def test_a_child_sees_it_anew(store: LmdbStore, tmp_path: Path) -> None:
    """Its threads have other numbers, but the word is the same."""

    def child() -> None:
        raw(store, (KEY, b"child"))
        found = mutex(store)
        assert found is not None
        held: list[bool] = []
        store.background([lambda _section: held.append(found.is_held)])
        assert held == [True]
        assert not found.is_held

    with another(tmp_path / "store"):
        raw(store, (KEY, b"together"))
        assert ended(in_child(child)) == 0


def test_commits_wait_awake_and_background_work_does_not(
    store: LmdbStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spun(monkeypatch)

    def step(section: Section) -> None:
        section.put(KEY, b"in the background")

    with another(tmp_path / "store"):
        raw(store, (KEY, b"together"))
        assert seen == []
        raw(store, (KEY, b"again"))
        store.commit_derived(lambda _view: None)
        assert seen == [False, False]
        store.background([step])
        assert seen == [False, False]


def test_nobody_waits_awake_for_another_thread_of_the_process(
    store: LmdbStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spun(monkeypatch)
    with another(tmp_path / "store"):
        raw(store, (KEY, b"together"))
        queue, inside = store._environment.queue, store._environment.inside
        queue.within[-1] = -1
        raw(store, (KEY, b"beside a commit"))
        del queue.within[-1]
        inside[-1] = None
        raw(store, (KEY, b"beside what is in the background"))
        store.commit_derived(lambda _view: None)
        del inside[-1]
        assert seen == []
        raw(store, (KEY, b"alone"))
        assert seen == [False]


@pytest.mark.parametrize("word", [HELD, WAITED_FOR])
def test_it_is_waited_for_until_it_is_let_go_of(word: int) -> None:
    words, looks = [7, word], 0

    def now() -> int:
        nonlocal looks
        looks += 1
        if looks == 5:
            words[1] = 0
        return 0

    WriterMutex(words, 1).spin(now)
    assert (words, looks) == ([7, 0], 5)


def test_not_for_longer_than_it_pays() -> None:
    moments = iter([1000, 1000 + SPIN_NS - 1, 1000 + SPIN_NS])
    WriterMutex([HELD], 0).spin(lambda: next(moments))
    assert list(moments) == []


@pytest.mark.parametrize("word", [0, DIED])
def test_what_nobody_has_is_not_waited_for(word: int) -> None:
    found = WriterMutex([word], 0)
    assert not found.is_held
    found.spin(lambda: pytest.fail("it is free"))


def test_it_may_not_be_seen(tmp_path: Path) -> None:
    """Where the library has it elsewhere, or the system has none of that kind."""
    path = tmp_path / "lock"
    path.write_bytes(bytes(mmap.PAGESIZE))
    store = open_store(tmp_path / "store", synchronous="off")
    assert isinstance(store, LmdbStore)
    assert find_writer_mutex(str(path), store._environment.begin) is None  # which nobody has mapped
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert find_writer_mutex(str(path), store._environment.begin) is None
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE):
        assert find_writer_mutex(str(path), store._environment.begin) is None
    assert find_writer_mutex(str(tmp_path / "store" / "lock.mdb"), store._environment.begin) is not None
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        find_writer_mutex(str(path), store._environment.begin)
    store.close()


def test_looking_for_it_lets_go_of_no_lock(store: LmdbStore, tmp_path: Path) -> None:
    """By a lock on the file LMDB knows that a process is there: else the next one to open the store makes the mutex
    anew, under who has it."""
    inode = (tmp_path / "store" / "lock.mdb").stat().st_ino

    def locks() -> list[str]:
        lines = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
        return [line.split(maxsplit=1)[1] for line in lines if f" {os.getpid()} " in line]

    def mapped() -> int:
        return sum(1 for line in Path("/proc/self/maps").read_text().splitlines() if f" {inode} " in line)

    had, maps = locks(), mapped()
    assert had
    for _ in range(3):
        assert find_writer_mutex(str(tmp_path / "store" / "lock.mdb"), store._environment.begin) is not None
    gc.collect()
    assert (locks(), mapped()) == (had, maps)
