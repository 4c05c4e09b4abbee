"""The lmdb engine: a directory that any number of processes on one host open at once.

One LMDB environment per process and directory, shared by all openers and opened again after a fork. One unnamed
keyspace in a map reserved once and never resized (LMDB invalidates live readers silently). Pages are written by system
calls, or, where nothing waits for the disk (`off`) and blocks can be reserved, through the map: see `space`.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any, NoReturn

import lmdb
import msgspec

from instar import errors
from instar.clock import Clock, SystemClock
from instar.store.apply import judge_locked
from instar.store.base import BaseStore
from instar.store.cursors import scan_range
from instar.store.directory import prepare, require_same
from instar.store.engine import MOVED, Derive, LogRecord, RangeUnchanged, Store, prefix_end
from instar.store.filling import MAX_KEY_BYTES
from instar.store.group import CommitQueue
from instar.store.header import (
    HEADER_KEY,
    IDENTITY_KEY,
    Head,
    Identity,
    first_header,
    new_identity,
)
from instar.store.lmdb_environment import READERS_BYTES, open_data
from instar.store.lmdb_errors import closed, translate
from instar.store.lmdb_locks import LmdbLockTable
from instar.store.lmdb_opened import MAP_SIZE, Environment, file_key
from instar.store.lmdb_reader import LmdbReader
from instar.store.lock_modes import Mode
from instar.store.presence import SharedPresence
from instar.store.recovery import first_checkpoint
from instar.store.section import WriteSection
from instar.store.versions import rows_of_entries

SYNCHRONOUS = ("full", "normal", "off")


class _Closed:
    """In place of the environment of a store that was closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise closed()


_CLOSED: Any = _Closed()


class LmdbStore(BaseStore):
    """One opener's handle; see `open_store`."""

    # LMDB's limit.
    max_key_bytes = MAX_KEY_BYTES

    def __init__(self, environment: Environment, clock: Clock) -> None:
        super().__init__(environment.identity, clock)
        self._environment = environment

    @property
    def _queue(self) -> CommitQueue:
        return self._environment.queue

    @property
    def _presence(self) -> SharedPresence:
        return self._environment.presence

    @property
    def locks(self) -> LmdbLockTable:
        """As in `Store`."""
        return self._environment.locks

    def read(self) -> LmdbReader:
        """As in `Store`."""
        environment = self._environment
        try:
            return LmdbReader(environment.begin(), environment)
        except lmdb.Error:
            return self._environment.begin_read()

    def newest(self, key: bytes, catalog_version: int) -> Any:
        """As in `Store`."""
        environment = self._environment
        try:
            transaction = environment.begin()
            try:
                known, head = environment.newest
                if transaction.id() != known:
                    head = environment.learn(transaction)
                return transaction.get(key) if head[2].catalog_version == catalog_version else MOVED
            finally:
                transaction.abort()
        except lmdb.Error:  # another thread may have closed the environment since, or opened it anew
            return super().newest(key, catalog_version)

    def newest_under(self, start: bytes, rows: bytes, most: int, catalog_version: int) -> Any:
        """As in `Store`."""
        environment = self._environment
        try:
            transaction = environment.begin()
            try:
                known, head = environment.newest
                if transaction.id() != known:
                    head = environment.learn(transaction)
                if head[2].catalog_version != catalog_version:
                    return MOVED
                entries = scan_range(transaction.cursor(), start, prefix_end(start), False)
                return rows_of_entries(entries, transaction.get, rows, most)
            finally:
                transaction.abort()
        except lmdb.Error:  # as above
            return super().newest_under(start, rows, most, catalog_version)

    def _head(self) -> Head:
        with self.read() as reader:
            return reader.head()

    def commit_derived(self, derive: Derive) -> int:
        """As in `Store`."""
        return self._environment.queue.derived(derive)

    def lock(
        self, owner: bytes, wanted: Sequence[tuple[bytes, Mode]], unchanged: Iterable[RangeUnchanged] = ()
    ) -> None:
        """As in `Store`, without the section where no foreground commit is being judged meanwhile.

        Who judges says so first, and asks for locks then; who locks does that first, and then asks who judges. So one
        of the two sees the other. Here only those are seen that have ended: their commits are in what is read next.
        Among them may be one that did not find these locks yet, and so has said that there are none: others have
        believed it since, whatever is said now.
        """
        environment, thread = self._environment, get_ident()
        environment.inside[thread] = None  # a store that closes waits for whoever is at the table, too
        try:
            if environment.closing:
                raise closed()
            presence = environment.presence
            said = presence.no_locks_said()
            environment.locks.acquire(owner, wanted)
            presence.stays_about()
            judged = presence.judged()
            with self.read() as view:
                if view.number >= judged and said is not None and presence.no_locks_said() == said:
                    for range_ in unchanged:
                        judge_locked(view, range_)
                    return
        finally:
            environment.inside.pop(thread, None)
        super().lock(owner, wanted, unchanged)

    def _begin(self) -> WriteSection:
        return self._environment.begin_section()

    def _ended(self) -> None:
        if self._environment is not _CLOSED:
            self._environment.leave()

    def _translate(self, caught: Exception) -> Exception:
        return translate(caught)

    def collect(
        self,
        upto: int,
        dead_entries: Callable[[LogRecord], list[bytes]],
        between: Callable[[], None] = lambda: None,
    ) -> int:
        """As in `Store`."""
        self._environment.check_readers()
        return super().collect(upto, dead_entries, between)

    def close(self) -> None:
        """As in `Store`."""
        environment, self._environment = self._environment, _CLOSED
        if environment is not _CLOSED:
            with _registry_lock:
                environment.references -= 1
                if not environment.references:
                    environment.drain()
                    del _registry[environment.key]
                    environment.close()


