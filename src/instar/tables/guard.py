"""Shared row locks for the moment in which rows are read: READ COMMITTED LOCK (MD-MVCC §3.5).

Whoever reads a row under a lock that he lets go of at once has locked it for no time at all; what is left of that is
the waiting. So nothing is written down: it is looked up who is about to change the row, before it is read. If that is
nobody, then it was free at that moment, and what is read afterwards was committed then or later: the reader might as
well have locked it at the look, or right after the commit that it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from instar.store.lock_modes import Mode
from instar.store.lock_table import Locked, LockTable

# Behind a row's key: whatever is locked of it by parts (store/row_locks.py).
_PARTS = b"\xff\xff"
_PART_BYTES = 2
# Of longer keys the lock table knows the beginning, and a hash.
_WHOLE = 480


class ReadGuard:
    """What the reads of one statement wait for. `owner()`: whose own locks are not in the way; `wait` returns once
    those have ended whom it is given. Its errors: 40P01, 55P03, 57014."""

    def __init__(self, locks: LockTable, owner: Callable[[], bytes], wait: Callable[[Locked], object]) -> None:
        self._locks = locks
        self._owner = owner
        self.wait = wait

    def is_held(self, lower: bytes, upper: bytes) -> bool:
        """Whether there is anybody to be waited for in [lower, upper): if not, what is read there now may be given."""
        return self._locks.met_within(lower, upper, Mode.SHARE, self._owner()) is not None

    def rows(self, keys: Iterable[bytes]) -> None:
        """Wait until nobody is about to change one of the rows at these store keys; they are to be read after that."""
        for key in keys:
            while (met := self._locks.met_within(key, key + _PARTS, Mode.SHARE, self._owner())) is not None:
                self.wait(met)

    def free(
        self, lower: bytes, upper: bytes, *, parts: bool, reverse: bool = False
    ) -> tuple[Locked | None, bytes, bytes]:
        """Who is the first in the way of a scan of [lower, upper), and the range that may be read before one waits for
        him. `parts`: rows are locked by parts."""
        met = self._locks.met_within(lower, upper, Mode.SHARE, self._owner(), reverse=reverse)
        if met is None:
            return None, lower, upper
        row = met.resource[:_WHOLE]
        if reverse:
            return met, min(row + _PARTS * (9 if len(met.resource) > _WHOLE else 1), upper), upper
        if parts and row[-_PART_BYTES : 1 - _PART_BYTES] == _PARTS[:1]:
            row = row[:-_PART_BYTES]
        return met, lower, max(row, lower)
