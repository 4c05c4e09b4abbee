"""The memory engine: the model that the lmdb engine is compared with, and a store for tests. One process only."""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Self

from instar import errors
from instar.clock import Clock, SystemClock
from instar.store.base import BaseStore
from instar.store.blocks import Block, block_of
from instar.store.cuts import Cut, ranks
from instar.store.engine import Damaged
from instar.store.forks import begin_anew_in_child
from instar.store.group import CommitQueue
from instar.store.header import HEADER_KEY, Head, decode_header, first_header, head_of, new_identity
from instar.store.lock_table import MemoryLockTable
from instar.store.presence import Presence
from instar.store.section import WriteSection

# As in LMDB, so that what fits one engine fits the other.
MAX_KEY_BYTES = 511


class _KeySizeError(Exception):
    """Not an `errors.Error` yet: those are refusals, after which a section is as it was."""


class _State:
    """Keys in order and values by key. Not changed while `readers` look at it."""

    __slots__ = ("keys", "readers", "values")

    def __init__(self, keys: list[bytes], values: dict[bytes, bytes]) -> None:
        self.keys = keys
        self.values = values
        self.readers = 0

    def head(self) -> Head:
        last = self.keys[-1]
        return head_of(decode_header(self.values[HEADER_KEY]), last, self.values[last])

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        keys, values = self.keys, self.values
        indexes = range(bisect_left(keys, start), bisect_left(keys, stop))
        for index in reversed(indexes) if reverse else indexes:
            yield keys[index], values[keys[index]]

    def cut(self, start: bytes, stop: bytes, parts: int) -> Cut:
        first = bisect_left(self.keys, start)
        rows = max(bisect_left(self.keys, stop) - first, 0)
        return Cut([self.keys[first + rank] for rank in ranks(rows, parts)], rows)

    def changed(self, changes: dict[bytes, bytes | None]) -> _State:
        """This state with `changes`: itself where nobody looks at it, else another."""
        state = self if not self.readers else _State(self.keys.copy(), self.values.copy())
        keys, values = state.keys, state.values
        fresh = [key for key, value in changes.items() if value is not None and key not in values]
        for key, value in changes.items():
            if value is not None:
                values[key] = value
            elif values.pop(key, None) is not None:
                del keys[bisect_left(keys, key)]
        if len(fresh) < 8:
            for key in fresh:
                insort(keys, key)
        else:
            keys += fresh
            keys.sort()
        return state


