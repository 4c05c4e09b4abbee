"""What only a store on disk can get wrong: other directories, damage, full disks, forks, many and dying processes."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from instar.errors import Error, InterfaceError
from instar.store import open_store
from instar.store.engine import Commit, Reader, RowWrite, Section, StaleRow, Store, TableWrites
from instar.store.presence import SharedPresence
from store.building import ALL_ROWS, body_of, change, contents, dead_entries, ended, in_child, raw, row_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def refused(sqlstate: str, path: Path | str, **options: object) -> str:
    """Opening `path` fails with `sqlstate` and changes nothing in it; returns the message."""
    before = sorted(os.listdir(path)) if os.path.isdir(path) else None
    with pytest.raises(Error) as caught:
        open_store(path, **options)  # type: ignore[arg-type] # whatever the test passes
    assert caught.value.sqlstate == sqlstate
    assert (sorted(os.listdir(path)) if os.path.isdir(path) else None) == before
    return caught.value.message


# Opening.


def test_a_store_is_created_and_found_again(path: Path) -> None:
    store = open_store(path / "deeper", retention_seconds=5, log_max_bytes=1000)
    assert (store.synchronous, store.retention_seconds, store.log_max_bytes) == ("full", 5, 1000)
    timestamp = change(store, {1: b"a"})
    store.close()
    again = open_store(path / "deeper", create=False)
    assert (again.uuid, again.synchronous, again.retention_seconds) == (store.uuid, "full", 5)
    with again.read() as reader:
        assert (reader.timestamp, body_of(reader.get(row_key(1)))) == (timestamp, b"a")
    again.close()


def test_openers_share_one_environment_and_close_on_their_own(path: Path) -> None:
    first = open_store(path, synchronous="off")
    (path.parent / "link").symlink_to(path)
    second = open_store(path.parent / "link")
    change(first, {1: b"a"})
    first.close()
    first.close()
    assert body_of(contents(second)[row_key(1)]) == b"a"
    with pytest.raises(InterfaceError):
        first.read()
    with pytest.raises(InterfaceError):
        first.commit(Commit(catalog_version=0))
    second.close()


def test_properties_are_the_stores(path: Path) -> None:
    open_store(path, synchronous="normal").close()
    assert "synchronous = normal" in refused("55000", path, synchronous="off")
    refused("55000", path, retention_seconds=1.0)
    refused("55000", path, log_max_bytes=1)
    refused("22023", path, synchronous="sometimes")
    refused("0A000", path, engine="rocksdb")
    open_store(path, synchronous="normal").close()


def test_what_is_no_store_is_refused_and_left_alone(path: Path) -> None:
    refused("58030", path, create=False)
    path.mkdir()
    refused("58030", path, create=False)
    (path / "letter.txt").write_text("dear all")
    assert "not an Instar store" in refused("55000", path)
    refused("55000", path / "letter.txt")
    refused("58030", path / "nothing", create=False)
    lmdb.Environment(str(path.parent / "foreign")).close()
    refused("55000", path.parent / "foreign")


def test_another_format_version_is_refused(path: Path) -> None:
    open_store(path, synchronous="off").close()
    identity = json.loads((path / "STORE").read_text())
    (path / "STORE").write_text(json.dumps(identity | {"format": 99}))
    assert "format version 99" in refused("55000", path)


@pytest.mark.parametrize("damage", ["identity", "garbage", "empty", "missing", "short", "swapped"])
def test_damage_is_told(path: Path, damage: str) -> None:
    store = open_store(path, synchronous="off")
    for number in range(0, 3000, 1000):
        change(store, {number + n: b"x" * 50 for n in range(1000)})
    store.close()
    data = path / "data.mdb"
    match damage:
        case "identity":
            (path / "STORE").write_bytes(b"\x00\x01garbage")
        case "garbage":
            data.write_bytes(os.urandom(100_000))
        case "empty":
            data.write_bytes(b"")
        case "missing":
            data.unlink()
        case "short":
            with data.open("r+b") as file:
                file.truncate(data.stat().st_size // 2)
        case "swapped":
            other = path.parent / "other"
            open_store(other, synchronous="off").close()
            shutil.copy(other / "data.mdb", data)
    refused("XX001", path)


def test_creation_that_was_cut_off_is_begun_again(path: Path) -> None:
    open_store(path, synchronous="off").close()
    (path / "STORE").rename(path / "STORE.unfinished")
    (path / "data.mdb").write_bytes(b"half")
    refused("58030", path, create=False)
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    store.close()
    assert not (path / "STORE.unfinished").exists()


def test_creation_races_between_processes(path: Path) -> None:
    def work() -> None:
        store = open_store(path, synchronous="off")
        number = int.from_bytes(os.urandom(2), "big") | 1
        change(store, {number: store.uuid})
        store.close()

    assert [ended(child) for child in [in_child(work) for _ in range(6)]] == [0] * 6
    store = open_store(path)
    rows = contents(store, *ALL_ROWS)
    assert rows
    assert {body_of(value) for value in rows.values()} == {store.uuid}
    store.close()


def test_a_smaller_map_where_the_system_refuses_a_large_one(path: Path) -> None:
    def work() -> None:
        # On top of what this process has mapped already, which depends on the tests before.
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (16 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        store = open_store(path, synchronous="off")
        change(store, {1: b"a"})
        store.close()

    assert ended(in_child(work)) == 0
    store = open_store(path)
    assert body_of(contents(store)[row_key(1)]) == b"a"
    store.close()


def test_more_readers_than_there_are_slots(path: Path) -> None:
    store = open_store(path, synchronous="off")
    readers: list[Reader] = []
    with pytest.raises(Error) as caught:
        readers.extend(store.read() for _ in range(5000))
    assert caught.value.sqlstate == "53300"
    assert len(readers) >= 4096
    for reader in readers:
        reader.close()
    del readers, reader
    change(store, {1: b"a"})
    store.close()


# Full disks.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A directory with room for about 3 MB, and what makes more room.

    A file system of its own where the test may mount one; else files may not grow further.
    """
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mounted)]
    if shutil.which("mount") and subprocess.run(command, capture_output=True, check=False).returncode == 0:
        try:
            yield mounted, lambda: subprocess.run(["mount", "-o", "remount,size=30m", str(mounted)], check=True)
        finally:
            subprocess.run(["umount", "-l", str(mounted)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))
        yield mounted, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(store: Store, body: bytes = b"x" * 1000) -> dict[bytes, bytes]:
    """Insert until the disk is full; returns what stood before the commit that failed."""
    for start in range(0, 60_000, 100):
        before = contents(store)
        try:
            change(store, {start + number: body for number in range(100)})
        except Error as full:
            if full.sqlstate != "53100" or "is full" not in full.message:
                raise
            return before
    raise AssertionError("the disk is not full")


