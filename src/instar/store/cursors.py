"""Ranges of keys, read through LMDB's cursor, be it a read or a write transaction's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from instar.store.header import HEADER_KEY, Head, decode_header, head_of

# Ranges of fewer keys are read pair by pair.
SHORT = 8


def scan_range(cursor: Any, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    if not reverse:
        if cursor.set_range(start):
            for pair in cursor.iternext():
                if pair[0] >= stop:
                    return
                yield pair
        return
    # The cursor goes to the last key below `stop`.
    if not (cursor.prev() if cursor.set_range(stop) else cursor.last()):
        return
    for pair in cursor.iterprev():
        if pair[0] < start:
            return
        yield pair


def batch_of_range(
    cursor: Any, start: bytes, stop: bytes, limit: int, reverse: bool
) -> tuple[list[bytes], list[bytes]]:
    """A short range in one go; else keys first, in growing chunks (to read little past the end), then the values."""
    peek = limit if reverse else min(limit, SHORT)
    pairs = list(islice(scan_range(cursor, start, stop, reverse), peek))
    if reverse or limit <= SHORT or len(pairs) < SHORT:
        return [key for key, _value in pairs], [value for _key, value in pairs]
    cursor.set_range(start)
    keys: list[bytes] = []
    following = cursor.iternext(values=False)
    chunk = SHORT * 8
    while len(keys) < limit:
        wanted = min(chunk, limit - len(keys))
        got = list(islice(following, wanted))
        if got and got[-1] >= stop:
            keys += [key for key in got if key < stop]
            break
        keys += got
        if len(got) < wanted:
            break
        chunk *= 8
    cursor.set_range(start)
    return keys, list(islice(cursor.iternext(keys=False), len(keys)))


def read_head(transaction: Any) -> Head:
    """The newest state as the transaction sees it."""
    cursor = transaction.cursor()
    cursor.last()
    return head_of(decode_header(transaction.get(HEADER_KEY)), cursor.key(), cursor.value())
