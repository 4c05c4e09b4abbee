"""The same table in Instar and in SQLite: ten columns, keys 0 to n - 1, filled through each one's bulk path."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import instar

COLUMNS = "id, a, b, c, d, e, f, g, name, note"
CREATE = (
    "CREATE TABLE {name} (id bigint PRIMARY KEY, a bigint NOT NULL, b bigint NOT NULL, c bigint NOT NULL, d bigint,"
    " e double precision NOT NULL, f double precision NOT NULL, g integer NOT NULL, name text NOT NULL, note text)"
)
_BATCH = 100_000


def batches(rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches, always the same for the same key."""
    for start in range(first, first + rows, _BATCH):
        ids = np.arange(start, min(start + _BATCH, first + rows), dtype=np.int64)
        mixed = (ids * 2654435761) % 1_000_003
        yield pa.record_batch(
            {
                "id": ids,
                "a": mixed,
                "b": mixed % 1000,
                "c": ids % 97,
                "d": pa.array(mixed * 3, mask=mixed % 10 == 0),
                "e": mixed / 7.0,
                "f": ids / 3.0,
                "g": (mixed % 50).astype(np.int32),
                "name": pa.array([f"name {number}" for number in mixed.tolist()]),
                "note": pa.array(["a note of some length that nobody reads"] * len(ids)),
            }
        )


def tuples(rows: int, first: int = 0) -> list[tuple[object, ...]]:
    """The same rows as Python tuples."""
    return [
        row
        for batch in batches(rows, first)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def open_instar(path: Path, synchronous: str = "off") -> instar.Connection:
    """A new database, in autocommit."""
    return instar.connect(path, synchronous=synchronous, autocommit=True)


def fill_instar(connection: instar.Connection, rows: int, name: str = "t") -> None:
    """Make and fill a table."""
    connection.execute(CREATE.format(name=name))
    if rows:
        source = batches(rows)
        first = next(source)
        reader = pa.RecordBatchReader.from_batches(first.schema, _chain(first, source))
        connection.insert_arrow(name, reader)


def open_sqlite(path: Path, synchronous: str | None = "off") -> sqlite3.Connection:
    """A new database in autocommit: in WAL mode, or for None as it comes (a rollback journal, synchronous full)."""
    connection = sqlite3.connect(path, isolation_level=None)
    if synchronous is not None:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


def fill_sqlite(connection: sqlite3.Connection, rows: int, name: str = "t") -> None:
    """Make and fill a table. `bigint PRIMARY KEY` would be a second index: SQLite's own kind of key is given."""
    connection.execute(CREATE.format(name=name).replace("bigint PRIMARY KEY", "integer PRIMARY KEY"))
    for start in range(0, rows, _BATCH):
        insert_sqlite(connection, tuples(min(_BATCH, rows - start), start), name)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def insert_sqlite(connection: sqlite3.Connection, rows: list[tuple[object, ...]], name: str = "t") -> None:
    """Insert rows in one transaction."""
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.execute("COMMIT")


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
