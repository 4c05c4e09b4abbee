"""Operators on numbers: + - * / % ^, sign, bits; and the arithmetic of dates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from instar import errors
from instar.sql.functions.model import Context, Function, Sql
from instar.sql.functions.rendering import as_text, digits_of, is_static, repeatable
from instar.sql.functions.udfs import duckdb_type, register, register_batch
from instar.types import (
    BIGINT,
    DATE,
    DOUBLE,
    INTEGER,
    INTEGER_RANGES,
    MAX_NUMERIC_DIGITS,
    NUMERIC,
    REAL,
    SMALLINT,
    Kind,
    Type,
)
from instar.values import arithmetic, datetimes, numbers

INTEGER_TYPES = (SMALLINT, INTEGER, BIGINT)
_OVERFLOW = "value out of range: overflow"
_UNDERFLOW = "value out of range: underflow"
_ZERO = "division by zero"


def out_of_range(message: str) -> errors.Error:
    """22003 with these words."""
    return errors.error(errors.NUMERIC_OUT_OF_RANGE, message)


def zero_division() -> errors.Error:
    """22012."""
    return errors.error(errors.DIVISION_BY_ZERO, _ZERO)


# --- integers --------------------------------------------------------------------------------------------------------


def _checked(kind: Kind, compute: Callable[..., int]) -> Callable[..., int]:
    low, high = INTEGER_RANGES[kind]

    def apply(*args: int) -> int:
        result = compute(*args)
        if low <= result <= high:
            return result
        raise numbers.out_of_range(kind)

    return apply


def _binary(kind: Kind, compute: Callable[[int, int], int]) -> Callable[[int, int], int]:
    low, high = INTEGER_RANGES[kind]

    def apply(a: int, b: int) -> int:
        result = compute(a, b)
        if low <= result <= high:
            return result
        raise numbers.out_of_range(kind)

    return apply


def quotient(a: int, b: int) -> int:
    """a / b towards zero. Errors: 22012."""
    if b == 0:
        raise zero_division()
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def remainder(a: int, b: int) -> int:
    """a % b with the sign of a. Errors: 22012."""
    if b == 0:
        raise zero_division()
    return abs(a) % abs(b) if a >= 0 else -(-a % abs(b))


def _shift(kind: Kind, left: bool) -> Callable[[int, int], int]:
    """As C on the machines that PostgreSQL runs on: the distance modulo the width of the register."""
    mask = 63 if kind is Kind.BIGINT else 31
    low, high = INTEGER_RANGES[kind]
    size = high - low + 1

    def apply(a: int, b: int) -> int:
        shifted = a << (b & mask) if left else a >> (b & mask)
        return (shifted - low) % size + low

    return apply


def _integer_functions(type_: Type) -> list[Function]:
    kind, name = type_.kind, duckdb_type(type_)
    two, one = (type_, type_), (type_,)

    def op(symbol: str, python: Callable[..., object], duckdb: str, arguments: tuple[Type, ...] = two) -> Function:
        return Function(symbol, arguments, type_, python, duckdb, operator=True)

    low = f"CAST({INTEGER_RANGES[kind][0]} AS {name})"
    found = [
        op("+", _binary(kind, operator.add), "({0} + {1})"),
        op("-", _binary(kind, operator.sub), "({0} - {1})"),
        op("*", _binary(kind, operator.mul), "({0} * {1})"),
        op("/", _binary(kind, quotient), "({0} // {1})"),
        # The remainder of the least number by -1 is 0; DuckDB overflows.
        Function("%", two, type_, remainder, _integer_remainder(name, low), operator=True),
        op("-", _checked(kind, operator.neg), f"(CAST(0 AS {name}) - {{0}})", one),
        op("+", operator.pos, "{0}", one),
        op("&", operator.and_, "({0} & {1})"),
        op("|", operator.or_, "({0} | {1})"),
        op("#", operator.xor, "xor({0}, {1})"),
        op("~", operator.invert, "(~ {0})", one),
    ]
    for symbol, left in (("<<", True), (">>", False)):
        closure = _shift(kind, left)
        call = register(f"shift_{'left' if left else 'right'}_{kind.name.lower()}", closure, [type_, INTEGER], type_)
        found.append(op(symbol, closure, call("{0}", "{1}"), (type_, INTEGER)))
    return found


def _integer_remainder(name: str, low: str) -> Callable[[Sequence[Sql], Context], Sql]:
    kind = {"SMALLINT": SMALLINT, "INTEGER": INTEGER, "BIGINT": BIGINT}[name]
    call = register(f"remainder_{name.lower()}", remainder, [kind, kind], kind)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        a, b = args[0].text, args[1].text
        if repeatable(b):
            return Sql(f"({a} % CASE WHEN {b} = -1 THEN CAST(1 AS {name}) ELSE {b} END)", kind)
        return Sql(call(a, b), kind)

    return render


# --- floats ----------------------------------------------------------------------------------------------------------


def _float_add(a: float, b: float) -> float:
    result = a + b
    if math.isinf(result) and not (math.isinf(a) or math.isinf(b)):
        raise out_of_range(_OVERFLOW)
    return result


def _float_subtract(a: float, b: float) -> float:
    return _float_add(a, -b)


def _float_multiply(a: float, b: float) -> float:
    result = a * b
    if math.isinf(result) and not (math.isinf(a) or math.isinf(b)):
        raise out_of_range(_OVERFLOW)
    if result == 0.0 and a != 0.0 and b != 0.0:
        raise out_of_range(_UNDERFLOW)
    return result


def _float_divide(a: float, b: float) -> float:
    if b == 0.0:
        if a != a:
            return a
        raise zero_division()
    result = a / b
    if math.isinf(result) and not math.isinf(a):
        raise out_of_range(_OVERFLOW)
    if result == 0.0 and a != 0.0 and not math.isinf(b):
        raise out_of_range(_UNDERFLOW)
    return result


def _single(compute: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """Computed in 64 bits and rounded: for these four operations the same as computed in 32 (twice the digits + 2)."""

    def apply(a: float, b: float) -> float:
        try:
            return numbers.single(compute(a, b))
        except errors.Error as fault:
            if fault.message == "real out of range":
                raise out_of_range(_OVERFLOW) from None
            raise

    return apply


_FLOAT_CLOSURES = {"+": _float_add, "-": _float_subtract, "*": _float_multiply, "/": _float_divide}


def _float_batch(symbol: str) -> Callable[[Any, Any], Any]:
    """The operator on Arrow arrays, with the same errors."""

    def batch(left: Any, right: Any) -> Any:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        nulls = pc.or_(left.is_null(), right.is_null()).to_numpy(zero_copy_only=False)
        a, b = left.to_numpy(zero_copy_only=False), right.to_numpy(zero_copy_only=False)
        with np.errstate(all="ignore"):
            compute = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[symbol]
            result = compute(a, b)
            if symbol == "/" and ((b == 0) & ~np.isnan(a) & ~nulls).any():
                raise zero_division()
            infinite = np.isinf(a) if symbol == "/" else np.isinf(a) | np.isinf(b)
            if (np.isinf(result) & ~infinite & ~nulls).any():
                raise out_of_range(_OVERFLOW)
            if symbol in "*/":
                zero = np.isinf(b) if symbol == "/" else b == 0
                if ((result == 0) & (a != 0) & ~zero & ~nulls).any():
                    raise out_of_range(_UNDERFLOW)
        return pa.array(result, left.type, mask=nulls)

    return batch


def _float_duckdb(symbol: str, result: Type) -> Callable[[Sequence[Sql], Context], Sql]:
    name = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}[symbol]
    call = register_batch(f"{name}_{result.kind.name.lower()}", _float_batch(symbol), [result, result], result)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        a, b = (arg.text if arg.type == result else f"CAST({arg.text} AS {duckdb_type(result)})" for arg in args)
        if not repeatable(a, b):
            return Sql(call(a, b), result)
        value = f"({a} {symbol} {b})"
        if symbol == "/":
            fails = f"{b} = 0 AND NOT isnan({a}) OR isinf{value} AND NOT isinf({a})"
            fails += f" OR {value} = 0 AND {a} <> 0 AND NOT isinf({b})"
        else:
            fails = f"isinf{value} AND NOT isinf({a}) AND NOT isinf({b})"
            if symbol == "*":
                fails += f" OR {value} = 0 AND {a} <> 0 AND {b} <> 0"
        # The closure raises the error. DuckDB's error() is volatile, and as such refused in the keys of windows.
        return Sql(f"(CASE WHEN {fails} THEN {call(a, b)} ELSE {value} END)", result)

    return render


def _float_functions() -> list[Function]:
    found = []
    for symbol, closure in _FLOAT_CLOSURES.items():
        double = _float_duckdb(symbol, DOUBLE)
        found += [
            Function(symbol, (REAL, REAL), REAL, _single(closure), _float_duckdb(symbol, REAL), operator=True),
            Function(symbol, (DOUBLE, DOUBLE), DOUBLE, closure, double, operator=True),
            # Of two kinds of float, a double comes out; without these a real and an integer would give a real.
            Function(symbol, (REAL, DOUBLE), DOUBLE, closure, double, operator=True),
            Function(symbol, (DOUBLE, REAL), DOUBLE, closure, double, operator=True),
        ]
    for type_ in (REAL, DOUBLE):
        found += [
            Function("-", (type_,), type_, operator.neg, "(- {0})", operator=True),
            Function("+", (type_,), type_, operator.pos, "{0}", operator=True),
        ]
    return found


# --- numeric ---------------------------------------------------------------------------------------------------------


def _static(args: Sequence[Sql]) -> list[tuple[int, int]] | None:
    """(precision, scale) of each argument if all are DECIMALs."""
    types = [digits_of(arg.type) for arg in args]
    if not all(is_static(type_) for type_ in types):
        return None
    return [(type_.precision or 0, type_.scale or 0) for type_ in types]


def _numeric_duckdb(symbol: str, name: str, closure: Callable[..., object]) -> Callable[[Sequence[Sql], Context], Sql]:
    """DECIMAL arithmetic where the scale of the result is known from the types and DuckDB has the digits for it."""
    call = register(f"numeric_{name}", closure, [NUMERIC, NUMERIC], NUMERIC)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        known = _static(args)
        if known is not None:
            (p1, s1), (p2, s2) = known
            scale = s1 + s2 if symbol == "*" else max(s1, s2)
            whole = p1 - s1 + p2 - s2 if symbol == "*" else max(p1 - s1, p2 - s2)
            # DuckDB checks results against 38 digits, as we do; but an operand must survive being brought to `scale`.
            if scale <= MAX_NUMERIC_DIGITS and (symbol == "*" or whole + scale <= MAX_NUMERIC_DIGITS):
                precision = min(whole + (symbol in "+-") + scale, MAX_NUMERIC_DIGITS)
                type_ = Type(Kind.NUMERIC, max(precision, 1), scale)
                left = args[0].text
                if precision > 18 and max(p1, p2) <= 18:
                    # DuckDB keeps the result of two 64-bit decimals in 64 bits, and so loses digits that it has.
                    left = f"CAST({left} AS DECIMAL(19,{s1}))"
                text = f"({left} {symbol} {args[1].text})"
                return Sql(f"CAST({text} AS {duckdb_type(type_)})", type_)
        return Sql(call(as_text(args[0]), as_text(args[1])), NUMERIC)

    return render


def _numeric_unary(name: str, native: str, closure: Callable[..., object]) -> Callable[[Sequence[Sql], Context], Sql]:
    call = register(f"numeric_{name}", closure, [NUMERIC], NUMERIC)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        if is_static(args[0].type):
            type_ = args[0].type
            return Sql(f"CAST({native.format(args[0].text)} AS {duckdb_type(type_)})", type_)
        return Sql(call(args[0].text), args[0].type)

    return render


def _numeric_divide(args: Sequence[Sql], context: Context) -> Sql:
    """A quotient's scale depends on the values: always our closure."""
    return Sql(numeric_quotient(as_text(args[0]), as_text(args[1])), NUMERIC)


