"""Zeros behind the last page of the data file, for stores whose commits wait for the disk.

Where a commit makes the file longer, or writes to blocks that are only reserved, its fsync waits for the file system's
journal, and with it for what other files have there: a third longer on a disk of its own, four times as long while
some other program writes files. Where it writes over zeros that lie on the disk it waits for its own pages alone. So
one commit in many puts zeros down for the others.
"""

from __future__ import annotations

import contextlib
import os

from instar.store.data_file import DataFile
from instar.store.presence import SharedPresence

# So much is left at least where a transaction begins: many times what a small one takes.
LEAST_BYTES = 256 << 10
# So much is written at once: a commit is a millisecond longer for it, which it saves to hundreds.
STEP_BYTES = 1 << 20
_ZEROS = bytes(STEP_BYTES)


class Runway:
    """The zeros of one data file; `extend` within the atomic section."""

    def __init__(self, path: str, page_bytes: int) -> None:
        self._file = DataFile(path, page_bytes)
        self._end = 0  # the file is no shorter

    def extend(self) -> None:
        """Have zeros for what a small transaction takes. A full disk is for the transaction itself to find out."""
        used = self._file.used()
        if used + LEAST_BYTES <= self._end:
            return
        # Another process may have made it longer, or a large transaction.
        self._end = self._file.size()
        if used + LEAST_BYTES > self._end:
            begin = max(used, self._end)
            with contextlib.suppress(OSError):
                self._end = begin + os.pwrite(self._file.number, _ZEROS, begin)

    def forget(self) -> None:
        """Let go of file and map: what a forked child does with what it inherited."""
        self._file.close()

    def close(self, presence: SharedPresence) -> None:
        """Nothing is written by this process any more."""
        self._file.end_with_data(presence)
        self._file.close()
