"""`instar jobs`: a view of the jobs that is drawn anew while they go on, lists for people and programs, and control."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from instar import errors
from instar.cli import output
from instar.schemachange.job_records import FINISHED
from instar.schemachange.shown import DAMAGED

if TYPE_CHECKING:
    from instar.dbapi import Connection

ACTIONS = ("pause", "resume", "cancel", "set")
# Of those that have ended the live view shows the newest.
_ENDED_SHOWN = 5
_EVERY_SECONDS = 0.5
_LISTED = (
    "id", "kind", "state", "progress", "rows_done", "rows_total", "rows_per_second", "eta", "priority", "reason",
    "statement",
)  # fmt: skip
_STYLES = {
    "running": "green", "succeeded": "dim", "failed": "red", "cancelled": "dim", "reverting": "yellow",
    "paused": "yellow", "waiting": "yellow", DAMAGED: "red",
}  # fmt: skip
_OVER = frozenset({*(state.value for state in FINISHED), DAMAGED})  # nothing to wait for

Job = dict[str, Any]


def control(connection: Connection, words: Sequence[str]) -> str:
    """`pause N`, `resume N`, `cancel N`, `set N NAME=VALUE ...`; returns the statement's tag. 42601 for other words."""
    action, *rest = words
    if action not in ACTIONS or not rest or not rest[0].isdecimal() or (action == "set") != (len(rest) > 1):
        raise errors.error(
            errors.SYNTAX_ERROR,
            f"{' '.join(words)!r} is nothing to do with a job",
            hint="pause N, resume N, cancel N, or set N NAME=VALUE ...",
        )
    statement = f"{action.upper()} JOB {rest[0]}"
    if action == "set":
        statement = f"ALTER JOB {rest[0]} SET ({', '.join(map(_option, rest[1:]))})"
    connection.execute(statement)
    return statement.partition(" JOB")[0] + " JOB"


def _option(text: str) -> str:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise errors.error(errors.SYNTAX_ERROR, f"{text!r} is not NAME=VALUE")
    return f"{name} = " + (value if value == "default" else "'" + value.replace("'", "''") + "'")


def jobs(connection: Connection) -> list[Job]:
    """SHOW JOBS, by column names."""
    with connection.execute("SHOW JOBS") as cursor:
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def write(connection: Connection, out: TextIO, *, json: bool) -> None:
    """The jobs as they are now: an array of objects with all there is, or a table of what matters."""
    with connection.execute("SHOW JOBS") as cursor:
        columns = [output.Column(each[0], each[1]) for each in cursor.description or ()]
        rows = cursor.fetchall()
    if json:
        output.write_json(columns, rows, out)
        return
    places = [place for name in _LISTED for place, column in enumerate(columns) if column.name == name]
    output.write_table([columns[place] for place in places], [tuple(row[at] for at in places) for row in rows], out)


def watch(connection: Connection, console: Console) -> None:
    """Draw the jobs until none is left to wait for, or Ctrl-C."""
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                found = jobs(connection)
                live.update(draw(found, dt.datetime.now(dt.UTC)), refresh=True)
                if all(job["state"] in _OVER for job in found):
                    return
                time.sleep(_EVERY_SECONDS)
        except KeyboardInterrupt:
            return


def draw(found: Sequence[Job], now: dt.datetime) -> RenderableType:
    """The jobs as a table: all that go on, and the newest of those that have ended."""
    ended = [job for job in found if job["state"] in _OVER][-_ENDED_SHOWN:]
    shown = [*ended, *(job for job in found if job["state"] not in _OVER)]
    if not shown:
        return Text("no jobs")
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for heading, justify in (("job", "right"), ("statement", "left"), ("state", "left"), ("stage", "right"),
                             ("progress", "left"), ("", "right"), ("rows/s", "right"), ("left", "right")):  # fmt: skip
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]  # rich wants literals
    lines: list[RenderableType] = []
    for job in shown:
        table.add_row(
            str(job["id"]),
            Text(job["statement"], overflow="ellipsis", no_wrap=True),
            Text(job["state"], style=_STYLES.get(job["state"], "")),
            f"{job['stage']}/{job['stages']}" if job["stages"] else "",
            ProgressBar(total=1.0, completed=job["progress"], width=20),
            f"{job['progress']:.0%}",
            "" if not job["rows_per_second"] else f"{job['rows_per_second']:,.0f}",
            "" if job["eta"] is None else _left((job["eta"] - now).total_seconds()),
        )
        if job["reason"]:
            lines.append(Text(f"job {job['id']}: {job['reason']}", style="dim"))
    return Group(table, *lines)


def _left(seconds: float) -> str:
    minutes, rest = divmod(max(round(seconds), 0), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
