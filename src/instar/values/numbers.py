"""Integers, floats and numerics: their text, their ranges, conversions between them; numeric arithmetic.

A numeric is a Decimal whose exponent is minus its display scale, never negative zero, never with a positive exponent,
with at most 38 digits written out (22003 past that); or NaN.
"""

from __future__ import annotations

import decimal
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal

from instar import errors
from instar.types import FLOATS, INTEGER_RANGES, INTEGERS, MAX_NUMERIC_DIGITS, Kind, Type

# Exact or nothing: a result that needs more than 38 digits raises instead of being rounded.
EXACT = decimal.Context(
    prec=MAX_NUMERIC_DIGITS,
    rounding=decimal.ROUND_HALF_UP,
    Emin=-999999,
    Emax=999999,
    traps=[decimal.Rounded, decimal.Inexact, decimal.Overflow, decimal.InvalidOperation],
)
# For intermediate results: wide enough for anything that two numerics can make of each other.
WIDE = decimal.Context(
    prec=400, rounding=decimal.ROUND_HALF_UP, Emin=-999999, Emax=999999, traps=[decimal.InvalidOperation]
)
NAN = Decimal("NaN")

_SINGLE = struct.Struct("<f")
_SMALLEST_NORMAL = 2.0**-126  # of 32-bit floats
_NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:[eE][+-]?\d+)?\Z", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+(?:_\d+)*\Z", re.ASCII)
_BASED = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+(?:_[0-9a-fA-F]+)*|0[oO][0-7]+(?:_[0-7]+)*|0[bB][01]+(?:_[01]+)*)\Z")
_SPACES = " \t\n\r\v\f"
_WORDS = {"nan": math.nan, "infinity": math.inf, "+infinity": math.inf, "-infinity": -math.inf}
_WORDS |= {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}


def out_of_range(kind: Kind) -> errors.Error:
    """22003 in the words that PostgreSQL has for the type."""
    if kind is Kind.NUMERIC:
        return errors.error(
            errors.NUMERIC_OUT_OF_RANGE, f"value overflows numeric format: at most {MAX_NUMERIC_DIGITS} digits"
        )
    return errors.error(errors.NUMERIC_OUT_OF_RANGE, f"{kind.value} out of range")


def invalid(type_: Type, text: str) -> errors.Error:
    """22P02 for a text that does not have the type's syntax."""
    return errors.error(errors.INVALID_TEXT, f'invalid input syntax for type {Type(type_.kind)}: "{text}"')


# --- integers --------------------------------------------------------------------------------------------------------


def integer_reader(type_: Type) -> Callable[[str], int]:
    """Text to an integer of the type. Errors: 22P02, 22003."""
    low, high = INTEGER_RANGES[type_.kind]

    def read(text: str) -> int:
        digits = text.strip(_SPACES)
        if _INTEGER.match(digits):
            value = int(digits) if len(digits) <= 64 else high + 1
        elif _BASED.match(digits):
            value = int(digits, 0)
        else:
            raise invalid(type_, text)
        if not low <= value <= high:
            message = f'value "{text}" is out of range for type {type_}'
            raise errors.error(errors.NUMERIC_OUT_OF_RANGE, message)
        return value

    return read


def integer_range(kind: Kind) -> Callable[[int], int]:
    """A closure that passes on integers in the type's range. Errors: 22003."""
    low, high = INTEGER_RANGES[kind]

    def check(value: int) -> int:
        if low <= value <= high:
            return value
        raise out_of_range(kind)

    return check


# --- floats ----------------------------------------------------------------------------------------------------------


def single(value: float) -> float:
    """A double rounded to 32 bits. Errors: 22003 if a finite value overflows, or one that is not zero becomes zero."""
    try:
        rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        raise out_of_range(Kind.REAL) from None
    if rounded == 0.0 and value != 0.0:
        raise errors.error(errors.NUMERIC_OUT_OF_RANGE, "value out of range: underflow")
    return rounded


def float_reader(type_: Type) -> Callable[[str], float]:
    """Text to a float of the type. Errors: 22P02, 22003."""

    def read(text: str) -> float:
        digits = text.strip(_SPACES)
        word = _WORDS.get(digits.lower())
        if word is not None:
            return word
        if not _NUMBER.match(digits) or "_" in digits:
            raise invalid(type_, text)
        value = float(digits)
        try:
            if math.isinf(value) or (value == 0.0 and Decimal(digits) != 0):
                raise out_of_range(type_.kind)
            return single(value) if type_.kind is Kind.REAL else value
        except errors.Error:
            message = f'"{digits}" is out of range for type {type_}'
            raise errors.error(errors.NUMERIC_OUT_OF_RANGE, message) from None

    return read


