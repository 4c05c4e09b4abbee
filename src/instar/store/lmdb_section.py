"""The atomic section of the lmdb engine: one write transaction of LMDB."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock, get_ident
from typing import Any, Protocol

import lmdb

from instar.store.cursors import batch_of_range, read_head, scan_range
from instar.store.filling import Pairs, fill, takes_wedges
from instar.store.header import Head
from instar.store.lmdb_environment import APPENDING
from instar.store.lock_table import LockTable
from instar.store.presence import SharedPresence
from instar.store.section import WriteSection
from instar.store.space import Space
from instar.store.wal import Redo, WriteAheadLog


class Newest(Protocol):
    """Of the environment: the newest state known, with the number of LMDB's transaction; what its map may touch; the
    write-ahead log, whether commits wait for it, and what is told of each transaction's begin; the threads that are in
    the atomic section; what is said to other processes, and what orders it; the locks."""

    newest: tuple[int, Head]
    space: Space | None
    log: WriteAheadLog | None
    waits: bool
    inside: dict[int, Any]
    presence: SharedPresence
    fence: Lock

    def entered(self, transaction: int) -> None: ...

    def void(self, transaction: int) -> None: ...

    @property
    def locks(self) -> LockTable: ...


class LmdbSection(WriteSection):
    """A write transaction, which holds LMDB's writer mutex, and what it leaves in the write-ahead log, if there is one.

    Nothing that outlives it may know of LMDB's transaction: where an interrupt has lost the section before anybody knew
    of it, that would be kept alive, and with it the writer mutex.
    """

    __slots__ = ("_begun", "_environment", "_judged", "_redo", "_transaction", "number")

    _redo: Redo | None

    def __init__(self, transaction: Any, environment: Newest) -> None:
        self._transaction = transaction
        self._environment = environment
        self.get = transaction.get
        self.locks = environment.locks
        # A write transaction bears the number of the state that it will leave.
        self.number = number = transaction.id()
        self._redo = None
        self._judged = False
        if environment.log is not None:
            environment.entered(number)
            self._redo = redo = Redo(environment.log, number, transaction.put)
            self.put, self.append = redo.put, redo.append
        elif type(self) is LmdbSection:  # through the map they are methods
            self.put = put = transaction.put
            self.append = lambda key, value: put(key, value, *APPENDING)
        known, head = environment.newest
        if number != known + 1:
            head = read_head(transaction)
        self._begun = head
        # As `load` does it, without the call.
        self.timestamp, self.log_end, self.header = head
        self.catalog_version = self.header.catalog_version
        self.watermark = self.header.watermark
        self.moved = False

    def judges(self) -> None:
        if not self._judged:
            self._judged = True
            self._environment.presence.say_judged(self.number)
            with self._environment.fence:  # what is asked of locks is asked after that has been seen by all
                pass

    def delete(self, key: bytes, /) -> bool:
        deleted: bool = self._transaction.delete(key)
        if deleted and self._redo is not None:
            self._redo.note(key, None)
        return deleted

    def put_many(self, pairs: Pairs) -> None:
        cursor = self._transaction.cursor()
        pairs = sorted(pairs)
        following = cursor.key() if cursor.set_range(pairs[0][0]) else None
        if following is not None and following <= pairs[-1][0]:
            self._put_among(cursor, pairs)
        else:
            self._fill(cursor, pairs, following)
        if self._redo is not None:
            self._redo.note_all(pairs)

    def _put_among(self, cursor: Any, pairs: Pairs) -> None:
        """Put sorted pairs where others may be."""
        cursor.putmulti(pairs)

    def _fill(self, cursor: Any, pairs: Pairs, following: bytes | None) -> None:
        """Put sorted pairs where nothing is stored before the key `following`, if there is one."""
        page_bytes = self._transaction.stat()["psize"]
        if following is not None and takes_wedges(pairs, following, page_bytes):
            fill(self._transaction, pairs, cursor.putmulti, page_bytes)
        else:
            cursor.putmulti(pairs)

    def any_of(self, keys: list[bytes]) -> bytes | None:
        cursor = self._transaction.cursor()
        # Keys of a bulk load are mostly sorted and fall into a gap: one seek tells.
        if keys == sorted(keys) and (not cursor.set_range(keys[0]) or cursor.key() > keys[-1]):
            return None
        found = cursor.getmulti(keys, values=False)
        return found[0] if found else None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return scan_range(self._transaction.cursor(), start, stop, reverse)

    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        return batch_of_range(self._transaction.cursor(), start, stop, limit, reverse)

    def commit(self, *, durably: bool = True) -> None:
        self._judged = False  # once it has ended, nothing is said any more
        redo, environment = self._redo, self._environment
        end = 0
        if redo is not None:
            # LMDB writes now, and the keeper may have gone since: its checkpoint must not be written over.
            environment.entered(self.number)
            end = redo.finish()
        try:
            self._transaction.commit()
        except lmdb.Error:
            if end:
                environment.void(self.number)
            raise
        begun, timestamp, header = self._begun, self.timestamp, self.header
        # Only what has surely been written is a state of that number: LMDB leaves an empty commit out.
        if timestamp != begun[0] or header is not begun[2]:
            environment.newest = self.number, (timestamp, self.log_end, header)
        environment.inside.pop(get_ident(), None)
        # Others enter meanwhile.
        if end and durably and environment.waits and environment.log is not None:
            environment.log.sync(end)

    def abort(self) -> None:
        if self._judged:
            self._judged = False
            self._environment.presence.say_judged(self.number - 1)
        self._transaction.abort()
        self._environment.inside.pop(get_ident(), None)
