"""Changes that rewrite nothing: how long each statement takes, whatever the size of the table."""

from __future__ import annotations

import time
from collections.abc import Iterator

import instar
from benchmarks.harness import Figure, Options
from benchmarks.tables import fill_instar, open_instar

CHANGES = (
    ("add a column with a default", "ALTER TABLE t ADD COLUMN extra{n} text NOT NULL DEFAULT 'x'"),
    ("widen a type", "ALTER TABLE t ALTER COLUMN narrow{n} TYPE bigint"),
    ("rename a column", "ALTER TABLE t RENAME COLUMN extra{n} TO renamed{n}"),
    ("set a default", "ALTER TABLE t ALTER COLUMN renamed{n} SET DEFAULT 'y'"),
    ("drop NOT NULL", "ALTER TABLE t ALTER COLUMN renamed{n} DROP NOT NULL"),
    ("drop a column", "ALTER TABLE t DROP COLUMN renamed{n}"),
    ("rename a table", "ALTER TABLE t RENAME TO t{n}"),
)
LIMIT_MS = 50.0


def run(options: Options) -> Iterator[Figure]:
    for rows in sorted({min(10**4, options.rows or 10**4), options.size(10**6, 10**5)}):
        connection = open_instar(options.directory / f"ddl-{rows}.instar", "full")
        fill_instar(connection, rows)
        taken: dict[str, list[float]] = {name: [] for name, _ in CHANGES}
        for number in range(options.rounds):
            _change_all(connection, number, taken)
        connection.close()
        for name, times in taken.items():
            yield Figure(f"{name}, {rows:,} rows: longest of {len(times)}", max(times), "ms", LIMIT_MS, "<=")


def _change_all(connection: instar.Connection, number: int, taken: dict[str, list[float]]) -> None:
    connection.execute(f"ALTER TABLE t ADD COLUMN narrow{number} integer")
    for name, statement in CHANGES:
        begin = time.perf_counter()
        connection.execute(statement.format(n=number))
        taken[name].append((time.perf_counter() - begin) * 1000)
    connection.execute(f"ALTER TABLE t{number} RENAME TO t")
