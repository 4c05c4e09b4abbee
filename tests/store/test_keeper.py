"""The keeper: who it is, what it keeps, and that a checkpoint is made whatever becomes of it."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from instar.store import keeper, open_store, page_sync
from instar.store.keeper import Keeper
from instar.store.lmdb import LmdbStore
from instar.store.lmdb_environment import has_reader
from instar.store.lmdb_section import LmdbSection
from instar.store.page_sync import AT_ONCE
from instar.store.presence import KEEPER_BEAT, KEEPER_NEXT, KEEPER_PART, KEEPER_SLOT, WAL_END, WAL_NEEDED
from instar.store.recovery import frames_after
from instar.store.wal_format import CHECKPOINT_FILES, Checkpoint, read_checkpoint
from instar.store.watch import Watch, is_stopped
from store.building import contents, ended, in_child, raw

KEY = b"\x03\x01"
PATIENCE = 20.0


def opened(path: Path) -> tuple[LmdbStore, Keeper]:
    store = open_store(path)
    assert isinstance(store, LmdbStore)
    store.read().close()  # a forked child opens what it has inherited when it first needs it
    assert store._environment.keeper is not None
    return store, store._environment.keeper


def newest(path: Path) -> Checkpoint:
    files = [os.open(path / name, os.O_RDONLY) for name in CHECKPOINT_FILES]
    found = read_checkpoint(files)
    for file in files:
        os.close(file)
    assert found is not None
    return found


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it has not come about"
        time.sleep(0.01)


def writer(path: Path, commits: int, *, then: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """A child's work: it opens the store, commits, says so, and does what comes `then`."""

    def work() -> None:
        store, _keeper = opened(path)
        for number in range(commits):
            raw(store, (KEY + os.getpid().to_bytes(4, "big"), number.to_bytes(4, "big")))
        (path.parent / str(os.getpid())).touch()
        then()
        store.close()

    return work


def started(path: Path, work: Callable[[], None]) -> int:
    child = in_child(work)
    wait_until((path.parent / str(child)).exists)
    return child