numeric_quotient = register("numeric_divide", arithmetic.divide, [NUMERIC, NUMERIC], NUMERIC)


def _numeric_functions() -> list[Function]:
    two = (NUMERIC, NUMERIC)
    found = [Function("/", two, NUMERIC, arithmetic.divide, _numeric_divide, operator=True)]
    for symbol, name, closure in (
        ("+", "add", arithmetic.add),
        ("-", "subtract", arithmetic.subtract),
        ("*", "multiply", arithmetic.multiply),
        ("%", "remainder", arithmetic.remainder),
    ):
        found.append(Function(symbol, two, NUMERIC, closure, _numeric_duckdb(symbol, name, closure), operator=True))
    minus = _numeric_unary("negate", "(- {0})", arithmetic.negate)
    found.append(Function("-", (NUMERIC,), NUMERIC, arithmetic.negate, minus, operator=True))
    found.append(Function("+", (NUMERIC,), NUMERIC, _same, lambda args, context: args[0], operator=True))
    return found


def _same(value: Decimal) -> Decimal:
    return value


# --- dates -----------------------------------------------------------------------------------------------------------


def _date_add(days: int, more: int) -> int:
    return datetimes.check_date(days + more)


def _date_subtract(days: int, fewer: int) -> int:
    return datetimes.check_date(days - fewer)


_date_add_call = register("date_add", _date_add, [DATE, INTEGER], DATE)
_DATES = [
    Function("+", (DATE, INTEGER), DATE, _date_add, _date_add_call("{0}", "{1}"), operator=True),
    Function("+", (INTEGER, DATE), DATE, lambda a, b: _date_add(b, a), _date_add_call("{1}", "{0}"), operator=True),
    Function(
        "-",
        (DATE, INTEGER),
        DATE,
        _date_subtract,
        register("date_subtract", _date_subtract, [DATE, INTEGER], DATE)("{0}", "{1}"),
        operator=True,
    ),
    Function("-", (DATE, DATE), INTEGER, operator.sub, "CAST({0} - {1} AS INTEGER)", operator=True),
]

ENTRIES = (
    *(entry for type_ in INTEGER_TYPES for entry in _integer_functions(type_)),
    *_float_functions(),
    *_numeric_functions(),
    *_DATES,
)
