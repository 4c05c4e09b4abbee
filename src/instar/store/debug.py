"""Any key and value of the store as readable text, for `instar debug`. Nothing here raises: damage is shown as hex."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from instar.encoding.format import format_index_key, format_key
from instar.errors import Error
from instar.store import log
from instar.store.engine import (
    ENTRY_VALUE,
    NO_RECORD,
    PREFIX_COPY,
    PREFIX_LATEST,
    PREFIX_LOG,
    PREFIX_ROW,
    PREFIX_ROWSET,
    PREFIX_STORE,
    PREFIX_TABLE,
    ROW_HEADER,
    ROW_TOMBSTONE,
    LogRecord,
)
from instar.store.header import HEADER_KEY, IDENTITY_KEY, TIMESTAMP_SHIFT, decode_header, shown_time
from instar.store.records import Latest, decode_rowset_record, decode_table_header
from instar.store.schema_version import COPIES, decode_copy

# (rowset id, layout id, body) -> text, None for an unknown layout: whoever knows the catalog can read row bodies.
FormatBody = Callable[[int, int, bytes], str | None]

_ROWSET_ID = struct.Struct(">BI")
_PREFIX_BYTES = _ROWSET_ID.size


def _no_body(_rowset: int, _layout: int, body: bytes) -> str | None:
    return None


def format_timestamp(timestamp: int) -> str:
    """A commit timestamp with the time of day that it holds: 1700000000000.5 (2023-11-14 22:13:20.000)."""
    milliseconds, counter = timestamp >> TIMESTAMP_SHIFT, timestamp & ((1 << TIMESTAMP_SHIFT) - 1)
    return f"{milliseconds}.{counter} ({shown_time(timestamp).removesuffix('+00')})"


def describe(key: bytes, value: bytes, format_body: FormatBody = _no_body) -> tuple[str, str]:
    """One pair of the store as (key, value) in words."""
    try:
        return _DESCRIBE[key[:1]](key, value, format_body)
    except (KeyError, IndexError, ValueError, struct.error, msgspec.DecodeError, Error):
        return f"? {key.hex()}", f"? {value.hex()}"


def _store(key: bytes, value: bytes, _body: FormatBody) -> tuple[str, str]:
    if key == IDENTITY_KEY:
        return "store identity", value.decode()
    if key in COPIES:
        return _schema_version(key, value)
    if key != HEADER_KEY:
        raise ValueError("an unknown key of the store")
    header = decode_header(value)
    return "store header", (
        f"catalog version {header.catalog_version}, written at commit {format_timestamp(header.timestamp)}, "
        f"watermark {format_timestamp(header.watermark)}, log from byte {header.log_start}, then to {header.log_end}, "
        f"boot {header.boot.hex()}, monotonic {header.monotonic} ns, wall {header.wall} ns"
    )


def _schema_version(key: bytes, value: bytes) -> tuple[str, str]:
    found = decode_copy(key, value)
    if found is None:
        raise ValueError("a damaged copy of the schema version")
    abrupt = ", at once for all" if found.abrupt else ""
    name = f"schema version, copy {COPIES.index(key) + 1}"
    return name, f"catalog version {found.version} of commit {format_timestamp(found.timestamp)}{abrupt}"


def _table(key: bytes, value: bytes, _body: FormatBody) -> tuple[str, str]:
    return f"table {_ROWSET_ID.unpack(key)[1]} header", _fields(decode_table_header(value))


def _rowset(key: bytes, value: bytes, _body: FormatBody) -> tuple[str, str]:
    record = decode_rowset_record(value)
    since = format_timestamp(record.since)
    return f"rowset {_ROWSET_ID.unpack(key)[1]}", f"owner {record.owner}, {record.state.value} since {since}"


def _fields(record: msgspec.Struct) -> str:
    return ", ".join(f"{name} {getattr(record, name)}" for name in record.__struct_fields__)


def _latest(key: bytes, value: bytes, _body: FormatBody) -> tuple[str, str]:
    kind = Latest(key[1])
    rest: Any = key[2:]
    name = rest.decode() if kind is Latest.COUNTER and rest.isascii() else rest.hex()
    return f"latest {kind.name.lower()} {name}".rstrip(), _latest_value(kind, value)


def _latest_value(kind: Latest, value: bytes) -> str:
    if kind is Latest.COUNTER:
        return str(int.from_bytes(value, "little"))
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            return repr(decode(value))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return value.hex()


def _row_or_entry(key: bytes, value: bytes, body: FormatBody) -> tuple[str, str]:
    rowset = _ROWSET_ID.unpack_from(key)[1]
    rest = key[_PREFIX_BYTES:]
    if len(value) == ENTRY_VALUE.size:  # a row value is longer: its header alone is
        timestamp, live, primary = ENTRY_VALUE.unpack(value)
        text = f"{'live' if live else 'tombstone'}, commit {format_timestamp(timestamp)}"
        return f"rowset {rowset} entry {format_index_key(rest, primary - _PREFIX_BYTES)}", text
    return f"rowset {rowset} row {format_key(rest)}", _row_value(rowset, value, body)


def _row_value(rowset: int, value: bytes, body: FormatBody) -> str:
    timestamp, sequence, tag = ROW_HEADER.unpack_from(value)
    before = "no version before" if sequence == NO_RECORD else f"record {sequence}"
    text = f"commit {format_timestamp(timestamp)}, {before}, layout {tag >> 8}"
    if tag & ROW_TOMBSTONE:
        return f"{text}, deleted"
    rest = value[ROW_HEADER.size :]
    readable = body(rowset, tag >> 8, rest)
    return f"{text}: {rest.hex() if readable is None else readable}"


def _log(key: bytes, value: bytes, body: FormatBody) -> tuple[str, str]:
    _prefix, timestamp, sequence = log.LOG_KEY.unpack(key)
    records = log.decode(key, value)
    return f"log {format_timestamp(timestamp)} / {sequence}", "; ".join(_log_record(r, body) for r in records)


def _log_record(record: LogRecord, body: FormatBody) -> str:
    text = f"table {record.table} at version {record.version}"
    if not record.key:
        return f"{text}: another rowset"
    rowset = _ROWSET_ID.unpack_from(record.key)[1]
    what = "deleted" if record.deleted else "inserted" if record.before is None else "updated"
    text = f"{text}, rowset {rowset}, {what} {format_key(record.key[_PREFIX_BYTES:])}"
    if record.pair:
        text += f", pair {record.pair}"
    if record.before is not None:
        text += f", before [{_row_value(rowset, record.before, body)}]"
    return text if record.after is None else f"{text}, after {record.after.hex()}"


_DESCRIBE = {
    PREFIX_STORE: _store,
    PREFIX_TABLE: _table,
    PREFIX_ROWSET: _rowset,
    PREFIX_LATEST: _latest,
    PREFIX_ROW: _row_or_entry,
    PREFIX_COPY: _store,
    PREFIX_LOG: _log,
}