def killed(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def slot_of(store: LmdbStore) -> int:
    return store._presence.this_slot()[0] + 1


def keeper_slot(store: LmdbStore) -> int:
    return store._presence.shared_words[KEEPER_SLOT]


def woken(store: LmdbStore, child: int) -> None:
    """The process that was relieved has been let go on until it had let go, and is stopped again."""
    wait_until(lambda: not has_reader(store._environment._environment, child))
    wait_until(lambda: is_stopped(child))


def test_whoever_writes_first_is_the_keeper_until_it_closes(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store, kept = opened(path)
    assert not kept.is_kept()
    raw(store, (KEY, b"1"))
    assert kept.is_kept()
    assert keeper_slot(store) == slot_of(store)
    child = started(path, writer(path, 3))
    assert ended(child) == 0
    assert keeper_slot(store) == slot_of(store)
    store.close()
    transaction = newest(path).transaction
    store, kept = opened(path)
    assert not kept.is_kept()
    assert newest(path).transaction == transaction  # nothing had to be done again
    store.close()


def test_a_checkpoint_is_made_a_second_after_the_last_commit(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store, _kept = opened(path)
    raw(store, (KEY, b"1"))
    made = newest(path)
    raw(store, (KEY, b"2"))
    wait_until(lambda: newest(path).transaction == made.transaction + 2)
    words = store._presence.shared_words
    wait_until(lambda: words[WAL_NEEDED] == newest(path).position)
    sequence = newest(path).sequence
    time.sleep(0.3)
    assert newest(path).sequence == sequence  # nor again while nothing happens
    store.close()


def test_the_next_writer_is_the_keeper_when_the_keeper_closes(tmp_path: Path) -> None:
    path = tmp_path / "db"
    first = started(path, writer(path, 3, then=lambda: time.sleep(0.3)))
    store, kept = opened(path)
    assert keeper_slot(store) != slot_of(store)
    assert ended(first) == 0
    assert not kept.is_kept()
    raw(store, (KEY, b"1"))
    assert keeper_slot(store) == slot_of(store)
    store.close()


def test_a_killed_keeper_is_replaced_and_its_pages_are_kept_till_then(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store, _ = opened(path)
    child = started(path, writer(path, 3, then=signal.pause))
    raw(store, (KEY, b"1"))
    taken = keeper_slot(store)
    assert taken != slot_of(store)
    made = newest(path)
    killed(child)
    pages = pages_in_use(store)
    raw(store, (KEY, b"2"))
    assert pages_in_use(store) >= pages  # LMDB's table of readers still has the one that was killed
    wait_until(lambda: keeper_slot(store) == slot_of(store))
    wait_until(lambda: newest(path).sequence > made.sequence)
    store.close()


def pages_in_use(store: LmdbStore) -> int:
    return int(store._environment._environment.info()["last_pgno"])


@pytest.mark.parametrize("cleared", ["by a collector", "by nobody"])
def test_the_next_writer_takes_the_place_of_a_killed_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleared: str
) -> None:
    """Before it writes: LMDB may have cleared its table of readers."""
    path = tmp_path / "db"
    child = started(path, writer(path, 3, then=signal.pause))
    monkeypatch.setattr(keeper, "_BUSY_SECONDS", 1000.0)  # so that no thread comes first
    monkeypatch.setattr(keeper, "_IDLE_SECONDS", 1000.0)
    store, _kept = opened(path)
    raw(store, (KEY, b"1"))
    made = newest(path)
    assert keeper_slot(store) != slot_of(store)
    killed(child)
    if cleared == "by a collector":
        store._environment.check_readers()
    else:
        raw(store, (KEY, b"2"))
    assert keeper_slot(store) == slot_of(store)
    assert newest(path).sequence == made.sequence + 1
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_keepers_that_are_killed_in_the_section(tmp_path: Path, seed: int) -> None:
    """LMDB clears its table of readers when it takes their mutex; then all are killed, and the log is done again."""
    path = tmp_path / "db"
    draw = random.Random(seed)
    known: dict[bytes, bytes] = {}
    for _ in range(8):
        children = [in_child(partial(_write_for_ever, path, number)) for number in range(3)]
        for child in draw.sample(children, 3):
            time.sleep(draw.uniform(0.02, 0.15))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        store, _kept = opened(path)
        stored = contents(store, KEY, KEY + b"\xff")
        assert all(int.from_bytes(stored[key]) >= int.from_bytes(value) for key, value in known.items())
        known = stored
        store.close()


def _write_for_ever(path: Path, number: int) -> None:
    store = open_store(path)
    for turn in itertools.count():
        raw(store, (KEY + bytes([number, turn % 200]), time.time_ns().to_bytes(8)), (KEY + bytes([number]), b""))


def test_a_stopped_keeper_is_relieved_and_does_no_harm_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_STOPPED_NS", 300_000_000)
    path = tmp_path / "db"
    child = started(path, writer(path, 3, then=lambda: time.sleep(2.0)))
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    store, _kept = opened(path)
    raw(store, (KEY, b"1"))
    wait_until(lambda: keeper_slot(store) == slot_of(store))
    sequence = newest(path).sequence
    woken(store, child)
    os.kill(child, signal.SIGCONT)
    assert ended(child) == 0
    assert keeper_slot(store) == slot_of(store)
    assert newest(path).sequence >= sequence
    raw(store, (KEY, b"2"))
    stored = contents(store)
    store.close()
    again, _kept = opened(path)
    assert contents(again) == stored
    again.close()


@pytest.mark.parametrize("moment", ["_sync_since", "_record", "_keep"])
def test_a_keeper_that_is_stopped_in_the_middle_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another one makes several meanwhile; then it goes on with its own, which must not take a newer one's place."""
    monkeypatch.setattr(keeper, "_STOPPED_NS", 300_000_000)
    monkeypatch.setattr(Watch, "wake", lambda *_: None)  # it would go on at once
    path = tmp_path / "db"

    def stop_then(done: Callable[..., object]) -> Callable[..., object]:
        def stopped(*arguments: object) -> object:
            monkeypatch.setattr(Keeper, moment, done)
            os.kill(os.getpid(), signal.SIGSTOP)
            return done(*arguments)

        return stopped

    def stop_in_the_middle() -> None:
        store, kept = opened(path)
        raw(store, (KEY, b"1"))
        monkeypatch.setattr(Keeper, moment, stop_then(getattr(Keeper, moment)))
        (path.parent / str(os.getpid())).touch()
        kept.checkpoint()
        store.close()

    child = started(path, stop_in_the_middle)
    os.waitpid(child, os.WUNTRACED)
    store, kept = opened(path)
    raw(store, (KEY, b"2"))
    wait_until(lambda: keeper_slot(store) == slot_of(store))
    for number in range(4):
        raw(store, (KEY, bytes([number])))
        kept.checkpoint()
    made = newest(path)
    os.kill(child, signal.SIGCONT)
    assert ended(child) == 0
    assert newest(path).sequence >= made.sequence
    stored = contents(store)
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    store.close()
    again, _kept = opened(path)
    assert contents(again) == stored
    again.close()


@pytest.mark.parametrize("delay_seconds", [0, 0.4])
def test_a_stopped_keeper_does_not_make_the_data_file_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay_seconds: float
) -> None:
    """It is woken when it is relieved until it has let go of the pages that it keeps, which may take it a while."""
    monkeypatch.setattr(keeper, "_STOPPED_NS", 300_000_000)
    path = tmp_path / "db"
    tend = Keeper._tend

    def tend_late(kept: Keeper) -> bool:
        time.sleep(delay_seconds)
        return tend(kept)

    def write_late() -> None:
        monkeypatch.setattr(Keeper, "_tend", tend_late)
        writer(path, 3, then=signal.pause)()

    child = started(path, write_late)
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    store, kept = opened(path)
    raw(store, (KEY, b"1"))
    wait_until(lambda: keeper_slot(store) == slot_of(store))
    woken(store, child)
    for number in range(1000):
        raw(store, (KEY + (number % 50).to_bytes(2, "big"), os.urandom(500)))
        if number % 100 == 99:
            kept.checkpoint()
    assert kept._data.used() < 8 << 20
    killed(child)
    store.close()


def test_a_store_that_is_left_open_is_closed_when_the_interpreter_ends(tmp_path: Path) -> None:
    program = f"""
import atexit, instar
connection = instar.connect({str(tmp_path / "db")!r}, autocommit=True)
atexit.register(connection.close)
connection.execute("CREATE TABLE t (a int)")
instar.connect({str(tmp_path / "other")!r}, autocommit=True).execute("CREATE TABLE t (a int)")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    for name in ("db", "other"):
        assert next(frames_after(str(tmp_path / name), newest(tmp_path / name)), None) is None


def test_who_loses_its_read_in_the_middle_of_a_checkpoint_keeps_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: tuple[LmdbStore, Keeper]
) -> None:
    """LMDB's environment is opened anew, and another thread commits, before the checkpoint is on disk."""
    (store, kept), path = quiet, tmp_path / "db"
    record = Keeper._record

    def record_and_lose(keeper: Keeper, made: Checkpoint, lost: int) -> int | None:
        file = record(keeper, made, lost)
        monkeypatch.undo()
        raw(store, (KEY, b"2"))
        kept.lose()
        raw(store, (KEY, b"3"))
        return file

    monkeypatch.setattr(Keeper, "_record", record_and_lose)
    kept.checkpoint()
    assert kept._made == newest(path)
    assert kept._pin.id() == newest(path).transaction


def test_reads_end_after_a_checkpoint_has_written_what_they_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: tuple[LmdbStore, Keeper]
) -> None:
    """It writes a page once more, outside of the section: by then the page is not to be another one."""
    (store, kept), path = quiet, tmp_path / "db"
    sync_since = Keeper._sync_since
    writes, written = threading.Event(), threading.Event()

    def waits(keeper: Keeper, *states: Any) -> None:
        writes.set()
        assert written.wait(PATIENCE)
        sync_since(keeper, *states)

    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "_sync_since", waits)
        making = threading.Thread(target=kept.checkpoint)
        making.start()
        assert writes.wait(PATIENCE)
        losing = threading.Thread(target=kept.lose)
        losing.start()
        losing.join(0.05)
        assert losing.is_alive()
        written.set()
        losing.join(PATIENCE)
        making.join(PATIENCE)
    assert not losing.is_alive()
    assert not making.is_alive()
    raw(store, (KEY, b"2"))
    assert kept._pin.id() == newest(path).transaction


