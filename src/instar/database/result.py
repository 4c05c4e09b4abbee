"""What a session gives back for a statement: rows as Python objects, or as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from instar import errors
from instar.sql.execution import Result as Executed
from instar.types import Kind, Type
from instar.values import from_python, to_python, to_text

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]
Converter = Callable[[Any], Any]


class Result:
    """`columns` None: the statement gives no rows. `rows` are converted as they are fetched. `command` is PostgreSQL's
    command tag without counts, as INSERT or CREATE TABLE. Without `executed`, the rows are a list."""

    __slots__ = ("_executed", "_listed", "columns", "command", "rowcount", "rows")

    def __init__(
        self,
        command: str,
        columns: tuple[tuple[str, Type], ...] | None = None,
        rows: Iterable[Row] = (),
        rowcount: int = -1,
        executed: Executed | None = None,
    ) -> None:
        self.command = command
        self.columns = columns
        self.rows: Iterator[Row] = iter(rows)
        self.rowcount = rowcount
        self._listed = rows
        self._executed = executed

    @classmethod
    def of(cls, command: str, executed: Executed, *, returns_rows: bool) -> Result:
        """The result of an executed plan."""
        if not returns_rows:
            return cls(command, rowcount=executed.rowcount)
        return cls(command, executed.columns, converted(executed), executed.rowcount, executed)

    def shown(self) -> Iterator[Row]:
        """All rows for whoever prints them: dates and times that Python has no object for are PostgreSQL's text, and so
        is jsonb, which keeps the digits of its numbers and tells null from NULL that way."""
        return self.rows if self._executed is None else converted(self._executed, _shown)

    def arrow(self, *, nan_as_text: bool = False) -> pa.Table:
        """All rows as an Arrow table, whatever has been fetched before; `nan_as_text` as of `Executed.arrow`."""
        if self._executed is not None:
            return self._executed.arrow(nan_as_text=nan_as_text)
        columns = self.columns or ()
        values = [
            tuple([
                from_python(type_, value, "UTC") for value, (_, type_) in zip(row, columns, strict=True)
            ])
            for row in self._listed
        ]  # fmt: skip
        return Executed(columns, values, len(values)).arrow(nan_as_text=nan_as_text)


@lru_cache(maxsize=64)
def written(command: str, count: int) -> Result:
    """The result of a statement that has changed `count` rows and gives none: one for all, for nothing in it moves."""
    return Result(command, rowcount=count)


def rows_of(command: str, columns: tuple[tuple[str, Type], ...], rows: Iterable[Row]) -> Result:
    """A result made of rows that are Python objects already."""
    listed = list(rows)
    return Result(command, columns, listed, len(listed))


def converted(executed: Executed, converter: Callable[[Type], Converter | None] = to_python) -> Iterator[Row]:
    """The rows with Python objects for internal values, converted one by one as they are asked for."""
    rows = executed.values()
    converters = [converter(type_) for _, type_ in executed.columns]
    if all(convert is None for convert in converters):
        return iter(rows)
    return (
        tuple([
            value if convert is None or value is None else convert(value)
            for convert, value in zip(converters, row, strict=True)
        ])
        for row in rows
    )  # fmt: skip


def _shown(type_: Type) -> Converter | None:
    if type_.kind is Kind.JSONB:
        return None
    convert = to_python(type_)

    def either(value: Any) -> Any:
        assert convert is not None
        try:
            return convert(value)
        except errors.DataError:
            return to_text(type_, value)

    return convert and either
