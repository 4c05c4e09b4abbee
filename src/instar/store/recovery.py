"""What a store's first opener does before LMDB sees it: the write-ahead log is done again from the newest checkpoint.

Nobody asks what became of the processes before, nor whether the power failed: whoever was the last to close the store
has left a checkpoint behind which there is no frame, and all others have not. The state of the checkpoint is whole
whatever lies in the other pages of the data file, so LMDB's meta pages are set back to it, and the frames are put into
it in one transaction. Nothing is lost if this is interrupted: it begins with the same checkpoint again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from instar import errors
from instar.store.data_file import meta_number, meta_pages
from instar.store.directory import DATA_FILE
from instar.store.wal_format import (
    CHECKPOINT_FILES,
    FRAMES,
    WAL_FILES,
    Checkpoint,
    Frame,
    encode_checkpoint,
    generation_of,
    offset_of,
    position,
    read_checkpoint,
    read_frames,
    read_segment,
)


def frames_after(path: str, checkpoint: Checkpoint) -> Iterator[Frame]:
    """The frames of the store in `path` from a checkpoint on, as far as they are whole and follow one another."""
    place, transaction = checkpoint.position, checkpoint.transaction
    while True:
        begun = place
        with open(os.path.join(path, WAL_FILES[generation_of(place) & 1]), "rb") as file:
            segment = read_segment(file.fileno())
            if segment is None or segment.generation != generation_of(place):
                return
            for frame in read_frames(file.fileno(), segment, offset_of(place)):
                number = frame.transaction
                if number not in (transaction, transaction + 1) or number == checkpoint.transaction:
                    return
                transaction, place = number, frame.end
                yield frame
        if place == begun and offset_of(begun) == FRAMES:
            return  # an empty segment: nothing follows
        place = position(generation_of(place) + 1, FRAMES)


def applied_frames(path: str, checkpoint: Checkpoint) -> tuple[list[range], int]:
    """Which of `frames_after` count, by their numbers, and the position behind the last frame.

    Those of transactions that are there whole, and of several with one number those of the last."""
    applied: list[range] = []
    begin, end, last, place = 0, checkpoint.position, 0, checkpoint.position
    for number, frame in enumerate(frames_after(path, checkpoint)):
        end = frame.end
        if frame.begin != place:  # those before it are of a transaction that came to nothing before the log turned
            begin, place = number, frame.begin
        if not frame.is_last:
            continue
        if frame.transaction == last:
            applied.pop()
        applied.append(range(begin, number + 1))
        begin, last, place = number + 1, frame.transaction, frame.end
    return applied, end


def recover(path: str, open_environment: Callable[[], Any]) -> int:
    """Have the data file hold all that the log tells, on disk; the position at which the log goes on.

    Only while no process has the store open. XX001 without a checkpoint or one of the files; OSError and LMDB's errors.
    """
    with contextlib.ExitStack() as opened:
        for name in WAL_FILES:
            _opened(path, name, opened)
        files = [_opened(path, name, opened) for name in CHECKPOINT_FILES]
        data = _opened(path, DATA_FILE, opened)
        newest = read_checkpoint(files)
        if newest is None:
            raise errors.error(errors.DATA_CORRUPTED, f"the store {path} is damaged: no checkpoint is whole")
        place = newest.position
        if not _is_clean(path, newest, data):
            made = _do_again(path, newest, data, open_environment)
        elif offset_of(place) == FRAMES and generation_of(place) > _newest_generation(path):
            return place
        else:
            made = newest._replace(sequence=newest.sequence + 1, position=_unused(path, place))
        file = files[made.sequence & 1]
        os.pwrite(file, encode_checkpoint(made), 0)
        os.fdatasync(file)
        return made.position


def _opened(path: str, name: str, opened: contextlib.ExitStack) -> int:
    try:
        file = os.open(os.path.join(path, name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise errors.error(errors.DATA_CORRUPTED, f"the store {path} is damaged: {name} is missing") from None
    opened.callback(os.close, file)
    return file


def _is_clean(path: str, newest: Checkpoint, data: int) -> bool:
    """Whether the data file is at the checkpoint, and nothing was committed since."""
    page_bytes = len(newest.meta)
    found = max(meta_number(os.pread(data, page_bytes, page * page_bytes)) for page in (0, 1))
    return found == newest.transaction and next(frames_after(path, newest), None) is None


def _do_again(path: str, newest: Checkpoint, data: int, open_environment: Callable[[], Any]) -> Checkpoint:
    """Put what the log tells into the state of the checkpoint; the checkpoint of what has come of it."""
    applied, end = applied_frames(path, newest)
    os.pwrite(data, meta_pages(newest.meta, newest.transaction), 0)
    environment = open_environment()
    try:
        # One transaction, which writes over no page of the state that it begins with.
        with environment.begin(write=True) as transaction:
            _apply(transaction, frames_after(path, newest), applied)
        number = environment.info()["last_txnid"]
    finally:
        environment.close()
    os.fdatasync(data)
    page_bytes = len(newest.meta)
    meta = os.pread(data, page_bytes, (number & 1) * page_bytes)
    return Checkpoint(newest.sequence + 1, _unused(path, end), number, meta)


def _unused(path: str, end: int) -> int:
    """Where the log goes on: in a segment that never was, since a power failure may have left frames without those
    before them, which are not to follow upon new ones."""
    return position(max(generation_of(end), _newest_generation(path)) + 1, FRAMES)


def _newest_generation(path: str) -> int:
    generations = [0]
    for name in WAL_FILES:
        with open(os.path.join(path, name), "rb") as file:
            segment = read_segment(file.fileno())
        if segment is not None:
            generations.append(segment.generation)
    return max(generations)


def _apply(transaction: Any, frames: Iterator[Frame], applied: list[range]) -> None:
    counted = {number for numbers in applied for number in numbers}
    for number, frame in enumerate(frames):
        if number not in counted:
            continue
        changes = iter(frame.changes)
        for key, value in zip(changes, changes, strict=True):
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, value)


def first_checkpoint(path: str, page_bytes: int, transaction: int) -> None:
    """Write the log's files of a store whose data file, left by LMDB's transaction of that number, is on disk."""
    with open(os.path.join(path, DATA_FILE), "rb") as data:
        meta = os.pread(data.fileno(), page_bytes, (transaction & 1) * page_bytes)
    made = encode_checkpoint(Checkpoint(0, position(1, FRAMES), transaction, meta))
    # The second one's room is taken now, so that a full disk never keeps a checkpoint from being made.
    for name, content in zip((*WAL_FILES, *CHECKPOINT_FILES), (b"", b"", made, bytes(len(made))), strict=True):
        with open(os.path.join(path, name), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
