"""The canonical schema version: which catalog version the store is at, and since which commit (F1 §4.3).

It lies under two keys, one before all rows and one behind them, so that no page holds both. Every catalog commit writes
both, each with a checksum of its own, and beside them a line of history. A server that renews its lease reads one of
them and compares the timestamp with that of the schema it has: no more, as long as nothing has changed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from instar import errors
from instar.store.engine import PREFIX_COPY, PREFIX_STORE, Commit, PreconditionFailed, Store, ValueUnchanged, View
from instar.store.records import Latest, latest_key
from instar.store.section import WriteSection

COPIES = (PREFIX_STORE + b"\x02", PREFIX_COPY + b"\x02")

# So many versions are remembered for instar.schema_versions.
KEPT_VERSIONS = 256

_FORM = 1
_BODY = struct.Struct("<BBQQ")  # form, 1 if abrupt, catalog version, commit timestamp
_SUM = struct.Struct("<I")  # CRC-32 of key and body
_ABRUPT = 1

_NUMBER = struct.Struct(">Q")
_encode = msgspec.msgpack.Encoder().encode


class SchemaVersion(NamedTuple):
    """`abrupt`: a server that still has the version before must not use it on a snapshot that shows this one."""

    version: int
    timestamp: int
    abrupt: bool


class Published(msgspec.Struct, frozen=True, array_like=True):
    """One line of history; `change` is the statement that made the version, where one is known."""

    timestamp: int
    abrupt: bool
    change: str


_published = msgspec.msgpack.Decoder(Published)


def encode_copy(key: bytes, found: SchemaVersion) -> bytes:
    """What lies at `key`, one of COPIES."""
    body = _BODY.pack(_FORM, _ABRUPT if found.abrupt else 0, found.version, found.timestamp)
    return body + _SUM.pack(zlib.crc32(key + body))


def decode_copy(key: bytes, value: bytes | None) -> SchemaVersion | None:
    """What the copy at `key` says; None if it is damaged or missing."""
    if value is None or len(value) != _BODY.size + _SUM.size:
        return None
    body, (checksum,) = value[: _BODY.size], _SUM.unpack_from(value, _BODY.size)
    form, flags, version, timestamp = _BODY.unpack(body)
    if form != _FORM or checksum != zlib.crc32(key + body):
        return None
    return SchemaVersion(version, timestamp, bool(flags & _ABRUPT))


def read_version(view: View) -> SchemaVersion:
    """The canonical version as of `view`. XX001 if both copies are damaged."""
    for key in COPIES:
        found = decode_copy(key, view.get(key))
        # A copy of another version than the header's is a remnant of damage, however well it adds up.
        if found is not None and found.version == view.catalog_version:
            return found
    raise errors.error(
        errors.DATA_CORRUPTED,
        "both copies of the canonical schema version are damaged",
        hint="Any schema change writes them anew; check the database first (instar check).",
    )


def damaged_copies(view: View) -> list[bytes]:
    """The keys of the copies that do not say what the header says. A store that was made before there was a record of
    its schema version has neither copies nor history until its next catalog commit."""
    if all(view.get(key) is None for key in COPIES) and next(history(view), None) is None:
        return []
    wrong = []
    for key in COPIES:
        found = decode_copy(key, view.get(key))
        if found is None or found.version != view.catalog_version:
            wrong.append(key)
    return wrong


def repair(store: Store) -> bool:
    """Write a damaged copy anew from the other one; returns whether there was one. XX001 if both are damaged."""
    with store.read() as reader:
        wrong = damaged_copies(reader)
        if not wrong:
            return False
        sound = read_version(reader)
        request = Commit(
            catalog_version=reader.catalog_version,
            preconditions=[ValueUnchanged(key, reader.get(key), None) for key in COPIES],
            raw=[(key, encode_copy(key, sound)) for key in wrong],
        )
    try:
        store.commit(request)
    except PreconditionFailed:  # a catalog commit came first, and has written both
        return False
    return True


def publish(section: WriteSection, timestamp: int, change: str, *, abrupt: bool) -> None:
    """Go on to the next catalog version, and write all that says so: part of every catalog commit."""
    section.bump_catalog()
    found = SchemaVersion(section.catalog_version, timestamp, abrupt)
    for key in COPIES:
        section.put(key, encode_copy(key, found))
    section.put(_history_key(found.version), _encode(Published(timestamp, abrupt, change)))
    if found.version > KEPT_VERSIONS:
        section.delete(_history_key(found.version - KEPT_VERSIONS))


def history(view: View) -> Iterator[tuple[int, Published]]:
    """The versions that are remembered, oldest first: (catalog version, what is known of it)."""
    return history_after(view, -1)


def history_after(view: View, version: int) -> Iterator[tuple[int, Published]]:
    """Those of them that came after `version`."""
    for key, value in view.scan(_history_key(version + 1), _history_key(2**64 - 1) + b"\x00"):
        yield _NUMBER.unpack(key[-_NUMBER.size :])[0], _published.decode(value)


def _history_key(version: int) -> bytes:
    return latest_key(Latest.SCHEMA_VERSION, _NUMBER.pack(version))
