"""The interactive prompt: history, editing over several lines, highlighting, completion."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import PostgresLexer

from instar import __version__, errors
from instar.catalog.descriptors import Object, Table, View
from instar.cli.commands import COMMANDS, Commands, Quit
from instar.cli.runner import Runner
from instar.cli.statements import lines_of, split, unfinished
from instar.sql.binder.deparse import quote_identifier as quoted

# What somebody types, not what the grammar has.
KEYWORDS = """
ADD ALTER ALWAYS AND AS ASC AVG BEGIN BETWEEN BIGINT BOOLEAN BY BYTEA CASCADE CASE CAST CHECK COALESCE COLUMN COMMIT
CONFLICT CONSTRAINT COUNT CREATE CROSS CURRENT_DATE CURRENT_TIMESTAMP DATABASE DATE DEFAULT DELETE DESC DISTINCT DO
DOUBLE DROP ELSE END EXCEPT EXISTS EXPLAIN FALSE FOREIGN FROM FULL GENERATED GROUP HAVING IDENTITY IF IN INDEX INNER
INSERT INTEGER INTERSECT INTERVAL INTO IS ISOLATION JOBS JOIN JSONB KEY LATERAL LEFT LEVEL LIKE LIMIT MAX MIN NOT
NOTHING NULL NULLS NUMERIC OFFSET ON OR ORDER OUTER OVER PARTITION PRECISION PRIMARY REAL REFERENCES RENAME REPEATABLE
RETURNING RIGHT ROLLBACK SAVEPOINT SELECT SEQUENCE SERIALIZABLE SET SHOW SMALLINT SUM TABLE TEXT THEN TIMESTAMP
TIMESTAMPTZ TO TRANSACTION TRUE TRUNCATE TYPE UNION UNIQUE UPDATE USING UUID VALUES VARCHAR VIEW WHEN WHERE WITH
""".split()

_WORD = re.compile(r"[\w$]+$")
_COMMAND = re.compile(r"\\\w*$")


def history_file() -> Path:
    """Where the shell's history lies: the XDG state directory."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "instar" / "history"


def _history() -> History:
    path = history_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:  # a home that cannot be written to is no reason not to run
        return InMemoryHistory()
    return FileHistory(path)


class SqlCompleter(Completer):
    """Keywords in the case they are typed in, names of tables, views and columns, backslash commands."""

    def __init__(self, objects: Callable[[], Iterable[Object]]) -> None:
        self._objects = objects

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Candidates for the word before the cursor."""
        before = document.text_before_cursor
        command = _COMMAND.match(before)
        if command:
            yield from (Completion(name, -len(before)) for name in COMMANDS if name.startswith(before))
            return
        found = _WORD.search(before)
        if found is None:
            return
        word = found.group()
        for name in sorted(self._names()):
            if name.lower().startswith(word.lower()):
                yield Completion(quoted(name), -len(word))
        upper = not word.islower()
        for keyword in KEYWORDS:
            if keyword.startswith(word.upper()):
                yield Completion(keyword if upper else keyword.lower(), -len(word))

    def _names(self) -> set[str]:
        names: set[str] = set()
        try:
            for each in self._objects():
                names.add(each.name)
                if isinstance(each, Table):
                    names.update(column.name for column in each.columns if column.visible)
                elif isinstance(each, View):
                    names.update(name for name, _ in each.columns)
        except errors.Error:  # a database that does not answer must not stop the typing
            return set()
        return names


class Shell:
    """A conversation in one session until \\q or Ctrl-D."""

    def __init__(self, runner: Runner, database: str) -> None:
        self._runner = runner
        self._database = database
        self._commands = Commands(runner)
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            lexer=PygmentsLexer(PostgresLexer),
            completer=SqlCompleter(runner.objects),
            complete_while_typing=False,
            multiline=Condition(self._wants_more),
            prompt_continuation=self._continuation,
            enable_history_search=True,
        )

    def run(self) -> None:
        """Read and run until the end."""
        print(f'instar {__version__}, database "{self._database}". \\? for help, \\q to leave.')
        while True:
            try:
                text = self._session.prompt(f"{self._database}={self._runner.prompt_sign()}# ")
                self._run(text)
            except KeyboardInterrupt:  # drops what was typed
                continue
            except (EOFError, Quit):
                return

    def _run(self, text: str) -> None:
        """Everything that was typed up to the last semicolon; what fails stops the rest of it."""
        for piece in split(lines_of(text)):
            if not (self._commands.run(piece.text) if piece.kind == "command" else self._runner.run(piece.text)):
                return

    def _wants_more(self) -> bool:
        """Whether Enter begins a new line: the statement has not ended yet."""
        text = self._session.default_buffer.text
        return unfinished(text) is not None

    def _continuation(self, width: int, line_number: int, wrap_count: int) -> str:
        if wrap_count:
            return " " * width
        above = self._session.default_buffer.document.lines[:line_number]
        open_there = unfinished("\n".join(above) + "\n")
        inside = open_there.inside if open_there else ""
        return f"{self._database}{inside or '-'}# ".rjust(width)
