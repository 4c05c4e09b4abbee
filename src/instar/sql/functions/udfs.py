"""Our closures as DuckDB scalar functions over Arrow arrays: for what DuckDB itself would answer differently."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from instar import errors
from instar.types import Kind, Type
from instar.values import numbers

_DUCKDB: dict[Kind, str] = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.SMALLINT: "SMALLINT",
    Kind.INTEGER: "INTEGER",
    Kind.BIGINT: "BIGINT",
    Kind.REAL: "FLOAT",
    Kind.DOUBLE: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.VARCHAR: "VARCHAR",
    Kind.BYTEA: "BLOB",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.TIMESTAMPTZ: "TIMESTAMPTZ",
    Kind.UUID: "UUID",
    Kind.JSONB: "VARCHAR",
    Kind.UNKNOWN: "VARCHAR",
}


def duckdb_type(type_: Type) -> str:
    """How values of a *physical* type travel to, in and from DuckDB.

    jsonb: VARCHAR of the canonical text. numeric(p,s): DECIMAL(p,s); NaN cannot travel so. numeric without
    precision: VARCHAR of PostgreSQL's text ('1.50', 'NaN'), whose scale is part of the value; to be compared, ordered
    and grouped by `sort_key` only. timestamptz: TIMESTAMPTZ, whatever the connection's TimeZone is set to.
    """
    if type_.kind is Kind.NUMERIC:
        return "VARCHAR" if type_.precision is None else f"DECIMAL({type_.precision},{type_.scale or 0})"
    return _DUCKDB[type_.kind]


class Udf(msgspec.Struct, frozen=True):
    """A scalar function for `connection.create_function(name, batch, parameters, result, type="arrow",
    null_handling="special")`; `batch` maps Arrow arrays to an Arrow array. Volatile ones need side_effects=True.

    An error of the closure leaves as a message that begins with "[SQLSTATE] ", for `duckdb_error` to read.
    """

    name: str
    batch: Callable[..., Any]
    parameters: tuple[str, ...]
    result: str
    volatile: bool = False


UDFS: dict[str, Udf] = {}
PREFIX = "instar_"

STRING_LIST = "VARCHAR[]"


class UdfError(Exception):
    """Carries SQLSTATE and message through DuckDB."""


def register(
    name: str,
    closure: Callable[..., object],
    parameters: Sequence[Type | str],
    result: Type | str,
    *,
    strict: bool = True,
    volatile: bool = False,
) -> Callable[..., str]:
    """Put a closure on internal values into `UDFS`; the result writes a call of it from the texts of its arguments.

    Numeric parameters and results are VARCHAR (their text); uuid ones are not possible. A parameter that is a str is
    DuckDB's type itself, whose values come as Arrow gives them; a result may be STRING_LIST.
    """
    full = PREFIX + name
    readers = [_reader(parameter) if isinstance(parameter, Type) else None for parameter in parameters]
    finish = _finisher(result)

    def batch(*columns: Any) -> Any:
        lists = [_load(column, read) for column, read in zip(columns, readers, strict=True)]
        try:
            if strict:
                return finish([None if None in row else closure(*row) for row in zip(*lists, strict=True)])
            return finish([closure(*row) for row in zip(*lists, strict=True)])
        except errors.Error as fault:
            raise UdfError(f"[{fault.sqlstate}] {fault.message}") from None

    _declare(batch, len(parameters))
    kinds = tuple(p if isinstance(p, str) else duckdb_type(Type(p.kind)) for p in parameters)
    returned = result if isinstance(result, str) else duckdb_type(Type(result.kind))
    UDFS[full] = Udf(full, batch, kinds, returned, volatile)
    return lambda *args: f"{full}({', '.join(args)})"


def register_batch(
    name: str, batch: Callable[..., Any], parameters: Sequence[Type], result: Type
) -> Callable[..., str]:
    """Put a function on Arrow arrays into `UDFS` as it is: the vectorised form of `register`."""
    full = PREFIX + name

    def guarded(*columns: Any) -> Any:
        try:
            return batch(*columns)
        except errors.Error as fault:
            raise UdfError(f"[{fault.sqlstate}] {fault.message}") from None

    _declare(guarded, len(parameters))
    UDFS[full] = Udf(full, guarded, tuple(map(duckdb_type, parameters)), duckdb_type(result))
    return lambda *args: f"{full}({', '.join(args)})"


def _declare(batch: Callable[..., Any], count: int) -> None:
    """DuckDB counts the parameters of the signature, and takes *columns for one."""
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"column{i}", kind) for i in range(count)]
    batch.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # not in typeshed's Callable


def _reader(type_: Type) -> Callable[[Any], Any] | None:
    return Decimal if type_.kind is Kind.NUMERIC else None


def _load(column: Any, read: Callable[[Any], Any] | None) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    if read is not None:
        return [None if value is None else read(value) for value in values]
    return values


def _finisher(result: Type | str) -> Callable[[list[Any]], Any]:
    if isinstance(result, str):
        return _string_lists
    numeric = result.kind is Kind.NUMERIC

    def finish(values: list[Any]) -> Any:
        import pyarrow as pa

        if numeric:
            values = [None if value is None else numbers.numeric_text(value) for value in values]
        physical, logical = _arrow_types(result.kind)
        column = pa.array(values, physical)
        return column if logical is None else column.cast(logical)

    return finish


def _string_lists(values: list[Any]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.list_(pa.string()))


@functools.cache
def _arrow_types(kind: Kind) -> tuple[Any, Any]:
    """The Arrow type in which internal values are written, and the one of the column if it is another."""
    import pyarrow as pa

    return {
        Kind.BOOLEAN: (pa.bool_(), None),
        Kind.SMALLINT: (pa.int16(), None),
        Kind.INTEGER: (pa.int32(), None),
        Kind.BIGINT: (pa.int64(), None),
        Kind.REAL: (pa.float32(), None),
        Kind.DOUBLE: (pa.float64(), None),
        Kind.BYTEA: (pa.binary(), None),
        Kind.DATE: (pa.int32(), pa.date32()),
        Kind.TIMESTAMP: (pa.int64(), pa.timestamp("us")),
        Kind.TIMESTAMPTZ: (pa.int64(), pa.timestamp("us", "UTC")),
    }.get(kind, (pa.string(), None))
