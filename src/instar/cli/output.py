"""Results and errors as text: PostgreSQL's aligned and expanded tables, CSV, JSON, and its error reports."""

from __future__ import annotations

import datetime
import errno
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TextIO

from rich.cells import cell_len

from instar import errors
from instar.types import NUMBERS, REAL, Kind
from instar.values.text import writer

Format = Literal["table", "expanded", "csv", "json"]
Row = Sequence[Any]
_NUMBERS = frozenset(kind.value for kind in NUMBERS)
_QUOTED = re.compile(r'[",\r\n]')  # what a field of CSV may hold only in quotes


class Column(NamedTuple):
    """A column of a result: its name, and the DB-API's type code, which is PostgreSQL's name of the type."""

    name: str
    type: str = Kind.TEXT.value

    @property
    def text_of(self) -> Callable[[Any], str]:
        """How values of this column are written."""
        return _real if self.type == Kind.REAL.value else text_of

    @property
    def to_right(self) -> bool:
        """Numbers stand below each other by their last digit."""
        return self.type in _NUMBERS


def text_of(value: object) -> str:
    """The value as PostgreSQL prints it; NULL is the empty string."""
    writer = _WRITERS.get(value.__class__)
    return str(value) if writer is None else writer(value)


def _float(value: float) -> str:
    if math.isfinite(value):
        shortest = repr(value)
        return shortest.removesuffix(".0")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _real(value: float | None) -> str:
    # Shortest among the 32-bit ones: 0.1, and not 0.10000000149011612.
    return "" if value is None else writer(REAL)(value)


def _timestamp(value: datetime.datetime) -> str:
    local = value.replace(tzinfo=None)
    text = local.isoformat(" ")
    if local.microsecond:
        text = text.rstrip("0")
    offset = value.utcoffset()
    if offset is None:
        return text
    hours, rest = divmod(abs(int(offset.total_seconds())), 3600)
    text += f"{'-' if offset.total_seconds() < 0 else '+'}{hours:02}"
    return text + (f":{rest // 60:02}" if rest else "")


_WRITERS: dict[type, Callable[[Any], str]] = {
    type(None): lambda value: "",
    bool: lambda value: "t" if value else "f",
    float: _float,
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: "\\x" + value.hex(),
    datetime.datetime: _timestamp,
}


# --- tables ----------------------------------------------------------------------------------------------------------


def count_line(rows: int) -> str:
    """(1 row), (2 rows)."""
    return "(1 row)" if rows == 1 else f"({rows} rows)"


def write_table(
    columns: Sequence[Column], rows: Iterable[Row], file: TextIO, *, title: str = "", footer: str | None = None
) -> None:
    """Columns in their widths, numbers to the right, values of several lines continued with a `+`.

    `footer` stands below: lines with their newlines; None is the number of rows.
    """
    names = [column.name for column in columns]
    writers = [column.text_of for column in columns]
    cells = [[write(v).split("\n") for write, v in zip(writers, row, strict=True)] for row in rows]
    widths = [
        max([cell_len(name), *(cell_len(line) for row in cells for line in row[i])]) for i, name in enumerate(names)
    ]
    right = [column.to_right for column in columns]
    if title:
        file.write(title.center(sum(widths) + 3 * len(widths) - 1).rstrip() + "\n")
    file.write("|".join(f" {_centre(name, width)} " for name, width in zip(names, widths, strict=True)).rstrip() + "\n")
    file.write("+".join("-" * (width + 2) for width in widths) + "\n")
    for row in cells:
        _write_row(row, widths, right, file)
    file.write(count_line(len(cells)) + "\n" if footer is None else footer)


