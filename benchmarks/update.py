"""Single-row updates in autocommit of a column that no index has, without and with fsync."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.harness import Figure, Options, paired, rate, versus
from benchmarks.tables import fill_instar, fill_sqlite, open_instar, open_sqlite

STATEMENT = "UPDATE t SET b = ? WHERE id = ?"


def run(options: Options) -> Iterator[Figure]:
    rows = 100_000 if options.quick else 1_000_000
    for synchronous, count in (("off", 10_000), ("full", 1_000)):
        yield _measure(options, synchronous, rows, count)


def _measure(options: Options, synchronous: str, rows: int, count: int) -> Figure:
    ours = open_instar(options.directory / f"update-{synchronous}.instar", synchronous)
    peer = open_sqlite(options.directory / f"update-{synchronous}.sqlite", synchronous)
    fill_instar(ours, rows)
    fill_sqlite(peer, rows)
    draw = random.Random(2)

    def update(connection: object, pairs: list[tuple[int, int]]) -> None:
        execute = connection.execute  # type: ignore[attr-defined] # both have it
        for changed in pairs:
            execute(STATEMENT, changed)

    def measured(connection: object) -> float:
        pairs = [(draw.randrange(10**6), draw.randrange(rows)) for _ in range(count)]
        return rate(lambda: update(connection, pairs), count)

    pair = paired(lambda: measured(ours), lambda: measured(peer), options.rounds)
    ours.close()
    peer.close()
    return versus(f"single-row update, synchronous {synchronous}", pair, 0.7)
