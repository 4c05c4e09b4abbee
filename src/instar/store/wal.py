"""The write-ahead log of a store whose commits outlast a power failure: what a commit waits for is its frame alone.

LMDB commits without waiting for the disk. Its changes go to the log first, within the atomic section, and the commit is
acknowledged when the log is on disk: one write that lies in a row, where LMDB's own way is some nine at random places
and two waits. The wait comes after the section, so that other processes commit meanwhile, and whoever syncs, syncs what
all have appended. What a background batch appends is synced by whoever comes next.

What a power failure leaves of the data file is not looked at: the state of the last checkpoint is whole (`keeper`), and
the log is done again from there (`recovery`).

The end of the log is a word that all processes share, set before LMDB commits. A transaction that fails, or whose
process is killed, between the two leaves frames of a number that the next transaction has again: of several frames in a
row with one number and each the last of it, the last counts. One whose commit LMDB refused is voided so, by a frame
without changes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

from instar import errors
from instar.store.lmdb_environment import APPENDING
from instar.store.presence import WAL_BROKEN, WAL_DURABLE, WAL_END, SharedPresence, last_words
from instar.store.wal_format import (
    FRAME_BYTES,
    FRAMES,
    MOST_OFFSET,
    WAL_FILES,
    Changes,
    Segment,
    encode_frame,
    encode_segment,
    generation_of,
    offset_of,
    position,
    read_segment,
)

# So many keys and values make a frame at most, so that a large transaction is not held in memory twice.
_MOST_CHANGES = 8192
# A value that is longer ends its frame.
_LARGE_VALUE = 1 << 13
# A segment is made longer by zeros: a sync of what lies over blocks that are on disk waits for these alone.
_LEAST_STEP, _MOST_STEP = 64 << 10, 1 << 20
# From here on the log goes on in the other segment, once no checkpoint needs what is there.
SEGMENT_BYTES = 4 << 20
# A segment that one large transaction has made longer than this is cut.
_KEPT_BYTES = 64 << 20


class WriteAheadLog:
    """The log of the store in directory `path`; all but `sync` and `close` within the atomic section."""

    def __init__(self, path: str, presence: SharedPresence) -> None:
        self._words = presence.shared_words
        self._files: list[int] = []
        self._segment: Segment | None = None
        self._size = 0  # the segment's file is no shorter
        self._syncing = threading.Lock()
        try:
            for name in WAL_FILES:
                self._files.append(os.open(os.path.join(path, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except BaseException:
            self.close()
            raise

    @property
    def end(self) -> int:
        """The position behind the last frame that was appended."""
        return self._words[WAL_END]

    def since(self, place: int) -> int:
        """How many bytes have been appended since a position; those before the log turned to the other segment, at the
        beginning of a checkpoint, count as one."""
        end = self.end
        return end - place if generation_of(end) == generation_of(place) else offset_of(end) - FRAMES + 1

    def require_whole(self) -> None:
        """58030 if the disk has failed to write what it was told to write: nobody knows what it has."""
        if self._words[WAL_BROKEN]:
            raise errors.error(
                errors.IO_ERROR,
                "the store cannot be written: the disk has failed to write to it",
                hint="Close it in all processes and open it again: what was acknowledged is read from the log then.",
            )

    def give_up(self) -> None:
        """The disk has failed: nobody is to commit any more before the store was opened anew."""
        self._words[WAL_BROKEN] = 1

    def write(self, begin: int, place: int, transaction: int, changes: Changes, *, is_last: bool) -> int:
        """Write a frame at `place`, of a transaction whose frames begin at `begin`; the position behind it, which
        `finish` makes the end of the log. OSError."""
        segment = self._segment_at(place)
        frame = encode_frame(segment.salt, begin, transaction, changes, is_last=is_last)
        file, offset = self._files[segment.generation & 1], offset_of(place)
        length = len(frame)
        if offset + length > MOST_OFFSET:
            raise errors.error(errors.LIMIT_EXCEEDED, "the transaction is longer than the write-ahead log may be")
        if offset + length + FRAME_BYTES > self._size:
            self._extend(file, offset + length + FRAME_BYTES)
            # If LMDB refuses the commit, the disk being full, there is room to void it.
            frame += bytes(FRAME_BYTES)
        written = os.pwrite(file, frame, offset)
        while written < len(frame):  # the system writes no more than 2 GiB at once
            written += os.pwrite(file, frame[written:], offset + written)
        return place + length

    def finish(self, end: int) -> None:
        """The log ends there now, if LMDB commits."""
        self._words[WAL_END] = end

    def void(self, transaction: int) -> None:
        """LMDB has refused to commit the transaction whose frames were appended last. OSError."""
        end = self.write(self.end, self.end, transaction, [], is_last=True)
        self.finish(end)
        self.sync(end)  # what was refused may be on disk already

    def turn(self, needed: int) -> None:
        """Go on in the other segment if this one is long, and nothing from position `needed` on lies in that one."""
        end = self.end
        generation = generation_of(end)
        if offset_of(end) < SEGMENT_BYTES or generation_of(needed) != generation:
            return
        # Frames in the other one are worth nothing without those in this one.
        with self._syncing:
            self._sync(generation)
        # In this order: if this process is killed in between, somebody syncs in vain.
        self._words[WAL_END] = position(generation + 1, FRAMES)
        self._words[WAL_DURABLE] = position(generation + 1, FRAMES)

    def sync(self, upto: int) -> None:
        """Have all frames before position `upto` on disk. 08007 if the disk fails: they may be there or not."""
        words = self._words
        if words[WAL_DURABLE] >= upto:
            return
        with self._syncing:
            if words[WAL_DURABLE] >= upto:
                return
            reached = words[WAL_END]
            if generation_of(reached) != generation_of(upto):
                return  # whoever turned to the other segment has synced this one
            self._sync(generation_of(upto))
            words[WAL_DURABLE] = reached

    def _sync(self, generation: int) -> None:
        if self._words[WAL_BROKEN]:  # the system tells of a failure only once
            raise errors.error("08007", "the disk has failed to write the log: the commit may stand or not")
        try:
            os.fdatasync(self._files[generation & 1])
        except OSError as caught:
            self.give_up()
            raise errors.error(
                "08007", f"the disk has failed to write the log ({caught.strerror}): the commit may stand or not"
            ) from caught

    def _segment_at(self, place: int) -> Segment:
        """The segment that a frame at `place` lies in, begun if it is its first."""
        generation = generation_of(place)
        known = self._segment
        if offset_of(place) == FRAMES:
            known = self._segment = self._begin_segment(generation)
        elif known is None or known.generation != generation:
            known = self._segment = read_segment(self._files[generation & 1])
            self._size = os.fstat(self._files[generation & 1]).st_size
            if known is None or known.generation != generation:
                raise errors.error(errors.DATA_CORRUPTED, "the store's write-ahead log is damaged")
        return known

    def _begin_segment(self, generation: int) -> Segment:
        file = self._files[generation & 1]
        self._size = os.fstat(file).st_size
        begun = read_segment(file)
        if begun is not None and begun.generation == generation:  # by a transaction that came to nothing
            return begun
        if self._size > _KEPT_BYTES:
            os.ftruncate(file, FRAMES)
            self._size = FRAMES
        segment = Segment(generation, os.urandom(16))
        os.pwrite(file, encode_segment(segment), 0)
        return segment

    def _extend(self, file: int, end: int) -> None:
        """Have zeros beyond `end`. A full disk is for the frame itself to find out."""
        self._size = os.fstat(file).st_size  # another process may have made it longer
        step = min(max(self._size // 2, _LEAST_STEP), _MOST_STEP)
        if 0 < end - self._size <= step:
            with contextlib.suppress(OSError):
                self._size += os.pwrite(file, bytes(2 * step), self._size)

    def close(self) -> None:
        """Let go of the files; also what a forked child does with what it inherited."""
        for file in self._files:
            os.close(file)
        self._files = []
        self._words = last_words(self._words)


class Redo:
    """What one write transaction, of LMDB's number `transaction`, leaves in the log."""

    __slots__ = ("_begin", "_changes", "_log", "_place", "_put", "_transaction")

    def __init__(self, log: WriteAheadLog, transaction: int, put: Callable[..., Any]) -> None:
        self._log = log
        self._transaction = transaction
        self._put = put
        self._changes: list[bytes | None] = []
        self._begin = self._place = 0  # where its frames begin, and behind those that are written already

    def put(self, key: bytes, value: bytes) -> object:
        """LMDB's `put`."""
        done = self._put(key, value)
        self.note(key, value)
        return done

    def append(self, key: bytes, value: bytes) -> object:
        """LMDB's `put` behind all others; false if it was not."""
        done = self._put(key, value, *APPENDING)
        if done:
            self.note(key, value)
        return done

    def note(self, key: bytes, value: bytes | None) -> None:
        """`value` was put at `key`, or what was there was deleted."""
        changes = self._changes
        changes.append(key)
        changes.append(value)
        if len(changes) >= _MOST_CHANGES or (value is not None and len(value) > _LARGE_VALUE):
            self._write(is_last=False)

    def note_all(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """These pairs were put."""
        for begin in range(0, len(pairs), _MOST_CHANGES // 2):
            part = pairs[begin : begin + _MOST_CHANGES // 2]
            if max([len(value) for _key, value in part]) > _LARGE_VALUE:
                for key, value in part:
                    self.note(key, value)
                continue
            self._changes.extend(chain.from_iterable(part))
            if len(self._changes) >= _MOST_CHANGES:
                self._write(is_last=False)

    def _write(self, *, is_last: bool) -> None:
        if not self._place:
            self._begin = self._place = self._log.end
        self._place = self._log.write(self._begin, self._place, self._transaction, self._changes, is_last=is_last)
        self._changes = []

    def finish(self) -> int:
        """Append what was changed, before LMDB commits it; the position up to which the commit is to be synced, or 0 if
        nothing was changed. OSError."""
        if not self._changes and not self._place:
            return 0
        self._write(is_last=True)
        self._log.finish(self._place)
        return self._place
