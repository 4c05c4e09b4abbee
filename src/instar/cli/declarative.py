"""dump, plan and apply: schemas as files."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

import typer

from instar import declarative, errors
from instar.cli import output
from instar.cli.progress import Bars, progress_bars
from instar.cli.runner import interruptible
from instar.declarative import applying, report

if TYPE_CHECKING:
    from instar.database import Session
    from instar.dbapi import Connection
    from instar.schemachange.job_records import Job

DIFFERENCES = 2  # the status of `plan --check`
_NAME_WIDTH = 40


def read(path: Path) -> declarative.SchemaFile:
    """The schema that a file makes. What is wrong with it is printed, with line and column, and ends the command."""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # not translated: carriage returns are part of texts
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8: {error.reason} at byte {error.start}"
        raise errors.error(errors.CHARACTER_NOT_IN_REPERTOIRE, message) from None
    try:
        return declarative.load(text)
    except errors.Error as error:
        before = text[: (error.position or 1) - 1]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        print(output.error_report(error, text, f"{path}:{line}:{column}: "), file=sys.stderr)
        raise typer.Exit(1) from None


def dump(connection: Connection, out: TextIO) -> None:
    """Write the live schema."""
    with interruptible(connection.session):
        out.write(declarative.dump(connection.session))


def plan(connection: Connection, file: declarative.SchemaFile, out: TextIO, *, json: bool, check: bool) -> int:
    """Show what `apply` would do; the exit status."""
    with interruptible(connection.session):
        made = declarative.make_plan(connection.session, *file)
    out.write(report.as_json(made) if json else report.as_script(made))
    return DIFFERENCES if check and made.steps else 0


def apply(connection: Connection, file: declarative.SchemaFile, out: TextIO, *, allow_destructive: bool) -> None:
    """Do it, and say what is done."""
    session = connection.session
    with progress_bars() as bars, _cancellable(session) as require_wanted, _shown(session, bars):
        made = declarative.make_plan(session, *file)

        def tell(line: str) -> None:
            out.write(f"{line}\n")
            out.flush()
            require_wanted()

        session.on_notice = lambda notice: print(output.notice_line(notice), file=sys.stderr)
        applying.apply(session, made, tell, allow_destructive=allow_destructive)
    count = len(made.steps)
    out.write("nothing to do\n" if not count else f"APPLY {count}\n")


@contextmanager
def _cancellable(session: Session) -> Iterator[Callable[[], None]]:
    """As `interruptible`; the function raises 57014 after a Ctrl-C that came between two statements too."""
    wanted = threading.Event()

    def require_wanted() -> None:
        if wanted.is_set():
            raise errors.error(errors.QUERY_CANCELED, "canceling statement due to user request")

    with interruptible(session):
        cancel = signal.getsignal(signal.SIGINT)

        def noted(number: int, frame: FrameType | None) -> None:
            wanted.set()
            if callable(cancel):
                cancel(number, frame)

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, noted)
        yield require_wanted


@contextmanager
def _shown(session: Session, bars: Bars) -> Iterator[None]:
    """A bar for each job that the session waits for."""
    reached = bars.reached("job ", 1.0)
    jobs = session.database.jobs

    def show(job: Job) -> None:
        progress = jobs.progress(job)
        share = progress.rows_done / progress.rows_total if progress.rows_total else 0.0
        reached(f"{job.id}: {job.statement[:_NAME_WIDTH]}", 1.0 if job.is_finished else share)

    session.on_wait = show
    try:
        yield
    finally:
        session.on_wait = None
