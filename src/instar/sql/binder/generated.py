"""The expressions of generated columns, as descriptors keep them and as people read them."""

from __future__ import annotations

from sqlglot import exp

from instar import errors
from instar.catalog.descriptors import Column, Table
from instar.sql import tree
from instar.sql.binder import coercion
from instar.sql.binder.context import CatalogReader, Context
from instar.sql.binder.deparse import Deparser
from instar.sql.binder.frozen import bound_over, kept
from instar.sql.binder.frozen_texts import lasting, parsed_expression, unplaced
from instar.sql.binder.queries import QueryBinder
from instar.sql.expressions import reads_context
from instar.sql.traversal import is_volatile, walk
from instar.sql.tree import Expr
from instar.types import Kind, Type

_CLAUSE = "column generation expressions"


def freeze_generated(
    node: exp.Expr, table: Table, column: str, type_: Type, catalog: CatalogReader, zone: str
) -> tuple[str, tuple[int, ...]]:
    """The text by ids of what a generated column of this type is made of, and the ids of the columns in it.

    Errors: as for binding; 42804 for what cannot be assigned to the type; 42P17 for what may change its mind, and for
    other generated columns; 0A000 for subqueries.
    """
    context = Context(catalog, zone=zone)
    expr = bound_over(QueryBinder(context), node, table, _CLAUSE)
    if expr.type.kind is Kind.UNKNOWN:
        expr = coercion.assign(context, expr, Type(type_.kind), column)
    found = coercion.coerce(context, expr, type_, "assignment")
    if found is None:
        message = f'column "{column}" is of type {type_} but default expression is of type {expr.type}'
        hint = "You will need to rewrite or cast the expression."
        raise errors.error(errors.DATATYPE_MISMATCH, message, hint=hint)
    _require_lasting(found, table)
    ids = {table.columns[part.ordinal].id for part in walk(found) if isinstance(part, tree.ColumnRef)}
    text = Deparser(catalog, by_ids=True, tables={0: table}, qualified=False).expression(kept(expr, found))
    again = QueryBinder(Context(catalog), by_ids=True)
    return lasting(text, lambda node: bound_over(again, node, table, _CLAUSE)), tuple(sorted(ids))


def _require_lasting(expr: Expr, table: Table) -> None:
    """The value of a row follows from its own columns, now and ever."""
    for part in walk(expr):
        if isinstance(part, tree.ScalarSubquery | tree.Exists | tree.InSubquery):
            raise errors.unsupported("a subquery in a column generation expression")
        if isinstance(part, tree.ColumnRef) and table.columns[part.ordinal].generated:
            raise errors.error(
                errors.INVALID_OBJECT_DEFINITION,
                f'cannot use generated column "{part.name}" in column generation expression',
                detail="A generated column cannot reference another generated column.",
            )
    if is_volatile(expr) or reads_context(expr):
        raise errors.error(errors.INVALID_OBJECT_DEFINITION, "generation expression is not immutable")


def thaw_generated(column: Column, table: Table, catalog: CatalogReader) -> str | None:
    """The expression of a generated column of the table with today's names; None for any other column."""
    derived = column.derived if column.generated else None
    if derived is None:
        return None
    binder = QueryBinder(Context(catalog), by_ids=True)
    expr = unplaced(lambda: bound_over(binder, parsed_expression(derived.expression), table, _CLAUSE))
    return Deparser(catalog, tables={0: table}, qualified=False).expression(expr)
