"""Text in and out: PostgreSQL's forms, and its errors; the vectors are answers of PostgreSQL 15."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar import errors
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
from instar.values import comparison_key, datetimes, from_text, to_text

ROUND_TRIPS = [
    (BOOLEAN, " YES ", "t"),
    (BOOLEAN, "of", "f"),
    (SMALLINT, " -32768 ", "-32768"),
    (INTEGER, "0x1F", "31"),
    (BIGINT, "1_000", "1000"),
    (REAL, "0.1", "0.1"),
    (REAL, "16777216", "1.6777216e+07"),
    (REAL, "999999", "999999"),
    (REAL, "1e-5", "1e-05"),
    (REAL, "-1e-45", "-1e-45"),
    (REAL, "7.1e-40", "7.1e-40"),
    (REAL, "1.17549435e-38", "1.1754944e-38"),
    (DOUBLE, "1e20", "1e+20"),
    (DOUBLE, "1e15", "1e+15"),
    (DOUBLE, "123456789012345", "123456789012345"),
    (DOUBLE, "0.0001", "0.0001"),
    (DOUBLE, "0.00001", "1e-05"),
    (DOUBLE, "-inf", "-Infinity"),
    (DOUBLE, "-0", "-0"),
    (NUMERIC, "1.500", "1.500"),
    (NUMERIC, "-0.00", "0.00"),
    (NUMERIC, "1e3", "1000"),
    (NUMERIC, "1_000.5", "1000.5"),
    (NUMERIC, "nan", "NaN"),
    (Type(Kind.NUMERIC, 4, 1), "1.25", "1.3"),
    (Type(Kind.VARCHAR, length=2), "ab   ", "ab"),
    (BYTEA, "\\x00fF", "\\x00ff"),
    (BYTEA, "a\\\\b\\001", "\\x615c6201"),
    (DATE, "Jan 8, 1999", "1999-01-08"),
    (DATE, "8-Jan-1999", "1999-01-08"),
    (DATE, "1/8/1999", "1999-01-08"),
    (DATE, "19990108", "1999-01-08"),
    (DATE, "0044-03-15 BC", "0044-03-15 BC"),
    (TIMESTAMP, "2024-02-29T23:59:59.9999999", "2024-03-01 00:00:00"),
    (TIMESTAMP, "2024-02-29 12:00 PM", "2024-02-29 12:00:00"),
    (TIMESTAMP, "2024-02-29 24:00:00", "2024-03-01 00:00:00"),
    (TIMESTAMPTZ, "2024-03-31 02:30:00", "2024-03-31 03:30:00+02"),
    (TIMESTAMPTZ, "2024-10-27 02:30:00", "2024-10-27 02:30:00+01"),
    (TIMESTAMPTZ, "2024-01-01 00:00:00 America/New_York", "2024-01-01 06:00:00+01"),
    (TIMESTAMPTZ, "2024-07-15 12:00 CET", "2024-07-15 13:00:00+02"),
    (TIMESTAMPTZ, "2024-07-15 12:00 wet", "2024-07-15 14:00:00+02"),
    (TIMESTAMPTZ, "2024-07-15 12:00 PST", "2024-07-15 22:00:00+02"),
    (TIMESTAMPTZ, "2024-01-15 12:00:00.5 CEST", "2024-01-15 11:00:00.5+01"),
    (TIMESTAMPTZ, "2024-01-15 ist", "2024-01-14 23:00:00+01"),
    (TIMESTAMPTZ, "2024-01-15 12:00 ACWST", "2024-01-15 04:15:00+01"),
    (TIMESTAMPTZ, "2024-07-15 12:00 +03", "2024-07-15 11:00:00+02"),
    (UUID, "{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (JSONB, '{"bb":1.50,"a":[1,2,{}],"a":null, "c":1e2}', '{"a": null, "c": 100, "bb": 1.50}'),
    (JSONB, ' "\\u00e9\\n" ', '"é\\n"'),
]

REFUSED = [
    (BOOLEAN, "maybe", "22P02"),
    (INTEGER, "1.5", "22P02"),
    (INTEGER, "2147483648", "22003"),
    (DOUBLE, "1e400", "22003"),
    (REAL, "1e-60", "22003"),
    (NUMERIC, "1e38", "22003"),
    (NUMERIC, "infinity", "22003"),
    (NUMERIC, "1e999999999", "22003"),
    (Type(Kind.NUMERIC, 2, 1), "9.96", "22003"),
    (Type(Kind.VARCHAR, length=2), "abc", "22001"),
    (TEXT, "a\0", "22021"),
    (BYTEA, "\\x0", "22023"),
    (DATE, "2024-02-30", "22008"),
    (DATE, "tuesday", "22007"),
    (DATE, "infinity", "0A000"),
    (TIMESTAMP, "2024-01-01 25:00:00", "22008"),
    (TIMESTAMP, "300000-01-01", "22008"),
    (TIMESTAMPTZ, "2024-01-01 00:00:00 Mars/Olympus", "22023"),
    (UUID, "a0eebc99", "22P02"),
    (JSONB, "{", "22P02"),
    (JSONB, "NaN", "22P02"),
    (JSONB, '"\\u0000"', "22P05"),
    (JSONB, '"\\ud800"', "22P02"),
    (JSONB, "[" * 100_000, "54000"),
]


@pytest.mark.parametrize(("type_", "text", "expected"), ROUND_TRIPS)
def test_forms(type_: Type, text: str, expected: str) -> None:
    value = from_text(type_, text, "Europe/Berlin")
    assert to_text(type_, value, "Europe/Berlin") == expected
    assert from_text(type_, expected, "Europe/Berlin") == value or value != value


@pytest.mark.parametrize(("type_", "text", "sqlstate"), REFUSED)
def test_refusals(type_: Type, text: str, sqlstate: str) -> None:
    with pytest.raises(errors.Error) as caught:
        from_text(type_, text)
    assert caught.value.sqlstate == sqlstate


@given(st.floats())
def test_doubles_survive(value: float) -> None:
    back = from_text(DOUBLE, to_text(DOUBLE, value))
    assert back == value or math.isnan(value)


@given(st.floats(width=32))
def test_reals_survive(value: float) -> None:
    back = from_text(REAL, to_text(REAL, value))
    assert back == value or math.isnan(value)


@given(st.integers(datetimes.MIN_TIMESTAMP, datetimes.MAX_TIMESTAMP), st.sampled_from(["UTC", "Asia/Kolkata"]))
def test_timestamps_survive(value: int, zone: str) -> None:
    assert from_text(TIMESTAMP, to_text(TIMESTAMP, value)) == value
    assert from_text(TIMESTAMPTZ, to_text(TIMESTAMPTZ, value, zone), zone) == value


@given(st.decimals(allow_infinity=False, allow_nan=False, places=10, min_value=-(10**20), max_value=10**20))
def test_numerics_survive_whatever_the_callers_decimal_context(value: Decimal) -> None:
    with decimal.localcontext(prec=3):
        assert str(from_text(NUMERIC, format(value, "f"))) == str(value if value else value.copy_abs())


def test_documents_are_ordered_as_postgresql_orders_them() -> None:
    ordered = [
        "[]",
        "null",
        '"a"',
        "1",
        "false",
        "true",
        "[1]",
        "[1, 2]",
        "{}",
        '{"a": 1}',
        '{"b": 1}',
        '{"a": 1, "b": 1}',
    ]
    key: Any = comparison_key(JSONB)
    assert key is not None
    backwards = ordered[::-1]
    assert sorted(backwards, key=key) == ordered
    assert key("1.0") == key("1.00")
