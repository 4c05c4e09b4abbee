"""The atomic section of a store that is written through its map: nothing is touched that is not allowed first.

See `space`, which has the blocks. A small transaction is granted what is there, at the price of a whole path for each
write. One that exceeds it is granted more by and by, at the price of a leaf for each write, since then the tree's
branch pages are accounted for at once. Single pages that it frees LMDB takes again before it takes new ones, so that it
never takes more of these than its tree has had. Values that have pages of their own are counted one by one: these pages
must lie side by side.
"""

from __future__ import annotations

from typing import Any

from instar.store.filling import Pairs, fill, takes_wedges
from instar.store.lmdb_environment import APPENDING
from instar.store.lmdb_section import LmdbSection, Newest
from instar.store.space import SLACK_BYTES, SLACK_SHARE, Space, slack

# The most pages that a write takes of a tree that is known to be at most this deep: each of its path copied and split.
PATH_PAGES = 24
# With the branch pages accounted for: its leaf copied and split.
_LEAF_PAGES = 2
# The most pages that the paths to either end of a gap take that is filled with wedges in it.
_WEDGES_PAGES = 4 * PATH_PAGES
# So many pairs are put at once where nothing is yet, and among others.
_PART, _PART_AMONG = 128, 32
# What is granted at once to a transaction that turns out to be large: as much as it has had, within these bounds.
_LEAST_GRANT, _MOST_GRANT = 64 << 10, 8 << 20
# Of what is written in a row: pages half full, the pages above them, values that begin a page of their own.
DATA_FACTOR = 3
# What LMDB adds to a key and its value, at most.
_NODE_BYTES = 16
# Values that may have pages of their own are longer; it is a little less than LMDB's limit for a key and its value.
_LARGE_VALUE = 1500
# So much more than is in use is given back.
EXCESS_BYTES = 256 << 20
# LMDB keeps no more than 131,071 pages in its list of dirty ones.
_MOST_DIRTY = 100_000


class MappedSection(LmdbSection):
    """A write transaction through the map, and what it may still take of the space that is reserved."""

    __slots__ = (
        *("_begun_bytes", "_granted", "_large", "_page_bytes", "_price", "_put", "_removed", "_removed_before"),
        *("_room", "_singles", "_space"),
    )

    def __init__(self, transaction: Any, environment: Newest, space: Space) -> None:
        if not space.written.dirty:
            space.written.begin()
        self._put = transaction.put
        self._space = space
        self._page_bytes = page_bytes = space.page_bytes
        self._begun_bytes = begun = space.used()
        self._price = PATH_PAGES * page_bytes
        self._large = self._singles = self._removed = self._removed_before = 0
        room = space.reserved - begun - SLACK_BYTES - begun // SLACK_SHARE  # as `slack`, without the call
        if room < 0:
            room = 0  # nothing is there yet, or not even for what is in use, when the store has just been opened
        elif room > EXCESS_BYTES + begun:
            room = space.give_back(begun)
        self._granted = self._room = room
        super().__init__(transaction, environment)

    def put(self, key: bytes, value: bytes) -> object:
        """LMDB's `put`."""
        size = len(value)
        if size > _LARGE_VALUE:
            self._large += size + self._page_bytes
        cost = self._price + DATA_FACTOR * size
        self._room -= cost
        if self._room < 0:
            self._grant(cost)
        return self._put(key, value)

    def append(self, key: bytes, value: bytes) -> object:
        """LMDB's `put` behind all others; false if it was not."""
        size = len(value)
        if size > _LARGE_VALUE:
            self._large += size + self._page_bytes
        cost = DATA_FACTOR * (2 * len(key) + size + _NODE_BYTES)
        self._room -= cost
        if self._room < 0:
            self._grant(cost)
        return self._put(key, value, *APPENDING)

    def delete(self, key: bytes, /) -> bool:
        self._removed += 1
        self._spend(self._price, 0)
        return super().delete(key)

    def _put_among(self, cursor: Any, pairs: Pairs) -> None:
        for begin in range(0, len(pairs), _PART_AMONG):
            part = pairs[begin : begin + _PART_AMONG]
            data = sum([2 * len(key) + len(value) + _NODE_BYTES for key, value in part])
            # The price falls with the first grant, so it is asked for each part.
            self._spend(len(part) * self._price + DATA_FACTOR * data, self._large_bytes(part))
            cursor.putmulti(part)

    def _fill(self, cursor: Any, pairs: Pairs, following: bytes | None) -> None:
        """As it says there.

        How many pages that takes is not known before: as many as pairs if what follows fills its page nearly. So a part
        at a time is allowed for at the worst, and what it did not take comes back. Beside the pages that the tree has
        more than before, LMDB takes those of at most two paths: the ones to either end, copied; and to put and to take
        away wedges, no more than as much again for each.
        """
        page_bytes = self._page_bytes

        def put(run: Pairs) -> None:
            pages = self._pages()
            for begin in range(0, len(run), _PART):
                part = run[begin : begin + _PART]
                large = self._large_bytes(part)
                cost = len(part) * _LEAF_PAGES * page_bytes + large
                self._spend(cost, large)
                cursor.putmulti(part)
                before, pages = pages, self._pages()
                self._room += cost - (pages - before) * page_bytes

        if following is not None and takes_wedges(pairs, following, page_bytes):
            self._spend(_WEDGES_PAGES * page_bytes, 0)
            fill(self._transaction, pairs, put, page_bytes)
            self._removed += 2
        else:
            self._spend(PATH_PAGES * page_bytes, 0)
            put(pairs)

    def _pages(self) -> int:
        stat = self._transaction.stat()
        return int(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])

    def _large_bytes(self, pairs: Pairs) -> int:
        page_bytes = self._page_bytes
        return sum([len(value) + page_bytes for _key, value in pairs if len(value) > _LARGE_VALUE])

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
        end = self._begun_bytes + taken + cost + room
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
