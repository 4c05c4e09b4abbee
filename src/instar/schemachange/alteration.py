"""What alters in place: renames, defaults, DROP NOT NULL, wider types, views. All direct and forward compatible."""

from __future__ import annotations

import msgspec

from instar import errors, values
from instar.catalog.descriptors import (
    Check,
    Column,
    ForeignKey,
    Index,
    Layout,
    Sequence,
    StepKind,
    Table,
    View,
)
from instar.catalog.naming import constraint_names, not_null_named
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind
from instar.schemachange.generation import require_own_type
from instar.schemachange.next_layout import next_layout
from instar.schemachange.publishing import without_not_null
from instar.schemachange.sequences import create_owned
from instar.types import INTEGERS, Kind, Type

_INTEGER_ORDER = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)


def rename_column(draft: Draft, wanted: want.RenameColumn) -> None:
    """RENAME COLUMN: descriptors name columns by id, so nothing else moves (rule 25)."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.old)
    if any(found.name == wanted.new and not found.hidden for found in table.columns):
        raise errors.error(errors.DUPLICATE_COLUMN, f'column "{wanted.new}" of relation "{table.name}" already exists')
    _alter(draft, table, column, StepKind.RENAME_COLUMN, name=wanted.new)


def rename_object(draft: Draft, wanted: want.RenameObject) -> None:
    """RENAME of a table, view or sequence. ALTER TABLE renames any of them, as in PostgreSQL."""
    found = draft.view.lookup("public", wanted.old)
    if wanted.kind in ("view", "materialized view"):
        view = draft.find(View, wanted.old)
        if wanted.kind not in (view.kind, "view"):
            raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{wanted.old}" is not a {wanted.kind}')
    elif wanted.kind == "sequence":
        draft.find(Sequence, wanted.old)
    elif found is None:
        draft.find(Table, wanted.old)
    draft.require_free(wanted.new)
    if isinstance(found, Table):
        draft.edit(found.id, (StepKind.RENAME_TABLE, ()), name=wanted.new)
    elif isinstance(found, View | Sequence):
        draft.replace(msgspec.structs.replace(found, name=wanted.new))
        if isinstance(found, View) and found.materialized is not None:  # what plans and messages call its rows
            draft.edit(found.materialized.storage, name=wanted.new)


def rename_index(draft: Draft, wanted: want.RenameIndex, kind: StepKind = StepKind.RENAME_INDEX) -> None:
    """ALTER INDEX ... RENAME; the primary key's index bears the constraint's name."""
    found = draft.find_index(wanted.old)
    if found is not None:
        draft.require_free(wanted.new)
        if found[1].constraint:
            draft.require_free_constraint(found[0], wanted.new)
        _rename_listed(draft, found[0], "indexes", wanted.old, wanted.new, kind)
        return
    table = draft.view.relation(wanted.old)
    if isinstance(table, Table) and table.primary_key_name == wanted.old:
        draft.require_free(wanted.new)
        draft.require_free_constraint(table, wanted.new)
        draft.edit(table.id, (kind, ()), primary_key_name=wanted.new)
        return
    if table is not None and table.name == wanted.old:
        raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{wanted.old}" is not an index')
    raise errors.error(errors.UNDEFINED_TABLE, f'relation "{wanted.old}" does not exist')


def rename_constraint(draft: Draft, wanted: want.RenameConstraint) -> None:
    """RENAME CONSTRAINT; 42704 if the table has none of that name, 42710 if the new name is taken."""
    table = draft.find(Table, wanted.table)
    names = constraint_names(table)
    if wanted.old not in names:
        raise errors.error(
            errors.UNDEFINED_OBJECT, f'constraint "{wanted.old}" for table "{table.name}" does not exist'
        )
    if wanted.new in names:
        raise errors.error(
            errors.DUPLICATE_OBJECT, f'constraint "{wanted.new}" for relation "{table.name}" already exists'
        )
    listed: tuple[Index | Check | ForeignKey, ...] = (*table.indexes, *table.checks, *table.foreign_keys)
    if sum(found.name == wanted.old for found in listed) > 1:
        draft.require_settled(table)  # one of them is to take the place of the other
    if wanted.old == table.primary_key_name or any(index.name == wanted.old for index in table.indexes):
        rename_index(draft, want.RenameIndex(wanted.old, wanted.new), StepKind.RENAME_CONSTRAINT)
    elif any(check.name == wanted.old for check in table.checks):
        _rename_listed(draft, table, "checks", wanted.old, wanted.new)
    elif any(key.name == wanted.old for key in table.foreign_keys):
        _rename_listed(draft, table, "foreign_keys", wanted.old, wanted.new)
    else:
        column = not_null_named(table, wanted.old)
        assert column is not None  # the last kind of constraint
        rename_not_null(draft, table, column, wanted.new)


def rename_not_null(draft: Draft, table: Table, column: Column, name: str) -> None:
    """A NOT NULL has this name from now on, whatever table and column are called."""
    renamed = msgspec.structs.replace(column, not_null_name=name)
    columns = tuple(renamed if found.id == column.id else found for found in table.columns)
    draft.edit(table.id, (StepKind.RENAME_CONSTRAINT, ()), columns=columns)


def _rename_listed(
    draft: Draft, table: Table, field: str, old: str, new: str, kind: StepKind = StepKind.RENAME_CONSTRAINT
) -> None:
    if sum(found.name == old for found in getattr(table, field)) > 1:
        draft.require_settled(table)  # as above, by the index's own name
    listed = tuple(
        msgspec.structs.replace(found, name=new) if found.name == old else found for found in getattr(table, field)
    )
    draft.edit(table.id, (kind, ()), **{field: listed})


def set_default(draft: Draft, wanted: want.SetDefault) -> None:
    """SET and DROP DEFAULT: for rows to come; those that are there keep what they have."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    if column.identity is not None:
        raise errors.error(
            errors.SYNTAX_ERROR, f'column "{column.name}" of relation "{table.name}" is an identity column'
        )
    if column.generated:
        message = f'column "{column.name}" of relation "{table.name}" is a generated column'
        instead = "Use ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION instead." if wanted.default is None else None
        raise errors.error(errors.SYNTAX_ERROR, message, hint=instead)
    if wanted.default is None:
        _alter(draft, table, column, StepKind.DROP_DEFAULT, default=None, sequence=None)
    else:
        text = draft.freeze_default(table, wanted.default.freeze)
        _alter(draft, table, column, StepKind.SET_DEFAULT, default=text, sequence=None)


