"""The gate: what background work costs foreground commits, and how fast it gets on beside them.

One process commits single-row updates as fast as it can; another moves sorted rows through `Store.background`, each
step reading a row and putting an index entry as a backfill does. Short runs with and without the background process
alternate, and medians of each are compared, so that noise of the machine falls on both. Prints a table, then JSON.

    python benchmarks/gate.py [--seconds 1.0] [--rounds 5] [--directory DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import Synchronized

from rich.console import Console
from rich.table import Table

from benchmarks import starting
from instar.store import open_store
from instar.store.engine import (
    ENTRY_VALUE,
    ROW_HEADER,
    Commit,
    RowWrite,
    Section,
    Store,
    TableWrites,
    prefix_end,
    rowset_prefix,
)

ROWS = 100_000
BODY = bytes(60)
TABLE = 1
ROWSET = 1
INDEX = 2

# What the gate promises: share of the foreground's rate kept, background rows per second.
WANTED = {"off": (0.7, 30_000), "full": (0.7, 5_000)}


def row_key(number: int) -> bytes:
    return rowset_prefix(ROWSET) + number.to_bytes(8, "big")


def load(store: Store) -> None:
    """Fill the table."""
    for start in range(0, ROWS, 10_000):
        rows = [RowWrite(row_key(number), None, BODY, 1) for number in range(start, start + 10_000)]
        store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows)]))


def foreground(store: Store, seconds: float, seed: int) -> tuple[float, float]:
    """Single-row updates for `seconds`: (commits per second, 99.9th percentile in milliseconds)."""
    draw = random.Random(seed).randrange
    clock = time.perf_counter
    latencies: list[float] = []
    begin = clock()
    end = begin + seconds
    before = begin
    while before < end:
        key = row_key(draw(ROWS))
        with store.read() as reader:
            stored = reader.get(key)
        store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, [RowWrite(key, stored, BODY, 1)])]))
        after = clock()
        latencies.append(after - before)
        before = after
    latencies.sort()
    return len(latencies) / (before - begin), latencies[int(len(latencies) * 0.999)] * 1000


def background(path: str, running: Synchronized[int], moved: Synchronized[int]) -> None:
    """Set `running` to 0, then move rows while it is 1, until it is 2."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    store = open_store(path)
    running.value = 0
    prefix = rowset_prefix(INDEX)
    done = 0

    def step_for(number: int) -> Callable[[Section], None]:
        key = row_key(number)

        def step(section: Section) -> None:
            stored = section.get(key)
            assert stored is not None
            section.put(prefix + key[5:], ENTRY_VALUE.pack(ROW_HEADER.unpack_from(stored)[0], 1, 0))

        return step

    def steps() -> Iterator[Callable[[Section], None]]:
        nonlocal done
        while running.value == 1:
            yield step_for(done % ROWS)
            done += 1

    while running.value != 2:
        if running.value == 1:
            store.background(steps())
            moved.value = done
        else:
            time.sleep(0.001)
    store.close()


def measure(synchronous: str, seconds: float, rounds: int, parent: str | None) -> dict[str, float | str]:
    """Alternate quiet and busy runs; medians."""
    quiet: list[tuple[float, float]] = []
    busy: list[tuple[float, float]] = []
    speeds: list[float] = []
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        path = os.path.join(directory, "store")
        store = open_store(path, synchronous=synchronous)
        load(store)
        running, moved = starting.CONTEXT.Value("i", 3), starting.CONTEXT.Value("q", 0)
        worker = starting.CONTEXT.Process(target=background, args=(path, running, moved), daemon=True)
        worker.start()
        while running.value == 3:  # what it takes to start is not measured
            assert worker.exitcode is None
            time.sleep(0.01)
        for number in range(rounds):
            quiet.append(foreground(store, seconds, number))
            before = moved.value
            running.value = 1
            begin = time.perf_counter()
            busy.append(foreground(store, seconds, number))
            running.value = 0
            span = time.perf_counter() - begin
            time.sleep(0.05)
            speeds.append((moved.value - before) / span)
        running.value = 2
        worker.join()
        store.commit(Commit(catalog_version=0))
        with store.read() as reader:
            assert len(reader.batch(rowset_prefix(INDEX), prefix_end(rowset_prefix(INDEX)), ROWS)[0]) > 0
        store.close()
    kept = statistics.median(after[0] / before[0] for before, after in zip(quiet, busy, strict=True))
    return {
        "synchronous": synchronous,
        "quiet_per_second": statistics.median(rate for rate, _p in quiet),
        "busy_per_second": statistics.median(rate for rate, _p in busy),
        "kept": kept,
        "background_rows_per_second": statistics.median(speeds),
        "quiet_p999_ms": statistics.median(p for _rate, p in quiet),
        "busy_p999_ms": statistics.median(p for _rate, p in busy),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where the stores are put (default: the system's temporary directory)")
    arguments = parser.parse_args()
    results = [measure(mode, arguments.seconds, arguments.rounds, arguments.directory) for mode in WANTED]
    table = Table(title="Foreground commits beside gated background work (medians)")
    for heading in (
        "synchronous",
        "quiet/s",
        "busy/s",
        "kept",
        "wanted",
        "background rows/s",
        "wanted",
        "p99.9 quiet",
        "p99.9 busy",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        kept, rows = WANTED[str(result["synchronous"])]
        table.add_row(
            str(result["synchronous"]),
            f"{result['quiet_per_second']:,.0f}",
            f"{result['busy_per_second']:,.0f}",
            f"{result['kept']:.0%}",
            f"{kept:.0%}",
            f"{result['background_rows_per_second']:,.0f}",
            f"{rows:,}",
            f"{result['quiet_p999_ms']:.2f} ms",
            f"{result['busy_p999_ms']:.2f} ms",
        )
    Console(width=120).print(table)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
