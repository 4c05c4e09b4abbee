"""Predicates: AND, OR, NOT, IS, BETWEEN, IN, comparisons of rows and with subqueries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from instar import errors, types
from instar.sql import tree
from instar.sql.binder import coercion
from instar.sql.binder.context import Context
from instar.sql.binder.scope import Scope
from instar.sql.functions import common_type, resolve_operator
from instar.sql.grammar.nodes import position_of
from instar.sql.traversal import walk, walk_level
from instar.sql.tree import Expr

if TYPE_CHECKING:
    from instar.sql.binder.queries import QueryBinder

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


class PredicateBinder(ABC):
    """The boolean part of ExpressionBinder."""

    queries: QueryBinder
    context: Context
    scope: Scope

    @abstractmethod
    def bind(self, node: exp.Expr) -> Expr: ...

    @abstractmethod
    def condition(self, node: exp.Expr, what: str) -> Expr: ...

    @abstractmethod
    def operator(self, symbol: str, args: Sequence[Expr], position: int | None) -> Expr: ...

    def connective(self, node: exp.Expr) -> Expr:
        """A chain of the same connective is one node."""
        kind = type(node)
        operands: list[exp.Expr] = []
        stack = [node]
        while stack:
            found = stack.pop()
            if type(found) is kind:
                stack.extend((found.expression, found.this))
            else:
                operands.append(found)
        name = "AND" if kind is exp.And else "OR"
        args = tuple(self.condition(operand, name) for operand in operands)
        return tree.And(args) if kind is exp.And else tree.Or(args)

    def negation(self, node: exp.Expr) -> Expr:
        return negate(self.condition(node.this, "NOT"))

    # --- IS ---

    def is_test(self, node: exp.Expr) -> Expr:
        operand, test = node.this, node.expression
        negated = bool(node.args.get("negate"))
        if isinstance(test, exp.Null):
            return self._is_null(operand, negated)
        truth = bool(test.this) if isinstance(test, exp.Boolean) else None
        name = "UNKNOWN" if truth is None else str(truth).upper()
        return tree.IsTruth(self.condition(operand, f"IS {name}"), truth, negated)

    def _is_null(self, operand: exp.Expr, negated: bool) -> Expr:
        row = as_row(operand)
        if row is not None:
            tests = tuple(self._is_null(item, negated) for item in row)
            return tests[0] if len(tests) == 1 else tree.And(tests)
        return tree.IsNull(coercion.to_text_if_unknown(self.context, self.bind(operand)), negated)

    def distinctness(self, node: exp.Expr) -> Expr:
        negated = isinstance(node, exp.NullSafeEQ)
        left, right = as_row(node.this), as_row(node.expression)
        if left is None or right is None:
            return self._distinct(self.bind(node.this), self.bind(node.expression), negated, node)
        _check_lengths(left, right, node)
        pairs = zip(left, right, strict=True)
        tests = tuple(self._distinct(self.bind(a), self.bind(b), negated, node) for a, b in pairs)
        return tree.And(tests) if negated else tree.Or(tests)

    def _distinct(self, left: Expr, right: Expr, negated: bool, node: exp.Expr) -> Expr:
        # There is no IS DISTINCT FROM where there is no =, and it has that operator's types.
        position = position_of(node)
        resolution = resolve_operator("=", [left.type, right.type], position=position)
        sides = [
            coercion.require(self.context, side, type_, "IS DISTINCT FROM", position)
            for side, type_ in zip((left, right), resolution.arguments, strict=True)
        ]
        if sides[0].type != sides[1].type:
            sides = list(coercion.unify(self.context, sides, "IS DISTINCT FROM", position))
        return tree.IsDistinct(sides[0], sides[1], negated)

    # --- BETWEEN and IN ---

    def between(self, node: exp.Expr) -> Expr:
        position = position_of(node)
        operand, low, high = self.bind(node.this), self.bind(node.args["low"]), self.bind(node.args["high"])
        forward = self._within(operand, low, high, position)
        if not node.args.get("symmetric"):
            return forward
        operand, low, high = self._by_now(operand), self._by_now(low), self._by_now(high)
        return tree.Or((forward, self._within(operand, high, low, position)))

    def _within(self, operand: Expr, low: Expr, high: Expr, position: int | None) -> Expr:
        above = self.operator(">=", [operand, low], position)
        return tree.And((above, self.operator("<=", [self._by_now(operand), high], position)))

    def _by_now(self, expr: Expr) -> Expr:
        """An expression once more: a parameter has the type that its first place gave it."""
        return self.context.parameter(expr.index) if isinstance(expr, tree.Parameter) else expr

    def membership(self, node: exp.Expr) -> Expr:
        query = node.args.get("query")
        row = as_row(node.this)
        if query is not None:
            operands = [self.bind(item) for item in ([node.this] if row is None else row)]
            return self._in_query(operands, query, negated=False, position=position_of(node))
        if row is not None:
            return _any_of([self._row_comparison("=", row, item, node) for item in node.expressions])
        return self._in_list(node)

    def _in_list(self, node: exp.Expr) -> Expr:
        """Items without a column are one list, brought to one type that the operator `=` then compares, and each of the
        others is compared by itself (PostgreSQL's transformAExprIn): all of one type would be another comparison where
        a `real`, or a float beside a numeric, is among them."""
        position = position_of(node)
        operand = self.bind(node.this)
        items = [self.bind(item) for item in node.expressions]
        if len({expr.type.kind for expr in (operand, *items)} - {types.Kind.UNKNOWN}) <= 1:
            return self._in_alike(operand, items, position)
        lists = [[item] for item in items]
        together = [item for item in items if not _has_column(item)]
        if len(together) > 1:
            lists = [together, *([item] for item in items if _has_column(item))]
        return _any_of([self._in_mixed(operand, listed, position) for listed in lists])

    def _in_mixed(self, operand: Expr, items: list[Expr], position: int | None) -> Expr:
        listed = items[0].type
        if len(items) > 1:
            try:
                listed = common_type(coercion.kinds_of(self.context, (operand, *items)), "IN", position=position)
            except errors.Error:
                return _any_of([self.operator("=", [operand, item], position) for item in items])
            items = [coercion.require(self.context, item, listed, "IN", position) for item in items]
        left, right = resolve_operator("=", [operand.type, listed], position=position).arguments
        target = left if left == right else common_type([left, right], "IN", position=position)
        operand, *items = [coercion.require(self.context, expr, target, "IN", position) for expr in (operand, *items)]
        return tree.InList(operand, tuple(items), negated=False)

    def _in_alike(self, operand: Expr, items: list[Expr], position: int | None) -> Expr:
        exprs = [operand, *items]
        try:
            target = common_type(coercion.kinds_of(self.context, exprs), "IN", position=position)
        except errors.Error:
            return _any_of([self.operator("=", [operand, item], position) for item in items])
        resolve_operator("=", [target, target], position=position)
        operand, *items = [coercion.require(self.context, expr, target, "IN", position) for expr in exprs]
        return tree.InList(operand, tuple(items), negated=False)

    def _in_query(self, operands: list[Expr], node: exp.Expr, negated: bool, position: int | None) -> Expr:
        query = self.queries.subquery(node.this, self.scope)
        columns = self.queries.columns(query)
        if len(columns) != len(operands):
            which = "many" if len(columns) > len(operands) else "few"
            raise errors.error(errors.SYNTAX_ERROR, f"subquery has too {which} columns", position=position)
        targets = []
        for index, (_, type_) in enumerate(columns):
            operand = operands[index]
            resolution = resolve_operator("=", [operand.type, type_], position=position)
            left, right = resolution.arguments
            target = left if left == right else common_type([left, right], "IN", position=position)
            operands[index] = coercion.require(self.context, operand, target, "IN", position)
            targets.append(target)
        return tree.InSubquery(tuple(operands), self.queries.with_types(query, targets), negated)

    # --- quantified comparisons ---

    def quantified(self, left: Expr, symbol: str, right: exp.Expr, position: int | None) -> Expr:
        """operand op ANY | ALL (query): by IN where that says the same, else by its definition (SQL:2016, 8.9)."""
        every = isinstance(right, exp.All)
        node = right.this
        if symbol == "=" and not every:
            return self._in_query([left], node, negated=False, position=position)
        if symbol == "<>" and every:
            return self._in_query([left], node, negated=True, position=position)
        if any(
            isinstance(found, tree.AggregateCall | tree.GroupingCall | tree.WindowCall) for found in walk_level(left)
        ):
            # Of this query's rows, it cannot be said within the other query.
            what = f"an aggregate, GROUPING or a window function as the left side of {symbol} ANY or ALL"
            raise errors.unsupported(what, position=position)
        decided = self._exists_row(left, symbol, node, position, "false" if every else "true")
        unknown = self._exists_row(left, symbol, node, position, "unknown")
        answers = (tree.Literal(not every, types.BOOLEAN), tree.Literal(None, types.BOOLEAN))
        return tree.Case(
            ((decided, answers[0]), (unknown, answers[1])), tree.Literal(every, types.BOOLEAN), types.BOOLEAN
        )

    def _exists_row(self, left: Expr, symbol: str, node: exp.Expr, position: int | None, outcome: str) -> Expr:
        """EXISTS a row of the query for which `left symbol row` is true, false or unknown."""
        query = self.queries.subquery(node.this, self.scope)
        derived = self.queries.derived(query)
        columns = self.queries.columns(query)
        if len(columns) != 1:
            raise errors.error(errors.SYNTAX_ERROR, "subquery has too many columns", position=position)
        column = tree.ColumnRef(derived.relation, 0, columns[0][1], columns[0][0])
        test = self.operator(symbol, [left, column], position)
        if test.type != types.BOOLEAN:
            message = f"op ANY/ALL requires operator to yield boolean, not {test.type}"
            raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=position)
        if outcome == "unknown":
            test = tree.IsNull(test, negated=False)
        elif outcome == "false":
            test = tree.Not(test)
        return tree.Exists(self.queries.simple_select(derived, (), test), negated=False)

    # --- rows ---

    def row_comparison(self, node: exp.Expr) -> Expr | None:
        """Comparison of two rows, element by element; None if the operands are no rows."""
        left = as_row(node.this)
        if left is None:
            return None
        symbol, right = node.args["operator"], node.expression
        if symbol not in _COMPARISONS:
            raise errors.unsupported(f"operator {symbol} between rows", position=position_of(node))
        if isinstance(right, exp.Any) and symbol == "=":
            return self._in_query([self.bind(item) for item in left], right.this, False, position_of(node))
        if isinstance(right, exp.All) and symbol == "<>":
            return self._in_query([self.bind(item) for item in left], right.this, True, position_of(node))
        return self._row_comparison(symbol, left, right, node)

    def _row_comparison(self, symbol: str, left: list[exp.Expr], right: exp.Expr, node: exp.Expr) -> Expr:
        items = as_row(right)
        if items is None:
            raise errors.unsupported("comparison of a row with what is not a row", position=position_of(node))
        _check_lengths(left, items, node)
        position = position_of(node)
        pairs = [(self.bind(a), self.bind(b)) for a, b in zip(left, items, strict=True)]
        if symbol == "=":
            return tree.And(tuple(self.operator("=", pair, position) for pair in pairs))
        if symbol == "<>":
            return tree.Or(tuple(self.operator("<>", pair, position) for pair in pairs))
        # (a, b) < (c, d) is a < c OR (a = c AND b < d); the last element alone sees <= itself.
        result = self.operator(symbol, pairs[-1], position)
        for pair in reversed(pairs[:-1]):
            equal = self.operator("=", pair, position)
            result = tree.Or((self.operator(symbol[0], pair, position), tree.And((equal, result))))
        return result


def negate(expr: Expr) -> Expr:
    """NOT, put into the nodes that can be negated themselves."""
    if isinstance(expr, tree.InList):
        return tree.InList(expr.operand, expr.items, not expr.negated)
    if isinstance(expr, tree.InSubquery):
        return tree.InSubquery(expr.operands, expr.query, not expr.negated)
    if isinstance(expr, tree.Exists):
        return tree.Exists(expr.query, not expr.negated)
    if isinstance(expr, tree.IsNull):
        return tree.IsNull(expr.operand, not expr.negated)
    if isinstance(expr, tree.IsTruth):
        return tree.IsTruth(expr.operand, expr.truth, not expr.negated)
    if isinstance(expr, tree.IsDistinct):
        return tree.IsDistinct(expr.left, expr.right, not expr.negated)
    return tree.Not(expr)


def as_row(node: exp.Expr) -> list[exp.Expr] | None:
    """The elements of a row constructor, None for anything else."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node.expressions if isinstance(node, exp.Tuple) else None


def _check_lengths(left: list[exp.Expr], right: list[exp.Expr], node: exp.Expr) -> None:
    if len(left) != len(right):
        message = "unequal number of entries in row expressions"
        raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(node))
    if not left:
        message = "cannot compare rows of zero length"
        raise errors.unsupported(message, position=position_of(node))


def _has_column(expr: Expr) -> bool:
    return any(isinstance(found, tree.ColumnRef) for found in walk(expr))


def _any_of(tests: list[Expr]) -> Expr:
    return tests[0] if len(tests) == 1 else tree.Or(tuple(tests))
