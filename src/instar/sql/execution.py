"""What an execution is given and what it gives: context, errors of its own, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from instar.catalog.catalog import CatalogSnapshot
from instar.sql.functions import Context
from instar.tables.layout import arrow_type
from instar.tables.view import View
from instar.transactions.buffer import Buffer
from instar.types import Kind, Type
from instar.values import to_text

Row = tuple[object, ...]


class BudgetSpent(Exception):
    """The executor has touched as many rows as its plan allows: the analytic engine takes over."""


@dataclass(slots=True)
class ExecutionContext:
    """One execution of one statement. database.py fills it in.

    `parameters` are internal values of the statement's parameter types. `functions` is what stable functions read (the
    transaction's start in microseconds, the session's zone). `system_rows` makes the rows of a system view.
    """

    view: View
    catalog: CatalogSnapshot
    buffer: Buffer
    parameters: Sequence[object]
    functions: Context
    next_value: Callable[[int], int]
    system_rows: Callable[[str], Iterable[Row]]
    check_cancel: Callable[[], None] = lambda: None
    remaining: int = field(default=1 << 62)  # rows that may still be touched

    def touch(self, rows: int) -> None:
        """Count rows against the plan's budget."""
        self.remaining -= rows
        if self.remaining < 0:
            raise BudgetSpent


@dataclass(slots=True)
class Result:
    """What a statement gives: rows of internal values (None: it gives none), or the analytic engine's Arrow table.

    `rowcount` is the number of rows given or changed.
    """

    columns: tuple[tuple[str, Type], ...]
    rows: list[Row] | None
    rowcount: int
    table: pa.Table | None = None

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table in the types of `tables.layout.arrow_type`; no rows at all is an empty table."""
        if self.table is not None:
            return self.table
        rows = self.rows or []
        arrays = []
        for position, (_, type_) in enumerate(self.columns):
            values = [row[position] for row in rows]
            arrays.append(arrow_array(type_, values))
        schema = pa.schema([pa.field(name, array.type) for (name, _), array in zip(self.columns, arrays, strict=True)])
        return pa.Table.from_arrays(arrays, schema=schema)


def arrow_array(type_: Type, values: Sequence[object]) -> Any:
    """Internal values as an Arrow array of `arrow_type(type_)`; an unknown literal's column is text."""
    if type_.kind is Kind.UNKNOWN:
        return pa.array(values, pa.string())
    target = arrow_type(type_)
    if type_.kind is Kind.NUMERIC and type_.precision is None:
        values = [None if value is None else to_text(type_, value) for value in values]
    if type_.kind is Kind.DATE:
        return pa.array(values, pa.int32()).cast(target)
    if type_.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return pa.array(values, pa.int64()).cast(target)
    return pa.array(values, target)
