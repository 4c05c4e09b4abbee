"""What clients notice of an index build on Spark, at a fixed arrival rate: the demonstration's harness, one change."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator

import numpy as np
from demo.board import WINDOW_NS, Board
from demo.changes import CHANGES
from demo.display import PlainDisplay
from demo.run import Demonstration
from rich.console import Console

from benchmarks.harness import Figure, Options
from benchmarks.noise import Machine, watched

KEPT = 0.98
STALL_MS = 20.0
# At half of the peak what has come up behind a stall is worked off in as much time again; and a little more.
_AFTERMATH, _MARGIN = 2.0, 0.2
# Beyond this share of a phase one standstill follows another before what waited has been worked off.
_STANDING = 0.01
_ROWS_AT_SCALE_1 = 6_000_000  # of lineitem, in TPC-H


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
        quiet_seconds=options.lasting(120.0, 5.0),
        synchronous="full",
        changes=[change for change in CHANGES if change.statement.startswith("CREATE INDEX")],
    )
    with watched(options.directory) as machine:
        outcome, board = demonstration.run(directory)
    problems = demonstration.check()
    quiet, during, course = outcome.quiet, outcome.during[0], outcome.courses[0]
    assert course.is_as_expected, course.message
    shutil.rmtree(directory)
    phases = {"quiet": outcome.quiet_windows, "during": course.windows()}
    noise = {name: machine.within(*_seconds(board, windows)) for name, windows in phases.items()}
    disturbed, tail_disturbed = (any(phase.disturbs(tail=tail) for phase in noise.values()) for tail in (False, True))
    load = f"at {share:.0%} of peak ({outcome.settings.rate:,.0f}/s)"
    judged = share <= 0.5
    kept = during.completed_per_second / outcome.settings.rate
    yield Figure(
        f"throughput kept during an index build {load}", kept, "x", KEPT if judged else None, ">=",
        f"{during.completed_per_second:,.0f}/s", f"quiet {quiet.completed_per_second:,.0f}/s", disturbed,
    )  # fmt: skip
    yield Figure(
        f"longest stall beyond the quiet run's {load}", during.longest - quiet.longest, "ms",
        STALL_MS if judged else None, "<=", f"{during.longest:.1f} ms", f"quiet {quiet.longest:.1f} ms", tail_disturbed,
    )  # fmt: skip
    stood = {name: _standstills(machine, board, windows) for name, windows in phases.items()}
    own = {name: _own_longest(board, windows, stood[name]) for name, windows in phases.items()}
    yield Figure(
        f"the same, apart from the disk's standstills {load}", own["during"] - own["quiet"], "ms",
        STALL_MS if judged else None, "<=",
        *(f"{name} {own[name]:.1f} ms; the disk stood still {_summary(stood[name])}" for name in ("during", "quiet")),
        disturbed=any(_share(board, phases[name], stood[name]) > _STANDING for name in phases),
    )  # fmt: skip
    yield Figure(
        f"p99.9 {load}", during.p999, "ms", None, "<=", f"median {during.median:.2f} ms", f"quiet {quiet.p999:.2f} ms"
    )
    yield Figure(
        f"rows backfilled {load}", course.rows_done / course.seconds, "rows/s", None, ">=", f"{course.seconds:.1f} s"
    )
    yield Figure(f"problems found by CHECK DATABASE {load}", len(problems), "", 0, "<=")
    yield from (phase.figure(f"{name} {load}") for name, phase in noise.items())


Spans = list[tuple[float, float]]


def _seconds(board: Board, windows: tuple[int, int]) -> tuple[float, float]:
    """When a phase that is given in windows of the board begins and ends, monotonic."""
    first, last = ((board.origin + window * WINDOW_NS) / 1e9 for window in windows)
    return first, last


def _standstills(machine: Machine, board: Board, windows: tuple[int, int]) -> Spans:
    """Of the disk, from the phase's beginning in seconds."""
    begin, end = _seconds(board, windows)
    return [(since - begin, until - begin) for since, until in machine.disk.standstills(begin, end)]


def _own_longest(board: Board, windows: tuple[int, int], stood: Spans) -> float:
    """The longest stall (ms) of what arrived neither while the disk stood still nor behind others that had."""
    longest = board.longest(*windows)
    at = np.arange(len(longest)) * WINDOW_NS / 1e9
    apart = np.ones(len(longest), bool)
    for since, until in stood:
        apart &= (at < since - _MARGIN) | (at > until + _AFTERMATH * (until - since) + _MARGIN)
    return float(longest[apart].max(initial=0.0))


def _share(board: Board, windows: tuple[int, int], stood: Spans) -> float:
    """Of the phase, how much the disk stood still."""
    begin, end = _seconds(board, windows)
    return sum(until - since for since, until in stood) / (end - begin)


def _summary(stood: Spans) -> str:
    took = [until - since for since, until in stood]
    return f"{len(took)} times, {max(took, default=0.0) * 1e3:.0f} ms at most"
