"""How the cost of each kind of work grows with the table: 10^4 to 10^7 rows (10^6 in a quick run), in tens.

What a larger table adds to a look-up or an update is waits for memory alone: how much that is depends on the machine,
and on who else uses its caches. So sqlite3 goes the same way beside it.
"""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

import instar
from benchmarks import lookup, update
from benchmarks.bulk_insert import INSERT, import_csv
from benchmarks.harness import Figure, Options, rate
from benchmarks.scan import QUERIES
from benchmarks.tables import batches, fill_instar, fill_sqlite, open_instar, open_sqlite, tuples

_SMALL = 100_000
_COUNT = 10_000
_MAPPED = 2**34  # bytes: all of SQLite's file, as all of ours is; it reads pages one by one otherwise
_BY_KEY = ("lookup", "update")
_PEER = "sqlite3: "
GROWTH = 1.5

Kinds = dict[str, Callable[[], float]]


def run(options: Options) -> Iterator[Figure]:
    largest = options.size(10**7, 10**6)
    sizes = [largest // shrunk for shrunk in (1000, 100, 10, 1) if largest // shrunk >= 10**4] or [largest]
    with ExitStack() as opened:
        tables = {rows: opened.enter_context(closing(_filled(options, rows))) for rows in sizes}
        peers = {rows: opened.enter_context(closing(_filled_peer(options, rows))) for rows in sizes}
        os.sync()  # else the disk is busy with the loads
        file = options.directory / "curve.csv"
        costs = _costs(options, {rows: _kinds(tables[rows], peers[rows], rows, file) for rows in sizes})
    small, large = min(_SMALL, sizes[-1]), sizes[-1]
    for name, by_size in costs.items():
        for rows, microseconds in by_size.items():
            yield Figure(f"{name} at {rows:,} rows", microseconds, "us")
    for name in _BY_KEY:
        ours, peer = (costs[which][large] / costs[which][small] for which in (name, _PEER + name))
        beside = f"sqlite3 {peer:.2f} x"
        yield Figure(f"{name}, {large:,} rows beside {small:,}", ours, "x", GROWTH, "<=", peer=beside)


def _filled(options: Options, rows: int) -> instar.Connection:
    connection = open_instar(options.directory / f"curve-{rows}.instar")
    fill_instar(connection, rows)
    return connection


def _filled_peer(options: Options, rows: int) -> sqlite3.Connection:
    connection = open_sqlite(options.directory / f"curve-{rows}.sqlite")
    connection.execute(f"PRAGMA mmap_size = {_MAPPED}")
    fill_sqlite(connection, rows)
    return connection


def _costs(options: Options, by_size: dict[int, Kinds]) -> dict[str, dict[int, float]]:
    """Microseconds of each kind of work by the size of the table. The sizes are measured by turns: the largest table
    takes a minute to fill, in which the machine may have become another."""
    costs: dict[str, dict[int, float]] = {}
    for name in by_size[max(by_size)]:
        rates: dict[int, list[float]] = {rows: [] for rows in by_size}
        for _ in range(options.rounds):
            for rows, kinds in by_size.items():
                kinds[name]()  # what it reads is in the processor's caches, as far as it fits
                rates[rows].append(kinds[name]())
        costs[name] = {rows: 1e6 / statistics.median(found) for rows, found in rates.items()}
    return costs


def _kinds(connection: instar.Connection, peer: sqlite3.Connection, rows: int, file: Path) -> Kinds:
    """Measurements by name, each giving operations or rows per second. `file` is for what is imported."""
    draw = random.Random(rows)
    keys = [draw.randrange(rows) for _ in range(_COUNT)]
    execute = connection.execute
    inserted = rows

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

    kinds = {
        prefix + name: kind for prefix, side in (("", connection), (_PEER, peer)) for name, kind in _by_key(side, keys)
    }
    for name, query, _target in QUERIES:
        kinds[f"{name}, per row,"] = lambda query=query: rate(lambda: execute(query).fetchall(), rows)  # type: ignore[misc]
    kinds["executemany, per row,"] = insert
    kinds["import of CSV, per row,"] = import_file
    return kinds


def _by_key(
    connection: instar.Connection | sqlite3.Connection, keys: list[int]
) -> Iterator[tuple[str, Callable[[], float]]]:
    execute: Callable[..., Any] = connection.execute

    def look_up() -> None:
        for key in keys:
            execute(lookup.QUERY, (key,)).fetchone()

    def change() -> None:
        for key in keys:
            execute(update.STATEMENT, (key, key))

    yield from zip(_BY_KEY, (lambda: rate(look_up, len(keys)), lambda: rate(change, len(keys))), strict=True)
