"""Keys and values of the store's small records: table headers, rowset records, what is read at its latest state."""

from __future__ import annotations

import enum
import struct

import msgspec

from instar.store.engine import PREFIX_LATEST, PREFIX_ROWSET, PREFIX_TABLE, TableHeader

_ID = struct.Struct(">cI")

_table_header = msgspec.msgpack.Decoder(TableHeader)
_encode = msgspec.msgpack.Encoder().encode


class Latest(enum.IntEnum):
    """Kinds of records that are read at their latest state, outside MVCC."""

    COUNTER = 1
    SEQUENCE = 2
    JOB = 3
    CLAIM = 4
    LAYOUT = 5
    LEASE = 6
    CHECKPOINT = 8
    SCHEMA_VERSION = 9
    STATUS = 10
    VIOLATION = 11
    FOLLOWED = 12


class RowsetState(enum.Enum):
    """A rowset is built unseen, serves, and is dead until the watermark lets it be removed (rule 9)."""

    BUILDING = "building"
    LIVE = "live"
    DEAD = "dead"


class RowsetRecord(msgspec.Struct, frozen=True, array_like=True):
    """Whose a rowset is: `owner` is a job's id while it is building, else a table's; `since` a timestamp."""

    owner: int
    state: RowsetState
    since: int


_rowset = msgspec.msgpack.Decoder(RowsetRecord)


def table_key(table: int) -> bytes:
    """Where the header of table `table` lies."""
    return _ID.pack(PREFIX_TABLE, table)


def encode_table_header(header: TableHeader) -> bytes:
    """The stored form of a table header."""
    return _encode(header)


def decode_table_header(value: bytes) -> TableHeader:
    """A table header from its stored form."""
    return _table_header.decode(value)


def rowset_key(rowset: int) -> bytes:
    """Where the record of rowset `rowset` lies."""
    return _ID.pack(PREFIX_ROWSET, rowset)


def rowset_record(owner: int, state: RowsetState, since: int) -> bytes:
    """The stored form of a rowset's record, written before its first row."""
    return _encode(RowsetRecord(owner, state, since))


def decode_rowset_record(value: bytes) -> RowsetRecord:
    """A rowset's record from its stored form."""
    return _rowset.decode(value)


def latest_key(kind: Latest, key: bytes = b"") -> bytes:
    """Where the latest state of `key` among the records of `kind` lies."""
    return PREFIX_LATEST + bytes((kind,)) + key
