"""What clients notice of an index build on Spark, at a fixed arrival rate: the demonstration's harness, one change.

A single longest stall says as much of the machine as of the program. So there is a second quiet phase, after the build:
by how much its longest stall differs from that of the first is what the machine does by itself, and where that is more
than the build may do, the run cannot tell. What it can tell is the longest stall of ten seconds, which is there a dozen
times in each phase: how much longer that is beside the build, on average, and how far off that mean may be.
"""

from __future__ import annotations

import io
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from demo.board import WINDOW_NS, WINDOWS_PER_SECOND, Board
from demo.changes import CHANGES
from demo.display import PlainDisplay
from demo.report import Seen, seen
from demo.run import Demonstration
from rich.console import Console

from benchmarks.harness import Figure, Options
from benchmarks.noise import Machine, Noise, disturbed, watched

KEPT = 0.98
STALL_MS = 20.0
# At half of the peak what has come up behind a stall is worked off in as much time again; and a little more.
_AFTERMATH, _MARGIN = 2.0, 0.2
# Beyond this share of a phase one standstill follows another before what waited has been worked off.
_STANDING = 0.01
_ROWS_AT_SCALE_1 = 6_000_000  # of lineitem, in TPC-H
_PART_SECONDS = 10


def run(options: Options) -> Iterator[Figure]:
    # The second share is beyond what is promised, and is reported to show how near the edge the first is.
    for share in (0.5,) if options.quick else (0.5, 0.75):
        yield from _measure(options, share)


def _measure(options: Options, share: float) -> Iterator[Figure]:
    directory = options.directory / f"stalls-{share}"
    directory.mkdir()
    demonstration = Demonstration(
        PlainDisplay(Console(file=io.StringIO())),
        path=directory / "tpch.instar",
        scale=options.size(600_000, 120_000) / _ROWS_AT_SCALE_1,
        clients=2,
        rate=None,
        share=share,
        calibration_seconds=options.lasting(40.0, 1.0),
        quiet_seconds=options.lasting(120.0, 5.0),
        quiet_again_seconds=options.lasting(120.0, 5.0),
        synchronous="full",
        changes=[change for change in CHANGES if change.statement.startswith("CREATE INDEX")],
    )
    with watched(options.directory) as machine:
        outcome, board = demonstration.run(directory)
    problems = demonstration.check()
    course, rate = outcome.courses[0], outcome.settings.rate
    assert course.is_as_expected, course.message
    shutil.rmtree(directory)
    quiet, during, again = (
        _phase(machine, board, windows)
        for windows in (outcome.quiet_windows, course.windows(), outcome.quiet_again_windows)
    )
    load = f"at {share:.0%} of peak ({rate:,.0f}/s)"
    judged = share <= 0.5
    yield Figure(
        f"throughput kept during an index build {load}", during.seen.completed_per_second / rate, "x",
        KEPT if judged else None, ">=", f"{during.seen.completed_per_second:,.0f}/s",
        f"quiet {quiet.seen.completed_per_second:,.0f}/s",
        disturbed((quiet.noise, during.noise), tail=False),
    )  # fmt: skip
    yield from _longest(quiet, during, again, load, STALL_MS if judged else None)
    yield _usual(during, [quiet, again], load, STALL_MS if judged else None)
    yield Figure(
        f"p99.9 {load}", during.seen.p999, "ms", None, "<=",
        f"median {during.seen.median:.2f} ms", f"quiet {quiet.seen.p999:.2f} ms",
    )  # fmt: skip
    yield Figure(
        f"rows backfilled {load}", course.rows_done / course.seconds, "rows/s", None, ">=", f"{course.seconds:.1f} s"
    )
    yield Figure(f"problems found by CHECK DATABASE {load}", len(problems), "", 0, "<=")
    for name, phase in {"quiet": quiet, "during": during, "quiet again": again}.items():
        yield phase.noise.figure(f"{name} {load}")


