"""How many pairs are put where nothing was, so that they fill LMDB's pages.

LMDB splits a full page in the middle, unless what is put comes behind all that the page holds: then the page stays as
it is, and a new one begins. Keys that come in order have that only at the end of the whole tree. Anywhere else the keys
that follow the gap lie in the page that is being filled, and stay with each of its halves: pages are left half full,
and a fifth full behind records of a kilobyte.

So the page is made to end where the pairs go, for as long as they are put, by two *wedges*: keys right behind the last
pair, each of which takes half of a page, so that no page holds both and anything else. The second one is put first and
holds on to what follows; the first one, put before it, is what makes the page split; when it is taken away, the end of
the gap is the end of a page. (Measured: 92 to 97 % of a page for runs of some pages, whatever follows.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Pairs = list[tuple[bytes, bytes]]

# Of an LMDB page: its header; and what a node takes beside key and value: its own header, and its place in the page.
_PAGE_HEADER, _NODE_HEADER, _POSITION = 16, 8, 2
# A run of less than so many pages is put as it is.
_LEAST_PAGES = 1
# LMDB's limit.
MAX_KEY_BYTES = 511


def fill(transaction: Any, pairs: Pairs, put: Callable[[Pairs], object], page_bytes: int) -> None:
    """Have `put` put sorted `pairs`, in one or several runs, where nothing is stored from the first to the last."""
    near = pairs[-1][0] + b"\x00"
    far = near + b"\x00"
    if len(far) > MAX_KEY_BYTES or _data_bytes(pairs) < _LEAST_PAGES * page_bytes:
        put(pairs)
        return
    value = wedge(page_bytes, len(far))
    # What is there already is not touched: the pairs are the better for it all the same.
    if not transaction.put(far, value, overwrite=False):
        put(pairs)
        return
    if transaction.put(near, value, overwrite=False):
        opening = _opening(pairs, (page_bytes - _PAGE_HEADER) // 4)
        put(pairs[:opening])
        transaction.delete(near)
        pairs = pairs[opening:]
    if pairs:
        put(pairs)
    transaction.delete(far)


def wedge(page_bytes: int, key_bytes: int) -> bytes:
    """The value of a wedge, with whose key of that length it takes half of a page."""
    return bytes((page_bytes - _PAGE_HEADER) // 2 - _POSITION - _NODE_HEADER - key_bytes)


def _data_bytes(pairs: Pairs) -> int:
    return sum([len(key) + len(value) for key, value in pairs])


def _opening(pairs: Pairs, least_bytes: int) -> int:
    """How many pairs are put before the near wedge is taken away. A page that is left with less than a quarter LMDB
    fills up from the next one: the far wedge would come over."""
    size = 0
    for count, (key, value) in enumerate(pairs, 1):
        size += len(key) + len(value) + _NODE_HEADER + _POSITION
        if size >= least_bytes:
            return count
    return len(pairs)
