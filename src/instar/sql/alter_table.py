"""ALTER TABLE to wanted changes: its actions in their order, and those that belong together as one."""

from __future__ import annotations

from collections.abc import Iterable

from instar import errors
from instar.catalog.descriptors import Check, Column, Table
from instar.catalog.naming import constraint_names, not_null_named
from instar.schemachange import wanted as want
from instar.schemachange.alteration import widens
from instar.schemachange.generation import not_generated
from instar.sql import statements as ast
from instar.sql.binder import freeze_check, freeze_conversion, freeze_default_as, thaw_check
from instar.sql.ddl_context import DdlContext, identity_kind
from instar.sql.generated_statement import DropExpression
from instar.sql.not_null_statement import NotNull
from instar.sql.parser import parse_expression
from instar.types import Type


class TableAlteration:
    """Translates one ALTER TABLE."""

    def __init__(self, context: DdlContext) -> None:
        self._context = context
        # What earlier actions of the statement add and drop.
        self._added: dict[str, Type] = {}
        self._dropped: set[str] = set()
        self._dropped_constraints: set[str] = set()

    def wanted(self, statement: ast.AlterTable) -> Iterable[want.Wanted]:
        """What the statement's actions want, in PostgreSQL's order."""
        name = self._context.name(statement.name)
        found = self._context.lookup(name)
        if found is None and statement.if_exists:
            self._context.notice(f'relation "{name}" does not exist, skipping')
            return
        actions = statement.actions
        if isinstance(found, Table):
            actions = _in_order(found, actions)
            _require_there(found, actions)
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
                yield from self._alter_action(self._context.table(statement.name), action)

    def _alter_action(self, table: Table, action: ast.AlterAction) -> Iterable[want.Wanted]:
        name = table.name
        match action:
            case ast.AddColumn():
                yield from self._add_column(table, action)
            case ast.DropColumn():
                yield from self._drop_column(table, action)
            case ast.SetMigration(policy=policy):
                yield want.SetMigration(name, policy)
            case ast.SetCompaction(share=share):
                yield want.SetCompaction(name, share)
            case ast.UndropColumn(name=column, new=new, cascade=cascade):
                yield want.UndropColumn(name, column, new, cascade)
            case ast.MoveColumn():
                yield want.MoveColumn(name, action.column, want.Place(action.place.after))
            case ast.RenameColumn() | ast.RenameConstraint():
                yield _renamed(name, action)
            case ast.SetDefault(column=column):
                default = self._context.default(action.default, column, self._type(table, column), evaluate=False)
                yield want.SetDefault(name, column, default)
            case ast.DropDefault():
                yield want.SetDefault(name, action.column, None)
            case ast.DropNotNull():
                yield want.DropNotNull(name, action.column)
            case ast.SetType():
                yield want.SetType(name, action.column, action.type)
            case ast.AlterPrimaryKey():
                yield want.AlterPrimaryKey(name, action.columns)
            case ast.AddConstraint():
                yield self._add_constraint(name, action)
            case ast.DropConstraint():
                yield from self._drop_constraint(table, action)
            case ast.DropIdentity():
                yield from self._drop_identity(table, action)
            case DropExpression():
                yield from self._drop_expression(table, action)
            case ast.AddLock() | ast.AlterLock() | ast.DropLock():
                yield from self._alter_lock(table, action)
            case ast.SetNotNull():
                yield want.SetNotNull(name, action.column, action.yields)
            case ast.ValidateConstraint():
                yield want.ValidateConstraint(name, action.name)
            case ast.AddIdentity(column=column, identity=identity):
                yield want.AddIdentity(name, column, identity_kind(identity), self._context.options(identity.options))
            case _:
                raise errors.unsupported("this form of ALTER TABLE")

    def _add_constraint(self, table: str, action: ast.AddConstraint) -> want.Wanted:
        match action.constraint:
            case ast.PrimaryKey(columns=columns, name=key):
                return want.AlterPrimaryKey(table, columns, key, adds=True)
            case NotNull() as added:
                return want.SetNotNull(table, added.column, added.yields, added.name, added.not_valid, adds=True)
        return want.AddConstraint(table, self._context.constraint(action.constraint))

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
        frozen = freeze_conversion(action.using, table, column, action.type, self._context.catalog)
        conversion = want.Conversion(*frozen, self._context.functions.now, self._context.functions.zone)
        default: want.Freezer | None
        anew = [one for one in defaults if isinstance(one, ast.SetDefault)]
        if anew:
            default = self._context.default(anew[-1].default, column.name, action.type, evaluate=False).freeze
        else:
            text = None if defaults else freeze_default_as(column, action.type, self._context.catalog)
            default = None if text is None else _frozen(text)
        return want.NewType(column.name, action.type, action.using is None, conversion, default)

    def _check_of(self, check: Check, before: Table, after: Table) -> want.Frozen:
        """The check with its expression read anew, as what it says of the columns as they will be."""
        text = thaw_check(check.expression, before, self._context.catalog)
        return want.Frozen(*freeze_check(parse_expression(text), after, self._context.catalog))

    def _alter_lock(self, table: Table, action: ast.AddLock | ast.AlterLock | ast.DropLock) -> Iterable[want.Wanted]:
        if isinstance(action, ast.AddLock):
            yield want.AddLock(table.name, action.name, action.columns)
        elif isinstance(action, ast.AlterLock):
            yield want.AlterLock(table.name, action.name, action.columns)
        elif action.if_exists and all(lock.name != action.name for lock in table.locks):
            self._context.notice(f'lock "{action.name}" of relation "{table.name}" does not exist, skipping')
        else:
            yield want.DropLock(table.name, action.name)

    def _add_column(self, table: Table, action: ast.AddColumn) -> Iterable[want.Wanted]:
        column = action.column
        if action.if_not_exists and self._has_column(table, column.name):
            self._context.notice(f'column "{column.name}" of relation "{table.name}" already exists, skipping')
            return
        constraints = tuple(self._context.constraint(found) for found in column.constraints)
        self._added[column.name] = column.type
        place = want.Place(action.place.after) if action.place is not None else None
        yield want.AddColumn(table.name, self._context.column(column, evaluate=True), constraints, place)

    def _drop_column(self, table: Table, action: ast.DropColumn) -> Iterable[want.Wanted]:
        if action.if_exists and not self._has_column(table, action.name):
            self._context.notice(f'column "{action.name}" of relation "{table.name}" does not exist, skipping')
            return
        self._dropped.add(action.name)
        self._added.pop(action.name, None)
        yield want.DropColumn(table.name, action.name, action.cascade)

    def _drop_constraint(self, table: Table, action: ast.DropConstraint) -> Iterable[want.Wanted]:
        column = not_null_named(table, action.name)
        if column is not None:
            yield want.DropNotNull(table.name, column.name)
        elif action.if_exists and (
            action.name in self._dropped_constraints or action.name not in constraint_names(table)
        ):
            self._context.notice(f'constraint "{action.name}" of relation "{table.name}" does not exist, skipping')
        else:
            self._dropped_constraints.add(action.name)
            yield want.DropConstraint(table.name, action.name, action.cascade)

    def _drop_identity(self, table: Table, action: ast.DropIdentity) -> Iterable[want.Wanted]:
        identity = any(found.name == action.column and found.identity is not None for found in table.columns)
        if action.if_exists and self._has_column(table, action.column) and not identity:
            self._context.notice(
                f'column "{action.column}" of relation "{table.name}" is not an identity column, skipping'
            )
            return
        yield want.DropIdentity(table.name, action.column)

    def _drop_expression(self, table: Table, action: DropExpression) -> Iterable[want.Wanted]:
        plain = any(found.name == action.column and not found.generated for found in table.columns if found.visible)
        if action.if_exists and plain:
            self._context.notice(f"{not_generated(table.name, action.column)}, skipping")
            return
        yield want.DropExpression(table.name, action.column)

    def _has_column(self, table: Table, name: str) -> bool:
        """Whether the table has a column of this name after the actions so far."""
        stands = name not in self._dropped and any(found.name == name for found in table.columns if not found.hidden)
        return stands or name in self._added

    def _type(self, table: Table, name: str) -> Type:
        if name in self._added:
            return self._added[name]
        for column in table.columns:
            if column.name == name and not column.hidden:
                return column.type
        raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" of relation "{table.name}" does not exist')


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


