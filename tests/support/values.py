"""Values of every type: what properties draw them from, and a few of each that have caught mistakes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

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
    VARCHAR,
    Kind,
    Type,
)
from instar.values import from_text
from instar.values.numbers import single

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


_NUMERICS = st.builds(
    lambda sign, digits, exponent: Decimal((sign, tuple(int(d) for d in str(digits)), exponent)),
    st.integers(0, 1),
    st.integers(0, 10**38 - 1) | st.integers(0, 1000),
    st.integers(-40, 5) | st.sampled_from([-300, 300]),
) | st.just(Decimal("NaN"))
_STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    "\x00\x01a\uffff\U0001f600", max_size=6
)
# What keys take: more than rows hold of some types, and often bytes that mean something in a key.
IN_KEYS: dict[Type, st.SearchStrategy[Any]] = {
    **{type_: drawn for type_, drawn in SIMPLE.items() if type_ != JSONB},
    NUMERIC: _NUMERICS,
    TEXT: _STRINGS,
    VARCHAR: _STRINGS,
    BYTEA: st.binary(max_size=12) | st.text("\x00\x01\xff", max_size=6).map(lambda s: s.encode("latin-1")),
}

N52, N105, N22, N3810 = (Type(Kind.NUMERIC, p, s) for p, s in ((5, 2), (10, 5), (2, 2), (38, 10)))
D = Decimal

# Of each type its edges, and what conversions, functions and DuckDB have treated differently.
SAMPLES: dict[Type, list[Any]] = {
    BOOLEAN: [True, False],
    SMALLINT: [0, 1, -1, 7, -7, 2, 32767, -32768],
    INTEGER: [0, 1, -1, 7, -2, 3, 5, 33, 100, 2147483647, -2147483648],
    BIGINT: [0, 1, -1, 12, -18, 10**12, 2**63 - 1, -(2**63)],
    REAL: [single(x) for x in (0.0, 1.5, -2.5, 0.1, 3e38, 1e-30, 1e15)] + [math.nan, math.inf, -math.inf],
    DOUBLE: [0.0, -0.0, 1.0, 0.5, -0.5, 2.5, -3.7, 0.1, 1e15, 1e300, -1e300, 1e-300, 123456.789, math.nan, math.inf,
             -math.inf],
    NUMERIC: [D("0"), D("1"), D("-1.50"), D("2.5"), D("0.00"), D("100.0"), D("1E-10").quantize(D("1E-12")), D("NaN"),
              D("99999999999999999999999999999999999999"), D("-12345678901234567890.123456789"), D("1.005")],
    N52: [D("0.00"), D("1.00"), D("-1.50"), D("2.55"), D("999.99"), D("-999.99"), D("0.01")],
    N105: [D("0.00000"), D("1.50000"), D("-99999.99999"), D("0.00001"), D("3.14159")],
    N22: [D("0.00"), D("0.50"), D("-0.99"), D("0.05")],
    N3810: [D("0E-10"), D("9999999999999999999999999999.9999999999"), D("-1.5000000000"), D("3.3333333333")],
    TEXT: ["", "a", "abc", "ABC", "hello world", "a%b_c\\", "é", "ßĲ", "日本語", "x,y,,z", "  pad ", "%b%", "a_", "\\",
           "'quote'", "month", "1", "{a,1}", "ab\ncd"],
    BYTEA: [b"", b"\x00\xff", b"abc", b"\\x", bytes(range(80))],
    DATE: [from_text(DATE, t) for t in ("1970-01-01", "2000-02-29", "1999-12-31", "0001-01-01", "0044-03-15 BC",
                                        "9999-12-31", "2024-12-30", "1900-03-01", "20000-06-05", "4000-01-01 BC")],
    TIMESTAMP: [from_text(TIMESTAMP, t) for t in (
        "1970-01-01", "2024-03-31 02:30:00", "2024-10-27 02:30:00.5", "1969-12-31 23:59:59.999999", "0001-01-01",
        "0044-03-15 12:00:00 BC", "12345-06-07 08:09:10", "2001-01-01 00:00:00", "1850-01-01 00:00:00")],
    UUID: [bytes(16), b"\xff" * 16, bytes(range(16))],
    JSONB: [from_text(JSONB, t) for t in ('{"a": [1, 2, {"b": null}], "c": "x"}', "[1, 2.50, true]", "[]", "null",
                                          '"text"', "1.0", "1.00", "-5", "true", "{}", '{"a": 1}', '{"b": 1}', '[[]]')],
}  # fmt: skip
SAMPLES[TIMESTAMPTZ] = SAMPLES[TIMESTAMP]
STATIC = [NUMERIC, N52, N105, N22, N3810]
