"""PostgreSQL as a peer: a server of its own on a fresh cluster, behind a Unix socket, and pgbench's clients on it.

Nothing of it is needed but the programs of an installed PostgreSQL. What differs from its defaults: a quarter of the
memory as shared buffers, 256 MB for an index's sort, and so much write-ahead log between two checkpoints that none is
forced meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow.csv

from benchmarks.clients import QUERIES_OF_FOUR, Latencies
from benchmarks.tables import CREATE, batches

_INSTALLED = "/usr/lib/postgresql"
# The server refuses to run as root; the packages' user, or the one that owns nothing.
_UNPRIVILEGED = ("postgres", "nobody")
_USER = "bench"
_PATIENCE_SECONDS = 60
_WEEK = 604_800
_LOG = "operations"
_BUFFERED = 4096 // 20  # lines in a buffer of pgbench's log, at most, of each client


class Unavailable(Exception):
    """Why there is no such peer, or no longer, in words."""


@dataclass(frozen=True)
class Server:
    """A running server. `directory`: of its socket."""

    programs: Path
    directory: Path

    @property
    def version(self) -> str:
        """What it calls itself."""
        said = subprocess.run([self.programs / "postgres", "--version"], text=True, capture_output=True, check=True)
        return "PostgreSQL " + (re.findall(r"[0-9.]+", said.stdout) or [""])[0]

    def command(self, program: str, *options: str) -> list[str]:
        """A client program's command line."""
        return [str(self.programs / program), "-h", str(self.directory), "-U", _USER, *options, "postgres"]

    def query(self, text: str) -> str:
        """A statement's result as psql prints it, unaligned."""
        command = self.command("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text)
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode:
            raise Unavailable(done.stderr.strip())
        return done.stdout.strip()

    def fill(self, rows: int) -> None:
        """Make and fill the table t."""
        options = ("-Xq1", "-v", "ON_ERROR_STOP=1", "-c", CREATE.format(name="t"))
        command = self.command("psql", *options, "-c", "COPY t FROM STDIN (FORMAT csv, FREEZE)")
        with subprocess.Popen(command, stdin=subprocess.PIPE) as copying:
            assert copying.stdin is not None
            _write_csv(copying.stdin, rows)
        if copying.returncode:
            raise Unavailable(f"psql could not load the rows, and ended with {copying.returncode}")
        self.query("ANALYZE t")
        self.query("CHECKPOINT")


def _write_csv(to: IO[bytes], rows: int) -> None:
    source = batches(rows)
    first = next(source)
    options = pyarrow.csv.WriteOptions(include_header=False)
    with pyarrow.csv.CSVWriter(to, first.schema, write_options=options) as writer:
        writer.write_batch(first)
        for batch in source:
            writer.write_batch(batch)


def programs() -> Path:
    """Where the programs lie: on the path, or where Debian has the newest version's."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    installed = sorted(Path(_INSTALLED).glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not installed:
        raise Unavailable(f"no initdb on PATH, nor in {_INSTALLED}")
    return installed[-1].parent


@contextmanager
def running(directory: Path, synchronous: str) -> Iterator[Server]:
    """A server in a fresh directory, ended and removed whatever happens."""
    found = programs()
    user = _unprivileged()
    directory.mkdir()
    if user is not None:
        os.chown(directory, pwd.getpwnam(user).pw_uid, -1)
        directory.parent.chmod(0o711)  # a directory within a private one cannot be reached
    server = Server(found, directory)
    process = _start(server, user, "on" if synchronous == "full" else "off")
    try:
        _wait_for(server, process)
        yield server
    finally:
        process.send_signal(signal.SIGINT)  # without waiting for clients
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)  # its children too
            process.wait()
        shutil.rmtree(directory)


def _unprivileged() -> str | None:
    if os.geteuid():
        return None
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise Unavailable(f"it does not run as root, and there is no user {' or '.join(_UNPRIVILEGED)}")


def _start(server: Server, user: str | None, durable: str) -> subprocess.Popen[bytes]:
    log = server.directory / "log"
    data = server.directory / "data"
    options = ["-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    unprivileged = {"user": user, "group": user and pwd.getpwnam(user).pw_gid, "extra_groups": [] if user else None}
    made = subprocess.run(
        [server.programs / "initdb", *options], capture_output=True, text=True, check=False, **unprivileged, cwd="/"
    )
    if made.returncode:
        raise Unavailable(f"initdb: {made.stderr.strip().splitlines()[-1]}")
    buffers = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 // 2**20
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": server.directory,
        "fsync": durable,
        "synchronous_commit": durable,
        "shared_buffers": f"{buffers}MB",
        "maintenance_work_mem": "256MB",
        "max_wal_size": "16GB",
    }
    command = [server.programs / "postgres", "-D", data]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    with log.open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, cwd="/", **unprivileged)


def _wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while subprocess.run(server.command("pg_isready", "-q", "-d"), check=False).returncode:
        if process.poll() is not None or time.monotonic() > until:
            said = (server.directory / "log").read_text().strip().splitlines()
            raise Unavailable(f"the server has not come up: {said[-1] if said else 'it says nothing'}")
        time.sleep(0.1)


class Clients:
    """pgbench with `count` clients on the table t: the operations of clients.py, arriving as a Poisson process."""

    def __init__(self, server: Server, rows: int, count: int) -> None:
        self._directory = server.directory
        for name, (text, _) in _scripts(rows).items():
            (self._directory / name).write_text(text)
        files = [f"-f{self._directory / name}@{share}" for name, (_, share) in _scripts(rows).items()]
        many = ("-c", str(count), "-j", str(count), "-T", str(_WEEK))
        log = ("-l", "--log-prefix", str(self._directory / _LOG))
        self._command = server.command("pgbench", "-n", "-M", "prepared", *many, *log, *files)
        self._process: subprocess.Popen[bytes] | None = None
        self._rate = 0.0

    def begin(self, rate: float) -> None:
        """Let `rate` operations per second arrive, from now on."""
        self._rate = rate
        # The last argument is the database.
        command = [*self._command[:-1], "-R", f"{rate:.2f}", self._command[-1]]
        with (self._directory / "pgbench").open("w") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)

    def end(self) -> Latencies:
        """Stop, and say what was seen, but for the last operations: pgbench writes its log a buffer at a time."""
        assert self._process is not None
        time.sleep(1.0 + 2 * _BUFFERED / self._rate)
        if self._process.poll() is not None:
            raise Unavailable(f"pgbench: {(self._directory / 'pgbench').read_text().strip()}")
        self.close()
        return read_logs(self._directory.glob(f"{_LOG}.*"), time.monotonic() - time.time())

    def close(self) -> None:
        """End the clients."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _scripts(rows: int) -> dict[str, tuple[str, int]]:
    """pgbench's scripts, each with how often it is drawn; queries first."""
    key = f"\\set id random(0, {rows - 1})\n"
    return {
        "query": (f"{key}SELECT a, name FROM t WHERE id = :id;\n", QUERIES_OF_FOUR),
        "write": (
            f"{key}\\set a random(0, 999999)\nUPDATE t SET a = :a, note = 'written' WHERE id = :id;\n",
            4 - QUERIES_OF_FOUR,
        ),
    }


def read_logs(logs: Iterable[Path], offset: float) -> Latencies:
    """pgbench's logs of transactions, the last line of each being cut off; `offset` is added to the wall clock's time.

    A line has: client, its transaction, microseconds since the arrival, script, seconds and microseconds of the end,
    microseconds from arrival to start.
    """
    table = np.loadtxt([line for log in logs for line in log.read_text().split("\n")[:-1]], ndmin=2)
    took, script, seconds, micros = table[:, 2:6].T
    return Latencies(seconds + offset + micros / 1e6 - took / 1e6, took / 1e3, script == 0)
