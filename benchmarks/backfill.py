"""How fast an index is built over ten million rows beside clients that read and write, and what these keep of their
throughput; beside it PostgreSQL's CREATE INDEX CONCURRENTLY on the same rows and under the same load.

Three quarters key look-ups and one quarter updates of the column that is being indexed arrive as a Poisson process, at
a fixed rate: a quarter of what Instar's clients reach at most, the same for both. Both wait for the disk in each
commit. An index is timed from the statement until it is public, so Instar's time contains the start of Spark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import instar
from benchmarks import clients, postgres
from benchmarks.clients import Latencies
from benchmarks.harness import Figure, Options, end_workers, say
from benchmarks.noise import Machine, Noise, disturbed, watched
from benchmarks.tables import fill_instar, open_instar

ROWS = 10_000_000
CLIENTS = 2
SHARE = 0.25
KEPT = 0.98
# A build of ours that has not ended by then is given up, and judged by what it has done.
LIMIT_SECONDS = 420.0
_LOOK_SECONDS = 0.1
_SAY_SECONDS = 5.0


@dataclass(frozen=True)
class _Build:
    """What was measured on one side. `rows`: those that were indexed."""

    rows: float
    seconds: float
    kept: float
    quiet: Latencies
    during: Latencies
    noise: tuple[Noise, Noise]

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(ROWS, 300_000)
    quiet = options.lasting(30.0, 3.0)
    with watched(options.directory) as machine:
        arriving, ours = _ours(options.directory / "backfill", rows, quiet, machine)
        say(f"Instar: {ours.rate:,.0f} rows/s, {ours.kept:.1%} of the throughput kept")
        try:
            version, peer = _peer(options.directory / "postgres", rows, quiet, machine, arriving)
        except postgres.Unavailable as reason:
            version, peer = f"PostgreSQL is left out: {reason}", None
            say(version)
    load = f"{rows:,} rows, {arriving:,.0f}/s arrive"
    noisy = any(disturbed(build.noise, tail=False) for build in (ours, peer) if build is not None)
    yield Figure(
        f"index backfill, {load}", ours.rate, "rows/s", None, ">=",
        f"{ours.rows:,.0f} rows in {ours.seconds:.1f} s{', given up' if ours.rows < rows else ''}",
        version if peer is None else f"{version} {peer.rate:,.0f} rows/s, {peer.seconds:.1f} s", noisy,
    )  # fmt: skip
    yield Figure(
        "foreground throughput kept", ours.kept, "x", KEPT, ">=", "", "" if peer is None else f"{peer.kept:.2f} x",
        noisy,
    )  # fmt: skip
    yield from _latencies(ours, peer)
    for name, build in (("Instar", ours), ("PostgreSQL", peer)):
        if build is not None:
            for phase, noise in zip(("quiet", "during"), build.noise, strict=True):
                yield noise.figure(f"{name}, {phase}")


def _latencies(ours: _Build, peer: _Build | None) -> Iterator[Figure]:
    def texts(build: _Build, share: int, queries: bool) -> tuple[float, str]:
        during, quiet = (seen.percentile(share, queries=queries) for seen in (build.during, build.quiet))
        return during, f"quiet {quiet:.2f} ms"

    for queries in (True, False):
        for share in (50, 99):
            during, quiet = texts(ours, share, queries)
            beside = ""
            if peer is not None:
                theirs, theirs_quiet = texts(peer, share, queries)
                beside = f"{theirs:.2f} ms, {theirs_quiet}"
            yield Figure(f"{'queries' if queries else 'writes'}, p{share}", during, "ms", None, "<=", quiet, beside)


def _ours(path: Path, rows: int, quiet: float, machine: Machine) -> tuple[float, _Build]:
    """The rate at which operations arrive, and what was measured."""
    with _ended(path), open_instar(path, "full") as connection:
        say(f"Instar: loading {rows:,} rows")
        fill_instar(connection, rows)
        os.sync()  # else the disk is busy with the load while the clients are measured
        with clients.clients(path, rows, CLIENTS) as foreground:
            arriving = SHARE * foreground.peak()
            build = _measure(
                lambda: foreground.begin(arriving, evenly=False),
                lambda: _build_ours(connection, rows),
                foreground.end,
                quiet,
                machine,
            )
    return arriving, build


@contextmanager
def _ended(path: Path) -> Iterator[None]:
    """Afterwards neither worker nor database is there to disturb the peer."""
    try:
        yield
    finally:
        end_workers(path)
        shutil.rmtree(path, ignore_errors=True)


def _peer(path: Path, rows: int, quiet: float, machine: Machine, arriving: float) -> tuple[str, _Build]:
    """What the peer is, and what was measured."""
    with postgres.running(path, "full") as server:
        say(f"{server.version}: loading {rows:,} rows")
        server.fill(rows)
        os.sync()
        foreground = postgres.Clients(server, rows, CLIENTS)
        try:
            build = _measure(
                lambda: foreground.begin(arriving), lambda: _build_peer(server, rows), foreground.end, quiet, machine
            )
        finally:
            foreground.close()
        return server.version, build


def _measure(
    begin: Callable[[], None],
    build: Callable[[], float],
    end: Callable[[], Latencies],
    quiet: float,
    machine: Machine,
) -> _Build:
    """Clients alone for `quiet` seconds, then beside the build, which returns how many rows it has done."""
    begin()
    time.sleep(1.0)
    first = time.monotonic()
    time.sleep(quiet)
    started = time.monotonic()
    rows = build()
    ended = time.monotonic()
    seen = end()
    kept = seen.completed(started, ended) / seen.completed(first, started)
    noise = machine.within(first, started), machine.within(started, ended)
    return _Build(rows, ended - started, kept, seen.within(first, started), seen.within(started, ended), noise)


def _build_ours(connection: instar.Connection, rows: int) -> float:
    def look() -> tuple[str, float, str]:
        found: tuple[str, float, str] = connection.execute(
            "SELECT state, progress, reason FROM instar.jobs WHERE kind = 'build index'"
        ).fetchall()[0]
        return found

    connection.execute("SET schema_change_mode = async")
    connection.execute("CREATE INDEX i ON t (a)")
    for seconds in _looks(lambda: f"Instar {look()[1]:.0%} {look()[2] or ''}"):
        state, progress, reason = look()
        if state == "succeeded":
            return rows
        if state in ("failed", "cancelled"):
            raise RuntimeError(f"the build has {state}: {reason}")
        if seconds > LIMIT_SECONDS:
            say(f"Instar: given up after {seconds:.0f} s")
            return progress * rows
    raise AssertionError


def _build_peer(server: postgres.Server, rows: int) -> float:
    progress = (
        "SELECT phase || ' ' || CASE WHEN blocks_total > 0 THEN blocks_done * 100 / blocks_total || '%' ELSE '' END"
        " FROM pg_stat_progress_create_index"
    )
    command = server.command("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-c", "CREATE INDEX CONCURRENTLY i ON t (a)")
    with subprocess.Popen(command) as building:
        for _ in _looks(lambda: f"PostgreSQL {server.query(progress)}"):
            if building.poll() is not None:
                break
    if building.returncode:
        raise postgres.Unavailable(f"psql ended with {building.returncode}")
    return rows


def _looks(progress: Callable[[], str]) -> Iterator[float]:
    """Seconds since the first look, again and again; how far it is is said now and then."""
    begin = said = time.monotonic()
    while True:
        now = time.monotonic()
        if now - said > _SAY_SECONDS:
            said = now
            say(f"{now - begin:4.0f} s  {progress()}")
        yield now - begin
        time.sleep(_LOOK_SECONDS)
