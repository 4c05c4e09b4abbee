"""DuckDB's side of types: literals, casts, order, common physical types, and what DuckDB's errors mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from instar import errors
from instar.sql.functions.model import Context, Sql
from instar.sql.functions.udfs import UDFS, duckdb_type, register
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    FLOATS,
    INTEGER,
    JSONB,
    MAX_NUMERIC_DIGITS,
    NUMBERS,
    NUMERIC,
    REAL,
    SMALLINT,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TIMESTAMPS,
    TIMESTAMPTZ,
    Kind,
    Type,
)
from instar.values import compile_cast, jsonb, numbers, writer
from instar.values.text import reader, uuid_text

_INTEGER_DIGITS = {Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}
# Up to this many characters a template may name its arguments more than once: beyond, nesting would grow the text
# exponentially. Volatile calls must be evaluated once in any case.
_REPEATABLE = 160
_VOLATILE = re.compile(r"random\(|uuid\(")


def repeatable(*texts: str) -> bool:
    """Whether these argument texts may be named more than once in a template."""
    return sum(map(len, texts)) <= _REPEATABLE and not any(map(_VOLATILE.search, texts))


def fail(sqlstate: str, message: str) -> str:
    """A DuckDB expression that raises this error."""
    return f"error({quote(f'[{sqlstate}] {message}')})"


def quote(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


# --- literals --------------------------------------------------------------------------------------------------------


def render_literal(value: object, type_: Type) -> Sql:
    """A constant. An unconstrained numeric's physical type is the digits it has; a NULL's is VARCHAR for numeric."""
    if value is None:
        return Sql(f"CAST(NULL AS {duckdb_type(type_)})", type_)
    kind = type_.kind
    if kind is Kind.NUMERIC:
        assert isinstance(value, Decimal)
        return _numeric_literal(value, type_)
    if kind is Kind.BOOLEAN:
        return Sql("TRUE" if value else "FALSE", type_)
    if kind in STRINGS or kind in (Kind.JSONB, Kind.UNKNOWN):
        return Sql(quote(str(value)), type_)
    if kind is Kind.BYTEA:
        assert isinstance(value, bytes)
        return Sql(f"unhex('{value.hex()}')", type_)
    if kind is Kind.UUID:
        assert isinstance(value, bytes)
        return Sql(f"CAST('{uuid_text(value)}' AS UUID)", type_)
    if kind is Kind.DATE:
        return Sql(f"(DATE '1970-01-01' + CAST({value} AS INTEGER))", type_)
    if kind in TIMESTAMPS:
        make = "make_timestamp" if kind is Kind.TIMESTAMP else "make_timestamptz"
        return Sql(f"{make}(CAST({value} AS BIGINT))", type_)
    if kind in FLOATS:
        return Sql(f"CAST('{value!r}' AS {duckdb_type(type_)})", type_)
    return Sql(f"CAST({value} AS {duckdb_type(type_)})", type_)


def _numeric_literal(value: Decimal, type_: Type) -> Sql:
    if value.is_nan():
        return Sql("'NaN'", NUMERIC)
    text = numbers.numeric_text(value)
    if type_.precision is None:
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        type_ = Type(Kind.NUMERIC, max(len(digits), -exponent, 1), -exponent)
    return Sql(f"CAST('{text}' AS {duckdb_type(type_)})", type_)


def is_null_literal(operand: Sql) -> bool:
    """Whether the operand is the NULL that `render_literal` writes."""
    return operand.text.startswith("CAST(NULL AS ")


# --- physical numerics -----------------------------------------------------------------------------------------------


def digits_of(type_: Type) -> Type:
    """The physical numeric(p,s) that an integer type is exactly; a numeric is left alone."""
    digits = _INTEGER_DIGITS.get(type_.kind)
    return type_ if digits is None else Type(Kind.NUMERIC, digits, 0)


def is_static(type_: Type) -> bool:
    """Whether a physical numeric is a DECIMAL, with one scale for all values."""
    return type_.kind is Kind.NUMERIC and type_.precision is not None


def as_text(operand: Sql) -> str:
    """A physical numeric as PostgreSQL's text."""
    if not is_static(operand.type):
        return operand.text
    precision, scale = operand.type.precision or 0, operand.type.scale or 0
    if precision > scale:
        return f"CAST({operand.text} AS VARCHAR)"
    if precision < MAX_NUMERIC_DIGITS:  # DuckDB leaves out the zero before the point where the type has no room for it
        return f"CAST(CAST({operand.text} AS DECIMAL({precision + 1},{scale})) AS VARCHAR)"
    return _plain(f"CAST({operand.text} AS VARCHAR)")