@pytest.mark.parametrize("synchronous", ["off", "full"])
def test_a_full_disk_is_an_error_and_the_store_stays_usable(small_disk, synchronous: str) -> None:
    directory, make_room = small_disk
    store = open_store(directory / "store", synchronous=synchronous)
    before = fill(store)
    assert contents(store) == before
    assert store.oldest_snapshot() is None

    def large(section: Section) -> None:
        for number in range(2000):
            section.put(b"\x03\x01%d" % number, b"x" * 1000)

    with pytest.raises(Error) as caught:
        store.background([large])
    assert caught.value.sqlstate == "53100"
    assert caught.value.message.startswith("the disk is full")
    assert "Make room on the device" in str(caught.value.hint)
    make_room()
    change(store, {65_000: b"after"})
    assert contents(store, *ALL_ROWS) == {k: v for k, v in before.items() if k.startswith(ALL_ROWS[0])} | {
        row_key(65_000): contents(store)[row_key(65_000)]
    }
    store.close()
    open_store(directory / "store").close()


def test_a_full_limit_on_file_sizes_is_an_error_too(path: Path) -> None:
    store = open_store(path, synchronous="full")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        before = fill(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(store) == before
    change(store, {65_000: b"after"})
    store.close()


def test_no_room_to_create_a_store(small_disk) -> None:
    directory, make_room = small_disk
    (directory / "ballast").write_bytes(bytes((3 << 20) - 50_000))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit[0] != resource.RLIM_INFINITY:  # no file system of its own
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(Error) as caught:
            open_store(directory / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.sqlstate == "53100"
    (directory / "ballast").unlink()
    make_room()
    open_store(directory / "store").close()


def test_a_full_map_is_an_error_and_the_store_stays_usable(path: Path) -> None:
    store = open_store(path, synchronous="off", map_size=1 << 20)
    before = fill(store)
    assert contents(store) == before
    store.close()
    store = open_store(path)
    change(store, {65_000: b"after"})
    store.close()


def test_an_environment_is_opened_anew_only_where_its_file_is(path: Path) -> None:
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    environment = store._environment  # type: ignore[attr-defined] # no disk fails to order
    path.rename(path.with_name("elsewhere"))
    other = open_store(path, synchronous="off")
    with pytest.raises(Error, match="was moved or removed while it was open") as caught:
        environment._recover(lmdb.PanicError("mdb_txn_begin"), environment.begin)
    assert caught.value.sqlstate == "58030"
    again = open_store(path.with_name("elsewhere"), synchronous="off")
    environment._recover(lmdb.PanicError("mdb_txn_begin"), environment.begin)
    assert [len(contents(found, *ALL_ROWS)) for found in (store, again, other)] == [1, 1, 0]
    for opened in (store, other, again):
        opened.close()


def test_an_environment_that_lmdb_gave_up_is_opened_anew(path: Path) -> None:
    """After a failure to write its meta page LMDB refuses the environment, not the store (MDB_PANIC)."""
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    environment = store._environment  # type: ignore[attr-defined] # no disk fails to order
    failed = environment.begin
    for _thread in range(2):  # the second finds it done
        environment._recover(lmdb.PanicError("mdb_txn_begin"), failed)
    assert environment.begin is not failed
    change(store, {2: b"b"})
    assert len(contents(store, *ALL_ROWS)) == 2
    store.close()


def test_what_a_read_of_long_ago_learns_is_not_taken_for_the_newest(path: Path) -> None:
    """LMDB may give a read a state that is newer than its number, if two commits come in between."""
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    environment = store._environment  # type: ignore[attr-defined] # the only place that tells
    old = environment.begin()
    change(store, {1: b"b"})
    head = environment.learn(old)
    assert environment.newest == (old.id(), head)  # one commit since writes elsewhere
    change(store, {1: b"c"})
    newest = environment.newest
    assert environment.learn(old) == head
    assert environment.newest == newest
    old.abort()
    store.close()


def test_a_read_of_one_key_opens_the_environment_anew_too(path: Path) -> None:
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    environment = store._environment  # type: ignore[attr-defined] # no disk fails to order

    def refuse(*_arguments: object) -> None:
        raise lmdb.PanicError("mdb_txn_begin")

    environment.begin = refuse
    assert body_of(store.newest(row_key(1), 0)) == b"a"
    assert environment.begin is not refuse
    store.close()


def test_a_read_of_one_key_begins_again_if_another_thread_ends_its_transaction(path: Path) -> None:
    """As it is with all transactions of an environment that is closed, or opened anew."""
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    environment = store._environment  # type: ignore[attr-defined] # no thread comes to order
    begin = environment.begin

    def ended_at_once() -> object:
        transaction = begin()
        transaction.abort()
        environment.begin = begin
        return transaction

    environment.begin = ended_at_once
    assert body_of(store.newest(row_key(1), 0)) == b"a"
    store.close()


# Forks.


def test_a_fork_leaves_the_parent_alone_and_works_itself(path: Path) -> None:
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    reader = store.read()
    token = store.register_snapshot(reader.timestamp)

    def work() -> None:
        assert store.oldest_snapshot() == reader.timestamp  # the parent's
        change(store, {2: b"child"})
        mine = store.register_snapshot(1)
        store.release_snapshot(mine)
        store.release_snapshot(token)  # the parent's token means nothing here
        again = open_store(path)
        assert body_of(contents(again)[row_key(2)]) == b"child"
        again.close()
        store.close()

    assert ended(in_child(work)) == 0
    assert store.oldest_snapshot() == reader.timestamp
    # The parent's reader still holds its pages: they are not reused under it.
    for turn in range(300):
        change(store, dict.fromkeys(range(20), b"%d" % turn))
    assert body_of(reader.get(row_key(1))) == b"a"
    assert reader.get(row_key(2)) is None
    assert f"{os.getpid()} " in store._environment._environment.readers()  # type: ignore[attr-defined] # LMDB's table
    reader.close()
    store.release_snapshot(token)
    store.close()


def test_a_fork_in_the_middle_of_other_threads_commits(path: Path) -> None:
    store = open_store(path, synchronous="off")
    stop = threading.Event()

    def commits(thread: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            change(store, {thread: b"%d" % turn})

    threads = [threading.Thread(target=commits, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    try:

        def work() -> None:
            change(store, {100 + os.getpid() % 1000: b"child"})

        assert [ended(in_child(work)) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    store.close()


def test_a_child_that_exits_normally_frees_nothing_of_the_parents(path: Path) -> None:
    """The interpreter's exit clears what it holds, the parent's environment too."""
    script = f"""
import os, sys
from instar.store import open_store
store = open_store({str(path)!r}, synchronous="off")
reader = store.read()
if os.fork() == 0:
    sys.exit(0)
os.wait()
table = store._environment._environment.readers()
assert str(os.getpid()) in table, table
reader.close()
store.read().close()
store.close()
"""
    source = str(Path(__file__).parents[2] / "src")
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": source}, timeout=60)


# Processes that die or stop.


def acknowledged_commits(path: Path, seed: int, wait: float) -> int:
    """A child commits generations to five rows at once and acknowledges each; it is killed. Returns the last one."""
    readable, writable = os.pipe()

    def work() -> None:
        os.close(readable)
        store = open_store(path)
        draw = random.Random(seed)
        with store.read() as reader:
            generation = int(body_of(reader.get(row_key(0))) or b"0")
        while True:
            generation += 1
            if draw.random() < 0.1:
                store.collect(store.now(), dead_entries)
            change(store, dict.fromkeys(range(5), b"%d" % generation))
            os.write(writable, b"%d\n" % generation)

    child = in_child(work)
    os.close(writable)
    with os.fdopen(readable, "rb", buffering=0) as acknowledgements:
        told = acknowledgements.read(64)
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
        ended(child)
        told += acknowledgements.read() or b""
        while more := acknowledgements.read(1 << 16):
            told += more
    return int(told.split(b"\n")[-2])


def test_kill_in_the_middle_of_commits_loses_nothing_acknowledged(path: Path) -> None:
    open_store(path, synchronous="off").close()
    for seed in range(20):
        acknowledged = acknowledged_commits(path, seed, random.Random(seed).uniform(0, 0.02))
        store = open_store(path)
        rows = contents(store, *ALL_ROWS)
        generations = {int(body_of(value) or b"") for value in rows.values()}
        assert len(rows) == 5
        assert len(generations) == 1
        assert generations.pop() in (acknowledged, acknowledged + 1)
        log = contents(store, b"\xf0", b"\xf1")
        assert store.log_bytes() == sum(len(key) + len(value) for key, value in log.items())
        store.close()


def test_killed_committers_hold_nobody_up(path: Path) -> None:
    """Whoever is killed while it holds LMDB's writer mutex, or waits for it: the others go on."""
    store = open_store(path, synchronous="off")

    def work() -> None:
        turn = 0
        while True:
            turn += 1
            change(store, {os.getpid() % 60_000: b"%d" % turn})

    children = [in_child(work) for _ in range(4)]
    try:
        for round_ in range(12):
            time.sleep(0.01)
            victim = children.pop(0)
            os.kill(victim, signal.SIGKILL)
            assert ended(victim) == -signal.SIGKILL
            before = store.now()
            change(store, {65_000: b"%d" % round_})
            assert store.now() > before
            children.append(in_child(work))
        assert store.oldest_snapshot() is None
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            ended(child)
    store.collect(store.now(), dead_entries)
    store.close()


def test_many_processes_count_together(path: Path) -> None:
    store = open_store(path, synchronous="off")
    raw(store, (b"\x03\x01", b"0"))

    def work() -> None:
        for _ in range(40):
            while True:
                with store.read() as reader:
                    stored = reader.get(row_key(0))
                number = int(body_of(stored) or b"0") + 1
                rows = [RowWrite(row_key(0), stored, b"%d" % number, 1)]
                try:
                    store.commit(Commit(catalog_version=0, tables=[TableWrites(7, 1, 0, rows)]))
                    break
                except StaleRow:
                    continue

    assert [ended(child) for child in [in_child(work) for _ in range(4)]] == [0] * 4
    assert body_of(contents(store)[row_key(0)]) == b"160"
    timestamps = [record.timestamp for record in store.log(0, store.now())]
    assert len(set(timestamps)) == len(timestamps) == 160
    store.close()


def test_a_stopped_announcer_holds_the_background_up_for_a_moment_only(path: Path) -> None:
    store = open_store(path, synchronous="off")

    def work() -> None:
        presence = store._presence  # type: ignore[attr-defined] # announces as a commit does, then is stopped
        presence.wait_begins()
        os.kill(os.getpid(), signal.SIGSTOP)

    child = in_child(work)
    try:
        os.waitpid(child, os.WUNTRACED)
        assert store._presence.foreground_about()  # type: ignore[attr-defined]
        done: list[Section] = []
        store.background([done.append] * 50)
        assert len(done) == 50
        time.sleep(0.11)
        assert not store._presence.foreground_about()  # type: ignore[attr-defined]
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)
    store.close()


def test_slots_of_the_dead_are_taken_again(path: Path) -> None:
    store = open_store(path, synchronous="off")

    def work() -> None:
        store.register_snapshot(5)
        store.announce_worker(True)
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(5):
        ended(in_child(work))
        assert store.oldest_snapshot() is None
        assert not store.worker_present()
    presence = store._presence  # type: ignore[attr-defined]
    assert isinstance(presence, SharedPresence)
    assert [process.pid for process in presence.processes()] == [os.getpid()]
    assert len(presence._slots()) <= 2
    store.close()


def test_a_child_does_not_keep_its_parents_slot_alive(path: Path) -> None:
    readable, writable = os.pipe()

    def parent() -> None:
        store = open_store(path, synchronous="off")
        store.register_snapshot(5)
        if os.fork() == 0:
            os.write(writable, b"%d " % os.getpid())
            time.sleep(30)
            os._exit(0)

    assert ended(in_child(parent)) == 0
    grandchild = int(os.read(readable, 100))
    try:
        store = open_store(path)
        assert store.oldest_snapshot() is None
        store.close()
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(readable)
        os.close(writable)


def test_readers_of_the_dead_are_freed_by_the_collector(path: Path) -> None:
    store = open_store(path, synchronous="off")

    def work() -> None:
        _reader = store.read()
        os.kill(os.getpid(), signal.SIGKILL)

    child = in_child(work)
    ended(child)
    table = store._environment._environment.readers  # type: ignore[attr-defined] # LMDB's
    assert f"{child} " in table()
    store.collect(store.now(), dead_entries)
    assert f"{child} " not in table()
    store.close()


def test_a_missing_lock_file_and_presence_are_made_again(path: Path) -> None:
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    store.close()
    copied = Path(tempfile.mkdtemp(dir=path.parent))
    for name in ("STORE", "data.mdb"):
        shutil.copy(path / name, copied / name)
    copy = open_store(copied)
    assert body_of(contents(copy)[row_key(1)]) == b"a"
    change(copy, {2: b"b"})
    copy.close()
