"""Value expressions: columns, constants, parameters, operators, casts, CASE and their like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from instar import errors, types
from instar.sql import tree
from instar.sql.binder import coercion
from instar.sql.binder.calls import CallBinder
from instar.sql.binder.context import Context
from instar.sql.binder.predicates import PredicateBinder
from instar.sql.binder.scope import Scope, ScopeColumn
from instar.sql.functions import Function, resolve_function, resolve_operator
from instar.sql.grammar.nodes import PrefixOperator, position_of
from instar.sql.grammar.type_names import parse_type
from instar.sql.traversal import is_volatile
from instar.sql.tree import Expr
from instar.types import FLOATS, INTEGER_RANGES, INTEGERS, STRINGS, Kind, Type
from instar.values import from_text

if TYPE_CHECKING:
    from instar.sql.binder.queries import QueryBinder


class ExpressionBinder(PredicateBinder, CallBinder):
    """Binds the expressions of one clause of one query level.

    `clause` names it in errors and decides whether aggregates and window functions may stand in it.
    """

    def __init__(self, queries: QueryBinder, scope: Scope, clause: str) -> None:
        self.queries = queries
        self.context: Context = queries.context
        self.scope = scope
        self.clause = clause
        self.within: str | None = None  # inside the arguments of an aggregate or window function
        self.aggregated = False  # an aggregate was found
        self.windows: dict[str, exp.Window] = {}

    def bind(self, node: exp.Expr) -> Expr:
        """The node, typed; a literal, NULL or parameter may still be of unknown type."""
        binder = _BINDERS.get(type(node))
        if binder is None:
            raise errors.unsupported(f"{node.key} in {self.clause}", position=position_of(node))
        return binder(self, node)

    def value(self, node: exp.Expr) -> Expr:
        """As `bind`, but unknown becomes text."""
        return coercion.to_text_if_unknown(self.context, self.bind(node))

    def condition(self, node: exp.Expr, what: str) -> Expr:
        """A boolean; 42804 if it is none."""
        return self.boolean(self.bind(node), what, node)

    def boolean(self, expr: Expr, what: str, node: exp.Expr) -> Expr:
        if expr.type.kind not in (Kind.BOOLEAN, Kind.UNKNOWN):
            message = f"argument of {what} must be type boolean, not type {expr.type}"
            raise errors.error(errors.DATATYPE_MISMATCH, message, position=position_of(node))
        return coercion.require(self.context, expr, types.BOOLEAN, what, position_of(node))

    def bigint(self, node: exp.Expr, what: str) -> Expr:
        """For LIMIT and frames: 42804 if it is no number that becomes a bigint."""
        expr = coercion.coerce(self.context, bound := self.bind(node), types.BIGINT, "assignment", position_of(node))
        if expr is None or bound.type.kind in (Kind.TEXT, Kind.VARCHAR):
            message = f"argument of {what} must be type bigint, not type {bound.type}"
            raise errors.error(errors.DATATYPE_MISMATCH, message, position=position_of(node))
        return expr

    # --- operators and functions ---

    def operator(self, symbol: str, args: Sequence[Expr], position: int | None) -> Expr:
        """The operator's Call with its implicit casts."""
        resolution = resolve_operator(symbol, self._operand_types(args), position=position)
        assert isinstance(resolution.entry, Function)
        bound = self.arguments(args, resolution.arguments, symbol, position)
        return coercion.call(resolution.entry, bound, resolution.type)

    def function(self, name: str, args: Sequence[Expr], position: int | None) -> Expr:
        """A plain function's Call with its implicit casts."""
        resolution = resolve_function(name, [arg.type for arg in args], position=position)
        assert isinstance(resolution.entry, Function)
        bound = self.arguments(args, resolution.arguments, name, position)
        return coercion.call(resolution.entry, bound, resolution.type)

    def arguments(
        self, args: Sequence[Expr], wanted: Sequence[Type], what: str, position: int | None
    ) -> tuple[Expr, ...]:
        return tuple(
            coercion.require(self.context, arg, type_, what, position) for arg, type_ in zip(args, wanted, strict=True)
        )

    def _operand_types(self, args: Sequence[Expr]) -> list[Type]:
        """The types that decide the operator. Hints count where all is unknown, or where they are the wider number."""
        kinds = {arg.type.kind for arg in args}
        if kinds == {Kind.UNKNOWN}:
            return [self.context.hint(arg) or arg.type for arg in args]
        if kinds & INTEGERS and Kind.UNKNOWN in kinds:
            hints = [self.context.hint(arg) for arg in args]
            fractions = FLOATS | {Kind.NUMERIC}
            return [
                hint if hint is not None and hint.kind in fractions else arg.type
                for arg, hint in zip(args, hints, strict=True)
            ]
        return [arg.type for arg in args]

    def _operator_node(self, node: exp.Operator) -> Expr:
        """Long chains (a || b || c ...) nest to the left: they are walked, not recursed into."""
        spine: list[exp.Expr] = [node]
        while type(spine[-1].this) is exp.Operator:
            spine.append(spine[-1].this)
        left: Expr | None = None
        for current in reversed(spine):
            left = self._one_operator(current, left)
        assert left is not None
        return left

    def _one_operator(self, node: exp.Expr, left: Expr | None) -> Expr:
        symbol, right = node.args["operator"], node.expression
        if left is None:
            comparison = self.row_comparison(node)
            if comparison is not None:
                return comparison
            left = self.bind(node.this)
        if isinstance(right, exp.Any | exp.All):
            return self.quantified(left, symbol, right, position_of(node))
        return self.operator(symbol, [left, self.bind(right)], node.meta.get("position"))

    def _prefix_node(self, node: exp.Expr) -> Expr:
        symbol, operand = node.args["operator"], node.this
        negative = _negative(operand) if symbol == "-" else None
        if negative is not None:
            return number(negative.name)
        if symbol in "+-" and isinstance(operand, exp.Literal) and not operand.is_string:
            return number(symbol + operand.name)
        return self.operator(symbol, [self.bind(operand)], node.meta.get("position"))

    # --- leaves ---

    def _literal(self, node: exp.Expr) -> Expr:
        if node.is_string:
            literal = tree.Literal(node.name, types.UNKNOWN)
            self.context.note(literal, node.name, position_of(node))
            return literal
        return number(node.name)

    def _null(self, node: exp.Expr) -> Expr:
        return tree.Literal(None, types.UNKNOWN)

    def _boolean_literal(self, node: exp.Expr) -> Expr:
        return tree.Literal(bool(node.this), types.BOOLEAN)

    def _parameter(self, node: exp.Expr) -> Expr:
        return self.context.parameter(int(node.this.name) - 1)

    def _default(self, node: exp.Expr) -> Expr:
        message = "DEFAULT is not allowed in this context"
        raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(node))

    def _star(self, node: exp.Expr) -> Expr:
        raise errors.error(errors.SYNTAX_ERROR, 'syntax error at or near "*"', position=position_of(node))

    def _column(self, node: exp.Expr) -> Expr:
        position = node.meta.get("position")
        if isinstance(node.this, exp.Star):
            raise errors.unsupported("a whole-row reference", position=position)
        name, table, schema = node.name, node.text("table") or None, node.text("db") or None
        if table is None:
            column = self.scope.find(name, position) or self._value_of(name, position)
            if column is None:
                raise self._unknown_column(name, position)
            return self.reference(column, name, position)
        item = self.scope.item(schema, table, position)
        if item is None:
            message = f'missing FROM-clause entry for table "{table}"'
            raise errors.error(errors.UNDEFINED_TABLE, message, position=position)
        found = [column for column in item.columns if column.name == name]
        if not found:
            message = f"column {table}.{name} does not exist"
            raise errors.error(errors.UNDEFINED_COLUMN, message, position=position)
        if len(found) > 1:
            message = f'column reference "{name}" is ambiguous'
            raise errors.error(errors.AMBIGUOUS_COLUMN, message, position=position)
        return self.reference(found[0], f"{table}.{name}", position)

    def _value_of(self, name: str, position: int | None) -> ScopeColumn | None:
        """A function in FROM by its alias: its value."""
        item = self.scope.item(None, name, position)
        return item.columns[0] if item is not None and item.scalar else None

    def _unknown_column(self, name: str, position: int | None) -> errors.Error:
        if self.scope.item(None, name, position) is not None:
            return errors.unsupported("a whole-row reference", position=position)
        return errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" does not exist', position=position)

    def reference(self, column: ScopeColumn, name: str, position: int | None) -> Expr:
        """A reference of its own, so that errors found later know where it stands."""
        expr = column.expr
        if isinstance(expr, tree.ColumnRef):
            expr = tree.ColumnRef(expr.relation, expr.ordinal, expr.type, expr.name)
            self.context.note(expr, name, position)
        return expr

    # --- casts and conditionals ---

    def _cast(self, node: exp.Expr) -> Expr:
        return self.explicit_cast(self.bind(node.this), parse_type(node.args["to"].args["kind"]), node)

    def explicit_cast(self, expr: Expr, target: Type, node: exp.Expr) -> Expr:
        position = position_of(node.this) if expr.type.kind is Kind.UNKNOWN else node.meta.get("position")
        found = coercion.coerce(self.context, expr, target, "explicit", position)
        if found is None:
            message = f"cannot cast type {expr.type} to {target}"
            raise errors.error(errors.CANNOT_COERCE, message, position=position)
        return found

    def _case(self, node: exp.Expr) -> Expr:
        operand, later = (None, None) if node.this is None else self._once(self.value(node.this))
        conditions: list[Expr] = []
        for branch in node.args["ifs"]:
            if operand is None:
                conditions.append(self.condition(branch.this, "CASE/WHEN"))
            else:
                conditions.append(self.operator("=", [operand, self.bind(branch.this)], position_of(branch.this)))
                operand = later
        default = node.args.get("default")
        results = [self.bind(branch.args["true"]) for branch in node.args["ifs"]]
        # ELSE comes first in the choice of the type, as in PostgreSQL.
        results.insert(0, tree.Literal(None, types.UNKNOWN) if default is None else self.bind(default))
        otherwise, *branches = coercion.unify(self.context, results, "CASE", position_of(node))
        return tree.Case(tuple(zip(conditions, branches, strict=True)), otherwise, otherwise.type)

    def _coalesce(self, node: exp.Expr) -> Expr:
        bound = [self.bind(arg) for arg in (node.this, *node.expressions)]
        args = coercion.unify(self.context, bound, "COALESCE", position_of(node))
        return args[0] if len(args) == 1 else tree.Coalesce(args, args[0].type)

    def _nullif(self, node: exp.Expr) -> Expr:
        operand, other = self.bind(node.this), self.bind(node.expression)
        if operand.type.kind is Kind.UNKNOWN:
            operand, _ = coercion.unify(self.context, [operand, other], "NULLIF", position_of(node))
        compared = _compared_type(operand.type, other.type)
        left, result = self._once(operand if operand.type == compared else coercion.cast(operand, compared, False))
        equal = self.operator("=", [left, other], position_of(node))
        return tree.Case(((equal, tree.Literal(None, left.type)),), result, left.type)

    def _once(self, operand: Expr) -> tuple[Expr, Expr]:
        """The operand of a CASE for its first use, and for the later ones: a volatile one is evaluated once."""
        if not is_volatile(operand):
            return operand, operand
        number = self.context.new_kept()
        return tree.Keep(number, operand, operand.type), tree.Kept(number, operand.type)

    def _at_time_zone(self, node: exp.Expr) -> Expr:
        args = [self.bind(node.args["zone"]), self.bind(node.this)]
        return self.function("timezone", args, node.meta.get("position"))

    def _paren(self, node: exp.Expr) -> Expr:
        return self.bind(node.this)

    def _tuple(self, node: exp.Expr) -> Expr:
        raise errors.unsupported("a row as a value", position=position_of(node))

    # --- subqueries ---

    def _subquery(self, node: exp.Expr) -> Expr:
        query = self.queries.subquery(node.this, self.scope)
        outputs = self.queries.columns(query)
        if len(outputs) != 1:
            message = "subquery must return only one column"
            raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(node))
        return tree.ScalarSubquery(query, outputs[0][1])

    def _exists(self, node: exp.Expr) -> Expr:
        return tree.Exists(self.queries.subquery(node.this, self.scope), negated=False)


