"""DDL statements to wanted changes: names checked, expressions frozen, IF [NOT] EXISTS answered. Thin on purpose.

What the statement then means for descriptors, and in which stages, is the schema change planner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeGuard

from sqlglot import exp

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Check, Column, Sequence, Table, View
from instar.schemachange import wanted as want
from instar.schemachange.alteration import widens
from instar.schemachange.draft import constraint_names
from instar.sql import statements as ast
from instar.sql.binder import (
    freeze_check,
    freeze_conversion,
    freeze_default,
    freeze_default_as,
    freeze_query,
    thaw_check,
)
from instar.sql.expressions import Compiler, FrameLayout, Scope
from instar.sql.functions import Context
from instar.sql.materialized import materialized_view
from instar.sql.materialized_statements import CreateMaterializedView, DropMaterializedView, RenameMaterializedView
from instar.sql.parser import parse_expression
from instar.sql.transformation_statements import JoinTables, SplitTable
from instar.sql.transformations import join_tables, split_table
from instar.sql.traversal import is_volatile
from instar.sql.tree import Expr, Literal
from instar.types import TEXT, Kind, Type
from instar.values import to_text


@dataclass(frozen=True)
class Translation:
    """What a statement wants; `tag` is its command tag. Nothing is wanted where IF [NOT] EXISTS says so.

    `populate` is to be executed once the table is there (CREATE TABLE AS).
    """

    tag: str
    wanted: tuple[want.Wanted, ...]
    populate: ast.Dml | None = None


def is_schema_change(statement: ast.Statement) -> TypeGuard[ast.Ddl]:
    """Whether the statement is a schema change."""
    return isinstance(statement, ast.CreateTable | ast.AlterTable) or type(statement) in _STATEMENTS


def command(statement: ast.Ddl) -> str:
    """The command tag of a schema change."""
    if isinstance(statement, ast.CreateTable):
        return "CREATE TABLE" if statement.as_query is None else "CREATE TABLE AS"
    return "ALTER TABLE" if isinstance(statement, ast.AlterTable) else _STATEMENTS[type(statement)][0]


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
    wanted = _Translator(catalog, functions, notice, as_of).translate(statement)
    populate = _insert_of(statement) if isinstance(statement, ast.CreateTable) and wanted else None
    return Translation(command(statement), wanted, populate)


def _insert_of(statement: ast.CreateTable) -> ast.Dml | None:
    """The INSERT that fills the table of a CREATE TABLE AS; None WITH NO DATA."""
    query = statement.as_query
    if query is None or not statement.with_data:
        return None
    target = exp.Table(this=exp.to_identifier(statement.name.name, quoted=True))
    return ast.Dml(exp.Insert(this=target, expression=query.expression.copy()), query.text, query.parameters)


class _Translator:
    def __init__(
        self, catalog: CatalogSnapshot, functions: Context, notice: Callable[[str], None], as_of: int | None
    ) -> None:
        self._catalog = catalog
        self._functions = functions
        self._notice = notice
        self._as_of = as_of
        self._added: dict[str, Type] = {}  # columns that earlier actions of the statement add

    def translate(self, statement: ast.Ddl) -> tuple[want.Wanted, ...]:
        if isinstance(statement, ast.CreateTable):
            return tuple(self._create_table(statement))
        if isinstance(statement, ast.AlterTable):
            return tuple(self._alter_table(statement))
        return tuple(_STATEMENTS[type(statement)][1](self, statement))

    # --- names -------------------------------------------------------------------------------------------------------

    def _name(self, name: ast.Name) -> str:
        """The name in schema public, the only one that users' objects are in."""
        if name.schema in (None, "public"):
            return name.name
        if self._catalog.has_schema(name.schema or ""):
            raise errors.error(
                "42501", f"permission denied: schema {name.schema} holds system views only", position=name.position
            )
        raise errors.error("3F000", f'schema "{name.schema}" does not exist', position=name.position)

    def _present(self, kind: str, names: Iterable[ast.Name], if_exists: bool) -> tuple[str, ...]:
        """The names; with IF EXISTS those that are there, and a notice for each of the others."""
        kept = []
        for name in names:
            found = self._name(name)
            there = self._has_index(found) if kind == "index" else self._lookup(found) is not None
            if there or not if_exists:
                kept.append(found)
            else:
                self._notice(f'{kind} "{found}" does not exist, skipping')
        return tuple(kept)

    def _lookup(self, name: str) -> object | None:
        return self._catalog.lookup("public", name)

    def _has_index(self, name: str) -> bool:
        table = self._catalog.relation(name)
        return isinstance(table, Table) and any(index.name == name for index in table.indexes)

    def _exists_already(self, name: str, if_not_exists: bool) -> bool:
        """Whether a relation of this name makes a CREATE ... IF NOT EXISTS do nothing."""
        if not if_not_exists or (self._lookup(name) is None and not self._has_index(name)):
            return False
        self._notice(f'relation "{name}" already exists, skipping')
        return True

    def _table(self, name: ast.Name) -> Table:
        found = self._lookup(self._name(name))
        if isinstance(found, Table):
            return found
        if isinstance(found, View | Sequence):
            raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name.name}" is not a table', position=name.position)
        raise errors.error(errors.UNDEFINED_TABLE, f'relation "{name.name}" does not exist', position=name.position)

    # --- expressions -------------------------------------------------------------------------------------------------

    def _default(self, node: exp.Expr, column: str, type_: Type, *, evaluate: bool) -> want.Default:
        text, expr = freeze_default(node, column, type_, self._catalog, self._functions.zone)
        volatile = is_volatile(expr)
        value = self._evaluated(expr, type_) if evaluate and not volatile else None
        return want.Default(lambda table: want.Frozen(text, ()), volatile, value)

    def _evaluated(self, expr: Expr, type_: Type) -> str | None:
        """The canonical text of a constant or stable expression's value now."""
        if isinstance(expr, Literal):
            value = expr.value
        else:
            layout = FrameLayout(0)
            function = Compiler(Scope({}), layout).value(expr)
            value = function((), layout.frame((), self._functions, None))
        return None if value is None else to_text(type_, value)

    def _check(self, check: ast.Check) -> want.Check:
        return want.Check(
            lambda table: want.Frozen(*freeze_check(check.expression, table, self._catalog, self._functions.zone)),
            check.name,
            check.column,
            check.not_valid,
            check.yields,
        )

    # --- tables ------------------------------------------------------------------------------------------------------

    def _create_table(self, statement: ast.CreateTable) -> Iterable[want.Wanted]:
        name = self._name(statement.name)
        if self._exists_already(name, statement.if_not_exists):
            return
        if statement.as_query is not None:
            frozen = freeze_query(statement.as_query, statement.column_names, self._catalog, "CREATE TABLE AS")
            yield want.CreateTable(name, tuple(want.NewColumn(*column) for column in _known(frozen.columns)))
            return
        keys = [found for found in statement.constraints if isinstance(found, ast.PrimaryKey)]
        if len(keys) > 1:
            raise errors.error(
                errors.INVALID_TABLE_DEFINITION, f'multiple primary keys for table "{name}" are not allowed'
            )
        yield want.CreateTable(
            name,
            tuple(self._column(column, evaluate=False) for column in statement.columns),
            keys[0].columns if keys else None,
            keys[0].name if keys else None,
            tuple(self._constraints(statement.constraints)),
        )

    def _column(self, column: ast.ColumnDef, *, evaluate: bool) -> want.NewColumn:
        default = None
        if column.default is not None:
            default = self._default(column.default, column.name, column.type, evaluate=evaluate)
        sequence = None
        if column.identity is not None:
            sequence = self._options(column.identity.options)
        elif column.serial:
            sequence = want.SequenceOptions()
        identity = None if column.identity is None else _identity(column.identity)
        return want.NewColumn(
            column.name,
            column.type,
            column.nullable,
            default,
            identity,
            sequence,
        )

    def _constraints(self, constraints: Iterable[ast.Constraint]) -> Iterable[want.Constraint]:
        for constraint in constraints:
            if not isinstance(constraint, ast.PrimaryKey):
                yield self._constraint(constraint)

    def _constraint(self, constraint: ast.Constraint) -> want.Constraint:
        if isinstance(constraint, ast.Unique):
            return want.Unique(constraint.columns, constraint.name, constraint.yields)
        if isinstance(constraint, ast.Check):
            return self._check(constraint)
        if isinstance(constraint, ast.ForeignKey):
            return want.ForeignKey(
                constraint.columns,
                self._name(constraint.parent),
                constraint.parent_columns,
                constraint.name,
                constraint.on_delete,
                constraint.on_update,
                constraint.not_valid,
                constraint.yields,
            )
        raise errors.unsupported("a primary key that comes with a column")

    # --- ALTER TABLE -------------------------------------------------------------------------------------------------

    def _alter_table(self, statement: ast.AlterTable) -> Iterable[want.Wanted]:
        name = self._name(statement.name)
        found = self._lookup(name)
        if found is None and statement.if_exists:
            self._notice(f'relation "{name}" does not exist, skipping')
            return
        actions = statement.actions
        if isinstance(found, Table):
            actions = _drops_first(found, actions)
            _require_types_once(found, actions)
            key = _replaced_key(found, actions)
            if key is not None:
                yield want.AlterPrimaryKey(name, key.columns, key.name)
                actions = tuple(action for action in actions if not _is_of_key(found, action))
            converted, actions = self._conversions(found, actions)
            if converted is not None:
                yield converted
        for action in actions:
            if isinstance(action, ast.RenameTable):
                yield want.RenameObject("table", name, action.new)
            else:
                yield from self._alter_action(self._table(statement.name), action)

    def _alter_action(self, table: Table, action: ast.AlterAction) -> Iterable[want.Wanted]:
        name = table.name
        match action:
            case ast.AddColumn():
                yield from self._add_column(table, action)
            case ast.DropColumn():
                if action.if_exists and not self._has_column(table, action.name):
                    self._notice(f'column "{action.name}" of relation "{name}" does not exist, skipping')
                else:
                    yield want.DropColumn(name, action.name, action.cascade)
            case ast.SetMigration(policy=policy):
                yield want.SetMigration(name, policy)
            case ast.UndropColumn(name=column, new=new, cascade=cascade):
                yield want.UndropColumn(name, column, new, cascade)
            case ast.MoveColumn():
                yield want.MoveColumn(name, action.column, want.Place(action.place.after))
            case ast.RenameColumn() | ast.RenameConstraint():
                yield _renamed(name, action)
            case ast.SetDefault(column=column):
                default = self._default(action.default, column, self._type(table, column), evaluate=False)
                yield want.SetDefault(name, column, default)
            case ast.DropDefault():
                yield want.SetDefault(name, action.column, None)
            case ast.DropNotNull():
                yield want.DropNotNull(name, action.column)
            case ast.SetType():
                yield want.SetType(name, action.column, action.type)
            case ast.AlterPrimaryKey():
                yield want.AlterPrimaryKey(name, action.columns)
            case ast.AddConstraint(constraint=ast.PrimaryKey(columns=columns, name=key)):
                yield want.AlterPrimaryKey(name, columns, key, adds=True)
            case ast.AddConstraint():
                yield want.AddConstraint(name, self._constraint(action.constraint))
            case ast.DropConstraint():
                if action.if_exists and action.name not in constraint_names(table):
                    self._notice(f'constraint "{action.name}" of relation "{name}" does not exist, skipping')
                else:
                    yield want.DropConstraint(name, action.name, action.cascade)
            case ast.DropIdentity():
                yield from self._drop_identity(table, action)
            case ast.AddLock() | ast.AlterLock() | ast.DropLock():
                yield from self._alter_lock(table, action)
            case ast.SetNotNull():
                yield want.SetNotNull(name, action.column, action.yields)
            case ast.ValidateConstraint():
                yield want.ValidateConstraint(name, action.name)
            case ast.AddIdentity(column=column, identity=identity):
                yield want.AddIdentity(name, column, _identity(identity), self._options(identity.options))
            case _:
                raise errors.unsupported("this form of ALTER TABLE")

    def _conversions(
        self, table: Table, actions: tuple[ast.AlterAction, ...]
    ) -> tuple[want.ConvertColumns | None, tuple[ast.AlterAction, ...]]:
        """Those of the actions that convert values, with what they say of these columns' defaults; the others."""
        by_name = {column.name: column for column in table.columns if column.visible}
        found = [
            action
            for action in actions
            if isinstance(action, ast.SetType) and _converts(by_name.get(action.column), action)
        ]
        if not found:
            return None, actions
        left = tuple(action for action in actions if action not in found)
        columns = []
        for action in found:
            column = by_name[action.column]
            defaults = [one for one in left if _is_default_of(column, one)]
            left = tuple(one for one in left if one not in defaults)
            columns.append(self._new_type(table, column, action, defaults))
        return want.ConvertColumns(table.name, tuple(columns), self._check_of), left

    def _new_type(
        self, table: Table, column: Column, action: ast.SetType, defaults: list[ast.AlterAction]
    ) -> want.NewType:
        """`defaults`: what the statement says of the column's default beside; the old one goes before the type changes,
        a new one comes afterwards."""
        frozen = freeze_conversion(action.using, table, column, action.type, self._catalog)
        conversion = want.Conversion(*frozen, self._functions.now, self._functions.zone)
        default: want.Freezer | None
        anew = [one for one in defaults if isinstance(one, ast.SetDefault)]
        if anew:
            default = self._default(anew[-1].default, column.name, action.type, evaluate=False).freeze
        else:
            text = None if defaults else freeze_default_as(column, action.type, self._catalog)
            default = None if text is None else _frozen(text)
        return want.NewType(column.name, action.type, action.using is None, conversion, default)

    def _check_of(self, check: Check, before: Table, after: Table) -> want.Frozen:
        """The check with its expression read anew, as what it says of the columns as they will be."""
        text = thaw_check(check.expression, before, self._catalog)
        return want.Frozen(*freeze_check(parse_expression(text), after, self._catalog))

    def _alter_lock(self, table: Table, action: ast.AddLock | ast.AlterLock | ast.DropLock) -> Iterable[want.Wanted]:
        if isinstance(action, ast.AddLock):
            yield want.AddLock(table.name, action.name, action.columns)
        elif isinstance(action, ast.AlterLock):
            yield want.AlterLock(table.name, action.name, action.columns)
        elif action.if_exists and all(lock.name != action.name for lock in table.locks):
            self._notice(f'lock "{action.name}" of relation "{table.name}" does not exist, skipping')
        else:
            yield want.DropLock(table.name, action.name)

    def _add_column(self, table: Table, action: ast.AddColumn) -> Iterable[want.Wanted]:
        column = action.column
        if action.if_not_exists and self._has_column(table, column.name):
            self._notice(f'column "{column.name}" of relation "{table.name}" already exists, skipping')
            return
        constraints = tuple(self._constraint(found) for found in column.constraints)
        self._added[column.name] = column.type
        place = want.Place(action.place.after) if action.place is not None else None
        yield want.AddColumn(table.name, self._column(column, evaluate=True), constraints, place)

    def _drop_identity(self, table: Table, action: ast.DropIdentity) -> Iterable[want.Wanted]:
        identity = any(found.name == action.column and found.identity is not None for found in table.columns)
        if action.if_exists and self._has_column(table, action.column) and not identity:
            self._notice(f'column "{action.column}" of relation "{table.name}" is not an identity column, skipping')
            return
        yield want.DropIdentity(table.name, action.column)

    @staticmethod
    def _has_column(table: Table, name: str) -> bool:
        return any(column.name == name and not column.hidden for column in table.columns)

    def _type(self, table: Table, name: str) -> Type:
        if name in self._added:
            return self._added[name]
        for column in table.columns:
            if column.name == name and not column.hidden:
                return column.type
        raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" of relation "{table.name}" does not exist')

    # --- the others --------------------------------------------------------------------------------------------------

    def _drop_table(self, statement: ast.DropTable) -> Iterable[want.Wanted]:
        names = self._present("table", statement.names, statement.if_exists)
        if names:
            yield want.DropTables(names, statement.cascade)

    def _truncate(self, statement: ast.Truncate) -> Iterable[want.Wanted]:
        names = tuple(self._name(name) for name in statement.names)
        yield want.Truncate(names, statement.restart_identity, statement.cascade)

    def _create_index(self, statement: ast.CreateIndex) -> Iterable[want.Wanted]:
        if statement.name is None or not self._exists_already(statement.name, statement.if_not_exists):
            columns = tuple((column.name, column.descending) for column in statement.columns)
            yield want.CreateIndex(
                self._name(statement.table), columns, statement.name, statement.unique, statement.yields
            )

    def _drop_index(self, statement: ast.DropIndex) -> Iterable[want.Wanted]:
        names = self._present("index", statement.names, statement.if_exists)
        if names:
            yield want.DropIndexes(names, statement.cascade)

    def _rename_index(self, statement: ast.RenameIndex) -> Iterable[want.Wanted]:
        for name in self._present("index", [statement.name], statement.if_exists):
            yield want.RenameIndex(name, statement.new)

    def _create_sequence(self, statement: ast.CreateSequence) -> Iterable[want.Wanted]:
        name = self._name(statement.name)
        if not self._exists_already(name, statement.if_not_exists):
            yield want.CreateSequence(name, self._options(statement.options))

    def _alter_sequence(self, statement: ast.AlterSequence) -> Iterable[want.Wanted]:
        for name in self._present("sequence", [statement.name], statement.if_exists):
            if statement.rename is not None:
                yield want.RenameObject("sequence", name, statement.rename)
            else:
                yield want.AlterSequence(name, self._options(statement.options))

    def _drop_sequence(self, statement: ast.DropSequence) -> Iterable[want.Wanted]:
        names = self._present("sequence", statement.names, statement.if_exists)
        if names:
            yield want.DropSequences(names, statement.cascade)

    def _create_view(self, statement: ast.CreateView) -> Iterable[want.Wanted]:
        frozen = freeze_query(statement.query, statement.column_names, self._catalog, zone=self._functions.zone)
        if statement.query.parameters:
            raise errors.error(errors.UNDEFINED_PARAMETER, "there are no parameters in a view")
        columns = tuple((name, TEXT if type_.kind is Kind.UNKNOWN else type_) for name, type_ in frozen.columns)
        yield want.CreateView(self._name(statement.name), frozen.text, columns, frozen.depends_on, statement.or_replace)

    def _rename_view(self, statement: ast.RenameView) -> Iterable[want.Wanted]:
        for name in self._present("view", [statement.name], statement.if_exists):
            yield want.RenameObject("view", name, statement.new)

    def _drop_view(self, statement: ast.DropView) -> Iterable[want.Wanted]:
        names = self._present("view", statement.names, statement.if_exists)
        if names:
            yield want.DropViews(names, statement.cascade)

    def _create_materialized(self, statement: CreateMaterializedView) -> Iterable[want.Wanted]:
        name = self._name(statement.name)
        if not self._exists_already(name, statement.if_not_exists):
            names, zone = statement.column_names, self._functions.zone
            yield materialized_view(name, statement.query, names, self._catalog, zone)

    def _rename_materialized(self, statement: RenameMaterializedView) -> Iterable[want.Wanted]:
        for name in self._present("materialized view", [statement.name], statement.if_exists):
            yield want.RenameObject("materialized view", name, statement.new)

    def _drop_materialized(self, statement: DropMaterializedView) -> Iterable[want.Wanted]:
        names = self._present("materialized view", statement.names, statement.if_exists)
        if names:
            yield want.DropViews(names, statement.cascade, materialized=True)

    def _compact(self, statement: ast.CompactTable) -> Iterable[want.Wanted]:
        yield want.CompactTable(self._name(statement.name))

    def _split(self, statement: SplitTable) -> Iterable[want.Wanted]:
        r, s = self._name(statement.r.name), self._name(statement.s.name)
        yield split_table(statement, self._table(statement.name).name, r, s)

    def _join(self, statement: JoinTables) -> Iterable[want.Wanted]:
        r, s = self._table(statement.r.name), self._table(statement.s.name)
        yield join_tables(statement, r, s, self._name(statement.into))

    def _undrop(self, statement: ast.UndropTable) -> Iterable[want.Wanted]:
        tables = tuple((self._name(name), new) for name, new in statement.tables)
        yield want.UndropTables(tables, self._as_of, statement.cascade)

    def _options(self, options: ast.SequenceOptions) -> want.SequenceOptions:
        owner = options.owned_by
        return want.SequenceOptions(
            options.type,
            options.start,
            options.increment,
            options.minimum,
            options.maximum,
            options.cycle,
            options.cache,
            options.restart,
            (self._name(owner[0]), owner[1]) if isinstance(owner, tuple) else owner,
        )


