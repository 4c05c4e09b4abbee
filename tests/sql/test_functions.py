"""Answers of PostgreSQL 15, and which entry a call means."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from instar import errors
from instar.sql.functions import (
    Function,
    Resolution,
    common_type,
    is_aggregate,
    is_window,
    resolve_function,
    resolve_operator,
)
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
    UNKNOWN,
    VARCHAR,
    Kind,
    Type,
)
from instar.values import cast, datetimes, from_text, to_text

OPERATORS = [
    ("7", "/", "2", INTEGER, "3"),
    ("-7", "/", "2", INTEGER, "-3"),
    ("7", "%", "-2", INTEGER, "1"),
    ("-7", "%", "2", INTEGER, "-1"),
    ("1", "/", "3", NUMERIC, "0.33333333333333333333"),
    ("100", "/", "7", NUMERIC, "14.2857142857142857"),
    ("0.1", "/", "3", NUMERIC, "0.03333333333333333333"),
    ("12345678901234", "/", "7", NUMERIC, "1763668414462.0000"),
    ("-5.5", "%", "2", NUMERIC, "-1.5"),
    ("2.5", "^", "2", NUMERIC, "6.2500000000000000"),
    ("2", "^", "3", DOUBLE, "8"),
    ("1", "<<", "33", INTEGER, "2"),
    ("abc", "~~", "a%", TEXT, "t"),
    ("NaN", ">", "Infinity", DOUBLE, "t"),
    ("NaN", "=", "NaN", NUMERIC, "t"),
    ("a", "<", "B", TEXT, "f"),
]
FUNCTIONS = [
    ("round", [(NUMERIC, "2.5")], "3"),
    ("round", [(NUMERIC, "-2.5")], "-3"),
    ("round", [(DOUBLE, "2.5")], "2"),
    ("round", [(NUMERIC, "1234.567"), (INTEGER, "-2")], "1200"),
    ("trunc", [(NUMERIC, "-1.55"), (INTEGER, "1")], "-1.5"),
    ("sqrt", [(NUMERIC, "2")], "1.414213562373095"),
    ("exp", [(NUMERIC, "1")], "2.7182818284590452"),
    ("ln", [(NUMERIC, "2")], "0.6931471805599453"),
    ("log", [(NUMERIC, "2.0"), (NUMERIC, "64.0")], "6.0000000000000000"),
    ("initcap", [(TEXT, "hi THOMAS o'neil")], "Hi Thomas O'Neil"),
    ("substring", [(TEXT, "hello"), (INTEGER, "-1"), (INTEGER, "4")], "he"),
    ("split_part", [(TEXT, "abc~@~def~@~ghi"), (TEXT, "~@~"), (INTEGER, "-2")], "def"),
    ("translate", [(TEXT, "12345"), (TEXT, "143"), (TEXT, "ax")], "a2x5"),
    ("lpad", [(TEXT, "hi"), (INTEGER, "5"), (TEXT, "xy")], "xyxhi"),
    ("to_hex", [(INTEGER, "-1")], "ffffffff"),
    ("extract", [(TEXT, "epoch"), (TIMESTAMP, "2020-01-01 00:00:00.5")], "1577836800.500000"),
    ("extract", [(TEXT, "century"), (DATE, "2000-01-01")], "20"),
    ("extract", [(TEXT, "decade"), (DATE, "0001-02-03 BC")], "0"),
    ("date_trunc", [(TEXT, "week"), (TIMESTAMP, "2024-02-29 12:00:00")], "2024-02-26 00:00:00"),
    (
        "date_trunc",
        [(TEXT, "hour"), (TIMESTAMPTZ, "2024-10-27 00:30+00"), (TEXT, "Europe/Berlin")],
        "2024-10-27 00:00:00+00",
    ),
    (
        "date_trunc",
        [(TEXT, "hour"), (TIMESTAMPTZ, "2024-10-27 01:30+00"), (TEXT, "Europe/Berlin")],
        "2024-10-27 01:00:00+00",
    ),
    (
        "date_trunc",
        [(TEXT, "minute"), (TIMESTAMPTZ, "2024-10-27 00:30:09+00"), (TEXT, "Europe/Berlin")],
        "2024-10-27 00:30:00+00",
    ),
    (
        "date_trunc",
        [(TEXT, "day"), (TIMESTAMPTZ, "2024-10-27 12:00+00"), (TEXT, "Europe/Berlin")],
        "2024-10-26 22:00:00+00",
    ),
    ("date_trunc", [(TEXT, "day"), (TIMESTAMPTZ, "2024-07-15 12:00+00"), (TEXT, "+3")], "2024-07-15 03:00:00+00"),
    ("timezone", [(TEXT, "+03"), (TIMESTAMPTZ, "2024-07-15 12:00+00")], "2024-07-15 09:00:00"),
    ("timezone", [(TEXT, "-3:30"), (TIMESTAMPTZ, "2024-07-15 12:00+00")], "2024-07-15 15:30:00"),
    ("timezone", [(TEXT, "03"), (TIMESTAMP, "2024-07-15 12:00")], "2024-07-15 15:00:00+00"),
    ("timezone", [(TEXT, "cet"), (TIMESTAMPTZ, "2024-07-15 12:00+00")], "2024-07-15 13:00:00"),
    ("timezone", [(TEXT, "pst"), (TIMESTAMP, "2024-07-15 12:00")], "2024-07-15 20:00:00+00"),
    ("timezone", [(TEXT, "CET"), (TIMESTAMP, "2024-07-15 12:00")], "2024-07-15 11:00:00+00"),
    ("jsonb_typeof", [(JSONB, "[1]")], "array"),
    ("chr", [(INTEGER, "65")], "A"),
    ("date_part", [(TEXT, "hour"), (DATE, "2020-01-02")], "0"),
    ("decode", [(TEXT, " 0a 0B\n"), (TEXT, "hex")], "\\x0a0b"),
    ("decode", [(TEXT, "A P\n8\t=\r "), (TEXT, "base64")], "\\x00ff"),
    ("position", [(TEXT, "abc"), (TEXT, "b")], "2"),
    ("position", [(BYTEA, "\\x010203"), (BYTEA, "\\x0203")], "2"),
    ("substr", [(BYTEA, "\\x010203"), (INTEGER, "-1"), (INTEGER, "4")], "\\x0102"),
    ("rtrim", [(BYTEA, "\\x0001020100"), (BYTEA, "\\x0001")], "\\x000102"),
    ("overlay", [(BYTEA, "\\x01020304"), (BYTEA, "\\xffff"), (INTEGER, "2")], "\\x01ffff04"),
    ("get_byte", [(BYTEA, "\\x01ff"), (INTEGER, "1")], "255"),
    ("gcd", [(NUMERIC, "330.3"), (NUMERIC, "462")], "0.3"),
    ("lcm", [(NUMERIC, "-4.20"), (NUMERIC, "4")], "84.00"),
]
AGGREGATES = [
    ("avg", INTEGER, ["1", "2", "4"], "2.3333333333333333"),
    ("var_samp", INTEGER, ["1", "2", "4"], "2.3333333333333333"),
    ("stddev", INTEGER, ["1", "2", "4"], "1.5275252316519467"),
    ("stddev_pop", INTEGER, ["1", "2", "4"], "1.2472191289246471"),
    ("sum", INTEGER, ["2147483647", "1"], "2147483648"),
    ("sum", NUMERIC, ["1.50", "2.250", "10"], "13.750"),
    ("avg", NUMERIC, ["1.50", "2.250", "10"], "4.5833333333333333"),
    ("var_pop", NUMERIC, ["1.50", "2.250", "10"], "14.7638888888888889"),
    ("stddev_samp", NUMERIC, ["1.50", "2.250", "10"], "4.7059359678318333"),
    ("avg", NUMERIC, ["100000000000000000000", "3"], "50000000000000000002"),
    ("max", TEXT, ["a", "B"], "a"),
]


def called(found: Resolution, *args: object) -> object:
    assert isinstance(found.entry, Function)
    return found.entry.closure(found.arguments)(*args)


@pytest.mark.parametrize(("left", "symbol", "right", "type_", "expected"), OPERATORS)
def test_operators(left: str, symbol: str, right: str, type_: Type, expected: str) -> None:
    found = resolve_operator(symbol, [type_, type_])
    closure = found.entry.closure(found.arguments)  # type: ignore[union-attr]  # operators are functions
    value = closure(from_text(type_, left), from_text(type_, right))
    assert to_text(found.type, value) == expected


@pytest.mark.parametrize(("name", "args", "expected"), FUNCTIONS)
def test_functions(name: str, args: list[tuple[Type, str]], expected: str) -> None:
    found = resolve_function(name, [type_ for type_, _ in args])
    assert list(found.arguments) == [type_ for type_, _ in args]
    closure = found.entry.closure(found.arguments)  # type: ignore[union-attr]  # none of them is an aggregate
    assert to_text(found.type, closure(*(from_text(type_, text) for type_, text in args))) == expected


@pytest.mark.parametrize(("name", "type_", "values", "expected"), AGGREGATES)
def test_aggregates(name: str, type_: Type, values: list[str], expected: str) -> None:
    found = resolve_function(name, [type_])
    accumulator = found.entry.accumulator(found.arguments)()  # type: ignore[union-attr]  # all are aggregates
    assert accumulator.result() is None
    for text in values:
        accumulator.add(from_text(type_, text))
    assert to_text(found.type, accumulator.result()) == expected


@pytest.mark.parametrize(
    ("symbol", "types", "arguments"),
    [
        ("+", [SMALLINT, BIGINT], [BIGINT, BIGINT]),
        ("+", [INTEGER, NUMERIC], [NUMERIC, NUMERIC]),
        ("+", [INTEGER, REAL], [DOUBLE, REAL]),
        ("=", [VARCHAR, UNKNOWN], [VARCHAR, TEXT]),
        ("=", [UNKNOWN, UNKNOWN], [TEXT, TEXT]),
        ("+", [DATE, UNKNOWN], [DATE, INTEGER]),
        ("<", [DATE, TIMESTAMPTZ], [TIMESTAMPTZ, TIMESTAMPTZ]),
        ("||", [UNKNOWN, INTEGER], [TEXT, INTEGER]),
        ("||", [TEXT, JSONB], [TEXT, JSONB]),
        ("->", [JSONB, UNKNOWN], [JSONB, TEXT]),
        ("||", [UNKNOWN, JSONB], [JSONB, JSONB]),
        ("-", [JSONB, UNKNOWN], [JSONB, TEXT]),
        ("^", [INTEGER, INTEGER], [DOUBLE, DOUBLE]),
    ],
)
def test_operator_resolution(symbol: str, types: list[Type], arguments: list[Type]) -> None:
    assert list(resolve_operator(symbol, types).arguments) == arguments


@pytest.mark.parametrize(
    ("call", "sqlstate", "message"),
    [
        (lambda: called(resolve_function("decode", [TEXT, TEXT]), "a b", "hex"), "22023", 'hexadecimal digit: " "'),
        *(
            (lambda text=text: called(resolve_function("decode", [TEXT, TEXT]), text, "base64"), "22023", "base64")
            for text in ("AP9B=", "AP9B====", "AP8==", "AP8", "=", "AP8\f=", "AP8\u00a0=")
        ),
        (lambda: resolve_function("btrim", [BYTEA]), "42883", r"function btrim\(bytea\) does not exist"),
        (
            lambda: called(resolve_function("get_byte", [BYTEA, INTEGER]), b"\x01\xff", 2),
            "2202E",
            r"index 2 out of",
        ),
        (lambda: called(resolve_operator("@", [INTEGER]), -(2**31)), "22003", "integer out of range"),
        (lambda: called(resolve_function("degrees", [DOUBLE]), 1.7e308), "22003", "value out of range: overflow"),
        (lambda: called(resolve_function("radians", [DOUBLE]), 5e-324), "22003", "value out of range: underflow"),
        (lambda: resolve_operator("+", [INTEGER, TEXT]), "42883", r"operator does not exist: integer \+ text"),
        (lambda: resolve_operator("-", [TEXT]), "42883", "operator does not exist: - text"),
        (lambda: resolve_operator("+", [UNKNOWN, UNKNOWN]), "42725", r"operator is not unique: unknown \+ unknown"),
        (lambda: resolve_operator("*", [UNKNOWN, UNKNOWN]), "42725", r"operator is not unique: unknown \* unknown"),
        (lambda: resolve_operator("/", [UNKNOWN, UNKNOWN]), "42725", "operator is not unique: unknown / unknown"),
        (lambda: resolve_operator("-", [UNKNOWN]), "42725", "operator is not unique: - unknown"),
        (lambda: resolve_function("max", [BYTEA]), "42883", r"function max\(bytea\) does not exist"),
        (lambda: resolve_function("foo", [INTEGER]), "42883", r"function foo\(integer\) does not exist"),
        (lambda: resolve_function("length", [INTEGER]), "42883", r"function length\(integer\) does not exist"),
        (lambda: resolve_function("to_date", [TEXT, TEXT]), "0A000", "function to_date is not supported"),
        (lambda: resolve_function("to_char", [NUMERIC, TEXT]), "0A000", r"function to_char\(numeric, text\) is not"),
        (lambda: resolve_function("to_char", [UNKNOWN, UNKNOWN]), "42725", "is not unique"),
        (lambda: resolve_operator("~", [TEXT, TEXT]), "0A000", "operator ~ is not supported"),
        (lambda: resolve_operator("-", [TIMESTAMP, TIMESTAMP]), "0A000", "interval"),
        (lambda: resolve_operator("-", [TIMESTAMP, DATE]), "0A000", "interval"),
        (lambda: resolve_operator("-", [DATE, TIMESTAMPTZ]), "0A000", "interval"),
        (lambda: datetimes.zone_in_expression("-0330"), "22023", 'time zone "-0330" not recognized'),
        (lambda: common_type([INTEGER, TEXT], "CASE"), "42804", "CASE types integer and text cannot be matched"),
        (lambda: cast("null", JSONB, INTEGER, True), "22023", "cannot cast jsonb null to type integer"),
        (lambda: cast("null", JSONB, BOOLEAN, True), "22023", "cannot cast jsonb null to type boolean"),
        (lambda: cast(1, INTEGER, DATE, True), "42846", "cannot cast type integer to date"),
    ],
)
def test_refusals(call: Any, sqlstate: str, message: str) -> None:
    with pytest.raises(errors.Error, match=message) as caught:
        call()
    assert caught.value.sqlstate == sqlstate


def test_common_types() -> None:
    assert common_type([INTEGER, BIGINT, UNKNOWN], "UNION") == BIGINT
    assert common_type([INTEGER, REAL, NUMERIC], "UNION") == REAL
    assert common_type([UNKNOWN, UNKNOWN], "UNION") == TEXT
    assert common_type([DATE, TIMESTAMPTZ], "CASE") == TIMESTAMPTZ
    assert common_type([Type(Kind.VARCHAR, length=3), Type(Kind.VARCHAR, length=5)], "CASE") == VARCHAR


def test_kinds_of_functions() -> None:
    assert is_aggregate("sum")
    assert is_window("rank")
    assert not is_window("sum")
    assert resolve_function("count", []).type == BIGINT
    assert resolve_function("greatest", [INTEGER, UNKNOWN, NUMERIC]).arguments == (NUMERIC,) * 3


@pytest.mark.parametrize(
    ("value", "source", "target", "explicit", "expected"),
    [
        (2.5, DOUBLE, INTEGER, True, 2),
        (3.5, DOUBLE, INTEGER, True, 4),
        (Decimal("2.5"), NUMERIC, INTEGER, True, 3),
        (1e-7, DOUBLE, NUMERIC, True, Decimal("1E-7")),
        (3.1415927410125732, REAL, NUMERIC, True, Decimal("3.14159")),
        ("abc", TEXT, Type(Kind.VARCHAR, length=2), True, "ab"),
        (True, BOOLEAN, TEXT, False, "true"),
        ("1.50", JSONB, Type(Kind.NUMERIC, 3, 1), True, Decimal("1.5")),
    ],
)
def test_casts(value: Any, source: Type, target: Type, explicit: bool, expected: Any) -> None:
    assert cast(value, source, target, explicit) == expected


@pytest.mark.parametrize("target", [NUMERIC, DOUBLE, INTEGER, Type(Kind.NUMERIC, 5, 1)], ids=str)
def test_numbers_of_jsonb_that_are_too_large(target: Type) -> None:
    with pytest.raises(errors.Error) as caught:
        cast(from_text(JSONB, "1e999"), JSONB, target, True)
    assert caught.value.sqlstate == "22003"
