"""The write-ahead log on disk: frames in two segments, and the checkpoint that says where to begin.

A *segment* is a file: a page with its generation and a salt, then frames. The two files take turns, the generation
counts them. A *frame* holds changes of one write transaction of LMDB: its number, whether it is the last one of it, a
checksum that covers the salt, and keys with the values put there (None: deleted). A *position* is a generation and an
offset in one integer; positions grow.

A *checkpoint* is a state of the data file all pages of which are on disk and are not written over while it is the
newest: LMDB's meta page of it, its number, and the position of the first frame after it. Two files take turns there
too. See docs/formats/wal.md.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from instar import errors

WAL_FILES = ("wal.0", "wal.1")
CHECKPOINT_FILES = ("checkpoint.0", "checkpoint.1")

OFFSET_BITS = 36
MOST_OFFSET = (1 << OFFSET_BITS) - 1
# Where frames begin: a header that is written anew shares no block of the disk with them.
FRAMES = 4096

_MAGIC = b"instarWL"
_SEGMENT = struct.Struct("<8sQ16s")  # magic, generation, salt; then a CRC-32 of it
# CRC-32 of the salt, the position where the transaction's frames begin, the rest, and the payload; payload bytes << 1 |
# last; transaction
_FRAME = struct.Struct("<IIQ")
# The least frame: what a void takes.
FRAME_BYTES = _FRAME.size + 1
_CHECKPOINT = struct.Struct("<8sQQQI")  # magic, sequence, position, transaction, bytes of the meta page; then a CRC-32
_SUM = struct.Struct("<I")
_POSITION = struct.Struct("<Q")
# What one system call reads.
_MOST_PAYLOAD = 0x7FFF_0000
_MOST_BYTES = 1 << 17  # of a checkpoint: LMDB's pages have 64 KiB at most

Changes = Sequence[bytes | None]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes | None]).decode


def position(generation: int, offset: int) -> int:
    """One integer for both."""
    return generation << OFFSET_BITS | offset


def generation_of(place: int) -> int:
    return place >> OFFSET_BITS


def offset_of(place: int) -> int:
    return place & MOST_OFFSET


class Segment(NamedTuple):
    """The header of a segment."""

    generation: int
    salt: bytes


class Checkpoint(NamedTuple):
    """`transaction`: the number of the LMDB transaction that left the state whose meta page is `meta`."""

    sequence: int
    position: int
    transaction: int
    meta: bytes


class Frame(NamedTuple):
    """`begin`: where the frames of its transaction begin; `end`: the position behind it."""

    transaction: int
    is_last: bool
    payload: bytes
    begin: int
    end: int

    @property
    def changes(self) -> Changes:
        """Keys and values, alternating."""
        return _decode(self.payload)


def encode_segment(segment: Segment) -> bytes:
    """The first page of a segment."""
    body = _SEGMENT.pack(_MAGIC, *segment)
    return (body + _SUM.pack(zlib.crc32(body))).ljust(FRAMES, b"\x00")


def read_segment(file: int) -> Segment | None:
    """What the header of an open segment says; None if there is none, or it was torn."""
    page = os.pread(file, _SEGMENT.size + _SUM.size, 0)
    if len(page) != _SEGMENT.size + _SUM.size:
        return None
    magic, generation, salt = _SEGMENT.unpack_from(page)
    if magic != _MAGIC or _SUM.unpack_from(page, _SEGMENT.size) != (zlib.crc32(page[: _SEGMENT.size]),):
        return None
    return Segment(generation, salt)


def encode_frame(salt: bytes, begin: int, transaction: int, changes: Changes, *, is_last: bool) -> bytes:
    """A frame with `changes`: keys and values, alternating. 54000 for a value of 2 GiB."""
    payload = _encode(changes)
    if len(payload) > _MOST_PAYLOAD:
        raise errors.error(errors.LIMIT_EXCEEDED, "a value is longer than the write-ahead log takes")
    size = len(payload) << 1 | is_last
    return _FRAME.pack(_checksum(salt, begin, size, transaction, payload), size, transaction) + payload


def _checksum(salt: bytes, begin: int, size: int, transaction: int, payload: bytes) -> int:
    """With `begin`, so that what an unfinished transaction has left does not follow upon one that lies over it."""
    return zlib.crc32(payload, zlib.crc32(_FRAME.pack(0, size, transaction), zlib.crc32(salt + _POSITION.pack(begin))))


def read_frames(file: int, segment: Segment, offset: int) -> Iterator[Frame]:
    """The frames of an open segment from `offset` on, until there is none that is whole."""
    begin = position(segment.generation, offset)
    while True:
        head = os.pread(file, _FRAME.size, offset)
        if len(head) != _FRAME.size:
            return
        checksum, size, transaction = _FRAME.unpack(head)
        payload = os.pread(file, size >> 1, offset + _FRAME.size)
        if not payload or len(payload) != size >> 1:
            return
        if checksum != _checksum(segment.salt, begin, size, transaction, payload):
            return
        offset += _FRAME.size + len(payload)
        end, is_last = position(segment.generation, offset), bool(size & 1)
        yield Frame(transaction, is_last, payload, begin, end)
        begin = end if is_last else begin


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """What the file of a checkpoint holds."""
    sequence, place, transaction, meta = checkpoint
    body = _CHECKPOINT.pack(_MAGIC, sequence, place, transaction, len(meta)) + meta
    return body + _SUM.pack(zlib.crc32(body))


def read_checkpoint(files: Iterable[int]) -> Checkpoint | None:
    """The newest checkpoint in the open files; None if there is none that is whole."""
    return max(filter(None, (_decode_checkpoint(os.pread(file, _MOST_BYTES, 0)) for file in files)), default=None)


def _decode_checkpoint(stored: bytes) -> Checkpoint | None:
    if len(stored) < _CHECKPOINT.size:
        return None
    magic, sequence, place, transaction, size = _CHECKPOINT.unpack_from(stored)
    end = _CHECKPOINT.size + size
    if magic != _MAGIC or len(stored) < end + _SUM.size:
        return None
    if _SUM.unpack_from(stored, end) != (zlib.crc32(stored[:end]),):
        return None
    return Checkpoint(sequence, place, transaction, stored[_CHECKPOINT.size : end])
