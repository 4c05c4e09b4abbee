"""Latency of queries and writes outside and during changes that reorganize, as F1's tables 2 and 3 have it (§5).

Three quarters queries, one quarter writes, arriving at half of the peak; beside them an index is built, a check and a
NOT NULL are validated, and a second index is built, one after the other, again and again for as long as it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import instar
from benchmarks.clients import Clients, Latencies, clients
from benchmarks.harness import Figure, Options
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
# By how much the latencies may grow: what the paper saw for writes, and a bound of our own for queries' median.
TARGETS = {(True, 50): 0.10, (False, 50): 0.67, (False, 90): 0.24, (False, 99): 0.12}


def run(options: Options) -> Iterator[Figure]:
    rows = 150_000 if options.quick else ROWS
    path = options.directory / "reorganization"
    with open_instar(path, "full") as connection:
        fill_instar(connection, rows)
        with clients(path, rows, CLIENTS) as processes:
            yield from _measure(connection, processes, 5.0 if options.quick else 60.0)
        problems = connection.execute("CHECK DATABASE").fetchall()
        yield Figure("problems found by CHECK DATABASE", len(problems), "", 0, "<=")


def _measure(connection: instar.Connection, processes: Clients, quiet: float) -> Iterator[Figure]:
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
    load = f"{rate:,.0f}/s arrive, {end - begin:.0f} s of changes"
    yield from _compared(seen.within(start, begin), seen.within(begin, end), load)


def _compared(outside: Latencies, during: Latencies, load: str) -> Iterator[Figure]:
    for queries in (True, False):
        for share in (50, 90, 99):
            before = outside.percentile(share, queries=queries)
            after = during.percentile(share, queries=queries)
            name = f"{'queries' if queries else 'writes'}, p{share}: growth during changes"
            yield Figure(
                name, after / before - 1, "x", TARGETS.get((queries, share)), "<=", f"{after:.3f} ms",
                f"outside {before:.3f} ms" if share > 50 else f"outside {before:.3f} ms; {load}",
            )  # fmt: skip
