"""Commits that are too large for one step: what they put is written down whole before any of it is put.

A step is atomic and takes a fraction of a millisecond, during which nobody commits. The puts of a large commit take
many steps, and a crash may come between any two of them. To leave some of a commit applied would be wrong, since the
rules cannot be run over it again: rule 5 takes a row of R away from its old join value and adds it at the new one; on
the second run it finds no older record of the row where the first has removed it, holds that T is ahead, and does not
add it at all. S's counters would be counted twice for the same reason. So the rules run once, on an overlay; their puts
are recorded in chunks; a step says that all chunks are there; then they are put, blindly, as often as it takes; and the
position moves in the step that withdraws the record. A record that is not complete has had no effect, and is dropped.

Records lie beside the work's checkpoints, under the numbers from 1 on, and look like such to whoever lists these: the
payload is `start`, and no rows are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from instar.schemachange.job_records import Checkpoint, decode_checkpoint, encode_checkpoint
from instar.schemachange.online.overlay import Put, Readable, put_bytes
from instar.schemachange.tasks import RANGES_PER_WORK, Step, Task
from instar.store.engine import Section

# So many puts are one step, or, but for a single one, puts of so many bytes: nobody commits while it is run.
STEP_PUTS, STEP_BYTES = 256, 65_536
# The number of the record that says that all chunks are there, and of the first chunk.
_COMPLETE, _FIRST = 1, 2

PutT = TypeVar("PutT", bound=Put)

_chunks = msgspec.msgpack.Decoder(list[Put])


class Redo:
    """The record of one commit at a time, of one task."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def steps(self, puts: list[Put], reached: Checkpoint) -> Iterator[Step]:
        """Steps that put all of it, and have the work at `reached` then, or leave nothing but a record that is to be
        `resumed`."""
        chunks = cut(puts)
        # There are only so many numbers: the chunks of a very large commit share records.
        share = -(-len(chunks) // (RANGES_PER_WORK - _FIRST))
        records = [chunks[start : start + share] for start in range(0, len(chunks), share)]
        for number, record in enumerate(records, _FIRST):
            yield self._record(number, msgspec.msgpack.encode(list(chain.from_iterable(record))))
        yield self._record(_COMPLETE, encode_checkpoint(reached))
        yield from map(putting, chunks)
        yield self._end(reached)
        yield from self._dropping([self._task.checkpoint_key(_FIRST + number) for number in range(len(records))])

    def resumed(self, view: Readable) -> tuple[Iterator[Step], Checkpoint | None]:
        """Steps that put what was recorded whole, with the checkpoint that holds then, and drop what was not."""
        stored = view.get(self._task.checkpoint_key(_COMPLETE))
        found = list(view.scan(self._task.checkpoint_key(_FIRST), self._task.checkpoint_key(RANGES_PER_WORK)))
        keys = [key for key, _ in found]
        if stored is None:
            return self._dropping(keys), None
        reached = decode_checkpoint(decode_checkpoint(stored).start)
        chunks = [_chunks.decode(decode_checkpoint(value).start) for _, value in found]
        return self._again(chunks, keys, reached), reached

    def _again(self, chunks: Sequence[list[Put]], keys: Sequence[bytes], reached: Checkpoint) -> Iterator[Step]:
        for chunk in chunks:
            yield from map(putting, cut(chunk))
        yield self._end(reached)
        yield from self._dropping(keys)

    def _record(self, number: int, payload: bytes) -> Step:
        key, record = self._task.checkpoint_key(number), encode_checkpoint(Checkpoint(payload, b"", b"", 0))
        return putting([(key, record)])

    def _end(self, reached: Checkpoint) -> Step:
        position = (self._task.checkpoint_key(0), encode_checkpoint(reached))
        return putting([position, (self._task.checkpoint_key(_COMPLETE), None)])

    def _dropping(self, keys: Sequence[bytes]) -> Iterator[Step]:
        yield from map(putting, cut([(key, None) for key in keys]))


def is_step(puts: Sequence[Put]) -> bool:
    """Whether so much may be put by one step."""
    return len(puts) <= 1 or (
        len(puts) <= STEP_PUTS and sum(put_bytes(key, value) for key, value in puts) <= STEP_BYTES
    )


def cut(puts: list[PutT]) -> list[list[PutT]]:
    """The puts in pieces of which each is one step."""
    pieces, start, size = [], 0, 0
    for place, (key, value) in enumerate(puts):
        more = put_bytes(key, value)
        if place > start and (place - start >= STEP_PUTS or size + more > STEP_BYTES):
            pieces.append(puts[start:place])
            start, size = place, 0
        size += more
    if puts:
        pieces.append(puts[start:])
    return pieces


def putting(puts: Sequence[Put]) -> Step:
    """A step that puts all of it, whatever is there."""

    def step(section: Section) -> None:
        for key, value in puts:
            if value is None:
                section.delete(key)
            else:
                section.put(key, value)

    return step