def _compared_type(left: Type, right: Type) -> Type:
    """The type that `=` takes its left operand as, which NULLIF gives back: nullif(1, 2.0) is a numeric."""
    if left.kind in STRINGS and right.kind in STRINGS | {Kind.UNKNOWN}:
        return types.TEXT
    if left.kind in INTEGERS and right.kind is Kind.NUMERIC:
        return types.NUMERIC
    if right.kind in FLOATS and (left.kind in INTEGERS or left.kind is Kind.NUMERIC):
        return types.DOUBLE
    return left


def _negative(node: exp.Expr) -> exp.Literal | None:
    """The literal whose negative this is: its own negative is it again, however large that is."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, PrefixOperator) or node.args["operator"] != "-":
        return None
    operand = node.this
    return operand if isinstance(operand, exp.Literal) and not operand.is_string else None


def number(text: str) -> tree.Literal:
    """A numeric constant: the smallest of integer, bigint, numeric that holds it.

    One with an exponent that takes more digits than a numeric has (1e300) is a double precision: that is what it is
    meant for, and PostgreSQL, whose numeric holds it, would cast it.
    """
    if text.lstrip("+-").isdigit() and len(text) <= 20:
        value = int(text)
        for type_ in (types.INTEGER, types.BIGINT):
            low, high = INTEGER_RANGES[type_.kind]
            if low <= value <= high:
                return tree.Literal(value, type_)
    try:
        return tree.Literal(from_text(types.NUMERIC, text), types.NUMERIC)
    except errors.Error:
        if "e" not in text.lower():
            raise
        return tree.Literal(from_text(types.DOUBLE, text), types.DOUBLE)


def constant(text: str) -> tree.Literal:
    """What `grammar.constants` has left as text, as the literal that its node would be bound to."""
    first = text[0]
    if first == "'":
        return tree.Literal(text[1:-1].replace("''", "'"), types.UNKNOWN)
    if first in "nN":
        return tree.Literal(None, types.UNKNOWN)
    if first in "tTfF":
        return tree.Literal(first in "tT", types.BOOLEAN)
    return number(text)


_BINDERS: dict[type, Callable[[Any, Any], Expr]] = {
    exp.Literal: ExpressionBinder._literal,
    exp.Null: ExpressionBinder._null,
    exp.Boolean: ExpressionBinder._boolean_literal,
    exp.Parameter: ExpressionBinder._parameter,
    exp.Column: ExpressionBinder._column,
    exp.Star: ExpressionBinder._star,
    exp.Var: ExpressionBinder._default,
    exp.Operator: ExpressionBinder._operator_node,
    PrefixOperator: ExpressionBinder._prefix_node,
    exp.Paren: ExpressionBinder._paren,
    exp.Tuple: ExpressionBinder._tuple,
    exp.Cast: ExpressionBinder._cast,
    exp.Case: ExpressionBinder._case,
    exp.Coalesce: ExpressionBinder._coalesce,
    exp.Nullif: ExpressionBinder._nullif,
    exp.AtTimeZone: ExpressionBinder._at_time_zone,
    exp.Subquery: ExpressionBinder._subquery,
    exp.Exists: ExpressionBinder._exists,
    exp.And: ExpressionBinder.connective,
    exp.Or: ExpressionBinder.connective,
    exp.Not: ExpressionBinder.negation,
    exp.Is: ExpressionBinder.is_test,
    exp.NullSafeEQ: ExpressionBinder.distinctness,
    exp.NullSafeNEQ: ExpressionBinder.distinctness,
    exp.Between: ExpressionBinder.between,
    exp.In: ExpressionBinder.membership,
    exp.Anonymous: ExpressionBinder.call,
    exp.Filter: ExpressionBinder.call,
    exp.Window: ExpressionBinder.call,
    exp.Grouping: ExpressionBinder.grouping,
}
