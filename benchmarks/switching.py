"""The pause of the switch of a join or split, by the length of the tail that it applies, at `synchronous = off`.

How long the switch's commit has the atomic section, from when its fence held until it has ended. First nobody else
commits, and a tail of known length is written in the last moment: just before it is computed, so that it is only put in
the atomic section, or a tenth of it just after, so that this is applied there; more would be refused. Then a client
commits at half of its peak, and the tail is what there is.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import instar
from benchmarks.clients import clients
from benchmarks.harness import Figure, Options
from benchmarks.join_and_split_tables import Running, Transactions, fill
from benchmarks.switch_worker import Mode, Switch, SwitchWorker, switch_worker
from benchmarks.tables import open_instar

ROWS = 50_000
TAILS = (10, 100, 1_000)
# The promise, of a tail of JUDGED rows; the paper's prototype, all in memory, had the same.
PAUSE_MS = 1.0
JUDGED = 100
LOAD, SHARE = 0.5, 0.2  # of the client's peak, and of its updates on the sources
_PATIENCE_SECONDS = 120.0
_SETTLING_SECONDS = 0.5
_AROUND_SECONDS = 0.02
# A switch that more than a tenth of the tail comes too late for is refused.
LATE_SHARES = {0.0: "all computed before", 0.1: "the last tenth in the atomic section"}
# Either is made of what the other one leaves. With the table that has a row for each row of the tail.
_TURNS = {"split": "t", "join": "r"}


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(ROWS, 6_000)
    path = options.directory / "switching.instar"
    with open_instar(path) as connection, switch_worker(path) as worker:
        fill(connection, "dummy", rows)
        for tail, late in itertools.product((JUDGED,) if options.quick else TAILS, LATE_SHARES):
            rounds = [
                _round(connection, worker, rows, tail, late)
                for _ in range(options.repeated or (1 if options.quick else 5))
            ]
            for transformation in _TURNS:
                yield _held(transformation, tail, late, [switches[transformation] for switches in rounds])
        fill(connection, "t", rows)
        for transformation in _TURNS:
            yield from _under_traffic(connection, worker, path, rows, transformation)


def _round(connection: instar.Connection, worker: SwitchWorker, rows: int, tail: int, late: float) -> dict[str, Switch]:
    """Split a table and join what has come of it, each with a tail of so many rows; the switches of both."""
    fill(connection, "t", rows)
    switches = {}
    for transformation, table in _TURNS.items():
        worker.order(Mode.WITH_TAIL, table, tail, int(late * tail))
        job = Running(connection, transformation, pause_rows=tail)
        switch = worker.seen(_PATIENCE_SECONDS)
        if switch is None or switch.puts < tail:
            raise RuntimeError(f"no switch with a tail of {tail} rows: {switch}, {job.look()}")
        job.until_ended()
        switches[transformation] = switch
    connection.execute("DROP TABLE t")
    return switches


def _held(transformation: str, tail: int, late: float, switches: list[Switch]) -> Figure:
    held = sorted((switch.ended - switch.inside) * 1e3 for switch in switches)
    return Figure(
        f"{transformation}, tail of {tail:,} rows, {LATE_SHARES[late]}: atomic section", statistics.median(held), "ms",
        PAUSE_MS if tail == JUDGED else None, "<=",
        f"at most {held[-1]:.2f} ms of {len(held)}", "paper: less than 1 ms" if tail == JUDGED else "",
    )  # fmt: skip


def _under_traffic(
    connection: instar.Connection, worker: SwitchWorker, path: Path, rows: int, transformation: str
) -> Iterator[Figure]:
    """The switch as it comes, beside a client that writes to the sources until they are gone."""
    with clients(path, rows, 1, functools.partial(Transactions, transformation, SHARE)) as processes:
        processes.begin(LOAD * processes.peak(), evenly=False)
        time.sleep(_SETTLING_SECONDS)
        worker.order(Mode.LET)
        Running(connection, transformation, pause_rows=JUDGED).until_ended()
        switch = worker.seen(_PATIENCE_SECONDS)
        time.sleep(_SETTLING_SECONDS)
        seen = processes.end()
    assert switch is not None
    met = (seen.arrived < switch.ended + _AROUND_SECONDS) & (
        seen.arrived + seen.took / 1e3 > switch.inside - _AROUND_SECONDS
    )
    load = f"{transformation} under traffic, at most {JUDGED:,} rows"
    yield Figure(
        f"{load}: atomic section", (switch.ended - switch.inside) * 1e3, "ms", PAUSE_MS, "<=", f"{switch.puts:,} puts"
    )
    yield Figure(
        f"{load}: longest wait of a client", float(seen.took[met].max(initial=0.0)), "ms", None, "<=",
        "a transaction of ten updates",
        f"all of them: median {seen.percentile(50, queries=False):.2f} ms,"
        f" p99.9 {seen.percentile(99.9, queries=False):.1f} ms",
    )  # fmt: skip
