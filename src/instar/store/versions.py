"""Versions of a row: the newest in place, older ones as before-images in the log (the log is the undo space).

A row's header names the log record that holds what it replaced: the record's timestamp is the row's own (rule 1).
A snapshot is a timestamp; readers here were opened with `read_at(snapshot)`, so that no record they need was cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from instar import errors
from instar.encoding.row_batches import Joined, join_values
from instar.store.engine import ENTRY_VALUE, NO_RECORD, ROW_HEADER, ROW_TOMBSTONE, Store, View
from instar.store.log import before_image, log_key

# Rows per read transaction: renewing so often costs nothing, and pins no pages for long.
BATCH_ROWS = 8192

_HEADER_BYTES = ROW_HEADER.size
_HEADER = np.dtype([("timestamp", "<u8"), ("sequence", "<u4"), ("tag", "<u4")])
_unpack = ROW_HEADER.unpack_from


def read_row(reader: View, key: bytes, snapshot: int) -> bytes | None:
    """The stored value of the row at `key` that `snapshot` sees, or None."""
    value = reader.get(key)
    if value is None:
        return None
    timestamp, _sequence, tag = _unpack(value)
    if timestamp <= snapshot:
        return None if tag & ROW_TOMBSTONE else value
    return version_at(reader, value, snapshot)


def version_at(reader: View, value: bytes | None, snapshot: int) -> bytes | None:
    """The version that `snapshot` sees of a row whose newest version is `value`; None if it sees none."""
    while value is not None:
        timestamp, sequence, tag = _unpack(value)
        if timestamp <= snapshot:
            return None if tag & ROW_TOMBSTONE else value
        if sequence == NO_RECORD:
            return None
        record = reader.get(log_key(timestamp, sequence))
        if record is None:
            raise errors.error(errors.DATA_CORRUPTED, f"log record {timestamp}/{sequence} of a row is missing")
        value = before_image(record)
    return None


def visible_rows(
    reader: View, keys: list[bytes], values: list[bytes], snapshot: int
) -> tuple[list[bytes], list[bytes]]:
    """Of newest versions as stored, those that `snapshot` sees: newer ones resolved, tombstones dropped.

    The common case, that every row is old enough and there, hands back the lists that came in.
    """
    size = _HEADER_BYTES
    headers = np.frombuffer(b"".join([value[:size] for value in values]), dtype=_HEADER)
    newer = headers["timestamp"] > snapshot
    doubtful = newer | (headers["tag"] & ROW_TOMBSTONE).astype(bool)
    positions = np.flatnonzero(doubtful).tolist()
    if not positions:
        return keys, values
    resolved: list[bytes | None] = list(values)
    for position in positions:
        resolved[position] = version_at(reader, values[position], snapshot)
    kept = [(key, value) for key, value in zip(keys, resolved, strict=True) if value is not None]
    return [key for key, _value in kept], [value for _key, value in kept]


def visible_values(reader: View, joined: Joined, snapshot: int) -> Joined:
    """As `visible_rows`, for values that are joined: the bulk path, on which the headers are never cut out."""
    found = headers(joined)
    doubtful = (found["timestamp"] > snapshot) | (found["tag"] & ROW_TOMBSTONE != 0)
    if not bool(doubtful.any()):
        return joined
    values: list[bytes | None] = list(joined.values())
    for position in np.flatnonzero(doubtful).tolist():
        values[position] = version_at(reader, values[position], snapshot)
    return join_values([value for value in values if value is not None])


def headers(joined: Joined) -> NDArray[Any]:
    """The rows' headers as one structured array: timestamp, sequence, tag (layout id and flags)."""
    if joined.stride:
        return np.ndarray((len(joined.starts),), _HEADER, joined.buffer, 0, (joined.stride,))
    if not len(joined.starts):
        return np.empty(0, _HEADER)
    if int((joined.ends - joined.starts).min()) < _HEADER_BYTES:
        raise errors.error(errors.DATA_CORRUPTED, "a row's stored value has no header")
    everywhere = np.ndarray((len(joined.buffer) - _HEADER_BYTES + 1,), f"V{_HEADER_BYTES}", joined.buffer, 0, (1,))
    gathered: NDArray[Any] = everywhere[joined.starts].view(_HEADER)
    return gathered


def scan_rows(
    reader: View, start: bytes, stop: bytes, snapshot: int, limit: int = BATCH_ROWS, *, reverse: bool = False
) -> tuple[list[bytes], list[bytes], bytes | None]:
    """Keys and values that `snapshot` sees among the next `limit` stored rows, and where to go on (None: at the end).

    What is left is [following, stop), in reverse [start, following). The lists may be empty although there is more:
    the next rows may all be invisible.
    """
    keys, values = reader.batch(start, stop, limit, reverse=reverse)
    if not keys:
        return keys, values, None
    following = None
    if len(keys) == limit:
        following = keys[-1] if reverse else keys[-1] + b"\x00"
    seen_keys, seen_values = visible_rows(reader, keys, values, snapshot)
    return seen_keys, seen_values, following


def iterate_rows(
    store: Store, start: bytes, stop: bytes, snapshot: int, batch: int = BATCH_ROWS, *, reverse: bool = False
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Batches (keys, values), none empty, of the rows in [start, stop) that `snapshot` sees, in key order or reverse.

    Every batch is read in a short read of its own; 72000 if the watermark passes the snapshot meanwhile.
    """
    following: bytes | None = start
    while following is not None:
        with store.read_at(snapshot) as reader:
            keys, values, following = scan_rows(reader, start, stop, snapshot, batch, reverse=reverse)
        if reverse:
            stop = following or stop
        else:
            start = following or start
        if keys:
            yield keys, values


def entry_visible(value: bytes, snapshot: int) -> bool | None:
    """Whether `snapshot` sees the index entry; None: the row's version at the snapshot decides (rule 4)."""
    timestamp, live, _offset = ENTRY_VALUE.unpack(value)
    if timestamp > snapshot:
        return None
    return bool(live)


def primary_offset(value: bytes) -> int:
    """Where the primary key begins within the key of the entry."""
    return int(ENTRY_VALUE.unpack(value)[2])
