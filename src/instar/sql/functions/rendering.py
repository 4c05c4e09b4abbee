"""DuckDB's side of types: how values travel, literals, casts, order, and what DuckDB's errors mean.

What cannot be said in DuckDB's own functions with exactly our answer is said by a *UDF*: one of our closures,
registered with the connection by analytic.py under the name that the text uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from instar import errors
from instar.sql.functions.model import Context, Sql
from instar.types import Kind, Type


@dataclass(frozen=True, slots=True)
class Udf:
    """A scalar function for `connection.create_function(name, batch, parameters, result, type="arrow",
    null_handling="special")`; `batch` maps Arrow arrays to an Arrow array. Volatile ones need side_effects=True."""

    name: str
    batch: Callable[..., object]
    parameters: tuple[str, ...]
    result: str
    volatile: bool = False


UDFS: dict[str, Udf] = {}

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


def render_literal(value: object, type_: Type) -> Sql:
    """A constant; a numeric's physical type is the digits it has."""
    raise errors.unsupported("literal")


def render_cast(operand: Sql, target: Type, explicit: bool, context: Context) -> Sql:
    """CAST with Instar's meaning, from the operand's physical type. `target` is a logical type."""
    raise errors.unsupported("cast")


def sort_key(operand: Sql) -> str:
    """Text of what DuckDB compares, orders, groups and hashes as Instar does the operand (mostly the operand)."""
    return operand.text


def unify(operands: Sequence[Sql]) -> list[Sql]:
    """Operands of one logical type brought to one physical type, for CASE, COALESCE, UNION, VALUES, IN lists."""
    return list(operands)


def duckdb_error(message: str) -> errors.Error:
    """The error that DuckDB's message stands for; texts of ours carry "[SQLSTATE] " in front."""
    return errors.error(errors.INTERNAL_ERROR, message)
