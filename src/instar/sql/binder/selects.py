"""One SELECT: its outputs, grouping, DISTINCT and ORDER BY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from sqlglot import exp

from instar import errors
from instar.sql import tree
from instar.sql.binder import coercion
from instar.sql.binder.expressions import ExpressionBinder
from instar.sql.binder.from_items import Found, FromBinder
from instar.sql.binder.grouping import Grouping, check_grouping
from instar.sql.binder.names import output_name
from instar.sql.binder.row_locks import locked
from instar.sql.binder.sameness import SharedSubqueries
from instar.sql.binder.scope import Namespace, Scope
from instar.sql.grammar.constants import require_entries
from instar.sql.grammar.nodes import PrefixOperator, position_of
from instar.sql.traversal import references, walk_level
from instar.sql.tree import Expr, Output, SortKey
from instar.types import Kind

MAX_GROUPING_SETS = 4096
_NOT_GROUPED: dict[type, str] = {
    tree.AggregateCall: "aggregate functions",
    tree.WindowCall: "window functions",
    tree.GroupingCall: "grouping operations",
}


class SelectBinder(FromBinder):
    """The part of QueryBinder about SELECT."""

    def select(self, node: exp.Select, parent: Scope | None, keep_unknown: bool = False) -> tree.Select:
        """A SELECT without its WITH. `keep_unknown`: outputs of unknown type stay so, for a set operation or INSERT
        to decide."""
        scope = Scope(parent=parent)
        found = self._from(node, scope)
        scope.namespace = Namespace() if found is None else found[1]
        where = self.where(node, scope)
        # DISTINCT compares the outputs, which must have their types by then.
        keep_unknown = keep_unknown and node.args.get("distinct") is None
        binder = self.binder(scope, "SELECT")
        binder.windows = _named_windows(node)
        if node.args.get("group") is not None or node.args.get("distinct") is not None:
            scope.subqueries = SharedSubqueries()
        outputs = self._sorted_as_text(node, self.outputs(node.expressions, binder, keep_unknown))
        grouping = self._grouping(node, scope, outputs)
        having, having_binder = self._having(node, scope)
        order_binder = self.binder(scope, "ORDER BY")
        order_binder.windows = binder.windows
        order_by = self._order_by(node, outputs, order_binder)
        distinct, distinct_on = self._distinct(node, outputs, order_binder, order_by)
        aggregated = bool(
            grouping is not None
            or having is not None
            or binder.aggregated
            or having_binder.aggregated
            or order_binder.aggregated
        )
        exprs, sets = ((), None) if grouping is None else (grouping.exprs, grouping.sets)
        if aggregated:
            checked = (*(output.expr for output in outputs), having, *(key.expr for key in order_by), *distinct_on)
            exprs = check_grouping(self.context, scope, [expr for expr in checked if expr is not None], exprs, sets)
        limit, offset = self.limits(node, scope)
        made = tree.Select(
            outputs, None if found is None else found[0], where, exprs, sets, having, aggregated, distinct, distinct_on,
            order_by, limit, offset,
        )  # fmt: skip
        locks = node.args.get("row_locks")
        return locked(made, scope.namespace, locks) if locks else made

    def _from(self, node: exp.Select, scope: Scope) -> Found | None:
        from_ = node.args.get("from_")
        if from_ is None:
            return None
        return self.from_list([from_.this, *(join.this for join in node.args.get("joins") or ())], scope)

    def where(self, node: exp.Expr, scope: Scope) -> Expr | None:
        where = node.args.get("where")
        return None if where is None else self.binder(scope, "WHERE").condition(where.this, "WHERE")

    def _having(self, node: exp.Select, scope: Scope) -> tuple[Expr | None, ExpressionBinder]:
        binder = self.binder(scope, "HAVING")
        having = node.args.get("having")
        return (None if having is None else _shared(binder.condition(having.this, "HAVING"), scope)), binder

    # --- outputs ---

    def outputs(
        self, nodes: Sequence[exp.Expr], binder: ExpressionBinder, keep_unknown: bool = False
    ) -> tuple[Output, ...]:
        """The select list, or RETURNING's, with the stars written out."""
        found: list[Output] = []
        require_entries(len(nodes))
        for node in nodes:
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                found.extend(self._star(node, binder))
                continue
            inner, name = (node.this, node.alias) if isinstance(node, exp.Alias) else (node, output_name(node))
            expr = _shared(binder.bind(inner), binder.scope)
            found.append(Output(name, expr if keep_unknown else coercion.to_text_if_unknown(self.context, expr)))
        require_entries(len(found))
        return tuple(found)

    def _star(self, node: exp.Expr, binder: ExpressionBinder) -> list[Output]:
        position = node.meta.get("position")
        if isinstance(node, exp.Star):
            columns = binder.scope.namespace.columns
            if not binder.scope.namespace.items:
                message = "SELECT * with no tables specified is not valid"
                raise errors.error(errors.SYNTAX_ERROR, message, position=position)
        else:
            table = node.text("table")
            item = binder.scope.item(node.text("db") or None, table, position)
            if item is None:
                message = f'missing FROM-clause entry for table "{table}"'
                raise errors.error(errors.UNDEFINED_TABLE, message, position=position)
            columns = item.columns
        return [Output(column.name, binder.reference(column, column.name, position)) for column in columns]

    # --- GROUP BY ---

    def _grouping(self, node: exp.Select, scope: Scope, outputs: tuple[Output, ...]) -> Grouping | None:
        group = node.args.get("group")
        if group is None:
            return None
        binder = self.binder(scope, "GROUP BY")
        exprs: list[Expr] = []

        def key(item: exp.Expr) -> int:
            expr = self._group_key(item, outputs, binder)
            if expr not in exprs:
                exprs.append(expr)
            return exprs.index(expr)

        lists = [_grouping_sets(item, key) for item in group.expressions]
        if all(len(sets) == 1 for sets in lists):
            return Grouping(tuple(exprs), None)
        count = 1
        for sets in lists:
            count *= len(sets)
            if count > MAX_GROUPING_SETS:
                message = f"too many grouping sets present (maximum {MAX_GROUPING_SETS})"
                raise errors.error(errors.LIMIT_EXCEEDED, message, position=position_of(group))
        sets_ = tuple(tuple(dict.fromkeys(sum(combination, ()))) for combination in product(*lists))
        return Grouping(tuple(exprs), sets_)

    def _group_key(self, node: exp.Expr, outputs: tuple[Output, ...], binder: ExpressionBinder) -> Expr:
        """A position, a column of the input, an output's name, or an expression: tried in this order."""
        ordinal = meant_ordinal(node, len(outputs), "GROUP BY")
        if ordinal is not None:
            return self._ungrouped_output(outputs[ordinal], node)
        bare = isinstance(node, exp.Column) and not node.args.get("table")
        if bare and not binder.scope.namespace.named(node.name):
            named = _output_named(node, outputs, "GROUP BY")
            if named is not None:
                return self._ungrouped_output(named, node)
        return _shared(binder.value(node), binder.scope)

    def _ungrouped_output(self, output: Output, node: exp.Expr) -> Expr:
        for found in walk_level(output.expr):
            kind = _NOT_GROUPED.get(type(found))
            if kind is not None:
                code = errors.GROUPING_ERROR if kind != "window functions" else errors.WINDOWING_ERROR
                raise errors.error(code, f"{kind} are not allowed in GROUP BY", position=position_of(node))
        return output.expr

    # --- ORDER BY, DISTINCT, LIMIT ---

    def _sorted_as_text(self, node: exp.Select, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """The outputs, of which those that ORDER BY names are of unknown type no longer."""
        order = node.args.get("order")
        if order is None or all(output.expr.type.kind is not Kind.UNKNOWN for output in outputs):
            return outputs
        keys = [_output_meant(key.this, outputs, "ORDER BY") for key in order.expressions]
        return tuple(
            Output(output.name, coercion.to_text_if_unknown(self.context, output.expr)) if output in keys else output
            for output in outputs
        )

    def _order_by(self, node: exp.Expr, outputs: tuple[Output, ...], binder: ExpressionBinder) -> tuple[SortKey, ...]:
        order = node.args.get("order")
        if order is None:
            return ()
        return tuple(
            SortKey(
                self._order_key(key.this, outputs, binder, "ORDER BY"),
                bool(key.args["desc"]),
                bool(key.args["nulls_first"]),
            )
            for key in order.expressions
        )

    def _order_key(self, node: exp.Expr, outputs: tuple[Output, ...], binder: ExpressionBinder, clause: str) -> Expr:
        """An output's name or position, else an expression of the input."""
        found = _output_meant(node, outputs, clause)
        if found is not None:
            return found.expr
        return _shared(coercion.to_text_if_unknown(self.context, binder.bind(node)), binder.scope)

    def _distinct(
        self, node: exp.Select, outputs: tuple[Output, ...], binder: ExpressionBinder, order_by: tuple[SortKey, ...]
    ) -> tuple[bool, tuple[Expr, ...]]:
        distinct = node.args.get("distinct")
        if distinct is None:
            return False, ()
        on = distinct.args.get("on")
        if on is None:
            shown = [output.expr for output in outputs]
            if any(key.expr not in shown for key in order_by):
                message = "for SELECT DISTINCT, ORDER BY expressions must appear in select list"
                raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position_of(node.args["order"]))
            return True, ()
        exprs: list[Expr] = []
        for item in on.expressions:
            expr = self._order_key(item, outputs, binder, "DISTINCT ON")
            if expr not in exprs:
                exprs.append(expr)
        covered: set[int] = set()
        for sort_key in order_by:
            if len(covered) == len(exprs):
                break
            if sort_key.expr not in exprs:
                message = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions"
                raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position_of(on))
            covered.add(exprs.index(sort_key.expr))
        return False, tuple(exprs)

    def limits(self, node: exp.Expr, scope: Scope) -> tuple[Expr | None, Expr | None]:
        """LIMIT and OFFSET as bigint; LIMIT NULL and LIMIT ALL are none."""
        found: list[Expr | None] = []
        for clause in ("limit", "offset"):
            wrapped = node.args.get(clause)
            if wrapped is None or isinstance(wrapped.expression, exp.Null):
                found.append(None)
                continue
            expr = self.binder(scope, clause.upper()).bigint(wrapped.expression, clause.upper())
            own = {item.relation for item in scope.namespace.items.values()}
            if any(relation in own for relation, _ in references(expr).free):
                message = f"argument of {clause.upper()} must not contain variables"
                raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position_of(wrapped))
            found.append(expr)
        return found[0], found[1]


