"""Expressions compiled to Python: three-valued logic, guards, errors, folding, depth."""

from __future__ import annotations

import gc
import weakref
from itertools import product

import pytest

from instar import errors
from instar.sql import tree
from instar.sql.expressions import Compiler, FrameLayout, Scope
from instar.sql.functions import Context
from instar.sql.tree import Expr
from instar.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ, Kind, Type
from sql.trees import NULL, all_of, any_of, call, lit, op, param

A = tree.ColumnRef(1, 0, BOOLEAN, "a")
B = tree.ColumnRef(1, 1, BOOLEAN, "b")
X = tree.ColumnRef(1, 0, INTEGER, "x")
Y = tree.ColumnRef(1, 1, INTEGER, "y")
SCOPE = Scope({(1, 0): 0, (1, 1): 1})
THREE = (True, False, None)


def evaluate(
    expr: Expr, row: tuple[object, ...] = (), parameters: tuple[object, ...] = (), zone: str = "UTC"
) -> object:
    layout = FrameLayout(len(parameters))
    function = Compiler(SCOPE, layout).value(expr)
    return function(row, layout.frame(parameters, Context(now=0, zone=zone), None))


def holds(expr: Expr, row: tuple[object, ...]) -> bool:
    layout = FrameLayout(0)
    return bool(Compiler(SCOPE, layout).predicate([expr])(row, layout.frame((), Context(now=0), None)))


@pytest.mark.parametrize(("a", "b"), list(product(THREE, THREE)))
def test_three_valued_logic(a: bool | None, b: bool | None) -> None:
    conjunction = False if a is False or b is False else None if a is None or b is None else True
    disjunction = True if a is True or b is True else None if a is None or b is None else False
    exprs = [
        (all_of(A, B), conjunction),
        (any_of(A, B), disjunction),
        (tree.Not(A), None if a is None else not a),
        (tree.Not(all_of(A, B)), None if conjunction is None else not conjunction),
        (tree.IsTruth(A, True, False), a is True),
        (tree.IsTruth(A, None, True), a is not None),
        (tree.IsNull(A, False), a is None),
        (tree.IsDistinct(A, B, False), a is not b),
        (tree.IsDistinct(A, B, True), a is b),
    ]
    for expr, expected in exprs:
        assert evaluate(expr, (a, b)) is expected
        assert holds(expr, (a, b)) is (expected is True)
        assert holds(tree.Not(expr), (a, b)) is (expected is False)


def test_strict_operators_give_null_for_null() -> None:
    for row in ((None, 1), (1, None), (None, None)):
        assert evaluate(op("+", X, Y), row) is None
        assert evaluate(op("<", X, Y), row) is None
        assert not holds(op("<", X, Y), row)
        assert not holds(tree.Not(op("<", X, Y)), row)


@pytest.mark.parametrize("items", [(1, 2), (1, 2, None), (None,)])
@pytest.mark.parametrize("operand", [1, 3, None])
@pytest.mark.parametrize("negated", [False, True])
def test_in_lists_constant_or_not(items: tuple[int | None, ...], operand: int | None, negated: bool) -> None:
    if operand is None:
        expected = None
    elif operand in items:
        expected = not negated
    else:
        expected = None if None in items else negated
    constant = tree.InList(X, tuple(lit(item, INTEGER) for item in items), negated)
    variable = tree.InList(X, tuple(tree.Coalesce((NULL, lit(item, INTEGER)), INTEGER) for item in items), negated)
    parameters = tree.InList(X, tuple(param(number) for number in range(len(items))), negated)
    assert evaluate(constant, (operand, 0)) is expected
    assert evaluate(variable, (operand, 0)) is expected
    assert evaluate(parameters, (operand, 0), items) is expected


def test_case_guards_its_branches() -> None:
    division = op("/", lit(1), lit(0))
    guarded = tree.Case(((op("=", X, lit(0)), lit(-1)),), op("/", lit(10), X), INTEGER)
    assert evaluate(guarded, (0, None)) == -1
    assert evaluate(guarded, (5, None)) == 2
    untaken = tree.Case(((lit(True), lit(7)),), division, INTEGER)
    assert evaluate(untaken) == 7
    assert evaluate(tree.Coalesce((lit(1), division), INTEGER)) == 1
    assert evaluate(any_of(lit(True), op("=", division, lit(1)))) is True
    with pytest.raises(errors.DataError) as caught:
        evaluate(division)
    assert caught.value.sqlstate == errors.DIVISION_BY_ZERO


