"""The log's records: whole before-images under (commit timestamp, sequence), and the keys that a commit inserted.

The layout of the bytes is specified in docs/formats/log.md. Inserted rows have no version before, so that nothing
follows a pointer to their records: the inserts of a commit share records of at most PACK_BYTES.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from instar import errors
from instar.store.engine import PREFIX_LOG, ROW_FLAGS, ROW_TOMBSTONE, LogRecord, RowCommit, RowsetReplaced, RowWrite

LOG_KEY = struct.Struct(">cQI")

CHANGE = 1
INSERTS = 2
REPLACED = 3

# All begin alike: kind, flags, length of the key (number of keys), table, writer's schema version, place: how many
# bytes the log had ever held before this record.
_INSERTS = struct.Struct("<BBHIIQ")
# Of one row, without pairs: the length of its key, of its bytes.
_pack_insert = struct.Struct(_INSERTS.format + "H").pack
_pack_whole_insert = struct.Struct(_INSERTS.format + "HI").pack
# Pair, length of the before-image.
_CHANGE = struct.Struct("<BBHIIQII")
# Rowsets before and after.
_REPLACED = struct.Struct("<BBHIIQII")
_pack_change = _CHANGE.pack
_PLACE = struct.Struct("<12xQ")
_KEY_LENGTH = slice(2, 4)
TABLE = slice(4, 8)

_DELETED = 0x01
_HAS_AFTER = 0x02
_BEFORE_TOMBSTONE = 0x04
_RENEWED = 0x08

_HAS_PAIRS = 0x01
_HAS_AFTERS = 0x02

# What one page of LMDB holds as an overflow value: a fuller record would take two.
PACK_BYTES = 4096 - 16


def log_key(timestamp: int, sequence: int) -> bytes:
    """The key of the log record (timestamp, sequence)."""
    return LOG_KEY.pack(PREFIX_LOG, timestamp, sequence)


def log_place(key: bytes, value: bytes) -> tuple[int, int]:
    """A record's commit timestamp, and its place: how many bytes the log had ever held before it."""
    return LOG_KEY.unpack(key)[1], _PLACE.unpack_from(value)[0]


def encode_change(
    place: int, table: int, version: int, row: RowWrite | RowCommit, before: bytes, after: bytes | None = None
) -> bytes:
    """The record of an update or delete of `row`, whose stored bytes were `before`, and are `after`, if that is to be
    in the log."""
    key = row.key
    flags = _BEFORE_TOMBSTONE if before[ROW_FLAGS] & ROW_TOMBSTONE else 0
    if row.body is None:
        flags |= _DELETED
    if row.renewed:
        flags |= _RENEWED
    if after is not None:
        flags |= _HAS_AFTER
    else:
        after = b""
    return b"".join((
        _CHANGE.pack(CHANGE, flags, len(key), table, version, place, row.pair, len(before)), key, before, after
    ))  # fmt: skip


def encode_update(place: int, table: int, version: int, key: bytes, before: bytes, after: bytes) -> bytes:
    """The same of an update of one optimistic lock, which renews nothing, of a row that stands; `after`: b"" if it is
    not to be in the log."""
    flags = _HAS_AFTER if after else 0
    return _pack_change(CHANGE, flags, len(key), table, version, place, 0, len(before)) + key + before + after


def encode_delete(place: int, table: int, version: int, key: bytes, before: bytes) -> bytes:
    """The same of a delete."""
    return _pack_change(CHANGE, _DELETED, len(key), table, version, place, 0, len(before)) + key + before


def encode_insert(place: int, table: int, version: int, key: bytes, after: bytes) -> bytes:
    """The record of the insert of one row that is its commit's only one; `after` as of `encode_update`."""
    if not after:
        return _pack_insert(INSERTS, 0, 1, table, version, place, len(key)) + key
    return _pack_whole_insert(INSERTS, _HAS_AFTERS, 1, table, version, place, len(key), len(after)) + key + after


