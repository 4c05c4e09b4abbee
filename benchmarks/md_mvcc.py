"""MD-MVCC's figure 6: what becomes of a workload when a column is added to its table in the middle.

Short transactions, long analytic queries, and both; with versioned metadata, as Instar is, and with schema locks in its
place: every statement takes a shared one, the change an exclusive one, first come, first served (SCH-S and SCH-M). Then
PostgreSQL, which has such locks, where it is installed.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event, Lock
from pathlib import Path

import numpy as np

import instar
from benchmarks import postgres, starting
from benchmarks.harness import Figure, Options, say
from benchmarks.pictures import curves
from benchmarks.tables import fill_instar, open_instar

ROWS = 300_000
CHANGE = "ALTER TABLE t ADD COLUMN added integer DEFAULT 0"
LEAST_KEPT = 0.9
# Each row beside its neighbours: some seconds of work that no index helps.
ANALYTIC = (
    "SELECT count(*), sum(x.a * y.b) FROM t AS x JOIN t AS y ON x.b = y.b"
    " WHERE x.id < {some} AND y.c <> x.c AND y.e > x.f"
)
PAIRS = 30_000_000
SHORT = ("SELECT a, name FROM t WHERE id = ?", "UPDATE t SET a = ? WHERE id = ?")
# The workloads: how many clients do short transactions, how many long queries.
WORKLOADS = {"short transactions": (2, 0), "long queries": (0, 2), "both": (1, 1)}
# What the paper saw of such workloads.
PAPER = {
    "short transactions": "a short drop on either side",
    "long queries": "blocked for over 150 s with locks, not at all without",
    "both": "blocked for over 200 s with locks, a drop of less than 10 s without",
}
_WINDOWS = 40
_WARM_UP = 0.25  # of a phase, thrown away


@dataclass(frozen=True)
class Course:
    """When operations of either kind were completed (seconds from the phase's begin), and when the change was asked for
    and made."""

    short: np.ndarray
    long: np.ndarray
    asked: float
    made: float


def run(options: Options) -> Iterator[Figure]:
    seconds = options.lasting(60.0, 6.0)
    rows = options.size(ROWS, 30_000)
    with open_instar(options.directory / "md-mvcc.instar") as connection:
        fill_instar(connection, rows)
        os.sync()  # else the disk is busy with the load in the first phase
        for workload, (short, long) in WORKLOADS.items():
            for locked in (False, True):
                course = _instar(connection, options.directory / "md-mvcc.instar", rows, (short, long), seconds, locked)
                name = f"{workload}, {'schema locks' if locked else 'versioned metadata'}"
                yield from _figures(name, workload, course, seconds, judged=not locked)
                _draw(options, name, course, seconds)
    yield from _postgres(options, rows, seconds)


# --- the clients -----------------------------------------------------------------------------------------------------


class SchemaLock:
    """A lock that statements share and a change has alone, first come, first served: a change that waits for those who
    are inside lets nobody in after it. One lock per client, and one to stand in front of."""

    def __init__(self, clients: int) -> None:
        self._door: Lock = starting.CONTEXT.Lock()
        self._inside: list[Lock] = [starting.CONTEXT.Lock() for _ in range(clients)]

    @contextmanager
    def shared(self, client: int) -> Iterator[None]:
        """SCH-S."""
        with self._door:
            self._inside[client].acquire()
        try:
            yield
        finally:
            self._inside[client].release()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """SCH-M."""
        with self._door:
            for inside in self._inside:
                inside.acquire()
            try:
                yield
            finally:
                for inside in self._inside:
                    inside.release()


def _instar(
    connection: instar.Connection, path: Path, rows: int, clients: tuple[int, int], seconds: float, locked: bool
) -> Course:
    """A phase of so many clients of either kind, with the change in its middle, which is taken back at its end."""
    lock = SchemaLock(sum(clients)) if locked else None
    ending = starting.CONTEXT.Event()
    pipes: list[Pipe] = []
    processes = []
    for number in range(sum(clients)):
        ours, theirs = starting.CONTEXT.Pipe()
        given = (path, rows, number, number >= clients[0], lock, theirs, ending)
        process = starting.CONTEXT.Process(target=_client, args=given, daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()
        begin = time.monotonic()
        time.sleep(seconds / 2)
        asked = time.monotonic() - begin
        with lock.exclusive() if lock is not None else nullcontext():
            connection.execute(CHANGE)
        made = time.monotonic() - begin
        time.sleep(max(seconds - made, seconds / 4))
        ending.set()
        done = [(np.array(pipe.recv()) - begin, number >= clients[0]) for number, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
        connection.execute("ALTER TABLE t DROP COLUMN IF EXISTS added")
    return Course(_together(done, long=False), _together(done, long=True), asked, made)


def _together(done: list[tuple[np.ndarray, bool]], *, long: bool) -> np.ndarray:
    return np.sort(np.concatenate([np.empty(0), *[times for times, is_long in done if is_long == long]]))


def _client(path: Path, rows: int, number: int, long: bool, lock: SchemaLock | None, pipe: Pipe, ending: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its clients
    connection = instar.connect(path, synchronous=None, autocommit=True)
    operate = _long(connection, rows) if long else _short(connection, rows, number)
    operate()
    guard: Callable[[], AbstractContextManager[None]] = nullcontext if lock is None else lambda: lock.shared(number)
    completed = []
    pipe.send(None)
    while not ending.is_set():
        with guard():
            operate()
        completed.append(time.monotonic())
    pipe.send(completed)
    connection.close()


def _short(connection: instar.Connection, rows: int, number: int) -> Callable[[], None]:
    """Three look-ups to one update."""
    draw = random.Random(number)

    def operate() -> None:
        key = draw.randrange(rows)
        if draw.randrange(4):
            connection.execute(SHORT[0], (key,)).fetchone()
        else:
            connection.execute(SHORT[1], (draw.randrange(1_000_000), key))

    return operate


def _long(connection: instar.Connection, rows: int) -> Callable[[], None]:
    text = _analytic(rows)

    def operate() -> None:
        connection.execute(text).fetchall()

    return operate


def _analytic(rows: int) -> str:
    """Each of so many rows meets a thousandth of all."""
    return ANALYTIC.format(some=min(rows, PAIRS * 1000 // rows))


# --- what is said of them --------------------------------------------------------------------------------------------


def _rates(times: np.ndarray, window: float, until: float) -> list[float]:
    """Completions per second, window by window."""
    edges = np.arange(0.0, until + window, window)
    return [float(count) / window for count in np.histogram(times, edges)[0]]


def _kept(times: np.ndarray, course: Course, seconds: float) -> float:
    """Throughput from the moment at which the change was asked for, for a quarter of the phase, beside that before."""
    before = ((times >= _WARM_UP * course.asked) & (times < course.asked)).sum() / ((1 - _WARM_UP) * course.asked)
    after = ((times >= course.asked) & (times < course.asked + seconds / 4)).sum() / (seconds / 4)
    return float(after / before) if before else 0.0


def _pause(times: np.ndarray, course: Course, seconds: float) -> float:
    """The longest time without a completion, of a quarter of the phase after the change was asked for."""
    near = times[(times >= course.asked) & (times < course.asked + seconds / 4)]
    return float(np.diff(np.concatenate(([course.asked], near, [course.asked + seconds / 4]))).max())


def _figures(name: str, workload: str, course: Course, seconds: float, *, judged: bool) -> Iterator[Figure]:
    for kind, times in (("short", course.short), ("long", course.long)):
        if not len(times):
            continue
        yield Figure(
            f"{name}: throughput of {kind} ones kept", _kept(times, course, seconds), "x",
            LEAST_KEPT if judged else None, ">=", f"{len(times):,} done", PAPER[workload] if judged else "",
        )  # fmt: skip
        yield Figure(f"{name}: longest time without a {kind} one", _pause(times, course, seconds), "s")
    yield Figure(f"{name}: the change took", course.made - course.asked, "s")


def _draw(options: Options, name: str, course: Course, seconds: float) -> None:
    window = seconds / _WINDOWS
    series = {
        kind: _rates(times, window, seconds)
        for kind, times in (("short", course.short), ("long", course.long))
        if len(times)
    }
    most = {kind: max(rates) or 1.0 for kind, rates in series.items()}
    shares = {f"{kind}, at most {most[kind]:,.1f}/s": [rate / most[kind] for rate in series[kind]] for kind in series}
    curves(options, f"md-mvcc-{name.replace(', ', '-').replace(' ', '-')}", "share of the most", shares, window)


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def _postgres(options: Options, rows: int, seconds: float) -> Iterator[Figure]:
    try:
        with postgres.running(options.directory / "md-mvcc-postgres", "off") as server:
            server.fill(rows)
            os.sync()
            for workload, clients in WORKLOADS.items():
                name = f"{workload}, {server.version}"
                course = _peer(server, rows, clients, seconds)
                yield from _figures(name, workload, course, seconds, judged=False)
                _draw(options, name, course, seconds)
    except postgres.Unavailable as missing:
        say(f"PostgreSQL is left out: {missing}")


def _peer(server: postgres.Server, rows: int, clients: tuple[int, int], seconds: float) -> Course:
    """The same phase: pgbench's clients, and psql's change in the middle."""
    key = f"\\set id random(0, {rows - 1})\n\\set a random(0, 999999)\n"
    look_up, update = (text.replace("a = ?", "a = :a").replace("?", ":id") + ";\n" for text in SHORT)
    scripts = (((f"{key}{look_up}", 3), (f"{key}{update}", 1)), ((f"{_analytic(rows)};\n", 1),))
    running = []
    begin = time.time()
    for kind, (count, texts) in enumerate(zip(clients, scripts, strict=True)):
        if count:
            running.append(_pgbench(server, f"kind{kind}", count, texts, seconds))
    time.sleep(seconds / 2)
    asked = time.time() - begin
    server.query(CHANGE)
    made = time.time() - begin
    for process in running:
        process.wait()
    server.query("ALTER TABLE t DROP COLUMN added")
    short, long = (_completed(server, f"kind{kind}") - begin for kind in range(2))
    return Course(short, long, asked, made)


def _pgbench(
    server: postgres.Server, prefix: str, count: int, texts: tuple[tuple[str, int], ...], seconds: float
) -> subprocess.Popen[bytes]:
    files = []
    for number, (text, share) in enumerate(texts):
        file = server.directory / f"{prefix}-{number}.sql"
        file.write_text(text)
        files.append(f"-f{file}@{share}")
    log = ("-l", "--log-prefix", str(server.directory / prefix))
    most = ("-c", str(count), "-j", str(count), "-T", str(math.ceil(seconds)))
    command = server.command("pgbench", "-n", "-M", "prepared", *most, *log, *files)
    with (server.directory / f"{prefix}.said").open("w") as said:
        return subprocess.Popen(command, stdout=said, stderr=said)


def _completed(server: postgres.Server, prefix: str) -> np.ndarray:
    """When each transaction of a pgbench was completed (seconds since the epoch); its logs are removed."""
    times: list[float] = []
    for log in server.directory.glob(f"{prefix}.[0-9]*"):
        fields = (line.split() for line in log.read_text().splitlines())
        times += [int(line[4]) + int(line[5]) / 1e6 for line in fields]
        log.unlink()
    return np.sort(np.array(times, dtype=float))