def test_errors_bear_their_sqlstate() -> None:
    with pytest.raises(errors.DataError) as caught:
        evaluate(op("+", X, Y), (2**31 - 1, 1))
    assert caught.value.sqlstate == errors.NUMERIC_OUT_OF_RANGE
    with pytest.raises(errors.DataError) as caught:
        evaluate(tree.Cast(lit("x"), INTEGER, True))
    assert caught.value.sqlstate == errors.INVALID_TEXT


def test_casts_truncate_only_if_explicit() -> None:
    short = Type(Kind.VARCHAR, length=2)
    assert evaluate(tree.Cast(lit("abc"), short, True)) == "ab"
    with pytest.raises(errors.DataError) as caught:
        evaluate(tree.Cast(lit("abc"), short, False))
    assert caught.value.sqlstate == errors.STRING_TOO_LONG


def test_a_cast_reads_the_zone_of_the_execution() -> None:
    cast = tree.Cast(tree.Literal(0, TIMESTAMP), TIMESTAMPTZ, False)
    assert evaluate(cast, zone="UTC") == 0
    assert evaluate(cast, zone="Europe/Berlin") == -3600 * 1_000_000


def test_nan_equals_itself() -> None:
    nan = float("nan")
    row = (nan, nan)
    a, b = tree.ColumnRef(1, 0, DOUBLE, "a"), tree.ColumnRef(1, 1, DOUBLE, "b")
    assert evaluate(op("=", a, b), row) is True
    assert evaluate(tree.IsDistinct(a, b, False), row) is False
    assert evaluate(tree.InList(a, (lit(nan),), False), row) is True


def test_deep_expressions_compile() -> None:
    expr: Expr = X
    for _ in range(150):
        expr = op("+", tree.Case(((tree.IsNull(X, True), expr),), lit(0), INTEGER), lit(0))
    assert evaluate(expr, (5, 0)) == 5
    guard: Expr = lit(True)
    for _ in range(150):
        guard = op("=", tree.Case(((guard, lit(1)),), lit(0), INTEGER), lit(1))
    assert holds(guard, (5, 0))
    condition: Expr = op("=", X, lit(5))
    for number in range(150):
        condition = all_of(any_of(condition, op("=", X, lit(number + 10))), lit(True))
    assert holds(condition, (5, 0))
    assert not holds(condition, (6, 0))


def test_wide_conjunctions_and_lists() -> None:
    wide = all_of(*(op("<>", X, lit(number)) for number in range(2000)))
    assert holds(wide, (-1, 0))
    assert not holds(wide, (1999, 0))
    chosen = tree.Case(tuple((op("=", X, lit(n)), lit(n * 2)) for n in range(500)), lit(-1), INTEGER)
    assert evaluate(chosen, (499, 0)) == 998


def test_numeric_comparison_is_by_value() -> None:
    from decimal import Decimal

    a = tree.ColumnRef(1, 0, NUMERIC, "a")
    items = (lit(Decimal("1.0"), NUMERIC),)
    assert evaluate(tree.InList(a, items, False), (Decimal("1.00"), 0)) is True


def test_pipeline_filters_and_projects_in_one_loop() -> None:
    layout = FrameLayout(1)
    run = Compiler(SCOPE, layout).pipeline([op(">", X, param(0))], [op("+", X, Y), call("lower", lit("AB"))])
    rows = [(1, 10), (2, 20), (None, 30), (3, None)]
    assert list(run(rows, layout.frame((1,), Context(now=0), None))) == [(22, "ab"), (None, "ab")]


def test_types_of_parameters_are_as_bound() -> None:
    assert evaluate(op("+", param(0, BIGINT), lit(1, BIGINT)), (), (2**40,)) == 2**40 + 1
    assert evaluate(call("length", param(0, TEXT)), (), ("four",)) == 4


def test_a_compiled_expression_is_freed_with_its_last_user() -> None:
    """Not by the garbage collector, as it would be if it were among its own globals."""
    gc.disable()
    try:
        made = Compiler(SCOPE, FrameLayout(0)).value(op("+", X, lit(1)))
        found = weakref.ref(made)
        del made
        assert found() is None
    finally:
        gc.enable()
