"""Expressions and queries as descriptors keep them: frozen into text by ids, bound from it, thawed for people to read.

What is frozen is the *bound* tree, written back as SQL (deparse.py): every name resolved, stars and USING written out,
every cast explicit, texts of timestamptz read in the time zone of who freezes. So a rename, a function that is
overloaded later, or another session's time zone changes nothing of what it means.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from sqlglot import exp

from instar import errors, types, values
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Column, Derivation, Table, View
from instar.sql import statements, tree
from instar.sql.binder import coercion
from instar.sql.binder.context import CatalogReader, Context
from instar.sql.binder.deparse import Deparser, quote_identifier
from instar.sql.binder.from_items import table_columns
from instar.sql.binder.frozen_texts import lasting, parsed_expression, parsed_query, unplaced
from instar.sql.binder.queries import QueryBinder
from instar.sql.binder.scope import Item, Namespace, Scope
from instar.sql.parser import parse_expression
from instar.sql.traversal import children, is_volatile, locks_rows, walk
from instar.sql.tree import Expr
from instar.types import Kind, Type

_TRANSFORMS = "transform expressions"


class FrozenQuery(NamedTuple):
    """A view's query: its text by ids, its columns, and per table or view that it needs the columns' ids."""

    text: str
    columns: tuple[tuple[str, Type], ...]
    depends_on: tuple[tuple[int, tuple[int, ...]], ...]


class FrozenConversion(NamedTuple):
    """A conversion's text by ids, the ids of the columns in it, and whether it is another each time."""

    text: str
    columns: tuple[int, ...]
    volatile: bool


# --- CHECK and DEFAULT -----------------------------------------------------------------------------------------------


def freeze_check(
    node: exp.Expr, table: Table, catalog: CatalogReader, zone: str = "UTC"
) -> tuple[str, tuple[int, ...]]:
    """A CHECK's text, and the ids of the columns in it.

    Errors: as for binding; 42P17 for functions that may change their mind; 0A000 for subqueries.
    """
    context = Context(catalog, zone=zone)
    expr = _bind(QueryBinder(context), node, table, 0, "CHECK constraints", "CHECK")
    for found in walk(expr):
        if isinstance(found, tree.ScalarSubquery | tree.Exists | tree.InSubquery):
            raise errors.unsupported("a subquery in a check constraint")
        volatile = isinstance(found, tree.Call) and found.function.volatility != "immutable"
        if volatile or isinstance(found, tree.OfSequence):
            raise errors.error(errors.INVALID_OBJECT_DEFINITION, "functions in a check constraint must be immutable")
    ids = {table.columns[found.ordinal].id for found in walk(expr) if isinstance(found, tree.ColumnRef)}
    text = Deparser(catalog, by_ids=True, tables={0: table}, qualified=False).expression(expr)
    again = QueryBinder(Context(catalog), by_ids=True)
    return lasting(text, lambda node: bound_over(again, node, table, "CHECK constraints")), tuple(sorted(ids))


def freeze_default(
    node: exp.Expr, column: str, type_: Type, catalog: CatalogReader, zone: str = "UTC"
) -> tuple[str, Expr]:
    """A DEFAULT's text, and the expression that it is for a column of this type, to be evaluated now where need be.

    A constant that the type takes but not its length or precision fails where it is stored, as in PostgreSQL.
    Errors: as for binding; 0A000 for column references and subqueries, 42804 for a type that cannot be assigned.
    """
    context = Context(catalog, zone=zone)
    expr = _default(QueryBinder(context), node)
    if expr.type.kind is Kind.UNKNOWN:
        expr = coercion.assign(context, expr, Type(type_.kind), column)
    found = coercion.coerce(context, expr, type_, "assignment")
    if found is None:
        message = f'column "{column}" is of type {type_} but default expression is of type {expr.type}'
        hint = "You will need to rewrite or cast the expression."
        raise errors.error(errors.DATATYPE_MISMATCH, message, hint=hint)
    lasts = kept(expr, found)
    text = Deparser(catalog, by_ids=True).expression(lasts)
    if isinstance(lasts, tree.Literal):
        return text, found  # nothing in it is nested
    again = QueryBinder(Context(catalog), by_ids=True)
    return lasting(text, lambda node: _default(again, node)), found


