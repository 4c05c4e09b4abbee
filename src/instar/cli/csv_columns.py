"""Columns of CSV files: what Arrow's reader and writer of CSV do not do as PostgreSQL does.

Arrow reads and writes dates and times of the years 1 to 9999 in ISO's form only, and has no text for bytes and uuids.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute

from instar import errors
from instar.cli.output import text_of
from instar.encoding.arrow_values import arrow_array, internal_values
from instar.types import DATE, TIMESTAMP, TIMESTAMPTZ, Type
from instar.values import reader, writer

# The first and the last value of the years 1 to 9999: days, and microseconds.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


def is_open_quote(ending: bytes, value: str) -> bool:
    """Whether `value`, the last one of a file that ends so, began with a quote that no other quote has closed.

    Arrow takes what follows such a quote, further rows too, for the value.
    """
    quoted = b'"' + value.replace('"', '""').encode()
    if not ending.endswith(quoted):
        return False
    if not value.strip('"'):
        return (len(ending) - len(ending.rstrip(b'"'))) % 2 == 1
    # A newline between quotes, and one behind them, end as an open quote and a newline do.
    return bool(value.strip("\r\n")) or not ending.endswith(quoted * 2)


def is_bytes(type_: pa.DataType) -> bool:
    """Whether the type's values are bytes, of whatever length."""
    return pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_)


def plain_type(type_: Any) -> pa.DataType:
    """The type without its mark, which uuids have."""
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def reader_type(type_: pa.DataType) -> pa.DataType:
    """What Arrow's CSV reader is asked to make of a column of a table; text where `read_column` does the rest."""
    return pa.string() if is_bytes(type_) or _temporal(type_) is not None else type_


def read_column(column: pa.Array[Any], type_: pa.DataType, zone: str) -> pa.Array[Any]:
    """A column as Arrow's CSV reader gives it, in the type of the table's column.

    `zone` is the session's, for timestamptz. Errors: 22P02 for bytes and uuids that are not hexadecimal; 22007 and
    22008 for dates and times, whose every form that SQL knows is read.
    """
    if column.type == type_:
        return column
    temporal = _temporal(type_)
    if temporal is not None:
        return _read_temporal(column, type_, temporal, zone)
    plain = (None if v is None else v.removeprefix("\\x").replace("-", "") for v in column.to_pylist())
    try:
        return pa.array([None if v is None else bytes.fromhex(v) for v in plain], type_)
    except ValueError as error:
        raise errors.error(errors.INVALID_TEXT, f"invalid hexadecimal data: {error}") from None


def written_column(column: pa.Array[Any]) -> pa.Array[Any]:
    """A column as Arrow's CSV writer can write it: text for bytes, uuids, and dates and times of far years."""
    type_ = plain_type(column.type)
    temporal = _temporal(type_)
    if temporal is not None and not _in_usual_years(column):
        write = writer(temporal)
        values = internal_values(column, temporal)
        return pa.array([None if value is None else write(value) for value in values], pa.string())
    if is_bytes(type_):
        return pa.array([None if value is None else text_of(value) for value in column.to_pylist()], pa.string())
    return column


def _temporal(type_: pa.DataType) -> Type | None:
    """The SQL type of Arrow's columns of dates and times, as tables have them."""
    if pa.types.is_date32(type_):
        return DATE
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return TIMESTAMP if type_.tz is None else TIMESTAMPTZ
    return None


def _read_temporal(column: pa.Array[Any], type_: pa.DataType, temporal: Type, zone: str) -> pa.Array[Any]:
    try:
        found = column.cast(type_)
        if _in_usual_years(found):
            return found
    except pa.ArrowInvalid:
        pass  # other forms are read value by value
    read = reader(temporal, zone)
    read_values = [None if value is None else read(value) for value in column.to_pylist()]
    return arrow_array(temporal, read_values)  # type: ignore[no-any-return]  # of `type_`


def _in_usual_years(column: pa.Array[Any]) -> bool:
    days = pa.types.is_date32(column.type)
    first, last = _DAYS if days else _MICROSECONDS
    ends: Any = pa.compute.min_max(column.cast(pa.int32() if days else pa.int64())).as_py()
    return ends["min"] is None or (ends["min"] >= first and ends["max"] <= last)
