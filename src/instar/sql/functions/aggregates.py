"""Aggregates: accumulators on internal values, and DuckDB's calls.

Where DuckDB has no aggregate with our answer, it collects a list that one of our closures folds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, AnyStr, Generic

from instar.sql.functions.arithmetic import out_of_range
from instar.sql.functions.model import ANY, Accumulator, Aggregate, AggregateSql, Sql
from instar.sql.functions.rendering import as_text, digits_of, is_static, quote, sort_key
from instar.sql.functions.udfs import STRING_LIST, duckdb_type, register
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    FLOATS,
    INTEGER,
    INTEGER_RANGES,
    MAX_NUMERIC_DIGITS,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    Type,
)
from instar.values import arithmetic, comparison_key, numbers

_OVERFLOW = "value out of range: overflow"
_SUMMABLE = 28  # digits of which DuckDB sums 10^10 values without overflow

# --- count, booleans -------------------------------------------------------------------------------------------------


class Count:
    """Counts what it is given."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = 0

    def add(self, *args: object) -> None:
        self.rows += 1

    def result(self) -> int:
        return self.rows


def _count(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    return Sql(modifiers.call("count", sort_key(args[0]) if args else "*"), BIGINT)


class _Fold:
    """bool_and, bool_or: `decisive` is the value that settles it."""

    __slots__ = ("decisive", "value")

    def __init__(self, decisive: bool) -> None:
        self.decisive = decisive
        self.value: bool | None = None

    def add(self, value: bool) -> None:
        if self.value is None or value is self.decisive:
            self.value = value

    def result(self) -> bool | None:
        return self.value


def _boolean(name: str, decisive: bool) -> Aggregate:
    native = "bool_or" if decisive else "bool_and"
    return Aggregate(
        name,
        (BOOLEAN,),
        BOOLEAN,
        lambda types: lambda: _Fold(decisive),
        lambda modifiers, args: Sql(modifiers.call(native, args[0].text), BOOLEAN),
    )


# --- sum, avg --------------------------------------------------------------------------------------------------------


class _Sum:
    """Exact sum of integers or numerics; `finish` makes the result of (sum, count)."""

    __slots__ = ("finish", "rows", "total")

    def __init__(self, finish: Callable[[Any, int], object], zero: int | Decimal) -> None:
        self.finish = finish
        self.total: Any = zero
        self.rows = 0

    def add(self, value: int) -> None:
        self.total += value
        self.rows += 1

    def result(self) -> object:
        return self.finish(self.total, self.rows) if self.rows else None


class _NumericSum(_Sum):
    __slots__ = ()

    def add(self, value: Any) -> None:
        self.total = numbers.WIDE.add(self.total, value)
        self.rows += 1


class _FloatSum(_Sum):
    """A sum that overflows is an error, unless an infinity went into it."""

    __slots__ = ("infinite",)

    def __init__(self, finish: Callable[[Any, int], object], zero: int | Decimal) -> None:
        super().__init__(finish, zero)
        self.infinite = False

    def add(self, value: float) -> None:
        self.total += value
        self.rows += 1
        self.infinite = self.infinite or math.isinf(value)

    def result(self) -> object:
        if not self.rows:
            return None
        if math.isinf(self.total) and not self.infinite:
            raise out_of_range(_OVERFLOW)
        return self.finish(self.total, self.rows)


def _bigint(total: int, rows: int) -> int:
    low, high = INTEGER_RANGES[Kind.BIGINT]
    if low <= total <= high:
        return total
    raise numbers.out_of_range(Kind.BIGINT)


def _numeric_total(total: Decimal | int, rows: int) -> Decimal:
    return numbers.fits(Decimal(total))


def _mean(total: Decimal | int, rows: int) -> Decimal:
    return arithmetic.divide(Decimal(total), Decimal(rows))


def _real_total(total: float, rows: int) -> float:
    return numbers.single(total)


def _double_total(total: float, rows: int) -> float:
    return float(total)


def _double_mean(total: float, rows: int) -> float:
    return total / rows


def _sum_integers(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    return Sql(f"CAST({modifiers.call('sum', args[0].text)} AS BIGINT)", BIGINT)


def _sum_exact(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    """bigint and numeric. Of values with differing scales, the sum has the largest scale that occurs."""
    type_, text = digits_of(args[0].type), args[0].text
    if is_static(type_):
        total = Type(Kind.NUMERIC, MAX_NUMERIC_DIGITS, type_.scale or 0)
        return Sql(f"CAST({modifiers.call('sum', text)} AS {duckdb_type(total)})", total)
    if type_.scale is not None and not modifiers.distinct:
        total = Type(Kind.NUMERIC, MAX_NUMERIC_DIGITS, type_.scale)
        summed = modifiers.call("sum", f"CAST({text} AS {duckdb_type(total)})")
        scale = modifiers.call("max", f"(CASE WHEN contains({text}, '.') THEN length({text}) - instr({text}, '.') "
                                      "ELSE 0 END)")  # fmt: skip
        return Sql(_rescale(f"CAST({summed} AS VARCHAR)", f"CAST({scale} AS INTEGER)"), type_)
    return _folded("sum", modifiers, text)


_rescale = register("rescale", numbers.rounded, [NUMERIC, INTEGER], NUMERIC)


def _overflowing(total: float) -> float:
    raise out_of_range(_OVERFLOW)


# Not error(), which is volatile to DuckDB, and as such refused in the keys of windows.
_overflow = register("overflow", _overflowing, [DOUBLE], DOUBLE)


def _sum_floats(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    text = args[0].text if args[0].type == DOUBLE else f"CAST({args[0].text} AS DOUBLE)"
    total = modifiers.call("sum", text)
    infinite = modifiers.call("bool_or", f"isinf({text})")
    checked = f"(CASE WHEN isinf({total}) AND NOT {infinite} THEN {_overflow(total)} ELSE {total} END)"
    return Sql(checked if args[0].type == DOUBLE else f"CAST({checked} AS FLOAT)", args[0].type)


def _avg_exact(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    type_, text = digits_of(args[0].type), args[0].text
    if not is_static(type_) or (type_.precision or 0) > _SUMMABLE:
        return _folded("avg", modifiers, as_text(args[0]))
    total = Sql(modifiers.call("sum", text), Type(Kind.NUMERIC, MAX_NUMERIC_DIGITS, type_.scale or 0))
    if args[0].type.kind is not Kind.NUMERIC:
        return Sql(_mean_call(f"CAST({total.text} AS VARCHAR)", modifiers.call("count", text)), NUMERIC)
    return Sql(_mean_call(as_text(total), modifiers.call("count", text)), NUMERIC)


def _mean_of(total: Decimal, rows: int) -> Decimal | None:
    return _mean(total, rows) if rows else None


_mean_call = register("mean", _mean_of, [NUMERIC, BIGINT], NUMERIC)


def _avg_floats(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    total = _sum_floats(modifiers, [Sql(f"CAST({args[0].text} AS DOUBLE)", DOUBLE)])
    return Sql(f"({total.text} / nullif({modifiers.call('count', args[0].text)}, 0))", DOUBLE)


def _sums() -> tuple[Aggregate, ...]:
    zero = Decimal(0)
    return (
        *(
            Aggregate("sum", (type_,), BIGINT, lambda types: lambda: _Sum(_bigint, 0), _sum_integers)
            for type_ in (SMALLINT, INTEGER)
        ),
        Aggregate("sum", (BIGINT,), NUMERIC, lambda types: lambda: _Sum(_numeric_total, 0), _sum_exact),
        Aggregate("sum", (NUMERIC,), NUMERIC, lambda types: lambda: _NumericSum(_numeric_total, zero), _sum_exact),
        Aggregate("sum", (REAL,), REAL, lambda types: lambda: _FloatSum(_real_total, 0), _sum_floats),
        Aggregate("sum", (DOUBLE,), DOUBLE, lambda types: lambda: _FloatSum(_double_total, 0), _sum_floats),
        *(
            Aggregate("avg", (type_,), NUMERIC, lambda types: lambda: _Sum(_mean, 0), _avg_exact)
            for type_ in (SMALLINT, INTEGER, BIGINT)
        ),
        Aggregate("avg", (NUMERIC,), NUMERIC, lambda types: lambda: _NumericSum(_mean, zero), _avg_exact),
        *(
            Aggregate("avg", (type_,), DOUBLE, lambda types: lambda: _FloatSum(_double_mean, 0), _avg_floats)
            for type_ in (REAL, DOUBLE)
        ),
    )


# --- variance and standard deviation ---------------------------------------------------------------------------------


class _Moments:
    """Exact sums of values and squares: integers and numerics."""

    __slots__ = ("finish", "rows", "squares", "total")

    def __init__(self, finish: Callable[[int, Decimal, Decimal], Decimal | None]) -> None:
        self.finish = finish
        self.rows = 0
        self.total = self.squares = Decimal(0)

    def add(self, value: Any) -> None:
        value = Decimal(value)
        self.rows += 1
        self.total = numbers.WIDE.add(self.total, value)
        self.squares = numbers.WIDE.add(self.squares, numbers.WIDE.multiply(value, value))

    def result(self) -> Decimal | None:
        return self.finish(self.rows, self.total, self.squares)


class _FloatMoments:
    """Youngs and Cramer's updating formula, as PostgreSQL has it: what finite values make infinite is an error."""

    __slots__ = ("deviation", "finish", "rows", "total")

    def __init__(self, finish: Callable[[int, float], float | None]) -> None:
        self.finish = finish
        self.rows = 0
        self.total = self.deviation = 0.0

    def add(self, value: float) -> None:
        before = self.total
        self.rows += 1
        self.total += value
        if self.rows > 1:
            difference = value * self.rows - self.total
            self.deviation += difference * difference / (self.rows * (self.rows - 1))
            if math.isinf(self.total) or math.isinf(self.deviation):
                if not math.isinf(before) and not math.isinf(value):
                    raise out_of_range(_OVERFLOW)
                self.deviation = math.nan
        elif not math.isfinite(value):
            self.deviation = math.nan

    def result(self) -> float | None:
        return self.finish(self.rows, self.deviation)


def _exact_variance(sample: bool, root: bool) -> Callable[[int, Decimal, Decimal], Decimal | None]:
    wide = numbers.WIDE

    def finish(rows: int, total: Decimal, squares: Decimal) -> Decimal | None:
        if rows == 0 or (sample and rows == 1):
            return None
        if total.is_nan():
            return total
        spread = wide.subtract(wide.multiply(squares, Decimal(rows)), wide.multiply(total, total))
        if spread <= 0:
            return Decimal(0)
        variance = arithmetic.divide(spread, Decimal(rows * (rows - 1) if sample else rows * rows))
        if not root:
            return variance
        return arithmetic.settled(lambda context: context.sqrt(variance), arithmetic.scale(variance))

    return finish


def _float_variance(sample: bool, root: bool) -> Callable[[int, float], float | None]:
    def finish(rows: int, deviation: float) -> float | None:
        if rows == 0 or (sample and rows == 1):
            return None
        variance = deviation / (rows - 1 if sample else rows)
        return math.sqrt(variance) if root else variance

    return finish


def _variance(name: str, sample: bool, root: bool) -> list[Aggregate]:
    native = ("stddev" if root else "var") + ("_samp" if sample else "_pop")
    exact, rough = _exact_variance(sample, root), _float_variance(sample, root)
    partial = register(f"{native}_sums", _of_sums(exact), [BIGINT, NUMERIC, NUMERIC], NUMERIC)

    def render_exact(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
        type_, text = digits_of(args[0].type), args[0].text
        # Squares of up to 15 digits leave room for 10^8 rows; DISTINCT must look at values, not at squares.
        if not is_static(type_) or (type_.precision or 0) > 15 or modifiers.distinct:
            return _folded(native, modifiers, as_text(args[0]) if is_static(args[0].type) else _text(args[0]))
        decimal = f"CAST({text} AS {duckdb_type(type_)})"
        scale = type_.scale or 0
        wide = f"CAST({text} AS DECIMAL(19,{scale}))"  # or DuckDB would square in 64 bits
        total, squares = modifiers.call("sum", decimal), modifiers.call("sum", f"({wide} * {decimal})")
        texts = [as_text(Sql(total, Type(Kind.NUMERIC, MAX_NUMERIC_DIGITS, scale)))]
        texts.append(as_text(Sql(squares, Type(Kind.NUMERIC, MAX_NUMERIC_DIGITS, 2 * scale))))
        return Sql(partial(modifiers.call("count", text), *texts), NUMERIC)

    def render_float(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
        return Sql(_float_folded(native, modifiers, args[0].text), DOUBLE)

    found = [
        Aggregate(name, (type_,), NUMERIC, lambda types: lambda: _Moments(exact), render_exact)
        for type_ in (SMALLINT, INTEGER, BIGINT, NUMERIC)
    ]
    found += [
        Aggregate(name, (type_,), DOUBLE, lambda types: lambda: _FloatMoments(rough), render_float)
        for type_ in (REAL, DOUBLE)
    ]
    return found


def _of_sums(finish: Callable[[int, Decimal, Decimal], Decimal | None]) -> Callable[..., Decimal | None]:
    def apply(rows: int, total: Decimal, squares: Decimal) -> Decimal | None:
        return finish(rows, total, squares)

    return apply


def _text(operand: Sql) -> str:
    return operand.text if operand.type.kind is Kind.NUMERIC else f"CAST({operand.text} AS VARCHAR)"


# --- folding lists ---------------------------------------------------------------------------------------------------


def _fold_texts(make: Callable[[], Any]) -> Callable[[list[str | None], bool], object]:
    def fold(texts: list[str | None], distinct: bool) -> object:
        values: Iterable[Decimal] = (Decimal(text) for text in texts if text is not None)
        if distinct:
            key = comparison_key(NUMERIC)
            assert key is not None
            first: dict[object, Decimal] = {}
            for value in values:
                first.setdefault(key(value), value)
            values = first.values()
        accumulator = make()
        for value in values:
            accumulator.add(value)
        return accumulator.result()

    return fold


def _fold_floats(make: Callable[[], Any]) -> Callable[[list[float | None]], object]:
    def fold(values: list[float | None]) -> object:
        accumulator = make()
        for value in values:
            if value is not None:
                accumulator.add(value)
        return accumulator.result()

    return fold


_STATISTICS = {
    "var_samp": (True, False),
    "var_pop": (False, False),
    "stddev_samp": (True, True),
    "stddev_pop": (False, True),
}
_FOLDS = {
    "sum": register(
        "fold_sum", _fold_texts(lambda: _NumericSum(_numeric_total, Decimal(0))), [STRING_LIST, BOOLEAN], NUMERIC
    ),
    "avg": register("fold_avg", _fold_texts(lambda: _NumericSum(_mean, Decimal(0))), [STRING_LIST, BOOLEAN], NUMERIC),
}


def _moments(finish: Callable[[int, Decimal, Decimal], Decimal | None]) -> Callable[[], Accumulator]:
    return lambda: _Moments(finish)


def _float_moments(finish: Callable[[int, float], float | None]) -> Callable[[], Accumulator]:
    return lambda: _FloatMoments(finish)


_FOLDS |= {
    name: register(f"fold_{name}", _fold_texts(_moments(_exact_variance(*how))), [STRING_LIST, BOOLEAN], NUMERIC)
    for name, how in _STATISTICS.items()
}
_FLOAT_FOLDS = {
    name: register(f"fold_{name}_double", _fold_floats(_float_moments(_float_variance(*how))), ["DOUBLE[]"], DOUBLE)
    for name, how in _STATISTICS.items()
}


def _folded(name: str, modifiers: AggregateSql, text: str) -> Sql:
    collected = AggregateSql(False, modifiers.order_by, modifiers.filter, modifiers.over).call("list", text)
    return Sql(_FOLDS[name](collected, "TRUE" if modifiers.distinct else "FALSE"), NUMERIC)


def _float_folded(name: str, modifiers: AggregateSql, text: str) -> str:
    return _FLOAT_FOLDS[name](modifiers.call("list", f"CAST({text} AS DOUBLE)"))


# --- min, max --------------------------------------------------------------------------------------------------------


class _Extreme:
    """min or max; of equals, the first."""

    __slots__ = ("best", "key", "largest", "value")

    def __init__(self, largest: bool, key: Callable[[Any], Any] | None) -> None:
        self.largest = largest
        self.key = key
        self.value: Any = None
        self.best: Any = None

    def add(self, value: Any) -> None:
        key = value if self.key is None else self.key(value)
        if self.value is None or (key > self.best if self.largest else key < self.best):
            self.value, self.best = value, key

    def result(self) -> object:
        return self.value


class _FloatExtreme(_Extreme):
    """Of equals (0 and -0), the last: PostgreSQL's answer, and that of DuckDB, whose own min and max these are."""

    __slots__ = ()

    def add(self, value: Any) -> None:
        key = value if self.key is None else self.key(value)
        if self.value is None or not (key < self.best if self.largest else key > self.best):
            self.value, self.best = value, key


def _extreme(name: str) -> list[Aggregate]:
    largest = name == "max"

    def python(types: tuple[Type, ...]) -> Callable[[], Accumulator]:
        key = comparison_key(types[0])
        kept = _FloatExtreme if types[0].kind in FLOATS else _Extreme
        return lambda: kept(largest, key)

    def render(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
        key, text = sort_key(args[0]), args[0].text
        type_ = TEXT if args[0].type.kind is Kind.VARCHAR else args[0].type
        if key == text:
            return Sql(modifiers.call(name, text), type_)
        plain = AggregateSql(False, modifiers.order_by, modifiers.filter, modifiers.over)
        return Sql(plain.call(f"arg_{name}", text, key), type_)

    types = (SMALLINT, INTEGER, BIGINT, REAL, DOUBLE, NUMERIC, TEXT, DATE, TIMESTAMP, TIMESTAMPTZ)  # as PostgreSQL's
    return [Aggregate(name, (type_,), type_, python, render) for type_ in types]


# --- string_agg ------------------------------------------------------------------------------------------------------


class _Concatenation(Generic[AnyStr]):
    """Each value but the first is preceded by its own delimiter; NULL values are passed over."""

    __slots__ = ("empty", "pieces")

    def __init__(self, empty: AnyStr) -> None:
        self.empty: AnyStr = empty
        self.pieces: list[AnyStr] = []

    def add(self, value: AnyStr | None, delimiter: AnyStr | None) -> None:
        if value is not None:
            if self.pieces and delimiter is not None:
                self.pieces.append(delimiter)
            # An empty piece marks that there was a value.
            self.pieces.append(value)

    def result(self) -> AnyStr | None:
        return self.empty.join(self.pieces) if self.pieces else None


def _concatenate(empty: AnyStr) -> Callable[[list[dict[str, AnyStr | None]], bool], AnyStr | None]:
    def apply(pairs: list[dict[str, AnyStr | None]], distinct: bool) -> AnyStr | None:
        accumulator = _Concatenation(empty)
        listed = [(pair["v"], pair["d"]) for pair in pairs]
        for value, delimiter in dict.fromkeys(listed) if distinct else listed:
            accumulator.add(value, delimiter)
        return accumulator.result()

    return apply


_texts = register("string_agg", _concatenate(""), ["STRUCT(v VARCHAR, d VARCHAR)[]", BOOLEAN], TEXT)
_byteas = register("string_agg_bytea", _concatenate(b""), ["STRUCT(v BLOB, d BLOB)[]", BOOLEAN], BYTEA)


def _string_agg(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    value, delimiter = args[0].text, args[1].text
    if delimiter.startswith("'") and delimiter == quote(delimiter[1:-1].replace("''", "'")):
        return Sql(modifiers.call("string_agg", value, delimiter), TEXT)
    return Sql(_texts(*_pairs(modifiers, args)), TEXT)


def _bytea_agg(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    return Sql(_byteas(*_pairs(modifiers, args)), BYTEA)


def _pairs(modifiers: AggregateSql, args: Sequence[Sql]) -> tuple[str, str]:
    """The list of pairs, and whether each counts once: DuckDB orders a DISTINCT list by its own elements only."""
    value, delimiter = args
    plain = AggregateSql(False, modifiers.order_by, modifiers.filter, modifiers.over)
    listed = plain.call("list", f"{{'v': {value.text}, 'd': {delimiter.text}}}")
    return listed, "TRUE" if modifiers.distinct else "FALSE"


def _string_aggs() -> list[Aggregate]:
    return [
        Aggregate("string_agg", (type_, type_), type_, python, render, strict=False, ordered=True)
        for type_, python, render in (
            (TEXT, lambda types: lambda: _Concatenation(""), _string_agg),
            (BYTEA, lambda types: lambda: _Concatenation(b""), _bytea_agg),
        )
    ]


ENTRIES = (
    Aggregate("count", (), BIGINT, lambda types: Count, _count, strict=False),
    Aggregate("count", (ANY,), BIGINT, lambda types: Count, _count),
    _boolean("bool_and", False),
    _boolean("every", False),
    _boolean("bool_or", True),
    *_sums(),
    *_variance("var_samp", True, False),
    *_variance("variance", True, False),
    *_variance("var_pop", False, False),
    *_variance("stddev_samp", True, True),
    *_variance("stddev", True, True),
    *_variance("stddev_pop", False, True),
    *_extreme("min"),
    *_extreme("max"),
    *_string_aggs(),
)
