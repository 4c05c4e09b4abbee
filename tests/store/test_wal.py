"""The write-ahead log: what is in it when a transaction fails or is killed, and what a commit waits for."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

from instar import errors
from instar.store import open_store, wal
from instar.store.engine import Store
from instar.store.lmdb import LmdbStore
from instar.store.presence import WAL_DURABLE, WAL_END
from instar.store.recovery import frames_after
from instar.store.wal import WriteAheadLog
from instar.store.wal_format import (
    CHECKPOINT_FILES,
    FRAME_BYTES,
    WAL_FILES,
    generation_of,
    offset_of,
    read_checkpoint,
)
from store.building import change, contents, ended, in_child, raw

ROW = b"\x10\x00\x00\x00\x01"
KEY = b"\x03\x01"


def opened(path: Path, **options: Any) -> tuple[LmdbStore, WriteAheadLog]:
    store = open_store(path, **options)
    assert isinstance(store, LmdbStore)
    assert store._environment.log is not None
    return store, store._environment.log


def presence_word(store: LmdbStore, word: int) -> int:
    return store._environment.presence.shared_words[word]


def told(path: Path) -> list[tuple[int, bool, list[bytes | None]]]:
    """The frames since the newest checkpoint."""
    files = [os.open(path / name, os.O_RDONLY) for name in CHECKPOINT_FILES]
    newest = read_checkpoint(files)
    for file in files:
        os.close(file)
    assert newest is not None
    return [(frame.transaction, frame.is_last, list(frame.changes)) for frame in frames_after(str(path), newest)]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint is made while a store is open."""
    monkeypatch.setattr("instar.store.keeper.LOG_BYTES", 1 << 40)
    monkeypatch.setattr("instar.store.keeper.AGE_NS", 1 << 60)


@pytest.mark.usefixtures("quiet")
def test_a_commit_is_in_the_log_as_it_is_in_the_store(tmp_path: Path) -> None:
    store, _log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    raw(store, (KEY + b"2", b"2"), (KEY, None))
    changes = told(tmp_path / "db")
    assert [is_last for _, is_last, _ in changes] == [True, True]
    assert changes[1][0] == changes[0][0] + 1
    assert KEY in changes[0][2]
    first, second = (dict(zip(found[::2], found[1::2], strict=True)) for _, _, found in changes)
    assert (first[KEY], second[KEY + b"2"], second[KEY]) == (b"1", b"2", None)
    before = contents(store)
    change(store, {1: b"a", 2: b"b"})
    written = dict(zip(told(tmp_path / "db")[2][2][::2], told(tmp_path / "db")[2][2][1::2], strict=True))
    assert written == {key: value for key, value in contents(store).items() if before.get(key) != value}
    store.close()
    assert told(tmp_path / "db") == []  # a checkpoint was made


@pytest.mark.usefixtures("quiet")
def test_what_was_given_up_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "_MOST_CHANGES", 4)
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    end = log.end
    section = store._begin()
    for number in range(20):
        section.put(KEY + bytes([number]), bytes(100))
    section.abort()
    assert log.end == end
    raw(store, (KEY, b"2"))
    numbers = [transaction for transaction, is_last, _ in told(tmp_path / "db") if is_last]
    assert numbers == [numbers[0], numbers[0] + 1]
    store.close()


@pytest.mark.usefixtures("quiet")
def test_a_large_transaction_has_many_frames(tmp_path: Path) -> None:
    store, _log = opened(tmp_path / "db")
    pairs = [(KEY + number.to_bytes(3, "big"), bytes(number % 7)) for number in range(20_000)]
    raw(store, *pairs, (KEY + b"\xff", bytes(1 << 17)), (KEY + b"\xff\x01", b"1"))
    frames = told(tmp_path / "db")
    assert len(frames) > 4
    assert [is_last for _, is_last, _ in frames] == [False] * (len(frames) - 1) + [True]
    assert len({transaction for transaction, _, _ in frames}) == 1
    stored = contents(store)
    assert (
        dict(zip(*(iter([part for _, _, found in frames for part in found]),) * 2, strict=True)).items()
        >= dict(pairs).items()
    )
    kill_and_compare(store, tmp_path / "db", stored)


def kill_and_compare(store: Store, path: Path, stored: dict[bytes, bytes]) -> None:
    """Close the store without a checkpoint, as if its process was killed, and open it again."""
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    store._environment.keeper._stopped.set()  # type: ignore[attr-defined] # it would be the keeper again
    store._environment.keeper._thread.join()  # type: ignore[attr-defined] # as above
    store._environment.keeper.lose()  # type: ignore[attr-defined] # nobody is the keeper of what a killed process left
    store.close()
    assert told(path)
    again, _log = opened(path)
    assert contents(again) == stored
    again.close()
    assert told(path) == []


