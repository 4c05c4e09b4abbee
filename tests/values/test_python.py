"""Python objects in and out."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

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
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    Kind,
    Type,
)
from instar.values import converter, from_python, to_python, type_of_python

UTC = datetime.UTC
ID = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
ROUND_TRIPS = [
    (BOOLEAN, True),
    (INTEGER, -5),
    (BIGINT, 2**63 - 1),
    (DOUBLE, 0.1),
    (NUMERIC, Decimal("1.50")),
    (TEXT, "é"),
    (BYTEA, b"\x00"),
    (DATE, datetime.date(2024, 2, 29)),
    (TIMESTAMP, datetime.datetime(2024, 2, 29, 12, 0, 0, 5)),
    (TIMESTAMPTZ, datetime.datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (UUID, ID),
    (JSONB, {"a": [1, 2.5, None, "x"]}),
]


@pytest.mark.parametrize(("type_", "value"), ROUND_TRIPS)
def test_there_and_back(type_: Type, value: Any) -> None:
    internal = from_python(type_, value)
    convert = to_python(type_)
    assert (internal if convert is None else convert(internal)) == value
    assert type_of_python(value).kind in (type_.kind, Kind.INTEGER)


@pytest.mark.parametrize(
    ("type_", "value", "internal"),
    [
        (INTEGER, "42", 42),
        (INTEGER, 3.0, 3),
        (INTEGER, np.int64(7), 7),
        (DOUBLE, 1, 1.0),
        (REAL, 0.1, 0.10000000149011612),
        (NUMERIC, 0.1, Decimal("0.1")),
        (Type(Kind.NUMERIC, 4, 1), 2, Decimal("2.0")),
        (BYTEA, bytearray(b"a"), b"a"),
        (DATE, datetime.datetime(1970, 1, 2, 23), 1),
        (TIMESTAMPTZ, datetime.datetime(1970, 1, 1, 1), 0),
        (TIMESTAMP, datetime.datetime(1970, 1, 1, tzinfo=UTC), 3_600_000_000),
        (UUID, str(ID), ID.bytes),
        (JSONB, '{"b": 1, "a": 2}', '{"a": 2, "b": 1}'),
        (JSONB, [1.5, Decimal("2.50")], "[1.5, 2.50]"),
        (TEXT, None, None),
    ],
)
def test_parameters(type_: Type, value: Any, internal: Any) -> None:
    assert from_python(type_, value, "Europe/Berlin") == internal
    assert converter(type_, "Europe/Berlin")(value) == internal


@pytest.mark.parametrize(
    ("type_", "value", "sqlstate"),
    [
        (INTEGER, 2**31, "22003"),
        (INTEGER, 1.5, "22P02"),
        (INTEGER, "x", "22P02"),
        (INTEGER, b"1", "42804"),
        (INTEGER, True, "42804"),
        (NUMERIC, 10**38, "22003"),
        (DOUBLE, 10**400, "22003"),
        (Type(Kind.VARCHAR, length=1), "ab", "22001"),
        (TEXT, "\0", "22021"),
        (TEXT, "\ud800", "22021"),
        (TEXT, 5, "42804"),
        (JSONB, {"a": object()}, "22P02"),
    ],
)
def test_refusals(type_: Type, value: Any, sqlstate: str) -> None:
    with pytest.raises(errors.Error) as caught:
        from_python(type_, value)
    assert caught.value.sqlstate == sqlstate


def test_types_of_untyped_parameters() -> None:
    assert [type_of_python(v) for v in (None, 1, 2**40, 2**70)] == [UNKNOWN, INTEGER, BIGINT, NUMERIC]
    with pytest.raises(errors.Error, match="object as a parameter"):
        type_of_python(object())


def test_years_that_python_has_not() -> None:
    convert = to_python(DATE)
    assert convert is not None
    with pytest.raises(errors.Error, match="0044-03-15 BC is outside the years 1 to 9999") as caught:
        convert(-735_160)
    assert caught.value.sqlstate == "22008"
