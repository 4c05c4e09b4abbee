"""The store's own records: its identity, and the hot header that every transaction reads first.

Timestamps are 64 bits, strictly increasing in commit order: milliseconds since the epoch shifted by 20, and below a
counter, which also carries on where the wall clock stands still or falls.
"""

from __future__ import annotations

import struct
import uuid as uuids

import msgspec

from instar import errors
from instar.clock import Clock
from instar.store.engine import FORMAT_VERSION, PREFIX_STORE

IDENTITY_KEY = PREFIX_STORE + b"\x00"
HOT_KEY = PREFIX_STORE + b"\x01"

# Catalog version, newest timestamp, watermark, bytes in the log; boot id, monotonic and wall time (rule 8).
HOT = struct.Struct("<QQQQ16sQQ")
HOT_HEAD = struct.Struct("<QQQ")

TIMESTAMP_SHIFT = 20
HOUR_NS = 3_600_000_000_000
_NO_BOOT = bytes(16)

DEFAULT_RETENTION_SECONDS = 600.0
DEFAULT_LOG_MAX_BYTES = 4 << 30
SNAPSHOT_MAX_AGE_SECONDS = 3600.0


class Identity(msgspec.Struct, frozen=True):
    """What a store is for good: written at creation, the same for every opener."""

    uuid: str
    synchronous: str
    retention_seconds: float = DEFAULT_RETENTION_SECONDS
    log_max_bytes: int = DEFAULT_LOG_MAX_BYTES
    format: int = FORMAT_VERSION

    @property
    def uuid_bytes(self) -> bytes:
        return uuids.UUID(self.uuid).bytes


def new_identity(synchronous: str, retention_seconds: float | None, log_max_bytes: int | None) -> Identity:
    """An identity with a fresh uuid."""
    return Identity(
        uuid=str(uuids.uuid4()),
        synchronous=synchronous,
        retention_seconds=DEFAULT_RETENTION_SECONDS if retention_seconds is None else retention_seconds,
        log_max_bytes=DEFAULT_LOG_MAX_BYTES if log_max_bytes is None else log_max_bytes,
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
    """The hot header of a store that nobody has written to yet."""
    return HOT.pack(0, 1, 0, 0, clock.boot_id(), clock.monotonic_ns(), clock.wall_ns())


def believed_wall(clock: Clock, boot: bytes, monotonic: int, wall: int) -> tuple[int, int, int]:
    """(believed wall time, monotonic time, wall time to be remembered with it), all in nanoseconds (rule 8).

    `boot`, `monotonic`, `wall` were remembered by the last commit. Within one boot a wall clock more than an hour past
    what the monotonic clock allows is not believed. What is remembered never falls behind the monotonic clock, so that
    a wall clock that falls and recovers is believed again, and one that creeps forward is measured from where it was.
    """
    now, now_monotonic = clock.wall_ns(), clock.monotonic_ns()
    if boot != clock.boot_id() or boot == _NO_BOOT:
        return now, now_monotonic, now
    expected = wall + now_monotonic - monotonic
    if now > expected + HOUR_NS:
        return expected, now_monotonic, expected
    return now, now_monotonic, max(now, expected)


def wall_timestamp(wall_ns: int) -> int:
    """The first timestamp of the millisecond that `wall_ns` lies in."""
    return wall_ns // 1_000_000 << TIMESTAMP_SHIFT
