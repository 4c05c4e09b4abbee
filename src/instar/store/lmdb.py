"""The lmdb engine: a directory that any number of processes on one host open at once.

One LMDB environment per process and directory, shared by all openers and opened again after a fork. One unnamed
keyspace in a map reserved once and never resized (LMDB invalidates live readers silently). Pages are written by system
calls, or, where nothing waits for the disk (`off`) and blocks can be reserved, through the map: see `space`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, NoReturn

import lmdb
import msgspec

from instar import errors
from instar.clock import Clock, SystemClock
from instar.store.base import BaseStore
from instar.store.cursors import read_head
from instar.store.data_file import DataFile
from instar.store.directory import DATA_FILE, PRESENCE_FILE, prepare, require_same
from instar.store.engine import MOVED, Derive, LogRecord, Store
from instar.store.filling import MAX_KEY_BYTES
from instar.store.group import CommitQueue
from instar.store.header import (
    HEADER_KEY,
    IDENTITY_KEY,
    SNAPSHOT_MAX_AGE_SECONDS,
    Head,
    Header,
    Identity,
    first_header,
    new_identity,
)
from instar.store.keeper import Keeper
from instar.store.lmdb_environment import READERS_BYTES, has_reader, open_checked, open_data
from instar.store.lmdb_errors import closed, translate
from instar.store.lmdb_locks import LmdbLockTable, discard
from instar.store.lmdb_queue import LmdbQueue
from instar.store.lmdb_reader import LmdbReader
from instar.store.lmdb_section import LmdbSection
from instar.store.mapped_section import MappedSection
from instar.store.pages import PageFile
from instar.store.presence import SharedPresence
from instar.store.recovery import first_checkpoint, recover
from instar.store.section import WriteSection
from instar.store.space import Space, can_reserve
from instar.store.wal import WriteAheadLog
from instar.store.watch import Watch

MAP_SIZE = 1 << 40

# How long a closing store waits for threads to leave it, and how often it looks.
_DRAIN_SECONDS = 10.0
_DRAIN_TICK = 0.001

SYNCHRONOUS = ("full", "normal", "off")


# No transaction of LMDB has this number.
_UNKNOWN = -2, (0, 0, Header(0, 0, 0, 0, 0, b"", 0, 0))


class _Environment:
    """What all openers of one directory in this process share.

    `newest` is the newest state that this process has seen or left, and the number of the LMDB transaction that made
    it: numbers are never used twice, so that transactions of that number need not read it. `begin`, `queue`,
    `presence` and `locks` are made anew after a fork, when one of them is first asked for (`_Forked`).
    """

    newest: tuple[int, Head]
    begin: Callable[..., Any]
    queue: LmdbQueue
    presence: SharedPresence
    locks: LmdbLockTable
    space: Space | None  # of a write map
    log: WriteAheadLog | None  # where commits outlast a power failure
    keeper: Keeper | None  # of its checkpoints
    _extent: Space | None  # the same, or of a process that writes by system calls beside others that need not
    watch: Watch
    _watching: Watch | None  # the same, once another process has had the store open
    inside: set[int]  # the threads that are in the atomic section or wait for it, but for `queue.straight`

    def __init__(
        self, path: str, key: tuple[int, int], identity: Identity, clock: Clock, map_size: int, write_map: bool
    ) -> None:
        self.path = path
        self.key = key  # in the registry; the file itself may be gone when the last user closes
        self.identity = identity
        self.waits = identity.synchronous == "full"
        self.references = 0
        self._clock = clock
        self._map_size = map_size
        # A smaller map would cut the file for all others.
        self._write_map = write_map and identity.synchronous == "off" and map_size == MAP_SIZE and can_reserve(path)
        self._environment: Any = None
        self._opening = threading.RLock()
        self.inside = set()
        self.closing = False
        self._open()

    def _open(self) -> None:
        try:
            self._open_all()
        except (lmdb.Error, OSError) as caught:
            raise translate(caught) from caught

    def _open_all(self) -> None:
        data = os.path.join(self.path, DATA_FILE)
        with contextlib.ExitStack() as undo:
            # First of all: whoever finds nobody there may change the files, and so nobody opens them before he is seen.
            presence = SharedPresence(
                os.path.join(self.path, PRESENCE_FILE), self._clock, SNAPSHOT_MAX_AGE_SECONDS, self._alone
            )
            undo.callback(presence.close)
            undo.callback(self._close_environment)
            self._environment = open_checked(self.path, self._map_size, self.identity)
            page_bytes = self._environment.stat()["psize"]
            self.watch, self._watching = Watch(data, presence.others), None
            self.space = self._extent = self.log = self.keeper = None
            if self.identity.synchronous != "off":
                self._open_log(DataFile(data, page_bytes), presence, undo)
            else:
                self._environment.reader_check()
                if can_reserve(self.path):
                    self._extent = Space(data, page_bytes, presence)
                    undo.callback(self._extent.forget)
                    if self._write_map:
                        self._open_write_map(self._extent, presence)
            undo.pop_all()
        self.newest = _UNKNOWN
        self.pages = PageFile(data, page_bytes)
        self.presence = presence
        self.locks = LmdbLockTable(self.place, presence, translate, self.entering)
        self.queue = LmdbQueue(self, translate, self._clock, presence)
        self.begin = self._environment.begin
        self.__class__ = _Environment  # of a forked child: all is there

    def _alone(self) -> int:
        """No other process has the store open, and none can open it: the position at which the log goes on."""
        discard(self.path)
        if self.identity.synchronous == "off":
            return 0
        return recover(self.path, lambda: open_checked(self.path, self._map_size, self.identity))

    def _open_log(self, data: DataFile, presence: SharedPresence, undo: contextlib.ExitStack) -> None:
        undo.callback(data.close)
        self.log = WriteAheadLog(self.path, presence)
        undo.callback(self.log.close)
        self.keeper = Keeper(
            self.path, data, self.log, presence, self._clock, self._begin_plain, self._enter, self._wake
        )

    def _wake(self, pid: int) -> bool:
        """Let a process that is stopped go on until it reads no more: it was the keeper. Whether it reads no more."""
        self.watch.wake(pid, lambda: not has_reader(self._environment, pid))
        return not has_reader(self._environment, pid)

    def _open_write_map(self, space: Space, presence: SharedPresence) -> None:
        """Open the environment again, now that it is known to be sound, to be written through its map."""
        self._close_environment()
        try:
            self._environment = open_data(self.path, self._map_size, write_map=True)
            self.space = space
        except (lmdb.Error, MemoryError):  # files may not grow that large here, or there is no room for the map
            self._environment = open_data(self.path, self._map_size)
            self.space = None
            space.written.stop()
        # The file has been made as large as the map, if only to find that there is no room for the map.
        with self.watch if presence.is_shared() else contextlib.nullcontext():
            transaction = self._environment.begin(write=True)
        try:
            space.settle()
        finally:
            transaction.abort()

    def place(self) -> str:
        """The directory in which the files are; 58030 if that is not known any more."""
        try:
            is_there = _file_key(self.path) == self.key
        except OSError:
            is_there = False
        if not is_there:
            message = f"the store {self.path} was moved or removed while it was open"
            raise errors.error(errors.IO_ERROR, message, hint="If it was moved, open it where it is now.")
        return self.path

    def _close_environment(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def learn(self, transaction: Any) -> Head:
        """The newest state as the transaction, which only reads, sees it."""
        head = read_head(transaction)
        self.newest = transaction.id(), head
        return head

    def begin_read(self) -> LmdbReader:
        """A read transaction, whatever went wrong with the first attempt."""
        begin = self.begin
        try:
            return LmdbReader(begin(), self)
        except lmdb.Error as caught:
            self._recover(caught, begin)
        try:
            return LmdbReader(self.begin(), self)
        except lmdb.Error as caught:
            raise translate(caught) from caught

    def entering(self) -> contextlib.AbstractContextManager[None] | None:
        """To be within while waiting for a mutex that a stopped process may have; None if no other can have it."""
        return self.watch if self.presence.is_shared() else None

    def _begin_plain(self) -> Any:
        """A read transaction of LMDB, of whatever environment is open now."""
        return self._environment.begin()

    def entered(self, transaction: int) -> None:
        """As in `Newest`. 58030."""
        assert self.keeper is not None  # whoever has a log has one
        self.keeper.entered(transaction)

    def void(self, transaction: int) -> None:
        """Take back what the log tells of a transaction that LMDB has refused to commit; in a section of its own, since
        the transaction has ended: others may have come since, and have taken it back by what they wrote."""
        assert self.log is not None  # it has told of it
        try:
            section = self._enter()
            try:
                if section.number == transaction:
                    self.log.void(transaction)
            finally:
                section.abort()
        except (lmdb.Error, OSError, errors.Error):
            self.log.give_up()  # else what was refused might stand after a power failure

    def _enter(self) -> LmdbSection:
        """As `begin_section`, also while the store is being closed."""
        with self.entering() or contextlib.nullcontext():
            begin = self.begin
            try:
                transaction = begin(None, None, True)
            except lmdb.Error as caught:
                transaction = self._begin_anew(caught, begin)
            return self.section(transaction)

    def begin_section(self) -> LmdbSection:
        """Wait for the writer mutex and enter. 08003 if the last opener closes the store."""
        thread = get_ident()
        self.inside.add(thread)
        try:
            return self.section(self.enter())
        except BaseException:
            self.inside.discard(thread)
            raise

    def enter(self) -> Any:
        """The same, as the transaction of LMDB, of a thread that is known to be in the section, or to wait for it."""
        if self.closing:
            raise closed()
        # As `_enter` does it, which takes 0.4 us longer.
        watch, begin = self._watching, self.begin
        if watch is None and self.presence.is_shared():
            watch = self._watching = self.watch
            watch.start()
        if watch is not None:
            watch.entering.append(None)
        try:
            return begin(None, None, True)
        except lmdb.Error as caught:
            return self._begin_anew(caught, begin)
        finally:
            if watch is not None:
                watch.entering.pop()
                watch.entered += 1

    def _begin_anew(self, caught: lmdb.Error, failed: Callable[..., Any]) -> Any:
        """A write transaction, after `failed` was asked for one: for no database, within no other."""
        self._recover(caught, failed)
        return self.begin(None, None, True)

    def section(self, transaction: Any) -> LmdbSection:
        """The section that a transaction has entered."""
        space = self.space
        try:
            return LmdbSection(transaction, self) if space is None else MappedSection(transaction, self, space)
        except BaseException:
            transaction.abort()  # else it would last as long as the exception's traceback
            raise

    def _recover(self, caught: lmdb.Error, failed: Callable[..., Any]) -> None:
        """Make a second attempt worth while after `failed`, or raise."""
        if self.closing:
            raise closed() from caught
        match caught:
            case lmdb.ReadersFullError():
                self.check_readers()
            case lmdb.PanicError() | lmdb.MapResizedError():
                self._reopen(failed)
            case _:
                raise translate(caught) from caught

    def _reopen(self, failed: Callable[..., Any]) -> None:
        """Open the environment anew: LMDB refuses one for good once it failed to write its meta page (the store itself
        is sound), or when another process, with a larger map, has made the file outgrow this one's.
        """
        with self._opening:
            if self.begin is not failed:
                return  # another thread was here first
            self.place()
            if self.space is None:
                if self.keeper is not None:
                    self.keeper.lose()
                self._close_environment()
                self._environment = open_data(self.path, self._map_size)
            else:
                self._open_write_map(self.space, self.presence)
            self.newest = _UNKNOWN
            self.begin = self._environment.begin

    def check_readers(self) -> None:
        """Free the reader slots of killed processes, which pin old pages."""
        self.locks.check_readers()  # after a fork: all is opened first
        if self.keeper is None:
            self._environment.reader_check()
        else:
            self.keeper.check_readers(self._environment.reader_check)

    def drain(self) -> None:
        """Let nobody enter the atomic section any more, and wait for other threads to leave it: LMDB would wait for a
        transaction that it has forbidden to end. Not for long: an interrupted thread may have left without a word."""
        self.closing = True
        me, until = get_ident(), time.monotonic() + _DRAIN_SECONDS
        queue: LmdbQueue | None = self.__dict__.get("queue")  # a forked child may not have had to do with it
        while time.monotonic() < until and (
            self.inside - {me} or (queue is not None and queue.straight not in (None, me))
        ):
            time.sleep(_DRAIN_TICK)

    def close(self) -> None:
        """Close what is open; the last opener is gone."""
        if self.keeper is not None:
            self.keeper.close()
        self._close_environment()
        presence = self.__dict__.get("presence")
        if presence is not None:
            self.watch.stop()
            self.locks.close()
            if self._extent is not None:
                self._extent.close()
            if self.log is not None:
                self.log.close()
            self.pages.close()
            presence.close()

    def forked(self) -> None:
        """In a child: let go of what is the parent's, without telling LMDB."""
        self._opening = threading.RLock()
        self.inside = set()
        if self._environment is not None:
            # Closing it, even when the interpreter exits, would free the parent's reader slots in the shared lock
            # file: so it is never closed here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._environment))
            self._environment = None
            presence = self.__dict__.pop("presence", None)
            if presence is not None:  # else another thread was opening at the moment of the fork
                self.locks.abandon()
                if self._extent is not None:
                    self._extent.forget()
                if self.keeper is not None and self.log is not None:
                    self.keeper.forget()
                    self.log.close()
                    self.keeper = self.log = None
                presence.abandon()  # last: they have looked at its words once more
            self.__dict__.pop("locks", None)
            self.__dict__.pop("queue", None)
            self.__dict__.pop("begin", None)
            self.__class__ = _Forked


