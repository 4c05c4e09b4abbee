"""Values of sequences: outside MVCC, read at their latest state, handed out in blocks per process.

A process reserves a block with one small commit and hands its values out without touching the store. What a killed
process had left is skipped for ever; a process that closes in order gives the rest of its block back, if nobody has
reserved since.

What is stored is the last value of the newest block, not the one after it: the next is as far from it as the increment
is by then. What a process has reserved by another increment counts as handed out, so that none of it comes again.

A sequence that is restarted counts by another counter from then on, so that a block of the old one is not used any
more by whoever has seen the new descriptor. Records of counters that nobody counts by are left where they are: a
process that has not seen it yet may be at one.

setval writes to the counter itself, outside of the transaction, and counts how often that was done: a process leaves
the block that it reserved before, once it has looked at the counter. Statements do so with their first value of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import msgspec

from instar import errors
from instar.catalog.descriptors import Sequence
from instar.store.engine import Commit, PreconditionFailed, Reader, Store, ValueUnchanged
from instar.store.forks import begin_anew_in_child
from instar.store.records import Latest, latest_key

# A block grows while it is used up, so that bulk inserts do not commit once per 32 rows.
FIRST_BLOCK = 32
LARGEST_BLOCK = 4096


class SequenceState(msgspec.Struct, frozen=True, array_like=True):
    """The last value of the newest block; not `called`: the first value, which nobody has got yet.

    `writes` counts, so that no two states of a counter are the same: a block that is given back would otherwise take a
    sequence that has gone there and back for one that nobody has touched. `settings` counts the calls of setval.
    """

    last: int
    called: bool = False
    writes: int = 0
    settings: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(SequenceState)


def counter_key(counter: int) -> bytes:
    """The store key of a counter's state."""
    return latest_key(Latest.SEQUENCE, counter.to_bytes(4, "big"))


