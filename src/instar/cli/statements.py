"""Text to statements: where a statement ends, in files, pipes and at the prompt.

Knows only what may hide a semicolon (PostgreSQL's lexical rules, manual §4.1): quoted strings, with backslashes where
they begin with E, quoted names, dollar quotes, comments, nested ones too. Everything else is the parser's business.

Lines end with a newline: most of what ends one for str.splitlines() does not end a comment, and carriage returns must
not be translated, for texts hold them.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

Kind = Literal["sql", "command"]


class Piece(NamedTuple):
    """A statement without its semicolon, or a backslash command without its newline; `line` counts from 1."""

    kind: Kind
    text: str
    line: int


# What ends a statement or begins something that may hide its end; a name swallows the dollars in it.
_OUTSIDE = re.compile(
    r"(?P<end>;)|(?P<comment>--[^\n\r]*)|(?P<block>/\*)|(?P<escaped>[eE]')|(?P<quote>')|(?P<name>\")"
    r"|(?P<dollar>\$(?:[^\W\d]\w*)?\$)|\w[\w$]*"
)
# The rest of what was begun, up to its end. A doubled quote is the end of one and the beginning of the next, except
# where backslashes count. A dollar quote ends with the tag that it began with.
_REST = {
    "quote": re.compile(r"[^']*'"),
    "escaped": re.compile(r"(?:[^'\\]|\\.|'')*'", re.DOTALL),
    "name": re.compile(r"[^\"]*\""),
}
_SPACES = " \t\n\r\f\v"
_SIGNS = {"quote": "'", "escaped": "'", "name": '"', "dollar": "$"}
_BLOCK = re.compile(r"/\*|\*/")


class Splitter:
    """Takes lines, gives pieces; from one line to the next it remembers what it is inside of."""

    def __init__(self) -> None:
        self._line = 0
        self._parts: list[str] = []  # of the statement so far; the first one is no mere space
        self._first_line = 0
        self._empty = True  # space and comments only
        self._rest: re.Pattern[str] | None = None
        self._depth = 0  # of block comments
        self.inside = ""  # ' " $ or * for a comment: what the prompt shows

    @property
    def pending(self) -> bool:
        """Whether a statement, or a comment of several lines, has begun and not ended."""
        return not self._empty or bool(self.inside)

    def feed(self, line: str) -> Iterator[Piece]:
        """The pieces that end on `line`: one line, its newline included if it has one."""
        self._line += 1
        if not self.pending and line.lstrip(_SPACES).startswith("\\"):
            self._parts.clear()
            yield Piece("command", line.strip(), self._line)
            return
        start = position = 0
        while position < len(line):
            if self.inside:
                position = self._leave(line, position)
                continue
            found = _OUTSIDE.search(line, position)
            between = line[position : found.start()] if found else line[position:]
            self._empty = self._empty and not between.strip(_SPACES)
            if found is None:
                break
            position = found.end()
            if found.lastgroup == "end":
                self._keep(line[start : found.start()])
                yield from self.finish()
                start = position
            elif found.lastgroup != "comment":
                self._enter(found)
        self._keep(line[start:])

    def finish(self) -> Iterator[Piece]:
        """The statement so far. At the end of the input: a last one may go without its semicolon, and a comment that
        goes on is one, which the parser refuses."""
        if self.pending:
            yield Piece("sql", "".join(self._parts).strip(_SPACES), self._first_line)
        self._parts.clear()
        self._empty, self.inside = True, ""

    def _keep(self, part: str) -> None:
        if not self._parts:
            if not part.strip(_SPACES):
                return
            self._first_line = self._line
        self._parts.append(part)

    def _enter(self, found: re.Match[str]) -> None:
        if found.lastgroup == "block":
            self.inside, self._depth = "*", 1
            return
        self._empty = False
        if found.lastgroup is None:  # a name or number
            return
        self.inside = _SIGNS[found.lastgroup]
        self._rest = _REST.get(found.lastgroup) or re.compile(".*?" + re.escape(found.group()), re.DOTALL)

    def _leave(self, line: str, position: int) -> int:
        """The position behind what we are inside of; the line's end if it goes on."""
        if self.inside == "*":
            found = _BLOCK.search(line, position)
            if found is not None:
                self._depth += 1 if found.group() == "/*" else -1
        else:
            assert self._rest is not None
            found = self._rest.match(line, position)
        if found is None:
            return len(line)
        if self.inside != "*" or self._depth == 0:
            self.inside = ""
        return found.end()


def open_script(path: Path) -> TextIO:
    """A file of SQL, whose lines are to be `split`.

    Bytes that are no UTF-8 become lone surrogates: their statement is refused in its turn (22021).
    """
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n")


def standard_input() -> TextIO:
    """What comes in a pipe, as `open_script` reads it from a file."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    return sys.stdin


def lines_of(text: str) -> Iterable[str]:
    """The lines of a text, with their newlines."""
    return io.StringIO(text, newline="\n")


def split(lines: Iterable[str]) -> Iterator[Piece]:
    """All pieces of a file or pipe, each as soon as its last line was read."""
    splitter = Splitter()
    for line in lines:
        yield from splitter.feed(line)
    yield from splitter.finish()


def unfinished(text: str) -> Splitter | None:
    """The splitter behind `text` if a statement is still open there: more lines are wanted. None: it may run."""
    splitter = Splitter()
    for line in lines_of(text):
        for _ in splitter.feed(line):
            pass
    return splitter if splitter.pending else None
