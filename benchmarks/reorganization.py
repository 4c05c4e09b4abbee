"""Latency of queries and writes outside and during changes that reorganize, as F1's tables 2 and 3 have it (§5).

Three quarters queries, one quarter writes, arriving at half of the peak; beside them an index is built, a check and a
NOT NULL are validated, and a second index is built, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import instar
from benchmarks.clients import Clients, Latencies, clients
from benchmarks.harness import Figure, Options
from benchmarks.noise import Machine, Noise, watched
from benchmarks.tables import fill_instar, open_instar

ROWS = 1_000_000
CLIENTS = 2
SHARE = 0.5
CHANGES = (
    ("CREATE INDEX i ON t (b)", "DROP INDEX i"),
    ("ALTER TABLE t ADD CONSTRAINT c CHECK (b >= 0)", "ALTER TABLE t DROP CONSTRAINT c"),
    ("ALTER TABLE t ALTER note SET NOT NULL", "ALTER TABLE t ALTER note DROP NOT NULL"),
    ("CREATE INDEX j ON t (name)", "DROP INDEX j"),
)
# By how much the latencies of queries (True) and of writes grew in the paper.
PAPER = {
    (True, 50): 0.035, (True, 90): -0.07, (True, 99): 0.045,
    (False, 50): 0.67, (False, 90): 0.24, (False, 99): 0.12,
}  # fmt: skip
# By how much they may grow here: as in the paper for writes, and a bound of our own for queries' median.
TARGETS = {(True, 50): 0.10} | {(queries, share): grew for (queries, share), grew in PAPER.items() if not queries}


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(ROWS, 150_000)
    path = options.directory / "reorganization"
    with open_instar(path, "full") as connection:
        fill_instar(connection, rows)
        with clients(path, rows, CLIENTS) as processes, watched(options.directory) as machine:
            yield from _measure(connection, processes, machine, options.lasting(60.0, 5.0))
        problems = connection.execute("CHECK DATABASE").fetchall()
        yield Figure("problems found by CHECK DATABASE", len(problems), "", 0, "<=")


def _measure(connection: instar.Connection, processes: Clients, machine: Machine, quiet: float) -> Iterator[Figure]:
    rate = SHARE * processes.peak()
    processes.begin(rate)
    time.sleep(1.0)
    start = time.monotonic()
    time.sleep(quiet)
    begin = time.monotonic()
    for change, back in CHANGES:
        connection.execute(change)
        connection.execute(back)
    end = time.monotonic()
    seen = processes.end()
    noise = {"outside": machine.within(start, begin), "during changes": machine.within(begin, end)}
    yield from _compared(seen.within(start, begin), seen.within(begin, end), list(noise.values()))
    for name, (first, last) in {"outside": (start, begin), "during changes": (begin, end)}.items():
        yield Figure(
            f"throughput {name}, {last - first:.0f} s", seen.completed(first, last) / rate, "x", None, ">=",
            f"{seen.completed(first, last):,.0f}/s", f"{rate:,.0f}/s arrive",
        )  # fmt: skip
    yield from (phase.figure(name) for name, phase in noise.items())


def _compared(outside: Latencies, during: Latencies, noise: list[Noise]) -> Iterator[Figure]:
    for (queries, share), paper in PAPER.items():
        before = outside.percentile(share, queries=queries)
        after = during.percentile(share, queries=queries)
        yield Figure(
            f"{'queries' if queries else 'writes'}, p{share}: growth during changes",
            after / before - 1, "x", TARGETS.get((queries, share)), "<=", f"{after:.3f} ms",
            f"outside {before:.3f} ms; paper {paper:+.1%}",
            any(phase.disturbs(tail=share == 99) for phase in noise),
        )  # fmt: skip
