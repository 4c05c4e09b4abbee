"""Paired measurement: ours and the peer's rounds alternate, so that noise of the machine falls on both."""

from __future__ import annotations

import gc
import math
import operator
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table


@dataclass(frozen=True)
class Options:
    """`quick`: fewer rounds and smaller tables, for a look rather than a result. `directory`: where databases go.

    `rows`, `seconds`, `repeated`: sizes of tables, lengths of phases and rounds other than a benchmark's own. `output`:
    where pictures go, if they are drawn.
    """

    quick: bool
    directory: Path
    rows: int | None = None
    seconds: float | None = None
    repeated: int | None = None
    output: Path | None = None

    @property
    def rounds(self) -> int:
        """Rounds of each side."""
        return self.repeated or (3 if self.quick else 9)

    def size(self, full: int, quick: int) -> int:
        """Rows of a table."""
        return self.rows or (quick if self.quick else full)

    def lasting(self, full: float, quick: float) -> float:
        """Seconds of a phase."""
        return self.seconds or (quick if self.quick else full)


@dataclass(frozen=True)
class Figure:
    """One result. `target` None: it is only reported. `ours` and `peer` say where a ratio comes from.

    `disturbed`: the machine was, beyond the limits of noise.py, so that the verdict says little.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    wanted: str = ">="
    ours: str = ""
    peer: str = ""
    disturbed: bool = False

    @property
    def passes(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        compare = operator.ge if self.wanted == ">=" else operator.le
        return bool(compare(self.value, self.target))


@dataclass(frozen=True)
class Pair:
    """Medians over rounds: of the ratios of neighbouring rounds, and of each side's rate (per second).

    `error`: the standard error of the first, from the quartiles of the ratios; zero of a single round.
    """

    ratio: float
    ours: float
    peer: float
    error: float = 0.0


def paired(ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> Pair:
    """Run both alternately, each `rounds` times after one that is thrown away; both return rates per second."""
    ours()
    peer()
    pairs = []
    for number in range(rounds):
        # Which goes first alternates too.
        if number % 2:
            second = peer()
            pairs.append((ours(), second))
        else:
            first = ours()
            pairs.append((first, peer()))
    ratios = [mine / other for mine, other in pairs]
    return Pair(
        statistics.median(ratios),
        statistics.median(mine for mine, _ in pairs),
        statistics.median(other for _, other in pairs),
        _error(ratios),
    )


def _error(values: Sequence[float]) -> float:
    """The standard error of a median; quartiles, because a disturbed round must not count for more than one."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, method="inclusive")
    return 1.253 * (high - low) / 1.349 / math.sqrt(len(values))


def end_workers(directory: Path) -> None:
    """End the background workers of the databases in a directory; each one's Spark ends with it."""
    workers = [process for process in psutil.process_iter(["cmdline"]) if _works_in(process.info, directory)]
    for worker in workers:
        worker.terminate()
    for late in psutil.wait_procs(workers, timeout=30)[1]:
        late.kill()


def _works_in(process: dict[str, Any], directory: Path) -> bool:
    command = process["cmdline"] or []
    # Whichever way Python was told to run it: as a module, or by a program of a line.
    return len(command) > 3 and "instar.worker" in command[2] and Path(command[3]).is_relative_to(directory)


def rate(work: Callable[[], object], count: int) -> float:
    """`count` per second of one call of `work`; the garbage of earlier rounds is collected before."""
    gc.collect()
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


def versus(name: str, pair: Pair, target: float | None, peer: str = "sqlite3", unit: str = "/s") -> Figure:
    """A ratio of two rates as a figure."""
    return Figure(name, pair.ratio, "x", target, ">=", f"{pair.ours:,.0f}{unit}", f"{peer} {pair.peer:,.0f}{unit}")


def say(text: str) -> None:
    """What a long measurement is at, beside its results."""
    print(text, file=sys.stderr, flush=True)


def show(title: str, figures: Sequence[Figure]) -> Table:
    """A table: target beside measured value."""
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "measured", "target", "", "ours", "beside"):
        table.add_column(heading, justify="left" if heading in ("figure", "") else "right")
    verdicts = {None: (), True: ("[green]met[/]",), False: ("[red]missed[/]",)}
    for figure in figures:
        target = (
            "" if figure.target is None else f"{'at least' if figure.wanted == '>=' else 'at most'} {figure.target:g}"
        )
        verdict = ", ".join((*verdicts[figure.passes], *(("[yellow]disturbed[/]",) if figure.disturbed else ())))
        table.add_row(figure.name, f"{amount(figure.value)} {figure.unit}", target, verdict, figure.ours, figure.peer)
    return table


def amount(value: float) -> str:
    """Three digits or so."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
