"""GROUP BY's rule: what is not grouped must be aggregated, or depend on what is grouped (SQL:2016, 7.12)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from instar import errors
from instar.sql import tree
from instar.sql.binder.context import Context
from instar.sql.binder.scope import Item, Scope
from instar.sql.traversal import children, references
from instar.sql.tree import Expr


class Grouping(msgspec.Struct, frozen=True):
    """The distinct grouping expressions, and the grouping sets as positions among them (None: one, of all)."""

    exprs: tuple[Expr, ...]
    sets: tuple[tuple[int, ...], ...] | None


def check_grouping(
    context: Context,
    scope: Scope,
    exprs: Iterable[Expr],
    grouped: tuple[Expr, ...],
    sets: tuple[tuple[int, ...], ...] | None,
) -> tuple[Expr, ...]:
    """The grouping expressions, with the columns added that depend on a grouped primary key; else 42803."""
    checker = _Checker(context, scope, grouped, sets is None)
    for expr in exprs:
        checker.check(expr)
    return (*grouped, *checker.dependent)


class _Checker:
    def __init__(self, context: Context, scope: Scope, grouped: tuple[Expr, ...], one_set: bool) -> None:
        self.context = context
        self.grouped = grouped
        self.dependent: list[Expr] = []
        self.items = {item.relation: item for item in scope.namespace.items.values()}
        # With several grouping sets a key column is NULL in some, and determines nothing there.
        self.whole = {item.relation for item in self.items.values() if one_set and self._has_key(item)}

    def _has_key(self, item: Item) -> bool:
        table = item.table
        if table is None or not table.primary_key:
            return False
        ids = {
            table.columns[expr.ordinal].id
            for expr in self.grouped
            if isinstance(expr, tree.ColumnRef) and expr.relation == item.relation
        }
        return ids >= set(table.primary_key)

    def check(self, expr: object) -> None:
        if expr in self.grouped or isinstance(expr, tree.AggregateCall):
            return
        if isinstance(expr, tree.GroupingCall):
            self._arguments(expr)
        elif isinstance(expr, tree.ColumnRef):
            self._column(
                expr, expr, 'column "{}" must appear in the GROUP BY clause or be used in an aggregate function'
            )
        elif isinstance(expr, tree.ScalarSubquery | tree.Exists | tree.InSubquery):
            for operand in expr.operands if isinstance(expr, tree.InSubquery) else ():
                self.check(operand)
            self._subquery(expr)
        else:
            for child in children(expr):
                self.check(child)

    def _arguments(self, call: tree.GroupingCall) -> None:
        for arg in call.args:
            if arg not in self.grouped:
                message = "arguments to GROUPING must be grouping expressions of the associated query level"
                _, position = self.context.source(arg)
                raise errors.error(errors.GROUPING_ERROR, message, position=position)

    def _subquery(self, expr: tree.ScalarSubquery | tree.Exists | tree.InSubquery) -> None:
        for relation, ordinal in sorted(references(expr.query).free):
            item = self.items.get(relation)
            if item is None:
                continue
            for column in item.columns:
                ref = column.expr
                if not isinstance(ref, tree.ColumnRef) or (ref.relation, ref.ordinal) != (relation, ordinal):
                    continue
                if ref not in self.grouped:
                    self._column(ref, expr, 'subquery uses ungrouped column "{}" from outer query')

    def _column(self, ref: tree.ColumnRef, at: object, message: str) -> None:
        item = self.items.get(ref.relation)
        if item is None or ref in self.dependent:
            return  # of an outer query: constant here
        if ref.relation in self.whole:
            self.dependent.append(ref)
            return
        _, position = self.context.source(ref)
        name = f"{item.alias}.{ref.name}"
        raise errors.error(errors.GROUPING_ERROR, message.format(name), position=position)
