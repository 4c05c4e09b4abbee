"""Disk blocks that are reserved before LMDB's write map touches them, for stores with `synchronous = off`.

LMDB may write its pages through the map of the data file instead of by a system call for each: a single-row update
takes half the time, and a quarter in a large store. What speaks against it is that touching a page for which the disk
has no room is a SIGBUS. So blocks are reserved first: a write transaction begins with what is known to be there, every
write takes from it the most that it can need, and more is reserved, or refused (ENOSPC), before LMDB goes on.

That holds where a reserved block can be overwritten whatever happens, which rules out file systems that copy on write;
stores on others, and on unknown ones, are written without the map.

LMDB makes the file as large as its map whenever the map is opened. It is cut again to what the processes have reserved,
which they publish with their presence, under the writer mutex, so that nobody reserves meanwhile.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from instar.store.data_file import DataFile
from instar.store.lmdb_environment import APPENDING
from instar.store.presence import SharedPresence
from instar.store.writeback import WriteBack

# f_type of ext2 to 4 and tmpfs. (XFS may share the blocks of a file with a copy of it.)
_OVERWRITING = (0xEF53, 0x01021994)
_STATFS_BYTES = 256  # more than struct statfs has; it begins with f_type, a long

# The most pages that a write takes of a tree that is known to be at most this deep: each of its path copied and split.
_PATH_PAGES = 24
# With the branch pages accounted for: its leaf copied and split.
_LEAF_PAGES = 2
# So many pairs are put at once where nothing is yet.
_PART = 128
# What is granted at once to a transaction that turns out to be large: as much as it has had, within these bounds.
_LEAST_GRANT, _MOST_GRANT = 64 << 10, 8 << 20
# Of what is written in a row: pages half full, the pages above them, values that begin a page of their own.
_DATA_FACTOR = 3
# What LMDB adds to a key and its value, at most.
_NODE_BYTES = 16
# Values that may have pages of their own are longer; it is a little less than LMDB's limit for a key and its value.
_LARGE_VALUE = 1500
# LMDB keeps no more than 131,071 pages in its list of dirty ones.
_MOST_DIRTY = 100_000
# Beside what the writes need: the list of free pages, of 8 bytes for each page, written anew.
_SLACK_BYTES = 256 << 10
_SLACK_SHARE = 256
# Reserved ahead: a part of what is in use, within these bounds.
_LEAST_STEP, _MOST_STEP, _STEP_SHARE = 1 << 20, 64 << 20, 8
# So much more than is in use is given back.
_EXCESS_BYTES = 256 << 20


def can_reserve(path: str) -> bool:
    """Whether the file system of `path` is one where a block that is reserved can always be written."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(path), status):
        return False
    return ctypes.sizeof(ctypes.c_size_t) == 8 and ctypes.c_long.from_buffer(status).value in _OVERWRITING


def slack(used: int) -> int:
    """Bytes that any transaction may need beside its writes."""
    return _SLACK_BYTES + used // _SLACK_SHARE


