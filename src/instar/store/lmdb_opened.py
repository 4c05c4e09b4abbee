"""What all openers of one directory in one process share: LMDB's environment and all that belongs to it.

It is opened again after a fork, and when LMDB asks for it. See `lmdb` for the stores, which are handles of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

import lmdb

from instar import errors
from instar.clock import Clock
from instar.store.cursors import read_head
from instar.store.data_file import DataFile
from instar.store.directory import DATA_FILE, PRESENCE_FILE
from instar.store.header import SNAPSHOT_MAX_AGE_SECONDS, Head, Header, Identity
from instar.store.keeper import Keeper
from instar.store.lmdb_environment import has_reader, open_checked, open_data
from instar.store.lmdb_errors import closed, translate
from instar.store.lmdb_locks import LmdbLockTable, discard
from instar.store.lmdb_queue import LmdbQueue
from instar.store.lmdb_reader import LmdbReader
from instar.store.lmdb_section import LmdbSection
from instar.store.mapped_section import MappedSection
from instar.store.pages import PageFile
from instar.store.presence import SharedPresence
from instar.store.recovery import recover
from instar.store.space import Space, can_reserve
from instar.store.wal import WriteAheadLog
from instar.store.watch import Watch

MAP_SIZE = 1 << 40

# How long a closing store waits for threads to leave it, and how often it looks.
_DRAIN_SECONDS = 10.0
_DRAIN_TICK = 0.001

# No transaction of LMDB has this number.
_UNKNOWN = -2, (0, 0, Header(0, 0, 0, 0, 0, b"", 0, 0))


class Environment:
    """What all openers of one directory in this process share.

    `newest` is the newest state that this process has seen or left, and the number of the LMDB transaction that made
    it: numbers are never used twice, so that transactions of that number need not read it. `begin`, `queue`,
    `presence` and `locks` are made anew after a fork, when one of them is first asked for (`ForkedEnvironment`).
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
    # The threads that are in the atomic section, with LMDB's transaction, wait for it or lock; but those that commit
    # what they have derived, which are within the queue.
    inside: dict[int, Any]

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
        self.inside = {}
        self.fence = threading.Lock()
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
        self.__class__ = Environment  # of a forked child: all is there

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
            is_there = file_key(self.path) == self.key
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
        head, number = read_head(transaction), transaction.id()
        # LMDB takes number and state of a read one after the other: if two commits come in between, the state is newer
        # than the number says, and not to be taken for that of others that have the number.
        environment = self._environment  # None while another thread opens it anew
        if environment is not None and environment.info()["last_txnid"] <= number + 1:
            self.newest = number, head
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
        self.inside[thread] = None
        try:
            transaction = self.inside[thread] = self.enter()
            return self.section(transaction)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """What this thread has entered, if that has not ended, ends. An interrupt may come when the section is handed
        on, and nobody is there to end it: who keeps its traceback would keep the mutex."""
        thread = get_ident()
        transaction = self.inside.get(thread)
        if transaction is not None:
            transaction.abort()  # which does nothing once it has ended
        self.inside.pop(thread, None)

    def enter(self) -> Any:
        """Wait for the mutex and enter: LMDB's transaction, for a thread that `drain` knows of. 08003 as above."""
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
            self.inside.keys() - {me} or (queue is not None and set(queue.within.copy().values()) - {me})
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
        self.inside = {}
        self.fence = threading.Lock()
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
            self.__class__ = ForkedEnvironment


class ForkedEnvironment(Environment):
    """One that a forked child has let go of, until it asks for what is not there any more: of a class of its own, since
    with `__getattr__` an attribute that is there is found three times as slowly, too."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("begin", "queue", "presence", "locks"):
            raise AttributeError(name)
        with self._opening:
            if name not in self.__dict__:
                self._open()
        return self.__dict__[name]


def file_key(path: str) -> tuple[int, int]:
    """What tells the store in a directory from any other that is open."""
    status = os.stat(os.path.join(path, DATA_FILE))
    return status.st_dev, status.st_ino