def test_a_checkpoint_that_has_lost_its_read_already_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: tuple[LmdbStore, Keeper]
) -> None:
    (store, kept), path = quiet, tmp_path / "db"
    before, sync, wrote = newest(path), Keeper._sync, []

    def loses(keeper: Keeper, file: int) -> None:
        sync(keeper, file)
        keeper.lose()

    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "_sync", loses)
        patched.setattr(Keeper, "_sync_since", lambda *states: wrote.append(states))
        kept.checkpoint()
    assert wrote == []
    assert newest(path) == before
    raw(store, (KEY, b"2"))


@pytest.mark.parametrize("place", ["_write", "_keep"])
def test_who_loses_its_read_as_it_becomes_the_keeper_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, quiet: tuple[LmdbStore, Keeper]
) -> None:
    """While it writes a checkpoint down, or takes the place of nobody."""
    (store, kept), path = quiet, tmp_path / "db"
    done = getattr(Keeper, place)

    def loses(keeper: Keeper, *arguments: Any) -> Any:
        found = done(keeper, *arguments)
        if not lost:
            lost.append(True)
            keeper.lose()
        return found

    lost: list[bool] = []
    monkeypatch.setattr(Keeper, place, loses)
    if place == "_keep":
        kept.lose()
        raw(store, (KEY, b"2"))
    else:
        kept.checkpoint()
        assert not kept.is_kept()
    assert lost
    raw(store, (KEY, b"3"))
    assert kept.is_kept()
    assert kept._pin.id() == newest(path).transaction


def as_worker(path: Path) -> Callable[[], None]:
    """A child's work: it opens the store as a worker, writes once, and waits."""

    def work() -> None:
        store, _kept = opened(path)
        store.announce_worker(True)
        raw(store, (KEY, b"1"))
        (path.parent / str(os.getpid())).touch()
        signal.pause()

    return work