def double_text(value: float) -> str:
    """The shortest text that reads back as this double, written as PostgreSQL writes it (1e+20, 0.0001, 1e-05)."""
    return _float_text(repr(value), 15)


def single_text(value: float) -> str:
    """The shortest text that reads back as this 32-bit float."""
    if not math.isfinite(value):
        return double_text(value)
    # A normal number that is written in six digits or fewer is so by six of them; what is below has less precision.
    for digits in range(6 if abs(value) >= _SMALLEST_NORMAL else 1, 10):
        text = f"{value:.{digits}g}"
        try:
            if _SINGLE.unpack(_SINGLE.pack(float(text)))[0] == value:
                break
        except OverflowError:
            continue  # the largest float, rounded up to too few digits
    return _float_text(text, 6)


def _float_text(shortest: str, positional: int) -> str:
    """Digits of `shortest`, positional for exponents from -4 up to below `positional`, else with an exponent."""
    if shortest[-1] in "fn":
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[shortest]
    sign, tuple_, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, tuple_)).lstrip("0")
    stripped = digits.rstrip("0")
    if not stripped:
        return "-0" if sign else "0"
    point = len(digits) + exponent  # digits before the decimal point
    minus = "-" if sign else ""
    if -4 <= point - 1 < positional:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{stripped}"
        whole = stripped[:point].ljust(point, "0")
        return f"{minus}{whole}.{stripped[point:]}" if len(stripped) > point else minus + whole
    fraction = "." + stripped[1:] if len(stripped) > 1 else ""
    return f"{minus}{stripped[0]}{fraction}e{point - 1:+03d}"


# --- numeric ---------------------------------------------------------------------------------------------------------


def fits(value: Decimal) -> Decimal:
    """`value` as an internal numeric: no negative zero, no positive exponent. Errors: 22003 past 38 digits."""
    if not value.is_finite():
        if value.is_nan():
            return NAN
        raise out_of_range(Kind.NUMERIC)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if value.adjusted() >= MAX_NUMERIC_DIGITS and value:
        raise out_of_range(Kind.NUMERIC)
    try:
        if exponent > 0:
            value = value.quantize(Decimal(1), context=EXACT) if value else Decimal(0)
        elif -exponent > MAX_NUMERIC_DIGITS:
            raise out_of_range(Kind.NUMERIC)
        return EXACT.plus(value)
    except decimal.DecimalException:
        raise out_of_range(Kind.NUMERIC) from None


def rounded(value: Decimal, scale: int) -> Decimal:
    """`value` at this display scale, half away from zero; a negative scale leaves scale 0. Errors: 22003."""
    if value.is_nan():
        return value
    result = value.quantize(Decimal(1).scaleb(-scale, WIDE), rounding=decimal.ROUND_HALF_UP, context=WIDE)
    return fits(result)


def constrain(type_: Type) -> Callable[[Decimal], Decimal] | None:
    """Rounds to numeric(p,s) and checks the range; None if the type is unconstrained. Errors: 22003."""
    precision, scale = type_.precision, type_.scale or 0
    if precision is None:
        return None
    limit = Decimal(1).scaleb(precision - scale, WIDE)
    quantum = Decimal(1).scaleb(-scale, WIDE)

    def apply(value: Decimal) -> Decimal:
        if value.is_nan():
            return value
        result = value.quantize(quantum, rounding=decimal.ROUND_HALF_UP, context=WIDE)
        if result.copy_abs() >= limit:
            raise errors.error(
                errors.NUMERIC_OUT_OF_RANGE,
                "numeric field overflow",
                detail=f"A field with precision {precision}, scale {scale} must round to an absolute value less than "
                f"{'1' if precision == scale else f'10^{precision - scale}'}.",
            )
        return result if result else result.copy_abs()

    return apply


