"""Mathematical functions of integers, doubles and numerics."""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal

from instar.sql.functions import arithmetic as operators
from instar.sql.functions.arithmetic import INTEGER_TYPES, out_of_range
from instar.sql.functions.model import Context, Function, Sql
from instar.sql.functions.rendering import as_text, is_static
from instar.sql.functions.strings import constant
from instar.sql.functions.udfs import duckdb_type, register
from instar.types import (
    BIGINT,
    DOUBLE,
    INTEGER,
    INTEGER_RANGES,
    MAX_NUMERIC_DIGITS,
    NUMERIC,
    REAL,
    Kind,
    Type,
)
from instar.values import arithmetic, numbers

_INPUT = "input is out of range"


def _called(name: str, closure: Callable[..., object], arguments: Sequence[Type], result: Type) -> Function:
    """A function that DuckDB calls back; numerics travel as text."""
    suffix = "_".join(type_.kind.name.lower() for type_ in arguments)
    call = register(f"{name}_{suffix}", closure, arguments, result)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        texts = (as_text(arg) if arg.type.kind is Kind.NUMERIC else arg.text for arg in args)
        return Sql(call(*texts), result)

    return Function(name, tuple(arguments), result, closure, render)


# --- double precision ------------------------------------------------------------------------------------------------


def _guarded(compute: Callable[..., float]) -> Callable[..., float]:
    """The C library's answer; what it cannot compute is 22003, and so is an overflow."""

    def apply(*args: float) -> float:
        try:
            return compute(*args)
        except ValueError:
            raise out_of_range(_INPUT) from None
        except OverflowError:
            raise out_of_range("value out of range: overflow") from None

    return apply


def _square_root(value: float) -> float:
    arithmetic.require_root(value)
    return math.sqrt(value)


def _ln(value: float) -> float:
    arithmetic.require_logarithm(value)
    return math.log(value)


def _log10(value: float) -> float:
    arithmetic.require_logarithm(value)
    return math.log10(value)


def _exp(value: float) -> float:
    result = math.exp(value)
    if result == 0.0 and not math.isinf(value):
        raise out_of_range("value out of range: underflow")
    return result


def power(base: float, exponent: float) -> float:
    """base ^ exponent. Errors: 2201F, 22003."""
    arithmetic.require_power(base, exponent, whole=not math.isfinite(exponent) or exponent.is_integer())
    if math.isinf(exponent) and base == -1:
        return 1.0
    result = math.pow(base, exponent)
    if result == 0.0 and base != 0.0 and math.isfinite(base) and math.isfinite(exponent):
        raise out_of_range("value out of range: underflow")
    return result


def _cube_root(value: float) -> float:
    return math.cbrt(value)


def _cotangent(value: float) -> float:
    return 1.0 / math.tan(value) if value else math.copysign(math.inf, value)


def _round_even(value: float) -> float:
    return math.copysign(float(round(value)), value) if math.isfinite(value) else value


def _whole(compute: Callable[[float], int]) -> Callable[[float], float]:
    def apply(value: float) -> float:
        return math.copysign(float(compute(value)), value) if math.isfinite(value) else value

    return apply


def _sign(value: float) -> float:
    return float((value > 0) - (value < 0))


def _degrees(value: float) -> float:
    result = value / (math.pi / 180.0)
    if math.isinf(result) and not math.isinf(value):
        raise out_of_range("value out of range: overflow")
    return result


def _radians(value: float) -> float:
    result = value * (math.pi / 180.0)
    if result == 0.0 and value:
        raise out_of_range("value out of range: underflow")
    return result