def _centre(name: str, width: int) -> str:
    space = width - cell_len(name)
    return " " * (space // 2) + name + " " * (space - space // 2)


def _write_row(row: list[list[str]], widths: list[int], right: list[bool], file: TextIO) -> None:
    height = max((len(cell) for cell in row), default=0)
    for line in range(height):
        parts = []
        for cell, width, to_right in zip(row, widths, right, strict=True):
            text = cell[line] if line < len(cell) else ""
            space = " " * (width - cell_len(text))
            goes_on = "+" if line + 1 < len(cell) else " "
            parts.append(f" {space}{text}{goes_on}" if to_right else f" {text}{space}{goes_on}")
        file.write("|".join(parts).rstrip() + "\n")


def write_expanded(columns: Sequence[Column], rows: Iterable[Row], file: TextIO) -> None:
    """One line per value under a line per record: for rows wider than the terminal."""
    width = max((cell_len(column.name) for column in columns), default=0)
    number = 0
    for number, row in enumerate(rows, 1):
        cells = [column.text_of(value).split("\n") for column, value in zip(columns, row, strict=True)]
        value_width = max((cell_len(line) for cell in cells for line in cell), default=0)
        file.write(f"-[ RECORD {number} ]".ljust(width + 3 + value_width, "-") + "\n")
        for column, cell in zip(columns, cells, strict=True):
            for line, text in enumerate(cell):
                label = column.name if line == 0 else ""
                goes_on = "+" if line + 1 < len(cell) else ""
                file.write(f"{label}{' ' * (width - cell_len(label))} | {text}{goes_on}".rstrip() + "\n")
    if number == 0:
        file.write("(0 rows)\n")


# --- for programs ----------------------------------------------------------------------------------------------------


def write_csv(columns: Sequence[Column], rows: Iterable[Row], file: TextIO) -> None:
    """RFC 4180 with a header and plain newlines. NULL is nothing at all, the empty string is "", as COPY has it."""
    writers = [column.text_of for column in columns]
    file.write(",".join(_field(column.name) for column in columns) + "\n")
    for row in rows:
        fields = ("" if v is None else _field(write(v)) for write, v in zip(writers, row, strict=True))
        file.write(",".join(fields) + "\n")


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text


def write_json(columns: Sequence[Column], rows: Iterable[Row], file: TextIO) -> None:
    """An array with an object per row and line. Numbers keep all their digits; a name that occurs twice stays twice."""
    keys = [json.dumps(column.name, ensure_ascii=False) + ": " for column in columns]
    writers = [_JSON_WRITERS.get(column.type, _json) for column in columns]
    separator = "["
    for row in rows:
        values = ("null" if v is None else write(v) for write, v in zip(writers, row, strict=True))
        file.write(separator + "{" + ", ".join(key + value for key, value in zip(keys, values, strict=True)) + "}")
        separator = ",\n "
    file.write("[]\n" if separator == "[" else "]\n")


def _json(value: object) -> str:
    if isinstance(value, (bool, int, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (float, Decimal)) and math.isfinite(value):
        return repr(value) if isinstance(value, float) else format(value, "f")
    if isinstance(value, (datetime.datetime, datetime.date)):
        return json.dumps(value.isoformat())
    if isinstance(value, uuid.UUID):
        return json.dumps(str(value))
    return json.dumps(text_of(value), ensure_ascii=False)


_JSON_WRITERS: dict[str, Callable[[Any], str]] = {
    Kind.REAL.value: lambda value: _json(float(_real(value))),
    Kind.JSONB.value: str,  # the text of a document is JSON
}

WRITERS: dict[Format, Callable[[Sequence[Column], Iterable[Row], TextIO], None]] = {
    "table": write_table,
    "expanded": write_expanded,
    "csv": write_csv,
    "json": write_json,
}


# --- errors ----------------------------------------------------------------------------------------------------------


def error_report(error: errors.Error, statement: str = "", place: str = "") -> str:
    """As psql prints an error when asked for its SQLSTATE, with the line of the statement and a caret under the place.

    `place` stands before it: file and line of a script.
    """
    lines = [f"{place}ERROR:  {error.sqlstate}: {error.message}"]
    if error.position is not None and statement:
        lines += caret_lines(statement, error.position)
    if error.detail:
        lines.append(f"DETAIL:  {error.detail}")
    if error.hint:
        lines.append(f"HINT:  {error.hint}")
    return "\n".join(lines)


def file_error(error: OSError, path: object = None) -> errors.Error:
    """What the system says of a file, or of `path` in its place, with the SQLSTATE that PostgreSQL has for it."""
    name = path or error.filename
    told = error.strerror or str(error)
    return errors.error(_OF_FILES.get(error.errno, errors.IO_ERROR), f"{name}: {told}" if name else told)


_OF_FILES: dict[int | None, str] = {
    errno.ENOENT: errors.UNDEFINED_FILE,
    errno.EACCES: errors.INSUFFICIENT_PRIVILEGE,
    errno.EPERM: errors.INSUFFICIENT_PRIVILEGE,
    errno.EROFS: errors.INSUFFICIENT_PRIVILEGE,
    errno.EISDIR: errors.WRONG_OBJECT_TYPE,
    errno.ENOTDIR: errors.WRONG_OBJECT_TYPE,
    errno.ENOSPC: errors.DISK_FULL,
    errno.EDQUOT: errors.DISK_FULL,
    errno.EFBIG: errors.DISK_FULL,
}
_CONTEXT = 60  # cells shown on either side of the place in a long line
_NO_CHARACTERS = re.compile("[\ud800-\udfff]")  # what bytes that are no UTF-8 have become


def caret_lines(statement: str, position: int) -> list[str]:
    """The line that holds the 1-based character `position`, and a caret under it."""
    before = statement[: position - 1]
    number = before.count("\n") + 1
    line = statement.split("\n")[number - 1].rstrip("\r").replace("\t", " ")
    line = _NO_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", line)
    column = len(before) - (before.rfind("\n") + 1)
    start = max(0, column - _CONTEXT)
    left, right = "..." if start else "", "..." if len(line) > column + _CONTEXT else ""
    prefix = f"LINE {number}: {left}"
    shown = line[start : column + _CONTEXT]
    return [prefix + shown + right, " " * (len(prefix) + cell_len(line[start:column])) + "^"]


# --- command tags ----------------------------------------------------------------------------------------------------

_COUNTED = {"INSERT": "INSERT 0 ", "UPDATE": "UPDATE ", "DELETE": "DELETE ", "SELECT": "SELECT "}


def command_tag(command: str, rowcount: int) -> str:
    """What PostgreSQL answers to a statement without rows: INSERT 0 3, CREATE INDEX, BEGIN."""
    return f"{_COUNTED[command]}{rowcount}" if command in _COUNTED and rowcount >= 0 else command


def notice_line(notice: str) -> str:
    """What the session has to say beside the result, with its severity in front."""
    severity, colon, rest = notice.partition(": ")
    return f"{severity}:  {rest.lstrip()}" if colon and severity in ("NOTICE", "WARNING") else f"NOTICE:  {notice}"
