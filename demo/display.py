"""The live display on a terminal, and plain lines where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.board import Board
from demo.changes import CHANGES, Course
from demo.report import Seen, duration, milliseconds, seen, seen_lately, verdict

_SPARKS = " ▁▂▃▄▅▆▇█"
_PLAIN_EVERY = 5.0  # seconds
_WORTH_SAYING = 0.5  # seconds that clients are behind


@dataclass
class Scene:
    """What there is to show."""

    headline: str
    doing: str = "starting"
    board: Board | None = None  # once the open loop runs
    rate: float = 0.0
    quiet: Seen | None = None
    courses: list[Course] = field(default_factory=list)


class Display(Protocol):
    """Shows the scene; `note` is for what happens once."""

    def update(self, scene: Scene) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def open_display(console: Console) -> Display:
    """The display that fits the console."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """Lines: everything that happens, and the clients' figures every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._printed: float | None = None
        self._stage = ""

    def update(self, scene: Scene) -> None:
        running = scene.courses[-1] if scene.courses and scene.courses[-1].end is None else None
        stage = running.stages[-1].name if running and running.stages else ""
        if running and stage and stage != self._stage:
            self.note(f"  {running.change.title}: {stage}")
        self._stage = stage
        if scene.board is None:
            return
        if self._printed is None:  # nothing has come of the traffic yet
            self._printed = time.monotonic()
        if time.monotonic() - self._printed >= _PLAIN_EVERY:
            self._printed = time.monotonic()
            now, behind = seen_lately(scene.board)
            self.note(
                f"  {now.completed_per_second:,.0f}/s, median {milliseconds(now.median)},"
                f" p99.9 {milliseconds(now.p999)}, longest {milliseconds(now.longest)}"
                f"{_backlog(behind)}{_progress(running)}"
            )

    def note(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", markup=False, highlight=False)

    def close(self) -> None:
        """Nothing to put back."""


class LiveDisplay:
    """A screenful that is drawn anew four times a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._live.start()
        self._drawn = 0.0

    def update(self, scene: Scene) -> None:
        if time.monotonic() - self._drawn >= 0.25:
            self._drawn = time.monotonic()
            self._live.update(draw(scene, self._console.width), refresh=True)

    def note(self, text: str) -> None:
        self._live.console.print(Text(text, style="dim"))

    def close(self) -> None:
        self._live.stop()


def draw(scene: Scene, width: int) -> RenderableType:
    """The scene as a panel."""
    parts: list[RenderableType] = [Text(scene.doing, style="bold")]
    if scene.board is not None:
        parts += [Text(), _figures(scene, scene.board), Text(), _sparks(scene, scene.board, width - 24)]
    if scene.courses:
        parts += [Text(), _changes(scene.courses)]
    return Panel(Group(*parts), title=scene.headline, border_style="cyan", padding=(0, 1))


def _figures(scene: Scene, board: Board) -> Table:
    now, behind = seen_lately(board)
    ever = seen(board, 0, max(board.now, 1))
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column(_backlog(behind).removeprefix(", "), min_width=24)
    for heading in ("operations/s", "median", "p99.9", "longest stall"):
        table.add_column(heading, justify="right")
    rows = [("last second", now), ("quiet", scene.quiet), ("whole run", ever)]
    for name, figures in rows:
        if figures is not None:
            table.add_row(
                name,
                f"{figures.completed_per_second:,.0f}",
                *map(milliseconds, (figures.median, figures.p999, figures.longest)),
                style="bold" if name == "last second" else "dim",
            )
    return table


def _progress(running: Course | None) -> str:
    """Of the job of the change, if it has one."""
    if running is None or not running.stages:
        return ""
    return f", {running.share:.0%}: {running.doing}" if running.doing else f", {running.share:.0%}"


def _backlog(seconds: float) -> str:
    return f", clients are {seconds:.1f} s behind" if seconds >= _WORTH_SAYING else ""


def _sparks(scene: Scene, board: Board, width: int) -> Table:
    """Throughput (of the arrival rate) and longest latency (logarithmic) per half second."""
    last = board.now // 5 * 5
    first = max(last - 5 * max(width, 10), 0)
    table = Table.grid(padding=(0, 2))
    throughput = board.completed(first, last).reshape(-1, 5).sum(axis=1) * 2 / max(scene.rate, 1)
    longest = board.longest(first, last).reshape(-1, 5).max(axis=1, initial=0)
    table.add_row("throughput", Text(sparkline([value / 1.25 for value in throughput]), style="green"))
    table.add_row("longest stall", Text(sparkline([_log_share(value) for value in longest]), style="yellow"))
    return table


def _log_share(milliseconds_: float) -> float:
    """0 at 0.1 ms and below, 1 at 1 s."""
    return min(math.log10(max(milliseconds_, 0.1) / 0.1) / 4, 1.0)


def sparkline(shares: Sequence[float]) -> str:
    """One character per share of 1."""
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[min(max(round(share * top), 0), top)] for share in shares)


def _changes(courses: Sequence[Course]) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for heading in ("", "change", "stage", "rows reorganized", "time"):
        table.add_column(heading, min_width={"stage": 22, "rows reorganized": 24}.get(heading))
    by_change = {course.change: course for course in courses}
    for change in CHANGES:
        course = by_change.get(change)
        if course is None:
            table.add_row("·", change.title, "", "", "", style="dim")
        elif course.end is None:
            stage = course.stages[-1].name if course.stages else "planning"
            bar = ProgressBar(total=1.0, completed=course.share, width=24) if course.stages else ""
            table.add_row("▶", f"[bold]{change.title}[/]", f"[cyan]{stage}[/]", bar, "")
        else:
            rows = f"{course.rows_done:,}" if course.rows_done else "none"
            table.add_row(
                "✓" if course.is_as_expected else "✗", change.title, verdict(course), rows, duration(course.seconds)
            )
    return table