def _longest(quiet: _Phase, during: _Phase, again: _Phase, load: str, target: float | None) -> Iterator[Figure]:
    """The longest stalls, each beside that of the quiet phase: as they were, and apart from the disk's standstills."""
    noisy = disturbed((phase.noise for phase in (quiet, during, again)), tail=False)
    by_itself = again.seen.longest - quiet.seen.longest
    yield Figure(
        f"longest stall beyond the quiet run's {load}", during.seen.longest - quiet.seen.longest, "ms", target, "<=",
        f"{during.seen.longest:.1f} ms", f"quiet {quiet.seen.longest:.1f} ms", noisy or abs(by_itself) > STALL_MS,
    )  # fmt: skip
    yield Figure(
        f"the same of a second quiet phase {load}", by_itself, "ms", None, "<=",
        f"{again.seen.longest:.1f} ms", f"quiet {quiet.seen.longest:.1f} ms",
    )  # fmt: skip
    stood = any(phase.standing > _STANDING for phase in (quiet, during, again))
    yield Figure(
        f"the same, apart from the disk's standstills {load}", during.own - quiet.own, "ms", target, "<=",
        f"{during.own:.1f} ms; {_summary(during.stood)}", f"quiet {quiet.own:.1f} ms; {_summary(quiet.stood)}",
        noisy or stood or abs(again.own - quiet.own) > STALL_MS,
    )  # fmt: skip


def _usual(during: _Phase, quiet: list[_Phase], load: str, target: float | None) -> Figure:
    """The longest stall of ten seconds, on average of a phase, with twice the standard error of the mean."""
    beside = [longest for phase in quiet for longest in phase.parts]
    means = [statistics.fmean(found or [0.0]) for found in (during.parts, beside)]
    off = [2 * statistics.stdev(found) / len(found) ** 0.5 if found[1:] else 0.0 for found in (during.parts, beside)]
    return Figure(
        f"longest stall of {_PART_SECONDS} s, on average, beyond the quiet run's {load}", means[0] - means[1], "ms",
        target, "<=", f"{means[0]:.1f} ms +- {off[0]:.1f}", f"quiet {means[1]:.1f} ms +- {off[1]:.1f}",
        disturbed((phase.noise for phase in (during, *quiet)), tail=False),
    )  # fmt: skip


Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class _Phase:
    """What clients saw, what the machine did, and when its disk stood still (seconds from the phase's beginning), for
    which share of the phase; `own`: the longest stall (ms) that is not the disk's; `parts`: the longest of each ten
    seconds."""

    seen: Seen
    noise: Noise
    stood: Spans
    standing: float
    own: float
    parts: list[float]


def _phase(machine: Machine, board: Board, windows: tuple[int, int]) -> _Phase:
    begin, end = _seconds(board, windows)
    stood = [(since - begin, until - begin) for since, until in machine.disk.standstills(begin, end)]
    own = _own_longest(board, windows, stood)
    share, parts = _share(board, windows, stood), _longest_of_parts(board, windows)
    return _Phase(seen(board, *windows), machine.within(begin, end), stood, share, own, parts)


def _seconds(board: Board, windows: tuple[int, int]) -> tuple[float, float]:
    """When a phase that is given in windows of the board begins and ends, monotonic."""
    first, last = ((board.origin + window * WINDOW_NS) / 1e9 for window in windows)
    return first, last


def _own_longest(board: Board, windows: tuple[int, int], stood: Spans) -> float:
    """The longest stall (ms) of what arrived neither while the disk stood still nor behind others that had."""
    longest = board.longest(*windows)
    at = np.arange(len(longest)) * WINDOW_NS / 1e9
    apart = np.ones(len(longest), bool)
    for since, until in stood:
        apart &= (at < since - _MARGIN) | (at > until + _AFTERMATH * (until - since) + _MARGIN)
    return float(longest[apart].max(initial=0.0))


def _longest_of_parts(board: Board, windows: tuple[int, int]) -> list[float]:
    """The longest stall (ms) of each ten seconds; what is left at the end is no part."""
    longest, size = board.longest(*windows), _PART_SECONDS * WINDOWS_PER_SECOND
    return [float(longest[at : at + size].max()) for at in range(0, len(longest) - size + 1, size)]


def _share(board: Board, windows: tuple[int, int], stood: Spans) -> float:
    """Of the phase, how much the disk stood still."""
    begin, end = _seconds(board, windows)
    return sum(until - since for since, until in stood) / (end - begin)


def _summary(stood: Spans) -> str:
    took = [until - since for since, until in stood]
    return f"the disk stood still {len(took)} times, {max(took, default=0.0) * 1e3:.0f} ms at most"