@pytest.mark.usefixtures("quiet")
def test_a_commit_that_lmdb_refuses_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    before = contents(store)

    class Refusing:
        def __init__(self, transaction: Any) -> None:
            self._transaction = transaction

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transaction, name)

        def commit(self) -> None:
            self._transaction.abort()
            raise lmdb.DiskError("no room", errno.EIO)

    section = store._begin()
    section.put(KEY, b"refused")
    monkeypatch.setattr(section, "_transaction", Refusing(section._transaction))  # type: ignore[attr-defined] # as above
    with pytest.raises(lmdb.DiskError):
        section.commit()
    refused, void = told(tmp_path / "db")[-2:]
    assert refused[0] == void[0]
    assert void[1:] == (True, [])
    assert presence_word(store, WAL_DURABLE) == log.end  # else a power failure might leave the one without the other
    assert contents(store) == before
    raw(store, (KEY + b"2", b"2"))
    stored = contents(store)
    assert told(tmp_path / "db")[-1][0] == void[0]
    kill_and_compare(store, tmp_path / "db", stored)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("moment", ["before the end moved", "before LMDB committed", "after LMDB committed"])
def test_a_process_that_is_killed_in_the_middle_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Others go on behind what it has left, or over it; then all are killed."""
    path = tmp_path / "db"
    store, _log = opened(path)
    raw(store, (KEY, b"1"))

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def victim() -> None:
        section = store._begin()
        section.put(KEY + b"victim", bytes(500))
        if moment == "before the end moved":
            monkeypatch.setattr(WriteAheadLog, "finish", die)
        elif moment == "after LMDB committed":
            monkeypatch.setattr(WriteAheadLog, "sync", die)
        else:
            monkeypatch.setattr(WriteAheadLog, "finish", finish_and_die)
        section.commit()

    finish = WriteAheadLog.finish

    def finish_and_die(log: WriteAheadLog, end: int) -> None:
        finish(log, end)
        die()

    assert ended(in_child(victim)) == -signal.SIGKILL
    raw(store, (KEY + b"2", b"2"))
    raw(store, (KEY + b"3", b"3"))
    stored = contents(store)
    assert (KEY + b"victim" in stored) == (moment == "after LMDB committed")
    kill_and_compare(store, path, stored)


def test_segments_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is used again only when no checkpoint needs it, and goes on where the other one ends."""
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 20_000)
    path = tmp_path / "db"
    store, log = opened(path)
    keeper = store._environment.keeper
    assert keeper is not None
    generations = []
    for number in range(200):
        raw(store, (KEY + bytes([number]), os.urandom(2000)))
        generations.append(generation_of(log.end))
        if number % 15 == 14:
            keeper.checkpoint()
    assert generations == sorted(generations)
    assert generations[-1] - generations[0] > 4
    assert max((path / name).stat().st_size for name in WAL_FILES) < 1 << 20
    kill_and_compare(store, path, contents(store))


@pytest.mark.usefixtures("quiet")
def test_how_much_was_appended_is_no_distance_between_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 0)
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    begin = log.end
    raw(store, (KEY, bytes(1000)))
    assert 1000 < log.since(begin) < 1200
    assert log.since(log.end) == 0
    section = store._begin()
    log.turn(log.end)
    section.abort()
    assert log.since(begin) == 1
    raw(store, (KEY, bytes(1000)))
    assert 1000 < log.since(begin) < 1200
    store.close()


@pytest.mark.usefixtures("quiet")
def test_what_was_given_up_before_the_log_turned_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 0)
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    section = store._begin()
    section.put(KEY + b"given up", bytes(1 << 17))
    section.abort()
    section = store._begin()
    generation = generation_of(log.end)
    log.turn(log.end)
    section.abort()
    assert generation_of(log.end) == generation + 1
    raw(store, (KEY + b"2", b"2"))
    assert [is_last for _, is_last, _ in told(tmp_path / "db")][-2:] == [False, True]
    kill_and_compare(store, tmp_path / "db", contents(store))


def test_a_process_that_is_killed_while_the_log_turns_makes_others_sync_in_vain_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 0)
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    moved: list[int] = []

    class Words:
        def __getitem__(self, word: int) -> int:
            return words[word]

        def __setitem__(self, word: int, value: int) -> None:
            moved.append(word)
            words[word] = value

    words = log._words
    monkeypatch.setattr(log, "_words", Words())
    section = store._begin()
    log.turn(log.end)
    section.abort()
    assert moved[-2:] == [WAL_END, WAL_DURABLE]
    store.close()