_plain = register("numeric_plain", lambda value: value, [NUMERIC], NUMERIC)


def unify(operands: Sequence[Sql]) -> list[Sql]:
    """Operands of one logical type brought to one physical type, for CASE, COALESCE, UNION, VALUES, IN lists.

    Numerics of different scales become VARCHAR: each value keeps its own scale. Then `scale` of the physical type is
    still the largest that there is.
    """
    if not any(operand.type.kind is Kind.NUMERIC for operand in operands):
        return list(operands)
    types = [operand.type for operand in operands if not is_null_literal(operand)]
    if not types:
        return list(operands)
    scales = {type_.scale or 0 for type_ in types}
    if len(scales) == 1 and all(is_static(type_) for type_ in types):
        common = Type(Kind.NUMERIC, max(type_.precision or 0 for type_ in types), scales.pop())
        return [_in_type(operand, common) for operand in operands]
    bounded = all(type_.scale is not None or type_.precision is not None for type_ in types)
    common = Type(Kind.NUMERIC, None, max(scales) if bounded else None)
    return [Sql("CAST(NULL AS VARCHAR)" if is_null_literal(o) else as_text(o), common) for o in operands]


def _in_type(operand: Sql, common: Type) -> Sql:
    if operand.type == common and not is_null_literal(operand):
        return operand
    return Sql(f"CAST({operand.text} AS {duckdb_type(common)})", common)


def sort_key(operand: Sql) -> str:
    """Text of what DuckDB compares, orders, groups and hashes as Instar does the operand (mostly the operand)."""
    if operand.type.kind is Kind.NUMERIC and not is_static(operand.type):
        return _numeric_key(operand.text)
    if operand.type.kind is Kind.JSONB:
        return _jsonb_key(operand.text)
    return operand.text


def numeric_bytes(value: Decimal) -> bytes:
    """Bytes whose order is that of numerics, equal for equal values of different scale; NaN last."""
    if value.is_nan():
        return b"\xff"
    if not value:
        return b"\x80"
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    magnitude = (len(text) + exponent + 0x4000).to_bytes(2) + bytes(ord(c) - 46 for c in text.rstrip("0")) + b"\x00"
    return b"\x40" + bytes(255 - byte for byte in magnitude) if sign else b"\xc0" + magnitude


def jsonb_bytes(text: str) -> bytes:
    """Bytes whose order is that of jsonb documents (`jsonb.sort_key`)."""
    return _flatten(jsonb.sort_key(text))


def _flatten(key: object) -> bytes:
    if isinstance(key, tuple):
        return b"".join(map(_flatten, key))
    if isinstance(key, bool):
        return b"\x01" if key else b"\x00"
    if isinstance(key, int):
        return key.to_bytes(5)
    if isinstance(key, Decimal):
        return numeric_bytes(key)
    assert isinstance(key, str)
    return key.encode() + b"\x00"  # jsonb strings hold no NUL


_numeric_key = register("numeric_key", numeric_bytes, [NUMERIC], BYTEA)
_jsonb_key = register("jsonb_key", jsonb_bytes, [JSONB], BYTEA)


# --- casts -----------------------------------------------------------------------------------------------------------


