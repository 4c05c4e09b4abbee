"""Rows of constants after VALUES, left as text: there may be a hundred thousand of them in one statement, and a token
and a node for each constant would take longer than storing the rows does.

What is not as plain as this (a sign apart from its number, E'...', DEFAULT, a comment) goes the way of all expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from instar import errors

MOST_ENTRIES = 1664  # of a row; as in PostgreSQL
_SPACE = r"[ \t\n\r\f\v]*+"
_CONSTANT = r"(?:'[^']*+(?:''[^']*+)*+'|[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?|null|true|false)"
# Not possessive, as what is repeated by choice may be in it: until Python 3.11.5 such a group matches less, or wrongly.
# So for each repetition Python keeps where to go back to, half a kilobyte, and all of them are bounded.
_ENTRY = rf"(?:,{_SPACE}{_CONSTANT}{_SPACE})"
_ROW = rf"\({_SPACE}{_CONSTANT}{_SPACE}{_ENTRY}{{0,{MOST_ENTRIES - 1}}}\)"
_FLAGS = re.ASCII | re.IGNORECASE

CONSTANT = re.compile(_CONSTANT, _FLAGS)
ROW = re.compile(_ROW, _FLAGS)
_FIRST = re.compile(rf"{_SPACE}({_ROW})", _FLAGS)
_MORE = re.compile(rf"(?:{_SPACE},{_SPACE}{_ROW}){{1,200}}", _FLAGS)
# The first row, and one behind others.
_TOO_MANY, _MORE_TOO_MANY = (
    re.compile(rf"(?P<to>{_SPACE}{comma})\({_SPACE}{_CONSTANT}{_SPACE}{_ENTRY}{{{MOST_ENTRIES}}}", _FLAGS)
    for comma in ("", f",{_SPACE}")
)


def rows_at(text: str, position: int) -> tuple[int, int] | None:
    """Where the rows of constants that come next begin and end, with the commas in between; None if there are none.
    54011 for a row of more constants than any has: its tokens would take gigabytes."""
    first = _FIRST.match(text, position)
    end = first.end() if first else position
    while first and (more := _MORE.match(text, end)):
        end = more.end()
    if found := (_MORE_TOO_MANY if first else _TOO_MANY).match(text, end):
        raise _too_many(found.end("to") + 1)
    return (first.start(1), end) if first else None


def require_entries(count: int) -> None:
    """54011 for a row, or a select list, of more entries than any has."""
    if count > MOST_ENTRIES:
        raise _too_many()


def _too_many(position: int | None = None) -> errors.Error:
    message = f"target lists can have at most {MOST_ENTRIES} entries"
    return errors.error(errors.TOO_MANY_COLUMNS, message, position=position)


class Constants(NamedTuple):
    """The rows in [start, end) of `text`, as `rows_at` has found them."""

    text: str
    start: int
    end: int

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Where each row begins, and its constants as they are written."""
        for row in ROW.finditer(self.text, self.start, self.end):
            yield row.start(), CONSTANT.findall(row.group())

    def positions(self, start: int) -> list[int]:
        """Where the constants of the row that begins there stand, 1-based."""
        end = ROW.match(self.text, start, self.end)
        return [found.start() + 1 for found in CONSTANT.finditer(self.text, start, end.end() if end else start)]