class Space:
    """What this process may touch of the data file `path`; all but `close` within the atomic section."""

    def __init__(self, path: str, page_bytes: int, presence: SharedPresence) -> None:
        self.page_bytes = page_bytes
        self._presence = presence
        self._file = DataFile(path, page_bytes)
        self.used = self._file.used
        self.reserved = 0
        self.written = WriteBack(self._file.number, page_bytes, presence.takes_turn)

    def reserve(self, end: int) -> None:
        """Have blocks for everything below `end`, and some more if there are; OSError if the disk is full."""
        if end <= self.reserved:
            return
        step = min(max(end // _STEP_SHARE, _LEAST_STEP), _MOST_STEP)
        try:
            self._allocate(end + step)
        except OSError:
            self._allocate(end)

    def _allocate(self, end: int) -> None:
        end = -(-end // self.page_bytes) * self.page_bytes
        try:
            os.posix_fallocate(self._file.number, self.reserved, end - self.reserved)
        except OSError:
            self.settle()  # part of it may have been allocated
            raise
        self.reserved = end
        self._presence.publish_reserved(end)

    def settle(self) -> None:
        """Cut the file to what any process may touch."""
        self._file.cut(max(self.used(), self.reserved, self._presence.reserved_by_others()))

    def give_back(self, used: int) -> int:
        """Keep no more than what small transactions need; returns how much it is, beside the slack."""
        self.reserved = used + slack(used) + _MOST_STEP
        self._presence.publish_reserved(self.reserved)
        self.settle()
        return _MOST_STEP

    def forget(self) -> None:
        """Let go of file and map alone: what a forked child does with what it inherited."""
        self.written.forget()
        self._file.close()

    def close(self) -> None:
        """Nothing is written by this process any more: if it was the last one, the file ends where its data ends."""
        self._file.end_with_data(self._presence)
        self.written.stop()
        self.forget()


class Allowance:
    """What one write transaction may still take of the space that is reserved.

    A small one is granted what is there, at the price of a whole path for each write. One that exceeds it is granted
    more by and by, at the price of a leaf for each write, since then the tree's branch pages are accounted for at once.
    Single pages that it frees LMDB takes again before it takes new ones, so that it never takes more of these than its
    tree has had. Values that have pages of their own are counted one by one: these pages must lie side by side.

    There is one for each transaction. One that outlived it would keep LMDB's transaction alive where an interrupt has
    lost the section before anybody knew of it, and with it the writer mutex.
    """

    __slots__ = (
        *("_begun", "_granted", "_large", "_page_bytes", "_price", "_put", "_removed", "_removed_before", "_room"),
        *("_singles", "_space", "_transaction"),
    )

    def __init__(self, transaction: Any, space: Space) -> None:
        if not space.written.dirty:
            space.written.begin()
        self._put = transaction.put
        self._transaction = transaction
        self._space = space
        self._page_bytes = page_bytes = space.page_bytes
        self._begun = begun = space.used()
        self._price = _PATH_PAGES * page_bytes
        self._large = self._singles = self._removed = self._removed_before = 0
        room = space.reserved - begun - _SLACK_BYTES - begun // _SLACK_SHARE  # as `slack`, without the call
        if room < 0:
            room = 0  # nothing is there yet, or not even for what is in use, when the store has just been opened
        elif room > _EXCESS_BYTES + begun:
            room = space.give_back(begun)
        self._granted = self._room = room

    def put(self, key: bytes, value: bytes) -> object:
        """LMDB's `put`."""
        size = len(value)
        if size > _LARGE_VALUE:
            self._large += size + self._page_bytes
        cost = self._price + _DATA_FACTOR * size
        self._room -= cost
        if self._room < 0:
            self._grant(cost)
        return self._put(key, value)

    def append(self, key: bytes, value: bytes) -> object:
        """LMDB's `put` behind all others; false if it was not."""
        size = len(value)
        if size > _LARGE_VALUE:
            self._large += size + self._page_bytes
        cost = _DATA_FACTOR * (2 * len(key) + size + _NODE_BYTES)
        self._room -= cost
        if self._room < 0:
            self._grant(cost)
        return self._put(key, value, *APPENDING)

    def put_many(self, cursor: Any, pairs: list[tuple[bytes, bytes]]) -> None:
        """LMDB's `putmulti`, anywhere."""
        data = sum([2 * len(key) + len(value) + _NODE_BYTES for key, value in pairs])
        self._spend(len(pairs) * self._price + _DATA_FACTOR * data, self._large_bytes(pairs))
        cursor.putmulti(pairs)

    def fill(self, cursor: Any, runs: list[list[tuple[bytes, bytes]]]) -> None:
        """`runs`, one after the other, where nothing is stored from the least key of them all to the greatest.

        How many pages that takes is not known before: as many as pairs if what follows fills its page nearly. So a part
        at a time is allowed for at the worst, and what it did not take comes back. Beside the pages that the tree has
        more than before, LMDB takes those of at most two paths: the ones to either end, copied.
        """
        page_bytes = self._page_bytes
        self._spend(_PATH_PAGES * page_bytes, 0)
        pages = self._pages()
        for run in runs:
            for begin in range(0, len(run), _PART):
                part = run[begin : begin + _PART]
                large = self._large_bytes(part)
                cost = len(part) * _LEAF_PAGES * page_bytes + large
                self._spend(cost, large)
                cursor.putmulti(part)
                before, pages = pages, self._pages()
                self._room += cost - (pages - before) * page_bytes

    def _pages(self) -> int:
        stat = self._transaction.stat()
        return int(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])

    def _large_bytes(self, pairs: list[tuple[bytes, bytes]]) -> int:
        page_bytes = self._page_bytes
        return sum([len(value) + page_bytes for _key, value in pairs if len(value) > _LARGE_VALUE])

    def delete(self) -> None:
        """Be allowed to delete once more."""
        self._removed += 1
        self._spend(self._price, 0)

    def _spend(self, cost: int, large: int) -> None:
        self._large += large
        self._room -= cost
        if self._room < 0:
            self._grant(cost)

    def _grant(self, cost: int) -> None:
        """Have room for `cost`, which is spent already and was not there, and for more. What was spent before it may be
        more than can have been taken; of `cost` itself nothing has been taken yet."""
        stat, page_bytes = self._transaction.stat(), self._page_bytes
        branches = stat["branch_pages"] * page_bytes
        spent = self._granted - (self._room + cost)
        taken = min(spent, self._most_taken(branches + stat["leaf_pages"] * page_bytes))
        room = min(max(taken, _LEAST_GRANT), _MOST_GRANT)
        end = self._begun + taken + cost + room
        self._space.reserve(end + 2 * branches + slack(end))
        self._granted = taken + cost + room
        self._room = room
        self._price = _LEAF_PAGES * page_bytes

    def _most_taken(self, singles: int) -> int:
        """The most that can have been taken, whatever was allowed, by a tree that now has `singles` in single pages."""
        page_bytes = self._page_bytes
        # A delete takes away a leaf at most, and all of them together no more branches than leaves.
        since = 2 * (self._removed - self._removed_before) * page_bytes
        self._removed_before = self._removed
        self._singles = max(self._singles, singles + since)
        most = self._singles + self._large
        if most > _MOST_DIRTY * page_bytes:
            # Dirty pages that LMDB has put aside are not taken again when they are freed.
            most += 2 * self._removed * page_bytes
        return most