_DROPS_OF_COLUMNS = (ast.DropDefault, ast.DropNotNull, ast.DropIdentity, DropExpression)
_DROPS = (ast.DropColumn, ast.DropConstraint, *_DROPS_OF_COLUMNS)
_CONSTRAINTS = (ast.AddConstraint, ast.ValidateConstraint)
# What is done to columns before any is added.
_BEFORE_ADDED = (*_DROPS_OF_COLUMNS, ast.SetType)


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


def _in_order(table: Table, actions: tuple[ast.AlterAction, ...]) -> tuple[ast.AlterAction, ...]:
    """The actions in PostgreSQL's order: what goes is gone for the others, constraints may be of columns that are added
    behind them. A table keeps some column at any time."""
    dropped = {action.name for action in actions if isinstance(action, ast.DropColumn)}
    first = () if dropped.issuperset(column.name for column in table.columns if not column.hidden) else _DROPS

    def place(action: ast.AlterAction) -> int:
        return 0 if isinstance(action, first) else 2 if isinstance(action, _CONSTRAINTS) else 1

    return tuple(sorted(actions, key=place))


def _require_there(table: Table, actions: tuple[ast.AlterAction, ...]) -> None:
    """42703 where a column that the statement adds is altered by what PostgreSQL does before it adds any."""
    there = {column.name for column in table.columns if not column.hidden}
    added = {action.column.name for action in actions if isinstance(action, ast.AddColumn)}
    for action in actions:
        if isinstance(action, ast.DropColumn):
            there.discard(action.name)
        elif isinstance(action, _BEFORE_ADDED) and action.column in added - there:
            raise errors.error(
                errors.UNDEFINED_COLUMN, f'column "{action.column}" of relation "{table.name}" does not exist'
            )


def _require_types_once(table: Table, actions: tuple[ast.AlterAction, ...]) -> None:
    """0A000 where a column is given two types, whether its values have to be converted or not."""
    types = [action.column for action in actions if isinstance(action, ast.SetType)]
    for column in table.columns:
        if not column.hidden and types.count(column.name) > 1:
            raise errors.error(errors.FEATURE_NOT_SUPPORTED, f'cannot alter type of column "{column.name}" twice')
