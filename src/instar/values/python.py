"""Python objects to internal values and back: what a DB-API driver takes and gives."""

from __future__ import annotations

import datetime
import functools
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from instar import errors
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    FLOATS,
    INTEGER,
    INTEGER_RANGES,
    INTEGERS,
    JSONB,
    MAX_NUMERIC_DIGITS,
    NUMERIC,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    Kind,
    Type,
)
from instar.values import datetimes, jsonb, numbers
from instar.values.text import reader

_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()


def type_of_python(value: object) -> Type:
    """The type of a parameter that no context decides. Errors: 42804 for an object of a class Instar does not know."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        for type_ in (INTEGER, BIGINT):
            low, high = INTEGER_RANGES[type_.kind]
            if low <= value <= high:
                return type_
        return NUMERIC
    if isinstance(value, datetime.datetime):
        return TIMESTAMP if value.tzinfo is None else TIMESTAMPTZ
    for kind, type_ in _TYPES.items():
        if isinstance(value, kind):
            return type_
    raise errors.error(errors.DATATYPE_MISMATCH, f"cannot use a Python {type(value).__name__} as a parameter")


_TYPES: dict[type, Type] = {
    str: TEXT,
    float: DOUBLE,
    Decimal: NUMERIC,
    bytes: BYTEA,
    bytearray: BYTEA,
    memoryview: BYTEA,
    datetime.date: DATE,
    uuid.UUID: UUID,
    dict: JSONB,
    list: JSONB,
}


def from_python(type_: Type, value: Any, zone: str = "UTC") -> Any:
    """The internal value of a parameter of this type. A str for a type that is not text is read as its text.

    A naive datetime for a timestamptz is in the session's `zone`; an aware one for a timestamp is brought there.
    Errors: 42804 for a class that does not go with the type, and those of `from_text`.
    """
    if value is None:
        return None
    converter = _CONVERTERS.get((type_.kind, value.__class__))
    if converter is not None:
        return converter(type_, value)
    if isinstance(value, str):
        _require_encodable(value)
    if type_.kind is Kind.JSONB:
        return jsonb.canonical(value) if isinstance(value, str) else _jsonb(value)
    if isinstance(value, str):
        return reader(type_, zone)(str(value))
    if type_.kind in datetimes.KINDS and isinstance(value, datetime.date):
        return _from_date(type_, value, zone)
    for kind in _ABSTRACT:
        if isinstance(value, kind):
            converter = _CONVERTERS.get((type_.kind, kind))
            if converter is not None:
                return converter(type_, kind(value))
            break
    if hasattr(value, "item") and callable(value.item) and getattr(value, "shape", None) == ():
        return from_python(type_, value.item(), zone)  # a NumPy scalar
    raise errors.error(
        errors.DATATYPE_MISMATCH, f"cannot use a Python {value.__class__.__name__} as a parameter of type {type_}"
    )


def converter(type_: Type, zone: str = "UTC") -> Callable[[Any], Any]:
    """`from_python` for many values of one type: a lookup by class and a call."""
    by_class = {known: functools.partial(convert, type_) for known, convert in _BY_KIND.get(type_.kind, ())}

    def apply(value: Any) -> Any:
        found = by_class.get(value.__class__)
        return from_python(type_, value, zone) if found is None else found(value)

    return apply


_ABSTRACT: tuple[Any, ...] = (bool, int, float, Decimal, bytes, bytearray, memoryview)


def to_python(type_: Type) -> Callable[[Any], Any] | None:
    """The closure from internal values (not None) to objects of the standard library; None: they are such already.

    Errors of the closure: 22008 for a date or time outside the years 1 to 9999.
    """
    return _TO_PYTHON.get(type_.kind)


def _integer(type_: Type, value: int) -> int:
    low, high = INTEGER_RANGES[type_.kind]
    if low <= value <= high:
        return value
    raise numbers.out_of_range(type_.kind)


def _integer_from_float(type_: Type, value: float) -> int:
    if not math.isfinite(value) or value != int(value):
        raise errors.error(errors.INVALID_TEXT, f'invalid input syntax for type {type_}: "{value}"')
    return _integer(type_, int(value))


def _integer_from_decimal(type_: Type, value: Decimal) -> int:
    if not value.is_finite() or value != value.to_integral_value():
        raise errors.error(errors.INVALID_TEXT, f'invalid input syntax for type {type_}: "{value}"')
    if value.adjusted() > 20:
        raise numbers.out_of_range(type_.kind)
    return _integer(type_, int(value))


def _real(type_: Type, value: float) -> float:
    return numbers.single(value)


def _float(type_: Type, value: int | Decimal) -> float:
    try:
        result = float(value)
    except OverflowError:
        raise numbers.out_of_range(type_.kind) from None
    except ValueError:  # a signalling NaN
        return math.nan
    if math.isinf(result) and not (isinstance(value, Decimal) and value.is_infinite()):
        raise numbers.out_of_range(type_.kind)
    return numbers.single(result) if type_.kind is Kind.REAL else result


def _numeric(type_: Type, value: Decimal) -> Decimal:
    if value.is_infinite():
        raise errors.error(errors.NUMERIC_OUT_OF_RANGE, "numeric cannot hold an infinite value")
    finish = numbers.constrain(type_)
    if finish is None:
        return numbers.fits(value)
    if not value.is_nan() and value and value.adjusted() > MAX_NUMERIC_DIGITS:
        raise numbers.out_of_range(Kind.NUMERIC)
    return finish(value)


def _numeric_from_int(type_: Type, value: int) -> Decimal:
    if abs(value) >= 10**MAX_NUMERIC_DIGITS:
        raise numbers.out_of_range(Kind.NUMERIC)
    return _numeric(type_, Decimal(value))


def _numeric_from_float(type_: Type, value: float) -> Decimal:
    return _numeric(type_, Decimal(repr(value)))


def _string(type_: Type, value: str) -> str:
    if "\0" in value or (type_.length is not None and len(value) > type_.length):
        return str(reader(type_)(value))
    _require_encodable(value)
    return value


def _require_encodable(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise errors.error(
            errors.CHARACTER_NOT_IN_REPERTOIRE, 'invalid byte sequence for encoding "UTF8": a lone surrogate'
        ) from None


def _same(type_: Type, value: Any) -> Any:
    return value


def _bytes(type_: Type, value: bytearray | memoryview) -> bytes:
    return bytes(value)


def _uuid(type_: Type, value: uuid.UUID) -> bytes:
    return value.bytes


def _uuid_from_bytes(type_: Type, value: bytes) -> bytes:
    if len(value) != 16:
        raise errors.error(errors.INVALID_TEXT, "invalid input for type uuid: 16 bytes are needed")
    return value


def _jsonb(value: object) -> str:
    text = jsonb.write(value)
    return jsonb.canonical(text)  # objects nested in the parameter are checked as text is


def _from_date(type_: Type, value: datetime.date, zone: str) -> int:
    if not isinstance(value, datetime.datetime):
        days = value.toordinal() - _EPOCH_ORDINAL
        if type_.kind is Kind.DATE:
            return days
        micros = days * datetimes.DAY
        return micros if type_.kind is Kind.TIMESTAMP else datetimes.to_utc(micros, zone)
    if value.tzinfo is None:
        local = (value - _EPOCH) // _MICROSECOND
        if type_.kind is Kind.TIMESTAMPTZ:
            return datetimes.to_utc(local, zone)
    else:
        instant = (value - _EPOCH_UTC) // _MICROSECOND
        if type_.kind is Kind.TIMESTAMPTZ:
            return instant
        local = datetimes.to_local(instant, zone)
    return local if type_.kind is Kind.TIMESTAMP else local // datetimes.DAY


def _table() -> dict[tuple[Kind, type], Callable[[Type, Any], Any]]:
    table: dict[tuple[Kind, type], Callable[[Type, Any], Any]] = {
        (Kind.BOOLEAN, bool): _same,
        (Kind.NUMERIC, int): _numeric_from_int,
        (Kind.NUMERIC, float): _numeric_from_float,
        (Kind.NUMERIC, Decimal): _numeric,
        (Kind.BYTEA, bytes): _same,
        (Kind.BYTEA, bytearray): _bytes,
        (Kind.BYTEA, memoryview): _bytes,
        (Kind.UUID, uuid.UUID): _uuid,
        (Kind.UUID, bytes): _uuid_from_bytes,
        (Kind.REAL, float): _real,
        (Kind.DOUBLE, float): _same,
    }
    for kind in INTEGERS:
        table |= {(kind, int): _integer, (kind, float): _integer_from_float, (kind, Decimal): _integer_from_decimal}
    for kind in FLOATS:
        table |= {(kind, int): _float, (kind, Decimal): _float}
    for kind in STRINGS:
        table[kind, str] = _string
    return table


_CONVERTERS = _table()
_BY_KIND: dict[Kind, list[tuple[type, Callable[[Type, Any], Any]]]] = {}
for (_kind, _class), _convert in _CONVERTERS.items():
    _BY_KIND.setdefault(_kind, []).append((_class, _convert))


def _to_date(days: int) -> datetime.date:
    try:
        return datetime.date.fromordinal(days + _EPOCH_ORDINAL)
    except (ValueError, OverflowError):
        raise _not_in_python(datetimes.date_text(days)) from None


def _to_datetime(micros: int) -> datetime.datetime:
    try:
        return _EPOCH + datetime.timedelta(microseconds=micros)
    except OverflowError:
        raise _not_in_python(datetimes.timestamp_text(micros)) from None


def _to_datetime_utc(micros: int) -> datetime.datetime:
    try:
        return _EPOCH_UTC + datetime.timedelta(microseconds=micros)
    except OverflowError:
        raise _not_in_python(datetimes.timestamptz_text(micros, "UTC")) from None


def _not_in_python(text: str) -> errors.Error:
    return errors.error(
        errors.DATETIME_OVERFLOW,
        f"{text} is outside the years 1 to 9999 of Python's datetime",
        hint="Cast it to text.",
    )


def _to_json(text: str) -> Any:
    """As json.loads gives it: numbers are int or float."""
    return _plain(jsonb.parse(text))


def _plain(document: Any) -> Any:
    if isinstance(document, Decimal):
        return int(document) if document.as_tuple().exponent == 0 else float(document)
    if isinstance(document, list):
        return [_plain(value) for value in document]
    if isinstance(document, dict):
        return {key: _plain(value) for key, value in document.items()}
    return document


_TO_PYTHON: dict[Kind, Callable[[Any], Any]] = {
    Kind.DATE: _to_date,
    Kind.TIMESTAMP: _to_datetime,
    Kind.TIMESTAMPTZ: _to_datetime_utc,
    Kind.UUID: lambda value: uuid.UUID(bytes=value),
    Kind.JSONB: _to_json,
}
