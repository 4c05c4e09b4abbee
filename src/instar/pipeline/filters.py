"""Filters that Spark pushes down, as a range of primary keys: equality on leading columns, then bounds on the next."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from instar.catalog.descriptors import Table
from instar.encoding import keys
from instar.tables.view import END
from instar.types import INTEGERS, STRINGS, Kind, Type

_EPOCH = datetime.datetime(1970, 1, 1)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MICROSECOND = datetime.timedelta(microseconds=1)


def narrowed(table: Table, filters: Iterable[Filter]) -> tuple[bytes, bytes]:
    """[start, stop) of the encoded primary keys that can satisfy all of `filters`; perhaps some that do not."""
    listed = list(filters)
    by_id = {column.id: column for column in table.columns}
    prefix = b""
    for column_id in table.primary_key:
        column = by_id[column_id]
        bounds = _Bounds(column.type)
        for found in listed:
            if getattr(found, "attribute", None) == (column.name,):
                bounds.add(found)
        if bounds.equal is not None:
            prefix += keys.encode_component(bounds.equal, column.type.kind)
            continue
        if bounds.low is not None or bounds.high is not None:
            return keys.key_range(
                prefix,
                column.type,
                low=bounds.low,
                low_inclusive=bounds.low_inclusive,
                high=bounds.high,
                high_inclusive=bounds.high_inclusive,
            )
        break
    return (prefix, keys.successor(prefix)) if prefix else (b"", END)


class _Bounds:
    """What the filters say of one column, in internal values."""

    def __init__(self, type_: Type) -> None:
        self._type = type_
        self.equal: Any = None
        self.low: Any = None
        self.low_inclusive = True
        self.high: Any = None
        self.high_inclusive = True

    def add(self, found: Filter) -> None:
        """Take a filter into account; one that says nothing about keys is left to Spark."""
        value = internal(self._type, getattr(found, "value", None))
        if value is None:
            return
        if isinstance(found, EqualTo):
            self.equal = value
        elif isinstance(found, (GreaterThan, GreaterThanOrEqual)):
            if self.low is None or value > self.low:
                self.low, self.low_inclusive = value, isinstance(found, GreaterThanOrEqual)
        elif isinstance(found, (LessThan, LessThanOrEqual)) and (self.high is None or value < self.high):
            self.high, self.high_inclusive = value, isinstance(found, LessThanOrEqual)


def internal(type_: Type, value: object) -> Any:
    """Spark's literal as an internal value of a key column; None if it is none or if its order is another one.

    (A numeric without modifiers and jsonb are text in Spark, floats have NaN: left to Spark.)
    """
    kind = type_.kind
    if kind is Kind.BOOLEAN:
        return value if isinstance(value, bool) else None
    if kind in INTEGERS:
        fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        return value if fits else None
    if kind in STRINGS:
        return value if isinstance(value, str) else None
    if kind is Kind.NUMERIC and type_.precision is not None:
        return value if isinstance(value, Decimal) else None
    if kind is Kind.BYTEA:
        return bytes(value) if isinstance(value, (bytes, bytearray)) else None
    if kind is Kind.UUID:
        return bytes.fromhex(value.replace("-", "")) if isinstance(value, str) and _UUID.fullmatch(value) else None
    return _moment(kind, value)


def _moment(kind: Kind, value: object) -> int | None:
    """Dates and timestamps; Spark's session time zone is taken out of the latter by `tzinfo`."""
    if kind is Kind.DATE and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return (value - _EPOCH.date()).days
    if not isinstance(value, datetime.datetime):
        return None
    if kind is Kind.TIMESTAMPTZ and value.tzinfo is not None:
        return (value.astimezone(datetime.UTC).replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    if kind is Kind.TIMESTAMP and value.tzinfo is None:
        return (value - _EPOCH) // _MICROSECOND
    return None