def _shared(expr: Expr, scope: Scope) -> Expr:
    """The expression, with subqueries that another clause of this SELECT has too as the very same ones."""
    return expr if scope.subqueries is None else scope.subqueries.shared(expr)


def _named_windows(node: exp.Select) -> dict[str, exp.Window]:
    windows: dict[str, exp.Window] = {}
    for window in node.args.get("windows") or ():
        name = window.this.name
        if name in windows:
            raise errors.error(
                errors.WINDOWING_ERROR, f'window "{name}" is already defined', position=position_of(window)
            )
        windows[name] = window
    return windows


def _grouping_sets(node: exp.Expr, key: Callable[[exp.Expr], int]) -> list[tuple[int, ...]]:
    """The grouping sets that one item of GROUP BY stands for, as tuples of key numbers."""
    if isinstance(node, exp.GroupingSets):
        return [found for item in node.expressions for found in _grouping_sets(item, key)]
    if isinstance(node, exp.Rollup | exp.Cube):
        parts = [_grouping_sets(item, key)[0] for item in node.expressions]
        if isinstance(node, exp.Rollup):
            return [sum(parts[:length], ()) for length in range(len(parts), -1, -1)]
        if len(parts) > 12:
            message = "CUBE is limited to 12 elements"
            raise errors.error(errors.LIMIT_EXCEEDED, message, position=position_of(node))
        chosen = product((True, False), repeat=len(parts))
        return [sum((part for part, use in zip(parts, uses, strict=True) if use), ()) for uses in chosen]
    if isinstance(node, exp.Tuple):
        return [tuple(key(item) for item in node.expressions)]
    return [(key(node),)]


