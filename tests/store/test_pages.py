"""Pages read directly, against LMDB's own cursor."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.store.pages import PageFile, Tree, UnreadablePages, big_values, children_of
from store.building import ended, in_child

Pair = tuple[bytes, bytes]
HEADER = b"\x00\x01"
PAGE = 4096


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lmdb.open(str(tmp_path_factory.mktemp("pages")), map_size=1 << 30, sync=False) as opened:
        yield opened


def page_file(environment: Any) -> PageFile:
    return PageFile(f"{environment.path()}/data.mdb", environment.stat()["psize"])


def tree_of(file: PageFile, transaction: Any) -> Tree:
    cursor = transaction.cursor()
    cursor.last()
    return file.tree(transaction.id(), HEADER, transaction.get(HEADER), cursor.key())


def read(tree: Tree, start: bytes, stop: bytes, size: int) -> Iterator[Pair]:
    """The pairs of all blocks of the range."""
    position: bytes | None = start
    while position is not None:
        block = tree.block(position, stop, size)
        keys = block.keys.values()
        assert block.last is None or block.last == keys[-1]
        yield from zip(keys, block.values.values(), strict=True)
        position = None if block.last is None else block.last + b"\x00"


def scan(transaction: Any, start: bytes, stop: bytes) -> list[Pair]:
    cursor = transaction.cursor()
    cursor.set_range(start)
    return [pair for pair in cursor.iternext() if pair[0] < stop]


def emptied(environment: Any) -> None:
    with environment.begin(write=True) as transaction:
        transaction.drop(environment.open_db(txn=transaction), delete=False)
        transaction.put(HEADER, b"header")


def fill(transaction: Any, draw: random.Random, count: int, key_bytes: int, value_bytes: tuple[int, ...]) -> None:
    """Put random pairs, then delete some."""
    keys = [draw.randbytes(draw.randint(1, key_bytes)) for _ in range(count)]
    for key in keys:
        transaction.put(b"\x10" + key, draw.randbytes(draw.choice(value_bytes)))
    for key in draw.sample(keys, count // 5):
        transaction.delete(b"\x10" + key)


@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 20, 300, 2000]),
    st.sampled_from([2, 20, 500]),  # keys of 500 bytes make a tree of four levels
    st.sampled_from([(0, 30), (150,), (10, 2000, 2100), (1, 5000, 70_000), (16, 17, 2029, 4080, 4081, 8176, 8177)]),
    st.sampled_from([1, 9000, 100_000, 1 << 30]),
)
@settings(max_examples=40, deadline=None)
def test_blocks_are_what_the_cursor_gives(
    environment: Any, seed: int, count: int, key_bytes: int, value_bytes: tuple[int, ...], size: int
) -> None:
    draw = random.Random(seed)
    emptied(environment)
    file = page_file(environment)
    for _ in range(2):
        with environment.begin(write=True) as transaction:
            fill(transaction, draw, count, key_bytes, value_bytes)
        with environment.begin() as transaction:
            tree = tree_of(file, transaction)
            pairs = scan(transaction, b"", b"\xff")
            assert list(read(tree, b"", b"\xff", size)) == pairs
            keys = [HEADER, *(key for key, _ in pairs), b"\x10" + draw.randbytes(2), b"\xff"]
            for _ in range(6):
                start, stop = draw.choice(keys), draw.choice(keys)
                assert list(read(tree, start, stop, size)) == [pair for pair in pairs if start <= pair[0] < stop]
                assert list(read(tree, start + b"\x00", stop + b"\x00", size)) == [
                    pair for pair in pairs if start < pair[0] <= stop
                ]


def test_a_block_is_bounded(environment: Any) -> None:
    emptied(environment)
    with environment.begin(write=True) as transaction:
        for number in range(4000):
            transaction.put(b"\x10%04d" % number, bytes(100_000 if number % 100 == 0 else 100))
    file = page_file(environment)
    with environment.begin() as transaction:
        block = tree_of(file, transaction).block(b"\x10", b"\x11", 1 << 18)
    # What lies in the pages, what lies in overflow pages, and the value that was one too many.
    assert len(block.values.buffer) < 2 * (1 << 18) + 100_000
    assert block.last == block.keys.values()[-1]


@pytest.mark.parametrize("keys", [1, 30, 3_000, 60_000])
def test_a_range_is_cut_by_its_pages(environment: Any, keys: int) -> None:
    emptied(environment)
    draw = random.Random(keys)
    with environment.begin(write=True) as transaction:
        for number in draw.sample(range(keys), keys):
            # Pages have few keys here, many there, and some values have pages of their own.
            size = 400 if number % 1000 < 500 else 10
            transaction.put(b"\x10%06d" % number, bytes(9000 if number % 997 == 0 else size))
    file = page_file(environment)
    with environment.begin() as transaction:
        tree = tree_of(file, transaction)
        assert tree.cut(b"\x10", b"\x11", 1).rows == pytest.approx(keys, rel=0.1)
        assert tree.cut(b"\x11", b"\x10", 3) == tree.cut(b"\x11", b"\x12", 3) == ([], 0)
        for parts in (1, 2, 7, 40) * 30:
            first, last = sorted(draw.choices(range(keys + 1), k=2))
            start, stop, rows = b"\x10%06d" % first, b"\x10%06d" % last, last - first
            found = tree.cut(start, stop, parts)
            # What lies in two leaves is counted key by key.
            assert found.rows == pytest.approx(rows, rel=0.2, abs=0 if rows < 8 else 60)
            bounds = [first, *(int(key[1:]) for key in found.keys), last]
            assert len(found.keys) < max(min(parts, rows), 1)
            assert all(one < other for one, other in pairwise(bounds)) or not rows
            sizes = [other - one for one, other in pairwise(bounds)]
            if rows < 8:
                assert len(sizes) == max(min(parts, rows), 1)
            # Each cut is off by what its neighbours are: some leaves, where not all are counted.
            assert max(sizes) <= rows / parts * 1.2 + 2 + (60 if rows >= 8 else 0) + rows * 0.05


def test_leaves_that_differ_by_turns_are_counted_right(environment: Any) -> None:
    """Every second leaf has few large rows: whoever looked at each fourth saw only those, or none."""
    emptied(environment)
    number = 0
    with environment.begin(write=True) as transaction:
        for _ in range(2_500):
            for size in (*[8] * 60, 1900, 1900):
                transaction.put(b"\x10%08d" % number, bytes(size))
                number += 1
    file = page_file(environment)
    with environment.begin() as transaction:
        found = tree_of(file, transaction).cut(b"\x10", b"\x11", 8)
    assert found.rows == pytest.approx(number, rel=0.1)
    bounds = [0, *(int(key[1:]) for key in found.keys), number]
    assert max(other - one for one, other in pairwise(bounds)) < 1.2 * number / 8


# It rests now and then: else the data would grow faster than they are read, and each view be overwritten first.
WRITER = """
import random, sys, time, lmdb
draw = random.Random(1)
with lmdb.open(sys.argv[1], map_size=1 << 30, sync=False) as environment:
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        with environment.begin(write=True) as transaction:
            for _ in range(draw.choice((1, 1, 1, 50))):
                key = b"\\x10" + draw.randbytes(2)
                if draw.random() < 0.5:
                    transaction.put(key, draw.randbytes(draw.choice((0, 100, 1000, 3000, 20000))))
                else:
                    transaction.delete(key)
            transaction.put(b"\\xf0" + number.to_bytes(8, "big"), b"")
            if number > 10:
                transaction.delete(b"\\xf0" + (number - 10).to_bytes(8, "big"))
        time.sleep(draw.choice((0, 0, 0.002)))
