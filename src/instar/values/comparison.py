"""Keys for whatever sorts, groups, hashes or compares values, where the internal values themselves would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from instar.types import FLOATS, Kind, Type
from instar.values import jsonb


def comparison_key(type_: Type) -> Callable[..., object] | None:
    """A closure whose results order and hash as PostgreSQL's btree operators do; None: the values do so themselves.

    Text is in C collation, which code points are. NaN equals NaN and is above every number.
    """
    if type_.kind in FLOATS:
        return _float_key
    if type_.kind is Kind.NUMERIC:
        return _numeric_key
    if type_.kind is Kind.JSONB:
        return jsonb.sort_key
    return None


def _float_key(value: float) -> tuple[int, float]:
    return (0, value) if value == value else _NAN


def _numeric_key(value: Decimal) -> tuple[int, Decimal | float]:
    return (0, value) if value == value else _NAN


_NAN = (1, 0.0)