def meant_ordinal(node: exp.Expr, outputs: int, clause: str) -> int | None:
    """Which of so many outputs a bare integer constant means. As in PostgreSQL a minus sign is part of a number."""
    while isinstance(node, exp.Paren):
        node = node.this
    constant, negative = node, False
    while isinstance(constant, exp.Paren) or _is_minus(constant):
        negative ^= _is_minus(constant)
        constant = constant.this
    is_number = isinstance(constant, exp.Literal) and not constant.is_string
    if not is_number and (constant is not node or not isinstance(node, exp.Literal | exp.Null | exp.Boolean)):
        return None
    if not is_number or not constant.name.isdigit():
        raise errors.error(errors.SYNTAX_ERROR, f"non-integer constant in {clause}", position=position_of(node))
    number = -int(constant.name) if negative else int(constant.name)
    if not 1 <= number <= outputs:
        message = f"{clause} position {number} is not in select list"
        raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position_of(node))
    return number - 1


def _is_minus(node: exp.Expr) -> bool:
    return isinstance(node, PrefixOperator) and node.args["operator"] == "-"


def _output_meant(node: exp.Expr, outputs: tuple[Output, ...], clause: str) -> Output | None:
    """The output that a key of ORDER BY or DISTINCT ON says by its position or name."""
    ordinal = meant_ordinal(node, len(outputs), clause)
    found = None if ordinal is None else outputs[ordinal]
    if found is None and isinstance(node, exp.Column) and not node.args.get("table"):
        found = _output_named(node, outputs, clause)
    return found


def _output_named(node: exp.Expr, outputs: tuple[Output, ...], clause: str) -> Output | None:
    found = [output for output in outputs if output.name == node.name]
    if any(output.expr != found[0].expr for output in found[1:]):
        message = f'{clause} "{node.name}" is ambiguous'
        raise errors.error(errors.AMBIGUOUS_COLUMN, message, position=position_of(node))
    return found[0] if found else None
