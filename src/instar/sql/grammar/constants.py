"""Rows of constants after VALUES, left as text: there may be a hundred thousand of them in one statement, and a token
and a node for each constant would take longer than storing the rows does.

What is not as plain as this (a sign apart from its number, E'...', DEFAULT, a comment) goes the way of all expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_SPACE = r"[ \t\n\r\f\v]*+"
_CONSTANT = r"(?:'[^']*+(?:''[^']*+)*+'|[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?|null|true|false)"
_ROW = rf"\({_SPACE}{_CONSTANT}{_SPACE}(?:,{_SPACE}{_CONSTANT}{_SPACE})*+\)"
_FLAGS = re.ASCII | re.IGNORECASE

CONSTANT = re.compile(_CONSTANT, _FLAGS)
ROW = re.compile(_ROW, _FLAGS)
ROWS = re.compile(rf"{_SPACE}({_ROW}(?:{_SPACE},{_SPACE}{_ROW})*+)", _FLAGS)


class Constants(NamedTuple):
    """The rows in [start, end) of `text`, which `ROWS` has matched."""

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
