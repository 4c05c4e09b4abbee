"""Blocks: the pairs of a range in one buffer, as a scan of many rows reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from instar.encoding.joined import Joined, join_values


class Block(NamedTuple):
    """Neighbouring pairs, valid for good; `last` is the last key if there may be more behind it, else None."""

    keys: Joined
    values: Joined
    last: bytes | None


def block_of(pairs: Iterable[tuple[bytes, bytes]], size: int) -> Block:
    """The first of `pairs`, up to the one with which they have `size` bytes."""
    keys, values = [], []
    last = None
    for key, value in pairs:
        keys.append(key)
        values.append(value)
        size -= len(key) + len(value)
        if size <= 0:
            last = key
            break
    return Block(join_values(keys), join_values(values), last)
