"""Types and internal values of them, for the property tests of encodings and layouts."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st

from instar.encoding.joined import Joined
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Kind,
    Type,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
UNCONSTRAINED = st.builds(
    lambda sign, digits, exponent: Decimal((sign, tuple(map(int, str(digits))), -exponent)),
    st.integers(0, 1),
    st.integers(1, 10**20),
    st.integers(0, 38),
) | st.just(Decimal("NaN"))


def decimals(precision: int, scale: int, nan: bool = True) -> st.SearchStrategy[Decimal]:
    """Values of numeric(precision, scale), with exactly that scale."""
    finite = st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)) if n else Decimal((0, (0,), -scale))
    )
    return finite | st.just(Decimal("NaN")) if nan else finite


def integers(bits: int) -> st.SearchStrategy[int]:
    """Signed integers of that many bits."""
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


SIMPLE: dict[Type, st.SearchStrategy[Any]] = {
    BOOLEAN: st.booleans(),
    SMALLINT: integers(16),
    INTEGER: integers(32),
    BIGINT: integers(64),
    REAL: st.floats(width=32),
    DOUBLE: st.floats(),
    NUMERIC: UNCONSTRAINED,
    TEXT: TEXTS,
    BYTEA: st.binary(max_size=12),
    DATE: integers(32),
    TIMESTAMP: integers(64),
    TIMESTAMPTZ: integers(64),
    UUID: st.binary(min_size=16, max_size=16),
    JSONB: st.sampled_from(["{}", '{"a": 1}', "null"]),
}
TYPES = st.sampled_from(
    [
        *SIMPLE,
        Type(Kind.NUMERIC, 5, 2),
        Type(Kind.NUMERIC, 18, 0),
        Type(Kind.NUMERIC, 19, 4),
        Type(Kind.NUMERIC, 38, 10),
        Type(Kind.VARCHAR, length=4),
        Type(Kind.VARCHAR, length=20),
    ]
)


def values(type_: Type, nan: bool = True) -> st.SearchStrategy[Any]:
    """Internal values of a type, never NULL; `nan`: numerics may be NaN."""
    if type_.kind is Kind.NUMERIC and type_.precision is not None:
        return decimals(type_.precision, type_.scale or 0, nan)
    if type_.kind is Kind.VARCHAR:
        return TEXTS.map(lambda text: text[: type_.length])
    if type_.kind is Kind.NUMERIC and not nan:
        return SIMPLE[type_].filter(lambda value: not value.is_nan())
    return SIMPLE[type_]


def rows(types: list[Type], size: int = 1, nan: bool = True) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Some rows of these types, NULLs among the values."""
    row = st.tuples(*[st.none() | values(type_, nan) for type_ in types])
    return st.lists(row, min_size=size, max_size=max(size, 6))


def same(a: Any, b: Any) -> bool:
    """Same type, value and (of a Decimal) digits; NaN is the same as NaN."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and repr(a) == repr(b)


@st.composite
def scattered(draw: st.DrawFn, values: list[bytes]) -> Joined:
    """The values in one buffer in any order, with gaps between them, as they lie in pages."""
    order = draw(st.permutations(range(len(values))))
    starts = np.zeros(len(values), np.int64)
    buffer = b""
    for position in order:
        buffer += draw(st.binary(max_size=3))
        starts[position] = len(buffer)
        buffer += values[position]
    lengths = np.array([len(value) for value in values], np.int64)
    return Joined(np.frombuffer(buffer, np.uint8), starts, starts + lengths)
