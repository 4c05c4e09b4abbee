"""Changes across many servers: how long until they are public, and how far behind a server ever was.

1, 4 and 16 processes write to one store, each under a schema lease of 200 ms; another adds a constraint and an index.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import instar
from benchmarks import starting
from benchmarks.harness import Figure, Options

LEASE_SECONDS = 0.2
SERVERS = (1, 4, 16)
ROWS = 20_000
CHANGES = (
    ("ADD CONSTRAINT", "ALTER TABLE t ADD CONSTRAINT c CHECK (a >= 0)"),
    ("CREATE INDEX", "CREATE INDEX i ON t (a)"),
)
_PATIENCE_SECONDS = 60
_NEWEST = "SELECT max(version) FROM instar.schema_versions"
_HELD = "SELECT schema_version, lease_until FROM instar.servers WHERE lease_until IS NOT NULL"


def run(options: Options) -> Iterator[Figure]:
    for count in SERVERS[:2] if options.quick else SERVERS:
        yield from _measure(options.directory / f"servers-{count}", count, options.size(ROWS, ROWS))


def _measure(path: Path, count: int, rows: int) -> Iterator[Figure]:
    with closing(instar.connect(path, synchronous="off", schema_lease=LEASE_SECONDS, autocommit=True)) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b int)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(number, number, 1) for number in range(rows)])
        with _servers(path, count, rows) as processes:
            _wait_for(connection, count)
            watch = _Watch(path)
            try:
                for name, change in CHANGES:
                    yield _public(connection, f"{name} until public, {count} servers", change)
            finally:
                behind = watch.end()
            assert all(process.is_alive() for process in processes), "a server has failed"
        yield Figure(f"versions that a server was behind at most, {count} servers", behind, "", 1, "<=")
        problems = connection.execute("CHECK DATABASE").fetchall()
        yield Figure(f"problems found by CHECK DATABASE, {count} servers", len(problems), "", 0, "<=")


def _public(connection: instar.Connection, name: str, change: str) -> Figure:
    """How long a change takes; beside it, how many leases its versions wait for one after the other."""
    before = connection.execute(_NEWEST).fetchall()
    begin = time.monotonic()
    connection.execute(change)
    seconds = time.monotonic() - begin
    after = connection.execute(_NEWEST).fetchall()
    versions = after[0][0] - before[0][0]
    return Figure(
        name,
        seconds,
        "s",
        None,
        "<=",
        f"{versions} versions",
        f"leases between them {(versions - 1) * LEASE_SECONDS:g} s",
    )


@contextmanager
def _servers(path: Path, count: int, rows: int) -> Iterator[list[BaseProcess]]:
    """Processes that write, ended whatever happens."""
    stop = starting.CONTEXT.Event()
    processes = [
        starting.CONTEXT.Process(target=_serve, args=(path, number, rows, stop), daemon=True) for number in range(count)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
        stop.set()
        for process in processes:
            process.join(timeout=_PATIENCE_SECONDS)
    finally:
        for process in processes:
            process.kill()


def _wait_for(connection: instar.Connection, count: int) -> None:
    """Until so many servers beside this one hold a lease."""
    until = time.monotonic() + _PATIENCE_SECONDS
    holding = "SELECT count(*) FROM instar.servers WHERE lease_until > now() AND NOT is_worker AND NOT is_self"
    while (row := connection.execute(holding).fetchone()) is None or row[0] < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{count} servers have not come up within {_PATIENCE_SECONDS} s")
        time.sleep(0.1)


def _serve(path: Path, number: int, rows: int, stop: Event) -> None:
    """Write now and then, as a server does whose lease is to be renewed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its servers
    with closing(instar.connect(path, synchronous=None, autocommit=True)) as connection:
        turn = number
        while not stop.is_set():
            turn += 97
            connection.execute("UPDATE t SET a = a + 1 WHERE id = ?", (turn % rows,))
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
            # The version first: what a server moves on by while it is looked at may only bring it nearer. A version
            # read after it may be one that was published because the server had moved on meanwhile.
            [(newest,)] = self._connection.execute(_NEWEST).fetchall()
            held = self._connection.execute(_HELD).fetchall()
            # A lease counts if it outlived the look: one that ran out in the middle of it held for neither version.
            now = datetime.now(UTC)
            self._most = max([self._most, *(newest - version for version, until in held if until > now)])
