"""The picture of a run: throughput, latency, and what the schema went through meanwhile, on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from demo.board import WINDOWS_PER_SECOND, Board
from demo.changes import Course, Stage
from demo.histogram import quantile
from demo.report import Outcome, duration

_INK = "#1f2933"
_FAINT = "#8a97a6"
_GRID = "#e4e9ef"
_THROUGHPUT = "#0b7285"
_TAIL = "#c2255c"
_MEDIAN = "#1c7ed6"
_BRIEF = "#495057"
_STAGES = {
    "delete-only": "#ffd8a8",
    "write-only": "#a5d8ff",
    "backfill": "#63e6be",
    "fill and follow": "#63e6be",
    "public": "#b2f2bb",
    "taken back": "#ffc9c9",
    "failed": "#ff8787",
}
_OTHER_STAGE = "#dee2e6"
_HALF_SECOND = WINDOWS_PER_SECOND // 2
# Shorter changes are drawn as a line, since a span of a few milliseconds would not be seen.
_BRIEF_SECONDS = 0.5


def draw(outcome: Outcome, board: Board, paths: Sequence[Path]) -> None:
    """Write the picture to `paths`; their suffixes say as what."""
    style: Any = {
        "font.family": "sans-serif", "font.size": 10, "text.color": _INK, "axes.labelcolor": _INK,
        "axes.edgecolor": _GRID, "xtick.color": _FAINT, "ytick.color": _FAINT, "svg.hashsalt": "instar",
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(13, 7.6), layout="constrained")
        lanes, throughput, latency = figure.subplots(
            3, 1, sharex=True, height_ratios=[0.26 * len(outcome.courses) + 0.2, 2.0, 2.6]
        )
        last = _last_second(outcome)
        _lanes(lanes, outcome.courses, last)
        _throughput(throughput, outcome, board, last)
        _latency(latency, outcome, board, last)
        for axes in (throughput, latency):
            _shade(axes, outcome.courses)
        for axes in (lanes, throughput, latency):
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(length=0)
            axes.set_xlim(0, last)
        latency.set_xlabel("seconds since the clients' load began", color=_FAINT)
        _title(figure, outcome)
        for path in paths:
            figure.savefig(path, dpi=150, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)


def _last_second(outcome: Outcome) -> float:
    return max(course.windows()[1] for course in outcome.courses) / WINDOWS_PER_SECOND + 1


def _title(figure: Figure, outcome: Outcome) -> None:
    settings = outcome.settings
    figure.suptitle(
        f"{len(outcome.courses)} schema changes under {settings.rate:,.0f} operations/s",
        x=0.012, ha="left", fontsize=17, fontweight="bold",
    )  # fmt: skip
    figure.text(
        0.995, 0.985,
        f"TPC-H scale {settings.scale:g}, {sum(settings.rows.values()):,} rows · {settings.clients} clients,"
        f" {settings.share_of_peak:.0%} of their peak · synchronous {settings.synchronous}"
        f"\n{outcome.operations:,} operations · {outcome.conflicts:,} conflicts tried again · no other error",
        ha="right", va="top", color=_FAINT, fontsize=9, linespacing=1.5,
    )  # fmt: skip


def spans(course: Course) -> list[tuple[Stage, float]]:
    """The stages of a change, each with the moment at which it ended."""
    if not course.stages:
        return []
    end = course.end or course.begin
    begins = [min(stage.begin, end) for stage in course.stages[1:]]
    return list(zip(course.stages, [*begins, end], strict=True))


def _lanes(axes: Axes, courses: Sequence[Course], last: float) -> None:
    """A lane per change: its stages as bars, or a mark where it took no time that could be drawn."""
    for lane, course in enumerate(courses):
        if course.seconds < _BRIEF_SECONDS:
            axes.plot(course.begin, lane, marker="D", markersize=6, color=_BRIEF, clip_on=False)
        else:
            axes.barh(lane, course.seconds, left=course.begin, height=0.62, color=_OTHER_STAGE, linewidth=0)
            for stage, until in spans(course):
                color = _STAGES.get(stage.name, _OTHER_STAGE)
                axes.barh(lane, until - stage.begin, left=stage.begin, height=0.62, color=color, linewidth=0)
        _lane_text(axes, lane, course, last)
        for stage, until in spans(course):
            if until - stage.begin > last / 14:
                middle = (stage.begin + until) / 2
                axes.text(middle, lane, stage.name, ha="center", va="center", fontsize=8, color=_INK)
    axes.set_ylim(len(courses) - 0.4, -0.7)
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)


# A label takes up to so much of the picture's width.
_LABEL_SHARE = 0.3


def _lane_text(axes: Axes, lane: int, course: Course, last: float) -> None:
    """What the change was and how it went, on the side of its bar where there is room, else over the bar's end."""
    end = course.end or course.begin
    facts = [duration(course.seconds)]
    if course.rows_done:
        facts.append(f"{course.rows_done:,} rows")
    if course.sqlstate is not None:
        facts.append(f"{course.sqlstate}, as it must" if course.is_as_expected else course.sqlstate)
    on_the_right = last - end > course.begin
    has_room = max(last - end, course.begin) > _LABEL_SHARE * last
    at = last if not has_room else end if on_the_right else course.begin
    text = axes.annotate(
        f"{course.change.title}  ·  {', '.join(facts)}",
        (at, lane),
        xytext=(9 if has_room and on_the_right else -9, 0),
        textcoords="offset points",
        ha="left" if has_room and on_the_right else "right",
        va="center",
        fontsize=9.5,
        bbox=None if has_room else {"facecolor": "white", "edgecolor": "none", "pad": 2},
    )
    text.set_in_layout(False)