def _renamed(table: str, action: ast.RenameColumn | ast.RenameConstraint) -> want.RenameColumn | want.RenameConstraint:
    if isinstance(action, ast.RenameColumn):
        return want.RenameColumn(table, action.old, action.new)
    return want.RenameConstraint(table, action.old, action.new)


def _converts(column: Column | None, action: ast.SetType) -> bool:
    """Whether a change of the column's type has to convert values."""
    if column is None:
        return False
    return action.using is not None or not (column.type == action.type or widens(column.type, action.type))


def _is_default_of(column: Column, action: ast.AlterAction) -> bool:
    """Whether the action is of the default of a column that has no sequence for that."""
    return (
        isinstance(action, ast.SetDefault | ast.DropDefault)
        and action.column == column.name
        and column.sequence is None
    )


def _frozen(text: str) -> want.Freezer:
    return lambda table: want.Frozen(text, ())


def _identity(identity: ast.Identity) -> want.IdentityKind:
    return "always" if identity.always else "by default"


def _known(columns: Iterable[tuple[str, Type]]) -> tuple[tuple[str, Type], ...]:
    """Columns of a query; those of unknown type (NULL, untyped literals) are text."""
    return tuple((name, TEXT if type_.kind is Kind.UNKNOWN else type_) for name, type_ in columns)


