"""What is written and not stored yet, over what is stored: rules see their own writes before anybody else does.

The targets of a join or split have one writer, so that what has been read of them stays as it is until that writer
changes it. That is why `ShortReads` may read at different moments, and why an `Overlay` may go over to a newer view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Protocol

from sortedcontainers import SortedSet  # type: ignore[import-untyped]  # it has no stubs

from instar.encoding.keys import ROWSET_PREFIX_BYTES
from instar.store.engine import Reader, Store

# A read is open for so long at most: far less than it might be (store/engine.py), since LMDB writes to other pages all
# the while. Beside the propagation of a split, whose reads follow one another, the response time of transactions was
# 1.07 times as long as without it where they were open for 50 ms, and is 1.01 times (docs/benchmarks-history.md).
READ_SECONDS = 0.002
# So many pairs of a scan are read at once, at first and then: most look-ups find a few.
_FIRST, _MOST = 16, 512

Put = tuple[bytes, bytes | None]  # None: what is there is deleted


def put_bytes(key: bytes, value: bytes | None) -> int:
    """How many bytes a put is of."""
    return len(key) + (0 if value is None else len(value))


class Readable(Protocol):
    """What look-ups take: any view of the store, an overlay, short reads."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value at `key`."""
        ...

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop, in key order."""
        ...


class Writable(Readable, Protocol):
    """What targets are written to: an overlay."""

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """The values at some keys."""
        ...

    def put(self, key: bytes, value: bytes, /) -> object: ...

    def put_many(self, values: Mapping[bytes, bytes], /) -> object: ...

    def delete(self, key: bytes, /) -> object: ...


class ShortReads:
    """The newest state of the store, read by readers that are open for a moment each. Not one consistent view: for what
    nobody else writes, and for records that never change. `between` is called when one is closed, before the next."""

    def __init__(self, store: Store, between: Callable[[], None] = lambda: None) -> None:
        self.between = between
        self._store = store
        self._reader: Reader | None = None
        self._until = 0.0

    def get(self, key: bytes) -> bytes | None:
        """As in `Readable`."""
        reader = self._reader
        if reader is None or monotonic() >= self._until:
            reader = self._opened()
        return reader.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As in `Readable`; some pairs at once, so that no reader is needed between them."""
        pairs = list(islice(self._current().scan(start, stop), _FIRST))
        return iter(pairs) if len(pairs) < _FIRST else self._scanned_on(pairs, stop)

    def _scanned_on(self, pairs: list[tuple[bytes, bytes]], stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from pairs
        start, limit = pairs[-1][0] + b"\x00", _MOST
        while True:
            keys, values = self._current().batch(start, stop, limit)
            yield from zip(keys, values, strict=True)
            if len(keys) < limit:
                return
            start = keys[-1] + b"\x00"

    def close(self) -> None:
        """Give the reader back: before a pause, and at the end. The next look-up opens another."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _current(self) -> Reader:
        reader = self._reader
        return self._opened() if reader is None or monotonic() >= self._until else reader

    def _opened(self) -> Reader:
        """A reader in place of the one whose time is over."""
        if self._reader is not None:
            self.close()
            self.between()
        reader = self._reader = self._store.read()
        self._until = monotonic() + READ_SECONDS
        return reader


class Overlay:
    """Writes over `view`, which may be replaced by one that has some of them already. Between `settled` and `settled`
    nobody else may write to what is scanned here."""

    def __init__(self, view: Readable) -> None:
        self.view = view
        self._written: dict[bytes, bytes | None] = {}
        # The keys of those that are there, by rowset, of the rowsets that were scanned since: most are written rows,
        # which nobody scans.
        self._put: dict[bytes, SortedSet] = {}
        self._deleted: set[bytes] = set()  # the rowsets in which something was
        self._taken: dict[bytes, bytes | None] = {}  # what was written since it was asked for last
        self.waiting_bytes = 0  # that of all writes since then, of one key after the other, too
        # Of ranges by their start: up to where all that the view has was written over. A commit that takes away many
        # rows looks again and again for one that is left, and must not pass by those that are gone each time.
        self._passed: dict[bytes, bytes] = {}

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing in it."""
        return not self._written

    @property
    def waiting(self) -> int:
        """How many keys were written, and nobody has taken them."""
        return len(self._taken)

    def get(self, key: bytes) -> bytes | None:
        """As in `Readable`."""
        return self._written[key] if key in self._written else self.view.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Writable`."""
        written, get = self._written, self.view.get
        return [written[key] if key in written else get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As in `Readable`, as it is when the scan begins: nothing is to be written before it ends."""
        rowset = start[:ROWSET_PREFIX_BYTES]
        put = self._put.get(rowset)
        # Nothing in it can have been deleted here.
        is_whole = rowset not in self._deleted and rowset == stop[:ROWSET_PREFIX_BYTES]
        if is_whole and put is not None and not put:
            return self.view.scan(start, stop)
        own = self._own(start, stop)
        next_own = next(own, None)
        if next_own is None and is_whole:
            return self.view.scan(start, stop)
        return self._merged(start, stop, next_own, own)

    def _own(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """The keys in a range that are there and were written here, in their order."""
        rowset = start[:ROWSET_PREFIX_BYTES]
        if rowset != stop[:ROWSET_PREFIX_BYTES]:
            there = [key for key, value in self._written.items() if value is not None and start <= key < stop]
            return iter(sorted(there))
        put = self._put.get(rowset)
        if put is None:
            there = [key for key, value in self._written.items() if value is not None and key.startswith(rowset)]
            put = self._put[rowset] = SortedSet(there)
        return put.irange(start, stop, inclusive=(True, False)) if put else iter(())

    def _merged(
        self, start: bytes, stop: bytes, next_own: bytes | None, own: Iterator[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._not_written(start, stop):
            while next_own is not None and next_own < key:
                yield next_own, self._value(next_own)
                next_own = next(own, None)
            yield key, value
        while next_own is not None:
            yield next_own, self._value(next_own)
            next_own = next(own, None)

    def _not_written(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What the view has in a range and nobody has written over here."""
        written, all_passed = self._written, True
        for key, value in self.view.scan(self._passed.get(start, start), stop):
            if key not in written:
                all_passed = False
                yield key, value
            elif all_passed:
                self._passed[start] = key + b"\x00"

    def _value(self, key: bytes) -> bytes:
        value = self._written[key]
        assert value is not None, "a key that is there has a value"
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """As in `Writable`."""
        self._write(key, value)

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """As in `Writable`."""
        scanned = self._put
        if scanned:
            for key in values:
                put = scanned.get(key[:ROWSET_PREFIX_BYTES])
                if put is not None:
                    put.add(key)
        self._written.update(values)
        self._taken.update(values)
        self.waiting_bytes += sum(map(len, values)) + sum(map(len, values.values()))

    def delete(self, key: bytes) -> None:
        """As in `Writable`."""
        self._write(key, None)

    def taken(self) -> list[Put]:
        """What was written since this was called last: what becomes of each key, in key order. It stays readable here
        until it is `settled`."""
        taken = sorted(self._taken.items(), key=lambda put: put[0])
        self._taken.clear()
        self.waiting_bytes = 0
        return taken

    def settled(self) -> None:
        """All that was taken is stored, and seen by the views to come; nothing has been written since."""
        assert not self._taken, "writes that nobody took"
        self._written.clear()
        self._put.clear()
        self._deleted.clear()
        self._passed.clear()

    def _write(self, key: bytes, value: bytes | None) -> None:
        rowset = key[:ROWSET_PREFIX_BYTES]
        put = self._put.get(rowset)
        if value is None:
            self._deleted.add(rowset)
            if put is not None:
                put.discard(key)
        elif put is not None:
            put.add(key)
        self._written[key] = self._taken[key] = value
        self.waiting_bytes += put_bytes(key, value)