def render_cast(operand: Sql, target: Type, explicit: bool, context: Context) -> Sql:
    """CAST with Instar's meaning, from the operand's physical type. `target` is a logical type."""
    a, b = operand.type.kind, target.kind
    if is_null_literal(operand):
        return render_literal(None, target)
    if b in STRINGS:
        return _to_string(operand, target, explicit, context)
    if a in NUMBERS and b in NUMBERS:
        return _number_cast(operand, target)
    if a in STRINGS or a is Kind.UNKNOWN or a is Kind.JSONB:
        return operand if a is b else _parse(operand, target, context)
    if a is b:
        return operand
    if {a, b} == {Kind.BOOLEAN, Kind.INTEGER} or Kind.TIMESTAMPTZ not in (a, b):
        return Sql(f"CAST({operand.text} AS {duckdb_type(target)})", target)
    convert = _DATE_CASTS[a, b]
    return Sql(convert(operand.text, quote(context.zone)), target)


def _to_string(operand: Sql, target: Type, explicit: bool, context: Context) -> Sql:
    kind, text = operand.type.kind, operand.text
    if kind is Kind.NUMERIC:
        text = as_text(operand)
    elif kind is Kind.BYTEA:
        text = f"('\\x' || lower(hex({text})))"
    elif kind is Kind.TIMESTAMPTZ:
        text = _timestamptz_text(text, quote(context.zone))
    elif kind in _TEXTS:
        text = _TEXTS[kind](text)
    elif kind not in STRINGS and kind not in (Kind.JSONB, Kind.UNKNOWN):
        text = f"CAST({text} AS VARCHAR)"
    length = target.length
    if length is None or (kind is Kind.VARCHAR and operand.type.length == length):
        return Sql(text, target)
    if explicit:
        return Sql(f"left({text}, {length})", target)
    return Sql(_fit(text, f"{length}"), target)


def _check_length(value: str, length: int) -> str:
    if len(value) > length and value[length:].strip(" "):
        raise errors.error(errors.STRING_TOO_LONG, f"value too long for type character varying({length})")
    return value[:length]


_fit = register("fit", _check_length, [TEXT, INTEGER], TEXT)
_timestamptz_text = register(
    "timestamptz_text", lambda value, zone: writer(TIMESTAMPTZ, zone)(value), [TIMESTAMPTZ, TEXT], TEXT
)
_TEXTS = {
    type_.kind: register(f"{type_.kind.name.lower()}_text", writer(type_), [type_], TEXT)
    for type_ in (REAL, DOUBLE, DATE, TIMESTAMP)
}


def _number_cast(operand: Sql, target: Type) -> Sql:
    a, b, text = operand.type.kind, target.kind, operand.text
    if b is Kind.NUMERIC:
        return _to_numeric(operand, target)
    if a is Kind.NUMERIC:
        if b in FLOATS:  # by way of text, which is read exactly; DuckDB's own division by 10^s is not
            return Sql(_numeric_floats[b](as_text(operand)), target)
        if not is_static(operand.type):
            return Sql(_numeric_integers[b](text), target)
    elif a is b or (a is Kind.DOUBLE and b is Kind.REAL):
        return operand if a is b else Sql(_single(text), target)
    return Sql(f"CAST({text} AS {duckdb_type(target)})", target)


def _to_numeric(operand: Sql, target: Type) -> Sql:
    source = digits_of(operand.type)
    if source.kind in FLOATS and target.precision is not None:
        # At once: what no numeric without a scale has digits for may round to one with it.
        scaled = _scaled_numerics[source.kind](operand.text, f"{target.precision}", f"{target.scale or 0}")
        return Sql(f"CAST({scaled} AS {duckdb_type(target)})", target)
    if source.kind in FLOATS:
        operand = Sql(_float_numerics[source.kind](operand.text), NUMERIC)
        source = NUMERIC
    if target.precision is None:
        return Sql(f"CAST({operand.text} AS {duckdb_type(source)})", source) if source != operand.type else operand
    if is_static(source):
        same = source == Type(Kind.NUMERIC, target.precision, target.scale or 0)
        return operand if same else Sql(f"CAST({operand.text} AS {duckdb_type(target)})", target)
    constrained = _constrain(operand.text, f"{target.precision}", f"{target.scale or 0}")
    return Sql(f"CAST({constrained} AS {duckdb_type(target)})", target)


