"""Parameter sets of executemany as Arrow columns: what turns many small Python tuples into one bulk insert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from instar.catalog.descriptors import Table
from instar.encoding.arrow_values import arrow_array
from instar.sql import tree
from instar.tables.layout import arrow_type
from instar.types import INTEGERS, Kind, Type
from instar.values import compile_cast, converter

# Columns whose parameters are all of this class (or None) go to Arrow as they are; Arrow checks the range.
_PLAIN: dict[Kind, type] = {
    **dict.fromkeys(INTEGERS, int),
    Kind.BOOLEAN: bool,
    Kind.DOUBLE: float,
    Kind.TEXT: str,
    Kind.VARCHAR: str,
    Kind.BYTEA: bytes,
}
_NONE = type(None)


class ParameterColumns:
    """How an INSERT of one row of parameters maps parameter sets to columns: (ordinal, parameter, type, cast)."""

    def __init__(self, table: Table, given: list[tuple[int, int, Type, Type]], zone: str) -> None:
        self._table = table
        self._given = [
            (ordinal, parameter, _conversion(source, target, zone), target)
            for ordinal, parameter, source, target in given
        ]

    def batch(self, sets: Sequence[Sequence[object]]) -> pa.RecordBatch:
        """A record batch of the given columns, named as in the table. Errors as those of single parameters."""
        columns: list[tuple[Any, ...]] = list(zip(*sets, strict=True))
        arrays, names = [], []
        for ordinal, parameter, convert, target in self._given:
            arrays.append(_array(columns[parameter], convert, target))
            names.append(self._table.columns[ordinal].name)
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _conversion(source: Type, target: Type, zone: str) -> Callable[[Any], Any]:
    read, cast = converter(source, zone), compile_cast(source, target, False, zone) if source != target else None
    if cast is None:
        return read
    return lambda value: None if (found := read(value)) is None else cast(found)


def _array(values: tuple[Any, ...], convert: Callable[[Any], Any], target: Type) -> Any:
    plain = _PLAIN.get(target.kind)
    if plain is not None and set(map(type, values)) <= {plain, _NONE}:
        try:
            return pa.array(values, arrow_type(target))
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            # One of them is out of range: the conversion below says which, with PostgreSQL's error.
            pass
    return arrow_array(target, [None if value is None else convert(value) for value in values])


def parameter_columns(bound: tree.BoundStatement, zone: str) -> ParameterColumns | None:
    """The mapping of an INSERT whose VALUES are parameters and nothing else; None for any other statement."""
    statement = bound.statement
    if not isinstance(statement, tree.Insert) or statement.on_conflict is not None or statement.returning:
        return None
    if statement.target.kept is not None:
        return None
    source = statement.source
    if not isinstance(source, tree.ValuesQuery) or len(source.values.rows) != 1:
        return None
    table = statement.target.table
    given = []
    for ordinal, expr in zip(statement.columns, source.values.rows[0], strict=True):
        target = table.columns[ordinal].type
        parameter = expr.operand if isinstance(expr, tree.Cast) and not expr.explicit else expr
        if not isinstance(parameter, tree.Parameter) or expr.type != target:
            return None
        given.append((ordinal, parameter.index, parameter.type, target))
    return ParameterColumns(table, given, zone)