def kept(expr: Expr, found: Expr) -> Expr:
    """What a descriptor says of a default that is `found` as the column's type: a constant, of whatever it was meant
    to be, as that type; else what was written, since the column's type may change."""
    return found if isinstance(found, tree.Literal) or expr.type.kind is Kind.UNKNOWN else expr


def freeze_conversion(
    node: exp.Expr | None, table: Table, column: Column, type_: Type, catalog: CatalogReader
) -> FrozenConversion:
    """What ALTER COLUMN TYPE makes of a row: the text by ids of USING, or of the column itself where `node` is None.

    Errors: as for binding; 42804 for what cannot be assigned to the new type; 0A000 for subqueries and sequences.
    """
    context = Context(catalog)
    if node is None:
        node = exp.Column(this=exp.to_identifier(column.name, quoted=True))
        message = f'column "{column.name}" cannot be cast automatically to type {type_}'
        hint = f'You might need to specify "USING {quote_identifier(column.name)}::{type_}".'
    else:
        message = f'result of USING clause for column "{column.name}" cannot be cast automatically to type {type_}'
        hint = "You might need to add an explicit cast."
    expr = bound_over(QueryBinder(context), node, table, _TRANSFORMS)
    found = coercion.coerce(context, expr, type_, "assignment")
    if found is None:
        raise errors.error(errors.DATATYPE_MISMATCH, message, hint=hint)
    for part in walk(found):
        if isinstance(part, tree.ScalarSubquery | tree.Exists | tree.InSubquery):
            raise errors.unsupported("a subquery in a transform expression")
        if isinstance(part, tree.OfSequence):
            raise errors.unsupported("a function of sequences in a transform expression")
    ids = {table.columns[part.ordinal].id for part in walk(found) if isinstance(part, tree.ColumnRef)}
    text = Deparser(catalog, by_ids=True, tables={0: table}, qualified=False).expression(kept(expr, found))
    again = QueryBinder(Context(catalog), by_ids=True)
    lasting(text, lambda node: bound_over(again, node, table, _TRANSFORMS))
    return FrozenConversion(text, tuple(sorted(ids)), is_volatile(found))


def freeze_default_as(column: Column, type_: Type, catalog: CatalogReader) -> str | None:
    """The text of a column's default once the column is of another type; None if it has no default of its own.

    What was written is assigned to the new type, without having been assigned to the old one, as in PostgreSQL; a
    constant is one of the old type. 42804 where it cannot be assigned to that.
    """
    message = f'default for column "{column.name}" cannot be cast automatically to type {type_}'
    if column.default is None:
        if column.sequence is not None and values.cast_context(types.BIGINT, type_) not in ("implicit", "assignment"):
            raise errors.error(errors.DATATYPE_MISMATCH, message)
        return None
    text = thaw_default(column, catalog) or "NULL"
    constant = unplaced(lambda: _constant(column.default or "", column.type))
    node = parse_expression(text if constant is None else f"({text})::{Type(column.type.kind)}")
    try:
        return unplaced(lambda: freeze_default(node, column.name, type_, catalog)[0])
    except errors.Error as failed:
        if failed.sqlstate != errors.DATATYPE_MISMATCH:
            raise
        raise errors.error(errors.DATATYPE_MISMATCH, message) from None


def bind_conversion(derivation: Derivation, table: Table, catalog: CatalogReader) -> Expr:
    """A frozen conversion, or the expression of a generated column, over the columns of `table`, as relation 0."""
    binder = QueryBinder(Context(catalog), by_ids=True)
    expr = unplaced(lambda: bound_over(binder, parsed_expression(derivation.expression), table, _TRANSFORMS))
    return coercion.assign(Context(catalog), expr, derivation.type, "?")