"""


@contextmanager
def writing(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process writes all the time."""
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_another_process_writes_meanwhile(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 30, sync=False) as environment:
        emptied(environment)
        with environment.begin(write=True) as transaction:
            fill(transaction, random.Random(0), 3000, 2, (0, 100, 1000, 3000))
        file = page_file(environment)
        seen: set[int] = set()
        with writing(str(tmp_path)) as process:
            while len(seen) < 10:
                assert process.poll() is None
                with environment.begin() as transaction:
                    try:
                        tree = tree_of(file, transaction)
                    except UnreadablePages:  # two commits in between
                        continue
                    assert list(read(tree, b"\x10", b"\x11", 1 << 20)) == scan(transaction, b"\x10", b"\x11")
                    seen.add(transaction.id())


def test_a_meta_page_that_was_overwritten_is_not_believed(environment: Any) -> None:
    emptied(environment)
    file = page_file(environment)
    with environment.begin() as transaction:
        tree_of(file, transaction)
        for number in range(2):
            with environment.begin(write=True) as writer:
                writer.put(b"\xf0", b"%d" % number)
        with pytest.raises(UnreadablePages):
            tree_of(file, transaction)


def test_a_root_that_shows_something_else_is_not_believed(environment: Any) -> None:
    emptied(environment)
    file = page_file(environment)
    with environment.begin() as transaction:
        number = transaction.id()
        assert file.tree(number, HEADER, b"header", HEADER).get(HEADER) == b"header"
        for key, value, last in (
            (HEADER, b"other", HEADER),
            (HEADER, None, HEADER),
            (HEADER, b"header", b"\xf0"),
            (b"absent", b"header", HEADER),
        ):
            with pytest.raises(UnreadablePages):
                file.tree(number, key, value, last)
        assert file.tree(number, b"absent", None, HEADER)


