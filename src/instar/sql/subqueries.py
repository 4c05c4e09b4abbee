"""Subquery expressions compiled: scalar, EXISTS, IN. Uncorrelated ones are computed once per execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from instar import errors
from instar.sql import tree
from instar.sql.accesses import Source
from instar.sql.execution import Row
from instar.sql.expressions import Compiler, Frame, FrameLayout, RowFunction, Scope
from instar.sql.plan import Node, Subplan
from instar.sql.sorting import hashable
from instar.sql.tree import Expr
from instar.values import comparison_key

_Answer = Callable[[Row, Frame], object]


class SubqueryCompiler:
    """See expressions.Subqueries. `compile_node` makes a subplan's rows."""

    def __init__(
        self, layout: FrameLayout, subplans: Mapping[int, Subplan], compile_node: Callable[[Node], Source]
    ) -> None:
        self._layout = layout
        self._subplans = subplans
        self._compile_node = compile_node

    def row_function(self, expr: tree.ScalarSubquery | tree.Exists | tree.InSubquery, scope: Scope) -> RowFunction:
        """The value of a subquery expression for a row of that scope."""
        subplan = self._subplan(expr)
        source = self._compile_node(subplan.node)
        once = not subplan.free and not subplan.volatile
        if isinstance(expr, tree.InSubquery):
            return self._membership(expr, source, scope, subplan, once)
        if isinstance(expr, tree.Exists) and subplan.sought:
            return self._sought(expr, source, scope, subplan.sought)
        answer = _scalar(source) if isinstance(expr, tree.ScalarSubquery) else _exists(source, expr.negated)
        if once:
            return self._kept(answer)
        return self._correlated(answer, scope, subplan)

    def members(self, expr: tree.InSubquery) -> Callable[[Frame], Iterable[object]]:
        """The values of a subquery that drives a key; what it reads of outer rows is in the frame."""
        source = self._compile_node(self._subplan(expr).node)
        return lambda p: (row[0] for row in source(p))

    def _subplan(self, expr: tree.ScalarSubquery | tree.Exists | tree.InSubquery) -> Subplan:
        subplan = self._subplans.get(id(expr.query))
        if subplan is None:
            raise errors.unsupported("a subquery in this place")
        return subplan

    def _kept(self, answer: _Answer) -> RowFunction:
        slot = self._layout.new()

        def value(row: Row, p: Frame) -> object:
            kept = p[slot]
            if kept is None:
                kept = p[slot] = (answer(row, p),)
            return kept[0]  # type: ignore[index]  # a tuple of one

        return value

    def _correlated(self, answer: _Answer, scope: Scope, subplan: Subplan) -> RowFunction:
        """`answer` with the columns of this row where the subplan looks for them; those further out are there."""
        slots = [
            (self._layout.outer(column), scope.columns[column]) for column in subplan.free if column in scope.columns
        ]

        def value(row: Row, p: Frame) -> object:
            for slot, position in slots:
                p[slot] = row[position]
            return answer(row, p)

        return value

    def _sought(self, expr: tree.Exists, source: Source, scope: Scope, wanted: tuple[Expr, ...]) -> RowFunction:
        """Whether what is wanted of a row is among the subquery's; NULL is not among anything."""
        of_row = Compiler(scope, self._layout, self).row(wanted)
        normal = hashable([each.type for each in wanted])
        members = self._kept(lambda row, p: {normal(found) for found in source(p) if None not in found})

        def exists(row: Row, p: Frame) -> bool:
            values, found = of_row(row, p), members(row, p)
            there = None not in values and normal(values) in found  # type: ignore[operator]  # the set above
            return there != expr.negated

        return exists

    def _membership(
        self, expr: tree.InSubquery, source: Source, scope: Scope, subplan: Subplan, once: bool
    ) -> RowFunction:
        operands = Compiler(scope, self._layout, self).row(expr.operands)
        normals = [comparison_key(operand.type) for operand in expr.operands]

        def normal(row: Row) -> Row:
            pairs = zip(row, normals, strict=True)
            return tuple([value if key is None or value is None else key(value) for value, key in pairs])

        def members(row: Row, p: Frame) -> tuple[set[Row], list[Row]]:
            """The rows without NULLs, for a look-up, and those with."""
            found = [normal(candidate) for candidate in source(p)]
            return {each for each in found if None not in each}, [each for each in found if None in each]

        given = self._kept(members) if once else self._correlated(members, scope, subplan)

        def contains(row: Row, p: Frame) -> bool | None:
            found: tuple[set[Row], list[Row]] = given(row, p)  # type: ignore[assignment]  # what `members` gives
            answer = _contains(normal(operands(row, p)), *found)
            return answer if answer is None or not expr.negated else not answer

        return contains


def _contains(wanted: Row, whole: set[Row], partial: list[Row]) -> bool | None:
    """Row IN rows, with three values."""
    if None not in wanted:
        if wanted in whole:
            return True
        candidates: list[Row] = partial
    else:
        candidates = [*whole, *partial]
    for candidate in candidates:
        if all(a is None or b is None or a == b for a, b in zip(wanted, candidate, strict=True)):
            return None
    return False


def _scalar(source: Source) -> _Answer:
    def value(row: Row, p: Frame) -> object:
        rows = source(p)
        first = next(rows, None)
        if first is None:
            return None
        if next(rows, None) is not None:
            raise errors.error(
                errors.CARDINALITY_VIOLATION, "more than one row returned by a subquery used as an expression"
            )
        return first[0]

    return value


def _exists(source: Source, negated: bool) -> _Answer:
    def value(row: Row, p: Frame) -> object:
        return (next(iter(source(p)), None) is None) == negated

    return value
