"""What schema leases cost while no change runs: the same look-ups and writes on a store with them and on one without.

At `synchronous = off` nothing waits for a disk, so an operation takes as long as its thread computes. That is what is
measured: other work on the machine would hide a hundredth. Rounds are short and many, and alternate. A lease of a
second is renewed twice a second, much more often than those of minutes that F1 gives its servers. Two stores of one
kind differ by more than a hundredth too, for where their pages happen to lie: so there are several of either kind,
opened in turn, and rounds go from one to the next. How far the rounds scatter is printed as the standard error of the
ratio: a value nearer to its target than that is met by chance. Beside it stands what does not scatter, how many
functions an execution calls.
"""

from __future__ import annotations

import gc
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

import instar
from benchmarks.harness import Figure, Options, paired
from benchmarks.tables import fill_instar

LEASE_SECONDS = 1.0
ROWS = 100_000
OPERATIONS = 1_000
STORES = 4  # of either kind
# So much of the throughput is to be kept.
_TARGET = 0.99


class Work(NamedTuple):
    """A statement, what gives its parameters, and whether each execution is a transaction of its own commands."""

    text: str
    parameters: Callable[[], tuple[object, ...]]
    transaction: bool = False

    def run(self, connection: instar.Connection, sets: list[tuple[object, ...]]) -> None:
        for given in sets:
            if self.transaction:
                connection.execute("BEGIN")
            connection.execute(self.text, given)
            if self.transaction:
                connection.execute("COMMIT")

    def rate(self, connection: instar.Connection) -> float:
        """Executions per second of processor time of this thread."""
        sets = [self.parameters() for _ in range(OPERATIONS)]
        gc.collect()
        begin = time.thread_time()
        self.run(connection, sets)
        return OPERATIONS / (time.thread_time() - begin)

    def calls(self, connection: instar.Connection) -> int:
        """Calls of functions in one execution, of Python's and of C's: the same number each time."""
        sets = [self.parameters() for _ in range(20)]
        self.run(connection, sets[:-1])
        count = 0

        def count_calls(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(count_calls)
        try:
            self.run(connection, sets[-1:])
        finally:
            sys.setprofile(None)
        return count


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(ROWS, ROWS)
    kinds = (0.0, LEASE_SECONDS)
    order = [lease for number in range(STORES) for lease in kinds[:: 1 if number % 2 else -1]]
    made = [(lease, _filled(options, lease, rows, number)) for number, lease in enumerate(order)]
    turns = {lease: itertools.cycle([found for kind, found in made if kind == lease]) for lease in kinds}
    rounds = options.rounds * 21
    for name, work in works(rows).items():
        pair = paired(_rate(work, turns[LEASE_SECONDS]), _rate(work, turns[0.0]), rounds)
        yield Figure(
            f"{name}, leases of {LEASE_SECONDS:g} s", pair.ratio, "x", _TARGET, ">=",
            f"{pair.ours:,.0f}/s, +-{pair.error:.1%}", f"without {pair.peer:,.0f}/s",
        )  # fmt: skip
        calls, without = (work.calls(next(turns[lease])) for lease in (LEASE_SECONDS, 0.0))
        yield Figure(f"{name}, calls of functions", calls / without, "x", 2 - _TARGET, "<=", f"{calls}", f"{without}")
    for _, connection in made:
        connection.close()


def _rate(work: Work, connections: Iterator[instar.Connection]) -> Callable[[], float]:
    return lambda: work.rate(next(connections))


def _filled(options: Options, lease: float, rows: int, number: int) -> instar.Connection:
    path = options.directory / f"lease-{lease:g}-{number}.instar"
    connection = instar.connect(path, synchronous="off", schema_lease=lease, autocommit=True)
    fill_instar(connection, rows)
    return connection


def works(rows: int) -> dict[str, Work]:
    """What is done to a table of so many rows."""
    draw = random.Random(3)
    fresh = itertools.count(rows)
    lookup = "SELECT b FROM t WHERE id = ?"
    update = "UPDATE t SET b = ? WHERE id = ?"
    insert = "INSERT INTO t VALUES (?, 1, 2, 3, 4, 5, 6, 7, '8', NULL)"

    def updated() -> tuple[object, ...]:
        return draw.randrange(10**6), draw.randrange(rows)

    return {
        "look-up": Work(lookup, lambda: (draw.randrange(rows),)),
        "update of one row": Work(update, updated),
        "the same in BEGIN, COMMIT": Work(update, updated, transaction=True),
        "insert of one row": Work(insert, lambda: (next(fresh),)),
    }
