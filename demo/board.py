"""The board: memory that the parent and its clients share, one writer per part, no locks.

Time is cut into windows of 100 ms from the moment at which the open loop starts. A latency is counted in the window of
the operation's *scheduled arrival*, a completion in the window in which it came. So a stall shows twice: as windows
with few completions, and as long latencies of everything that should have been done meanwhile.
"""

from __future__ import annotations

import ctypes
import enum
import time
from multiprocessing.context import SpawnContext

import numpy as np
from numpy.ctypeslib import as_array
from numpy.typing import NDArray

from demo.histogram import BUCKETS, bucket_of

WINDOW_NS = 100_000_000
WINDOWS_PER_SECOND = 1_000_000_000 // WINDOW_NS
_LOOK_BACK = 60 * WINDOWS_PER_SECOND


class Phase(enum.IntEnum):
    """What the clients are to do."""

    PREPARE = 0
    CALIBRATE = 1  # as fast as they can, one operation after the other
    OPEN_LOOP = 2  # at fixed times
    STOP = 3


class Feature(enum.IntFlag):
    """What of the changed schema the clients may use already."""

    ADDED_COLUMN = 1
    INDEX = 2
    WIDENED = 4


class _Control(enum.IntEnum):
    PHASE = 0
    ORIGIN = 1
    INTERVAL = 2
    FEATURES = 3


class _Tally(enum.IntEnum):
    READY = 0
    OPERATIONS = 1  # completed, in whatever phase
    CONFLICTS = 2  # tried again: of class 40001, or a table had been joined or split


class Board:
    """Made by the parent and handed to the clients when they are spawned."""

    def __init__(self, context: SpawnContext, clients: int, seconds: int) -> None:
        self.clients = clients
        self.windows = seconds * WINDOWS_PER_SECOND
        self._control = context.RawArray(ctypes.c_longlong, len(_Control))
        self._tallies = [context.RawArray(ctypes.c_longlong, len(_Tally)) for _ in range(clients)]
        self._latencies = [context.RawArray(ctypes.c_ushort, self.windows * BUCKETS) for _ in range(clients)]
        self._longest = [context.RawArray(ctypes.c_longlong, self.windows) for _ in range(clients)]
        self._completed = [context.RawArray(ctypes.c_uint, self.windows) for _ in range(clients)]

    # --- the parent's side -------------------------------------------------------------------------------------------

    def set_phase(self, phase: Phase) -> None:
        """Tell the clients what to do."""
        self._control[_Control.PHASE] = phase

    def open_loop(self, rate: float, origin: int) -> None:
        """Start the open loop at monotonic time `origin` (ns), with `rate` arrivals per second of all clients."""
        self._control[_Control.ORIGIN] = origin
        self._control[_Control.INTERVAL] = int(1e9 * self.clients / rate)
        self.set_phase(Phase.OPEN_LOOP)

    def allow(self, feature: Feature) -> None:
        """Let the clients use a part of the new schema from now on."""
        self._control[_Control.FEATURES] |= feature

    @property
    def ready(self) -> int:
        """How many clients have connected and warmed up."""
        return sum(tally[_Tally.READY] for tally in self._tallies)

    @property
    def operations(self) -> int:
        """Operations completed so far."""
        return sum(tally[_Tally.OPERATIONS] for tally in self._tallies)

    @property
    def conflicts(self) -> int:
        """Conflicts (40001; 42P01 after a join or split) that were tried again so far."""
        return sum(tally[_Tally.CONFLICTS] for tally in self._tallies)

    @property
    def now(self) -> int:
        """The window of this moment."""
        return min((time.monotonic_ns() - self.origin) // WINDOW_NS, self.windows - 1)

    @property
    def answered(self) -> int:
        """The newest window of which an arrival has been answered: behind `now` while clients are stalled."""
        now = self.now + 1
        first = max(now - _LOOK_BACK, 0)
        known = np.flatnonzero(self.longest(first, now))
        return first + int(known[-1]) if len(known) else first

    def seconds_since_start(self) -> float:
        """Seconds since the open loop began."""
        return (time.monotonic_ns() - self.origin) / 1e9

    def latencies(self, first: int, last: int) -> NDArray[np.int64]:
        """Counts per bucket of what arrived in the windows [first, last)."""
        total: NDArray[np.int64] = self.latency_windows(first, last).sum(axis=0)
        return total

    def latency_windows(self, first: int, last: int) -> NDArray[np.int64]:
        """Counts per window and bucket of what arrived in the windows [first, last)."""
        shape = (self.windows, BUCKETS)
        parts = [as_array(part).reshape(shape)[first:last] for part in self._latencies]
        total: NDArray[np.int64] = np.sum(parts, axis=0, dtype=np.int64)
        return total

    def longest(self, first: int, last: int) -> NDArray[np.float64]:
        """The longest latency per window of arrival, in milliseconds."""
        parts = [as_array(part)[first:last] for part in self._longest]
        longest: NDArray[np.float64] = np.max(parts, axis=0) / 1e6
        return longest

    def completed(self, first: int, last: int) -> NDArray[np.int64]:
        """Completions per window."""
        parts = [as_array(part)[first:last] for part in self._completed]
        total: NDArray[np.int64] = np.sum(parts, axis=0, dtype=np.int64)
        return total

    # --- the clients' side -------------------------------------------------------------------------------------------

    @property
    def phase(self) -> int:
        return int(self._control[_Control.PHASE])

    @property
    def origin(self) -> int:
        return int(self._control[_Control.ORIGIN])

    @property
    def interval(self) -> int:
        """Nanoseconds between two arrivals at one client."""
        return int(self._control[_Control.INTERVAL])

    @property
    def features(self) -> int:
        return int(self._control[_Control.FEATURES])

    def writer(self, client: int) -> Writer:
        """The part that one client writes."""
        return Writer(
            self.windows, self._tallies[client], self._latencies[client], self._longest[client], self._completed[client]
        )


class Writer:
    """What one client writes on the board."""

    def __init__(
        self,
        windows: int,
        tally: ctypes.Array[ctypes.c_longlong],
        latencies: ctypes.Array[ctypes.c_ushort],
        longest: ctypes.Array[ctypes.c_longlong],
        completed: ctypes.Array[ctypes.c_uint],
    ) -> None:
        self._last = windows - 1
        self._tally = tally
        self._latencies = latencies
        self._longest = longest
        self._completed = completed

    def ready(self) -> None:
        """Connected and warmed up."""
        self._tally[_Tally.READY] = 1

    def conflict(self) -> None:
        """A conflict, or a table that was not there any more: it is tried again."""
        self._tally[_Tally.CONFLICTS] += 1

    def done(self) -> None:
        """An operation of the calibration."""
        self._tally[_Tally.OPERATIONS] += 1

    def arrived(self, scheduled: int, finished: int) -> None:
        """An operation of the open loop: nanoseconds since the origin at which it should have begun, and ended."""
        self._tally[_Tally.OPERATIONS] += 1
        latency = finished - scheduled
        window = min(scheduled // WINDOW_NS, self._last)
        self._latencies[window * BUCKETS + bucket_of(latency)] += 1
        self._longest[window] = max(self._longest[window], latency)
        self._completed[min(finished // WINDOW_NS, self._last)] += 1