class _Block:
    """Values of one counter that this process may hand out: `left` more, beginning with `next`."""

    __slots__ = ("increment", "left", "maximum", "minimum", "next", "settings", "size", "stored")

    def __init__(self) -> None:
        self.next = 0
        self.left = 0
        self.increment = 1
        self.minimum = self.maximum = 0
        self.size = FIRST_BLOCK
        self.stored = b""
        self.settings = 0

    def serves(self, sequence: Sequence) -> bool:
        """Whether there is a value left, and the sequence is still bounded as it was when the block was reserved."""
        return (
            self.left != 0
            and self.increment == sequence.increment
            and self.minimum == sequence.minimum
            and self.maximum == sequence.maximum
        )


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
            block = self._block(sequence)
            if not block.serves(sequence):
                self._reserve(sequence, block)
            value = block.next
            block.next += block.increment
            block.left -= 1
            return value

    def next_values(self, sequence: Sequence, count: int) -> list[range]:
        """`count` calls of nextval at once, for loads: what the process has left, then one block. 2200H as above."""
        taken: list[range] = []
        with self._lock:
            block = self._block(sequence)
            while count:
                if not block.serves(sequence):
                    self._reserve(sequence, block, count)
                part = min(count, block.left)
                taken.append(range(block.next, block.next + part * block.increment, block.increment))
                block.next += part * block.increment
                block.left -= part
                count -= part
        return taken

    def set_value(self, sequence: Sequence, value: int, called: bool) -> None:
        """setval: the next value follows `value`, or is that if it is not `called`, for all processes. 22003 outside of
        the sequence's bounds."""
        if not sequence.minimum <= value <= sequence.maximum:
            bounds = f"({sequence.minimum}..{sequence.maximum})"
            message = f'setval: value {value} is out of bounds for sequence "{sequence.name}" {bounds}'
            raise errors.error(errors.NUMERIC_OUT_OF_RANGE, message)
        with self._lock:
            self._write(sequence, lambda state: SequenceState(value, called, state.writes + 1, state.settings + 1))
            self._block(sequence).left = 0

    def heed_settings(self, sequence: Sequence, reader: Reader) -> None:
        """Leave what was reserved before a setval that `reader` sees, of whichever process."""
        stored = reader.get(counter_key(sequence.counts_by))
        block = self._blocks.get(sequence.counts_by)
        if stored is None or (block is not None and block.stored == stored):
            return
        settings = _DECODER.decode(stored).settings
        with self._lock:  # after whoever is reserving now: that may be from before the setval, too
            block = self._blocks.get(sequence.counts_by)
            if block is not None and block.settings < settings:  # else another thread has seen it, and reserved since
                block.left = 0

    def last_value(self, sequence: Sequence) -> int | None:
        """The last value that was handed out, set, or reserved by another process; None before the first."""
        with self._lock:
            block = self._blocks.get(sequence.counts_by)
            if block is not None and block.left:
                self._give_back(sequence.counts_by, block)
                block.left = 0
        with self._store.read() as reader:
            stored = reader.get(counter_key(sequence.counts_by))
        return None if stored is None else _DECODER.decode(stored).last

    def close(self) -> None:
        """Give unused values back where nobody has reserved since."""
        with self._lock:
            for counter, block in self._blocks.items():
                if block.left:
                    self._give_back(counter, block)
            self._blocks.clear()

    def _block(self, sequence: Sequence) -> _Block:
        found = self._blocks.get(sequence.counts_by)
        if found is None:
            found = self._blocks[sequence.counts_by] = _Block()
        return found

    def _give_back(self, counter: int, block: _Block) -> None:
        key = counter_key(counter)
        with self._store.read() as reader:
            version = reader.catalog_version
        # A block is reserved for the sake of its first value: there is one that was handed out.
        writes = _DECODER.decode(block.stored).writes + 1
        state = SequenceState(block.next - block.increment, True, writes, block.settings)
        request = Commit(
            catalog_version=version,
            preconditions=[ValueUnchanged(key, block.stored, None)],
            raw=[(key, _ENCODER.encode(state))],
        )
        try:
            self._store.commit(request)
        except PreconditionFailed:
            return

    def _reserve(self, sequence: Sequence, block: _Block, least: int = 1) -> None:
        if block.left:
            self._give_back(sequence.counts_by, block)
        usual = max(block.size, sequence.cache)
        wanted = max(usual, least)
        increment = sequence.increment
        bound = sequence.maximum if increment > 0 else sequence.minimum
        first = count = settings = 0

        def advance(state: SequenceState) -> SequenceState:
            nonlocal first, count, settings
            following = state.last + increment if state.called else state.last
            # How many there are up to the bound; what another bound allowed may lie beyond it.
            left = (bound - following) // increment + 1
            if left <= 0:
                if not sequence.cycle:
                    raise errors.error(errors.SEQUENCE_LIMIT_EXCEEDED, _limit_message(sequence))
                following = sequence.minimum if increment > 0 else sequence.maximum
                left = (bound - following) // increment + 1
            first, count, settings = following, min(wanted, left), state.settings
            return SequenceState(following + (count - 1) * increment, True, state.writes + 1, settings)

        block.left = 0  # what was left is given back; and if the disk is full, say, nothing is reserved
        block.stored = self._write(sequence, advance)
        block.next, block.left, block.settings = first, count, settings
        block.increment, block.minimum, block.maximum = sequence.increment, sequence.minimum, sequence.maximum
        block.size = min(usual * 2, LARGEST_BLOCK)

    def _write(self, sequence: Sequence, change: Callable[[SequenceState], SequenceState]) -> bytes:
        """Change the state of the sequence's counter; the record as it is stored then."""
        key = counter_key(sequence.counts_by)
        first = sequence.start if sequence.first is None else sequence.first
        while True:
            with self._store.read() as reader:
                stored = reader.get(key)
                version = reader.catalog_version
            state = SequenceState(first) if stored is None else _DECODER.decode(stored)
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
            return record


class LentNumbers:
    """Values that another process has drawn, for this one to hand out: `lent` has those of each sequence, by its id, in
    the form (first, stop, increment) of ranges."""

    def __init__(self, lent: Mapping[int, Iterable[tuple[int, int, int]]]) -> None:
        self._left = {number: chain.from_iterable(range(*part) for part in parts) for number, parts in lent.items()}

    def next_value(self, sequence: Sequence) -> int:
        """nextval. XX000 if no value is left: whoever drew them has counted."""
        value = next(self._left.get(sequence.id, iter(())), None)
        if value is None:
            raise errors.error(errors.INTERNAL_ERROR, f'no value of sequence "{sequence.name}" is left of those lent')
        return value


def _limit_message(sequence: Sequence) -> str:
    which, value = ("maximum", sequence.maximum) if sequence.increment > 0 else ("minimum", sequence.minimum)
    return f'nextval: reached {which} value of sequence "{sequence.name}" ({value})'
