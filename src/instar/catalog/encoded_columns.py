"""Columns that were dropped, in the form in which a layout keeps them (`Layout.encoded`)."""

from __future__ import annotations

import msgspec

from instar.catalog.descriptors import Column

_columns = msgspec.msgpack.Decoder(tuple[Column, ...])
_column = msgspec.msgpack.Encoder()
_ARRAY_32 = 0xDD  # begins an array in MessagePack; its length follows, in four bytes


def encoded_columns(columns: tuple[Column, ...], before: bytes = b"") -> bytes:
    """Columns as a layout keeps those that are dropped, behind those that it keeps so already, and which are not
    looked at: there may be thousands."""
    if not columns:
        return before
    if before and before[0] != _ARRAY_32:  # as the first versions wrote them
        return encoded_columns((*_columns.decode(before), *columns))
    count = int.from_bytes(before[1:5], "big") + len(columns)
    return bytes((_ARRAY_32,)) + count.to_bytes(4, "big") + before[5:] + b"".join(map(_column.encode, columns))


def may_have_column(encoded: bytes, column: int) -> bool:
    """False if no column of this id is among those that are `encoded`."""
    return b"\xa2id" + _column.encode(column) in encoded
