"""Whole-table queries over a million rows of ten columns."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Figure, Options, paired, rate, versus
from benchmarks.tables import fill_instar, fill_sqlite, open_instar, open_sqlite

QUERIES = (
    ("plain sum", "SELECT sum(a) FROM t", 0.2),
    ("filtered GROUP BY", "SELECT g, count(*), sum(a), max(e) FROM t WHERE b < 500 GROUP BY g ORDER BY g", 0.8),
)


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(1_000_000, 200_000)
    ours, peer = open_instar(options.directory / "scan.instar"), open_sqlite(options.directory / "scan.sqlite")
    fill_instar(ours, rows)
    fill_sqlite(peer, rows)
    for name, query, target in QUERIES:
        mine = [tuple(map(float, row)) for row in ours.execute(query).fetchall()]
        assert mine == [tuple(map(float, row)) for row in peer.execute(query).fetchall()]
        pair = paired(
            lambda q=query: rate(lambda: ours.execute(q).fetchall(), rows),  # type: ignore[misc]
            lambda q=query: rate(lambda: peer.execute(q).fetchall(), rows),  # type: ignore[misc]
            options.rounds,
        )
        yield versus(f"{name}, {rows:,} rows", pair, target, unit=" rows/s")
    ours.close()
    peer.close()
