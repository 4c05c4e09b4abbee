"""Many rows at once: `executemany`, Arrow tables, and the import of a CSV file."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

import instar
from benchmarks.harness import Figure, Options, paired, rate, versus
from benchmarks.tables import CREATE, batches, insert_sqlite, open_instar, open_sqlite, tuples
from instar.cli.transfer import import_files

INSERT = "INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(200_000, 20_000)
    ours = open_instar(options.directory / "bulk.instar", "full")
    peer = open_sqlite(options.directory / "bulk.sqlite", "full")
    data = tuples(rows)
    arrow = pa.Table.from_batches(batches(rows))
    file = options.directory / "bulk.csv"
    pyarrow.csv.write_csv(arrow, file)
    names = (f"t{number}" for number in itertools.count())

    def into_fresh(connection: object, fill: Callable[[str], object]) -> float:
        name = next(names)
        connection.execute(CREATE.format(name=name))  # type: ignore[attr-defined] # both have it
        reached = rate(lambda: fill(name), rows)
        connection.execute(f"DROP TABLE {name}")  # type: ignore[attr-defined] # both have it
        return reached

    def many(name: str) -> None:
        ours.executemany(INSERT.format(name=name), data)

    def sqlite(name: str) -> None:
        insert_sqlite(peer, data, name)

    def from_csv(name: str) -> None:
        with file.open(newline="") as lines:
            reader = csv.reader(lines)
            next(reader)
            insert_sqlite(peer, list(map(tuple, reader)), name)

    for what, work, other in (
        ("executemany", many, sqlite),
        ("insert_arrow", lambda name: ours.insert_arrow(name, arrow), sqlite),
        ("import of CSV", lambda name: import_csv(ours, name, file), from_csv),
    ):
        pair = paired(lambda w=work: into_fresh(ours, w), lambda o=other: into_fresh(peer, o), min(options.rounds, 5))  # type: ignore[misc]
        yield versus(f"{what}, {rows:,} rows of ten columns", pair, 0.5, unit=" rows/s")
    ours.close()
    peer.close()


def import_csv(connection: instar.Connection, name: str, file: Path) -> None:
    """What the command `instar import` does, without its progress bar and the start of its process."""
    with contextlib.redirect_stderr(io.StringIO()):
        import_files(connection, name, [file], create=False)
