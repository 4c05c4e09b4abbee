"""How the cost of each kind of work grows with the table: 10^4 to 10^7 rows (10^6 in a quick run), in tens."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

import instar
from benchmarks import lookup, update
from benchmarks.bulk_insert import INSERT, import_csv
from benchmarks.harness import Figure, Options, rate
from benchmarks.scan import QUERIES
from benchmarks.tables import batches, fill_instar, open_instar, tuples

_SMALL = 100_000
_COUNT = 10_000
GROWTH = 1.5


def run(options: Options) -> Iterator[Figure]:
    largest = options.size(10**7, 10**6)
    sizes = [largest // shrunk for shrunk in (1000, 100, 10, 1) if largest // shrunk >= 10**4] or [largest]
    with ExitStack() as opened:
        costs = _costs(options, {rows: opened.enter_context(closing(_filled(options, rows))) for rows in sizes})
    small = min(_SMALL, sizes[-1])
    for name, by_size in costs.items():
        for rows, microseconds in by_size.items():
            yield Figure(f"{name} at {rows:,} rows", microseconds, "us")
        if name in ("lookup", "update"):
            growth = by_size[sizes[-1]] / by_size[small]
            yield Figure(f"{name}, {sizes[-1]:,} rows beside {small:,}", growth, "x", GROWTH, "<=")


def _filled(options: Options, rows: int) -> instar.Connection:
    connection = open_instar(options.directory / f"curve-{rows}.instar")
    fill_instar(connection, rows)
    return connection


def _costs(options: Options, tables: dict[int, instar.Connection]) -> dict[str, dict[int, float]]:
    """Microseconds of each kind of work by the size of the table. The sizes are measured by turns: the largest table
    takes a minute to fill, in which the machine may have become another."""
    os.sync()  # else the disk is busy with the loads
    by_size = {rows: _kinds(table, rows, options.directory / "curve.csv") for rows, table in tables.items()}
    costs: dict[str, dict[int, float]] = {}
    for name in by_size[max(tables)]:
        rates: dict[int, list[float]] = {rows: [] for rows in tables}
        for _ in range(options.rounds):
            for rows, kinds in by_size.items():
                kinds[name]()  # what it reads is in the processor's caches, as far as it fits
                rates[rows].append(kinds[name]())
        costs[name] = {rows: 1e6 / statistics.median(found) for rows, found in rates.items()}
    return costs


def _kinds(connection: instar.Connection, rows: int, file: Path) -> dict[str, Callable[[], float]]:
    """Measurements by name, each giving operations or rows per second. `file` is for what is imported."""
    draw = random.Random(rows)
    execute = connection.execute
    inserted = rows

    def look_up() -> None:
        for key in keys:
            execute(lookup.QUERY, (key,)).fetchone()

    def change() -> None:
        for key in keys:
            execute(update.STATEMENT, (key, key))

    def fresh() -> int:
        nonlocal inserted
        inserted += _COUNT
        return inserted - _COUNT

    def insert() -> float:
        data = tuples(_COUNT, fresh())
        return rate(lambda: connection.executemany(INSERT.format(name="t"), data), _COUNT)

    def import_file() -> float:
        pyarrow.csv.write_csv(pa.Table.from_batches(batches(_COUNT, fresh())), file)
        return rate(lambda: import_csv(connection, "t", file), _COUNT)

    keys = [draw.randrange(rows) for _ in range(_COUNT)]
    kinds: dict[str, Callable[[], float]] = {
        "lookup": lambda: rate(look_up, _COUNT),
        "update": lambda: rate(change, _COUNT),
    }
    for name, query, _target in QUERIES:
        kinds[f"{name}, per row,"] = lambda query=query: rate(lambda: execute(query).fetchall(), rows)  # type: ignore[misc]
    kinds["executemany, per row,"] = insert
    kinds["import of CSV, per row,"] = import_file
    return kinds
