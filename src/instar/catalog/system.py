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
from instar.catalog import descriptors
from instar.catalog.descriptors import Object, Sequence, Table
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
    View,
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
# A descriptor is a map (of three bytes at most before its first entry) that begins with the kind.
_MAP_BYTES = 3
_TAGS: dict[type[Object], bytes] = {
    kind: msgspec.msgpack.encode("object") + msgspec.msgpack.encode(kind.__struct_config__.tag)
    for kind in (Table, descriptors.View, Sequence)
}
_BATCH = 512


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
    return None if is_tombstone(stored) else decode_descriptor(stored[ROW_HEADER.size :])


def scan_descriptors(view: View) -> Iterator[tuple[bytes, bytes]]:
    """The rows of all objects as they are stored, tombstones too."""
    return view.scan(_DESCRIPTOR_PREFIX, prefix_end(_DESCRIPTOR_PREFIX))


class Head(msgspec.Struct, frozen=True):
    """What of a descriptor is version metadata: the kind of object ("table", "view", "sequence") and its name."""

    name: str
    kind: str = msgspec.field(name="object")


_HEAD = msgspec.msgpack.Decoder(Head)


def decode_head(stored: bytes) -> Head:
    """The kind and name of an object from its descriptor's stored row value; XX001 if the bytes are none."""
    try:
        return _HEAD.decode(stored[ROW_HEADER.size :])
    except msgspec.MsgspecError as problem:
        raise errors.error(errors.DATA_CORRUPTED, f"a descriptor cannot be read: {problem}") from problem


def decode_bearer(stored: bytes) -> int:
    """The id of the object that bears a name, from the name's stored row value."""
    found: int = _ID.unpack_from(stored, ROW_HEADER.size)[0]
    return found


def is_kind(stored: bytes, kind: type[Object]) -> bool:
    """Whether a stored descriptor is of that kind: read off its beginning, without decoding it."""
    tag = _TAGS[kind]
    return stored.find(tag, ROW_HEADER.size, ROW_HEADER.size + _MAP_BYTES + len(tag)) >= 0


def iterate_descriptors(store: Store, snapshot: int) -> Iterator[tuple[int, bytes]]:
    """(id, stored row value) of every object that was there at a timestamp, in the order of the ids, read in short
    batches; 72000 if the log is cut past it."""
    stop = prefix_end(_DESCRIPTOR_PREFIX)
    for keys, values in iterate_rows(store, _DESCRIPTOR_PREFIX, stop, snapshot, lambda: _BATCH):
        for key, stored in zip(keys, values, strict=True):
            yield decode_id(key), stored


def relation_names(found: Object) -> set[str]:
    """The names that an object takes: its own, and those of a table's indexes and primary keys. One that is unseen
    takes those that its sources bear still when these are gone; one that has a materialized view's rows takes none."""
    if not isinstance(found, Table):
        return {found.name}
    if found.unseen is not None and found.unseen.nameless:
        return set()
    later = () if found.unseen is None else found.unseen.takes
    names = {found.name, found.primary_key_name, *(index.name for index in found.indexes)}
    if found.next_key is not None:
        names.add(found.next_key.name)
    return names.difference(later, ("",))


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
    if not free and stored is not None and not is_tombstone(stored):
        raise errors.error(
            errors.DUPLICATE_TABLE, f'relation "{name}" already exists', detail="It was created concurrently."
        )
    return RowWrite(key, stored, None if object_id is None else _ID.pack(object_id), _LAYOUT)


def is_dropped_at(stored: bytes, timestamp: int) -> bool:
    """Whether a descriptor's stored row says that the commit of this timestamp dropped the object."""
    return is_tombstone(stored) and bool(ROW_HEADER.unpack_from(stored)[0] == timestamp)


def is_tombstone(stored: bytes) -> bool:
    """Whether the row of a system table that is stored so is there no more."""
    return bool(ROW_HEADER.unpack_from(stored)[2] & ROW_TOMBSTONE)


def decode_id(key: bytes) -> int:
    """The id of an object from its descriptor's store key."""
    value = decode_key(key[len(_DESCRIPTOR_PREFIX) :])[0]
    if not isinstance(value, int):
        raise errors.error(errors.DATA_CORRUPTED, "a descriptor's key is not an id")
    return value
