"""The system table of descriptors: hard-coded itself, stored and versioned like any other table's rows.

    instar.descriptors (rowset 1)   id bigint primary key -> the object's descriptor, MessagePack

Its rows have the same header, log records and tombstones as user rows, so a snapshot sees its own catalog, and names
are free by precondition: each name is a row of rowset 2, so that two transactions cannot take one name.

    instar.names (rowset 2)         name text primary key -> id of the object that bears it (a table, for its indexes)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from instar import errors
from instar.catalog.descriptors import Object, Table
from instar.encoding.keys import compile_encoder, decode_key
from instar.store import records
from instar.store.engine import (
    ROW_HEADER,
    ROW_TOMBSTONE,
    Reader,
    RowWrite,
    Store,
    TableHeader,
    TableWrites,
    prefix_end,
    rowset_prefix,
)
from instar.store.versions import iterate_rows
from instar.types import BIGINT, TEXT

DESCRIPTORS = 1
NAMES = 2
_LAYOUT = 0

_DESCRIPTOR_PREFIX = rowset_prefix(DESCRIPTORS)
_NAME_PREFIX = rowset_prefix(NAMES)
_encode_id = compile_encoder([BIGINT], [False])
_encode_name = compile_encoder([TEXT], [False])
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Object] = msgspec.msgpack.Decoder(Object)
_ID = struct.Struct("<q")


def bootstrap_records() -> list[tuple[bytes, bytes | None]]:
    """What a new store must hold before its first catalog change: headers and rowset records of the system tables."""
    made: list[tuple[bytes, bytes | None]] = []
    for table in (DESCRIPTORS, NAMES):
        made.append((records.table_key(table), records.encode_table_header(TableHeader(1, 1, 0))))
        made.append((records.rowset_key(table), records.rowset_record(table, records.RowsetState.LIVE, 0)))
    return made


def descriptor_key(object_id: int) -> bytes:
    """The store key of an object's descriptor row."""
    return _DESCRIPTOR_PREFIX + _encode_id((object_id,))


def name_key(name: str) -> bytes:
    """The store key of a name's row."""
    return _NAME_PREFIX + _encode_name((name,))


def decode_descriptor(body: bytes) -> Object:
    """A descriptor from its row body; XX001 if the bytes are none."""
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as problem:
        raise errors.error(errors.DATA_CORRUPTED, f"a descriptor cannot be read: {problem}") from problem


def decode_stored(stored: bytes) -> Object | None:
    """A descriptor from its stored row value; None for a tombstone."""
    return None if _is_tombstone(stored) else decode_descriptor(stored[ROW_HEADER.size :])


def read_descriptors(reader: Reader) -> Iterator[tuple[int, int, bytes]]:
    """(id, commit timestamp, row body) of every object that is there now."""
    for key, stored in reader.scan(_DESCRIPTOR_PREFIX, prefix_end(_DESCRIPTOR_PREFIX)):
        timestamp, _, layout_flags = ROW_HEADER.unpack_from(stored)
        if not layout_flags & ROW_TOMBSTONE:
            yield _decode_id(key), timestamp, stored[ROW_HEADER.size :]


def read_past_descriptors(store: Store, snapshot: int) -> Iterator[tuple[int, bytes]]:
    """(id, row body) of every object that was there at a timestamp; 72000 if the log is cut past it."""
    for keys, values in iterate_rows(store, _DESCRIPTOR_PREFIX, prefix_end(_DESCRIPTOR_PREFIX), snapshot):
        for key, stored in zip(keys, values, strict=True):
            yield _decode_id(key), stored[ROW_HEADER.size :]


def relation_names(found: Object) -> set[str]:
    """The names that an object takes: its own, and those of a table's indexes and primary key."""
    if not isinstance(found, Table):
        return {found.name}
    names = {found.name, found.primary_key_name, *(index.name for index in found.indexes)}
    return names - {""}


def descriptor_writes(
    reader: Reader, put: Iterable[Object], dropped: Iterable[Object], base: Mapping[int, Object]
) -> list[TableWrites]:
    """The row writes of a catalog change, derived from the stored bytes that `reader` sees.

    `base` are the changed objects as they were before. 42P07 if a name was taken since.
    """
    rows: dict[bytes, bytes | None] = {}
    removed: set[str] = set()
    added: dict[str, int] = {}
    for old in dropped:
        rows[descriptor_key(old.id)] = None
        removed |= relation_names(old)
    for new in put:
        rows[descriptor_key(new.id)] = _ENCODER.encode(new)
        names = relation_names(new)
        before = relation_names(base[new.id]) if new.id in base else set()
        removed |= before - names
        added |= dict.fromkeys(names - before, new.id)
    descriptors = [RowWrite(key, reader.get(key), body, _LAYOUT) for key, body in rows.items()]
    named = [_name_write(reader, name, None, free=True) for name in sorted(removed - added.keys())]
    named += [_name_write(reader, name, added[name], free=name in removed) for name in sorted(added)]
    written = [TableWrites(DESCRIPTORS, 1, 0, descriptors), TableWrites(NAMES, 1, 0, named)]
    return [writes for writes in written if writes.rows]


def _name_write(reader: Reader, name: str, object_id: int | None, *, free: bool) -> RowWrite:
    """Give or take a name; `free`: this very change takes it from whoever bears it."""
    key = name_key(name)
    stored = reader.get(key)
    if not free and stored is not None and not _is_tombstone(stored):
        raise errors.error(
            errors.DUPLICATE_TABLE, f'relation "{name}" already exists', detail="It was created concurrently."
        )
    return RowWrite(key, stored, None if object_id is None else _ID.pack(object_id), _LAYOUT)


def _is_tombstone(stored: bytes) -> bool:
    return bool(ROW_HEADER.unpack_from(stored)[2] & ROW_TOMBSTONE)


def _decode_id(key: bytes) -> int:
    value = decode_key(key[len(_DESCRIPTOR_PREFIX) :])[0]
    if not isinstance(value, int):
        raise errors.error(errors.DATA_CORRUPTED, "a descriptor's key is not an id")
    return value