def _constrained(value: Decimal, precision: int, scale: int) -> Decimal:
    finish = numbers.constrain(Type(Kind.NUMERIC, precision, scale))
    assert finish is not None
    return _not_nan(finish(value))


def _not_nan(value: Decimal) -> Decimal:
    if value.is_nan():
        raise errors.unsupported("NaN as numeric(p,s) in an analytic query")
    return value


def _scaled(source: Type) -> Callable[[object, int, int], Decimal]:
    """Floats or texts to numeric(p,s)."""

    @lru_cache(maxsize=64)
    def into(precision: int, scale: int) -> Callable[..., Any]:
        return _closure(source, Type(Kind.NUMERIC, precision, scale))

    return lambda value, precision, scale: _not_nan(into(precision, scale)(value))


def _closure(source: Type, target: Type) -> Callable[..., object]:
    closure = compile_cast(source, target, explicit=True)
    assert closure is not None
    return closure


_constrain = register("constrain", _constrained, [NUMERIC, INTEGER, INTEGER], NUMERIC)
_single = register("double_real", numbers.single, [DOUBLE], REAL)
_float_numerics = {
    type_.kind: register(f"{type_.kind.name.lower()}_numeric", _closure(type_, NUMERIC), [type_], NUMERIC)
    for type_ in (REAL, DOUBLE)
}
_scaled_numerics = {
    type_.kind: register(f"{type_.kind.name.lower()}_scaled", _scaled(type_), [type_, INTEGER, INTEGER], NUMERIC)
    for type_ in (REAL, DOUBLE, TEXT)
}
_numeric_floats = {
    type_.kind: register(f"numeric_{type_.kind.name.lower()}", _closure(NUMERIC, type_), [NUMERIC], type_)
    for type_ in (REAL, DOUBLE)
}
_numeric_integers = {
    type_.kind: register(f"numeric_{type_.kind.name.lower()}", _closure(NUMERIC, type_), [NUMERIC], type_)
    for type_ in (SMALLINT, INTEGER, BIGINT)
}


def _parse(operand: Sql, target: Type, context: Context) -> Sql:
    """Text or a jsonb scalar to something else: our reader."""
    if target.kind is Kind.NUMERIC and target.precision is not None and operand.type.kind is not Kind.JSONB:
        scaled = _scaled_numerics[Kind.TEXT](operand.text, f"{target.precision}", f"{target.scale or 0}")
        return Sql(f"CAST({scaled} AS {duckdb_type(target)})", target)
    family = _JSONB_READERS if operand.type.kind is Kind.JSONB else _READERS
    args = (operand.text, quote(context.zone)) if target.kind is Kind.TIMESTAMPTZ else (operand.text,)
    read = family[target.kind](*args)
    if target.kind is Kind.NUMERIC:
        return _to_numeric(Sql(read, NUMERIC), target)
    return Sql(f"CAST({read} AS UUID)" if target.kind is Kind.UUID else read, target)


def _uuid_from(text: str) -> str:
    value = reader(Type(Kind.UUID))(text)
    assert isinstance(value, bytes)
    return uuid_text(value)


_READERS = {
    type_.kind: register(f"read_{type_.kind.name.lower()}", reader(type_), [TEXT], type_)
    for type_ in (BOOLEAN, SMALLINT, INTEGER, BIGINT, REAL, DOUBLE, NUMERIC, BYTEA, DATE, TIMESTAMP, JSONB)
}
_READERS[Kind.UUID] = register("read_uuid", _uuid_from, [TEXT], TEXT)
_READERS[Kind.TIMESTAMPTZ] = register(
    "read_timestamptz", lambda text, zone: reader(TIMESTAMPTZ, zone)(text), [TEXT, TEXT], TIMESTAMPTZ
)
_JSONB_READERS = {
    type_.kind: register(f"jsonb_{type_.kind.name.lower()}", _closure(JSONB, type_), [JSONB], type_)
    for type_ in (BOOLEAN, SMALLINT, INTEGER, BIGINT, REAL, DOUBLE, NUMERIC)
}