@pytest.mark.usefixtures("quiet")
def test_there_is_room_to_void_whatever_was_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteAheadLog, "_extend", lambda *_: None)  # the disk has no more room than that
    store, log = opened(tmp_path / "db")
    for size in range(50):
        raw(store, (KEY, bytes(size)))
        segment = tmp_path / "db" / WAL_FILES[generation_of(log.end) & 1]
        assert segment.stat().st_size >= offset_of(log.end) + FRAME_BYTES
    kill_and_compare(store, tmp_path / "db", contents(store))


def test_a_commit_waits_for_the_log_alone_and_for_that_of_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"0"))
    synced: list[str] = []
    sync = os.fdatasync

    def count(file: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
        sync(file)

    monkeypatch.setattr("instar.store.keeper.LOG_BYTES", 1 << 40)
    monkeypatch.setattr("instar.store.keeper.AGE_NS", 1 << 60)
    monkeypatch.setattr(os, "fdatasync", count)
    for _ in range(10):
        raw(store, (KEY, b"1"))
    assert synced == [WAL_FILES[1]] * 10
    end = log.end
    background = [lambda section: section.put(KEY, b"2")] * 3
    store.background(background)
    assert len(synced) == 10  # nobody waits for these
    assert log.end > end
    raw(store, (KEY, b"3"))
    assert len(synced) == 11
    log.sync(log.end)
    log.sync(end)
    assert len(synced) == 11  # it is there
    store.close()


@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_no_commit_waits_where_it_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str) -> None:
    monkeypatch.setattr("instar.store.keeper.AGE_NS", 1 << 60)
    store = open_store(tmp_path / "db", synchronous=synchronous)
    raw(store, (KEY, b"0"))
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    for _ in range(10):
        raw(store, (KEY, b"1"))
    assert synced == []
    monkeypatch.undo()
    store.close()
    assert all((tmp_path / "db" / name).exists() == (synchronous == "normal") for name in WAL_FILES)


def test_a_disk_that_fails_ends_all_commits_until_the_store_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may take for written the next time what it has failed to write: nobody relies on it."""
    store, _log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(errors.Error) as caught:
            raw(store, (KEY, b"2"))
        assert caught.value.sqlstate == "08007"
    for _ in range(2):
        with pytest.raises(errors.Error) as caught:
            raw(store, (KEY, b"3"))
        assert caught.value.sqlstate == "58030"
        assert "open it again" in str(caught.value.hint)
    assert contents(store)[KEY] == b"2"
    store.close()
    again, _log = opened(tmp_path / "db")
    raw(again, (KEY + b"4", b"4"))
    assert contents(again)[KEY] == b"2"
    again.close()


def test_a_disk_that_fails_tells_all_that_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells of a failure once: the second sync of the same file would go well."""
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"1"))
    end = log.end
    section = store._begin()
    section.put(KEY, b"2")
    waiting, failed = threading.Event(), threading.Event()
    told_of: list[str] = []

    def fail_once(_file: int) -> None:
        if not failed.is_set():
            failed.set()
            waiting.wait()
            failing(_file)

    def wait_too() -> None:
        failed.wait()
        waiting.set()
        try:
            log.sync(log.end)
        except errors.Error as caught:
            told_of.append(caught.sqlstate)

    monkeypatch.setattr("instar.store.keeper.AGE_NS", 1 << 60)
    monkeypatch.setattr(os, "fdatasync", fail_once)
    other = threading.Thread(target=wait_too)
    other.start()
    with pytest.raises(errors.Error):
        section.commit()
    other.join()
    assert told_of == ["08007"]
    assert presence_word(store, WAL_DURABLE) == end
    monkeypatch.undo()
    store.close()


def failing(_file: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_log_that_cannot_grow_is_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store, _log = opened(path)
    raw(store, (KEY, b"1"))
    before = contents(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max((path / name).stat().st_size for name in WAL_FILES), hard))
    try:
        with pytest.raises(errors.Error) as caught:
            raw(store, (KEY, bytes(1 << 20)))
        assert caught.value.sqlstate == "53100"
        assert contents(store) == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    raw(store, (KEY, b"2"))
    assert contents(store)[KEY] == b"2"
    store.close()


def test_threads_share_a_sync(tmp_path: Path) -> None:
    store, log = opened(tmp_path / "db")
    raw(store, (KEY, b"0"))
    numbers: list[int] = []

    def commit(number: int) -> None:
        for turn in range(30):
            raw(store, (KEY + bytes([number, turn]), b"1"))
            numbers.append(log.end)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers) == 180
    kill_and_compare(store, tmp_path / "db", contents(store))