_STATEMENTS: dict[type, tuple[str, Callable[..., Iterable[want.Wanted]]]] = {
    ast.DropTable: ("DROP TABLE", _Translator._drop_table),
    ast.Truncate: ("TRUNCATE TABLE", _Translator._truncate),
    ast.CreateIndex: ("CREATE INDEX", _Translator._create_index),
    ast.DropIndex: ("DROP INDEX", _Translator._drop_index),
    ast.RenameIndex: ("ALTER INDEX", _Translator._rename_index),
    ast.CreateSequence: ("CREATE SEQUENCE", _Translator._create_sequence),
    ast.AlterSequence: ("ALTER SEQUENCE", _Translator._alter_sequence),
    ast.DropSequence: ("DROP SEQUENCE", _Translator._drop_sequence),
    ast.CreateView: ("CREATE VIEW", _Translator._create_view),
    ast.RenameView: ("ALTER VIEW", _Translator._rename_view),
    ast.DropView: ("DROP VIEW", _Translator._drop_view),
    ast.CompactTable: ("COMPACT TABLE", _Translator._compact),
    ast.UndropTable: ("UNDROP TABLE", _Translator._undrop),
    SplitTable: ("ALTER TABLE", _Translator._split),
    JoinTables: ("ALTER TABLE", _Translator._join),
    CreateMaterializedView: ("CREATE MATERIALIZED VIEW", _Translator._create_materialized),
    RenameMaterializedView: ("ALTER MATERIALIZED VIEW", _Translator._rename_materialized),
    DropMaterializedView: ("DROP MATERIALIZED VIEW", _Translator._drop_materialized),
}


