"""Blocks reserved ahead of the write map: never too few, given back, told by one process to the others."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from operator import methodcaller
from pathlib import Path

import pytest

from instar.errors import Error
from instar.store import open_store
from instar.store.engine import Section, Store
from instar.store.lmdb import LmdbStore
from instar.store.space import Space, can_reserve
from store.building import ALL, change, contents, ended, in_child, raw

PAGE = 4096
RAW = b"\x03\x01"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    if not can_reserve(str(tmp_path)):
        pytest.fail(f"the tests need a file system that blocks can be reserved on: {tmp_path}")
    return tmp_path / "store"


def space_of(store: Store) -> Space:
    assert isinstance(store, LmdbStore)
    space = store._environment.space
    assert space is not None
    return space


def size(path: Path) -> int:
    return (path / "data.mdb").stat().st_size


def allocated(path: Path) -> int:
    return (path / "data.mdb").stat().st_blocks * 512


def test_where_blocks_cannot_be_reserved_system_calls_write(path: Path) -> None:
    assert not can_reserve("/proc")
    assert not can_reserve(str(path / "missing"))
    store = open_store(path, synchronous="off", write_map=False)
    change(store, {1: b"a"})
    assert store._environment.space is None  # type: ignore[attr-defined] # nothing else tells
    store.close()
    for synchronous in ("full", "normal"):
        store = open_store(path.with_name(synchronous), synchronous=synchronous)
        assert store._environment.space is None  # type: ignore[attr-defined] # as above
        store.close()


def test_the_file_is_as_large_as_what_is_reserved_and_ends_with_its_data(path: Path) -> None:
    store = open_store(path, synchronous="off")
    space = space_of(store)
    assert size(path) == space.used()
    change(store, {1: b"a"})
    assert space.used() < space.reserved == size(path) <= allocated(path) < 4 << 20
    store.close()
    assert size(path) < 100_000
    store = open_store(path)
    assert len(contents(store, *ALL)) > 0
    assert size(path) == space_of(store).used()
    store.close()


def scattered(draw: random.Random, section: Section) -> None:
    for _ in range(draw.choice([1, 10, 100, 2000])):
        section.put(RAW + draw.randbytes(6), draw.randbytes(draw.choice([0, 10, 300, 2000])))


def large(draw: random.Random, section: Section) -> None:
    for _ in range(draw.choice([1, 5])):
        section.put(RAW + draw.randbytes(3), bytes(draw.choice([5000, 100_000, 3_000_000])))


def in_a_row(draw: random.Random, section: Section) -> None:
    start = RAW + draw.randbytes(4)
    for number in range(draw.choice([10, 5000])):
        section.put(start + number.to_bytes(3, "big"), bytes(draw.choice([0, 100])))


def in_gaps(draw: random.Random, section: Section) -> None:
    for _ in range(draw.choice([1, 30])):
        start = RAW + draw.randbytes(draw.choice([3, 300]))
        count = draw.choice([3, 40, 3000])
        section.put_many([(start + number.to_bytes(3, "big"), bytes(draw.choice([3, 400]))) for number in range(count)])


def removed(draw: random.Random, section: Section) -> None:
    start = RAW + draw.randbytes(1)
    for key in section.batch(start, b"\x04", draw.choice([10, 1000]))[0]:
        section.delete(key)


@pytest.mark.parametrize("seed", range(6))
def test_no_transaction_takes_more_than_was_reserved(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    store = open_store(path, synchronous="off")
    space = space_of(store)
    change(store, {1: b"a"})
    for step in range(40):
        work = draw.choice([scattered, large, in_a_row, in_gaps, removed])
        store.background([partial(work, draw)])
        assert space.used() <= space.reserved, (step, work)
        changed = draw.sample(range(60_000), draw.choice([1, 30, 3000]))
        change(store, dict.fromkeys(changed, draw.randbytes(draw.choice([1, 200]))))
        assert space.used() <= space.reserved, step
        assert space.reserved <= size(path)
    store.close()
    assert size(path) <= 4 * PAGE + (open_and_use(path))


def open_and_use(path: Path) -> int:
    store = open_store(path)
    change(store, {7: b"again"})
    used = space_of(store).used()
    store.close()
    return used


def test_a_file_with_holes_is_filled_before_it_is_written_again(path: Path) -> None:
    """LMDB may have counted pages as used that nobody ever wrote."""
    store = open_store(path, synchronous="off")
    raw(store, (RAW + b"large", bytes(4_000_000)))
    raw(store, (RAW + b"large", None))
    store.close()
    subprocess.run(
        ["fallocate", "-p", "-o", str(100 * PAGE), "-l", str(500 * PAGE), str(path / "data.mdb")], check=True
    )
    before = allocated(path)
    store = open_store(path)
    change(store, {1: b"a"})
    assert allocated(path) >= before + 500 * PAGE
    store.close()


def test_the_first_write_after_opening_needs_no_more_than_others(path: Path) -> None:
    store = open_store(path, synchronous="off")
    raw(store, *((RAW + number.to_bytes(3, "big"), bytes(1000)) for number in range(30_000)))
    store.close()
    closed = size(path)
    store = open_store(path)
    change(store, {1: b"a"})
    assert size(path) < closed + closed // 8 + (2 << 20)
    store.close()


def test_what_one_process_reserved_no_opener_takes_away(path: Path) -> None:
    store = open_store(path, synchronous="off")
    space = space_of(store)
    raw(store, (RAW + b"large", bytes(10_000_000)))
    change(store, {1: b"a"})
    reserved = space.reserved

    def opens_and_closes() -> None:
        store.close()  # the parent's, as every child should
        for _ in range(3):
            other = open_store(path)
            change(other, {os.getpid() % 1000: b"b"})
            other.close()

    assert space.used() < reserved
    assert ended(in_child(opens_and_closes)) == 0
    assert size(path) >= reserved == space.reserved
    before = contents(store, *ALL)
    for number in range(100):
        change(store, {2: b"%d" % number * 100})
    assert len(contents(store, *ALL)) >= len(before)
    store.close()
    assert size(path) < reserved + PAGE


def test_what_a_killed_process_reserved_is_cut_off(path: Path) -> None:
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})

    def reserves_and_dies() -> None:
        other = open_store(path)
        raw(other, (RAW + b"large", bytes(30_000_000)))
        raw(other, (RAW + b"large", None))
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(in_child(reserves_and_dies)) == -signal.SIGKILL
    store.close()
    used = open_and_use(path)
    assert size(path) <= used + PAGE


def test_an_excess_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instar.store.mapped_section.EXCESS_BYTES", 1 << 20)
    monkeypatch.setattr("instar.store.space._MOST_STEP", 1 << 20)
    store = open_store(path, synchronous="off")
    store.background([lambda _section: space_of(store).reserve(50 << 20)])
    assert size(path) >= 50 << 20
    for number in range(3):
        change(store, {number: b"a"})
    assert size(path) < 4 << 20
    assert space_of(store).used() < size(path)
    store.close()


def test_after_a_fork_parent_and_child_reserve_on_their_own(path: Path) -> None:
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})
    mine = space_of(store).reserved

    def child() -> None:
        for number in range(300):
            change(store, {number: os.urandom(3000)})
        assert space_of(store).reserved > mine
        store.close()

    assert ended(in_child(child)) == 0
    assert size(path) >= mine
    for number in range(300, 600):
        change(store, {number: os.urandom(3000)})
    assert len(contents(store, *ALL)) > 600
    store.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A disk of 8 MB of its own, and what makes room on it; where none can be mounted, nothing can be learnt here."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mounted)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        yield mounted, lambda: None
        return
    try:
        ballast = mounted / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        yield mounted, ballast.unlink
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_full_disk_kills_no_process_whatever_it_does(tiny_disk, seed: int) -> None:
    """SIGBUS would: so the work is done in a child."""
    directory, make_room = tiny_disk
    path = directory / "store"
    open_store(path, synchronous="off").close()

    def child() -> None:
        draw = random.Random(seed)
        store = open_store(path)
        refused = 0
        for step in range(400):
            work = draw.choice([scattered, large, in_a_row, in_gaps, removed])
            before = contents(store, RAW, b"\x04")
            try:
                store.background([partial(work, draw)])
            except Error as full:
                if full.sqlstate != "53100":
                    raise
                refused += 1
                assert contents(store, RAW, b"\x04") == before, step
            if refused > 30:
                break
        if shutil.disk_usage(directory).total < 10 << 20:
            assert refused
        for key in contents(store, RAW, b"\x04"):
            if refused:
                make_room()
                refused = 0
            raw(store, (key, None))
        raw(store, (RAW + b"after", bytes(100_000)))
        store.close()

    assert ended(in_child(child)) == 0
    open_store(path).close()


def shrinks_and_grows(section: Section) -> None:
    """Many small pages are taken and freed, of no use for values that need pages side by side."""
    for number in range(20_000):
        section.put(RAW + number.to_bytes(4, "big"), bytes(1000))
    for number in range(20_000):
        section.delete(RAW + number.to_bytes(4, "big"))
    for number in range(60):
        section.put(RAW + b"large" + bytes([number]), bytes(1_000_000))


def grows_a_value(section: Section) -> None:
    """None of the places that the value has had is large enough for the next."""
    for number in range(100):
        section.put(RAW + b"large", bytes(1_000_000 + PAGE * number))


def from_both_ends(section: Section) -> None:
    """The longest keys, in an order that leaves pages emptiest: each leaf with one key, branches with four."""
    keys = [number for pair in zip(range(15_000), range(29_999, 14_999, -1), strict=True) for number in pair]
    pairs = [(RAW + number.to_bytes(509, "big"), bytes(840)) for number in keys]
    section.put(RAW + b"\xff", b"behind")
    section.put_many(pairs)


def before_large_records(section: Section) -> None:
    """In order, where what follows leaves little room in its page: a split leaves few of the new ones behind."""
    for number, (following, size) in enumerate(
        product([[600, 300, 1620], [1620, 1400], [1900, 1900], [300] * 10, [2000, 30] * 8], [0, 44, 100, 170, 400])
    ):
        start = RAW + bytes([number])
        for place, record in enumerate(following):
            section.put(start + b"\xff" + bytes([place]), bytes(record))
        for batch in range(4):
            pairs = [(start + bytes([batch]) + key.to_bytes(9, "big"), bytes(size)) for key in range(2000)]
            section.put_many(pairs)


def in_many_gaps(section: Section) -> None:
    """Long keys, so that the tree is deep; runs that are just long enough for wedges, each between others."""
    for gap in sorted(range(600), key=lambda number: number * 7919 % 600):
        start = RAW + gap.to_bytes(490, "big")
        section.put_many([(start + number.to_bytes(2, "big"), bytes(150)) for number in range(11)])


def among_others(section: Section) -> None:
    """Between keys that are there, so long that the tree is deep: each pair splits a page of its own."""
    for shift in range(3):
        section.put_many(
            [(RAW + (3 * number + shift).to_bytes(500, "big"), bytes(400 + 500 * shift)) for number in range(9000)]
        )


@pytest.mark.parametrize(
    "work", [shrinks_and_grows, grows_a_value, from_both_ends, before_large_records, in_many_gaps, among_others]
)
def test_the_worst_transactions_are_allowed_for(path: Path, work: Callable[[Section], None]) -> None:
    """SIGBUS otherwise: so the work is done in a child."""

    def child() -> None:
        store = open_store(path, synchronous="off")
        store.background([work])
        assert space_of(store).used() <= space_of(store).reserved
        store.close()

    assert ended(in_child(child)) == 0


@pytest.mark.parametrize("number", range(0, 40, 10))
def test_many_rows_are_allowed_for_behind_a_small_store(path: Path, number: int) -> None:
    """The room that is there at first is spent before it is taken: what is missing is more than the difference."""

    def child() -> None:
        store = open_store(path, synchronous="off")
        raw(store, (RAW + b"\xff", bytes(1600)), (RAW + b"\xff\xff", bytes(1000 + 20 * number)))
        store.background([lambda section: section.put_many(numbered(6000))])
        assert space_of(store).used() <= space_of(store).reserved
        store.close()

    assert ended(in_child(child)) == 0


def numbered(count: int) -> list[tuple[bytes, bytes]]:
    return [(RAW + number.to_bytes(12, "big"), bytes(44)) for number in range(count)]


def test_little_more_is_reserved_than_many_rows_take(path: Path) -> None:
    store = open_store(path, synchronous="off")
    store.background([lambda section: section.put_many(numbered(200_000))])
    space = space_of(store)
    taken = space.used()
    assert taken <= space.reserved < 1.25 * taken + (10 << 20)
    store.close()


def test_little_more_is_reserved_than_many_rows_among_others_take(path: Path) -> None:
    """As much as if each of them had copied its whole path, before: two gigabytes for 20,000 entries."""
    store = open_store(path, synchronous="off")
    for shift in range(4):
        pairs = [(RAW + (4 * number + shift).to_bytes(12, "big"), bytes(44)) for number in range(20_000)]
        store.background([methodcaller("put_many", pairs)])
        assert allocated(path) < 30 << 20
    store.close()


def test_the_last_to_close_cuts_the_file_though_it_writes_by_system_calls(path: Path) -> None:
    open_store(path, synchronous="off").close()
    os.truncate(path / "data.mdb", 1 << 40)  # what a process leaves that is killed while it opens the store
    store = open_store(path, write_map=False)
    change(store, {1: b"a"})
    store.close()
    assert size(path) < 100_000


def test_where_there_is_no_room_for_the_map_the_file_is_cut_again(path: Path) -> None:
    open_store(path, synchronous="off").close()

    def child() -> None:
        # On top of what this process has mapped already, which depends on the tests before.
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (64 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        store = open_store(path)
        assert store._environment.space is None  # type: ignore[attr-defined] # nothing else tells
        assert size(path) < 100_000
        change(store, {1: b"a"})
        os._exit(0)  # and leaves it

    assert ended(in_child(child)) == 0
    assert size(path) < 100_000


def test_a_fork_does_not_wait_for_the_write_back_that_it_leaves_behind(path: Path) -> None:
    store = open_store(path, synchronous="off")
    change(store, {1: b"a"})

    def child() -> None:
        change(store, {2: b"b"})
        store.close()

    with space_of(store).written._stopped._cond:  # type: ignore[attr-defined] # as its thread may at that moment
        forked = in_child(child)
        for _ in range(500):
            if os.waitid(os.P_PID, forked, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.01)
        else:
            os.kill(forked, signal.SIGKILL)
    assert ended(forked) == 0
    store.close()


def test_a_process_of_the_same_number_is_another(path: Path) -> None:
    """Containers that share a store number their processes alike."""
    store = open_store(path, synchronous="off")
    mine = os.getpid()
    raw(store, (RAW + b"large", bytes(10_000_000)))
    reserved = space_of(store).reserved

    def child() -> None:
        store.close()
        other = open_store(path)
        change(other, {1: b"a"})
        os.getpid = lambda: mine
        other._environment.presence._fill_slot()  # type: ignore[attr-defined] # with that number
        other.close()

    assert ended(in_child(child)) == 0
    assert size(path) >= reserved
    store.close()