class MemoryReader:
    """A view of one state, which commits leave alone as long as it is open."""

    __slots__ = ("_open", "_state", "_store", "catalog_version", "timestamp", "watermark")

    def __init__(self, store: MemoryStore, state: _State) -> None:
        self._store = store
        self._state = state
        self._open = True
        self.timestamp, _log_end, header = state.head()
        self.catalog_version, self.watermark = header.catalog_version, header.watermark

    def get(self, key: bytes, /) -> bytes | None:
        """As in `View`."""
        return self._state.values.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As in `View`."""
        return self._state.scan(start, stop, reverse=reverse)

    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        """As in `View`."""
        return _batch(self._state.scan(start, stop, reverse=reverse), limit)

    def block(self, start: bytes, stop: bytes, size: int) -> Block:
        """As in `Reader`."""
        return block_of(self._state.scan(start, stop), size)

    def cut(self, start: bytes, stop: bytes, parts: int) -> Cut:
        """As in `Reader`: just so many."""
        return self._state.cut(start, stop, parts)

    def close(self) -> None:
        """As in `Reader`."""
        if self._open:
            self._open = False
            self._store.leave(self._state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, _caught: object, _traceback: object) -> None:
        self.close()


def _batch(pairs: Iterator[tuple[bytes, bytes]], limit: int) -> tuple[list[bytes], list[bytes]]:
    taken = list(islice(pairs, limit))
    return [key for key, _value in taken], [value for _key, value in taken]


class MemorySection(WriteSection):
    """Changes laid over the newest state, merged into it by `commit`."""

    __slots__ = ("_changes", "_ended", "_store")

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._changes: dict[bytes, bytes | None] = {}
        self._ended = False
        self.get = self._get
        self.put = self._put
        self.append = self._append
        self.locks = store.locks
        self.load(store.state.head())

    def _get(self, key: bytes) -> bytes | None:
        if key in self._changes:
            return self._changes[key]
        return self._store.state.values.get(key)

    def _put(self, key: bytes, value: bytes) -> None:
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise _KeySizeError(f"a key has {len(key)} bytes; it may have 1 to {MAX_KEY_BYTES}")
        self._changes[key] = value

    def delete(self, key: bytes, /) -> bool:
        present = self._get(key) is not None
        self._changes[key] = None
        return present

    def _append(self, key: bytes, value: bytes) -> bool:
        if key <= self._store.state.keys[-1]:  # as MDB_APPEND demands
            return False
        self._put(key, value)
        return True

    def put_many(self, pairs: list[tuple[bytes, bytes]]) -> None:
        for key, value in pairs:
            self._put(key, value)

    def any_of(self, keys: list[bytes]) -> bytes | None:
        return next((key for key in keys if self._get(key) is not None), None)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        changes = self._changes
        below = (pair for pair in self._store.state.scan(start, stop, reverse=reverse) if pair[0] not in changes)
        own = sorted((key, value) for key, value in changes.items() if value is not None and start <= key < stop)
        return heapq.merge(below, own[::-1] if reverse else own, reverse=reverse)

    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        return _batch(self.scan(start, stop, reverse=reverse), limit)

    def commit(self, *, durably: bool = True) -> None:
        self._store.publish(self._changes)
        self._end()

    def abort(self) -> None:
        if not self._ended:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._store.writer.release()


class MemoryStore(BaseStore):
    """A store that lives as long as its object."""

    max_key_bytes = MAX_KEY_BYTES

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        retention_seconds: float | None = None,
        log_max_bytes: int | None = None,
        schema_lease: float | None = None,
    ) -> None:
        clock = SystemClock() if clock is None else clock
        super().__init__(new_identity("off", retention_seconds, log_max_bytes, schema_lease), clock)
        header = first_header(clock)
        self.state = _State([HEADER_KEY], {HEADER_KEY: header})
        self._unfinished: dict[bytes, bytes | None] | None = None  # what is being published, by who may be interrupted
        self._present = Presence(clock, self.snapshot_max_age)
        self._locks = MemoryLockTable(self._present)
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child, which has a store of its own now: the threads that were committing are its parent's."""
        self.writer = threading.RLock()  # which knows whose it is; nobody enters twice
        self._states = threading.Lock()  # guards `state` and its count of readers, never held for long
        self._commits = CommitQueue(self._begin, self._translate, self._clock, self._present, self._ended)
        self._present.forked()

    @property
    def _queue(self) -> CommitQueue:
        return self._commits

    @property
    def _presence(self) -> Presence:
        return self._present

    @property
    def locks(self) -> MemoryLockTable:
        """As in `Store`."""
        return self._locks

    def read(self) -> MemoryReader:
        """As in `Store`."""
        with self._states:
            self._finish()
            self.state.readers += 1
            return MemoryReader(self, self.state)

    def leave(self, state: _State) -> None:
        """A reader of `state` is done."""
        with self._states:
            state.readers -= 1

    def publish(self, changes: dict[bytes, bytes | None]) -> None:
        """Make `changes` the newest state."""
        with self._states:
            self._unfinished = changes
            self.state = self.state.changed(changes)
            self._unfinished = None

    def _finish(self) -> None:
        """Publish what was not published to its end: of a state that was half changed, keys and values differ."""
        if self._unfinished is not None:
            changed = {**self.state.values, **self._unfinished}
            values = {key: value for key, value in changed.items() if value is not None}
            self.state = _State(sorted(values), values)
            self._unfinished = None

    def _head(self) -> Head:
        with self._states:
            self._finish()
            return self.state.head()

    def _begin(self) -> WriteSection:
        self.writer.acquire()
        with self._states:
            self._finish()
        return MemorySection(self)

    def _ended(self) -> None:
        if self.writer._is_owned():  # type: ignore[attr-defined] # what threading.Condition asks of a lock
            self.writer.release()

    def _translate(self, caught: Exception) -> Exception:
        if isinstance(caught, Damaged):
            return errors.error(errors.DATA_CORRUPTED, f"the store is damaged: {caught}")
        return errors.error(errors.LIMIT_EXCEEDED, str(caught)) if isinstance(caught, _KeySizeError) else caught

    def close(self) -> None:
        """As in `Store`. The contents are gone with the object."""
