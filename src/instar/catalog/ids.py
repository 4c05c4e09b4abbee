"""Ids that are never reused: of objects, rowsets and jobs, handed out in blocks per process."""

from __future__ import annotations

import struct
import threading

from instar import errors
from instar.store.engine import Commit, PreconditionFailed, Store, ValueUnchanged
from instar.store.forks import begin_anew_in_child
from instar.store.records import Latest, latest_key

_COUNTER = struct.Struct("<Q")


class Counter:
    """A number that only grows; what a killed process had left of its block is lost, never reused."""

    def __init__(self, store: Store, key: bytes, block: int, first: int) -> None:
        self._store = store
        self._key = key
        self._block = block
        self._first = first
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: the block is the parent's."""
        self._next = 0
        self._end = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        """The next number."""
        with self._lock:
            if self._next == self._end:
                self._reserve()
            self._next += 1
            return self._next - 1

    def _reserve(self) -> None:
        while True:
            with self._store.read() as reader:
                stored = reader.get(self._key)
                version = reader.catalog_version
            begin = _COUNTER.unpack(stored)[0] if stored is not None else self._first
            request = Commit(
                catalog_version=version,
                preconditions=[ValueUnchanged(self._key, stored, None)],
                raw=[(self._key, _COUNTER.pack(begin + self._block))],
            )
            try:
                self._store.commit(request)
            except PreconditionFailed:
                continue
            self._next, self._end = begin, begin + self._block
            return


FIRST_USER_ID = 1000
_MAX_ID = 2**32 - 1


class IdAllocator:
    """Ids of objects, rowsets and jobs: never reused, in three counters of the store."""

    def __init__(self, store: Store) -> None:
        self._objects = Counter(store, latest_key(Latest.COUNTER, b"object"), 32, FIRST_USER_ID)
        self._rowsets = Counter(store, latest_key(Latest.COUNTER, b"rowset"), 32, FIRST_USER_ID)
        self._jobs = Counter(store, latest_key(Latest.COUNTER, b"job"), 1, 1)

    def next_object(self) -> int:
        return self._checked(self._objects.next())

    def next_rowset(self) -> int:
        return self._checked(self._rowsets.next())

    def next_job(self) -> int:
        return self._checked(self._jobs.next())

    @staticmethod
    def _checked(value: int) -> int:
        if value > _MAX_ID:
            raise errors.error(errors.LIMIT_EXCEEDED, f"the database has used up its {_MAX_ID} ids")
        return value
