"""How many pairs are put where nothing was, so that they fill LMDB's pages.

LMDB splits a full page in the middle, unless what is put comes behind all that the page holds: then the page stays as
it is, and a new one begins. Keys that come in order have that only at the end of the whole tree. Anywhere else the keys
that follow the gap lie in the page that is being filled, and stay with each of its halves: pages are left half full,
and a fifth full behind records of a kilobyte.

So the page is made to end where the pairs go, for as long as they are put, by two *wedges*: keys right behind the last
pair, each of which takes half of a page, so that no page holds both and anything else. The second one is put first and
holds on to what follows; the first one, put before it, is what makes the page split; when it is taken away, the end of
the gap is the end of a page. (Measured: 90 to 97 % of a page for runs of some pages, whatever follows, and 60 to 90 %
for those of half a page to two.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from instar.store.engine import rowset_prefix

Pairs = list[tuple[bytes, bytes]]

# Of an LMDB page: its header; and what a node takes beside key and value: its own header, and its place in the page.
_PAGE_HEADER, _NODE_HEADER, _POSITION = 16, 8, 2
# By so much a wedge's key is longer than that of the last pair.
_WEDGE_KEY_BYTES = 2
# Runs of less than so many pages are put as they are, at the end of a table or an index, and within it.
_LEAST_PAGES_AT_END, _LEAST_PAGES = 0.5, 1.5
# So are pairs of which a page holds fewer: where a page ends, its last one goes to the next.
_LEAST_NODES = 6
_PREFIX_BYTES = len(rowset_prefix(0))
# LMDB's limit.
MAX_KEY_BYTES = 511


def takes_wedges(pairs: Pairs, following: bytes, page_bytes: int) -> bool:
    """Whether wedges fill pages better with sorted `pairs`, put right before the key `following`, than LMDB alone does.

    The last page of each run is left to runs that go on from there. Where the table or index ends these are to come,
    mostly, and records of others follow, which may be large. Elsewhere a run is to have some pages.
    """
    last = pairs[-1][0]
    if len(last) + _WEDGE_KEY_BYTES > MAX_KEY_BYTES:
        return False
    data_bytes = sum([len(key) + len(value) + _NODE_HEADER + _POSITION for key, value in pairs])
    if data_bytes * _LEAST_NODES > page_bytes * len(pairs):
        return False
    ends = following[:_PREFIX_BYTES] != last[:_PREFIX_BYTES]
    return data_bytes >= page_bytes * (_LEAST_PAGES_AT_END if ends else _LEAST_PAGES)


def fill(transaction: Any, pairs: Pairs, put: Callable[[Pairs], object], page_bytes: int) -> None:
    """Have `put` put sorted `pairs`, in one or two runs, where nothing is stored from the first to the last; with
    wedges behind them. lmdb.Error, and what `put` raises: the transaction is to be aborted then, wedges and all."""
    near = pairs[-1][0] + b"\x00"
    far = near + b"\x00"
    value = wedge(page_bytes, len(far))
    # What is there already is not touched: the pairs are put all the same.
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


def _opening(pairs: Pairs, least_bytes: int) -> int:
    """How many pairs are put before the near wedge is taken away. A page that is left with less than a quarter LMDB
    fills up from the next one: the far wedge would come over."""
    size = 0
    for count, (key, value) in enumerate(pairs, 1):
        size += len(key) + len(value) + _NODE_HEADER + _POSITION
        if size >= least_bytes:
            return count
    return len(pairs)
