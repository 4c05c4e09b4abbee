"""LMDB's data file beside LMDB: how much of it is in use, and where it ends."""

from __future__ import annotations

import mmap
import os

from instar.store.presence import SharedPresence

# A meta page's last page number in use, in words from its beginning.
_LAST_PAGE = 17


class DataFile:
    """The data file `path`, of pages of `page_bytes`. What it tells is certain within the atomic section alone."""

    def __init__(self, path: str, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._metas = mmap.mmap(self.number, 2 * page_bytes, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self.number)
            raise
        self._words = memoryview(self._metas).cast("Q")
        self._second = page_bytes // 8 + _LAST_PAGE

    def used(self) -> int:
        """Bytes of the file that the newest state knows of. (The other meta page's is not greater.)"""
        first, second = self._words[_LAST_PAGE], self._words[self._second]
        return ((first if first > second else second) + 1) * self.page_bytes

    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.number).st_size

    def cut(self, end: int) -> None:
        """Have the file end at `end`, if it does not end before."""
        if self.size() > end:
            os.ftruncate(self.number, end)

    def end_with_data(self, presence: SharedPresence) -> None:
        """Have the file end where its data ends, if this process, which writes no more, was the last one."""
        with presence.registration():
            if presence.is_alone():
                self.cut(self.used())

    def close(self) -> None:
        """Let go of file and map."""
        self._words.release()
        self._metas.close()
        os.close(self.number)
