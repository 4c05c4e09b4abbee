"""Measure, and print targets beside what was measured.

    python -m benchmarks [--quick] [--check] [--rows N] [name ...]

Results go to bench-out/results.json as well, and pictures beside it. With --check the status is 1 if a target was
missed. When it is interrupted it ends what it has started, and shows and writes what it has measured so far; the status
is 130.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.harness import Figure, Options, end_workers, show

_FILE_WIDTH = 140  # characters, where the output is no terminal
NAMES = (
    "lookup",
    "update",
    "statements",
    "bulk_insert",
    "scan",
    "ddl",
    "versions",
    "layouts",
    "md_mvcc",
    "migration",
    "metadata",
    "tpc_like",
    "curve",
    "gating",
    "writers",
    "leases",
    "servers",
    "reorganization",
    "stalls",
    "backfill",
    "join_and_split",
)


def main() -> int:
    """Run the benchmarks that were named, or all."""
    arguments = _arguments()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    results: dict[str, list[Figure]] = {}
    # Whoever ends this process means what it has started too: servers, clients, workers.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    interrupted = False
    for name in arguments.names or NAMES:
        begin = time.monotonic()
        figures = results[name] = []
        try:
            _measure(name, arguments, figures)
        except KeyboardInterrupt:
            interrupted = True
        console.print(show(f"{name} ({time.monotonic() - begin:.0f} s)", figures))
        if interrupted:
            console.print("interrupted")
            break
    _write(arguments.output, results, quick=arguments.quick)
    missed = [figure for figures in results.values() for figure in figures if figure.passes is False]
    for figure in missed:
        console.print(f"[red]missed[/]{' (disturbed)' if figure.disturbed else ''} {figure.name}")
    return 130 if interrupted else 1 if arguments.check and missed else 0


def _measure(name: str, arguments: argparse.Namespace, figures: list[Figure]) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    with tempfile.TemporaryDirectory(prefix="instar-bench-", dir=arguments.directory) as directory:
        try:
            for figure in module.run(_options(arguments, Path(directory))):
                figures.append(figure)  # noqa: PERF402 - those before an interruption are kept
        finally:
            end_workers(Path(directory))


def _options(arguments: argparse.Namespace, directory: Path) -> Options:
    return Options(arguments.quick, directory, arguments.rows, output=arguments.output)


def _write(output: Path, results: dict[str, list[Figure]], *, quick: bool) -> None:
    output.mkdir(parents=True, exist_ok=True)
    report = {
        "quick": quick,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "results": {
            name: [{**asdict(figure), "passes": figure.passes} for figure in figures]
            for name, figures in results.items()
        },
    }
    (output / "results.json").write_text(json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="name", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller tables")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of the tables (default: each benchmark's own)")
    parser.add_argument("--check", action="store_true", help="status 1 if a target is missed")
    parser.add_argument("--directory", type=Path, help="where databases are put (default: the temporary directory)")
    parser.add_argument("--output", type=Path, default=Path("bench-out"), help="where results.json and pictures go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
