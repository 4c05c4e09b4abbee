"""Pushed filters: the key range holds every row that satisfies them."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, IsNotNull, LessThan, LessThanOrEqual, Not

from instar.catalog.descriptors import Column, Layout, Table
from instar.encoding.keys import encode_key
from instar.pipeline.filters import internal, narrowed
from instar.tables.view import END
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Kind,
    Type,
)

TABLE = Table(
    id=1, name="t", version=1, rowset=1, layout=Layout(1, ()), oldest_layout=1, next_id=9, primary_key_name="p",
    columns=tuple(Column(id=i, name=n, type=t) for i, n, t in [(1, "a", INTEGER), (2, "b", TEXT), (3, "v", TEXT)]),
    primary_key=(1, 2),
)  # fmt: skip
ROWS = [(a, b) for a in range(-3, 4) for b in ("", "a", "a\0", "ab", "b", "é")]
A, B = ("a",), ("b",)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], lambda a, b: True),
        ([EqualTo(A, 2)], lambda a, b: a == 2),
        ([EqualTo(A, 2), EqualTo(B, "a")], lambda a, b: a == 2 and b == "a"),
        ([EqualTo(A, 2), GreaterThan(B, "a")], lambda a, b: a == 2 and b > "a"),
        ([EqualTo(A, 2), GreaterThanOrEqual(B, "a"), LessThan(B, "b")], lambda a, b: a == 2 and "a" <= b < "b"),
        ([GreaterThan(A, 0), GreaterThan(A, 1), LessThanOrEqual(A, 3)], lambda a, b: 1 < a <= 3),
        ([LessThan(A, 0)], lambda a, b: a < 0),
        ([GreaterThan(A, 1), EqualTo(B, "a")], lambda a, b: a > 1),
        ([EqualTo(B, "a")], lambda a, b: True),
        ([Not(EqualTo(A, 2)), IsNotNull(A), EqualTo(("v",), "x"), EqualTo(A, 10**30)], lambda a, b: True),
    ],
)
def test_range(filters, wanted):
    start, stop = narrowed(TABLE, filters)
    kept = [row for row in ROWS if start <= encode_key(row, [INTEGER, TEXT]) < stop]
    assert kept == [row for row in ROWS if wanted(*row)]


def test_open_range():
    assert narrowed(TABLE, []) == (b"", END)


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (BOOLEAN, True, True),
        (BIGINT, 2**63 - 1, 2**63 - 1),
        (BIGINT, 2**63, None),
        (BIGINT, True, None),
        (Type(Kind.NUMERIC, 10, 2), Decimal("1.5"), Decimal("1.5")),
        (NUMERIC, "1.5", None),
        (DOUBLE, 1.5, None),
        (BYTEA, bytearray(b"x"), b"x"),
        (UUID, "00000000-0000-0000-0000-0000000000ff", bytes(15) + b"\xff"),
        (UUID, "00000000-0000-0000-0000-0000000000FF", None),
        (DATE, datetime.date(1970, 1, 3), 2),
        (TIMESTAMP, datetime.datetime(1970, 1, 1, 0, 0, 1), 1_000_000),
        (TIMESTAMP, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), None),
        (TIMESTAMPTZ, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC), 1_000_000),
        (TIMESTAMPTZ, datetime.datetime(1970, 1, 1), None),
        (TEXT, None, None),
    ],
)
def test_literals(type_, value, expected):
    assert internal(type_, value) == expected
