"""A process that is stopped in the middle of a commit is let go on for as long as it takes to finish it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instar.store import open_store
from instar.store.engine import Section, Store
from instar.store.watch import is_stopped
from store.building import raw

KEY = b"\x03k"

# Opens the store at argv[1], says so, and once told enters the atomic section and is stopped there.
STOPS_INSIDE = """
import os, signal, sys
from instar.store import open_store
store = open_store(sys.argv[1], synchronous="off", create=False)

def step(section):
    section.put(b"\\x03k", b"before")
    os.kill(os.getpid(), signal.SIGSTOP)
    section.put(b"\\x03k", b"after")

print("open", flush=True)
sys.stdin.readline()
store.background([step])
print("done", flush=True)
sys.stdin.readline()
"""

# Stopped as well, but in no section of this store.
STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(tmp_path / "store", synchronous="off")
    yield made
    made.close()


def stopped_inside(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", STOPS_INSIDE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "open\n"
    child.stdin.write("\n")
    child.stdin.flush()
    wait_for(lambda: is_stopped(child.pid))
    return child


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def foreground(store: Store) -> None:
    raw(store, (b"\x03mine", b"1"))


def background(store: Store) -> None:
    def step(section: Section) -> None:
        section.put(b"\x03mine", b"1")

    store.background([step])


@pytest.mark.parametrize("write", [foreground, background])
def test_writers_go_on_and_the_process_stays_stopped(tmp_path, store, write):
    child = stopped_inside(tmp_path / "store")
    try:
        write(store)  # comes back
        with store.read() as reader:
            assert reader.get(b"\x03mine") == b"1"
            assert reader.get(KEY) == b"after"  # the section that it was stopped in is whole
        wait_for(lambda: is_stopped(child.pid))
        for _ in range(3):
            write(store)  # it is out, and stays so
        assert is_stopped(child.pid)
        child.send_signal(signal.SIGCONT)
        out, _ = child.communicate("\n", timeout=20)
        assert out == "done\n"
        assert child.returncode == 0
    finally:
        end(child)


def test_who_has_not_the_store_open_is_left_alone(tmp_path, store):
    stranger = subprocess.Popen([sys.executable, "-c", STOPS], text=True)
    child = stopped_inside(tmp_path / "store")
    try:
        wait_for(lambda: is_stopped(stranger.pid))
        # As if the number of a process that is gone had been given to the stranger.
        watch = store._environment.watch
        others = watch._others
        watch._others = lambda: [stranger.pid, *others()]
        foreground(store)
        assert is_stopped(stranger.pid)
    finally:
        end(child)
        end(stranger)


def test_one_process_alone_has_no_thread_for_it(store):
    foreground(store)
    assert not store._environment.watch._started


def test_the_dead_are_not_stopped():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not is_stopped(gone.pid)
    assert not is_stopped(os.getpid())
