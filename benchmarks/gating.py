"""gate.py's measurement as figures: single-row commits beside gated background work, without and with fsync."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import gate
from benchmarks.harness import Figure, Options


def run(options: Options) -> Iterator[Figure]:
    for synchronous, (kept, moved) in gate.WANTED.items():
        found = gate.measure(synchronous, options.lasting(1.0, 0.5), options.rounds, str(options.directory))
        numbers = {name: float(value) for name, value in found.items() if name != "synchronous"}
        yield Figure(
            f"commits kept beside background work, {synchronous}", numbers["kept"], "x", kept, ">=",
            f"{numbers['busy_per_second']:,.0f}/s", f"quiet {numbers['quiet_per_second']:,.0f}/s",
        )  # fmt: skip
        yield Figure(
            f"background rows meanwhile, {synchronous}", numbers["background_rows_per_second"], "rows/s", moved, ">="
        )
        yield Figure(
            f"p99.9 of a commit, {synchronous}", numbers["busy_p999_ms"], "ms", None, "<=", "",
            f"quiet {numbers['quiet_p999_ms']:.2f} ms",
        )  # fmt: skip
