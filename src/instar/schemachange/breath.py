"""Rests of what computes beside foreground commits: short pieces, each followed by several times as much of nothing.

Work in the background has a low weight (nice), and still whoever wakes up beside it may have to wait until its slice
ends, some milliseconds, where the kernel knows no slices that one asks for (scheduling.py); and a client wakes up for
each of its operations. The scheduling class that yields at once (SCHED_IDLE) is no way out for what holds claims and
the interpreter: where others have work for all processors, it is kept from them for minutes. So whoever reads and
derives many rows for a job does that for a millisecond or a few at a time, and rests. Where it computed a batch of
thousands of rows at once, the 99.9th percentile of writes beside it was 88 ms; it is 7 to 11 (150,000 rows, two
processors; docs/benchmarks-history.md).
"""

from __future__ import annotations

from typing import Protocol

from instar.clock import Clock
from instar.store.pace import LONGEST_PAUSE_NS

# A piece takes about so long, and is followed by so many times as much rest.
PIECE_NS, RESTS = 1_000_000, 3.0
# The same where whoever wakes up need not wait for its end (scheduling.gives_way). Each piece begins with cold caches,
# and has what costs the same however many rows there are: by longer ones the entries of an index are read and derived
# in a fifth of the processor time, which leaves room for longer rests.
LONG_PIECE_NS, LONG_RESTS = 4_000_000, 6.0
# No more rest than so many times the piece, however far a latency target is missed: the work has to end, and the gate's
# pauses grow besides.
MOST_RESTS = 16.0
# Who has committed so lately may do so again any moment. It is more than a rest, since in one few may happen to commit.
LATELY_NS = 100_000_000
# Small batches are put together for so long at most: what is not put is lost if the work is interrupted, and the gate
# does not see meanwhile how foreground commits fare.
GATHERING_NS = 500_000_000
# Rows of a piece: at the least, where nobody knows yet how long they take, and at the most.
LEAST_ROWS, FIRST_ROWS, MOST_ROWS = 32, 128, 4_096


class Foreground(Protocol):
    """Of a store, what is known of commits in the foreground."""

    def foreground_about(self) -> bool: ...


class Breath:
    """The rests of one thread that runs tasks, and how much it is to do between two. `gives_way`: whoever wakes up has
    the processor of this thread at once."""

    def __init__(self, store: Foreground, clock: Clock, *, gives_way: bool = False) -> None:
        self._store = store
        self._clock = clock
        self._piece_ns, self._rests = (LONG_PIECE_NS, LONG_RESTS) if gives_way else (PIECE_NS, RESTS)
        self._rows = self._given = FIRST_ROWS  # of a piece; and of the one that was asked for last
        self._met = -LATELY_NS  # when somebody was seen to commit last
        # What the thread had computed by the end of the last rest, and when rows were asked for.
        self._rested = self._asked = clock.computed_ns()

    def piece(self, most: int = MOST_ROWS) -> int:
        """A piece begins: how many rows, `most` at the most, are to be read at once for it."""
        self._given = min(most, self._rows if self._is_beside() else MOST_ROWS)
        self._asked = self._clock.computed_ns()
        return self._given

    def draw(self, factor: float = 1.0, *, read: bool = False, most: float = MOST_RESTS) -> None:
        """Rest from what was computed since the last rest, if that is a piece: `factor` times as long as usual, and
        `most` times as long as the piece at the most. `read`: that was for the rows that were to be read at once; the
        next ones are as many as take a piece. Not in the atomic section.
        """
        now = self._clock.computed_ns()
        if read and self._given <= self._rows:
            wanted = self._given * self._piece_ns // max(now - self._asked, 1)
            self._rows = max(LEAST_ROWS, min(wanted, 2 * self._given, MOST_ROWS))
        computed = now - self._rested
        if computed < self._piece_ns // 2:
            return
        if self._is_beside():
            self._clock.sleep(min(computed * min(self._rests * factor, most), LONGEST_PAUSE_NS) / 1e9)
        self._rested = self._clock.computed_ns()

    def gathers(self, since: int) -> bool:
        """Whether what has been gathered since then (`now`) is too little to be put."""
        return self.now() - since < GATHERING_NS

    def now(self) -> int:
        """Monotonic time, in ns."""
        return self._clock.monotonic_ns()

    def _is_beside(self) -> bool:
        now = self._clock.monotonic_ns()
        if self._store.foreground_about():
            self._met = now
        return now - self._met < LATELY_NS
