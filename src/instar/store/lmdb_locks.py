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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
    return open_environment(path, _MAP_SIZE, _LEAST_MAP_SIZE, subdir=False, sync=False, metasync=False, readahead=False)


class _Transaction:
    """The records in a transaction of LMDB."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self.get: Callable[[bytes], bytes | None] = transaction.get
        self.put: Callable[[bytes, bytes], object] = transaction.put
        self.delete: Callable[[bytes], object] = transaction.delete

    def batch(self, start: bytes, stop: bytes, limit: int) -> tuple[list[bytes], list[bytes]]:
        return batch_of_range(self._transaction.cursor(), start, stop, limit, False)


class LmdbLockTable(LockTable):
    """`entering`: to be within while waiting for LMDB's mutex, which a stopped process may have (see `watch`)."""

    def __init__(
        self,
        directory: str,
        presence: Presence,
        translate: Callable[[Exception], Exception],
        entering: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(presence)
        self._directory = directory
        self._translate = translate
        self._entering = entering
        self._guard = threading.RLock()
        self._environment: Any = None

    @contextmanager
    def _reading(self) -> Iterator[Records]:
        with self._guard:
            try:
                with self._begun(write=False) as transaction:
                    yield _Transaction(transaction)
            except (lmdb.Error, OSError) as caught:
                raise self._translate(caught) from caught

    @contextmanager
    def _writing(self) -> Iterator[Records]:
        with self._guard:
            try:
                with self._entering():
                    transaction = self._begun(write=True)
                with transaction:  # commits, or if something is raised aborts
                    yield _Transaction(transaction)
            except (lmdb.Error, OSError) as caught:
                raise self._translate(caught) from caught

    def _begun(self, *, write: bool) -> Any:
        if self._environment is None:
            self._environment = _open_environment(self._directory)
        try:
            return self._environment.begin(write=write)
        except lmdb.ReadersFullError:
            self._environment.reader_check()  # slots of killed processes
        except (lmdb.PanicError, lmdb.MapResizedError):
            # It could not write its meta page once, or another process' larger map has outgrown this one's.
            self._environment.close()
            self._environment = _open_environment(self._directory)
        return self._environment.begin(write=write)

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
        if self._environment is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._environment))
            self._environment = None
