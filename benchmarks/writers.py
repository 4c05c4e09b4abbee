"""Several processes that update single rows of one table without a pause, in autocommit at `off`: what they come to
together, beside sqlite3's writers in WAL mode, which wait for one another by looking again after a while; how much of
what one does alone that is; and what the slowest of a thousand take.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np

import instar
from benchmarks import starting
from benchmarks.harness import Figure, Options, paired
from benchmarks.tables import fill_instar, fill_sqlite, open_instar, open_sqlite
from benchmarks.update import STATEMENT

WRITERS = (1, 2, 4)
_SECONDS = 1.0
_WARM = 200  # updates of a process before it is measured
_PEER = "sqlite3"


class _Writers:
    """So many processes that write to one database; `seconds` of each round."""

    def __init__(self, pipes: list[Pipe], seconds: float) -> None:
        self._pipes = pipes
        self._seconds = seconds
        self.took: list[float] = []  # by update, in seconds, of all rounds

    def rate(self) -> float:
        """Updates per second of all of them together, in one round."""
        for pipe in self._pipes:
            pipe.send(self._seconds)
        rounds = [pipe.recv() for pipe in self._pipes]
        self.took += [took for found in rounds for took in found]
        return sum(len(found) / self._seconds for found in rounds)

    def p999_us(self) -> float:
        """The 99.9th percentile of an update."""
        return float(np.percentile(self.took, 99.9) * 1e6)


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(100_000, 10_000)
    seconds = options.lasting(_SECONDS, 0.3)
    ours, peer = options.directory / "writers.instar", options.directory / "writers.sqlite"
    with closing(open_instar(ours)) as connection:
        fill_instar(connection, rows)
        with closing(open_sqlite(peer, "off")) as other:
            fill_sqlite(other, rows)
        alone = None
        for count in WRITERS[:2] if options.quick else WRITERS:
            with (
                _writers("instar", ours, rows, count, seconds) as here,
                _writers(_PEER, peer, rows, count, seconds) as there,
            ):
                name = f"updates of {count} {'process' if count == 1 else 'processes'}"
                pair = paired(here.rate, there.rate, options.rounds)
                yield Figure(
                    f"{name}, without a pause", pair.ratio, "x", None, ">=",
                    f"{pair.ours:,.0f}/s, p99.9 {here.p999_us():,.0f} us",
                    f"{_PEER} {pair.peer:,.0f}/s, p99.9 {there.p999_us():,.0f} us",
                )  # fmt: skip
            if alone is None:
                alone = pair.ours
            else:
                yield Figure(f"{name} beside those of one", pair.ours / alone, "x", None, ">=")


@contextmanager
def _writers(engine: str, path: Path, rows: int, count: int, seconds: float) -> Iterator[_Writers]:
    """The processes, ended whatever happens."""
    pipes, processes = [], []
    try:
        for number in range(count):
            mine, theirs = starting.CONTEXT.Pipe()
            process = starting.CONTEXT.Process(target=_write, args=(engine, path, rows, number, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        for pipe in pipes:
            pipe.recv()
        yield _Writers(pipes, seconds)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()


def _write(engine: str, path: Path, rows: int, number: int, pipe: Pipe) -> None:
    """Write for as long as the parent says, until it closes the pipe; tell what each update took."""
    opened = instar.connect(path, synchronous=None, autocommit=True) if engine == "instar" else open_sqlite(path, "off")
    draw, now = random.Random(number), time.perf_counter
    with closing(opened) as connection:  # type: ignore[type-var] # both have close
        execute = connection.execute

        def update() -> None:
            execute(STATEMENT, (draw.randrange(10**6), draw.randrange(rows)))

        for _ in range(_WARM):
            update()
        pipe.send(None)
        try:
            while True:
                seconds, took = pipe.recv(), []
                begun = at = now()
                while at < begun + seconds:
                    update()
                    done = now()
                    took.append(done - at)
                    at = done
                pipe.send(took)
        except (EOFError, OSError):
            return
