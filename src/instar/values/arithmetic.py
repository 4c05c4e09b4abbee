"""numeric arithmetic with PostgreSQL's rules for the scale of a result (numeric.c: select_div_scale and its kin).

Sums, differences and products are exact or 22003. What must be rounded (quotients, roots, logarithms) gets
PostgreSQL's scale, less only where that would take more than 38 digits.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal

from instar import errors
from instar.types import MAX_NUMERIC_DIGITS, Kind
from instar.values.numbers import EXACT, NAN, WIDE, fits, out_of_range

MIN_SIGNIFICANT_DIGITS = 16
_GROUP = 4  # PostgreSQL computes in base 10,000; weights are in such digits
_LARGEST_WHOLE = 2**31  # a whole exponent beyond is taken for one with a fraction
# A result of 16 significant digits needs little more; one of all 38 digits needs the second.
_NARROW = decimal.Context(28, WIDE.rounding, WIDE.Emin, WIDE.Emax, traps=WIDE.traps)
_MIDDLE = decimal.Context(50, WIDE.rounding, WIDE.Emin, WIDE.Emax, traps=WIDE.traps)
_LN_10 = 2.302585092994046
_DOUBT = 3  # of the last digits of what a context computes: it is off by two units of the last one at most


def add(a: Decimal, b: Decimal) -> Decimal:
    """a + b. Errors: 22003."""
    try:
        return EXACT.add(a, b)
    except decimal.DecimalException:
        raise out_of_range(Kind.NUMERIC) from None


def subtract(a: Decimal, b: Decimal) -> Decimal:
    """a - b. Errors: 22003."""
    try:
        return EXACT.subtract(a, b)
    except decimal.DecimalException:
        raise out_of_range(Kind.NUMERIC) from None


def multiply(a: Decimal, b: Decimal) -> Decimal:
    """a * b, with the sum of the scales. Errors: 22003."""
    try:
        result = EXACT.multiply(a, b)
    except decimal.DecimalException:
        raise out_of_range(Kind.NUMERIC) from None
    if scale(result) > MAX_NUMERIC_DIGITS:
        raise out_of_range(Kind.NUMERIC)
    return result if result else result.copy_abs()


def divide(a: Decimal, b: Decimal) -> Decimal:
    """a / b, half away from zero, to PostgreSQL's scale: at least 16 significant digits. Errors: 22012, 22003."""
    if a.is_nan() or b.is_nan():
        return NAN
    if not b:
        raise errors.error(errors.DIVISION_BY_ZERO, "division by zero")
    weight = _weight(a) - _weight(b)
    if _first_digit(a) <= _first_digit(b):
        weight -= 1
    wanted = max(MIN_SIGNIFICANT_DIGITS - weight * _GROUP, scale(a), scale(b), 0)
    return _quotient(a, b, wanted)


def _quotient(a: Decimal, b: Decimal, wanted: int) -> Decimal:
    """Exactly rounded in one step, on integers: a quotient has no exact decimal form to round from."""
    kept = min(wanted, max(MAX_NUMERIC_DIGITS - max(a.adjusted() - b.adjusted(), 0) - 1, 0))
    top, bottom = _unscaled(a), _unscaled(b)
    shift = kept - scale(a) + scale(b)
    if shift >= 0:
        top *= 10**shift
    else:
        bottom *= 10**-shift
    whole, rest = divmod(abs(top), abs(bottom))
    if 2 * rest >= abs(bottom):
        whole += 1
    if (top < 0) != (bottom < 0):
        whole = -whole
    return fits(Decimal(whole).scaleb(-kept, WIDE))


def remainder(a: Decimal, b: Decimal) -> Decimal:
    """a % b with the sign of a. Errors: 22012."""
    if a.is_nan() or b.is_nan():
        return NAN
    if not b:
        raise errors.error(errors.DIVISION_BY_ZERO, "division by zero")
    result = WIDE.remainder(a, b)
    return fits(result) if result else fits(result.copy_abs())


def negate(a: Decimal) -> Decimal:
    """-a; there is no negative zero."""
    return a.copy_negate() if a and not a.is_nan() else a


def less(a: Decimal, b: Decimal) -> bool:
    """a < b, NaN above all else."""
    if a.is_nan() or b.is_nan():
        return b.is_nan() and not a.is_nan()
    return a < b


def equal(a: Decimal, b: Decimal) -> bool:
    """a = b, NaN equal to itself."""
    return a == b or (a.is_nan() and b.is_nan())


def square_root(a: Decimal) -> Decimal:
    """Errors: 2201F for a negative one."""
    if a.is_nan():
        return a
    require_root(a)
    weight = (_weight(a) + 1) * _GROUP // 2 - 1
    return settled(lambda context: context.sqrt(a), max(MIN_SIGNIFICANT_DIGITS - weight, scale(a), 0))


def exponential(a: Decimal) -> Decimal:
    """e^a. Errors: 22003."""
    if a.is_nan():
        return a
    digits = int(float(a) * 0.434294481903252)
    if digits >= MAX_NUMERIC_DIGITS + 1:
        raise out_of_range(Kind.NUMERIC)
    exponent = max(a, Decimal(-4000))
    return settled(lambda context: context.exp(exponent), max(MIN_SIGNIFICANT_DIGITS - digits, scale(a), 0))


