"""What versioned metadata costs: the first statement after another process's change, with few tables and with many; a
UNION ALL over many tables, metadata in the cache and not (MD-MVCC figure 7); versions in the cache while connections
create and drop tables (its figure 8)."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import instar
from benchmarks import starting
from benchmarks.harness import Figure, Options
from benchmarks.pictures import curves, lines
from benchmarks.tables import open_instar

TABLES = (10, 1_000, 10_000)
UNIONS = (1, 10, 25, 50, 100, 200)
CONNECTIONS = 32
CHANGES = 20
GROWTH = 2.0
# A cache of one process has its versions collected every five seconds: a window is a small part of that.
WINDOW = 0.25
_COLUMNS = ", ".join(f"c{number} int" for number in range(9))
_CREATE = f"CREATE TABLE t{{}} (id int PRIMARY KEY, {_COLUMNS})"


def run(options: Options) -> Iterator[Figure]:
    yield from _many_tables(options)
    yield from _union(options)
    yield from _coming_and_going(options)


# --- few tables and many ---------------------------------------------------------------------------------------------


def _many_tables(options: Options) -> Iterator[Figure]:
    counts = TABLES[:-1] if options.quick and len(TABLES) > 2 else TABLES
    measured: dict[str, dict[int, float]] = {}
    for count in counts:
        path = options.directory / f"metadata-{count}.instar"
        with open_instar(path) as connection, _other_process(path) as other:
            _create(connection, count)
            for name, seconds in _beside_another(connection, other).items():
                measured.setdefault(name, {})[count] = seconds * 1e6
    for name, by_count in measured.items():
        for count, microseconds in by_count.items():
            yield Figure(f"{name}, {count:,} tables", microseconds, "us")
        yield Figure(
            f"{name}, {counts[-1]:,} tables beside {counts[0]:,}", by_count[counts[-1]] / by_count[counts[0]], "x",
            GROWTH, "<=",
        )  # fmt: skip


def _create(connection: instar.Connection, count: int) -> None:
    for begin in range(0, count, 200):
        connection.execute("BEGIN")
        for number in range(begin, min(count, begin + 200)):
            connection.execute(_CREATE.format(number))
        connection.execute("COMMIT")


def _beside_another(connection: instar.Connection, other: Pipe) -> dict[str, float]:
    """Medians in seconds, of changes in another process and of the first statement here after each."""
    query = "SELECT c0 FROM t0 WHERE c1 = 1"
    connection.execute(query).fetchall()
    taken: dict[str, list[float]] = {}
    for number in range(CHANGES):
        for name, change in (
            ("CREATE TABLE", _CREATE.format(f"_new{number}")),
            ("DROP TABLE", f"DROP TABLE t_new{number}"),
        ):
            other.send(change)
            taken.setdefault(name, []).append(other.recv())
            begin = time.perf_counter()
            connection.execute(query).fetchall()
            taken.setdefault(f"first query after another's {name}", []).append(time.perf_counter() - begin)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


@contextmanager
def _other_process(path: Path) -> Iterator[Pipe]:
    """A process that executes what it is sent, and says how long it took."""
    ours, theirs = starting.CONTEXT.Pipe()
    process = starting.CONTEXT.Process(target=_execute, args=(path, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        ours.send(None)
        process.join()


def _execute(path: Path, pipe: Pipe) -> None:
    with closing(instar.connect(path, synchronous=None, autocommit=True)) as connection:
        while (statement := pipe.recv()) is not None:
            begin = time.perf_counter()
            connection.execute(statement)
            pipe.send(time.perf_counter() - begin)


# --- figure 7 --------------------------------------------------------------------------------------------------------


def _union(options: Options) -> Iterator[Figure]:
    path = options.directory / "union.instar"
    with open_instar(path) as connection:
        connection.execute("CREATE TABLE other (id int PRIMARY KEY, a int)")
        for number in range(max(UNIONS)):
            connection.execute(_CREATE.format(number))
            connection.execute(f"INSERT INTO t{number} (id) VALUES (1)")
            connection.execute(f"ALTER TABLE t{number} RENAME COLUMN c8 TO last")
    warm, cold = [], []
    for count in UNIONS:
        text = " UNION ALL ".join(f"SELECT id, last FROM t{number}" for number in range(count))
        pairs = [_compiled(path, text) for _ in range(options.rounds)]
        for points, seconds in ((cold, [pair[0] for pair in pairs]), (warm, [pair[1] for pair in pairs])):
            points.append((count, statistics.median(seconds) * 1000))
    series = {"in the cache": warm, "not in the cache": cold}
    for name, points in series.items():
        for count, milliseconds in points:
            yield Figure(f"UNION ALL of {count} tables, {name}", milliseconds, "ms")
    count = UNIONS[-1]
    yield Figure("read into the cache, per table", (cold[-1][1] - warm[-1][1]) * 1000 / count, "us")
    lines(options, "metadata-union", "tables", "milliseconds to compile and execute", series)


def _compiled(path: Path, text: str) -> tuple[float, float]:
    """Seconds that it takes to compile and execute a statement, with an empty metadata cache and with a full one."""
    with closing(instar.connect(path, synchronous=None, autocommit=True)) as connection:
        connection.execute("SELECT id, a FROM other UNION ALL SELECT a, id FROM other").fetchall()
        taken = []
        for _ in range(2):
            connection.database.plans.clear()
            gc.collect()
            begin = time.perf_counter()
            connection.execute(text).fetchall()
            taken.append(time.perf_counter() - begin)
    return taken[0], taken[1]


# --- figure 8 --------------------------------------------------------------------------------------------------------


def _coming_and_going(options: Options) -> Iterator[Figure]:
    seconds = options.lasting(60.0, 20.0)
    path = options.directory / "coming.instar"
    versions: list[float] = []
    with open_instar(path) as connection:
        done = [0] * CONNECTIONS
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=_come_and_go, args=(path, place, until, done)) for place in range(CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            time.sleep(WINDOW)
            versions.append(sum(row.versions for row in connection.database.catalog.cache.rows()))
        for thread in threads:
            thread.join()
    curves(options, "metadata-versions", "versions in the cache", {f"{CONNECTIONS} connections": versions}, WINDOW)
    half = len(versions) // 2
    early, late = max(versions[:half] or [1.0]), max(versions[half:])
    yield Figure(f"tables created and dropped, {CONNECTIONS} connections", sum(done) / seconds, "/s")
    yield Figure("versions in the cache at most", max(versions), "")
    yield Figure("versions at most, second half beside the first", late / max(early, 1.0), "x", 1.5, "<=")


def _come_and_go(path: Path, place: int, until: float, done: list[int]) -> None:
    with closing(instar.connect(path, synchronous=None, autocommit=True)) as connection:
        while time.monotonic() < until:
            name = f"temporary_{place}_{done[place]}"
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, a int)")
            connection.execute(f"INSERT INTO {name} VALUES (1, 1)")
            connection.execute(f"DROP TABLE {name}")
            done[place] += 1
