"""What clients notice of an index build on Spark, at a fixed arrival rate: the demonstration's harness, one change."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator

from demo.changes import CHANGES
from demo.display import PlainDisplay
from demo.run import Demonstration
from rich.console import Console

from benchmarks.harness import Figure, Options

KEPT = 0.98
STALL_MS = 20.0


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
        scale=0.02 if options.quick else 0.1,
        clients=2,
        rate=None,
        share=share,
        quiet_seconds=5.0 if options.quick else 60.0,
        synchronous="full",
        changes=[change for change in CHANGES if change.statement.startswith("CREATE INDEX")],
    )
    outcome, _ = demonstration.run(directory)
    problems = demonstration.check()
    quiet, during, course = outcome.quiet, outcome.during[0], outcome.courses[0]
    assert course.is_as_expected, course.message
    shutil.rmtree(directory)
    load = f"at {share:.0%} of peak ({outcome.settings.rate:,.0f}/s)"
    judged = share <= 0.5
    kept = during.completed_per_second / outcome.settings.rate
    yield Figure(
        f"throughput kept during an index build {load}", kept, "x", KEPT if judged else None, ">=",
        f"{during.completed_per_second:,.0f}/s", f"quiet {quiet.completed_per_second:,.0f}/s",
    )  # fmt: skip
    yield Figure(
        f"longest stall beyond the quiet run's {load}", during.longest - quiet.longest, "ms",
        STALL_MS if judged else None, "<=", f"{during.longest:.1f} ms", f"quiet {quiet.longest:.1f} ms",
    )  # fmt: skip
    yield Figure(
        f"p99.9 {load}", during.p999, "ms", None, "<=", f"median {during.median:.2f} ms", f"quiet {quiet.p999:.2f} ms"
    )
    yield Figure(
        f"rows backfilled {load}", course.rows_done / course.seconds, "rows/s", None, ">=", f"{course.seconds:.1f} s"
    )
    yield Figure(f"problems found by CHECK DATABASE {load}", len(problems), "", 0, "<=")