class _Forked(_Environment):
    """One that a forked child has let go of, until it asks for what is not there any more: of a class of its own, since
    with `__getattr__` an attribute that is there is found three times as slowly, too."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("begin", "queue", "presence", "locks"):
            raise AttributeError(name)
        with self._opening:
            if name not in self.__dict__:
                self._open()
        return self.__dict__[name]


class _Closed:
    """In place of the environment of a store that was closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise closed()


_CLOSED: Any = _Closed()


class LmdbStore(BaseStore):
    """One opener's handle; see `open_store`."""

    # LMDB's limit.
    max_key_bytes = MAX_KEY_BYTES

    def __init__(self, environment: _Environment, clock: Clock) -> None:
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

    def _head(self) -> Head:
        with self.read() as reader:
            return reader.head()

    def commit_derived(self, derive: Derive) -> int:
        """As in `Store`."""
        return self._environment.queue.derived(derive)

    def _begin(self) -> WriteSection:
        return self._environment.begin_section()

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
_registry: dict[tuple[int, int], _Environment] = {}
_registry_lock = threading.RLock()


def _file_key(path: str) -> tuple[int, int]:
    status = os.stat(os.path.join(path, DATA_FILE))
    return status.st_dev, status.st_ino


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
        environment = _registry.get(key := _file_key(directory))
        if environment is None:
            environment = _registry[key] = _Environment(directory, key, identity, clock, map_size, write_map)
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
