"""The worker of a database as a process of the benchmark's own, which says what the switch of a join or split takes,
and lets it come when it is asked to.

It is the worker that every database has, over a store that looks at the one commit of a job that applies a tail of the
log, and at the consistency checker. Refused, that commit is tried again after more of the log has been propagated, as
if too much had been written.
"""

from __future__ import annotations

import enum
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil

import instar
from benchmarks import starting
from instar.clock import SystemClock
from instar.scheduling import stand_back
from instar.schemachange.online import following
from instar.schemachange.online.checks import Contradictions, check_all
from instar.schemachange.online.following import Following
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.tail import Behind
from instar.schemachange.online.transformation import OnlineSplit
from instar.schemachange.tasks import Reorganizer
from instar.store import open_store
from instar.store.engine import Commit, Reader, StaleRow, Store, View
from instar.worker import NICENESS
from instar.worker.work import Worker

_SWITCH_SECONDS = 0.0005  # as the worker has it
_TURN_SECONDS = 0.01
# So long log comes up before the next attempt: what is measured is propagation, which attempts are no part of.
_REFUSED_SECONDS = 0.5
_ENDED_SECONDS = 30.0
_UPDATES = 10  # of a transaction of the tail


class Mode(enum.Enum):
    """What becomes of the next switch."""

    LET = "let"
    REFUSE = "refuse"
    TELL = "tell"  # as REFUSE, and it is said that it would have come
    CHECK = "check"  # as REFUSE, and it is said when records of S have been checked
    WITH_TAIL = "with tail"  # let it come, with a tail of known length


class _Order(NamedTuple):
    """As `SwitchWorker.order` has it."""

    mode: Mode = Mode.LET
    table: str = ""
    rows: int = 0
    late: int = 0


class Checked(NamedTuple):
    """From when to when the consistency checker was at so many records of S; and how much processor time the process
    had taken by these moments."""

    begun: float
    ended: float
    records: int
    computed: float
    computed_then: float


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
        self._pipe, theirs = starting.CONTEXT.Pipe()
        self._let_go = starting.CONTEXT.Event()
        self._let_go.set()
        self._times: dict[psutil.Process, float] = {}  # what each process had computed when that was seen last
        self._process = starting.CONTEXT.Process(target=_serve, args=(path, theirs, NICENESS, self._let_go))
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def order(self, mode: Mode, table: str = "", rows: int = 0, late: int = 0) -> None:
        """Say what becomes of the next switch. A tail is of so many rows of a table (id, v, ...); the `late` ones of
        them are written so late that they are applied in the atomic section, the others are computed before it. Under
        CHECK it is said when so many rows of S, or more, have been checked at the end of a cycle."""
        while self._pipe.poll():  # what nobody has asked for
            self._pipe.recv()
        self._pipe.send(_Order(mode, table, rows, late))

    def seen(self, seconds: float) -> Switch | None:
        """The switch, or under TELL the attempt, as soon as it was there; None if it was not within so long."""
        return cast("Switch", self._pipe.recv()) if self._pipe.poll(seconds) else None

    def checked(self, seconds: float) -> Checked | None:
        """The checks, under CHECK, as soon as they have been made; None if they were not within so long."""
        return cast("Checked", self._pipe.recv()) if self._pipe.poll(seconds) else None

    def hold(self, held: bool) -> None:
        """As in `held.Held`: before it reads or commits the next time, and what computes for it as soon as it rests."""
        if held:
            self._let_go.clear()
        else:
            self._let_go.set()

    def computed(self) -> float:
        """As in `held.Held`; with what those had computed that have ended, as far as it was seen."""
        own = psutil.Process(self._process.pid)
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has ended just now
                times = process.cpu_times()
                self._times[process] = times.user + times.system
        return sum(self._times.values())

    def end(self) -> None:
        """Stop the process."""
        self._pipe.close()
        self._let_go.set()
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

    def __init__(self, store: Store, path: Path, pipe: Pipe, let_go: Event) -> None:
        self._store = store
        self._let_go = let_go
        self._path = path
        self._pipe = pipe
        self._order = _Order()
        self._written = 0
        self.was_held = False  # since the last order
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self) -> Reader:
        """As in `Store`, when it is not held."""
        self._wait()
        return self._store.read()

    def foreground_about(self) -> bool:
        """As in `Store`. While it is held, Spark's processes are to rest."""
        return not self._let_go.is_set() or self._store.foreground_about()

    def foreground_queues(self) -> bool:
        """As in `Store`; asked after a rest of Spark's processes, which lasts while it is held."""
        self._wait()
        return self._store.foreground_queues()

    def _wait(self) -> None:
        if not self._let_go.is_set():
            self.was_held = True
            self._let_go.wait()

    def heed(self) -> None:
        """Take in what has been ordered."""
        try:
            while self._pipe.poll():
                self._order, self._written = self._pipe.recv(), 0
                self.was_held = False
        except (EOFError, ConnectionResetError):
            self.is_over = True

    def check_all(
        self,
        split: OnlineSplit,
        target: StoredSplit,
        position: int,
        read: Callable[[], AbstractContextManager[View]],
        found: Contradictions,
    ) -> Iterator[None]:
        """The checks at the end of a cycle, looked at."""
        begun, computed, records = time.monotonic(), time.process_time(), len(target.doubtful)
        yield from check_all(split, target, position, read, found)
        self.heed()
        if self._order.mode is Mode.CHECK and records >= self._order.rows:
            self._pipe.send(Checked(begun, time.monotonic(), records, computed, time.process_time()))
            self._order = _Order(Mode.REFUSE)

    def commit(self, request: Commit) -> int:
        """As in `Store`, when it is not held; a switch is what applies something within its atomic section."""
        self._wait()
        if request.complete is None:
            return self._store.commit(request)
        self.heed()
        order = self._order
        if order.mode is Mode.TELL:
            self._pipe.send(Switch(*[time.monotonic()] * 3, 0))
            self._order = _Order(Mode.REFUSE)
        if order.mode in (Mode.REFUSE, Mode.TELL, Mode.CHECK):
            time.sleep(_REFUSED_SECONDS)
            raise Behind("it was refused")
        if self._written < order.rows - order.late:
            self._write_tail(order.table, order.rows - order.late)
            raise StaleRow(b"")  # as if somebody had been first: the tail is computed once more
        self._write_tail(order.table, order.rows)
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

    def _write_tail(self, table: str, upto: int) -> None:
        """Write the rows of the tail that have not been written yet, up to a number."""
        with closing(instar.connect(self._path, synchronous=None, autocommit=True)) as connection:
            for first in range(self._written, upto, _UPDATES):
                connection.execute("BEGIN")
                for key in range(first, min(first + _UPDATES, upto)):
                    connection.execute(f"UPDATE {table} SET v = v + 1 WHERE id = ?", (key,))
                connection.execute("COMMIT")
        self._written = upto


def _serve(path: Path, pipe: Pipe, niceness: int, let_go: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    stand_back(niceness)
    sys.setswitchinterval(_SWITCH_SECONDS)
    clock = SystemClock()
    store = open_store(str(path), synchronous=None, create=False, clock=clock)
    watched = _Watched(store, path, pipe, let_go)
    following.check_all = watched.check_all  # type: ignore[attr-defined]  # as it is used there
    hurry = Following._hurry

    def unless_held(task: Following, *, checking: bool = False) -> None:
        watched.heed()
        if not watched.was_held:
            hurry(task, checking=checking)

    Following._hurry = unless_held  # type: ignore[method-assign]  # who was held has not fallen behind by itself
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
