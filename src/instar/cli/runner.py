"""Runs statements on a connection and prints what comes back: the same at the prompt, from a file and from a pipe."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from instar import errors
from instar.cli import output
from instar.cli.statements import Piece

if TYPE_CHECKING:
    from instar.dbapi import Connection, Cursor, Row

_LEADING = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")
_BATCH = 10_000  # rows fetched at a time where the output needs no widths


@dataclass
class Settings:
    """What backslash commands and options change."""

    format: output.Format = "table"
    timing: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)


class Runner:
    """Runs pieces of text one after the other on one connection."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self.connection = connection
        self.settings = settings

    def run(self, statement: str, place: str = "") -> bool:
        """Run one statement and print its result or its error; False after an error."""
        started = time.perf_counter()
        try:
            with self._interruptible():
                self._execute(statement)
        except errors.Error as error:
            self._print_notices()
            self.settings.out.flush()
            print(output.error_report(error, statement, place), file=self.settings.err)
            return False
        except KeyboardInterrupt:
            # A second Ctrl-C, where the statement did not hear the first.
            print("ERROR:  57014: canceling statement due to user request", file=self.settings.err)
            return False
        if self.settings.timing:
            print(f"Time: {(time.perf_counter() - started) * 1000:.3f} ms", file=self.settings.out)
        self.settings.out.flush()
        return True

    def _execute(self, statement: str) -> None:
        cursor = self.connection.cursor()
        try:
            cursor.execute(statement)
            self._print_notices()
            if cursor.description is not None:
                self._print_rows(cursor)
            elif self.settings.format in ("table", "expanded"):
                print(output.command_tag(first_words(statement), cursor.rowcount), file=self.settings.out)
        finally:
            cursor.close()

    def _print_rows(self, cursor: Cursor) -> None:
        columns = [output.Column(each[0], each[1]) for each in cursor.description or ()]
        write = output.WRITERS[self.settings.format]
        write(columns, batches(cursor), self.settings.out)

    def _print_notices(self) -> None:
        notices = self.connection.notices
        for notice in notices:
            print(f"NOTICE:  {notice}", file=self.settings.err)
        notices.clear()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C cancels the statement (57014), a second one breaks it off; neither ends the shell."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def cancel(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.connection.cancel()

        before = signal.signal(signal.SIGINT, cancel)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def prompt_sign(self) -> str:
        """psql's sign of the transaction: nothing outside, * inside, ! where only ROLLBACK is heard."""
        if self.connection.session.in_failed_transaction:
            return "!"
        return "*" if self.connection.in_transaction else ""


def batches(cursor: Cursor) -> Iterator[Row]:
    """All rows, never more than a batch of them in memory."""
    while rows := cursor.fetchmany(_BATCH):
        yield from rows


def first_words(statement: str) -> list[str]:
    """The first words of a statement, behind comments: enough of them for its command tag."""
    rest = statement[_LEADING.match(statement).end() :]  # type: ignore[union-attr]  # matches the empty string too
    return _WORD.findall(rest[:200])[:6]


def run_script(runner: Runner, pieces: Iterable[Piece], name: str, command: Callable[[str], bool]) -> bool:
    """Run pieces until the first error, as psql does with ON_ERROR_STOP; errors name `name` and line."""
    for piece in pieces:
        place = f"{name}:{piece.line}: " if name else ""
        if not (command(piece.text) if piece.kind == "command" else runner.run(piece.text, place)):
            return False
    return True
