"""Changes across many servers: how long until they are public, and how far behind a server ever was.

1, 4 and 16 processes write to one store, each under a schema lease of 200 ms; another adds a constraint and an index.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

import instar
from benchmarks.harness import Figure, Options

LEASE_SECONDS = 0.2
SERVERS = (1, 4, 16)
ROWS = 20_000
_BEHIND = """SELECT max(newest.version - servers.schema_version)
FROM instar.servers, (SELECT max(version) AS version FROM instar.schema_versions) AS newest
WHERE servers.lease_until > now()"""


def run(options: Options) -> Iterator[Figure]:
    for count in SERVERS[:2] if options.quick else SERVERS:
        yield from _measure(options.directory / f"servers-{count}", count)


def _measure(path: Path, count: int) -> Iterator[Figure]:
    with instar.connect(path, synchronous="off", schema_lease=LEASE_SECONDS, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b int)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(number, number, 1) for number in range(ROWS)])
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        processes = [context.Process(target=_serve, args=(path, number, stop), daemon=True) for number in range(count)]
        for process in processes:
            process.start()
        time.sleep(2.0)
        watch = _Watch(path)
        for name, change in (
            ("ADD CONSTRAINT", "ALTER TABLE t ADD CONSTRAINT c CHECK (a >= 0)"),
            ("CREATE INDEX", "CREATE INDEX i ON t (a)"),
        ):
            begin = time.monotonic()
            connection.execute(change)
            yield Figure(f"{name} until public, {count} servers", time.monotonic() - begin, "s", None, "<=")
        yield Figure(f"versions that a server was behind at most, {count} servers", watch.end(), "", 1, "<=")
        stop.set()
        for process in processes:
            process.join()
        problems = connection.execute("CHECK DATABASE").fetchall()
        yield Figure(f"problems found by CHECK DATABASE, {count} servers", len(problems), "", 0, "<=")


def _serve(path: Path, number: int, stop: Event) -> None:
    """Write now and then, as a server does whose lease is to be renewed."""
    with instar.connect(path, synchronous=None, autocommit=True) as connection:
        turn = number
        while not stop.is_set():
            turn += 97
            connection.execute("UPDATE t SET a = a + 1 WHERE id = ?", (turn % ROWS,))
            time.sleep(0.005)


class _Watch:
    """Looks, from a thread, how far behind the servers are that hold a lease."""

    def __init__(self, path: Path) -> None:
        self._connection = instar.connect(path, synchronous=None, autocommit=True)
        self._most = 0
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._looking = self._pool.submit(self._look)

    def end(self) -> int:
        """How far it was at most."""
        self._stop.set()
        self._looking.result()
        self._pool.shutdown()
        self._connection.close()
        return self._most

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            row = self._connection.execute(_BEHIND).fetchone()
            self._most = max(self._most, (row and row[0]) or 0)
