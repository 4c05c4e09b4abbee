"""numeric powers, exponentials and logarithms: the scale of the result is PostgreSQL 15's, where 38 digits allow it."""

from __future__ import annotations

import decimal
from decimal import Decimal

import pytest

from instar import errors
from instar.types import NUMERIC
from instar.values import arithmetic, to_text

POWERS = [
    # A whole exponent: the scale of the base, 16 at least, whatever the exponent's scale and the size of the result.
    ("3.789", "21.0000000000000000", "1409343026052.8716016316022141"),
    ("3.789", "35", "177158169650516670809.3820586142670135"),
    ("0.12", "-20", "2608405330458882702.5529619561355838"),
    ("2", "3.00000000000000000000", "8.0000000000000000"),
    ("10.0", "-18", "0.0000000000000000"),
    ("1.000000000000000000", "-5", "1.000000000000000000"),
    ("-1.0", "2147483647", "-1.0000000000000000"),
    ("-12.34", "0.00", "1.0000000000000000"),
    ("0.5", "17", "0.0000076293945313"),  # half of the last digit: no precision tells it from less but the exact one
    ("0.0", "2", "0.0000000000000000"),
    # Others: 16 significant digits, and the scale of both.
    ("32.1", "9.8", "580429286790711.10"),
    ("32.1", "-9.8", "0.000000000000001722862754788209"),
    ("1", "2.5", "1.0000000000000000"),
    ("4", "0.50000000000000000000", "2.00000000000000000000"),
    ("0", "2.500000000000000000", "0.0000000000000000"),
    # A whole one that is no 32-bit integer is one of these.
    ("1.000000001", "3000000000", "20.085536893059362"),
    # No more than 38 digits.
    ("0.5678", "-85", "782333637740774446257.7719390061997396"),
    ("0.12", "-25", "104825960103961013959336.49836578831691"),
    ("12.3", "-45.6", "0.0000000000000000000000000000000000000"),
    ("nan", "0", "1"),
    ("1", "nan", "1"),
    ("2", "nan", "NaN"),
]


@pytest.mark.parametrize(("base", "exponent", "expected"), POWERS)
def test_powers(base: str, exponent: str, expected: str) -> None:
    assert to_text(NUMERIC, arithmetic.power(Decimal(base), Decimal(exponent))) == expected


@pytest.mark.parametrize(
    ("base", "exponent", "sqlstate"),
    [
        ("0", "-1", "2201F"),
        ("0", "-1.5", "2201F"),
        ("-2", "0.5", "2201F"),
        ("12.3", "45.6", errors.NUMERIC_OUT_OF_RANGE),
        ("10", "38", errors.NUMERIC_OUT_OF_RANGE),
    ],
)
def test_powers_that_are_none(base: str, exponent: str, sqlstate: str) -> None:
    with pytest.raises(errors.Error) as refused:
        arithmetic.power(Decimal(base), Decimal(exponent))
    assert refused.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("0.0", "1.0000000000000000"), ("1.0", "2.7182818284590452"), ("32.999", "214429043492155.053"),
     ("-32.999", "0.000000000000004663547361468248")],
)  # fmt: skip
def test_exponentials(argument: str, expected: str) -> None:
    assert to_text(NUMERIC, arithmetic.exponential(Decimal(argument))) == expected


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("2.0", "0.6931471805599453"), ("0.99949452", "-0.00050560779808326467"),
     ("1.00049687395", "0.00049675054901370394"), ("1234.567890", "7.1184763011977896"), ("1.00", "0.0000000000000000"),
     ("1.00000000000000000000000000000000001", "0.0000000000000000000000000000000000100"),
     # The size of the logarithm is estimated, by the first digits of the argument.
     ("22026.46", "9.9999997369161475"), ("22026.4658", "10.0000000002357747"), ("1.10518", "0.10000821763121698")],
)  # fmt: skip
def test_logarithms(argument: str, expected: str) -> None:
    assert to_text(NUMERIC, arithmetic.natural_logarithm(Decimal(argument))) == expected


@pytest.mark.parametrize(
    ("value", "contexts", "expected"),
    [
        ("1.41421356237309504880168872420969807856967187537694", 1, "1.4142135623730950"),
        # Beyond the digits of the first context, of the second, and of any.
        ("0.12345678901234565000000000000001", 2, "0.1234567890123457"),
        ("0.12345678901234564999999999999999", 2, "0.1234567890123456"),
        ("0.1234567890123456" + "4" + "9" * 60, 3, "0.1234567890123456"),
        ("0.12345678901234565", 3, "0.1234567890123457"),
        ("9." + "9" * 60, 3, "10.0000000000000000"),
    ],
)
def test_no_more_digits_are_computed_than_decide(value: str, contexts: int, expected: str) -> None:
    asked = []

    def compute(context: decimal.Context) -> Decimal:
        asked.append(context.prec)
        return context.plus(Decimal(value))

    assert str(arithmetic.settled(compute, 16)) == expected
    assert (len(asked), max(asked)) == (contexts, [28, 50, 400][contexts - 1])
