"""A process that is stopped while it alone may open a store holds nobody up."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from instar.store import open_store
from instar.store.file_lock import locked
from instar.store.watch import is_stopped
from store.building import raw
from store.test_watch import wait_for

# Has the lock of the file at argv[1], and is stopped meanwhile.
STOPS_LOCKED = """
import os, signal, sys
from instar.store.file_lock import locked
with locked(os.open(sys.argv[1], os.O_RDONLY)):
    os.kill(os.getpid(), signal.SIGSTOP)
print("let go", flush=True)
sys.stdin.readline()
"""

# Commits, and is killed.
LEAVES_A_LOG = """
import os, signal, sys
from instar.store import open_store
from store.building import raw
store = open_store(sys.argv[1], synchronous="full")
for number in range(50):
    raw(store, (b"\\x03k%d" % number, b"kept"))
os.kill(os.getpid(), signal.SIGKILL)
"""

# Opens the store at argv[1], and is stopped when a part of the log is done again.
STOPS_IN_RECOVERY = """
import os, signal, sys
from instar.store import open_store, recovery
apply = recovery._apply
def stop_midway(*of_it):
    apply(*of_it)
    os.kill(os.getpid(), signal.SIGSTOP)
recovery._apply = stop_midway
store = open_store(sys.argv[1], synchronous="full", create=False)
print("open", flush=True)
sys.stdin.readline()
store.close()
"""

# Opens the store at argv[1], and is stopped in LMDB, which has the store's lock file for itself.
STOPS_IN_LMDB = """
import fcntl, lmdb, os, signal, sys
from instar.store import open_store
opens = lmdb.Environment
def stop_midway(path, **options):
    lock = os.open(os.path.join(path, "lock.mdb"), os.O_RDWR)
    fcntl.lockf(lock, fcntl.LOCK_EX, 1)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.close(lock)
    return opens(path, **options)
lmdb.Environment = stop_midway
store = open_store(sys.argv[1], create=False)
print("open", flush=True)
sys.stdin.readline()
store.close()
"""

# Opens the store at argv[1], and closes it.
OPENS = """
import sys
from instar.store import open_store
open_store(sys.argv[1], create=False).close()
"""


@contextmanager
def child(source: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    running = subprocess.Popen(
        [sys.executable, "-c", source, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened
    os.close(opened)


def test_who_is_stopped_goes_on_until_it_has_given_the_lock_up(tmp_path, file):
    with child(STOPS_LOCKED, tmp_path) as holder:
        wait_for(lambda: is_stopped(holder.pid))
        with locked(file):  # comes back
            wait_for(lambda: is_stopped(holder.pid))
        holder.send_signal(signal.SIGCONT)
        out, _ = holder.communicate("\n", timeout=20)
        assert (out, holder.returncode) == ("let go\n", 0)


def test_who_is_stopped_and_has_no_lock_is_left_alone(tmp_path, file):
    with child("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", tmp_path) as stranger:
        wait_for(lambda: is_stopped(stranger.pid))
        with child(STOPS_LOCKED, tmp_path) as holder:
            wait_for(lambda: is_stopped(holder.pid))
            with locked(file):
                assert is_stopped(stranger.pid)


def test_the_lock_is_free_again_after_an_error(tmp_path, file):
    with pytest.raises(ZeroDivisionError), locked(file):
        raise ZeroDivisionError
    other = os.open(tmp_path, os.O_RDONLY)
    with locked(other), pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_who_is_stopped_while_it_does_the_log_again(tmp_path):
    path = tmp_path / "store"
    with child(LEAVES_A_LOG, path) as writer:
        writer.wait(timeout=20)
    with child(STOPS_IN_RECOVERY, path) as first:
        wait_for(lambda: is_stopped(first.pid))
        store = open_store(path, synchronous="full", create=False)  # comes back
        with store.read() as reader:
            assert [reader.get(b"\x03k%d" % number) for number in range(50)] == [b"kept"] * 50
        raw(store, (b"\x03mine", b"1"))
        store.close()
        first.send_signal(signal.SIGCONT)
        first.communicate("\n", timeout=20)
        assert first.returncode == 0
    store = open_store(path, synchronous="full", create=False)
    with store.read() as reader:
        assert reader.get(b"\x03mine") == b"1"
    store.close()


def test_who_is_stopped_while_lmdb_opens_its_files(tmp_path):
    path = tmp_path / "store"
    open_store(path, synchronous="full").close()
    with child(STOPS_IN_LMDB, path) as first:
        wait_for(lambda: is_stopped(first.pid))
        with child(OPENS, path) as second:  # not this process: nothing would end its wait in LMDB
            assert second.wait(timeout=20) == 0
        wait_for(lambda: is_stopped(first.pid))
        first.send_signal(signal.SIGCONT)
        out, _ = first.communicate("\n", timeout=20)
        assert (out, first.returncode) == ("open\n", 0)