def add_identity(draft: Draft, wanted: want.AddIdentity) -> None:
    """ADD GENERATED ... AS IDENTITY: for rows to come, by a sequence that the column owns from now on. Nothing looks at
    the rows that are there, as in PostgreSQL: the sequence begins with its START, whatever they have."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    what = f'column "{column.name}" of relation "{table.name}"'
    if column.nullable:
        message = f"{what} must be declared NOT NULL before identity can be added"
        raise errors.error(errors.OBJECT_NOT_READY, message)
    if column.identity is not None:
        raise errors.error(errors.OBJECT_NOT_READY, f"{what} is already an identity column")
    if column.default is not None or column.sequence is not None or column.generated:
        raise errors.error(errors.OBJECT_NOT_READY, f"{what} already has a default value")
    if column.type.kind not in INTEGERS:
        raise errors.error(errors.INVALID_PARAMETER, "identity column type must be smallint, integer, or bigint")
    new = want.NewColumn(column.name, column.type, sequence=wanted.sequence)
    sequence = create_owned(draft, table.id, table.name, column.id, new)
    _alter(draft, table, column, StepKind.SET_DEFAULT, identity=wanted.identity, sequence=sequence)


def drop_not_null(draft: Draft, wanted: want.DropNotNull) -> None:
    """DROP NOT NULL; not of a key (42P16) nor of an identity column (42601)."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    if column.id in table.primary_key:
        raise errors.error(errors.INVALID_TABLE_DEFINITION, f'column "{column.name}" is in a primary key')
    if column.identity is not None:
        raise errors.error(
            errors.SYNTAX_ERROR, f'column "{column.name}" of relation "{table.name}" is an identity column'
        )
    if column.nullable and not column.not_null_not_valid:
        # One that is pending would come all the same.
        draft.require_still(table, Element(ElementKind.NOT_NULL, table.id, column.id))
        return
    kind = StepKind.ELEMENT_STATE if column.nullable else StepKind.DROP_NOT_NULL
    columns = tuple(without_not_null(found) if found.id == column.id else found for found in table.columns)
    draft.edit(table.id, (kind, (column.id,)), columns=columns)


