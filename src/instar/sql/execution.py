"""What an execution is given and what it gives: context, errors of its own, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.encoding.arrow_values import arrow_array, internal_values
from instar.sql.functions import Context
from instar.sql.tree import RowLock
from instar.tables.layout import arrow_type
from instar.tables.view import View
from instar.transactions.buffer import Buffer
from instar.transactions.transaction import Isolation
from instar.types import Kind, Type

Row = tuple[object, ...]
Given = Mapping[int, list[Row]]  # rows of tables that have been read already, by relation
UNLIMITED = 1 << 62


def _no_hints(level: Isolation) -> View:
    raise errors.unsupported("a table hint in this place")


def _no_judgement() -> View:
    raise errors.unsupported("writing to a kept view in this place")


def _no_locks(lock: RowLock, table: Table, key: bytes) -> bool:
    raise errors.unsupported("a row lock in this place")


def _no_current_value(sequence: int | None) -> int:
    raise errors.unsupported("currval or lastval in this place")


def _no_set_value(sequence: int, value: int, called: bool) -> int:
    raise errors.unsupported("setval in this place")


class BudgetSpent(Exception):
    """The executor has touched as many rows as its plan allows: the analytic engine takes over."""


class ExecutionContext(msgspec.Struct):
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
    current_value: Callable[[int | None], int] = _no_current_value  # None: lastval
    set_value: Callable[[int, int, bool], int] = _no_set_value
    check_cancel: Callable[[], None] = lambda: None
    # Given a function that stops what is running now from another thread, or None when that is over.
    interruptible: Callable[[Callable[[], None] | None], None] = lambda stop: None
    # Told of a row that is to be locked, by its encoded primary key; False if it is to be skipped.
    lock_row: Callable[[RowLock, Table, bytes], bool] = _no_locks
    # Asked before a row, or a unique key, is reported to stand in the way: does nothing unless somebody may remove it.
    require_unlocked: Callable[[bytes], None] = lambda resource: None
    view_at: Callable[[Isolation], View] = _no_hints  # what a table is read by that a hint has at a level of its own
    # What rows are read by that decide what is written, and must still be so at the commit at whichever level.
    judged_view: Callable[[], View] = _no_judgement
    remaining: int = UNLIMITED  # rows that may still be touched

    def touch(self, rows: int) -> None:
        """Count rows against the plan's budget."""
        self.remaining -= rows
        if self.remaining < 0:
            raise BudgetSpent


class Result:
    """What a statement gives: rows of internal values, from the executor as such and from the analytic engine as an
    Arrow table; `values()` and `arrow()` give either as what is asked for.

    `rowcount` is the number of rows given or changed. A statement that gives no rows has no columns.
    """

    __slots__ = ("_rows", "_table", "columns", "rowcount")

    def __init__(
        self,
        columns: tuple[tuple[str, Type], ...],
        rows: list[Row] | None,
        rowcount: int,
        table: pa.Table | None = None,
    ) -> None:
        self.columns = columns
        self.rowcount = rowcount
        self._rows = rows
        self._table = table

    def values(self) -> list[Row]:
        """The rows as tuples of internal values."""
        if self._rows is None and self._table is not None:
            typed = zip(self._table.columns, self.columns, strict=True)
            columns = [internal_values(column, type_) for column, (_, type_) in typed]
            self._rows = list(zip(*columns, strict=True)) if columns else [()] * self.rowcount
        return self._rows or []

    def arrow(self, *, nan_as_text: bool = False) -> pa.Table:
        """An Arrow table in the types of `tables.layout.arrow_type`; a statement that gives no rows has no columns.
        `nan_as_text`: a column of numeric(p,s) that has NaN is text, instead of 0A000."""
        if self._table is not None:
            arrays = [
                _in_type(column, type_) for column, (_, type_) in zip(self._table.columns, self.columns, strict=True)
            ]
        else:
            rows = self._rows or []
            arrays = [
                arrow_array(type_, [row[position] for row in rows], name, nan_as_text=nan_as_text)
                for position, (name, type_) in enumerate(self.columns)
            ]
        return pa.Table.from_arrays(arrays, names=[name for name, _ in self.columns])


def _in_type(column: Any, type_: Type) -> Any:
    """A numeric's scale may be narrower in the engine's column than its logical type says."""
    target = pa.string() if type_.kind is Kind.UNKNOWN else arrow_type(type_)
    return column if column.type == target else column.cast(target)