def natural_logarithm(a: Decimal) -> Decimal:
    """Errors: 2201E unless a > 0."""
    if a.is_nan():
        return a
    require_logarithm(a)
    return settled(lambda context: context.ln(a), max(MIN_SIGNIFICANT_DIGITS - _logarithm_weight(a), scale(a), 0))


def logarithm(base: Decimal, a: Decimal) -> Decimal:
    """The logarithm of a to a base. Errors: 2201E, 22012."""
    if a.is_nan() or base.is_nan():
        return NAN
    require_logarithm(base)
    require_logarithm(a)
    if base == 1:
        raise errors.error(errors.DIVISION_BY_ZERO, "division by zero")
    weight = _logarithm_weight(a) - _logarithm_weight(base)
    wanted = max(MIN_SIGNIFICANT_DIGITS - weight, scale(base), scale(a), 0)
    if base == 10:
        return settled(lambda context: context.log10(a), wanted)
    return settled(lambda context: context.divide(context.ln(a), context.ln(base)), wanted)


def power(base: Decimal, exponent: Decimal) -> Decimal:
    """base ^ exponent. Errors: 2201F, 22003.

    PostgreSQL gives a whole exponent the scale of the base, 16 at least, however small the result; others get 16
    significant digits.
    """
    if base.is_nan() or exponent.is_nan():
        return Decimal(1) if base == 1 or exponent == 0 else NAN
    integral = exponent == exponent.to_integral_value()
    require_power(base, exponent, whole=integral)
    whole = integral and -_LARGEST_WHOLE <= exponent < _LARGEST_WHOLE
    if not base:
        return settle(Decimal(int(not exponent)), max(MIN_SIGNIFICANT_DIGITS, scale(base) if whole else 0))
    digits = float(exponent) * float(_NARROW.log10(base.copy_abs()))
    if digits >= MAX_NUMERIC_DIGITS:
        raise out_of_range(Kind.NUMERIC)
    wanted = max(scale(base), scale(exponent), MIN_SIGNIFICANT_DIGITS - int(digits), 0)
    if whole:
        wanted = max(MIN_SIGNIFICANT_DIGITS, scale(base))
    if digits <= -1000:
        return settle(Decimal(0), wanted)
    return settled(lambda context: context.power(base, exponent), wanted)


def require_root(a: Decimal | float) -> None:
    """2201F for what has no square root."""
    if a < 0:
        raise errors.error(errors.INVALID_POWER_ARGUMENT, "cannot take square root of a negative number")


def require_logarithm(a: Decimal | float) -> None:
    """2201E for what has no logarithm."""
    if a <= 0:
        kind = "zero" if not a else "a negative number"
        raise errors.error(errors.INVALID_LOGARITHM_ARGUMENT, f"cannot take logarithm of {kind}")


def require_power(base: Decimal | float, exponent: Decimal | float, *, whole: bool) -> None:
    """2201F for what is no power. `whole`: the exponent is an integer or infinite."""
    if not base and exponent < 0:
        raise errors.error(errors.INVALID_POWER_ARGUMENT, "zero raised to a negative power is undefined")
    if base < 0 and not whole:
        message = "a negative number raised to a non-integer power yields a complex result"
        raise errors.error(errors.INVALID_POWER_ARGUMENT, message)


def _logarithm_weight(a: Decimal) -> int:
    """Decimal weight of ln(a), as PostgreSQL estimates it: of the first two of its digits."""
    if Decimal("0.9") <= a <= Decimal("1.1"):
        distance = WIDE.subtract(a, 1)
        return distance.adjusted() if distance else 0
    below = (_weight(a) - 1) * _GROUP
    return int(math.log10(abs(math.log(int(a.scaleb(-below, WIDE))) + below * _LN_10)))


def settled(compute: Callable[[decimal.Context], Decimal], wanted: int) -> Decimal:
    """What `compute` gives in a context of unlimited digits, settled: by as few digits as decide how it is rounded."""
    for context in (_NARROW, _MIDDLE):
        value = compute(context)
        if not value:
            return settle(value, wanted)
        doubt = Decimal((0, (1,), value.adjusted() - context.prec + _DOUBT))
        low, high = WIDE.subtract(value, doubt), WIDE.add(value, doubt)
        if low.adjusted() == high.adjusted():
            found = settle(low, wanted)
            if found == settle(high, wanted):
                return found
    return settle(compute(WIDE), wanted)


def settle(value: Decimal, wanted: int) -> Decimal:
    """A wide result at the wanted scale, or at the largest that 38 digits allow."""
    digits = max(value.adjusted(), 0) if value else 0
    kept = min(wanted, MAX_NUMERIC_DIGITS - digits - 1)
    if kept < 0:
        raise out_of_range(Kind.NUMERIC)
    return fits(value.quantize(Decimal(1).scaleb(-kept, WIDE), rounding=decimal.ROUND_HALF_UP, context=WIDE))


def scale(a: Decimal) -> int:
    """The display scale of an internal numeric; 0 for NaN."""
    exponent = a.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def _unscaled(a: Decimal) -> int:
    return int(a.scaleb(scale(a), WIDE))


def _weight(a: Decimal) -> int:
    return a.adjusted() // _GROUP if a else 0


def _first_digit(a: Decimal) -> int:
    """The first digit in base 10,000; 0 for zero."""
    if not a:
        return 0
    return int(a.copy_abs().scaleb(-_weight(a) * _GROUP, WIDE))