_DROPS = (ast.DropColumn, ast.DropConstraint, ast.DropDefault, ast.DropNotNull, ast.DropIdentity)


def _is_of_key(table: Table, action: ast.AlterAction) -> bool:
    """Whether the action takes the table's primary key away or brings one."""
    if isinstance(action, ast.AddConstraint):
        return isinstance(action.constraint, ast.PrimaryKey)
    return isinstance(action, ast.DropConstraint) and action.name == table.primary_key_name and not action.cascade


def _replaced_key(table: Table, actions: tuple[ast.AlterAction, ...]) -> ast.PrimaryKey | None:
    """The key that DROP CONSTRAINT of the primary key and ADD PRIMARY KEY put in its place together."""
    found = [action for action in actions if _is_of_key(table, action)]
    if len(found) != 2 or not isinstance(found[0], ast.DropConstraint) or not isinstance(found[1], ast.AddConstraint):
        return None
    return found[1].constraint if isinstance(found[1].constraint, ast.PrimaryKey) else None


def _drops_first(table: Table, actions: tuple[ast.AlterAction, ...]) -> tuple[ast.AlterAction, ...]:
    """The actions in PostgreSQL's order: what goes is gone for the others. A table keeps some column at any time."""
    dropped = {action.name for action in actions if isinstance(action, ast.DropColumn)}
    if dropped.issuperset(column.name for column in table.columns if not column.hidden):
        return actions
    return tuple(sorted(actions, key=lambda action: not isinstance(action, _DROPS)))


def _require_types_once(table: Table, actions: tuple[ast.AlterAction, ...]) -> None:
    """0A000 where a column is given two types, whether its values have to be converted or not."""
    types = [action.column for action in actions if isinstance(action, ast.SetType)]
    for column in table.columns:
        if not column.hidden and types.count(column.name) > 1:
            raise errors.error(errors.FEATURE_NOT_SUPPORTED, f'cannot alter type of column "{column.name}" twice')
