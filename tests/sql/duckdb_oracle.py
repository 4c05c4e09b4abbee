"""A DuckDB connection with our UDFs, fed with internal values and read back as such: the other side of the table."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from instar import errors
from instar.sql.functions import UDFS, Context, Sql, duckdb_error, duckdb_type
from instar.types import Kind, Type
from instar.values import numbers

CONTEXT = Context(now=1_700_000_000_000_000, zone="Europe/Berlin")

_ARROW = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.SMALLINT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.REAL: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BYTEA: pa.binary(),
    Kind.DATE: pa.int32(),
    Kind.TIMESTAMP: pa.int64(),
    Kind.TIMESTAMPTZ: pa.int64(),
}
_LOGICAL = {Kind.DATE: pa.date32(), Kind.TIMESTAMP: pa.timestamp("us"), Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC")}


def connect() -> Any:
    """A connection as analytic.py makes it: UDFs registered, one thread, another time zone than the session's."""
    connection: Any = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'America/New_York'")
    for udf in UDFS.values():
        connection.create_function(
            udf.name,
            udf.batch,
            list(udf.parameters),
            udf.result,
            type="arrow",
            null_handling="special",
            side_effects=udf.volatile,
        )
    return connection


def column(values: Sequence[Any], type_: Type) -> pa.Array:
    """Internal values as an Arrow array of their physical type."""
    if type_.kind is Kind.NUMERIC:
        if type_.precision is not None:
            return pa.array(values, pa.decimal128(type_.precision, type_.scale or 0))
        return pa.array([None if value is None else numbers.numeric_text(value) for value in values], pa.string())
    if type_.kind is Kind.UUID:
        return pa.array([None if value is None else value.hex() for value in values], pa.string())
    arrow: Any = _ARROW.get(type_.kind, pa.string())
    array: Any = pa.array(values, arrow)
    return array.cast(_LOGICAL[type_.kind]) if type_.kind in _LOGICAL else array


def table(rows: Sequence[Sequence[Any]], types: Sequence[Type]) -> tuple[pa.Table, list[Sql]]:
    """Rows of internal values as an Arrow table, and a reference to each column."""
    columns = [column([row[i] for row in rows], type_) for i, type_ in enumerate(types)]
    names = [f"c{i}" for i in range(len(types))]
    references = [
        Sql(f"CAST({name} AS UUID)" if type_.kind is Kind.UUID else name, type_)
        for name, type_ in zip(names, types, strict=True)
    ]
    return pa.Table.from_arrays([*columns, pa.array(range(len(rows)))], [*names, "row_"]), references


def read(connection: Any, text: str, type_: Type, source: pa.Table | None = None) -> list[Any]:
    """Internal values of the one column of a query over `source`. Errors: what `duckdb_error` makes of DuckDB's."""
    if type_.kind in (Kind.UUID,):
        text = f"CAST({text} AS VARCHAR)"
    query = f"SELECT {text} AS result"
    try:
        if source is not None:
            connection.register("source_", source)
            query += " FROM source_ ORDER BY row_"
        result = connection.execute(query).to_arrow_table().column(0).combine_chunks()
    except duckdb.Error as fault:
        raise duckdb_error(str(fault)) from fault
    return internal(result, type_)


def internal(result: pa.Array, type_: Type) -> list[Any]:
    """An Arrow array of a physical type as internal values."""
    if type_.kind is Kind.DATE:
        assert result.type == pa.date32(), result.type
        return result.cast(pa.int32()).to_pylist()
    if type_.kind in _LOGICAL:
        return result.cast(pa.timestamp("us", result.type.tz)).cast(pa.int64()).to_pylist()
    values = result.to_pylist()
    if type_.kind is Kind.NUMERIC and type_.precision is None:
        assert pa.types.is_string(result.type), (result.type, type_)
        return [None if value is None else Decimal(value) for value in values]
    if type_.kind is Kind.UUID:
        return [None if value is None else bytes.fromhex(value.replace("-", "")) for value in values]
    expected = _ARROW.get(type_.kind)
    if type_.kind is Kind.NUMERIC:
        expected = pa.decimal128(type_.precision, type_.scale or 0)
    assert expected is None or result.type == expected, (result.type, type_, duckdb_type(type_))
    return values


def outcome(compute: Any, *args: Any) -> Any:
    """The value, or the SQLSTATE of the error."""
    try:
        return compute(*args)
    except errors.Error as fault:
        return ("error", fault.sqlstate)


def same(a: Any, b: Any) -> bool:
    """Equal, scale included for numerics, NaN equal to itself; floats to the last but few bits."""
    if isinstance(a, float) and isinstance(b, float):
        if a != a or b != b:
            return a != a and b != b
        return a == b or abs(a - b) <= 1e-14 * max(abs(a), abs(b))
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        return str(a) == str(b)
    return type(a) is type(b) and a == b
