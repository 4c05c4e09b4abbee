"""Which pages a checkpoint waits for: against all pages of both states, found by walking the trees node by node."""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from instar.store import page_sync
from instar.store.page_sync import sync_pages, written_pages
from instar.store.pages import PageFile

PAGE = 4096


class Data:
    """A data file of LMDB's, with the meta page of each state."""

    def __init__(self, path: Path) -> None:
        self.environment: Any = lmdb.open(str(path), map_size=1 << 30, sync=False)
        self.pages = PageFile(f"{path}/data.mdb", PAGE)
        self.file = os.open(path / "data.mdb", os.O_RDWR)

    def meta(self) -> bytes:
        return os.pread(self.file, PAGE, (self.environment.info()["last_txnid"] & 1) * PAGE)

    def page(self, number: int) -> bytes:
        return os.pread(self.file, PAGE, number * PAGE)

    def reached(self, meta: bytes) -> set[int]:
        """All pages of the state."""
        found: set[int] = set()
        for root_at in (80, 128):
            (root,) = struct.unpack_from("<Q", meta, root_at)
            if root != 2**64 - 1:
                self._walk(root, found)
        return found

    def _walk(self, number: int, found: set[int]) -> None:
        page = self.page(number)
        flags, lower = struct.unpack_from("<HH", page, 10)
        found.add(number)
        for (at,) in struct.iter_unpack("<H", page[16:lower]):
            low, high, node_flags, size = struct.unpack_from("<HHHH", page, at)
            if flags & 1:
                self._walk(low | high << 16 | node_flags << 32, found)
            elif node_flags & 1:
                (first,) = struct.unpack_from("<Q", page, at + 8 + size)
                (count,) = struct.unpack_from("<I", self.page(first), 12)
                found.update(range(first, first + count))


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Data]:
    made = Data(tmp_path)
    yield made
    made.environment.close()
    os.close(made.file)


def write(data: Data, draw: random.Random) -> None:
    with data.environment.begin(write=True) as transaction:
        kind = draw.random()
        if kind < 0.05:  # the tree shrinks to nothing, and grows again
            transaction.drop(data.environment.open_db(txn=transaction), delete=False)
        for _ in range(draw.choice((1, 1, 3, 300))):
            key = b"%05d" % draw.randrange(4000)
            if draw.random() < 0.3:
                transaction.delete(key)
            else:
                transaction.put(key, bytes(draw.choice((10, 10, 100, 1500, 9000, 50_000))))


@pytest.mark.parametrize("seed", range(8))
def test_pages_of_the_newer_state_that_are_not_of_the_older(data: Data, seed: int) -> None:
    draw = random.Random(seed)
    write(data, draw)
    before, reader = data.meta(), data.environment.begin()
    old = data.reached(before)
    for _ in range(25):
        for _ in range(draw.choice((1, 2, 20))):
            write(data, draw)
        after, newer = data.meta(), data.environment.begin()
        new = data.reached(after)
        assert set(written_pages(data.pages, before, after).tolist()) == new - old
        assert data.reached(before) == old  # nothing was written over
        reader.abort()
        before, reader, old = after, newer, new
    reader.abort()


def test_an_empty_tree(data: Data) -> None:
    empty = data.meta()
    assert written_pages(data.pages, empty, empty).tolist() == []
    with data.environment.begin(write=True) as transaction:
        transaction.put(b"a", b"b")
    assert set(written_pages(data.pages, empty, data.meta()).tolist()) == data.reached(data.meta())


def test_ranges_are_synced_or_the_whole_file(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole where blocks are not written in place, where there are many pages, and where a page is unreadable."""
    whole: list[int] = []
    ranges: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(os, "fdatasync", whole.append)

    def note(_file: int, begin: int, size: int, *, wait: bool = False) -> None:
        ranges.append((begin, size, wait))

    monkeypatch.setattr(page_sync, "write_out", note)
    draw = random.Random(1)
    write(data, draw)
    before, reader = data.meta(), data.environment.begin()
    for _ in range(10):
        write(data, draw)
    after = data.meta()
    pages = written_pages(data.pages, before, after)
    rests: list[float] = []
    sync_pages(data.file, data.pages, before, after, in_place=True, rest=rests.append)
    assert whole == []
    assert len(rests) == -(-len(pages) // page_sync.AT_ONCE)
    assert all(0 < took < 1 for took in rests)
    for wait in (False, True):
        covered = [np.arange(begin, begin + size, PAGE) // PAGE for begin, size, asked in ranges if asked == wait]
        assert sorted(np.concatenate(covered)) == pages.tolist()
    # All of a few at a time are begun before any is waited for.
    asked = [wait for _begin, _size, wait in ranges]
    assert len(list(itertools.groupby(asked))) == 2 * -(-len(pages) // page_sync.AT_ONCE)
    ranges.clear()
    sync_pages(data.file, data.pages, before, after, in_place=False)
    monkeypatch.setattr(page_sync, "_MOST_PAGES", len(pages) - 1)
    sync_pages(data.file, data.pages, before, after, in_place=True)
    monkeypatch.undo()
    monkeypatch.setattr(os, "fdatasync", whole.append)
    torn = bytearray(after)
    struct.pack_into("<Q", torn, 128, 1 << 30)
    sync_pages(data.file, data.pages, before, bytes(torn), in_place=True)
    assert whole == [data.file] * 3
    assert ranges == []
    reader.abort()


@pytest.mark.parametrize("in_place", [True, False])
def test_what_cannot_be_written_is_an_error(data: Data, in_place: bool) -> None:
    before = data.meta()
    with data.environment.begin(write=True) as transaction:
        transaction.put(b"a", b"b")
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_pages(1 << 20, data.pages, before, data.meta(), in_place=in_place)


def test_what_is_in_one_of_two_lists_of_pages_only() -> None:
    draw = random.Random(7)
    for _ in range(200):
        new, old = (draw.sample(range(60), draw.randrange(40)) for _ in range(2))
        found = page_sync._unpaired(np.array(new, np.int64), np.array(old, np.int64))
        assert [part.tolist() for part in found] == [sorted(set(new) - set(old)), sorted(set(old) - set(new))]
