"""Rows by their key through `execute` with a parameter, at random over a million rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.harness import Figure, Options, paired, rate, versus
from benchmarks.tables import fill_instar, fill_sqlite, open_instar, open_sqlite

QUERY = "SELECT a, b, name FROM t WHERE id = ?"


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(1_000_000, 100_000)
    count = 20_000
    ours, peer = open_instar(options.directory / "lookup.instar"), open_sqlite(options.directory / "lookup.sqlite")
    fill_instar(ours, rows)
    fill_sqlite(peer, rows)
    draw = random.Random(1)
    keys = [draw.randrange(rows) for _ in range(count)]

    def look_up(connection: object) -> None:
        execute = connection.execute  # type: ignore[attr-defined] # both have it
        for key in keys:
            execute(QUERY, (key,)).fetchone()

    assert ours.execute(QUERY, (keys[0],)).fetchone() == peer.execute(QUERY, (keys[0],)).fetchone()
    pair = paired(
        lambda: rate(lambda: look_up(ours), count), lambda: rate(lambda: look_up(peer), count), options.rounds
    )
    ours.close()
    peer.close()
    yield versus(f"key lookup, {rows:,} rows", pair, 1.2)
