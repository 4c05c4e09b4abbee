"""Records of the store that are not rows: table headers, rowset records, and what is read at its latest state.

All are small MessagePack arrays under the prefixes of engine.py, written in the commits that change them.
"""

from __future__ import annotations

import enum
import struct
import threading

import msgspec

from instar import errors
from instar.store.engine import (
    PREFIX_LATEST,
    PREFIX_ROWSET,
    PREFIX_TABLE,
    Commit,
    PreconditionFailed,
    Store,
    TableHeader,
    ValueUnchanged,
)

_ID = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")
_ENCODER = msgspec.msgpack.Encoder()
_HEADER_DECODER = msgspec.msgpack.Decoder(TableHeader)


class Latest(enum.IntEnum):
    """Kinds of records that are read at their latest state, whatever the snapshot."""

    COUNTER = 1
    SEQUENCE = 2
    LAYOUT = 3
    JOB = 4
    CLAIM = 5
    WORKER = 6
    LEASE = 7


class RowsetState(enum.Enum):
    """A rowset is being built, lives, or is dead and waits for the watermark (rules 9 and 22)."""

    BUILDING = "building"
    LIVE = "live"
    DEAD = "dead"


class RowsetRecord(msgspec.Struct, frozen=True, array_like=True):
    """By this record a rowset exists. `owner` is a table or index id (live), or a job id (building).

    `since` is the timestamp at which a dead rowset was first seen dead by the worker, 0 before: at or after the commit
    that killed it, so waiting for the watermark to pass it is safe.
    """

    state: RowsetState
    owner: int
    since: int = 0


_ROWSET_DECODER = msgspec.msgpack.Decoder(RowsetRecord)


def latest_key(kind: Latest, key: bytes) -> bytes:
    """The store key of a record read at its latest state."""
    return PREFIX_LATEST + bytes((kind,)) + key


def table_key(table: int) -> bytes:
    """The store key of a table's header."""
    return PREFIX_TABLE + _ID.pack(table)


def rowset_key(rowset: int) -> bytes:
    """The store key of a rowset's record."""
    return PREFIX_ROWSET + _ID.pack(rowset)


def encode_header(header: TableHeader) -> bytes:
    return _ENCODER.encode(header)


def decode_header(value: bytes) -> TableHeader:
    return _HEADER_DECODER.decode(value)


def encode_rowset(record: RowsetRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_rowset(value: bytes) -> RowsetRecord:
    return _ROWSET_DECODER.decode(value)


class Counter:
    """A number that only grows, handed out in blocks per process; what a killed process had left is lost, never reused.

    Used for ids and for sequences: both are outside MVCC.
    """

    def __init__(self, store: Store, key: bytes, block: int, first: int) -> None:
        self._store = store
        self._key = key
        self._block = block
        self._first = first
        self._next = 0
        self._end = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        """The next number."""
        with self._lock:
            if self._next == self._end:
                self._reserve()
            self._next += 1
            return self._next - 1

    def _reserve(self) -> None:
        while True:
            with self._store.read() as reader:
                stored = reader.get(self._key)
                version = reader.catalog_version
            begin = _COUNTER.unpack(stored)[0] if stored is not None else self._first
            request = Commit(
                catalog_version=version,
                preconditions=[ValueUnchanged(self._key, stored, None)],
                raw=[(self._key, _COUNTER.pack(begin + self._block))],
            )
            try:
                self._store.commit(request)
            except PreconditionFailed:
                continue
            self._next, self._end = begin, begin + self._block
            return


FIRST_USER_ID = 1000
_MAX_ID = 2**32 - 1


class IdAllocator:
    """Ids of objects, rowsets and jobs: never reused, in three counters of the store."""

    def __init__(self, store: Store) -> None:
        self._objects = Counter(store, latest_key(Latest.COUNTER, b"object"), 32, FIRST_USER_ID)
        self._rowsets = Counter(store, latest_key(Latest.COUNTER, b"rowset"), 32, FIRST_USER_ID)
        self._jobs = Counter(store, latest_key(Latest.COUNTER, b"job"), 1, 1)

    def next_object(self) -> int:
        return self._checked(self._objects.next())

    def next_rowset(self) -> int:
        return self._checked(self._rowsets.next())

    def next_job(self) -> int:
        return self._checked(self._jobs.next())

    @staticmethod
    def _checked(value: int) -> int:
        if value > _MAX_ID:
            raise errors.error(errors.LIMIT_EXCEEDED, f"the database has used up its {_MAX_ID} ids")
        return value
