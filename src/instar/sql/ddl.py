"""DDL statements to wanted changes: names checked, expressions frozen, IF [NOT] EXISTS answered. Thin on purpose.

What the statement then means for descriptors, and in which stages, is the schema change planner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard

import msgspec
from sqlglot import exp

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.schemachange import wanted as want
from instar.sql import statements as ast
from instar.sql.alter_table import TableAlteration
from instar.sql.binder import freeze_query
from instar.sql.ddl_context import DdlContext
from instar.sql.functions import Context
from instar.sql.materialized import materialized_view
from instar.sql.materialized_statements import CreateMaterializedView, DropMaterializedView, RenameMaterializedView
from instar.sql.transformation_statements import JoinTables, SplitTable
from instar.sql.transformations import join_tables, split_table
from instar.types import TEXT, Kind, Type


class Translation(msgspec.Struct, frozen=True):
    """What a statement wants; `tag` is its command tag. Nothing is wanted where IF [NOT] EXISTS says so.

    `populate` is to be executed once the table is there (CREATE TABLE AS).
    """

    tag: str
    wanted: tuple[want.Wanted, ...]
    populate: ast.Dml | None = None


def is_schema_change(statement: ast.Statement) -> TypeGuard[ast.Ddl]:
    """Whether the statement is a schema change."""
    return type(statement) in _STATEMENTS


def command(statement: ast.Ddl) -> str:
    """The command tag of a schema change."""
    if isinstance(statement, ast.CreateTable) and statement.as_query is not None:
        return "CREATE TABLE AS"
    return _STATEMENTS[type(statement)][0]


def translate(
    statement: ast.Ddl,
    catalog: CatalogSnapshot,
    functions: Context,
    notice: Callable[[str], None],
    as_of: int | None = None,
) -> Translation:
    """The wanted changes of a DDL statement, on the catalog that the session sees.

    `functions` is what stable functions read: the default of a new column is evaluated once, now. `as_of`: the
    timestamp that the statement means by AS OF SYSTEM TIME.
    """
    context = DdlContext(catalog, functions, notice, as_of)
    wanted = tuple(_STATEMENTS[type(statement)][1](context, statement))
    populate = _insert_of(statement) if isinstance(statement, ast.CreateTable) and wanted else None
    return Translation(command(statement), wanted, populate)


def _insert_of(statement: ast.CreateTable) -> ast.Dml | None:
    """The INSERT that fills the table of a CREATE TABLE AS; None WITH NO DATA."""
    query = statement.as_query
    if query is None or not statement.with_data:
        return None
    target = exp.Table(this=exp.to_identifier(statement.name.name, quoted=True))
    return ast.Dml(exp.Insert(this=target, expression=query.expression.copy()), query.text, query.parameters)


def _create_table(context: DdlContext, statement: ast.CreateTable) -> Iterable[want.Wanted]:
    name = context.name(statement.name)
    if context.exists_already(name, statement.if_not_exists):
        return
    if statement.as_query is not None:
        frozen = freeze_query(statement.as_query, statement.column_names, context.catalog, "CREATE TABLE AS")
        yield want.CreateTable(name, tuple(want.NewColumn(*column) for column in _known(frozen.columns)))
        return
    keys = [found for found in statement.constraints if isinstance(found, ast.PrimaryKey)]
    if len(keys) > 1:
        raise errors.error(errors.INVALID_TABLE_DEFINITION, f'multiple primary keys for table "{name}" are not allowed')
    yield want.CreateTable(
        name,
        tuple(context.column(column, evaluate=False) for column in statement.columns),
        keys[0].columns if keys else None,
        keys[0].name if keys else None,
        tuple(context.constraints(statement.constraints)),
    )


def _known(columns: Iterable[tuple[str, Type]]) -> tuple[tuple[str, Type], ...]:
    """Columns of a query; those of unknown type (NULL, untyped literals) are text."""
    return tuple((name, TEXT if type_.kind is Kind.UNKNOWN else type_) for name, type_ in columns)


def _alter_table(context: DdlContext, statement: ast.AlterTable) -> Iterable[want.Wanted]:
    return TableAlteration(context).wanted(statement)


def _drop_table(context: DdlContext, statement: ast.DropTable) -> Iterable[want.Wanted]:
    names = context.present("table", statement.names, statement.if_exists)
    if names:
        yield want.DropTables(names, statement.cascade)


def _truncate(context: DdlContext, statement: ast.Truncate) -> Iterable[want.Wanted]:
    names = tuple(context.name(name) for name in statement.names)
    yield want.Truncate(names, statement.restart_identity, statement.cascade)


def _create_index(context: DdlContext, statement: ast.CreateIndex) -> Iterable[want.Wanted]:
    if statement.name is None or not context.exists_already(statement.name, statement.if_not_exists):
        columns = tuple((column.name, column.descending) for column in statement.columns)
        yield want.CreateIndex(
            context.name(statement.table), columns, statement.name, statement.unique, statement.yields
        )


def _drop_index(context: DdlContext, statement: ast.DropIndex) -> Iterable[want.Wanted]:
    names = context.present("index", statement.names, statement.if_exists)
    if names:
        yield want.DropIndexes(names, statement.cascade)


def _rename_index(context: DdlContext, statement: ast.RenameIndex) -> Iterable[want.Wanted]:
    for name in context.present("index", [statement.name], statement.if_exists):
        yield want.RenameIndex(name, statement.new)


def _create_sequence(context: DdlContext, statement: ast.CreateSequence) -> Iterable[want.Wanted]:
    name = context.name(statement.name)
    if not context.exists_already(name, statement.if_not_exists):
        yield want.CreateSequence(name, context.options(statement.options))


def _alter_sequence(context: DdlContext, statement: ast.AlterSequence) -> Iterable[want.Wanted]:
    for name in context.present("sequence", [statement.name], statement.if_exists):
        if statement.rename is not None:
            yield want.RenameObject("sequence", name, statement.rename)
        else:
            yield want.AlterSequence(name, context.options(statement.options))


def _drop_sequence(context: DdlContext, statement: ast.DropSequence) -> Iterable[want.Wanted]:
    names = context.present("sequence", statement.names, statement.if_exists)
    if names:
        yield want.DropSequences(names, statement.cascade)


def _create_view(context: DdlContext, statement: ast.CreateView) -> Iterable[want.Wanted]:
    frozen = freeze_query(statement.query, statement.column_names, context.catalog, zone=context.functions.zone)
    if statement.query.parameters:
        raise errors.error(errors.UNDEFINED_PARAMETER, "there are no parameters in a view")
    name, columns = context.name(statement.name), _known(frozen.columns)
    yield want.CreateView(name, frozen.text, columns, frozen.depends_on, statement.or_replace)


def _rename_view(context: DdlContext, statement: ast.RenameView) -> Iterable[want.Wanted]:
    for name in context.present("view", [statement.name], statement.if_exists):
        yield want.RenameObject("view", name, statement.new)


def _drop_view(context: DdlContext, statement: ast.DropView) -> Iterable[want.Wanted]:
    names = context.present("view", statement.names, statement.if_exists)
    if names:
        yield want.DropViews(names, statement.cascade)


def _create_materialized(context: DdlContext, statement: CreateMaterializedView) -> Iterable[want.Wanted]:
    name = context.name(statement.name)
    if not context.exists_already(name, statement.if_not_exists):
        names, zone = statement.column_names, context.functions.zone
        yield materialized_view(name, statement.query, names, context.catalog, zone)


def _rename_materialized(context: DdlContext, statement: RenameMaterializedView) -> Iterable[want.Wanted]:
    for name in context.present("materialized view", [statement.name], statement.if_exists):
        yield want.RenameObject("materialized view", name, statement.new)


def _drop_materialized(context: DdlContext, statement: DropMaterializedView) -> Iterable[want.Wanted]:
    names = context.present("materialized view", statement.names, statement.if_exists)
    if names:
        yield want.DropViews(names, statement.cascade, materialized=True)


def _compact(context: DdlContext, statement: ast.CompactTable) -> Iterable[want.Wanted]:
    yield want.CompactTable(context.name(statement.name))


def _split(context: DdlContext, statement: SplitTable) -> Iterable[want.Wanted]:
    r, s = context.name(statement.r.name), context.name(statement.s.name)
    yield split_table(statement, context.table(statement.name).name, r, s)


def _join(context: DdlContext, statement: JoinTables) -> Iterable[want.Wanted]:
    r, s = context.table(statement.r.name), context.table(statement.s.name)
    yield join_tables(statement, r, s, context.name(statement.into))


def _undrop(context: DdlContext, statement: ast.UndropTable) -> Iterable[want.Wanted]:
    tables = tuple((context.name(name), new) for name, new in statement.tables)
    yield want.UndropTables(tables, context.as_of, statement.cascade)


_STATEMENTS: dict[type, tuple[str, Callable[..., Iterable[want.Wanted]]]] = {
    ast.CreateTable: ("CREATE TABLE", _create_table),
    ast.AlterTable: ("ALTER TABLE", _alter_table),
    ast.DropTable: ("DROP TABLE", _drop_table),
    ast.Truncate: ("TRUNCATE TABLE", _truncate),
    ast.CreateIndex: ("CREATE INDEX", _create_index),
    ast.DropIndex: ("DROP INDEX", _drop_index),
    ast.RenameIndex: ("ALTER INDEX", _rename_index),
    ast.CreateSequence: ("CREATE SEQUENCE", _create_sequence),
    ast.AlterSequence: ("ALTER SEQUENCE", _alter_sequence),
    ast.DropSequence: ("DROP SEQUENCE", _drop_sequence),
    ast.CreateView: ("CREATE VIEW", _create_view),
    ast.RenameView: ("ALTER VIEW", _rename_view),
    ast.DropView: ("DROP VIEW", _drop_view),
    ast.CompactTable: ("COMPACT TABLE", _compact),
    ast.UndropTable: ("UNDROP TABLE", _undrop),
    SplitTable: ("ALTER TABLE", _split),
    JoinTables: ("ALTER TABLE", _join),
    CreateMaterializedView: ("CREATE MATERIALIZED VIEW", _create_materialized),
    RenameMaterializedView: ("ALTER MATERIALIZED VIEW", _rename_materialized),
    DropMaterializedView: ("DROP MATERIALIZED VIEW", _drop_materialized),
}
