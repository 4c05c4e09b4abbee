"""Whether a data file that is shorter than LMDB believes lacks a page that is in use.

LMDB may leave free pages at the end unwritten, which is no damage; but a page that is in use and missing is a SIGBUS or
an abort of the whole process as soon as LMDB meets it. So LMDB is not asked: the tree is followed from the file itself.
"""

from __future__ import annotations

import os
import struct

# Of a meta page, behind its header: roots of the free list and of the keys, number of the transaction.
_META = struct.Struct("<64xQ40xQ8xQ")
# Of a page: its number, flags, lower bound of its free space.
_PAGE = struct.Struct("<Q2xHH")
_PAGE_BYTES = 16
# Of a node: 32 bits of a page number or size, flags (16 more bits of a page number), size of the key.
_NODE = struct.Struct("<IHH")

_BRANCH = 0x01
_LEAF = 0x02
_OVERFLOWS = 0x01
_NO_ROOT = 2**64 - 1


def holds_tree(path: str, transaction: int, page_bytes: int) -> bool:
    """Whether the file at `path` holds every page of the state that LMDB's transaction of this number left.

    The state must not be overwritten meanwhile: the caller has a read transaction open on it.
    """
    with open(path, "rb") as file:
        descriptor = file.fileno()
        metas = [_META.unpack_from(os.pread(descriptor, page_bytes, page * page_bytes), _PAGE_BYTES) for page in (0, 1)]
        pages = os.fstat(descriptor).st_size // page_bytes
        for free, keys, number in metas:
            if number == transaction:
                pending = [root for root in (free, keys) if root != _NO_ROOT]
                return _holds(descriptor, pending, pages, page_bytes)
    # Another process has committed twice since: it has the store open, and has looked.
    return True


def _holds(descriptor: int, pending: list[int], pages: int, page_bytes: int) -> bool:
    while pending:
        number = pending.pop()
        if number >= pages:
            return False
        page = os.pread(descriptor, page_bytes, number * page_bytes)
        own, flags, lower = _PAGE.unpack_from(page)
        if own != number or not flags & (_BRANCH | _LEAF):
            return False
        for at in struct.unpack_from(f"<{(lower - _PAGE_BYTES) // 2}H", page, _PAGE_BYTES):
            low, high, key_bytes = _NODE.unpack_from(page, at)
            if flags & _BRANCH:
                pending.append(low | high << 32)
            elif high & _OVERFLOWS:
                (first,) = struct.unpack_from("<Q", page, at + _NODE.size + key_bytes)
                if first + -(-(_PAGE_BYTES + low) // page_bytes) > pages:
                    return False
    return True