def _date_cast(source: Type, target: Type) -> Callable[..., str]:
    def convert(value: int, zone: str) -> object:
        closure = compile_cast(source, target, explicit=True, zone=zone)
        assert closure is not None
        return closure(value)

    return register(f"{source.kind.name.lower()}_{target.kind.name.lower()}", convert, [source, TEXT], target)


_DATE_CASTS = {
    (source.kind, target.kind): _date_cast(source, target)
    for source, target in (
        (DATE, TIMESTAMPTZ),
        (TIMESTAMP, TIMESTAMPTZ),
        (TIMESTAMPTZ, DATE),
        (TIMESTAMPTZ, TIMESTAMP),
    )
}

# --- errors ----------------------------------------------------------------------------------------------------------

_OURS = re.compile(r"\[([0-9A-Z]{5})\] (.*)", re.DOTALL)
_MEANINGS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), sqlstate, message)
    for pattern, sqlstate, message in (
        (r"division by zero|divide by zero", errors.DIVISION_BY_ZERO, "division by zero"),
        (r"argument for ntile must be", errors.INVALID_NTILE_ARGUMENT, "argument of ntile must be greater than zero"),
        (r"window \w+ \w+ expression cannot be negative|invalid groups (preceding|following) value",
         errors.INVALID_FRAME_OFFSET,
         "the offset of a frame must be neither negative nor null"),
        # The offsets of RANGE are known to be good: one is infinite, and so is the key that it does not move.
        (r"invalid range (preceding|following) value", errors.FEATURE_NOT_SUPPORTED,
         "a RANGE frame whose offset does not change a value is not supported"),
        (r"window functions are not allowed in window definitions", errors.FEATURE_NOT_SUPPORTED,
         "a subquery with window functions within a window's definition is not supported"),
        (r"subqueries are not supported in lateral join conditions", errors.FEATURE_NOT_SUPPORTED,
         "a subquery in the condition of a join with LATERAL is not supported in an analytic query"),
        (r"more than one row returned by a subquery", errors.CARDINALITY_VIOLATION,
         "more than one row returned by a subquery used as an expression"),
        # The wider integer takes all of the narrower: it is a date that becomes a timestamp.
        (r"INT32 with value .* destination type INT64", errors.DATETIME_OVERFLOW, "date out of range for timestamp"),
        (r"overflow in .*INT16|INT16", errors.NUMERIC_OUT_OF_RANGE, "smallint out of range"),
        (r"overflow in .*INT32|INT32", errors.NUMERIC_OUT_OF_RANGE, "integer out of range"),
        (r"overflow in .*INT64|INT64", errors.NUMERIC_OUT_OF_RANGE, "bigint out of range"),
        (r"DECIMAL|HUGEINT|INT128", errors.NUMERIC_OUT_OF_RANGE, "numeric field overflow"),
        (r"date|timestamp", errors.DATETIME_OVERFLOW, "date or timestamp out of range"),
        (r"overflow|out of range|out-of-range", errors.NUMERIC_OUT_OF_RANGE, "value out of range"),
        (r"could not write|no space left|out of disk", errors.DISK_FULL, "no space for temporary data"),
        (r"out of memory|memory limit", errors.OUT_OF_MEMORY, "out of memory"),
        (r"interrupt", errors.QUERY_CANCELED, "canceling statement due to user request"),
    )
)  # fmt: skip


def duckdb_error(message: str) -> errors.Error:
    """The error that DuckDB's message stands for; texts of ours carry "[SQLSTATE] " in front. Else XX000."""
    ours = _OURS.search(message)
    if ours:
        return errors.error(ours[1], ours[2].split("\n\n")[0].strip())
    if message.startswith(("INTERNAL Error", "FATAL Error")):
        # What follows is a stack, where words stand for nothing.
        return errors.error(errors.INTERNAL_ERROR, message.partition("\n")[0], detail=message)
    for pattern, sqlstate, text in _MEANINGS:
        if pattern.search(message):
            return errors.error(sqlstate, text, detail=message)
    return errors.error(errors.INTERNAL_ERROR, message)


__all__ = ["UDFS", "duckdb_error", "duckdb_type", "render_cast", "render_literal", "sort_key", "unify"]
