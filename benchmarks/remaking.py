"""A million rows joined, and split again: how long it takes, and how long a writer had to wait, beside PostgreSQL,
where the new tables are made with CREATE TABLE AS and take the old ones' place under a lock.

Instar's writer commits single transactions of ten updates at a fixed rate, all on the tables that are changed, and its
longest wait is measured. What has been joined lacks a primary key, so that one is added in between, on either side.
PostgreSQL's tables must not change while they are copied, so that whoever writes waits from the lock to the commit:
that long is a writer's stall there, and no writer is needed to know it. Neither waits for the disk.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import instar
from benchmarks import postgres
from benchmarks.clients import clients
from benchmarks.harness import Figure, Options, end_workers, say
from benchmarks.join_and_split_tables import Transactions, creations, fill, selects, statement
from benchmarks.tables import open_instar

ROWS = 1_000_000
ARRIVING = 20.0  # transactions per second
_SETTLING_SECONDS = 0.5
_KEY = ("ALTER TABLE t ALTER id SET NOT NULL", "ALTER TABLE t ADD PRIMARY KEY (id)")
_TURNS = {
    "join": (statement("join"), *_KEY),
    "split": (statement("split"),),
}
_PEER = {
    "join": (
        "LOCK TABLE r, s IN SHARE ROW EXCLUSIVE MODE",
        "CREATE TABLE t AS SELECT r.id, zip, s.city, r.v FROM r FULL JOIN s USING (zip)",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "CREATE INDEX t_zip ON t (zip)",
        "DROP TABLE r, s",
    ),
    "split": (
        "LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE",
        "CREATE TABLE r AS SELECT id, zip, v FROM t",
        "ALTER TABLE r ADD PRIMARY KEY (id)",
        "CREATE INDEX r_zip ON r (zip)",
        "CREATE TABLE s AS SELECT DISTINCT zip, city FROM t",
        "ALTER TABLE s ADD PRIMARY KEY (zip)",
        "DROP TABLE t",
    ),
}


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(ROWS, 10_000)
    took, waited = _ours(options.directory / "remaking.instar", rows)
    try:
        peer, theirs = _peer(options.directory / "postgres", rows)
    except postgres.Unavailable as reason:
        peer, theirs = f"PostgreSQL is left out: {reason}", {}
        say(peer)
    yield Figure(
        f"{rows:,} rows joined and split again", sum(took.values()), "s", None, "<=",
        ", ".join(f"{turn} {seconds:.1f} s" for turn, seconds in took.items()),
        f"{peer} {sum(theirs.values()):.1f} s" if theirs else peer,
    )  # fmt: skip
    for turn, wait in waited.items():
        yield Figure(
            f"{turn} of {rows:,} rows: longest wait of a writer", wait, "ms", None, "<=",
            f"{ARRIVING:g} transactions/s arrive", f"{theirs[turn] * 1e3:,.0f} ms" if theirs else "",
        )  # fmt: skip


def _ours(path: Path, rows: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds that each turn took, and milliseconds that a transaction did at most."""
    took, waited = {}, {}
    with open_instar(path) as connection:
        say(f"Instar: loading {rows:,} rows")
        for table in ("dummy", "r", "s"):
            fill(connection, table, rows)
        os.sync()
        for turn, statements in _TURNS.items():
            with clients(path, rows, 1, functools.partial(Transactions, turn, 1.0)) as writer:
                writer.peak()
                writer.begin(ARRIVING, evenly=False)
                time.sleep(_SETTLING_SECONDS)
                begin = time.monotonic()
                _execute(connection, statements)
                end = time.monotonic()
                time.sleep(_SETTLING_SECONDS)
                seen = writer.end().within(begin, end)
            took[turn], waited[turn] = end - begin, float(seen.took.max())
            say(f"Instar: {turn} in {took[turn]:.1f} s")
    end_workers(path)
    return took, waited


def _execute(connection: instar.Connection, statements: tuple[str, ...]) -> None:
    for text in statements:
        connection.execute(text)


def _peer(path: Path, rows: int) -> tuple[str, dict[str, float]]:
    """What the peer is, and the seconds that each turn took, locked."""
    took = {}
    with postgres.running(path, "off") as server:
        say(f"{server.version}: loading {rows:,} rows")
        for table in ("r", "s"):
            values, count = selects(rows)[table]
            server.query("; ".join(creations(table)))
            server.query(f"INSERT INTO {table} SELECT {values} FROM generate_series(0, {count - 1}) AS numbers (x)")
            server.query(f"ANALYZE {table}")
        server.query("CHECKPOINT")
        for turn, statements in _PEER.items():
            begin = time.monotonic()
            server.query("; ".join(statements))  # one transaction
            took[turn] = time.monotonic() - begin
            say(f"{server.version}: {turn} in {took[turn]:.1f} s")
        return server.version, took
