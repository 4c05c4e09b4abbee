"""Columns of CSV files: what Arrow's reader and writer of CSV do not do as PostgreSQL does.

Arrow reads and writes dates and times of the years 1 to 9999 in ISO's form only, and has no text for bytes and uuids.
It does not round what has more decimal places than its column, knows fewer words for true and false than SQL, makes
infinity of a number that is too large and 0 of one that is too small, and takes offsets of up to a day. So it is asked
for text, which it then casts, fast; a column that it cannot cast is read as SQL reads a constant, value by value, and
so are the errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute

from instar import errors
from instar.catalog.descriptors import Column
from instar.cli.output import text_of
from instar.encoding.arrow_values import arrow_array, internal_values
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    FLOATS,
    INTEGER,
    REAL,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPS,
    TIMESTAMPTZ,
    UUID,
    Kind,
    Type,
)
from instar.values import reader, writer

_TYPES: dict[pa.DataType, Type] = {
    pa.bool_(): BOOLEAN,
    pa.int16(): SMALLINT,
    pa.int32(): INTEGER,
    pa.int64(): BIGINT,
    pa.float32(): REAL,
    pa.float64(): DOUBLE,
    pa.binary(): BYTEA,
    pa.binary(16): UUID,
}
# The first and the last value of the years 1 to 9999: days, and microseconds.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
# What Arrow takes and SQL does not: an hour alone, and behind a time an offset of 16 hours or more.
_NO_TIME = "[ T][0-9]{2}($|[^0-9:])|[ T].*[+-](1[6-9]|2)"
# It computes with 38 digits, and loses what is beyond.
_SAFE_DECIMAL = "^[^eE]{0,37}$"


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
    return type_ if _sql_type(type_) is None else pa.string()


def read_column(column: pa.Array[Any], field: pa.Field[Any], zone: str, before: int) -> pa.Array[Any]:
    """A column as Arrow's CSV reader gives it, in the type of the table's column.

    `zone` is the session's, for timestamptz; `before` is how many rows the file has before these. Errors: what SQL has
    for a text that is no value of the type, with its row.
    """
    type_: pa.DataType = field.type
    if column.type == type_:
        return column
    sql_type = _sql_type(type_)
    assert sql_type is not None  # of other types columns are read by Arrow
    found = None if is_bytes(type_) else _cast(column, type_, sql_type)
    return _read_texts(column, field.name, sql_type, zone, before) if found is None else found


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


def _sql_type(type_: pa.DataType) -> Type | None:
    """The SQL type of Arrow's columns of dates, times, booleans, numbers, bytes and uuids, as tables have them."""
    if pa.types.is_decimal128(type_):
        return Type(Kind.NUMERIC, precision=type_.precision, scale=type_.scale)
    return _temporal(type_) or _TYPES.get(type_)


def _cast(column: pa.Array[Any], type_: pa.DataType, sql_type: Type) -> pa.Array[Any] | None:
    """The texts as Arrow reads them; None if it cannot, or not as SQL does."""
    try:
        found = column.cast(type_)
    except pa.ArrowInvalid:
        return None
    if sql_type.kind in FLOATS:
        return found if _is_in_range(column, found) else None
    if sql_type.kind is Kind.NUMERIC:
        return found if _all_match(column, _SAFE_DECIMAL) else None
    if sql_type.kind in TIMESTAMPS and _some(pa.compute.match_substring_regex(column, _NO_TIME)):
        return None
    temporal = sql_type.kind is Kind.DATE or sql_type.kind in TIMESTAMPS
    return None if temporal and not _in_usual_years(found) else found


def _is_in_range(column: pa.Array[Any], found: pa.Array[Any]) -> bool:
    """Whether no text became infinity, NaN, for which Arrow has more words than SQL, or 0 of another digit."""
    if _some(pa.compute.is_inf(found)) or _some(pa.compute.is_nan(found)):
        return False
    zero: Any = pa.scalar(0, found.type)  # any: the stubs are generic in types known at run time only
    zeros: Any = column.filter(pa.compute.equal(found, zero))
    return not _some(pa.compute.match_substring_regex(zeros, "^[^eE]*[1-9]"))


def _some(flags: Any) -> bool:
    return bool(pa.compute.any(flags).as_py())


def _all_match(column: pa.Array[Any], pattern: str) -> bool:
    return pa.compute.all(pa.compute.match_substring_regex(column, pattern)).as_py() is not False


def _read_texts(column: pa.Array[Any], name: str, sql_type: Type, zone: str, before: int) -> pa.Array[Any]:
    values = _values(column, name, sql_type, zone, before)
    return arrow_array(sql_type, values)  # type: ignore[no-any-return]  # of the column's type


def require_texts(batch: pa.RecordBatch, columns: Iterable[Column], zone: str, before: int) -> None:
    """The errors that SQL has for texts of a batch that are no values of the table's columns, with their rows."""
    for column in columns:
        if column.name in batch.schema.names and pa.types.is_string(batch.column(column.name).type):
            _values(batch.column(column.name), column.name, column.type, zone, before)


def _values(column: pa.Array[Any], name: str, sql_type: Type, zone: str, before: int) -> list[object]:
    """The values of the type that a column of texts has. Errors: what SQL has for one that is none, with its row."""
    read = reader(sql_type, zone)
    values: list[object] = []
    for row, text in enumerate(column.to_pylist(), before + 1):
        try:
            value = None if text is None else read(text)
            if isinstance(value, Decimal) and value.is_nan():
                raise errors.unsupported(f"loading NaN into a column of type {sql_type}")
            values.append(value)
        except errors.Error as error:
            place = _place(row, name)
            error.detail = place if error.detail is None else f"{error.detail}\n{place}"
            raise
    return values


def _place(row: int, name: str) -> str:
    return f'It is in row {row} of the file, column "{name}".'


def _in_usual_years(column: pa.Array[Any]) -> bool:
    days = pa.types.is_date32(column.type)
    first, last = _DAYS if days else _MICROSECONDS
    ends: Any = pa.compute.min_max(column.cast(pa.int32() if days else pa.int64())).as_py()
    return ends["min"] is None or (ends["min"] >= first and ends["max"] <= last)
