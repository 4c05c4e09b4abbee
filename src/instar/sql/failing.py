"""Which expressions may fail for some row, and conditions that keep others from being evaluated where they would.

AND, OR, CASE, COALESCE and FILTER are evaluated left to right and stop as soon as they may: `b <> 0 AND a / b > 1`
divides by no zero. That has to hold in the analytic engine too, whose AND evaluates both sides for all rows at once.
"""

from __future__ import annotations

from instar.sql import tree
from instar.sql.expressions import is_representation_kept
from instar.sql.traversal import free_relations, references, walk, walk_level
from instar.sql.tree import Expr
from instar.types import FLOATS, INTEGERS, NUMERIC, TEXT, Type

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


def may_fail(expr: object) -> bool:
    """Whether some row may make it an error, as far as can be told; what subqueries read is not looked at."""
    return any(_fails(found) for found in walk_level(expr))


def _fails(found: object) -> bool:
    if isinstance(found, tree.Call):
        return not (found.function.operator and found.function.name in _COMPARISONS)
    if isinstance(found, tree.Cast):
        return not _is_total(found.operand.type, found.type)
    return isinstance(found, (tree.AggregateCall, tree.WindowCall))


def _is_total(source: Type, target: Type) -> bool:
    """Whether a cast has a value for every value."""
    if is_representation_kept(source, target) or target == TEXT:
        return True
    return source.kind in INTEGERS and (target == NUMERIC or target.kind in FLOATS)


def is_guarded(expr: tree.And | tree.Or) -> bool:
    """Whether what comes first may keep what comes later from failing."""
    return any(may_fail(arg) or depends(arg) for arg in expr.args[1:])


def depends(expr: Expr) -> bool:
    """Whether it has a subquery that may fail for what it is given of the row around it."""
    return any(
        may_fail(found.operands if isinstance(found, tree.InSubquery) else ()) or _fails_by_outer(found.query)
        for found in walk_level(expr)
        if isinstance(found, tree.ScalarSubquery | tree.Exists | tree.InSubquery)
    )


def _fails_by_outer(query: tree.Query) -> bool:
    outside = free_relations(query)
    return bool(outside) and any(
        _fails(found) and not outside.isdisjoint({relation for relation, _ in references(found).columns})
        for found in walk(query)
        if isinstance(found, tree.Call | tree.Cast)
    )


def under(condition: Expr | None, expr: Expr) -> Expr:
    """`expr`, and NULL where the condition is not true if it might fail there."""
    if condition is None or not may_fail(expr):
        return expr
    return tree.Case(((condition, expr),), tree.Literal(None, expr.type), expr.type)
