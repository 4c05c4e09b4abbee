"""Zeros ahead of a data file that grows, where commits wait for the disk."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import pytest

from instar.errors import Error
from instar.store import open_store
from instar.store.engine import Section, Store
from instar.store.lmdb import LmdbStore
from instar.store.runway import LEAST_BYTES, STEP_BYTES
from store.building import ALL, change, contents, ended, in_child

RAW = b"\x03\x01"


def size(path: Path) -> int:
    return (path / "data.mdb").stat().st_size


def used(store: Store) -> int:
    assert isinstance(store, LmdbStore)
    runway = store._environment.runway
    assert runway is not None
    return runway._file.used()


def grow(store: Store, bytes_: int, seed: int) -> None:
    """One transaction that puts so much."""
    draw = random.Random(seed)

    def step(section: Section) -> None:
        for _ in range(bytes_ // 1000):
            section.put(RAW + draw.randbytes(8), draw.randbytes(1000))

    store.background([step])


@pytest.fixture(params=["full", "normal"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    made = tmp_path / "store"
    open_store(made, synchronous=request.param).close()
    return made


def test_commits_write_over_zeros_and_the_file_ends_with_its_data(path: Path) -> None:
    assert size(path) < 100_000
    store = open_store(path)
    sizes = set()
    for number in range(300):
        before = used(store)
        change(store, {number: b"a"})
        assert size(path) - before >= LEAST_BYTES
        sizes.add(size(path))
    assert len(sizes) == 1
    with (path / "data.mdb").open("rb") as file:
        file.seek(used(store))
        assert not any(file.read())
    store.close()
    assert size(path) < 1 << 20
    store = open_store(path)
    assert len(contents(store, *ALL)) >= 300
    assert size(path) == used(store)
    store.close()


def test_large_transactions_go_beyond(path: Path) -> None:
    """What LMDB has put behind the zeros is never written over."""
    store = open_store(path)
    for number, bytes_ in enumerate((10_000, 3 * STEP_BYTES, 1_000, 8 * STEP_BYTES, 1_000, 1_000)):
        grow(store, bytes_, number)
        change(store, {number: b"a"})
    known = contents(store, *ALL)
    assert len(known) >= 11 * STEP_BYTES // 1000
    store.close()
    store = open_store(path)
    assert contents(store, *ALL) == known
    store.close()


def test_processes_take_turns(path: Path) -> None:
    """Each finds the file longer than it has left it."""
    store = open_store(path)

    def grow_there() -> None:
        own = open_store(path)
        for number in range(5):
            grow(own, STEP_BYTES // 2, 100 + number)
        own.close()

    for number in range(5):
        change(store, {number: b"a"})
        assert ended(in_child(grow_there)) == 0
        grow(store, STEP_BYTES // 3, number)
    known = contents(store, *ALL)
    store.close()
    store = open_store(path)
    assert contents(store, *ALL) == known
    store.close()


def test_where_no_zeros_can_be_put_down_the_transaction_itself_finds_out(path: Path) -> None:
    def full() -> None:
        store = open_store(path)
        change(store, {1: b"a"})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size(path), hard))
        for number in range(100):
            change(store, {number: b"b"})  # over zeros that are there
        with pytest.raises(Error) as caught:
            grow(store, 2 * STEP_BYTES, 1)
        assert caught.value.sqlstate == "53100"
        change(store, {1: b"c"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        grow(store, 2 * STEP_BYTES, 1)
        store.close()

    assert ended(in_child(full)) == 0
    store = open_store(path)
    assert len(contents(store, *ALL)) >= 2 * STEP_BYTES // 1000
    store.close()
