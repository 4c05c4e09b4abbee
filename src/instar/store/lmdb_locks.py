"""The lock table of a store on disk: a small LMDB file in its directory, which all processes share.

Locks are not data. Nothing here is ever synced, so that a lock costs no fsync; a full disk is an error, since pages
are written by system calls; a killed process leaves a sound file. What a power failure leaves is not looked at: the
first process that has the store open, with nobody else there, throws the file away (`discard`).

It is opened when a process first has to do with locks. Everything goes under one lock per process, so that a handle
that LMDB has given up can be replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import lmdb

from instar.store.cursors import batch_of_range
from instar.store.directory import reserve
from instar.store.lmdb_environment import READERS_BYTES, open_environment
from instar.store.lock_table import LockTable, Records
from instar.store.presence import Presence

LOCKS_FILE = "locks.mdb"
_READERS_FILE = LOCKS_FILE + "-lock"  # as LMDB calls it
# Of the map, which costs nothing: some ten million locks. Less where the system refuses as much.
_MAP_SIZE = 1 << 33
_LEAST_MAP_SIZE = 1 << 24


def discard(directory: str) -> None:
    """Throw the locks of a store away. Only while nobody has them open, and nobody can open them."""
    for name in (LOCKS_FILE, _READERS_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def _open_environment(directory: str) -> Any:
    readers = os.path.join(directory, _READERS_FILE)
    if not os.path.exists(readers):
        reserve(readers, READERS_BYTES)
    path = os.path.join(directory, LOCKS_FILE)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))  # there is a file to be locked
    return open_environment(path, _MAP_SIZE, _LEAST_MAP_SIZE, subdir=False, sync=False, metasync=False, readahead=False)


class _Transaction:
    """The records in a transaction of LMDB."""

    __slots__ = ("_transaction", "delete", "get", "put")

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self.get: Callable[[bytes], bytes | None] = transaction.get
        self.put: Callable[[bytes, bytes], object] = transaction.put
        self.delete: Callable[[bytes], object] = transaction.delete

    def batch(self, start: bytes, stop: bytes, limit: int) -> tuple[list[bytes], list[bytes]]:
        return batch_of_range(self._transaction.cursor(), start, stop, limit, False)


class _Use:
    """The records of a table, within a transaction of its file; a class of its own, since every lock passes here."""

    __slots__ = ("_table", "_transaction", "_write")

    def __init__(self, table: LmdbLockTable, *, write: bool) -> None:
        self._table = table
        self._write = write
        self._transaction: Any = None

    def __enter__(self) -> Records:
        table = self._table
        if table.is_mine():
            table.give_up()
        try:
            self._transaction = table.enter(write=self._write)
            return _Transaction(self._transaction)
        except BaseException:
            # An interrupt may have come between entering and here, where `__exit__` is not called yet.
            if table.is_mine():
                table.give_up()
            raise

    def __exit__(self, _kind: object, failed: BaseException | None, _trace: object) -> None:
        self._table.leave(self._transaction, failed)


class LmdbLockTable(LockTable):
    """`entering`: to be within while waiting for LMDB's mutex, which a stopped process may have (see `watch`); None
    if no other process can have it."""

    def __init__(
        self,
        directory: Callable[[], str],
        presence: Presence,
        translate: Callable[[Exception], Exception],
        entering: Callable[[], AbstractContextManager[None] | None],
    ) -> None:
        super().__init__(presence)
        self._directory = directory
        self._translate = translate
        self._entering = entering
        self._guard = threading.RLock()  # which knows whose it is; nobody enters twice
        self._entered: Any = None  # the transaction of who has the table
        self._environment: Any = None

    def _reading(self) -> _Use:
        return _Use(self, write=False)

    def _writing(self) -> _Use:
        return _Use(self, write=True)

    def enter(self, *, write: bool) -> Any:
        """To oneself in this process, until `leave`, a transaction of LMDB. Errors as of the store."""
        self._guard.acquire()
        try:
            entering = self._entering() if write else None
            if entering is None:
                self._entered = self._begun(write=write)
                return self._entered
            with entering:
                self._entered = self._begun(write=True)
            return self._entered
        except BaseException as caught:
            self.give_up()
            if isinstance(caught, lmdb.Error | OSError):
                raise self._translate(caught) from caught
            raise

    def leave(self, transaction: Any, failed: BaseException | None) -> None:
        """What was written stands, unless something has `failed`. Errors as of the store."""
        try:
            if failed is None:
                transaction.commit()
            elif transaction is not None:  # interrupted where nobody had it, it has ended by itself
                transaction.abort()
        except (lmdb.Error, OSError) as caught:
            failed = caught
        finally:
            self._entered = None
            self._guard.release()
        if isinstance(failed, lmdb.Error | OSError):
            raise self._translate(failed) from failed

    def give_up(self) -> None:
        """An interrupt has kept this thread from leaving: nothing of it stands."""
        entered, self._entered = self._entered, None
        try:
            if entered is not None:
                entered.abort()  # which does nothing once it has ended
        finally:
            self._guard.release()

    def _begun(self, *, write: bool) -> Any:
        if self._environment is None:
            self._environment = _open_environment(self._directory())
        try:
            return self._environment.begin(write=write)
        except lmdb.ReadersFullError:
            self._environment.reader_check()  # slots of killed processes
        except (lmdb.PanicError, lmdb.MapResizedError):
            # It could not write its meta page once, or another process' larger map has outgrown this one's.
            self._environment.close()
            self._environment = _open_environment(self._directory())
        return self._environment.begin(write=write)

    def is_mine(self) -> bool:
        """Whether this thread has the table to itself."""
        owned: bool = self._guard._is_owned()  # type: ignore[attr-defined] # what threading.Condition asks of a lock
        return owned

    def check_readers(self) -> None:
        """Free the reader slots of killed processes, which pin old pages."""
        with self._guard:
            if self._environment is not None:
                self._environment.reader_check()

    def close(self) -> None:
        """Close the file."""
        with self._guard:
            environment, self._environment = self._environment, None
            if environment is not None:
                environment.close()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's, as the store's own environment is let go of."""
        for kept in (self._environment, self._entered):
            if kept is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        self._environment = self._entered = None