@pytest.mark.parametrize("duplicates", [False, True])
def test_named_databases_are_left_to_lmdb(tmp_path: Path, duplicates: bool) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 30, max_dbs=2) as environment:
        named = environment.open_db(b"\x10named", dupsort=duplicates)
        with environment.begin(write=True) as transaction:
            transaction.put(HEADER, b"header")
            transaction.put(b"key", b"value", db=named)
        with environment.begin() as transaction:
            tree = tree_of(page_file(environment), transaction)
            with pytest.raises(UnreadablePages):
                tree.block(b"\x10", b"\x11", 1 << 20)


def test_files_that_are_not_there_or_not_lmdbs(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    with pytest.raises(UnreadablePages):
        PageFile(str(path), PAGE).tree(1, HEADER, None, b"")
    for content in (b"", b"short", bytes(PAGE), bytes(10 * PAGE), b"\xff" * 10 * PAGE):
        path.write_bytes(content)
        with pytest.raises(UnreadablePages):
            PageFile(str(path), PAGE).tree(1, HEADER, None, b"")


class Ahead:
    """A data file with pages ahead of those in use, as a keeper makes it, and what reads it."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.path = Path(environment.path(), "data.mdb")
        self.used = (environment.info()["last_pgno"] + 1) * PAGE
        os.truncate(self.path, self.used + 64 * PAGE)
        self.file = page_file(environment)

    def root(self) -> tuple[int, bytes]:
        """Where it lies, and the page."""
        meta = self.path.read_bytes()[self._environment.info()["last_txnid"] % 2 * PAGE :]
        at = struct.unpack_from("<Q", meta, 128)[0] * PAGE
        return at, self.path.read_bytes()[at : at + PAGE]

    def write(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def cut(self) -> None:
        os.truncate(self.path, self.used)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Any]:
    with lmdb.open(str(tmp_path), map_size=1 << 30, sync=False) as environment:
        emptied(environment)
        yield environment


@pytest.mark.parametrize("forged", ["child", "value", "length of a value"])
def test_no_number_leads_to_pages_that_are_cut_off(own: Any, forged: str) -> None:
    """A page that is being overwritten may name any page; what is mapped and not in the file any more is a SIGBUS."""
    with own.begin(write=True) as transaction:
        for number in range(1000 if forged == "child" else 1):
            transaction.put(b"\x10%04d" % number, bytes(10 if forged == "child" else 10_000))
    ahead = Ahead(own)
    with own.begin() as transaction:
        tree = tree_of(ahead.file, transaction)
        at, page = ahead.root()
        node = struct.unpack_from("<H", page, 16 + 2)[0]  # the second: the header is the first
        number = node + 8 + 5  # behind its key: of the page with the value
        if forged == "child":
            ahead.write(at + node, struct.pack("<I", ahead.used // PAGE + 5))
        elif forged == "value":
            ahead.write(at + number, struct.pack("<Q", ahead.used // PAGE + 5))
        else:
            first = int(struct.unpack_from("<Q", page, number)[0])
            ahead.write(first * PAGE + 12, struct.pack("<I", 40))
            ahead.write(at + node, struct.pack("<I", 30 * PAGE))
        ahead.cut()

        def checkpoint() -> None:
            root = np.array([at // PAGE])
            if forged == "child":
                children_of(ahead.file, children_of(ahead.file, root))
            else:
                big_values(ahead.file, root)

        def read_both() -> None:
            for reading in (lambda: tree.block(b"\x10", b"\x11", 1 << 20), checkpoint):
                with pytest.raises(UnreadablePages):
                    reading()

        assert ended(in_child(read_both)) == 0


def test_pages_that_come_into_use_are_read(own: Any) -> None:
    """Those that were mapped before they were in use, and those behind what was mapped."""
    ahead = Ahead(own)
    for number in range(8):
        with own.begin(write=True) as transaction:
            transaction.put(b"\x10%d" % number, bytes(100_000))
        with own.begin() as transaction:
            tree = tree_of(ahead.file, transaction)
            assert list(read(tree, b"", b"\xff", 1 << 20)) == scan(transaction, b"", b"\xff")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, int, bytes]:
    """Where to put a damaged file, the bytes of a sound one, its transaction and its last key."""
    path = tmp_path_factory.mktemp("sound")
    with lmdb.open(str(path), map_size=1 << 30, sync=False) as environment:
        emptied(environment)
        with environment.begin(write=True) as transaction:
            fill(transaction, random.Random(0), 300, 60, (10, 100, 3000))
        with environment.begin() as transaction:
            cursor = transaction.cursor()
            cursor.last()
            return path / "damaged", (path / "data.mdb").read_bytes(), transaction.id(), cursor.key()


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_damaged_pages_are_never_read_past_their_end(sound: tuple[Path, bytes, int, bytes], seed: int) -> None:
    """Whatever the bytes: pairs, or UnreadablePages."""
    path, content, number, last = sound
    draw = random.Random(seed)
    data = bytearray(content)
    for _ in range(draw.choice((1, 10, 300))):
        page = draw.randrange(2, len(data) // PAGE) * PAGE
        first_node = page + int.from_bytes(data[page + 16 : page + 18], "little") % PAGE
        # In the heads of pages and of their nodes rather than in values.
        place = draw.choice((page + draw.randrange(64), page + draw.randrange(PAGE), first_node + draw.randrange(8)))
        data[min(place, len(data) - 1)] = draw.randrange(256)
    path.write_bytes(data)
    try:
        tree = PageFile(str(path), PAGE).tree(number, HEADER, b"header", last)
        block = tree.block(b"", b"\xff", draw.choice((1, 1 << 24)))
    except UnreadablePages:
        return
    assert block.last is None or len(block.keys.starts)
    for strings in (block.keys, block.values):
        assert bool((strings.starts <= strings.ends).all())
        assert int(strings.ends.max(initial=0)) <= len(strings.buffer)