def _sinh(value: float) -> float:
    try:
        return math.sinh(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _cosh(value: float) -> float:
    try:
        return math.cosh(value)
    except OverflowError:
        return math.inf


_DOUBLES: dict[str, Callable[[float], float]] = {
    "sqrt": _square_root,
    "cbrt": _cube_root,
    "ln": _ln,
    "log": _log10,
    "log10": _log10,
    "exp": _exp,
    "round": _round_even,
    "trunc": _whole(math.trunc),
    "ceil": _whole(math.ceil),
    "ceiling": _whole(math.ceil),
    "floor": _whole(math.floor),
    "sign": _sign,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "cot": _cotangent,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": math.tanh,
    "degrees": _degrees,
    "radians": _radians,
}


def _double_functions() -> list[Function]:
    found = [_called(name, _guarded(compute), [DOUBLE], DOUBLE) for name, compute in _DOUBLES.items()]
    found.append(_called("atan2", math.atan2, [DOUBLE, DOUBLE], DOUBLE))
    found += [_called(name, _guarded(power), [DOUBLE, DOUBLE], DOUBLE) for name in ("power", "pow")]
    found += [Function("abs", (type_,), type_, math.fabs, "abs({0})") for type_ in (REAL, DOUBLE)]
    found.append(Function("pi", (), DOUBLE, lambda: math.pi, "pi()"))
    found.append(Function("random", (), DOUBLE, random.random, "random()", volatility="volatile"))
    return found


# --- integers --------------------------------------------------------------------------------------------------------


def _absolute(kind: Kind) -> Callable[[int], int]:
    limit = INTEGER_RANGES[kind][1]

    def apply(value: int) -> int:
        if -value > limit:
            raise numbers.out_of_range(kind)
        return abs(value)

    return apply


def _in_range(kind: Kind, compute: Callable[[int, int], int]) -> Callable[[int, int], int]:
    limit = INTEGER_RANGES[kind][1]

    def apply(a: int, b: int) -> int:
        result = compute(a, b)
        if result > limit:
            raise numbers.out_of_range(kind)
        return result

    return apply


def _integer_functions() -> list[Function]:
    found = [Function("abs", (type_,), type_, _absolute(type_.kind), "abs({0})") for type_ in INTEGER_TYPES]
    for type_ in (INTEGER, BIGINT):
        for name, compute in (("gcd", math.gcd), ("lcm", math.lcm)):
            found.append(_called(name, _in_range(type_.kind, compute), [type_, type_], type_))
    found += [
        Function("mod", entry.arguments, entry.result, entry.python, entry.duckdb)
        for entry in operators.ENTRIES
        if entry.name == "%"
    ]
    return found


# --- numeric ---------------------------------------------------------------------------------------------------------


def _rounded(value: Decimal, scale: int = 0) -> Decimal:
    return _at_scale(value, scale, decimal.ROUND_HALF_UP)


def _truncated(value: Decimal, scale: int = 0) -> Decimal:
    return _at_scale(value, scale, decimal.ROUND_DOWN)


def _at_scale(value: Decimal, scale: int, rounding: str) -> Decimal:
    if value.is_nan():
        return value
    scale = max(-100, min(scale, MAX_NUMERIC_DIGITS))
    result = value.quantize(Decimal(1).scaleb(-scale, numbers.WIDE), rounding=rounding, context=numbers.WIDE)
    return numbers.fits(result if result else result.copy_abs())


def _integral(rounding: str) -> Callable[[Decimal], Decimal]:
    return lambda value: _at_scale(value, 0, rounding)


def _render_rounded(name: str, closure: Callable[..., object]) -> Callable[[Sequence[Sql], Context], Sql]:
    """To a constant scale: DECIMAL's own; else by text, for the scale then differs from row to row."""
    call = register(f"numeric_{name}", closure, [NUMERIC, INTEGER], NUMERIC)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        scale = constant(args[1]) if len(args) > 1 else 0
        operand = args[0]
        if is_static(operand.type) and scale is not None and 0 <= scale <= MAX_NUMERIC_DIGITS:
            whole = (operand.type.precision or 0) - (operand.type.scale or 0) + 1
            if whole + scale <= MAX_NUMERIC_DIGITS:
                type_ = Type(Kind.NUMERIC, whole + scale, scale)
                if name == "round":
                    return Sql(f"CAST({operand.text} AS {duckdb_type(type_)})", type_)
                return Sql(f"CAST({call(as_text(operand), str(scale))} AS {duckdb_type(type_)})", type_)
        places = args[1].text if len(args) > 1 else "0"
        return Sql(call(as_text(operand), places), NUMERIC)

    return render


def _render_integral(name: str, closure: Callable[..., object]) -> Callable[[Sequence[Sql], Context], Sql]:
    call = register(f"numeric_{name}", closure, [NUMERIC], NUMERIC)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        type_ = args[0].type
        if is_static(type_):
            digits = min((type_.precision or 0) - (type_.scale or 0) + 1, MAX_NUMERIC_DIGITS)
            whole = Type(Kind.NUMERIC, digits, 0)
            return Sql(f"CAST({name}({args[0].text}) AS {duckdb_type(whole)})", whole)
        return Sql(call(args[0].text), NUMERIC)

    return render


def _render_absolute(args: Sequence[Sql], context: Context) -> Sql:
    if is_static(args[0].type):
        return Sql(f"abs({args[0].text})", args[0].type)
    return Sql(_absolute_call(args[0].text), args[0].type)


def _numeric_absolute(value: Decimal) -> Decimal:
    return value if value.is_nan() else value.copy_abs()


_absolute_call = register("numeric_abs", _numeric_absolute, [NUMERIC], NUMERIC)


def _numeric_sign(value: Decimal) -> Decimal:
    return value if value.is_nan() else Decimal((value > 0) - (value < 0))


def _numeric_div(a: Decimal, b: Decimal) -> Decimal:
    """The quotient cut to an integer."""
    if a.is_nan() or b.is_nan():
        return numbers.NAN
    if not b:
        raise operators.zero_division()
    return _truncated(numbers.WIDE.divide_int(a, b))


def _of_whole(compute: Callable[[int, int], int]) -> Callable[[Decimal, Decimal], Decimal]:
    """What is computed of integers, of numbers with fractions: at the larger scale both are integers."""

    def apply(a: Decimal, b: Decimal) -> Decimal:
        if a.is_nan() or b.is_nan():
            return numbers.NAN
        scale = max(arithmetic.scale(a), arithmetic.scale(b))
        found = compute(*(int(numbers.WIDE.scaleb(value, scale)) for value in (a, b)))
        return numbers.fits(Decimal(found).scaleb(-scale, numbers.WIDE))

    return apply


def _numeric_functions() -> list[Function]:
    one, two = (NUMERIC,), (NUMERIC, INTEGER)
    found = [
        Function("abs", one, NUMERIC, _numeric_absolute, _render_absolute),
        _called("sign", _numeric_sign, one, NUMERIC),
        _called("sqrt", arithmetic.square_root, one, NUMERIC),
        _called("exp", arithmetic.exponential, one, NUMERIC),
        _called("ln", arithmetic.natural_logarithm, one, NUMERIC),
        _called("log", lambda value: arithmetic.logarithm(Decimal(10), value), one, NUMERIC),
        _called("log10", lambda value: arithmetic.logarithm(Decimal(10), value), one, NUMERIC),
        _called("log", arithmetic.logarithm, (NUMERIC, NUMERIC), NUMERIC),
        _called("power", arithmetic.power, (NUMERIC, NUMERIC), NUMERIC),
        _called("pow", arithmetic.power, (NUMERIC, NUMERIC), NUMERIC),
        _called("div", _numeric_div, (NUMERIC, NUMERIC), NUMERIC),
        _called("gcd", _of_whole(math.gcd), (NUMERIC, NUMERIC), NUMERIC),
        _called("lcm", _of_whole(math.lcm), (NUMERIC, NUMERIC), NUMERIC),
    ]
    for name, closure in (("round", _rounded), ("trunc", _truncated)):
        render = _render_rounded(name, closure)
        found += [Function(name, arguments, NUMERIC, closure, render) for arguments in (one, two)]
    for name, native, rounding in (
        ("ceil", "ceil", decimal.ROUND_CEILING),
        ("ceiling", "ceil", decimal.ROUND_CEILING),
        ("floor", "floor", decimal.ROUND_FLOOR),
    ):
        integral = _integral(rounding)
        found.append(Function(name, one, NUMERIC, integral, _render_integral(native, integral)))
    return found


def _operators(entries: Sequence[Function]) -> list[Function]:
    """The functions that are operators, too."""
    symbols = {"power": "^", "abs": "@"}
    return [
        Function(symbols[entry.name], entry.arguments, entry.result, entry.python, entry.duckdb, operator=True)
        for entry in entries
        if entry.name in symbols
    ]


_NAMED = (*_double_functions(), *_integer_functions(), *_numeric_functions())
ENTRIES = (*_NAMED, *_operators(_NAMED))
