"""Internal values to Arrow arrays and back, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from instar import errors
from instar.encoding.row_batches import arrow_type
from instar.types import Kind, Type
from instar.values import to_text


def internal_values(column: Any, type_: Type) -> list[object]:
    """An Arrow column of the analytic engine as internal values of its logical type."""
    if type_.kind is Kind.DATE:
        column = column.cast(pa.int32())
    elif type_.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        column = column.cast(pa.int64())
    values: list[object] = column.to_pylist()
    if type_.kind is Kind.NUMERIC and pa.types.is_string(column.type):
        return [None if value is None else Decimal(str(value)) for value in values]
    return values


def arrow_array(type_: Type, values: Sequence[object], name: str | None = None, *, nan_as_text: bool = False) -> Any:
    """Internal values as an Arrow array of `arrow_type(type_)`; an unknown literal's column is text.

    With NaN a numeric that has a precision, and so is a decimal there, is 0A000, which names the column if `name` is
    given; or all of it is text, if `nan_as_text`.
    """
    if type_.kind is Kind.UNKNOWN:
        return pa.array(values, pa.string())
    target = arrow_type(type_)
    if type_.kind is Kind.NUMERIC and type_.precision is None:
        values = [None if value is None else to_text(type_, value) for value in values]
    if type_.kind is Kind.DATE:
        return pa.array(values, pa.int32()).cast(target)
    if type_.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return pa.array(values, pa.int64()).cast(target)
    try:
        return pa.array(values, target)
    except pa.ArrowInvalid:
        if any(isinstance(value, Decimal) and value.is_nan() for value in values):
            if nan_as_text:
                return pa.array([None if value is None else to_text(type_, value) for value in values], pa.string())
            where = "" if name is None else f' in column "{name}"'
            refused = errors.unsupported(f"NaN of type {type_}{where} in Arrow, whose decimals have no NaN,")
            refused.hint = "Cast it to numeric without a precision in a query, which goes as text."
            raise refused from None
        raise