def numeric_reader(type_: Type) -> Callable[[str], Decimal]:
    """Text to numeric. Errors: 22P02, 22003 (Infinity too, which Instar's numeric does not have)."""
    finish = constrain(type_)

    def read(text: str) -> Decimal:
        digits = text.strip(_SPACES)
        if not _NUMBER.match(digits):
            word = _WORDS.get(digits.lower())
            if word is None:
                raise invalid(type_, text)
            if not math.isnan(word):
                raise errors.error(errors.NUMERIC_OUT_OF_RANGE, "numeric cannot hold an infinite value")
            return NAN
        value = _parse_decimal(digits, type_)
        return fits(value) if finish is None else finish(value)

    return read


def _parse_decimal(digits: str, type_: Type) -> Decimal:
    # A huge exponent must not become a huge integer on the way to being refused.
    exponent = re.search(r"[eE]([+-]?\d+)", digits)
    if exponent is not None and (len(exponent[1]) > 5 or abs(int(exponent[1])) > 1000):
        raise out_of_range(Kind.NUMERIC)
    if len(digits) > 5000:
        raise out_of_range(Kind.NUMERIC)
    value = Decimal(digits.replace("_", ""))
    if type_.precision is not None and value and value.adjusted() > MAX_NUMERIC_DIGITS:
        raise out_of_range(Kind.NUMERIC)
    return value


def numeric_text(value: Decimal) -> str:
    """Digits with the display scale; never an exponent."""
    return format(value, "f")


# --- conversions -----------------------------------------------------------------------------------------------------


def conversion(source: Type, target: Type) -> Callable[..., object] | None:
    """The closure between two number types; None: values stay. Errors of the closure: 22003."""
    a, b = source.kind, target.kind
    if b in INTEGERS:
        if a in INTEGERS:
            wider = INTEGER_RANGES[a][1] > INTEGER_RANGES[b][1]
            return integer_range(b) if wider else None
        return _numeric_to_integer(b) if a is Kind.NUMERIC else _float_to_integer(b)
    if b is Kind.NUMERIC:
        return _to_numeric(source, target)
    if a is Kind.REAL or (a is Kind.DOUBLE and b is Kind.DOUBLE):
        return None
    if b is Kind.DOUBLE:
        return float
    return single if a is Kind.DOUBLE else _to_single


def _to_single(value: int | Decimal) -> float:
    """By way of the exact value: rounding to a double first could round twice."""
    if isinstance(value, int):
        return _integer_to_single(value)
    return float_reader(Type(Kind.REAL))(numeric_text(value)) if value.is_finite() else math.nan


def _integer_to_single(value: int) -> float:
    if abs(value) >= 1 << 53:
        # Round to odd at 53 bits keeps the second rounding right.
        shift = abs(value).bit_length() - 53
        high = abs(value) >> shift
        if abs(value) & ((1 << shift) - 1):
            high |= 1
        return single(math.copysign(float(high << shift), value))
    return single(float(value))


def _numeric_to_integer(kind: Kind) -> Callable[[Decimal], int]:
    low, high = INTEGER_RANGES[kind]

    def convert(value: Decimal) -> int:
        if value.is_nan():
            raise errors.unsupported(f"NaN as {kind.value}")
        result = int(value.to_integral_value(decimal.ROUND_HALF_UP))
        if low <= result <= high:
            return result
        raise out_of_range(kind)

    return convert


def _float_to_integer(kind: Kind) -> Callable[[float], int]:
    low, high = INTEGER_RANGES[kind]

    def convert(value: float) -> int:
        if math.isfinite(value):
            result = round(value)  # half to even, as rint()
            if low <= result <= high:
                return result
        raise out_of_range(kind)

    return convert


def _to_numeric(source: Type, target: Type) -> Callable[..., Decimal] | None:
    finish = constrain(target)
    if source.kind is Kind.NUMERIC:
        return None if (source.precision, source.scale) == (target.precision, target.scale) else finish
    if source.kind in FLOATS:
        return _float_to_numeric(6 if source.kind is Kind.REAL else 15, target)
    return Decimal if finish is None else lambda value: finish(Decimal(value))


def _float_to_numeric(digits: int, target: Type) -> Callable[[float], Decimal]:
    """As many digits as the float is sure to have, as PostgreSQL takes them (FLT_DIG, DBL_DIG), not all it prints."""
    read = numeric_reader(target)

    def convert(value: float) -> Decimal:
        if math.isinf(value):
            raise errors.unsupported("an infinite numeric")
        return read(f"{value:.{digits}g}") if value == value else NAN

    return convert
