"""The store's own records: its identity and its header, and what header and log say together: the head.

A commit that leaves log records does not touch the header: the last record's key bears the commit's timestamp and the
record its place in the log, so the newer of header and record speaks. The header is written by what moves anything
else in it, and by commits that leave no record.

Timestamps are 64 bits, strictly increasing in commit order: milliseconds since the epoch shifted by 20, and below a
counter, which also carries on where the wall clock stands still or falls.
"""

from __future__ import annotations

import datetime
import struct
import uuid as uuids
from typing import NamedTuple

import msgspec

from instar import errors
from instar.clock import Clock
from instar.store.engine import FORMAT_VERSION, PREFIX_LOG, PREFIX_STORE
from instar.store.log import log_place

IDENTITY_KEY = PREFIX_STORE + b"\x00"
HEADER_KEY = PREFIX_STORE + b"\x01"

_HEADER = struct.Struct("<QQQQQ16sQQ")

TIMESTAMP_SHIFT = 20
HOUR_NS = 3_600_000_000_000
# A wall clock that has gained no more than this on what is remembered of it need not be remembered anew.
SLACK_NS = 1_000_000_000
_NO_BOOT = bytes(16)

DEFAULT_RETENTION_SECONDS = 600.0
DEFAULT_LOG_MAX_BYTES = 4 << 30
MAX_RETENTION_SECONDS = 366 * 86_400
MAX_LOG_MAX_BYTES = 1 << 40  # as much as LMDB's map
SNAPSHOT_MAX_AGE_SECONDS = 3600.0
# A lease that is shorter would run out between reading a state and committing on it, one that is longer would make
# each step of a schema change wait for so long.
SCHEMA_LEASE_SECONDS = (0.01, 600.0)


class Header(NamedTuple):
    """The header as it is stored. `timestamp` and `log_end` are those of the moment at which it was written.

    `log_start` and `log_end` count the bytes (keys and values) that were ever cut from the log, and written to it;
    boot id, monotonic and wall time (ns) are what is remembered of the clocks (rule 8).
    """

    catalog_version: int
    timestamp: int
    watermark: int
    log_start: int
    log_end: int
    boot: bytes
    monotonic: int
    wall: int


# The newest commit, the end of the log, and the header, which holds everything else.
Head = tuple[int, int, Header]


class Identity(msgspec.Struct, frozen=True):
    """What a store is for good: written at creation, the same for every opener."""

    uuid: str
    synchronous: str
    retention_seconds: float = DEFAULT_RETENTION_SECONDS
    log_max_bytes: int = DEFAULT_LOG_MAX_BYTES
    schema_lease: float = 0.0
    format: int = FORMAT_VERSION

    @property
    def uuid_bytes(self) -> bytes:
        return uuids.UUID(self.uuid).bytes


def new_identity(
    synchronous: str,
    retention_seconds: float | None,
    log_max_bytes: int | None,
    schema_lease: float | None = None,
) -> Identity:
    """An identity with a fresh uuid. 22023 for a schema lease that is neither 0 nor within its bounds, and so on."""
    least, most = SCHEMA_LEASE_SECONDS
    if schema_lease and not least <= schema_lease <= most:
        raise errors.error(errors.INVALID_PARAMETER, f"schema_lease is 0 or {least:g} to {most:g} seconds")
    if retention_seconds is not None and not 0 <= retention_seconds <= MAX_RETENTION_SECONDS:
        raise errors.error(errors.INVALID_PARAMETER, f"retention is 0 to {MAX_RETENTION_SECONDS} seconds")
    if log_max_bytes is not None and not 0 < log_max_bytes <= MAX_LOG_MAX_BYTES:
        raise errors.error(errors.INVALID_PARAMETER, f"log_max_bytes is 1 to {MAX_LOG_MAX_BYTES}")
    return Identity(
        uuid=str(uuids.uuid4()),
        synchronous=synchronous,
        retention_seconds=DEFAULT_RETENTION_SECONDS if retention_seconds is None else float(retention_seconds),
        log_max_bytes=DEFAULT_LOG_MAX_BYTES if log_max_bytes is None else log_max_bytes,
        schema_lease=float(schema_lease or 0),
    )


def decode_identity(data: bytes, where: str) -> Identity:
    """The identity in `data`; 55000 if it is of another format, XX001 if it is none at all."""
    try:
        version = msgspec.json.decode(data)["format"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise errors.error(errors.DATA_CORRUPTED, f"the identity of the store {where} is unreadable") from None
    if version != FORMAT_VERSION:
        raise errors.error(
            errors.OBJECT_NOT_READY,
            f"the store {where} is of format version {version}, this program reads version {FORMAT_VERSION}",
        )
    try:
        return msgspec.json.decode(data, type=Identity)
    except msgspec.ValidationError:
        raise errors.error(errors.DATA_CORRUPTED, f"the identity of the store {where} is unreadable") from None


def first_header(clock: Clock) -> bytes:
    """The header of a store that nobody has written to yet."""
    return encode_header(Header(0, 1, 0, 0, 0, clock.boot, clock.monotonic_ns(), clock.wall_ns()))


def encode_header(header: Header) -> bytes:
    """The stored form of a header."""
    return _HEADER.pack(*header)


def decode_header(value: bytes) -> Header:
    """A header from its stored form."""
    return Header._make(_HEADER.unpack(value))


def head_of(header: Header, key: bytes, value: bytes) -> Head:
    """What `header` and the pair with the greatest key of the store, a log record if there is one, say together."""
    if key.startswith(PREFIX_LOG):
        timestamp, start = log_place(key, value)
        if timestamp > header.timestamp:
            return timestamp, start + len(key) + len(value), header
    return header.timestamp, header.log_end, header


def believed_wall(clock: Clock, header: Header, monotonic: int) -> tuple[int, Header]:
    """The believed wall time in nanoseconds, and `header` with what is to be remembered of the clocks (rule 8);
    `monotonic` is the clock's monotonic time of this moment.

    Within one boot a wall clock more than an hour past what the monotonic clock allows is not believed. What is
    remembered never falls behind the monotonic clock, so that a wall clock that falls and recovers is believed again,
    and one that creeps forward is measured from where it was. It is the same header where nothing new is remembered.
    """
    now, boot = clock.wall_ns(), clock.boot
    if boot != header.boot:
        return now, header._replace(boot=boot, monotonic=monotonic, wall=now)
    expected = header.wall + monotonic - header.monotonic
    if now <= expected + SLACK_NS or boot == _NO_BOOT:
        return now, header
    if now > expected + HOUR_NS:
        return expected, header
    return now, header._replace(monotonic=monotonic, wall=now)


def wall_timestamp(wall_ns: int) -> int:
    """The first timestamp of the millisecond that `wall_ns` lies in."""
    return wall_ns // 1_000_000 << TIMESTAMP_SHIFT


def shown_time(timestamp: int) -> str:
    """The time of day that a timestamp holds, as PostgreSQL shows it in UTC: 2023-11-14 22:13:20.000+00."""
    milliseconds = timestamp >> TIMESTAMP_SHIFT
    wall = datetime.datetime.fromtimestamp(milliseconds // 1000, datetime.UTC)  # 64 bits end in the year 2527
    return f"{wall:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03d}+00"
