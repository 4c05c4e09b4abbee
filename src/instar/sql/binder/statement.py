"""Whole statements: what `instar.sql` calls to bind."""

from __future__ import annotations

from collections.abc import Sequence

from instar import errors
from instar.sql import tree
from instar.sql.binder.context import CatalogReader, Context
from instar.sql.binder.dml import DmlBinder
from instar.sql.binder.queries import QueryBinder
from instar.sql.statements import Dml, Query
from instar.types import Type


def bind(
    statement: Query | Dml, catalog: CatalogReader, parameter_hints: Sequence[Type | None] = ()
) -> tree.BoundStatement:
    """The typed tree of a query or of DML at one version of the catalog.

    `parameter_hints` are the types of the values that the caller has for the parameters, where it knows them: they
    decide where nothing in the statement does. Equal statements, versions and hints give equal trees.

    Errors: PostgreSQL's of class 42 with their position, 0A000 for what Instar lacks, 22xxx for literals that their
    type cannot read, 54001 for too deep a nesting.
    """
    context = Context(catalog, statement.parameters, parameter_hints)
    try:
        bound = _bind(statement, context)
    except RecursionError:
        raise errors.error(errors.STATEMENT_TOO_COMPLEX, "statement is too deeply nested") from None
    return tree.BoundStatement(
        bound,
        context.parameter_types(),
        tuple(context.tables.values()),
        tuple(context.views.values()),
        frozenset(context.by_value),
    )


def _bind(statement: Query | Dml, context: Context) -> tree.Bound:
    if isinstance(statement, Dml):
        return DmlBinder(context, statement).bind()
    return tree.QueryStatement(QueryBinder(context).query(statement.expression, None))