def encode_inserts(
    place: int, table: int, version: int, rows: Sequence[RowWrite | RowCommit], afters: Sequence[bytes] = ()
) -> list[bytes]:
    """The records of the rows that a commit inserted where nothing was, the first of which is at `place`. `afters`: the
    rows as they are stored, if they are to be in the log."""
    keys = [row.key for row in rows]
    lengths = list(map(len, keys))
    pairs = [row.pair for row in rows]
    has_pairs, has_afters = any(pairs), bool(afters)
    flags = has_pairs * _HAS_PAIRS | has_afters * _HAS_AFTERS
    each = 2 + 4 * has_pairs + 4 * has_afters
    if has_afters:
        sizes = [each + length + len(after) for length, after in zip(lengths, afters, strict=True)]
    else:
        sizes = [each + length for length in lengths]
    records = []
    for start, stop in _cuts(sizes, PACK_BYTES - _INSERTS.size):
        count = stop - start
        parts = [_INSERTS.pack(INSERTS, flags, count, table, version, place)]
        parts.append(struct.pack(f"<{count}H", *lengths[start:stop]))
        if has_pairs:
            parts.append(struct.pack(f"<{count}I", *pairs[start:stop]))
        if has_afters:
            some = afters[start:stop]
            parts.append(struct.pack(f"<{count}I", *map(len, some)))
            parts += keys[start:stop]
            parts += some
        else:
            parts += keys[start:stop]
        records.append(b"".join(parts))
        place += LOG_KEY.size + len(records[-1])
    return records


def _cuts(sizes: list[int], room: int) -> Iterator[tuple[int, int]]:
    """Ranges of indexes whose sizes sum up to at most `room` (or that are one alone), at most 65,535 long."""
    if sum(sizes) <= room:
        yield 0, len(sizes)
        return
    start, base = 0, 0
    before = 0
    for index, total in enumerate(accumulate(sizes)):
        if total - base > room and index > start:
            yield start, index
            start, base = index, before
        before = total
    yield start, len(sizes)


def encode_replaced(place: int, change: RowsetReplaced) -> bytes:
    """The record that a table's rows are those of another rowset from here on."""
    return _REPLACED.pack(REPLACED, 0, 0, change.table, change.version, place, change.old, change.new)


def before_image(value: bytes) -> bytes:
    """The stored bytes (a tombstone too) that the change in the record `value` replaced."""
    _kind, _flags, key_length, _table, _version, _place, _pair, length = _CHANGE.unpack_from(value)
    start = _CHANGE.size + key_length
    return value[start : start + length]


def tables_told(tables: Iterable[int]) -> frozenset[bytes]:
    """What stands at TABLE in the records of these tables."""
    return frozenset([table.to_bytes(4, "little") for table in tables])


def changed_key(value: bytes) -> bytes:
    """The key of the row that a record of kind CHANGE is of; nothing else of it is decoded."""
    return value[_CHANGE.size : _CHANGE.size + int.from_bytes(value[_KEY_LENGTH], "little")]


def decode(key: bytes, value: bytes) -> list[LogRecord]:
    """The changes in one record."""
    _prefix, timestamp, sequence = LOG_KEY.unpack(key)
    kind = value[0]
    if kind == CHANGE:
        return [_decode_change(timestamp, sequence, value)]
    if kind == INSERTS:
        return _decode_inserts(timestamp, sequence, value)
    if kind == REPLACED:
        _kind, _flags, _none, table, version, _place, old, new = _REPLACED.unpack(value)
        return [LogRecord(timestamp, sequence, table, version, b"", None, None, 0, False, replaced=(old, new))]
    raise errors.error(errors.DATA_CORRUPTED, f"log record {timestamp}/{sequence} is of unknown kind {kind}")


def _decode_change(timestamp: int, sequence: int, value: bytes) -> LogRecord:
    _kind, flags, key_length, table, version, _place, pair, length = _CHANGE.unpack_from(value)
    middle = _CHANGE.size + key_length
    end = middle + length
    before = None if flags & _BEFORE_TOMBSTONE else value[middle:end]
    after = value[end:] if flags & _HAS_AFTER else None
    key = value[_CHANGE.size : middle]
    deleted, renewed = bool(flags & _DELETED), bool(flags & _RENEWED)
    return LogRecord(timestamp, sequence, table, version, key, before, after, pair, deleted, renewed)


def _decode_inserts(timestamp: int, sequence: int, value: bytes) -> list[LogRecord]:
    _kind, flags, count, table, version, _place = _INSERTS.unpack_from(value)
    position = _INSERTS.size
    lengths = struct.unpack_from(f"<{count}H", value, position)
    position += 2 * count
    pairs: Sequence[int] = (0,) * count
    after_lengths: Sequence[int | None] = (None,) * count
    if flags & _HAS_PAIRS:
        pairs = struct.unpack_from(f"<{count}I", value, position)
        position += 4 * count
    if flags & _HAS_AFTERS:
        after_lengths = struct.unpack_from(f"<{count}I", value, position)
        position += 4 * count
    after_position = position + sum(lengths)
    records = []
    for length, pair, after_length in zip(lengths, pairs, after_lengths, strict=True):
        after = None
        if after_length is not None:
            after = value[after_position : after_position + after_length]
            after_position += after_length
        key = value[position : position + length]
        position += length
        records.append(LogRecord(timestamp, sequence, table, version, key, None, after, pair, False))
    return records
