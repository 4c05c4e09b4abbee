"""Values of sequences: outside MVCC, read at their latest state, handed out in blocks per process.

A process reserves a block with one small commit and hands its values out without touching the store. What a killed
process had left is skipped for ever; a process that closes in order gives the rest of its block back, if nobody has
reserved since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from instar import errors
from instar.catalog.descriptors import Sequence
from instar.store.engine import Commit, PreconditionFailed, Store, ValueUnchanged
from instar.store.forks import begin_anew_in_child
from instar.store.records import Latest, latest_key

# A block grows while it is used up, so that bulk inserts do not commit once per 32 rows.
FIRST_BLOCK = 32
LARGEST_BLOCK = 4096


class SequenceState(msgspec.Struct, frozen=True, array_like=True):
    """The value that the next block begins with; `exhausted`: it lies beyond the bounds."""

    next: int
    exhausted: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(SequenceState)


def sequence_key(sequence: int) -> bytes:
    """The store key of a sequence's state."""
    return latest_key(Latest.SEQUENCE, sequence.to_bytes(4, "big"))


def encode_state(next_value: int) -> bytes:
    """The record of a sequence whose next value is `next_value`."""
    return _ENCODER.encode(SequenceState(next_value))


class _Block:
    """Values of one sequence that this process may hand out: `left` more, beginning with `next`."""

    __slots__ = ("increment", "left", "next", "size", "stored")

    def __init__(self) -> None:
        self.next = 0
        self.left = 0
        self.increment = 1
        self.size = FIRST_BLOCK
        self.stored = b""


class Sequences:
    """The process's reserved blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: the blocks are the parent's, neither to be used nor to be given back."""
        self._blocks: dict[int, _Block] = {}
        self._lock = threading.Lock()

    def next_value(self, sequence: Sequence) -> int:
        """nextval: 2200H where a sequence that does not cycle has come to its end."""
        with self._lock:
            block = self._blocks.setdefault(sequence.id, _Block())
            if block.left == 0 or block.increment != sequence.increment:
                self._reserve(sequence, block)
            value = block.next
            block.next += block.increment
            block.left -= 1
            return value

    def next_values(self, sequence: Sequence, count: int) -> list[range]:
        """`count` calls of nextval at once, for loads: what the process has left, then one block. 2200H as above."""
        taken: list[range] = []
        with self._lock:
            block = self._blocks.setdefault(sequence.id, _Block())
            while count:
                if block.left == 0 or block.increment != sequence.increment:
                    self._reserve(sequence, block, count)
                part = min(count, block.left)
                taken.append(range(block.next, block.next + part * block.increment, block.increment))
                block.next += part * block.increment
                block.left -= part
                count -= part
        return taken

    def restart(self, sequence: int, value: int) -> None:
        """The next value is `value`, whatever its bounds say (they were checked where it was asked for)."""
        with self._lock:
            self._blocks.pop(sequence, None)
            self._write(sequence, lambda _: SequenceState(value))

    def close(self) -> None:
        """Give unused values back where nobody has reserved since."""
        with self._lock:
            for sequence, block in self._blocks.items():
                if block.left:
                    self._give_back(sequence, block)
            self._blocks.clear()

    def _give_back(self, sequence: int, block: _Block) -> None:
        key = sequence_key(sequence)
        with self._store.read() as reader:
            version = reader.catalog_version
        request = Commit(
            catalog_version=version,
            preconditions=[ValueUnchanged(key, block.stored, None)],
            raw=[(key, encode_state(block.next))],
        )
        try:
            self._store.commit(request)
        except PreconditionFailed:
            return

    def _reserve(self, sequence: Sequence, block: _Block, least: int = 1) -> None:
        usual = max(block.size, sequence.cache)
        wanted = max(usual, least)

        def advance(state: SequenceState) -> SequenceState:
            if state.exhausted:
                if not sequence.cycle:
                    raise errors.error("2200H", _limit_message(sequence))
                state = SequenceState(sequence.minimum if sequence.increment > 0 else sequence.maximum)
            last = sequence.maximum if sequence.increment > 0 else sequence.minimum
            count = min(wanted, (last - state.next) // sequence.increment + 1)
            block.next, block.left = state.next, count
            return self._state(sequence, state.next + count * sequence.increment)

        self._write(sequence.id, advance, block, start=sequence.start)
        block.increment = sequence.increment
        block.size = min(usual * 2, LARGEST_BLOCK)

    @staticmethod
    def _state(sequence: Sequence, next_value: int) -> SequenceState:
        exhausted = not sequence.minimum <= next_value <= sequence.maximum
        return SequenceState(next_value, exhausted)

    def _write(
        self,
        sequence: int,
        change: Callable[[SequenceState], SequenceState],
        block: _Block | None = None,
        *,
        start: int = 1,
    ) -> None:
        key = sequence_key(sequence)
        while True:
            with self._store.read() as reader:
                stored = reader.get(key)
                version = reader.catalog_version
            state = SequenceState(start) if stored is None else _DECODER.decode(stored)
            record = _ENCODER.encode(change(state))
            request = Commit(
                catalog_version=version,
                preconditions=[ValueUnchanged(key, stored, None)],
                raw=[(key, record)],
            )
            try:
                self._store.commit(request)
            except PreconditionFailed:
                continue
            if block is not None:
                block.stored = record
            return


def _limit_message(sequence: Sequence) -> str:
    which, value = ("maximum", sequence.maximum) if sequence.increment > 0 else ("minimum", sequence.minimum)
    return f'nextval: reached {which} value of sequence "{sequence.name}" ({value})'
