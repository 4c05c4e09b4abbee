"""The worker of a database as a process of the benchmark's own, which says what the switch of a join or split takes,
and lets it come when it is asked to.

It is the worker that every database has, over a store that looks at the one commit of a job that applies a tail of the
log. Refused, that commit is tried again after more of the log has been propagated, as if too much had been written.
"""

from __future__ import annotations

import enum
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple, cast

import instar
from instar.clock import SystemClock
from instar.schemachange.online.tail import Behind
from instar.schemachange.tasks import Reorganizer
from instar.store import open_store
from instar.store.engine import Commit, StaleRow, Store, View
from instar.worker import NICENESS
from instar.worker.work import Worker

_SWITCH_SECONDS = 0.0005  # as the worker has it
_TURN_SECONDS = 0.01
_REFUSED_SECONDS = 0.05  # so long log comes up before the next attempt
_ENDED_SECONDS = 30.0
_UPDATES = 10  # of a transaction of the tail


class Mode(enum.Enum):
    """What becomes of the next switch."""

    LET = "let"
    REFUSE = "refuse"
    TELL = "tell"  # as REFUSE, and it is said that it would have come
    COMPUTED = "computed"  # let it come, with a tail that is written before its commit and computed there
    LATE = "late"  # let it come, with a tail that is written so late that it is applied in the atomic section


class Switch(NamedTuple):
    """When the commit was begun, when it was let in (the fence held) and when it had ended, in seconds (monotonic); how
    many keys it put, in the catalog too."""

    begun: float
    inside: float
    ended: float
    puts: int


class SwitchWorker:
    """The parent's side."""

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(path, theirs))
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def order(self, mode: Mode, table: str = "", rows: int = 0) -> None:
        """Say what becomes of the next switch; a tail is of so many rows of a table (id, v, ...)."""
        while self._pipe.poll():  # what nobody has asked for
            self._pipe.recv()
        self._pipe.send((mode, table, rows))

    def seen(self, seconds: float) -> Switch | None:
        """The switch, or under TELL the attempt, as soon as it was there; None if it was not within so long."""
        return cast("Switch", self._pipe.recv()) if self._pipe.poll(seconds) else None

    def end(self) -> None:
        """Stop the process."""
        self._pipe.close()
        self._process.join(_ENDED_SECONDS)
        self._process.kill()
        self._process.join()


@contextmanager
def switch_worker(path: Path) -> Iterator[SwitchWorker]:
    """The worker of a database, ended whatever happens."""
    worker = SwitchWorker(path)
    try:
        yield worker
    finally:
        worker.end()


class _Watched:
    """A store whose commits of switches are looked at."""

    def __init__(self, store: Store, path: Path, pipe: Pipe) -> None:
        self._store = store
        self._path = path
        self._pipe = pipe
        self._mode, self._table, self._rows = Mode.LET, "", 0
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def heed(self) -> None:
        """Take in what has been ordered."""
        try:
            while self._pipe.poll():
                self._mode, self._table, self._rows = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self.is_over = True

    def commit(self, request: Commit) -> int:
        """As in `Store`; a switch is what applies something within its atomic section."""
        if request.complete is None:
            return self._store.commit(request)
        self.heed()
        mode = self._mode
        if mode in (Mode.REFUSE, Mode.TELL):
            if mode is Mode.TELL:
                self._pipe.send(Switch(*[time.monotonic()] * 3, 0))
                self._mode = Mode.REFUSE
            time.sleep(_REFUSED_SECONDS)
            raise Behind("it was refused")
        if mode in (Mode.COMPUTED, Mode.LATE):
            self._write_tail()
            self._mode = Mode.LET
            if mode is Mode.COMPUTED:
                raise StaleRow(b"")  # as if somebody had been first: the tail is computed once more
        return self._timed(request)

    def _timed(self, request: Commit) -> int:
        complete = request.complete
        assert complete is not None
        inside = 0.0

        def timed(view: View) -> None:
            nonlocal inside
            inside = time.monotonic()
            complete(view)

        request.complete = timed
        begun = time.monotonic()
        timestamp = self._store.commit(request)
        self._pipe.send(Switch(begun, inside, time.monotonic(), len(request.raw)))
        return timestamp

    def _write_tail(self) -> None:
        with instar.connect(self._path, synchronous=None, autocommit=True) as connection:
            for first in range(0, self._rows, _UPDATES):
                connection.execute("BEGIN")
                for key in range(first, min(first + _UPDATES, self._rows)):
                    connection.execute(f"UPDATE {self._table} SET v = v + 1 WHERE id = ?", (key,))
                connection.execute("COMMIT")


def _serve(path: Path, pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    os.nice(NICENESS)
    sys.setswitchinterval(_SWITCH_SECONDS)
    clock = SystemClock()
    store = open_store(str(path), synchronous=None, create=False, clock=clock)
    watched = _Watched(store, path, pipe)
    store.announce_worker(True)
    worker = Worker(cast("Store", watched), clock, lambda: _spark(path), stopping=lambda: watched.is_over)
    pipe.send("ready")
    while not watched.is_over:
        watched.heed()
        if not worker.turn():
            time.sleep(_TURN_SECONDS)
    store.announce_worker(False)
    store.close()


def _spark(path: Path) -> Reorganizer:
    from instar.pipeline.reorganizer import SparkReorganizer

    return SparkReorganizer(str(path), background=True)
