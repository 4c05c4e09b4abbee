"""The write-ahead log's bytes: what is written is read again, and what is torn ends the log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from instar.store.wal_format import (
    FRAMES,
    Checkpoint,
    Segment,
    encode_checkpoint,
    encode_frame,
    encode_segment,
    generation_of,
    offset_of,
    position,
    read_checkpoint,
    read_frames,
    read_segment,
)

SEGMENT = Segment(5, bytes(range(16)))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_positions_grow_with_generation_and_offset() -> None:
    places = [position(1, FRAMES), position(1, 1 << 35), position(2, FRAMES), position(1 << 27, 0)]
    assert places == sorted(places)
    assert [(generation_of(place), offset_of(place)) for place in places] == [
        (1, FRAMES), (1, 1 << 35), (2, FRAMES), (1 << 27, 0)
    ]  # fmt: skip
    assert places[-1] < 1 << 64  # it is a word that processes share


def test_the_vectors_of_the_documentation() -> None:
    """docs/formats/wal.md."""
    frame = encode_frame(SEGMENT.salt, position(5, FRAMES), 7, [b"k", b"v", b"gone", None], is_last=True)
    assert frame.hex() == "96610b1c1d000000070000000000000094c4016bc40176c404676f6e65c0"
    head = encode_segment(SEGMENT)
    assert len(head) == FRAMES
    assert head[:36].hex() == "696e73746172574c0500000000000000000102030405060708090a0b0c0d0e0f0f669e76"
    assert not any(head[36:])


def test_a_segment(file: int) -> None:
    assert read_segment(file) is None
    page = encode_segment(SEGMENT)
    os.pwrite(file, page, 0)
    assert read_segment(file) == SEGMENT
    for damaged in range(36):
        os.pwrite(file, page[:damaged] + bytes([page[damaged] ^ 1]) + page[damaged + 1 :], 0)
        assert read_segment(file) is None


def test_frames_until_one_is_torn(file: int) -> None:
    changes: tuple[list[bytes | None], ...] = ([b"a", b"1", b"b", None], [], [b"c", bytes(100_000)])
    frames: list[bytes] = []
    begin = position(5, FRAMES)
    for number, put in enumerate(changes):
        frames.append(encode_frame(SEGMENT.salt, begin, 10 + number, put, is_last=number != 1))
        if number != 1:
            begin = position(5, FRAMES + sum(map(len, frames)))
    whole = b"".join(frames)
    os.pwrite(file, whole, FRAMES)
    found = list(read_frames(file, SEGMENT, FRAMES))
    assert [(frame.transaction, frame.is_last, frame.changes) for frame in found] == [
        (10, True, changes[0]), (11, False, changes[1]), (12, True, changes[2])
    ]  # fmt: skip
    assert [frame.end for frame in found][-1] == position(5, FRAMES + len(whole))
    assert [frame.begin for frame in found] == [position(5, FRAMES), found[0].end, found[0].end]
    assert [frame.transaction for frame in read_frames(file, SEGMENT, FRAMES + len(frames[0]))] == [11, 12]
    # Another salt: frames that were there before the segment was used again.
    assert list(read_frames(file, Segment(5, bytes(16)), FRAMES)) == []
    second = FRAMES + len(frames[0])
    for damaged in range(len(frames[1])):
        os.pwrite(file, bytes([frames[1][damaged] ^ 0x80]), second + damaged)
        assert [frame.transaction for frame in read_frames(file, SEGMENT, FRAMES)] == [10]
        os.pwrite(file, frames[1][damaged : damaged + 1], second + damaged)
    os.ftruncate(file, FRAMES + len(whole) - 1)
    assert [frame.transaction for frame in read_frames(file, SEGMENT, FRAMES)] == [10, 11]


def test_what_an_unfinished_transaction_has_left_does_not_follow_upon_another(file: int) -> None:
    begin = position(5, FRAMES)
    left = [encode_frame(SEGMENT.salt, begin, 7, [b"k", bytes(100)], is_last=is_last) for is_last in (False, True)]
    os.pwrite(file, b"".join(left), FRAMES)
    assert len(list(read_frames(file, SEGMENT, FRAMES))) == 2
    over = encode_frame(SEGMENT.salt, begin, 7, [b"o", bytes(100)], is_last=True)
    assert len(over) == len(left[0])
    os.pwrite(file, over, FRAMES)
    assert [frame.changes[0] for frame in read_frames(file, SEGMENT, FRAMES)] == [b"o"]


def test_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    older, newer = (
        Checkpoint(6, position(1, FRAMES), 100, bytes(4096)),
        Checkpoint(7, position(2, 9999), 101, b"m" * 65536),
    )
    files = []
    for number, made in enumerate((older, newer)):
        files.append(os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT))
        assert read_checkpoint(files) == (None if number == 0 else older)
        os.write(files[number], encode_checkpoint(made))
    assert read_checkpoint(files) == newer
    os.pwrite(files[1], b"n", 30_000)
    assert read_checkpoint(files) == older
    os.pwrite(files[0], b"\x01", 3)
    assert read_checkpoint(files) is None
    for file in files:
        os.close(file)
