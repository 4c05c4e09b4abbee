"""Latency of queries and writes outside and during changes that reorganize, as F1's tables 2 and 3 have it (§5).

Three quarters queries, one quarter writes, arriving at half of the peak; beside them an index is built, a check and a
NOT NULL are validated, and a second index is built, one after the other. Before and after each the clients are alone
for a while: latencies on a machine that is shared with others drift by more within minutes than changes cost. So a
change is compared with the phases right before and after it, and of all changes the mean counts, by how long they took.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import instar
from benchmarks.clients import Clients, Latencies, clients
from benchmarks.harness import Figure, Options
from benchmarks.noise import Machine, Noise, disturbed, watched
from benchmarks.tables import fill_instar, open_instar

ROWS = 400_000  # the largest tables that are reorganized without Spark have some more
CLIENTS = 2
_SETTLING_SECONDS = 3.0  # after what takes a change back
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
            yield from _measure(connection, processes, machine, options.lasting(15.0, 5.0))
        problems = connection.execute("CHECK DATABASE").fetchall()
        yield Figure("problems found by CHECK DATABASE", len(problems), "", 0, "<=")


@dataclass(frozen=True)
class _Phase:
    """From when to when, in seconds (monotonic)."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def _measure(connection: instar.Connection, processes: Clients, machine: Machine, quiet: float) -> Iterator[Figure]:
    rate = SHARE * processes.peak()
    processes.begin(rate)
    outside, during = [_alone(quiet)], []
    for change, back in CHANGES:
        begin = time.monotonic()
        connection.execute(change)
        during.append(_Phase(begin, time.monotonic()))
        connection.execute(back)
        outside.append(_alone(quiet))
    seen = processes.end()
    noise = {"outside": _worst(machine, outside), "during changes": _worst(machine, during)}
    yield from _compared(seen, outside, during, list(noise.values()))
    for name, phases in {"outside": outside, "during changes": during}.items():
        seconds = sum(phase.seconds for phase in phases)
        completed = sum(len(seen.ended(phase.begin, phase.end).took) for phase in phases) / seconds
        yield Figure(
            f"throughput {name}, {seconds:.0f} s", completed / rate, "x", None, ">=",
            f"{completed:,.0f}/s", f"{rate:,.0f}/s arrive",
        )  # fmt: skip
    yield from (phase.figure(name) for name, phase in noise.items())


def _alone(seconds: float) -> _Phase:
    """The clients are alone for a while."""
    time.sleep(_SETTLING_SECONDS)
    begin = time.monotonic()
    time.sleep(seconds)
    return _Phase(begin, time.monotonic())


def _worst(machine: Machine, phases: list[_Phase]) -> Noise:
    """Of all phases what speaks most against a verdict."""
    found = [machine.within(phase.begin, phase.end) for phase in phases]
    return Noise(
        max(one.steal for one in found),
        float(np.median([one.median for one in found])),
        max(one.slowest for one in found),
        sum(one.count for one in found),
        float(np.average([one.speed for one in found], weights=[one.count for one in found])),
    )


def _percentile(seen: Latencies, share: float, *, queries: bool) -> float:
    """A latency in milliseconds; NaN if there was no such operation."""
    return seen.percentile(share, queries=queries) if (seen.query == queries).any() else math.nan


def _compared(seen: Latencies, outside: list[_Phase], during: list[_Phase], noise: list[Noise]) -> Iterator[Figure]:
    lengths = np.array([phase.seconds for phase in during])
    for (queries, share), paper in PAPER.items():
        quiet, after = (
            np.array([_percentile(seen.within(one.begin, one.end), share, queries=queries) for one in phases])
            for phases in (outside, during)
        )
        before = (quiet[:-1] + quiet[1:]) / 2
        # A change that is over before an operation of the kind has arrived tells nothing of it.
        told = np.isfinite(before) & np.isfinite(after)
        assert told.any(), "the clients did nothing"
        before, after, weights = before[told], after[told], lengths[told]
        yield Figure(
            f"{'queries' if queries else 'writes'}, p{share}: growth during changes",
            float(np.average(after / before - 1, weights=weights)), "x", TARGETS.get((queries, share)), "<=",
            f"{np.average(after, weights=weights):.3f} ms",
            f"outside {np.average(before, weights=weights):.3f} ms; paper {paper:+.1%}",
            disturbed(noise, tail=share == 99),
        )  # fmt: skip