def set_type(draft: Draft, wanted: want.SetType) -> None:
    """ALTER COLUMN ... TYPE to a wider type: rows are read as the wider one; no index is rebuilt."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    if column.type == wanted.type:
        return
    if not widens(column.type, wanted.type):
        raise errors.unsupported(
            f'changing column "{column.name}" of table "{table.name}" from {column.type} to {wanted.type}'
        )
    require_own_type(table, column)
    require_no_view(draft, table, column)
    stored = tuple((part[0], wanted.type) if part[0] == column.id else part for part in table.layout.columns)
    missing = None
    if column.missing is not None:
        # Through the value, since the text of a real is not the text of the same double.
        missing = values.to_text(wanted.type, values.from_text(column.type, column.missing))
    _alter(
        draft,
        table,
        column,
        StepKind.WIDEN_TYPE,
        layout=next_layout(table, stored),
        type=wanted.type,
        missing=missing,
    )


def require_no_view(draft: Draft, table: Table, column: Column) -> None:
    """0A000 naming a view that uses the column, whose type it has."""
    for view in draft.view.views():
        if any(used == table.id and column.id in columns for used, columns in view.depends_on):
            raise errors.error(
                errors.FEATURE_NOT_SUPPORTED,
                "cannot alter type of a column used by a view or rule",
                detail=f'{view.kind} {view.name} depends on column "{column.name}"',
            )


def widens(old: Type, new: Type) -> bool:
    """Whether every value of `old` is one of `new`, with the same key encoding."""
    if old.kind in _INTEGER_ORDER and new.kind in _INTEGER_ORDER:
        return _INTEGER_ORDER.index(old.kind) <= _INTEGER_ORDER.index(new.kind)
    if old.kind is Kind.REAL:
        return new.kind is Kind.DOUBLE
    if old.kind in {Kind.VARCHAR, Kind.TEXT} and new.kind in {Kind.VARCHAR, Kind.TEXT}:
        return new.length is None or (old.length is not None and old.length <= new.length)
    if old.kind is Kind.NUMERIC and new.kind is Kind.NUMERIC:
        if new.precision is None:
            return True
        # Another scale would print the same value with other digits.
        return old.precision is not None and old.precision <= new.precision and old.scale == new.scale
    return False


def _alter(
    draft: Draft, table: Table, column: Column, kind: StepKind, *, layout: Layout | None = None, **fields: object
) -> None:
    columns = tuple(
        msgspec.structs.replace(found, **fields) if found.id == column.id else found for found in table.columns
    )
    if layout is None:
        draft.edit(table.id, (kind, (column.id,)), columns=columns)
    else:
        draft.edit(table.id, (kind, (column.id,)), columns=columns, layout=layout)


def set_migration(draft: Draft, wanted: want.SetMigration) -> None:
    """SET (migration = ...): when rows in older layouts come into the newest one."""
    table = draft.find(Table, wanted.table)
    if table.migration != wanted.policy:
        draft.edit(table.id, (StepKind.SET_MIGRATION, ()), migration=wanted.policy)


def set_compaction(draft: Draft, wanted: want.SetCompaction) -> None:
    """SET (compaction_share = ...): from which share of rows in older layouts on the worker compacts the table."""
    table = draft.find(Table, wanted.table)
    if table.compaction_share != wanted.share:
        draft.edit(table.id, (StepKind.SET_MIGRATION, ()), compaction_share=wanted.share)


def create_view(draft: Draft, wanted: want.CreateView) -> None:
    """CREATE [OR REPLACE] VIEW; what it reads gets a version, so that a DROP beside it meets it (2BP01 or 40001)."""
    found = draft.view.lookup("public", wanted.name)
    if found is None or not wanted.replace:
        draft.require_free(wanted.name)
        _touch_all(draft, wanted)
        draft.create(
            View(
                id=draft.ids.new_id(),
                name=wanted.name,
                version=1,
                query=wanted.query,
                columns=wanted.columns,
                depends_on=wanted.depends_on,
            )
        )
        return
    old = draft.find(View, wanted.name)
    if old.materialized is not None:
        raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{old.name}" is not a view')
    if wanted.columns[: len(old.columns)] != old.columns:
        raise errors.error(
            errors.INVALID_TABLE_DEFINITION,
            "cannot change name, number or data type of existing view columns",
            hint="Drop the view and create it again.",
        )
    if old.id in _reached(draft, wanted):
        raise errors.error(errors.INVALID_TABLE_DEFINITION, f'view "{old.name}" cannot refer to itself')
    _touch_all(draft, wanted)
    draft.replace(
        msgspec.structs.replace(
            old, query=wanted.query, columns=wanted.columns, depends_on=wanted.depends_on, kept=None, source=0
        )
    )


def _reached(draft: Draft, wanted: want.CreateView) -> set[int]:
    """The ids of all that the view reads, through other views too."""
    reached: set[int] = set()
    waiting = [used for used, _ in wanted.depends_on]
    while waiting:
        used = waiting.pop()
        found = None if used in reached else draft.view.by_id(used)
        reached.add(used)
        if isinstance(found, View):
            waiting += [below for below, _ in found.depends_on]
    return reached


def _touch_all(draft: Draft, wanted: want.CreateView) -> None:
    for used, _ in wanted.depends_on:
        needed = draft.view.by_id(used)
        if needed is not None:
            draft.touch(needed)