def test_a_worker_is_the_keeper_in_the_place_of_others_while_it_keeps_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nobody's process that has to answer; but its priority is low. This one is stopped, and finds in time that
    it is the keeper no more."""
    monkeypatch.setattr(keeper, "LOG_BYTES", 1 << 14)
    path = tmp_path / "db"
    store, kept = opened(path)
    raw(store, (KEY, b"2"))
    assert keeper_slot(store) == slot_of(store)
    child = started(path, as_worker(path))
    raw(store, (KEY, b"3"))
    wait_until(lambda: keeper_slot(store) not in (0, slot_of(store)))
    wait_until(lambda: kept._pin is None)
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    raw(store, (KEY, bytes(3 << 14)))  # three checkpoints are due
    time.sleep(0.3)
    assert keeper_slot(store) != slot_of(store)
    raw(store, (KEY, bytes(3 << 14)))
    wait_until(lambda: keeper_slot(store) == slot_of(store))
    woken(store, child)
    os.kill(child, signal.SIGCONT)
    raw(store, (KEY, b"4"))
    time.sleep(0.3)
    assert keeper_slot(store) == slot_of(store)  # not again for a minute
    killed(child)
    store.close()


def test_a_worker_that_was_relieved_long_ago_is_the_keeper_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    child = started(path, writer(path, 3, then=signal.pause))
    store, kept = opened(path)
    store.announce_worker(True)
    kept._relieved_ns = kept._monotonic_ns()
    raw(store, (KEY, b"1"))
    time.sleep(0.3)
    assert keeper_slot(store) != slot_of(store)
    kept._relieved_ns -= keeper._RELIEVED_NS
    wait_until(lambda: keeper_slot(store) == slot_of(store))
    killed(child)
    store.close()


def test_a_keeper_begins_no_checkpoint_while_another_takes_its_place(quiet: tuple[LmdbStore, Keeper]) -> None:
    """For a second: whoever wanted to may be gone."""
    store, kept = quiet
    raw(store, (KEY, bytes(1 << 19)))
    made = newest(Path(store._environment.path)).sequence
    words = store._presence.shared_words
    words[KEEPER_NEXT] = kept._monotonic_ns()
    assert kept._tend()
    assert newest(Path(store._environment.path)).sequence == made
    words[KEEPER_NEXT] -= keeper._NEXT_NS
    assert kept._tend()
    assert newest(Path(store._environment.path)).sequence == made + 1


def test_a_worker_that_is_too_slow_to_take_over_leaves_it_for_a_while(
    beside_a_keeper: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = beside_a_keeper
    words, record, asked = store._presence.shared_words, kept._record, list[int]()

    def too_late(made: Checkpoint, lost: int) -> int | None:
        asked.append(words[KEEPER_NEXT])
        return None  # as if the keeper had made one meanwhile

    monkeypatch.setattr(kept, "_record", too_late)
    for _ in range(5):
        assert kept._tend()
    assert len(asked) == keeper._MOST_TRIED
    assert 0 < asked[0] < asked[-1] <= kept._monotonic_ns()
    monkeypatch.setattr(kept, "_record", record)
    kept._relieved_ns -= keeper._RELIEVED_NS
    kept._tend()
    assert keeper_slot(store) == slot_of(store)
    assert words[KEEPER_NEXT] == 0  # nobody comes next


def test_a_worker_that_fails_to_take_over_leaves_the_keeper_alone(
    beside_a_keeper: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, it would again: the keeper would begin no checkpoint for ever."""
    store, kept = beside_a_keeper
    asked: list[int] = []

    def full() -> Any:
        asked.append(store._presence.shared_words[KEEPER_NEXT])
        raise lmdb.ReadersFullError("full")

    monkeypatch.setattr(kept, "_begin_read", full)
    with pytest.raises(lmdb.ReadersFullError):
        kept._tend()
    assert store._presence.shared_words[KEEPER_NEXT] == 0
    kept._tend()
    assert len(asked) == 1
    assert asked[0] > 0


