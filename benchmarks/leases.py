"""What schema leases cost while no change runs: the same look-ups and writes on a store with them and on one without.

At `synchronous = off` nothing waits for a disk, so an operation takes as long as its thread computes. That is what is
measured: other work on the machine would hide a hundredth. Rounds are short and many, and alternate. A lease of a
second is renewed twice a second, much more often than those of minutes that F1 gives its servers. Two stores of one
kind differ by more than a hundredth too, for where their pages happen to lie: so there are several of either kind,
opened in turn, and rounds go from one to the next. How far the rounds scatter is printed as the standard error of the
ratio: a value nearer to its target than that is met by chance.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator

import instar
from benchmarks.harness import Figure, Options, paired
from benchmarks.tables import fill_instar

LEASE_SECONDS = 1.0
ROWS = 100_000
OPERATIONS = 1_000
STORES = 4  # of either kind
# So much of the throughput is to be kept.
_TARGET = 0.99

Work = Callable[[instar.Connection], float]


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(ROWS, ROWS)
    kinds = (0.0, LEASE_SECONDS)
    order = [lease for number in range(STORES) for lease in kinds[:: 1 if number % 2 else -1]]
    made = [(lease, _filled(options, lease, rows, number)) for number, lease in enumerate(order)]
    turns = {lease: itertools.cycle([found for kind, found in made if kind == lease]) for lease in kinds}
    rounds = options.rounds * 21
    for name, work in _works(rows).items():
        pair = paired(
            lambda work=work: work(next(turns[LEASE_SECONDS])), lambda work=work: work(next(turns[0.0])), rounds
        )
        yield Figure(
            f"{name}, leases of {LEASE_SECONDS:g} s", pair.ratio, "x", _TARGET, ">=",
            f"{pair.ours:,.0f}/s, +-{pair.error:.1%}", f"without {pair.peer:,.0f}/s",
        )  # fmt: skip
    for _, connection in made:
        connection.close()


def _filled(options: Options, lease: float, rows: int, number: int) -> instar.Connection:
    path = options.directory / f"lease-{lease:g}-{number}.instar"
    connection = instar.connect(path, synchronous="off", schema_lease=lease, autocommit=True)
    fill_instar(connection, rows)
    return connection


def _works(rows: int) -> dict[str, Work]:
    draw = random.Random(3)
    fresh = itertools.count(rows)

    def measured(text: str, parameters: Callable[[], tuple[object, ...]], transaction: bool = False) -> Work:
        def work(connection: instar.Connection) -> float:
            sets = [parameters() for _ in range(OPERATIONS)]

            def execute() -> None:
                for given in sets:
                    if transaction:
                        connection.execute("BEGIN")
                    connection.execute(text, given)
                    if transaction:
                        connection.execute("COMMIT")

            gc.collect()
            begin = time.thread_time()
            execute()
            return OPERATIONS / (time.thread_time() - begin)

        return work

    lookup = "SELECT b FROM t WHERE id = ?"
    update = "UPDATE t SET b = ? WHERE id = ?"
    return {
        "look-up": measured(lookup, lambda: (draw.randrange(rows),)),
        "update of one row": measured(update, lambda: (draw.randrange(10**6), draw.randrange(rows))),
        "the same in BEGIN, COMMIT": measured(
            update, lambda: (draw.randrange(10**6), draw.randrange(rows)), transaction=True
        ),
        "insert of one row": measured(
            "INSERT INTO t VALUES (?, 1, 2, 3, 4, 5, 6, 7, '8', NULL)", lambda: (next(fresh),)
        ),
    }
