"""The figures of a run: what the clients saw in a stretch of time, the table per change, and demo.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from demo.board import WINDOWS_PER_SECOND, Board
from demo.changes import Course
from demo.histogram import quantile


@dataclass(frozen=True)
class Seen:
    """What the clients saw in a stretch of time. Latencies in milliseconds, counted from the scheduled arrival."""

    seconds: float
    completed_per_second: float
    median: float
    p999: float
    longest: float


def seen(board: Board, first: int, last: int) -> Seen:
    """What the clients saw in the windows [first, last)."""
    counts = board.latencies(first, last)
    seconds = (last - first) / WINDOWS_PER_SECOND
    return Seen(
        seconds=seconds,
        completed_per_second=float(board.completed(first, last).sum()) / seconds,
        median=quantile(counts, 0.5),
        p999=quantile(counts, 0.999),
        longest=float(board.longest(first, last).max(initial=0.0)),
    )


def seen_lately(board: Board) -> tuple[Seen, float]:
    """What the clients saw of the last second that was answered, and by how many seconds they are behind.

    The throughput is that of the last second by the clock, whatever was answered in it.
    """
    now, answered = board.now, board.answered
    lately = seen(board, max(answered - WINDOWS_PER_SECOND, 0), max(answered, 1))
    completed = board.completed(max(now - WINDOWS_PER_SECOND, 0), max(now, 1)).sum()
    behind = (now - answered) / WINDOWS_PER_SECOND
    return dataclasses.replace(lately, completed_per_second=float(completed)), behind


@dataclass(frozen=True)
class Settings:
    """What the run was asked for, and what it found out about the machine."""

    scale: float
    clients: int
    synchronous: str
    peak: float  # operations per second in the calibration
    rate: float  # arrivals per second in the open loop
    rows: dict[str, int]

    @property
    def share_of_peak(self) -> float:
        """The rate as a share of the peak."""
        return self.rate / self.peak


@dataclass(frozen=True)
class Outcome:
    """A whole run."""

    settings: Settings
    quiet: Seen
    quiet_windows: tuple[int, int]
    quiet_again_windows: tuple[int, int]
    courses: Sequence[Course]
    during: Sequence[Seen]  # one per course
    operations: int
    conflicts: int

    @property
    def is_undisturbed(self) -> bool:
        """Whether the clients kept up while nothing but they was going on: else something else had the machine."""
        return self.quiet.completed_per_second > 0.98 * self.settings.rate


def changes_table(outcome: Outcome) -> Table:
    """A row per change."""
    quiet, rate = outcome.quiet, outcome.settings.rate
    table = Table(
        title="Schema changes under load",
        caption=(
            f"{outcome.settings.rate:,.0f} operations/s arrive at fixed times ({outcome.settings.share_of_peak:.0%} of"
            " the peak); latencies count from the scheduled arrival.\nThroughput kept: completed of what arrived. A"
            " change is judged from its start to its end, and for at least three seconds."
        ),
        caption_justify="left",
    )
    for heading in ("change", "outcome"):
        table.add_column(heading)
    for heading in ("duration", "throughput kept", "median", "p99.9", "longest stall", "rows reorganized"):
        table.add_column(heading, justify="right")
    table.add_row("quiet", "", duration(quiet.seconds), *_cells(quiet, rate), style="dim")
    table.add_section()
    for course, during in zip(outcome.courses, outcome.during, strict=True):
        table.add_row(
            course.change.title,
            verdict(course),
            duration(course.seconds),
            *_cells(during, rate),
            f"{course.rows_done:,}",
        )
    return table


def _cells(during: Seen, rate: float) -> tuple[str, str, str, str]:
    return (
        f"{during.completed_per_second / rate:.1%}",
        milliseconds(during.median),
        milliseconds(during.p999),
        milliseconds(during.longest),
    )


def verdict(course: Course) -> str:
    """How the change ended, with rich's markup."""
    if course.end is None:
        return "running"
    if not course.is_as_expected:
        return f"[bold red]{course.sqlstate or 'should have failed'}[/]"
    return f"[yellow]{course.sqlstate}, as it must[/]" if course.sqlstate else "[green]done[/]"


def duration(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.1f} s" if seconds >= 1 else milliseconds(seconds * 1000)


def milliseconds(value: float) -> str:
    """A latency for people."""
    if value != value:
        return "-"
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def write_json(outcome: Outcome, path: Path) -> None:
    """All figures, for programs."""
    path.write_text(json.dumps(dataclasses.asdict(outcome), indent=1) + "\n")