def bind_check(text: str, table: Table, relation: int, catalog: CatalogReader) -> Expr:
    """A frozen CHECK over the columns of `relation`."""
    binder = QueryBinder(Context(catalog), by_ids=True)
    return unplaced(lambda: _bind(binder, parsed_expression(text), table, relation, "CHECK constraints", "CHECK"))


def bind_default(column: Column, catalog: CatalogReader) -> Expr:
    """What a row gets that says nothing of the column, as the column's type: its default, its sequence, or NULL."""
    return bind_default_of(Context(catalog), column)


def bind_default_of(context: Context, column: Column) -> Expr:
    """As `bind_default`, within a statement."""
    default = column.default
    if default is not None:
        constant = unplaced(lambda: _constant(default, column.type))
        if constant is not None:
            return constant
        binder = QueryBinder(context, by_ids=True)
        expr = unplaced(lambda: _default(binder, parsed_expression(default)))
    elif column.sequence is not None:
        expr = tree.NextValue(column.sequence, types.BIGINT)
    else:
        return tree.Literal(None, column.type)
    return coercion.assign(context, expr, column.type, column.name)


@lru_cache(maxsize=1024)
def _constant(default: str, type_: Type) -> tree.Literal | None:
    """A default that is written as a constant, which every INSERT asks for again after each change of its table; None
    for others. It is bound without a catalog, so that it is the same under any."""
    node = written = parsed_expression(default)
    while isinstance(written, exp.Cast | exp.Paren):
        written = written.this
    if not isinstance(written, exp.Literal):
        return None
    context = Context(CatalogSnapshot.of(()))
    bound = _default(QueryBinder(context, by_ids=True), node)
    found = coercion.coerce(context, bound, type_, "assignment")
    return found if isinstance(found, tree.Literal) else None


def defaults_of(context: Context, table: Table, given: Collection[int]) -> tuple[tuple[int, Expr], ...]:
    """What a new row gets in the columns, by their ordinals, that an INSERT does not give."""
    return tuple(
        (ordinal, bind_default_of(context, column))
        for ordinal, column in enumerate(table.columns)
        if ordinal not in given and not column.hidden and not column.is_derived
    )


def bind_defaults(table: Table, given: Collection[int], catalog: CatalogReader) -> tuple[tuple[int, Expr], ...]:
    """As `defaults_of`, for a statement that is bound already."""
    return defaults_of(Context(catalog), table, given)


def _bind(binder: QueryBinder, node: exp.Expr, table: Table, relation: int, clause: str, what: str) -> Expr:
    item = Item(table.name, relation, table_columns(table, relation, binder.by_ids), None, table)
    return binder.binder(Scope(Namespace.of(item)), clause).condition(node, what)


def bound_over(binder: QueryBinder, node: exp.Expr, table: Table, clause: str) -> Expr:
    """An expression over the columns of `table`, as relation 0; `clause` is what messages call it."""
    item = Item(table.name, 0, table_columns(table, 0, binder.by_ids), None, table)
    return binder.binder(Scope(Namespace.of(item)), clause).bind(node)


def _default(binder: QueryBinder, node: exp.Expr) -> Expr:
    if node.find(exp.Column) is not None:
        raise errors.unsupported("a column reference in DEFAULT")
    if node.find(exp.Subquery, exp.Exists) is not None:
        raise errors.unsupported("a subquery in DEFAULT")
    return binder.binder(Scope(), "DEFAULT expressions").bind(node)


# --- views -----------------------------------------------------------------------------------------------------------


