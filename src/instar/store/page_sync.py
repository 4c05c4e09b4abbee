"""What a checkpoint has to wait for: the pages that its state has and the one before had not.

LMDB never writes a page twice that a state needs: each transaction writes its path to the root anew. So of the pages
that some hundred transactions have made dirty, one in five or so is of use afterwards, and `fdatasync` would write them
all. Both states are open to be read (see `pages`), so the pages of the newer one that are not of the older are found by
going down both trees at once: below a page that both have, nothing differs.

These ranges are written and waited for, a few at a time; then one of the pages is written once more, durably
(RWF_DSYNC): the file system's journal and the disk's cache are waited for by that, as by `fdatasync`. This holds where
blocks are written in place; elsewhere, for many pages, and whenever a page is not as expected, it is `fdatasync`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from time import monotonic

import numpy as np

from instar.store.data_file import write_out
from instar.store.pages import Array, PageFile, UnreadablePages, big_values, children_of

# depth and root of the list of free pages, then of the keys, in a meta page.
_ROOTS = struct.Struct("<16x24x6xH32xQ6xH32xQ")
_NO_ROOT = 2**64 - 1
# More than these are written by fdatasync: they are a large share of what is dirty.
_MOST_PAGES = 16384
# So many pages are written at a time: the next commit's sync of the log waits behind them in the disk's queue.
AT_ONCE = 16


Rest = Callable[[float], object]


def sync_pages(
    file: int,
    pages: PageFile,
    before: bytes,
    after: bytes,
    *,
    in_place: bool,
    rest: Rest = lambda _seconds: None,
) -> None:
    """Have all pages on disk of the state with meta page `after`, if those of `before` are: both are open to be read.
    `rest` is called after each few pages, with the seconds that these have taken. OSError."""
    numbers = None
    if in_place:
        try:
            numbers = written_pages(pages, before, after)
        except UnreadablePages:
            numbers = None
    if numbers is None or len(numbers) > _MOST_PAGES:
        os.fdatasync(file)
    elif len(numbers):
        _sync_ranges(file, pages, numbers, rest)


def _sync_ranges(file: int, pages: PageFile, numbers: Array, rest: Rest) -> None:
    size = pages.page_size
    for ranges in _ranges(numbers, size):
        begun = monotonic()
        # The second time also what was on its way in an older state, which the first time passes over.
        for wait in (False, True):
            for begin, length in ranges:
                write_out(file, begin, length, wait=wait)
        rest(monotonic() - begun)
    first = int(numbers[0])
    page = pages.upto(first)[first].tobytes()
    os.pwritev(file, [page], first * size, os.RWF_DSYNC)


def _ranges(numbers: Array, size: int) -> Iterator[list[tuple[int, int]]]:
    """The parts of the file (begin and length in bytes) that pages of these sorted numbers are, of a few pages at a
    time: pages that follow one another are one."""
    places = np.arange(1, len(numbers))
    cuts = np.flatnonzero((np.diff(numbers) != 1) | (places % AT_ONCE == 0)) + 1
    firsts = np.concatenate([[0], cuts])
    begins, lengths = numbers[firsts] * size, np.diff(firsts, append=len(numbers)) * size
    ranges = list(zip(begins.tolist(), lengths.tolist(), strict=True))
    groups = np.searchsorted(firsts, np.arange(0, len(numbers), AT_ONCE)).tolist()
    for first, end in pairwise([*groups, len(ranges)]):
        yield ranges[first:end]


def written_pages(pages: PageFile, before: bytes, after: bytes) -> Array:
    """The numbers of the pages of the state with meta page `after` that are not of that with meta page `before`."""
    free_before, keys_before = _trees(before)
    free_after, keys_after = _trees(after)
    found = [_difference(pages, free_before, free_after), _difference(pages, keys_before, keys_after)]
    return np.sort(np.concatenate(found))


def _trees(meta: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Depth and root of both trees; depth 0: there is none."""
    free_depth, free, depth, keys = _ROOTS.unpack_from(meta)
    return (0 if free == _NO_ROOT else free_depth, free), (0 if keys == _NO_ROOT else depth, keys)


def _unpaired(new: Array, old: Array) -> tuple[Array, Array]:
    """What is in one of them only; no number is twice in either. (NumPy's sets would make each unique first, which
    takes four times as long; the client's own thread waits for the interpreter meanwhile.)"""
    both = np.concatenate([new << 1, old << 1 | 1])
    both.sort()
    paired = np.flatnonzero(both[1:] >> 1 == both[:-1] >> 1)
    alone = np.ones(len(both), bool)
    alone[paired] = alone[paired + 1] = False
    both = both[alone]
    is_old = both & 1 == 1
    return both[~is_old] >> 1, both[is_old] >> 1


def _difference(pages: PageFile, before: tuple[int, int], after: tuple[int, int]) -> Array:
    """The pages of one tree that were not of the other; a page stays at its height for as long as it is in use."""
    found: list[Array] = []
    new = old = np.empty(0, np.int64)
    for height in range(max(before[0], after[0]), 0, -1):
        if height == after[0]:
            new = np.append(new, after[1])
        if height == before[0]:
            old = np.append(old, before[1])
        new, old = _unpaired(new, old)
        found.append(new)
        if max(len(new), len(old)) > _MOST_PAGES:
            raise UnreadablePages  # that many are not to be copied
        if height > 1:
            new, old = children_of(pages, new), children_of(pages, old)
    large = big_values(pages, new)
    had = {first for first, _count in big_values(pages, old)} if large else set()
    found += [np.arange(first, first + count) for first, count in large if first not in had]
    return np.concatenate(found) if found else np.empty(0, np.int64)
