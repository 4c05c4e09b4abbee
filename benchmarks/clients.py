"""Client processes at a fixed arrival rate: the latency of each query and each write, counted from its time of arrival.

Arrivals are fixed beforehand, so that a stall is seen by all that should have run within it (no coordinated omission).
What a client does is up to its benchmark; single-row look-ups and updates unless it says otherwise.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Protocol

import numpy as np

import instar
from benchmarks import starting

# F1 §5 measured one write in four operations.
QUERIES_OF_FOUR = 3
_CALIBRATION_SECONDS = 10.0


@dataclass(frozen=True)
class Latencies:
    """Operations: seconds (monotonic) at which each arrived, milliseconds it took, whether it was a query."""

    arrived: np.ndarray
    took: np.ndarray
    query: np.ndarray

    def within(self, begin: float, end: float) -> Latencies:
        """Those that arrived in [begin, end)."""
        chosen = (self.arrived >= begin) & (self.arrived < end)
        return Latencies(self.arrived[chosen], self.took[chosen], self.query[chosen])

    def ended(self, begin: float, end: float) -> Latencies:
        """Those that were completed in [begin, end), as most of them are even where clients fall behind."""
        at = self.arrived + self.took / 1e3
        chosen = (at >= begin) & (at < end)
        return Latencies(self.arrived[chosen], self.took[chosen], self.query[chosen])

    def mean(self) -> float:
        """The mean latency in milliseconds."""
        return float(self.took.mean())

    def percentile(self, share: float, *, queries: bool) -> float:
        """A latency in milliseconds."""
        return float(np.percentile(self.took[self.query == queries], share))

    def completed(self, begin: float, end: float) -> float:
        """Completions per second in [begin, end), whenever what was completed had arrived."""
        return len(self.ended(begin, end).took) / (end - begin)


def together(parts: Sequence[Latencies]) -> Latencies:
    """What was seen in all of the parts."""
    fields = zip(*((part.arrived, part.took, part.query) for part in parts), strict=True)
    return Latencies(*(np.concatenate(field) for field in fields))


class Operations(Protocol):
    """What one client does."""

    def draw(self) -> bool:
        """Whether the next operation is a query."""
        ...

    def run(self, query: bool) -> None:
        """One operation. A conflict is tried again, and its time counts."""
        ...


# Of a database with so many rows, and the client's number. It goes to the client's process, so it can be pickled.
MakeOperations = Callable[[Path, int, int], Operations]


class Clients:
    """`count` processes on a database at `path` with tables of `rows` rows."""

    def __init__(self, path: Path, rows: int, count: int, make: MakeOperations) -> None:
        self._pipes: list[Pipe] = []
        self._processes = []
        for number in range(count):
            ours, theirs = starting.CONTEXT.Pipe()
            process = starting.CONTEXT.Process(target=_client, args=(make, path, rows, number, theirs), daemon=True)
            process.start()
            theirs.close()  # so that a client that dies is seen
            self._pipes.append(ours)
            self._processes.append(process)

    def peak(self) -> float:
        """Operations per second of all clients as fast as they can."""
        return sum(self._ask(("peak", _CALIBRATION_SECONDS)))

    def begin(self, rate: float, *, evenly: bool = True) -> None:
        """Let `rate` operations per second arrive, from now on: evenly, or as a Poisson process."""
        self._tell(("open" if evenly else "poisson", rate / len(self._pipes)))

    def begin_closed(self, pause: float) -> None:
        """From now on let each client's next operation arrive so many seconds after its last has ended, on average."""
        self._tell(("closed", 1 / pause if pause else math.inf))

    def end(self) -> Latencies:
        """Stop, and say what was seen."""
        self._tell(("stop", 0.0))
        return together([Latencies(*pipe.recv()) for pipe in self._pipes])

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()

    def _tell(self, order: tuple[str, float]) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def _ask(self, order: tuple[str, float]) -> list[float]:
        self._tell(order)
        return [pipe.recv() for pipe in self._pipes]


class PointOperations:
    """Key look-ups, and single-row updates of an indexed and of other columns, on the table t (id, a, b, ...)."""

    def __init__(self, path: Path, rows: int, number: int) -> None:
        self._execute = instar.connect(path, synchronous=None, autocommit=True).execute
        self._rows = rows
        self._random = random.Random(number)

    def draw(self) -> bool:
        """As in `Operations`."""
        return self._random.randrange(4) < QUERIES_OF_FOUR

    def run(self, query: bool) -> None:
        """As in `Operations`."""
        key = self._random.randrange(self._rows)
        while True:
            try:
                if query:
                    self._execute("SELECT a, name FROM t WHERE id = ?", (key,)).fetchone()
                else:
                    value = self._random.randrange(1_000_000)
                    self._execute("UPDATE t SET a = ?, note = 'written' WHERE id = ?", (value, key))
                return
            except instar.Error as error:
                if error.sqlstate != "40001":
                    raise


@contextmanager
def clients(path: Path, rows: int, count: int, make: MakeOperations = PointOperations) -> Iterator[Clients]:
    """The processes, ended whatever happens."""
    made = Clients(path, rows, count, make)
    try:
        yield made
    finally:
        made.close()


def _client(make: MakeOperations, path: Path, rows: int, number: int, pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its clients
    operations = make(path, rows, number)
    while True:
        order, value = pipe.recv()
        if order == "peak":
            pipe.send(_peak(operations, value))
        else:
            gaps = _gaps(value, number, evenly=order == "open")
            pipe.send(_loop(operations, gaps, pipe, closed=order == "closed"))


def _peak(operations: Operations, seconds: float) -> float:
    begin, done = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        operations.run(operations.draw())
        done += 1
    return done / (time.monotonic() - begin)


def _gaps(rate: float, seed: int, *, evenly: bool) -> Iterator[float]:
    """Seconds from each arrival to the next, or from an operation's end."""
    draw = random.Random(seed)
    while True:
        yield 1.0 / rate if evenly else draw.expovariate(rate)


def _loop(
    operations: Operations, gaps: Iterator[float], pipe: Pipe, *, closed: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operations until something is said. In a closed loop the next arrives as long after the last has ended."""
    arrived: list[float] = []
    took: list[float] = []
    query: list[bool] = []
    due = time.monotonic()
    while not pipe.poll():
        due = (time.monotonic() if closed else due) + next(gaps)
        early = due - time.monotonic()
        if early > 0:
            time.sleep(early)
        reads = operations.draw()
        operations.run(reads)
        arrived.append(due)
        took.append((time.monotonic() - due) * 1e3)
        query.append(reads)
    pipe.recv()
    return np.array(arrived), np.array(took), np.array(query, dtype=bool)
