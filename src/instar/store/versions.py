"""Versions of a row: the newest in place, older ones as before-images in the log (the log is the undo space).

A row's header names the log record that holds what it replaced: the record's timestamp is the row's own (rule 1).
A snapshot is a timestamp; readers here were opened with `read_at(snapshot)`, so that no record they need was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from instar import errors
from instar.encoding.joined import Joined
from instar.encoding.keys import is_cut
from instar.store.apply import snapshot_too_old
from instar.store.engine import ENTRY_VALUE, NO_RECORD, ROW_FLAGS, ROW_HEADER, ROW_TOMBSTONE, Store, View
from instar.store.log import before_image, log_key

# Rows per read transaction: renewing so often costs nothing, and pins no pages for long.
BATCH_ROWS = 8192

# For so many rows NumPy takes longer to begin than they take one by one.
_FEW = 8

_HEADER_BYTES = ROW_HEADER.size
_HEADER = np.dtype([("timestamp", "<u8"), ("sequence", "<u4"), ("tag", "<u4")])
_unpack = ROW_HEADER.unpack_from
_unpack_entry = ENTRY_VALUE.unpack


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


def version_chain(reader: View, key: bytes, snapshot: int) -> Iterator[tuple[int, bytes | None]]:
    """The versions of the row at `key`, from the newest back to the one that `snapshot` sees: (since when it stood, the
    stored value; None where there was no row). 72000 if the log is cut before that one is reached."""
    value = reader.get(key)
    while value is not None:
        timestamp, sequence, tag = _unpack(value)
        yield timestamp, None if tag & ROW_TOMBSTONE else value
        if timestamp <= snapshot:
            return
        if timestamp <= reader.watermark:
            raise snapshot_too_old(snapshot, reader.watermark)
        if sequence == NO_RECORD:
            break
        record = reader.get(log_key(timestamp, sequence))
        if record is None:
            raise errors.error(errors.DATA_CORRUPTED, f"log record {timestamp}/{sequence} of a row is missing")
        value = before_image(record)
    # A tombstone that stood here before may have been collected, but none that is newer than the watermark.
    if snapshot < reader.watermark:
        raise snapshot_too_old(snapshot, reader.watermark)
    yield reader.watermark, None


def rows_of_entries(
    entries: Iterable[tuple[bytes, bytes]], get: Callable[[bytes], bytes | None], rows: bytes, most: int
) -> list[bytes] | None:
    """The newest values of the rows of live index entries, read in one state with these; `rows` is the prefix of the
    rows. None where there are more than `most` entries, tombstones too, or cut ones, which the rows decide about."""
    found: list[bytes] = []
    for key, value in entries:
        most -= 1
        if most < 0:
            return None
        _timestamp, live, offset = _unpack_entry(value)
        if not live:
            continue
        if is_cut(offset):
            return None
        stored = get(rows + key[offset:])
        if stored is not None and not stored[ROW_FLAGS] & ROW_TOMBSTONE:
            found.append(stored)
    return found


def visible_rows(
    reader: View, keys: list[bytes], values: list[bytes], snapshot: int
) -> tuple[list[bytes], list[bytes]]:
    """Of newest versions as stored, those that `snapshot` sees: newer ones resolved, tombstones dropped.

    The common case, that every row is old enough and there, hands back the lists that came in.
    """
    if len(values) <= _FEW and all(_is_plain(value, snapshot) for value in values):
        return keys, values
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


def _is_plain(value: bytes, snapshot: int) -> bool:
    timestamp, _sequence, tag = _unpack(value)
    return timestamp <= snapshot and not tag & ROW_TOMBSTONE


def visible_values(store: Store, joined: Joined, snapshot: int) -> Joined:
    """As `visible_rows`, for values in one buffer: the bulk path, which makes nothing per row and fills in the tags.

    The log is read in short reads of its own, and only if there are newer rows; 72000 if the watermark has passed the
    snapshot.
    """
    found = headers(joined)
    if not len(found):
        return joined
    timestamps, tags = found["timestamp"], found["tag"].copy()  # which is looked at again when the rows are decoded
    if int(timestamps.max()) <= snapshot and not int(np.bitwise_or.reduce(tags)) & ROW_TOMBSTONE:
        return joined._replace(tags=tags)
    newer = np.flatnonzero(timestamps > snapshot)
    older = list(_older(store, [joined.value(position) for position in newer.tolist()], snapshot))
    seen = tags & ROW_TOMBSTONE == 0
    seen[newer] = [value is not None for value in older]
    resolved = joined.replaced(newer, [value or b"" for value in older]).select(np.flatnonzero(seen))
    return resolved._replace(tags=headers(resolved)["tag"])


def _older(store: Store, values: list[bytes], snapshot: int) -> Iterator[bytes | None]:
    """As `version_at` for many rows. What their headers point to is in the log as long as the snapshot is."""
    for begin in range(0, len(values), BATCH_ROWS):
        with store.read_at(snapshot) as reader:
            found = [version_at(reader, value, snapshot) for value in values[begin : begin + BATCH_ROWS]]
        yield from found


def headers(joined: Joined) -> NDArray[Any]:
    """The rows' headers as one structured array: timestamp, sequence, tag (layout id and flags)."""
    if len(joined.starts) and joined.shortest() < _HEADER_BYTES:
        raise errors.error(errors.DATA_CORRUPTED, "a row's stored value has no header")
    return joined.parts(0, _HEADER)


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
    store: Store,
    start: bytes,
    stop: bytes,
    snapshot: int,
    batch: Callable[[], int] = lambda: BATCH_ROWS,
    *,
    reverse: bool = False,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Batches (keys, values), none empty, of the rows in [start, stop) that `snapshot` sees, in key order or reverse.

    Every batch is read in a short read of its own; before each read `batch` is asked how many stored rows it is to have
    at the most, of which none may be seen. 72000 if the watermark passes the snapshot meanwhile.
    """
    following: bytes | None = start
    while following is not None:
        most = batch()
        with store.read_at(snapshot) as reader:
            keys, values, following = scan_rows(reader, start, stop, snapshot, most, reverse=reverse)
        if reverse:
            stop = following or stop
        else:
            start = following or start
        if keys:
            yield keys, values


def entry_at(value: bytes, snapshot: int) -> tuple[bool | None, int]:
    """Whether `snapshot` sees the index entry that is stored as `value` (None: the row's version at the snapshot
    decides, rule 4), and where in the entry's key the primary key begins."""
    timestamp, live, offset = ENTRY_VALUE.unpack(value)
    return (bool(live) if timestamp <= snapshot else None), offset
