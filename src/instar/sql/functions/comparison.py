"""Comparison operators of every type; greatest, least, nullif."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from instar.sql.functions.model import COMMON, Context, Function, Sql
from instar.sql.functions.rendering import digits_of, is_static, sort_key, unify
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    MAX_NUMERIC_DIGITS,
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
from instar.values import comparison_key

SYMBOLS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PYTHON = {"=": "==", "<>": "!="}


def _render(symbol: str) -> Callable[[Sequence[Sql], Context], Sql]:
    def render(args: Sequence[Sql], context: Context) -> Sql:
        left, right = comparable(args)
        return Sql(f"({left} {symbol} {right})", BOOLEAN)

    return render


def comparable(args: Sequence[Sql]) -> list[str]:
    """Texts that DuckDB compares as Instar does the arguments, which are of one logical type."""
    if args[0].type.kind is Kind.NUMERIC or args[-1].type.kind is Kind.NUMERIC:
        types = [digits_of(arg.type) for arg in args]
        if all(is_static(type_) for type_ in types):
            whole = max((type_.precision or 0) - (type_.scale or 0) for type_ in types)
            if whole + max(type_.scale or 0 for type_ in types) <= MAX_NUMERIC_DIGITS:
                return [arg.text for arg in args]
            # No DECIMAL holds both sides, and DuckDB would fail to convert one to the other's.
            args = [Sql(f"CAST({arg.text} AS VARCHAR)", NUMERIC) for arg in args]
        else:
            args = unify(args)
    return [sort_key(arg) for arg in args]


def _keyed(type_: Type, compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    key = comparison_key(type_)
    return compare if key is None else lambda a, b: compare(key(a), key(b))


def _floats(symbol: str) -> Callable[[float, float], bool]:
    """NaN equals NaN and is above every number."""
    return {
        "=": lambda a, b: a == b or (a != a and b != b),
        "<>": lambda a, b: a != b and (a == a or b == b),
        "<": lambda a, b: a < b or (a == a and b != b),
        "<=": lambda a, b: a <= b or b != b,
        ">": lambda a, b: a > b or (a != a and b == b),
        ">=": lambda a, b: a >= b or a != a,
    }[symbol]


def _functions() -> list[Function]:
    found = []
    for symbol, compare in SYMBOLS.items():
        render = _render(symbol)
        inline = f"({{0}} {_PYTHON.get(symbol, symbol)} {{1}})"
        for type_ in (BOOLEAN, SMALLINT, INTEGER, BIGINT, TEXT, BYTEA, DATE, TIMESTAMP, TIMESTAMPTZ, UUID):
            two = (type_, type_)
            found.append(Function(symbol, two, BOOLEAN, compare, render, operator=True, inline=inline))
        found += [
            Function(symbol, (a, b), BOOLEAN, _floats(symbol), render, operator=True)
            for a, b in ((REAL, REAL), (DOUBLE, DOUBLE), (REAL, DOUBLE), (DOUBLE, REAL))
        ]
        found += [
            Function(symbol, (type_, type_), BOOLEAN, _keyed(type_, compare), render, operator=True)
            for type_ in (NUMERIC, JSONB)
        ]
    return found


# --- greatest, least, nullif -----------------------------------------------------------------------------------------


def _extreme(choose: Callable[..., Any]) -> Callable[[tuple[Type, ...]], Callable[..., object]]:
    def specialise(types: tuple[Type, ...]) -> Callable[..., object]:
        key = comparison_key(types[0])

        def apply(*args: Any) -> object:
            present = [arg for arg in args if arg is not None]
            return choose(present, key=key) if present else None

        return apply

    return specialise


def _nullif(types: tuple[Type, ...]) -> Callable[[Any, Any], object]:
    same = _keyed(types[0], operator.eq)
    return lambda a, b: None if a is not None and b is not None and same(a, b) else a


def _render_extreme(name: str) -> Callable[[Sequence[Sql], Context], Sql]:
    def render(args: Sequence[Sql], context: Context) -> Sql:
        operands = unify(args)
        keys = comparable(operands)
        if keys == [operand.text for operand in operands]:
            return Sql(f"{name}({', '.join(keys)})", operands[0].type)
        # The value that goes with the extreme key; of equals, the first.
        pick, sign = ("list_max", -1) if name == "greatest" else ("list_min", 1)
        pairs = ", ".join(
            f"{{'k': {key}, 'i': {sign * i}, 'v': {operand.text}}}"
            for i, (key, operand) in enumerate(zip(keys, operands, strict=True))
        )
        return Sql(f"struct_extract({pick}(list_filter([{pairs}], lambda p: p.k IS NOT NULL)), 'v')", operands[0].type)

    return render


def _render_nullif(args: Sequence[Sql], context: Context) -> Sql:
    left, right = comparable(args)
    return Sql(f"(CASE WHEN {left} = {right} THEN NULL ELSE {args[0].text} END)", args[0].type)


def _first(types: tuple[Type, ...]) -> Type:
    return types[0]


def _unspecialised(*args: object) -> object:
    raise AssertionError("a polymorphic function is evaluated by closure(types)")


_POLYMORPHIC = [
    Function(
        name,
        (COMMON,),
        _first,
        _unspecialised,
        _render_extreme(name),
        strict=False,
        variadic=True,
        specialise=_extreme(choose),
    )
    for name, choose in (("greatest", max), ("least", min))
]
_POLYMORPHIC.append(
    Function("nullif", (COMMON, COMMON), _first, _unspecialised, _render_nullif, strict=False, specialise=_nullif)
)

ENTRIES = (*_functions(), *_POLYMORPHIC)