def freeze_query(
    query: statements.Query, names: Sequence[str], catalog: CatalogReader, place: str = "a view", zone: str = "UTC"
) -> FrozenQuery:
    """The query of a view, or of what `place` says, its columns under `names` (fewer or none: the query's own)."""
    context = Context(catalog, zone=zone)
    binder = QueryBinder(context)
    bound = binder.query(query.expression, None)
    if locks_rows(bound):
        raise errors.unsupported(f"a row lock in {place}")
    if any(isinstance(found, tree.TableScan) and found.level is not None for found in walk(bound)):
        raise errors.unsupported(f"a table hint in {place}")
    columns = binder.columns(bound)
    if len(names) > len(columns):
        message = "CREATE VIEW specifies more column names than columns"
        if place != "a view":
            message = "too many column names were specified"
        raise errors.error(errors.SYNTAX_ERROR, message)
    labels = [*names, *(name for name, _ in columns[len(names) :])]
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise errors.error(errors.DUPLICATE_COLUMN, f'column "{label}" specified more than once')
    text = Deparser(catalog, by_ids=True).query(bound)
    typed = tuple((label, type_) for label, (_, type_) in zip(labels, columns, strict=True))
    return FrozenQuery(text, typed, _dependencies(context, bound))


def _dependencies(context: Context, query: tree.Query) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """What the query names itself: of a view in it the view, and not what that view is made of."""
    tables: dict[int, Table] = {}
    columns: dict[int, set[int]] = {}
    refs: list[tree.ColumnRef] = []
    stack: list[object] = [query]
    while stack:
        found = stack.pop()
        if isinstance(found, tree.TableScan):
            tables[found.relation] = found.table
            columns.setdefault(found.table.id, set())
        elif isinstance(found, tree.NextValue):
            columns.setdefault(found.sequence, set())
        elif isinstance(found, tree.Derived) and found.view is not None:
            columns.setdefault(found.view, set())
        elif isinstance(found, tree.ColumnRef):
            refs.append(found)
        else:
            stack.extend(children(found))
    for ref in refs:
        table = tables.get(ref.relation)
        if table is not None:
            columns[table.id].add(table.columns[ref.ordinal].id)
    return tuple((number, tuple(sorted(ids))) for number, ids in sorted(columns.items()))


# --- thawing ---------------------------------------------------------------------------------------------------------


def thaw_check(text: str, table: Table, catalog: CatalogReader) -> str:
    """A frozen CHECK with today's names, for \\d and dumps."""
    return Deparser(catalog, tables={0: table}, qualified=False).expression(bind_check(text, table, 0, catalog))


def thaw_default(column: Column, catalog: CatalogReader) -> str | None:
    """What a column gets by default, with today's names, as DEFAULT would be frozen for its type of today; None: NULL.

    A constant is one of the column's type, which may have been widened since; serial is nextval of its sequence.
    """
    context = Context(catalog)
    if column.default is not None:
        expr = _default(QueryBinder(context, by_ids=True), parse_expression(column.default))
    elif column.sequence is not None:
        expr = tree.NextValue(column.sequence, types.BIGINT)
    else:
        return None
    found = kept(expr, coercion.assign(context, expr, column.type, column.name))
    return None if isinstance(found, tree.Literal) and found.value is None else Deparser(catalog).expression(found)


def thaw_view(view: View, catalog: CatalogReader) -> str:
    """A view's query with today's names."""
    return Deparser(catalog).query(QueryBinder(Context(catalog)).view_query(view))


def thaw_materialized(view: View, catalog: CatalogReader) -> str:
    """The query that a materialized view was created with, with today's names."""
    assert view.materialized is not None
    binder = QueryBinder(Context(catalog), by_ids=True)
    definition = view.materialized.definition
    return Deparser(catalog).query(unplaced(lambda: binder.query(parsed_query(definition).expression, None)))


def canonical_view(view: View, catalog: CatalogReader) -> str:
    """A view's query for comparison only: equal for queries that differ in nothing but the names of aliases."""
    return Deparser(catalog, numbered=True).query(QueryBinder(Context(catalog)).view_query(view))
