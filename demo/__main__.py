"""Watch a database take schema changes while clients work on it.

    python -m demo [--scale 0.1] [--clients 2] [--synchronous full] [--help]

Ends with status 1 if a client saw a wrong answer or an error other than one to try again after (40001; 42P01 of a table
that is found to have been joined or split), if a change did not end as it should, or if CHECK DATABASE finds a problem.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import instar
from demo.board import Board
from demo.display import open_display
from demo.report import Outcome, changes_table, write_json
from demo.run import ClientFailed, Demonstration

_FILE_WIDTH = 140  # characters, where the output is no terminal


def main() -> int:
    """Run the demonstration; the status that the process ends with."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clients are ended, files removed then, too
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    try:
        with tempfile.TemporaryDirectory(prefix="instar-demo-") as scratch:
            return _run(arguments, console, Path(scratch))
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130


def _run(arguments: argparse.Namespace, console: Console, scratch: Path) -> int:
    path = arguments.path or scratch / "tpch.instar"
    if path.exists():
        console.print(f"{path} is there already; the demonstration wants a fresh database")
        return 2
    display = open_display(console)
    demonstration = Demonstration(
        display,
        path=path,
        scale=arguments.scale,
        clients=arguments.clients,
        rate=arguments.rate,
        quiet_seconds=arguments.seconds,
        synchronous=arguments.synchronous,
    )
    try:
        outcome, board = demonstration.run(scratch)
        problems = demonstration.check()
    except (ClientFailed, instar.Error) as failure:
        display.close()
        console.print(f"[bold red]failed[/]: {failure}", highlight=False)
        return 1
    finally:
        display.close()
    _write(outcome, board, arguments.output, console)
    return _judge(outcome, problems, console)


def _write(outcome: Outcome, board: Board, output: Path, console: Console) -> None:
    """The table on the console; the picture and the figures in `output`."""
    from demo import timeline

    output.mkdir(parents=True, exist_ok=True)
    pictures = [output / "timeline.png", output / "timeline.svg"]
    timeline.draw(outcome, board, pictures)
    write_json(outcome, output / "demo.json")
    console.print(changes_table(outcome))
    if not outcome.is_undisturbed:
        console.print(
            "[yellow]The clients could not even keep up when quiet: something else has the machine, or its disk."
            " The figures say little.[/]"
        )
    console.print(
        f"{outcome.operations:,} operations, {outcome.conflicts:,} conflicts tried again, no other error."
        f" Picture: {pictures[0]} and {pictures[1].name}",
        highlight=False,
    )


def _judge(outcome: Outcome, problems: Sequence[tuple[object, ...]], console: Console) -> int:
    for problem in problems:
        console.print(f"[bold red]CHECK DATABASE[/]: {problem}", highlight=False)
    unexpected = [course for course in outcome.courses if not course.is_as_expected]
    for course in unexpected:
        console.print(f"[bold red]{course.change.statement}[/]: {course.message or 'did not fail'}", highlight=False)
    if problems or unexpected:
        return 1
    console.print("[green]CHECK DATABASE found nothing wrong.[/]")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=0.1, help="TPC-H scale factor (0.1: 765,000 rows)")
    parser.add_argument("--clients", type=int, default=2, help="client processes")
    parser.add_argument("--rate", type=float, help="operations per second of all clients (a quarter of their peak)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the quiet baseline")
    parser.add_argument(
        "--synchronous", choices=("full", "normal", "off"), default="full", help="durability of commits"
    )
    parser.add_argument(
        "--path", type=Path, help="where the database is made, and stays (default: a temporary directory)"
    )
    parser.add_argument("--output", type=Path, default=Path("demo-out"), help="where the picture and the figures go")
    arguments = parser.parse_args()
    if arguments.scale < 0.01 or arguments.clients < 1 or arguments.seconds < 1:
        parser.error("--scale is 0.01 at least, --clients and --seconds 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
