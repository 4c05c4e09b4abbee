"""Paired measurement: ours and the peer's rounds alternate, so that noise of the machine falls on both."""

from __future__ import annotations

import gc
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True)
class Options:
    """`quick`: fewer rounds and smaller tables, for a look rather than a result. `directory`: where databases go."""

    quick: bool
    directory: Path

    @property
    def rounds(self) -> int:
        """Rounds of each side."""
        return 3 if self.quick else 9


@dataclass(frozen=True)
class Figure:
    """One result. `target` None: it is only reported. `ours` and `peer` say where a ratio comes from."""

    name: str
    value: float
    unit: str
    target: float | None = None
    wanted: str = ">="
    ours: str = ""
    peer: str = ""

    @property
    def passes(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        compare = operator.ge if self.wanted == ">=" else operator.le
        return bool(compare(self.value, self.target))


@dataclass(frozen=True)
class Pair:
    """Medians over rounds: of the ratios of neighbouring rounds, and of each side's rate (per second)."""

    ratio: float
    ours: float
    peer: float


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
    return Pair(
        statistics.median(mine / other for mine, other in pairs),
        statistics.median(mine for mine, _ in pairs),
        statistics.median(other for _, other in pairs),
    )


def rate(work: Callable[[], object], count: int) -> float:
    """`count` per second of one call of `work`; the garbage of earlier rounds is collected before."""
    gc.collect()
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


def versus(name: str, pair: Pair, target: float | None, peer: str = "sqlite3", unit: str = "/s") -> Figure:
    """A ratio of two rates as a figure."""
    return Figure(name, pair.ratio, "x", target, ">=", f"{pair.ours:,.0f}{unit}", f"{peer} {pair.peer:,.0f}{unit}")


def show(title: str, figures: Sequence[Figure]) -> Table:
    """A table: target beside measured value."""
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "measured", "target", "", "ours", "beside"):
        table.add_column(heading, justify="left" if heading in ("figure", "") else "right")
    marks = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}
    for figure in figures:
        target = (
            "" if figure.target is None else f"{'at least' if figure.wanted == '>=' else 'at most'} {figure.target:g}"
        )
        table.add_row(
            figure.name, f"{amount(figure.value)} {figure.unit}", target, marks[figure.passes], figure.ours, figure.peer
        )
    return table


def amount(value: float) -> str:
    """Three digits or so."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