def test_who_was_relieved_is_let_go_on_however_late_it_is_stopped(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it reads no more, but not for ever: it may be within a read of its own."""
    store, kept = quiet
    raw(store, (KEY, b"1"))
    reads, woken = [True, True, False, True], list[int]()

    def wake(pid: int) -> bool:
        woken.append(pid)
        return not reads.pop(0)

    monkeypatch.setattr(kept, "_wake", wake)
    now = kept._monotonic_ns()
    monkeypatch.setattr(kept, "_monotonic_ns", lambda: now)
    kept._relieved = 7, now + keeper._LETTING_GO_NS
    for _ in range(5):
        kept._tend()
    assert woken == [7, 7, 7]
    kept._relieved = 8, now + keeper._LETTING_GO_NS
    kept._tend()
    now += keeper._LETTING_GO_NS
    kept._tend()
    assert woken == [7, 7, 7, 8]


@pytest.mark.parametrize("worker", [False, True])
def test_on_a_tight_disk_no_worker_is_the_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: bool) -> None:
    """There the file is not to grow, and checkpoints are not to wait."""
    path = tmp_path / "db"
    child = started(path, as_worker(path) if not worker else writer(path, 3, then=signal.pause))
    store, kept = opened(path)
    raw(store, (KEY, b"1"))
    if worker:
        store.announce_worker(True)
    monkeypatch.setattr(os, "fstatvfs", lambda _file: Room(10))
    assert kept._is_to_be_relieved(1) is not worker
    store._presence.shared_words[KEEPER_NEXT] = kept._monotonic_ns()
    assert kept._is_due(1 << 16, kept._monotonic_ns())
    killed(child)
    store.close()


def test_one_large_transaction_is_no_reason_to_relieve_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    child = started(path, as_worker(path))
    store, kept = opened(path)
    raw(store, (KEY, b"1"))
    now, much = kept._monotonic_ns(), keeper._BEHIND * keeper.LOG_BYTES + 1
    words = store._presence.shared_words
    monkeypatch.setattr(kept, "_monotonic_ns", lambda: now)
    words[KEEPER_BEAT] = now
    assert not kept._is_to_be_relieved(much)
    now += keeper._BEHIND_NS - 1
    assert not kept._is_to_be_relieved(much)
    words[WAL_NEEDED] += 1  # a checkpoint was made
    now += 2
    assert not kept._is_to_be_relieved(much)
    now += keeper._BEHIND_NS
    assert kept._is_to_be_relieved(much)
    assert not kept._is_to_be_relieved(much - 1)
    killed(child)
    store.close()


def test_who_is_relieved_while_it_closes_leaves_it_to_that_one(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = quiet
    raw(store, (KEY, b"1"))
    words, done = store._presence.shared_words, list[int]()
    own = words[KEEPER_SLOT]

    def relieved() -> None:
        done.append(words[KEEPER_SLOT])
        words[KEEPER_SLOT] = own + 1

    monkeypatch.setattr(kept, "checkpoint", relieved)
    raw(store, (KEY, bytes(1 << 17)))
    kept._resign()
    assert done == [own]
    assert words[KEEPER_SLOT] == own + 1
    monkeypatch.undo()
    words[KEEPER_SLOT] = own


def test_two_workers_leave_it_as_it_is(tmp_path: Path) -> None:
    """One of them has not noticed yet that the other has taken its place."""
    path = tmp_path / "db"
    child = started(path, as_worker(path))
    store, kept = opened(path)
    store.announce_worker(True)
    raw(store, (KEY, b"3"))
    assert not kept._is_to_be_relieved(1 << 40)
    killed(child)
    store.close()


def test_a_worker_that_takes_over_leaves_the_disk_to_commits(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = quiet
    raw(store, (KEY, b"1"))
    done: list[float] = []
    monkeypatch.setattr(kept._stopped, "wait", done.append)
    words = store._presence.shared_words
    own, words[KEEPER_SLOT] = words[KEEPER_SLOT], 0
    kept._rest(kept._lost, False, kept._log.end, kept._monotonic_ns(), 0.001)
    assert done == []
    store.announce_worker(True)
    kept._rest(kept._lost, False, kept._log.end, kept._monotonic_ns(), 0.001)
    assert done == [0.003]
    words[KEEPER_SLOT] = own


def test_who_closes_leaves_little_to_be_done_while_all_others_wait(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others commit on while a checkpoint is made."""
    store, kept = quiet
    raw(store, (KEY, b"1"))
    meanwhile = [bytes(100_000), bytes(50_000), b"little"]
    checkpoint = kept.checkpoint

    def noted() -> None:
        checkpoint()
        raw(store, (KEY, meanwhile.pop(0)))

    monkeypatch.setattr(kept, "checkpoint", noted)
    kept._resign()
    assert meanwhile == []
    assert keeper_slot(store) == 0
    raw(store, (KEY, b"2"))
    meanwhile += [bytes(100_000)] * 5
    kept._resign()
    assert len(meanwhile) == 1  # nobody goes on for ever


def test_a_forked_child_leaves_the_keeper_what_it_keeps(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store, _kept = opened(path)
    raw(store, (KEY, b"1"))
    readers = str(store._environment._environment.readers())

    def work() -> None:
        raw(store, (KEY, b"2"))
        store.close()

    assert ended(in_child(work)) == 0
    assert keeper_slot(store) == slot_of(store)
    assert str(store._environment._environment.readers()).splitlines()[1] in readers
    raw(store, (KEY, b"3"))
    store.close()


def test_the_data_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are used again once a checkpoint does not need them."""
    monkeypatch.setattr(keeper, "LOG_BYTES", 1 << 14)
    path = tmp_path / "db"
    store, kept = opened(path)
    for number in range(1500):
        raw(store, (KEY + (number % 50).to_bytes(2, "big"), os.urandom(500)))
        if number % 100 == 99:
            kept.checkpoint()
    assert kept._data.used() < 8 << 20
    store.close()


def test_the_beat_is_seen(tmp_path: Path) -> None:
    store, _kept = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    words = store._presence.shared_words
    beat = words[KEEPER_BEAT]
    wait_until(lambda: words[KEEPER_BEAT] > beat)
    store.close()


def test_a_checkpoint_is_on_disk_before_its_maker_is_the_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was the keeper then lets go of the one before."""
    path = tmp_path / "db"
    child = started(path, writer(path, 1, then=partial(time.sleep, 60)))
    store, kept = opened(path)
    done: list[str] = []

    def noted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def note(*arguments: object) -> object:
            done.append(name)
            return call(*arguments)

        return note

    monkeypatch.setattr(kept, "_write", noted("written", kept._write))
    monkeypatch.setattr(kept, "_sync", noted("synced", kept._sync))
    monkeypatch.setattr(kept, "_be_keeper", noted("keeper", kept._be_keeper))
    assert keeper_slot(store) != slot_of(store)
    kept.checkpoint()
    assert keeper_slot(store) == slot_of(store)
    assert done[done.index("written") :][:3] == ["written", "synced", "keeper"]
    os.kill(child, signal.SIGKILL)
    ended(child)
    store.close()


def test_a_keeper_that_goes_while_another_is_in_the_section_is_replaced_before_lmdb_writes(tmp_path: Path) -> None:
    store, kept = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    made = newest(tmp_path / "db")
    section = store._begin()
    section.put(KEY, b"2")
    kept.lose()
    section.commit()
    assert keeper_slot(store) == slot_of(store)
    assert newest(tmp_path / "db").sequence > made.sequence
    store.close()


def test_the_keeper_goes_on_after_lmdb_had_no_room_for_its_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    store, kept = opened(path)
    raw(store, (KEY, b"1"))
    refused: list[None] = []
    begin_read = kept._begin_read

    def refuse_first() -> object:
        if refused:
            return begin_read()
        refused.append(None)
        raise lmdb.ReadersFullError("no room")

    monkeypatch.setattr(kept, "_begin_read", refuse_first)
    raw(store, (KEY, b"2"))
    sequence = newest(path).sequence
    wait_until(lambda: refused and newest(path).sequence > sequence)
    store.close()


def test_a_thread_that_finds_it_is_not_the_keeper_keeps_what_another_has_begun_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    kept.lose()
    found, tending = threading.Event(), threading.current_thread()
    is_keeper = kept._is_keeper

    def find() -> bool:
        answer = is_keeper()
        if threading.current_thread() is tending and not found.is_set():
            found.set()
            other.join(0.5)
        return answer

    def commit() -> None:
        found.wait()
        raw(store, (KEY, b"2"))

    other = threading.Thread(target=commit)
    other.start()
    monkeypatch.setattr(kept, "_is_keeper", find)
    kept._stopped.set()  # this thread is in the place of its own
    kept._tend()
    other.join()
    assert is_keeper()
    assert kept._pin is not None
    store.close()


@pytest.mark.parametrize(
    ("grown", "seconds", "due"),
    [(100, 0.9, False), (100, 1.0, True), (keeper.LOG_BYTES, 0.1, True), (0, 5.0, False)],
)
def test_when_a_checkpoint_is_due(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch, grown: int, seconds: float, due: bool
) -> None:
    """And what else is done while the log grows."""
    store, kept = quiet
    kept.checkpoint()
    if grown:
        raw(store, (KEY, bytes(grown)))
    done: list[tuple[object, ...]] = []
    for name in ("_write_back", "_cache_ahead", "checkpoint"):
        monkeypatch.setattr(kept, name, noted(done, name, lambda *_now: None))
    now = kept._made_ns + int(seconds * 1e9)
    monkeypatch.setattr(kept, "_monotonic_ns", lambda: now)
    assert kept._tend() == (grown > 0)
    always = [("_write_back",), ("_cache_ahead",)] if grown else []
    assert done == always + [("checkpoint",)] * due
    assert store._presence.shared_words[KEEPER_BEAT] == now


def test_the_file_is_written_back_part_by_part_before_the_system_does_all_at_once(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keeper._PARTS * keeper._PART_NS < 30e9 - 2 * keeper._MOST_LATE_NS  # dirty_expire_centisecs
    store, kept = quiet
    raw(store, (KEY, bytes(1_000_000)))
    monkeypatch.setattr(keeper, "_PARTS", 7)
    ranges: list[tuple[int, int]] = []

    def note(file: int, begin: int, size: int, *, wait: bool = False) -> None:
        assert (file, wait) == (kept._data.number, True)
        ranges.append((begin, begin + size))

    monkeypatch.setattr(keeper, "write_out", note)
    now = itertools.count(kept._part_ns, keeper._PART_NS)
    for _ in range(7):
        kept._write_back(next(now))
    once = sorted(ranges)
    ends = [0, *itertools.accumulate((end for _begin, end in once), max)]
    assert all(begin <= end for (begin, _), end in zip(once, ends, strict=False))  # no gap
    assert ends[-1] >= kept._data.size()
    assert max(end - begin for begin, end in once) <= AT_ONCE * kept._data.page_bytes
    assert sum(end - begin for begin, end in once) < kept._data.size() + 7 * AT_ONCE * kept._data.page_bytes
    for _ in range(7):
        kept._write_back(at := next(now))
        kept._write_back(at + 1)  # not yet the next part
    assert sorted(ranges) == sorted(once * 2)
    # Another goes on where one has stopped. What was late is made up for.
    words = store._presence.shared_words
    last, words[KEEPER_PART] = words[KEEPER_PART], 3
    ranges.clear()
    late = next(now) + 3 * keeper._PART_NS
    for _ in range(5):
        kept._write_back(late)
    assert words[KEEPER_PART] == (3 + 4) % 7
    assert min(ranges)[0] == 0
    assert max(ranges)[1] >= kept._data.size()
    words[KEEPER_PART] = last
    now = itertools.count(late + keeper._PART_NS)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(keeper, "write_out", refuse)
    kept._write_back(next(now))  # whoever relies on what cannot be written is told by its own call


def test_a_checkpoint_rests_between_its_pages_unless_the_log_grows_meanwhile(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = quiet
    path, rests = Path(store._environment.path), list[float]()
    monkeypatch.setattr(kept._stopped, "wait", rests.append)
    monkeypatch.setattr(keeper, "_RESTS", 1e6)  # of any time: the longest
    made = newest(path)
    raw(store, *((KEY + bytes([number]), bytes(3000)) for number in range(200)))
    kept.checkpoint()
    assert newest(path).sequence == made.sequence + 1
    assert len(rests) > 200 / AT_ONCE * 3000 / 4096
    assert {*rests} == {keeper._LONGEST_REST}


@pytest.mark.parametrize(
    ("grown", "seconds", "room", "rests"),
    [
        (0, 0.0, keeper._TIGHT_BYTES, True),
        (keeper._MOST_GROWTH - 1, 0.9, 1 << 40, True),
        (keeper._MOST_GROWTH, 0.0, 1 << 40, False),
        (0, 1.0, 1 << 40, False),
        (0, 0.0, keeper._TIGHT_BYTES - 4096, False),
    ],
)
def test_when_a_checkpoint_rests(
    quiet: tuple[LmdbStore, Keeper],
    monkeypatch: pytest.MonkeyPatch,
    grown: int,
    seconds: float,
    room: int,
    rests: bool,
) -> None:
    """Not where the log has grown much, or much time has passed since it began, or the file is not to grow."""
    store, kept = quiet
    done: list[float | str] = []
    monkeypatch.setattr(kept._stopped, "wait", done.append)
    monkeypatch.setattr(kept, "_write_back", lambda _now: done.append("written back"))
    monkeypatch.setattr(kept, "_monotonic_ns", lambda: 10**15 + int(seconds * 1e9))
    monkeypatch.setattr(os, "fstatvfs", lambda _file: Room(room // 4096))
    begun = kept._log.end
    store._presence.shared_words[WAL_END] = begun + grown
    kept._rest(kept._lost, True, begun, 10**15, 0.002)
    store._presence.shared_words[WAL_END] = begun
    assert done == ["written back", 0.006][: 1 + rests]
    assert store._presence.shared_words[KEEPER_BEAT] == 10**15 + int(seconds * 1e9)  # it lives


class Room:
    """What a file system says: so many blocks of a page are free."""

    f_frsize = 4096

    def __init__(self, blocks: int) -> None:
        self.f_bavail = blocks


def test_on_a_tight_disk_checkpoints_come_sooner(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    _store, kept = quiet
    assert kept._due_bytes() == keeper.LOG_BYTES
    monkeypatch.setattr(os, "fstatvfs", lambda _file: Room(10))
    assert kept._due_bytes() == 1 << 16


def test_whoever_is_to_become_the_keeper_does_not_rest_and_who_is_it_no_more_gives_up(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = quiet
    raw(store, (KEY, bytes(100_000)))
    made = newest(Path(store._environment.path))
    done: list[float] = []
    monkeypatch.setattr(kept._stopped, "wait", done.append)
    words = store._presence.shared_words
    own, beat = words[KEEPER_SLOT], words[KEEPER_BEAT]
    words[KEEPER_SLOT] = 0
    kept._rest(kept._lost, False, kept._log.end, kept._monotonic_ns(), 0.001)
    assert done == []
    assert words[KEEPER_BEAT] == beat  # another's
    words[KEEPER_SLOT] = own
    monkeypatch.setattr(keeper, "sync_pages", relieved_meanwhile(words))
    pins = kept._pin
    kept.checkpoint()
    assert newest(Path(store._environment.path)).sequence == made.sequence
    assert kept._pin is pins  # which `_tend` lets go of
    words[KEEPER_SLOT] = own


def relieved_meanwhile(words: Any) -> Callable[..., None]:
    def sync(*_arguments: object, rest: Callable[[float], object], **_options: object) -> None:
        words[KEEPER_SLOT] = 0
        rest(0.001)
        raise AssertionError("it goes on")

    return sync


def test_nobody_rests_in_the_atomic_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the place of a killed keeper is in it, and who closes the store, at the end."""
    path = tmp_path / "db"
    child = started(path, writer(path, 3, then=signal.pause))
    monkeypatch.setattr(keeper, "_BUSY_SECONDS", 1000.0)  # so that no thread comes first
    monkeypatch.setattr(keeper, "_IDLE_SECONDS", 1000.0)
    asked: list[bool] = []
    sync = keeper.sync_pages

    def noted(*arguments: Any, rest: Callable[[float], object], **options: Any) -> None:
        asked.append(isinstance(rest, partial))
        rest(0.0)
        sync(*arguments, rest=rest, **options)

    monkeypatch.setattr(keeper, "sync_pages", noted)
    store, kept = opened(path)
    raw(store, (KEY, b"1"))
    killed(child)
    raw(store, (KEY, b"2"))
    assert keeper_slot(store) == slot_of(store)
    assert asked == [False]
    checkpoint = kept.checkpoint
    monkeypatch.setattr(kept, "checkpoint", lambda: (checkpoint(), raw(store, (KEY, b"3"))))
    kept._resign()
    assert asked == [False, True, False]
    store.close()


def test_a_keeper_that_is_stopped_while_it_rests_lets_go_when_it_is_relieved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is let go on for a second, and has more pages to write than it could in that."""
    monkeypatch.setattr(keeper, "_STOPPED_NS", 300_000_000)
    path = tmp_path / "db"
    rest, write_out = Keeper._rest, page_sync.write_out

    def stopped(kept: Keeper, *arguments: Any) -> None:
        monkeypatch.setattr(Keeper, "_rest", rest)
        os.kill(os.getpid(), signal.SIGSTOP)
        rest(kept, *arguments)

    def slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(0.05)
        write_out(*arguments, **options)

    def stop_while_resting() -> None:
        monkeypatch.setattr(keeper, "LOG_BYTES", 1 << 40)  # so that its thread makes none
        monkeypatch.setattr(keeper, "AGE_NS", 1 << 60)
        store, kept = opened(path)
        monkeypatch.setattr(page_sync, "write_out", slowly)
        monkeypatch.setattr(Keeper, "_rest", stopped)
        for number in range(400):
            raw(store, (KEY + number.to_bytes(2), bytes(3000)))
        (path.parent / str(os.getpid())).touch()
        kept.checkpoint()
        signal.pause()

    child = in_child(stop_while_resting)
    os.waitpid(child, os.WUNTRACED)
    store, _kept = opened(path)
    raw(store, (KEY, b"2"))
    wait_until(lambda: keeper_slot(store) == slot_of(store))
    woken(store, child)
    killed(child)
    store.close()


class Part:
    """In place of the data file: so much in use, so much there; what is done with it, and whether in the section."""

    def __init__(self, used: int, size: int) -> None:
        self.used = lambda: used
        self.size = lambda: size
        self.done: list[tuple[object, ...]] = []
        self.failed: OSError | None = None

    def extend(self, end: int) -> None:
        self.done.append(("extended", end))
        if self.failed is not None:
            raise self.failed

    def cache_pages(self, begin: int, end: int) -> None:
        self.done.append(("cached", begin, end))


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[tuple[LmdbStore, Keeper]]:
    """A store whose keeper does what it is told, and nothing by itself."""
    store, kept = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    kept._stopped.set()
    assert kept._thread is not None
    kept._thread.join()
    yield store, kept
    store.close()


@pytest.fixture
def beside_a_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LmdbStore, Keeper]]:
    """A worker's store, whose keeper does what it is told, while another process is the keeper."""
    monkeypatch.setattr(keeper, "_BUSY_SECONDS", 1000.0)
    monkeypatch.setattr(keeper, "_IDLE_SECONDS", 1000.0)
    path = tmp_path / "db"
    child = started(path, writer(path, 3, then=signal.pause))
    store, kept = opened(path)
    store.announce_worker(True)
    raw(store, (KEY, b"1"))
    yield store, kept
    killed(child)
    store.close()


def noted(done: list[tuple[object, ...]], what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def note(*arguments: object) -> object:
        done.append((what,))
        return call(*arguments)

    return note


@pytest.mark.parametrize(
    ("used", "size", "end"),
    [
        (100, 100, 100 + 512),  # KiB
        (100, 100 + 255, 100 + 512),
        (100, 100 + 256, None),
        (1000, 1000, 3000),
        (1000, 1996, 3000),
        (1000, 2000, None),
        (1 << 17, 1 << 17, (1 << 17) + (32 << 10)),
        (1 << 17, (1 << 17) + (16 << 10), None),
    ],
)
def test_how_far_the_data_file_goes_ahead_of_the_data(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch, used: int, size: int, end: int | None
) -> None:
    """By as much as is in use at least, and by twice that when it has to be made longer; within the section, for others
    may write behind its end. What is read is read outside of it."""
    _store, kept = quiet
    part = Part(used << 10, size << 10)
    monkeypatch.setattr(kept, "_data", part)
    monkeypatch.setattr(kept, "_enter", noted(part.done, "entered", kept._enter))
    monkeypatch.setattr(LmdbSection, "abort", noted(part.done, "left", LmdbSection.abort))
    kept._cache_ahead()
    monkeypatch.undo()
    if end is None:
        assert part.done == []
    else:
        assert part.done == [("entered",), ("extended", end << 10), ("left",), ("cached", size << 10, end << 10)]


def test_where_files_may_not_be_as_long_nothing_lies_ahead_of_the_data(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, kept = quiet
    part = Part(1 << 20, 1 << 20)
    part.failed = OSError(errno.EFBIG, "File too large")
    monkeypatch.setattr(kept, "_data", part)
    kept._cache_ahead()
    monkeypatch.undo()
    assert part.done == [("extended", 3 << 20)]
    raw(store, (KEY, b"2"))  # the section is free


def test_what_lies_ahead_of_the_data_is_cached_and_goes_when_the_store_is_closed(tmp_path: Path) -> None:
    """What LMDB is about to write behind the pages in use is in the system's cache, as a hole without blocks."""
    path = tmp_path / "db"
    store, kept = opened(path)
    raw(store, (KEY, b"1"))
    ahead = keeper._LEAST_AHEAD
    wait_until(lambda: kept._data.size() >= kept._data.used() + ahead)
    if reading_caches(tmp_path):
        wait_until(lambda: resident(path / "data.mdb", kept._data.used(), ahead))
    assert (path / "data.mdb").stat().st_blocks * 512 < kept._data.size() - ahead // 2
    for number in range(6):
        raw(store, *((KEY + bytes([number]) + place.to_bytes(2, "big"), bytes(4000)) for place in range(1500)))
        kept._cache_ahead()
    used = kept._data.used()
    assert used > keeper._MOST_AHEAD
    assert used + keeper._MOST_AHEAD <= kept._data.size() <= used + 3 * keeper._MOST_AHEAD
    stored = contents(store)
    used = kept._data.used()
    store.close()
    assert used <= (path / "data.mdb").stat().st_size < used + (1 << 20)
    again, _kept = opened(path)
    assert contents(again) == stored
    again.close()


def test_what_lies_ahead_is_cut_off_while_nobody_writes(
    quiet: tuple[LmdbStore, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    _store, kept = quiet
    done: list[tuple[object, ...]] = []
    monkeypatch.setattr(kept, "_enter", noted(done, "entered", kept._enter))
    monkeypatch.setattr(kept._data, "cut", noted(done, "cut", kept._data.cut))
    monkeypatch.setattr(LmdbSection, "abort", noted(done, "left", LmdbSection.abort))
    kept._resign()
    assert done[-3:] == [("entered",), ("cut",), ("left",)]


def reading_caches(path: Path) -> bool:
    """Whether the file system has a hole that was read in the cache; tmpfs, which is nothing but cache, has not."""
    hole = path / "hole"
    hole.touch()
    os.truncate(hole, mmap.PAGESIZE)
    hole.read_bytes()
    return resident(hole, 0, mmap.PAGESIZE)


def resident(path: Path, begin: int, size: int) -> bool:
    """Whether the system has all of a part of a file in its cache."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = ctypes.create_string_buffer(size // mmap.PAGESIZE)
    with path.open("rb") as file:
        at = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), begin)
    try:
        assert library.mincore(at, size, pages) == 0
    finally:
        library.munmap(at, size)
    return all(page & 1 for page in pages.raw)