# Open environments by (device, inode) of their data file: LMDB's locks do not survive a second opening of one file. A
# store that was removed is not the one that lies at its path now, whose directory may have the same inode.
_registry: dict[tuple[int, int], Environment] = {}
_registry_lock = threading.RLock()


def open_store(
    path: str | os.PathLike[str],
    *,
    engine: str = "lmdb",
    create: bool = True,
    synchronous: str | None = None,
    retention_seconds: float | None = None,
    log_max_bytes: int | None = None,
    schema_lease: float | None = None,
    clock: Clock | None = None,
    map_size: int = MAP_SIZE,
    write_map: bool = True,
) -> Store:
    """Open the store in directory `path`, which is created if it is empty or not there and `create` allows it.

    `synchronous` ("full", the default of a new store: commits wait until they outlast a power failure; "normal": one
    may undo the last of them; "off": one may lose the store, a kill does not), `retention_seconds`, `log_max_bytes` and
    `schema_lease` (seconds for which a server may use its cached schema; 0, the default: not without asking) are
    properties of the store: None takes them as they are, another value than the store's is refused. `clock`, `map_size`
    and `write_map` (False: opening waits for no writer, commits go by system calls) are those of the process' first
    opener. Errors: 0A000, 22023, 58030 (no store, or unreadable), 55000 (no store, another format), XX001, 53100.
    """
    if engine != "lmdb":
        raise errors.unsupported(f"the store engine {engine!r}")
    if synchronous is not None and synchronous not in SYNCHRONOUS:
        raise errors.error(errors.INVALID_PARAMETER, f"synchronous is one of {', '.join(SYNCHRONOUS)}")
    clock = clock or SystemClock()
    directory = os.path.realpath(path)
    wanted = None
    if create:
        wanted = new_identity(synchronous or "full", retention_seconds, log_max_bytes, schema_lease)
    with _registry_lock:
        initialise = functools.partial(_initialise, directory, clock=clock, map_size=map_size)
        identity = prepare(directory, wanted, READERS_BYTES, initialise)
        require_same(
            path,
            identity,
            synchronous=synchronous,
            retention_seconds=retention_seconds,
            log_max_bytes=log_max_bytes,
            schema_lease=schema_lease,
        )
        environment = _registry.get(key := file_key(directory))
        if environment is None:
            environment = _registry[key] = Environment(directory, key, identity, clock, map_size, write_map)
        environment.path = directory  # it may have been moved since
        environment.references += 1
        environment.closing = False  # if whoever closed it last was interrupted
        return LmdbStore(environment, clock)


def _initialise(path: str, identity: Identity, clock: Clock, map_size: int) -> None:
    """Put identity and header into a new store."""
    try:
        environment = open_data(path, map_size)
        try:
            with environment.begin(write=True) as transaction:
                transaction.put(IDENTITY_KEY, msgspec.json.encode(identity))
                transaction.put(HEADER_KEY, first_header(clock))
            environment.sync(True)
            number, page_bytes = environment.info()["last_txnid"], environment.stat()["psize"]
        finally:
            environment.close()
        if identity.synchronous != "off":
            first_checkpoint(path, page_bytes, number)
    except lmdb.Error as caught:
        raise translate(caught) from caught


def _at_exit() -> None:
    """The interpreter would close LMDB's environments, and let go of pages that others rely on, without a word."""
    for environment in list(_registry.values()):
        environment.closing = True
        if environment.keeper is not None:
            environment.keeper.close()


def _after_fork() -> None:
    global _registry_lock
    _registry_lock = threading.RLock()
    for environment in _registry.values():
        environment.forked()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
