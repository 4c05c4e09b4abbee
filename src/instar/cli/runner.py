"""Runs statements in a session and prints what comes back: the same at the prompt, from a file and from a pipe."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TextIO

import msgspec

from instar import errors
from instar.catalog.descriptors import is_seen
from instar.cli import output
from instar.cli.statements import Piece

if TYPE_CHECKING:
    from instar.catalog.descriptors import Object
    from instar.database import Session


class Settings(msgspec.Struct):
    """What backslash commands and options change."""

    format: output.Format = "table"
    timing: bool = False
    out: TextIO = msgspec.field(default_factory=lambda: sys.stdout)
    err: TextIO = msgspec.field(default_factory=lambda: sys.stderr)


class Runner:
    """Runs statements one after the other in one session."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._session.on_notice = self._print_notice
        self.settings = settings

    def run(self, statement: str, place: str = "") -> bool:
        """Run one statement and print its result or its error; False after an error. `place` names where it stands."""
        started = time.perf_counter()
        try:
            with interruptible(self._session):
                self._execute(statement)
        except errors.Error as error:
            self.settings.out.flush()
            print(output.error_report(error, statement, place), file=self.settings.err)
            return False
        except KeyboardInterrupt:
            # A second Ctrl-C, where the statement did not hear the first.
            print(f"ERROR:  {errors.QUERY_CANCELED}: canceling statement due to user request", file=self.settings.err)
            return False
        if self.settings.timing:
            print(f"Time: {(time.perf_counter() - started) * 1000:.3f} ms", file=self.settings.out)
        self.settings.out.flush()
        return True

    def _execute(self, statement: str) -> None:
        result = self._session.execute(statement)
        if result.columns is not None:
            columns = [output.Column(name, type_.kind.value) for name, type_ in result.columns]
            output.WRITERS[self.settings.format](columns, result.shown(), self.settings.out)
        elif self.settings.format in ("table", "expanded"):
            print(output.command_tag(result.command, result.rowcount), file=self.settings.out)

    def _print_notice(self, notice: str) -> None:
        print(output.notice_line(notice), file=self.settings.err, flush=True)

    def prompt_sign(self) -> str:
        """psql's sign of the transaction: nothing outside, * inside, ! where only ROLLBACK is heard."""
        if self._session.failed:
            return "!"
        return "*" if self._session.in_transaction else ""

    def objects(self) -> Iterable[Object]:
        """The tables, views and sequences that the next statement would see."""
        session = self._session
        open_ = session.transaction
        if open_ is not None and (open_.ddl or open_.snapshot is not None):
            return filter(is_seen, session.catalog().objects())
        with session.database.store.read() as reader:
            return filter(is_seen, session.database.catalog.at(reader).objects())


@contextmanager
def interruptible(session: Session) -> Iterator[None]:
    """Ctrl-C cancels what the session does (57014), a second one breaks it off; neither ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def cancel(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        session.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def cleaning_up() -> Iterator[None]:
    """SIGTERM unwinds the block and ends the process with 143, as the shell has it; else nothing would be unwound."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_script(runner: Runner, pieces: Iterable[Piece], name: str, command: Callable[[str, str], bool]) -> bool:
    """Run pieces until the first error, as psql does with ON_ERROR_STOP; errors name `name` and line."""
    for piece in pieces:
        place = f"{name}:{piece.line}: " if name else ""
        if not (command(piece.text, place) if piece.kind == "command" else runner.run(piece.text, place)):
            return False
    return True
