"""LMDB's data file beside LMDB: how much of it is in use, where it ends, and parts of it on their way to the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

from instar.store.presence import SharedPresence

# A meta page's last page number in use, and the transaction that left it, in words from its beginning.
_LAST_PAGE, _TRANSACTION = 17, 18
_MAGIC = 0xBEEFC0DE
# Of a meta page: its own number, LMDB's magic, the number of the transaction.
_META = struct.Struct("<Q8xI124xQ")
_NUMBER = struct.Struct("<Q")
# Read at once.
_READ_BYTES = 1 << 20


# The file, where to begin, how much, what to do: to write what is dirty, and to wait for that too.
_sync_file_range = ctypes.CDLL(None, use_errno=True).sync_file_range
_sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_WRITE, _WRITE_AND_WAIT = 2, 7


def write_out(file: int, begin: int, size: int, *, wait: bool = False) -> None:
    """Have the system begin to write a part of an open file, as far as the disk's queue has room; or `wait` until it is
    written, which is no promise: the disk's cache and the file system's own records may be missing. OSError."""
    if _sync_file_range(file, begin, size, _WRITE_AND_WAIT if wait else _WRITE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def meta_number(page: bytes) -> int:
    """The number of the LMDB transaction whose state the meta page is of; -1 if it is none."""
    if len(page) < _META.size:
        return -1
    _page, magic, transaction = _META.unpack_from(page)
    return int(transaction) if magic == _MAGIC else -1


def meta_pages(meta: bytes, transaction: int) -> bytes:
    """Both meta pages of a data file in which LMDB finds the state of `meta`, left by that transaction."""
    pages = []
    for number in (0, 1):
        page = bytearray(meta)
        _NUMBER.pack_into(page, 0, number)
        # The one that is not looked at is older.
        _NUMBER.pack_into(page, 8 * _TRANSACTION, transaction if number == transaction & 1 else transaction - 1)
        pages.append(bytes(page))
    return b"".join(pages)


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

    def meta(self, transaction: int) -> bytes:
        """The meta page of the newest state, which LMDB's transaction of that number has left."""
        begin = (transaction & 1) * self.page_bytes
        page = self._metas[begin : begin + self.page_bytes]
        assert meta_number(page) == transaction  # LMDB's two meta pages take turns
        return page

    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.number).st_size

    def extend(self, end: int) -> None:
        """Have the file end no earlier than at `end`, with a hole; within the atomic section, since it would cut off
        what others write behind its end meanwhile. OSError."""
        if self.size() < end:
            os.ftruncate(self.number, end)

    def cache_pages(self, begin: int, end: int) -> None:
        """Have the system's cache hold a part of the file, a hole say, page by page. OSError.

        What is written in a row it would hold in large folios; later, with each page of one that is written to disk,
        all go that are dirty in it. For what is read at random it makes none.
        """
        os.posix_fadvise(self.number, 0, 0, os.POSIX_FADV_RANDOM)
        buffer = bytearray(_READ_BYTES)
        for place in range(begin, end, _READ_BYTES):
            os.preadv(self.number, [buffer], place)

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