def _throughput(axes: Axes, outcome: Outcome, board: Board, last: float) -> None:
    """Completions per second, in half seconds, beside the rate of arrival."""
    halves = int(last * 2)
    counts = board.completed(0, halves * _HALF_SECOND).reshape(halves, _HALF_SECOND).sum(axis=1) * 2
    times = (np.arange(halves) + 0.5) / 2
    rate = outcome.settings.rate
    axes.axhline(rate, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        "arrivals", (last, rate), xytext=(-4, 5), textcoords="offset points", ha="right", color=_FAINT, fontsize=8.5
    )
    axes.fill_between(times, counts, color=_THROUGHPUT, alpha=0.12, linewidth=0)
    axes.plot(times, counts, color=_THROUGHPUT, linewidth=1.8)
    axes.set_ylim(0, max(rate * 1.25, float(counts.max(initial=0)) * 1.08))
    axes.set_title("operations completed per second", loc="left", fontsize=10, color=_THROUGHPUT, fontweight="bold")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _latency(axes: Axes, outcome: Outcome, board: Board, last: float) -> None:
    """Median and 99.9th percentile per second, and the longest of each 100 ms, logarithmic."""
    seconds = int(last)
    windows = (
        board.latency_windows(0, seconds * WINDOWS_PER_SECOND).reshape(seconds, WINDOWS_PER_SECOND, -1).sum(axis=1)
    )
    times = np.arange(seconds) + 0.5
    longest = board.longest(0, seconds * WINDOWS_PER_SECOND)
    shown = longest > 0
    tenths = (np.arange(len(longest)) + 0.5) / WINDOWS_PER_SECOND
    axes.plot(
        tenths[shown],
        longest[shown],
        ".",
        markersize=2.6,
        color=_FAINT,
        alpha=0.75,
        linewidth=0,
        label="longest of each 100 ms",
    )
    axes.plot(
        times, [quantile(counts, 0.999) for counts in windows], color=_TAIL, linewidth=1.8, label="99.9th percentile"
    )
    axes.plot(times, [quantile(counts, 0.5) for counts in windows], color=_MEDIAN, linewidth=1.8, label="median")
    quiet = outcome.quiet.longest
    axes.axhline(quiet, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"longest when quiet: {quiet:.1f} ms", (last, quiet), xytext=(-4, 5), textcoords="offset points",
        ha="right", color=_FAINT, fontsize=8.5,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ms"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title("latency, from the scheduled arrival", loc="left", fontsize=10, color=_TAIL, fontweight="bold")
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        borderaxespad=0.1,
        handlelength=1.4,
    )
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _shade(axes: Axes, courses: Sequence[Course]) -> None:
    """The changes behind the curves: stages as spans, brief changes as lines."""
    for course in courses:
        if course.seconds < _BRIEF_SECONDS:
            axes.axvline(course.begin, color=_BRIEF, linewidth=1, alpha=0.55)
            continue
        for stage, until in spans(course):
            axes.axvspan(stage.begin, until, color=_STAGES.get(stage.name, _OTHER_STAGE), alpha=0.28, linewidth=0)
