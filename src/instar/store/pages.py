"""LMDB's data file, read by whole pages: what a scan of many rows wants, without a call of LMDB for each of them.

While a read transaction is open, LMDB writes no page that the transaction can see: pages are copied on write and used
again only when no reader is left that knows them. So a map of the same file, made here and read-only, shows what the
transaction's cursor would show, from the root that the transaction's meta page names on. What is handed on is copied
out of the map, so that it outlives the transaction.

Nothing is taken on trust. The root is believed if from there the store's header and the last key (the log's, with the
newest timestamp) are those that LMDB itself gives; every page must be one of those in use, and bear its own number and
the flags of its kind; positions must lie in the pages. Whatever is not as expected (another format, a meta page that
two commits have overwritten meanwhile, named databases) is `UnreadablePages`, and the caller goes on with LMDB's
cursor.

The format is that of LMDB 0.9 (data version 1), little-endian, 64 bits:

    page       number u64, u16, flags u16, lower u16, upper u16, then u16 positions of nodes, up to `lower`
    overflow   the same header with the number of pages (u32) in place of lower and upper, then one value
    node       u16, u16, flags u16, key length u16, key, value; first two: length of the value, in a branch page, with
               the flags, the child's page number (48 bits); a value that is too large lies in overflow pages, and
               the node has their number (u64)
    meta       page 0 or 1, written by turns: the transaction's number modulo 2
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from instar.encoding.joined import Joined
from instar.store.blocks import Block, block_of
from instar.store.cuts import Cut, ranks

Array = npt.NDArray[Any]

# magic, data version, page size (pad of the free list's record), the main database's flags and depth, root, number of
# the transaction.
_META = struct.Struct("<II16xI44x4xHH32xQ8xQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
# How many there are, and where in each lies the number of the last page in use.
_METAS, _LAST_PAGE = 2, slice(136, 144)
_PAGE = np.dtype([("number", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("lower", "<u2"), ("upper", "<u2")])
_HEADER_BYTES = _PAGE.itemsize
_ONE_PAGE = struct.Struct("<QHHH")
_OVERFLOW_PAGE = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")
_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
# So many leaves of a range say how many keys one has.
_COUNTED_LEAVES = 512
_GOLDEN = 0.6180339887498949  # no multiples of it are near one another, modulo 1
_BIG = 1  # a node's flag: the value lies in overflow pages


class UnreadablePages(Exception):
    """The pages are not what this module expects: LMDB must read them itself."""


class PageFile:
    """A data file, mapped read-only; again whenever it has grown. Threads may share it."""

    def __init__(self, path: str, page_size: int) -> None:
        self._path = path
        self.page_size = page_size
        self.close()

    def close(self) -> None:
        """Let go of the map, which goes when the last array in it does. Who reads on maps it anew."""
        self._mapped: Array = np.empty((0, self.page_size), np.uint8)
        self._pages = self._mapped

    def tree(self, transaction: int, key: bytes, value: bytes | None, last: bytes) -> Tree:
        """What read transaction number `transaction`, which is open, sees: `value` at `key`, and `last` as last key."""
        slot = transaction & 1
        meta = _META.unpack_from(self.upto(slot)[slot], _HEADER_BYTES)
        magic, version, page_size, flags, depth, root, written = meta
        if (magic, version, page_size, flags, written) != (_MAGIC, _VERSION, self.page_size, 0, transaction):
            raise UnreadablePages
        tree = Tree(self, root, depth)
        if tree.get(key) != value or tree.last() != last:
            raise UnreadablePages
        return tree

    def upto(self, number: int) -> Array:
        """All pages in use, that of this number among them: a row of bytes per page."""
        pages = self._pages
        if number >= len(pages):
            pages = self._pages = self._in_use()
            if number >= len(pages):
                raise UnreadablePages
        return pages

    def _in_use(self) -> Array:
        """The pages up to the last one that any state uses. What the file has behind it, a hole for what LMDB is about
        to write, may be cut off at any moment: whoever touched it then would be killed (SIGBUS)."""
        mapped = self._mapped
        if len(mapped) < _METAS or _used(mapped) > len(mapped):
            # The old map goes when the last array in it does.
            mapped = self._mapped = self._map()
        return mapped[: _used(mapped)]

    def _map(self) -> Array:
        try:
            with open(self._path, "rb") as file:
                pages = os.fstat(file.fileno()).st_size // self.page_size
                mapped = mmap.mmap(file.fileno(), pages * self.page_size, access=mmap.ACCESS_READ)
            return np.frombuffer(mapped, np.uint8).reshape(pages, self.page_size)
        except (OSError, ValueError) as caught:
            raise UnreadablePages from caught


def _used(pages: Array) -> int:
    """How many pages the newer one of the two meta pages knows of; no state before it knew of more."""
    return int(pages[:_METAS, _LAST_PAGE].view(np.uint64).max()) + 1


class _Nodes:
    """The nodes of one page, looked at one by one."""

    def __init__(self, page: Array, number: int, kind: int) -> None:
        self._bytes = memoryview(page.data)
        found, _pad, flags, lower = _ONE_PAGE.unpack_from(self._bytes)
        if found != number or flags != kind or not _HEADER_BYTES < lower <= len(page) or lower & 1:
            raise UnreadablePages
        self._page = page
        self._positions = self._bytes[_HEADER_BYTES:lower].cast("H")
        if max(self._positions) > len(page) - _NODE.size:
            raise UnreadablePages

    def key(self, index: int) -> bytes:
        """The key of a node; in a branch page that of the first node means nothing."""
        position = self._positions[index]
        begin = position + _NODE.size
        return bytes(self._bytes[begin : begin + _NODE.unpack_from(self._bytes, position)[3]])

    def __len__(self) -> int:
        return len(self._positions)

    def find(self, key: bytes) -> int:
        """Of a leaf, the first node whose key is not below `key`."""
        return bisect_left(range(len(self._positions)), key, key=self.key)

    def value(self, key: bytes) -> bytes | None:
        """Of a leaf, the value at `key`."""
        index = self.find(key)
        if index == len(self._positions) or self.key(index) != key:
            return None
        low, high, flags, size = _NODE.unpack_from(self._bytes, self._positions[index])
        if flags:
            raise UnreadablePages
        begin = self._positions[index] + _NODE.size + size
        return bytes(self._bytes[begin : begin + (low | high << 16)])

    def descend(self, key: bytes) -> int:
        """Of a branch page, the node below which `key` is."""
        return bisect_right(range(len(self._positions)), key, lo=1, key=self.key) - 1

    def below(self, key: bytes) -> int:
        """Of a branch page, the number of nodes below which there may be keys less than `key`."""
        return bisect_left(range(len(self._positions)), key, lo=1, key=self.key)

    def child(self, index: int) -> int:
        """Of a branch page, the page that a node points to."""
        low, middle, high, _ = _NODE.unpack_from(self._bytes, self._positions[index])
        return int(low | middle << 16 | high << 32)

    def children(self, first: int, end: int | None) -> Array:
        """As `child`, of all nodes from `first` up to `end` (None: to the last)."""
        words = _words(self._page, np.array(self._positions[first:end], np.int64)).astype(np.int64)
        numbers: Array = words[:, 0] | words[:, 1] << 16 | words[:, 2] << 32
        return numbers


def _words(data: Array, positions: Array) -> Array:
    """The four words of each of the nodes at `positions`, which must lie within `data`."""
    everywhere = np.ndarray((len(data) - _NODE.size + 1,), f"V{_NODE.size}", data, 0, (1,))
    return everywhere[positions].view("<u2").reshape(-1, 4)


class _Pages:
    """All nodes of some pages of one kind at once. `pages`: a row of bytes per page."""

    def __init__(self, pages: Array, numbers: Array, kind: int) -> None:
        count, size = pages.shape
        headers = np.ndarray((count,), _PAGE, pages, 0, (size,))
        self.counts: Array = (headers["lower"].astype(np.int64) - _HEADER_BYTES) >> 1
        if bool(((headers["number"] != numbers) | (headers["flags"] != kind) | (self.counts < 1)).any()):
            raise UnreadablePages
        most = int(self.counts.max())
        if most > (size - _HEADER_BYTES) // 2:
            raise UnreadablePages
        within = np.ndarray((count, most), "<u2", pages, _HEADER_BYTES, (size, 2))
        pages_at = np.arange(0, count * size, size, dtype=np.int64)
        self.positions: Array = (within + pages_at[:, None])[np.arange(most) < self.counts[:, None]]
        self.data = pages.reshape(-1)
        if int(self.positions.max()) > len(self.data) - _NODE.size:
            raise UnreadablePages
        self.words = _words(self.data, self.positions)


def children_of(file: PageFile, numbers: Array) -> Array:
    """The pages that the branch pages of these numbers point to."""
    if not len(numbers):
        return numbers
    words = _Pages(file.upto(int(numbers.max()))[numbers], numbers, _BRANCH).words.astype(np.int64)
    children: Array = words[:, 0] | words[:, 1] << 16 | words[:, 2] << 32
    return children


def big_values(file: PageFile, numbers: Array) -> list[tuple[int, int]]:
    """The values that lie in pages of their own, of the leaves of these numbers: the first page, and how many."""
    if not len(numbers):
        return []
    leaves = _Pages(file.upto(int(numbers.max()))[numbers], numbers, _LEAF)
    found = []
    for node in np.flatnonzero(leaves.words[:, 2] & _BIG).tolist():
        at = int(leaves.positions[node]) + _NODE.size + int(leaves.words[node, 3])
        first = int(_NUMBER.unpack(leaves.data[at : at + _NUMBER.size].tobytes())[0])
        number, _pad, flags, count = _OVERFLOW_PAGE.unpack_from(file.upto(first)[first])
        if number != first or flags != _OVERFLOW:
            raise UnreadablePages
        file.upto(first + count - 1)
        found.append((first, count))
    return found


class _Leaves:
    """All nodes of some leaves at once. `pages`: a row of bytes per page."""

    def __init__(self, pages: Array, numbers: Array) -> None:
        nodes = _Pages(pages, numbers, _LEAF)
        self.data = nodes.data
        self._words = nodes.words
        self._large = self._words[:, 2] != 0
        starts = nodes.positions + _NODE.size
        ends = starts + self._words[:, 3]
        # A value that lies in the page is shorter than the page: the second word is 0.
        value_ends = ends + np.where(self._large, _NUMBER.size, self._words[:, 0])
        if int(value_ends.max()) > len(self.data):
            raise UnreadablePages
        self.keys = Joined(self.data, starts, ends)
        self.values = Joined(self.data, ends, value_ends)

    def find(self, key: bytes) -> int:
        """The first node whose key is not below `key`."""
        return bisect_left(range(len(self.keys.starts)), key, key=self.keys.value)

    def large(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        """Of the nodes [begin, end), those whose values lie in overflow pages: (node, page, length of the value)."""
        nodes = np.flatnonzero(self._large[begin:end]) + begin
        found = []
        for node in nodes.tolist():
            low, high, flags, _ = self._words[node].tolist()
            if flags != _BIG:
                raise UnreadablePages
            found.append((node, int(_NUMBER.unpack(self.values.value(node))[0]), low | high << 16))
        return found


class Tree:
    """The pages of one read transaction, which must be open as long as this is used."""

    def __init__(self, file: PageFile, root: int, depth: int) -> None:
        self._file = file
        self._root = root
        self._depth = depth  # in pages, leaf included

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`, which must not be a large one."""
        number = self._root
        for _ in range(self._depth - 1):
            nodes = self._nodes(number, _BRANCH)
            number = nodes.child(nodes.descend(key))
        return self._nodes(number, _LEAF).value(key)

    def last(self) -> bytes:
        """The last key."""
        number = self._root
        for _ in range(self._depth - 1):
            number = self._nodes(number, _BRANCH).child(-1)
        return self._nodes(number, _LEAF).key(-1)

    def block(self, start: bytes, stop: bytes, size: int) -> Block:
        """The first pairs of the range: those in pages of `size` bytes together, and of as many in overflow pages."""
        # Of two pages the second has keys above `start`, however high that lies in the first.
        most = max(2, size // self._file.page_size)
        numbers = self._leaves(start, stop, most + 1)
        if not len(numbers):
            return block_of((), size)
        read = numbers[:most]
        leaves = _Leaves(self._file.upto(int(read.max()))[read], read)
        begin, end = leaves.find(start), leaves.find(stop)
        more = len(numbers) > most
        large = leaves.large(begin, end)
        for taken, (node, _, length) in enumerate(large, 1):
            size -= length
            if size <= 0 and node + 1 < end:
                end, more, large = node + 1, True, large[:taken]
                break
        values = leaves.values.replaced(
            np.array([node for node, _, _ in large], np.int64),
            [self._overflow(number, length) for _, number, length in large],
        )
        if more and end <= begin:
            raise UnreadablePages
        last = leaves.keys.value(end - 1) if more else None
        return Block(leaves.keys.select(slice(begin, end)), values.select(slice(begin, end)), last)

    def cut(self, start: bytes, stop: bytes, parts: int) -> Cut:
        """As in `Reader`, by the pages of the range and how many keys some of them have."""
        if not self._depth or start >= stop:
            return Cut([], 0)
        numbers = np.array([self._root], np.int64)
        for _ in range(self._depth - 1):
            numbers = self._level(numbers, start, stop)
        first, last = (self._nodes(int(numbers[place]), _LEAF) for place in (0, -1))
        skipped, end = first.find(start), last.find(stop)
        if len(numbers) == 1:
            keys = [first.key(skipped + rank) for rank in ranks(end - skipped, parts)]
            return Cut(keys, end - skipped)
        # How many keys there are before each leaf, those before the range included.
        before = np.concatenate([[0, len(first)], len(first) + self._keys_up_to(numbers[1:-1])])
        rows = int(before[-1]) + end - skipped
        wanted = np.array(ranks(rows, parts), np.int64) + skipped
        leaves = np.searchsorted(before, wanted, "right") - 1
        keys = [
            self._key(int(numbers[leaf]), rank)
            for leaf, rank in zip(leaves.tolist(), (wanted - before[leaves]).tolist(), strict=True)
        ]
        return Cut(sorted(set(keys)), rows)

    def _keys_up_to(self, leaves: Array) -> Array:
        """How many keys the leaves up to each of these have, by some of them."""
        if not len(leaves):
            return np.empty(0, np.int64)
        step = -(-len(leaves) // _COUNTED_LEAVES)
        # One of each few, now this, now that: large and small ones may come by turns.
        begins = np.arange(0, len(leaves), step)
        some = leaves[np.minimum(begins + (begins * _GOLDEN % 1 * step).astype(np.int64), len(leaves) - 1)]
        counted = _Pages(self._file.upto(int(some.max()))[some], some, _LEAF).counts
        return np.repeat(counted, step)[: len(leaves)].cumsum()

    def _key(self, leaf: int, rank: int) -> bytes:
        """The key of this rank in a leaf, or the last one where it has fewer."""
        nodes = self._nodes(leaf, _LEAF)
        return nodes.key(min(rank, len(nodes) - 1))

    def _level(self, numbers: Array, start: bytes, stop: bytes) -> Array:
        """Of branch pages that stand side by side, with a range below them, the pages below them that may have keys of
        the range."""
        first, last = (self._nodes(int(numbers[place]), _BRANCH) for place in (0, -1))
        if len(numbers) == 1:
            return first.children(first.descend(start), first.below(stop))
        between = children_of(self._file, numbers[1:-1])
        return np.concatenate([
            first.children(first.descend(start), None), between, last.children(0, last.below(stop))
        ])  # fmt: skip

    def _nodes(self, number: int, kind: int) -> _Nodes:
        return _Nodes(self._file.upto(number)[number], number, kind)

    def _leaves(self, start: bytes, stop: bytes, most: int) -> Array:
        """The first leaves in which there may be keys of the range."""
        found: list[Array] = [np.empty(0, np.int64)]
        if start < stop:
            for numbers in self._below(self._root, self._depth, start, stop):
                found.append(numbers)
                most -= len(numbers)
                if most <= 0:
                    break
        leaves = np.concatenate(found)
        return leaves[: len(leaves) + min(most, 0)]

    def _below(self, number: int, depth: int, start: bytes | None, stop: bytes | None) -> Iterator[Array]:
        """The leaves below a page, in order; None: from its beginning, to its end."""
        if depth == 1:  # the tree is a single page
            yield np.array([number], np.int64)
            return
        nodes = self._nodes(number, _BRANCH)
        children = nodes.children(
            0 if start is None else nodes.descend(start), None if stop is None else nodes.below(stop)
        )
        if depth == 2:
            yield children
            return
        last = len(children) - 1
        for place, child in enumerate(children.tolist()):
            yield from self._below(child, depth - 1, None if place else start, stop if place == last else None)

    def _overflow(self, number: int, length: int) -> bytes:
        """The value in the overflow pages from `number` on."""
        found, _pad, flags, count = _OVERFLOW_PAGE.unpack_from(self._file.upto(number)[number])
        if found != number or flags != _OVERFLOW or _HEADER_BYTES + length > count * self._file.page_size:
            raise UnreadablePages
        pages = self._file.upto(number + count - 1)[number : number + count].reshape(-1)
        return pages[_HEADER_BYTES : _HEADER_BYTES + length].tobytes()
