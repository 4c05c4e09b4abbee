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

from instar.store.data_file import DataFile
from instar.store.presence import SharedPresence
from instar.store.writeback import WriteBack

# f_type of ext2 to 4 and tmpfs. (XFS may share the blocks of a file with a copy of it.)
_OVERWRITING = (0xEF53, 0x01021994)
_STATFS_BYTES = 256  # more than struct statfs has; it begins with f_type, a long

# Beside what the writes need: the list of free pages, of 8 bytes for each page, written anew.
SLACK_BYTES = 256 << 10
SLACK_SHARE = 256
# Reserved ahead: a part of what is in use, within these bounds.
_LEAST_STEP, _MOST_STEP, _STEP_SHARE = 1 << 20, 64 << 20, 8


def can_reserve(path: str) -> bool:
    """Whether the file system of `path` is one where a block that is reserved can always be written."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(path), status):
        return False
    return ctypes.sizeof(ctypes.c_size_t) == 8 and ctypes.c_long.from_buffer(status).value in _OVERWRITING


def slack(used: int) -> int:
    """Bytes that any transaction may need beside its writes."""
    return SLACK_BYTES + used // SLACK_SHARE


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
