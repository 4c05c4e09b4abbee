"""ALTER TABLE ... ALTER PRIMARY KEY and ADD PRIMARY KEY: other columns are the key, by the path of the next key."""

from __future__ import annotations

from collections.abc import Iterator

from instar import errors
from instar.catalog.descriptors import NextKey, StepKind, Table
from instar.catalog.naming import generated_name, not_null_names
from instar.schemachange import key_elements, rules
from instar.schemachange import wanted as want
from instar.schemachange.creation import key_columns, require_values
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.online.kept_views import needs_key
from instar.schemachange.online.materialized import require_unfollowed
from instar.schemachange.probed_indexes import referring, referring_from
from instar.schemachange.stages import Scheduled
from instar.schemachange.states import first_state


def alter_primary_key(draft: Draft, wanted: want.AlterPrimaryKey) -> None:
    """The rows once more under the new key, with all indexes, then the swap; or at once, where there are no rows."""
    table = draft.find(Table, wanted.table)
    draft.require_settled(table)
    if wanted.adds and table.primary_key_name:
        message = f'multiple primary keys for table "{table.name}" are not allowed'
        raise errors.error(errors.INVALID_TABLE_DEFINITION, message)
    columns = key_columns({column.name: column for column in table.columns}, wanted.columns, "primary key constraint")
    name = _name(draft, table, wanted.name)
    if (columns, name) == (table.primary_key, table.primary_key_name):
        return
    _require_no_lock(table, columns)
    require_unfollowed(draft, table, "change the primary key of")
    _require_no_kept_view(draft, table)
    _require_indexes(draft, table, columns)
    direct = draft.has_no_rows(table)
    if not direct and draft.is_new(table):
        raise errors.unsupported(f'changing the primary key of table "{table.name}", made and filled just now,')
    key = NextKey(
        id=table.next_id,
        name=name,
        columns=columns,
        rowset=draft.ids.new_rowset(table.id),
        indexes=tuple((index.id, draft.ids.new_rowset(table.id)) for index in table.indexes),
        state=first_state(ElementKind.PRIMARY_KEY),
    )
    if direct:
        _require_values(draft, table, columns)
        _swap(draft, draft.table(table.id), key)
        return
    draft.edit(table.id, (StepKind.ELEMENT_STATE, (key.id,)), next_key=key, next_id=key.id + 1)
    element = Element(ElementKind.PRIMARY_KEY, table.id, key.id)
    draft.schedule(Scheduled(element, Phase.ABSENT, Phase.PUBLIC, draft.facts.estimated_rows(table)))
    _require_values(draft, table, columns)


def _require_no_kept_view(draft: Draft, table: Table) -> None:
    """2BP01: what is written to such a view finds rows by the key."""
    for view in draft.view.views():
        if needs_key(view, table):
            raise errors.error(
                errors.DEPENDENT_OBJECTS,
                f"cannot change the primary key of table {table.name} because other objects depend on it",
                detail=f"view {view.name} depends on constraint {table.primary_key_name} on table {table.name}",
            )


def _name(draft: Draft, table: Table, wanted: str | None) -> str:
    """The constraint's name: the one wanted, the one there is, or a generated one."""
    if wanted is None:
        taken = draft.constraint_names(table)
        return table.primary_key_name or generated_name(
            table.name, (), "pkey", lambda name: name in taken or draft.name_taken(name)
        )
    if wanted != table.primary_key_name:
        draft.require_free(wanted)
        draft.require_free_constraint(table, wanted)
    return wanted


def _require_values(draft: Draft, table: Table, columns: tuple[int, ...]) -> None:
    for column in table.columns:
        if column.id in columns and column.not_null_not_valid:
            name = not_null_names(table)[column.id]
            raise errors.error(
                errors.OBJECT_NOT_READY,
                f'cannot create primary key on column "{column.name}"',
                detail=f'The constraint "{name}" on column "{column.name}" of table "{table.name}", marked NOT VALID, '
                "is incompatible with a primary key.",
                hint="You might need to validate it using ALTER TABLE ... VALIDATE CONSTRAINT.",
            )
    for number in columns:
        require_values(draft, table.id, number)


def _require_no_lock(table: Table, columns: tuple[int, ...]) -> None:
    """42P16 if a lock covers a column of the key: a change of key meets every lock of the row."""
    for lock in table.locks:
        for column in table.columns:
            if column.id in columns and column.id in lock.columns:
                raise errors.error(
                    errors.INVALID_TABLE_DEFINITION,
                    f'column "{column.name}" of the primary key is covered by lock "{lock.name}"',
                    detail="A change of key meets every lock of the row.",
                    hint="Have the lock cover other columns first (ALTER TABLE ... ALTER LOCK).",
                )


def _require_indexes(draft: Draft, table: Table, columns: tuple[int, ...]) -> None:
    """Foreign keys go on without the old key: 2BP01 naming those that refer to it and have no unique index for that,
    0A000 naming one of the table's own whose rows could not be found any more."""
    users = list(_users(draft, table, columns))
    if users:
        raise errors.error(
            errors.DEPENDENT_OBJECTS,
            f"cannot change the primary key of table {table.name} because other objects depend on it",
            detail="\n".join(users),
            hint="Make a unique index on the columns of the old key first, or drop the foreign keys.",
        )
    for found in table.foreign_keys:
        if referring_from(found, table, columns) is None:
            names = ", ".join(column.name for column in table.columns if column.id in found.columns)
            refused = errors.unsupported(f'foreign key "{found.name}", which finds its rows by the old primary key,')
            refused.hint = f"Make an index on ({names}) first."
            raise refused


def _users(draft: Draft, table: Table, columns: tuple[int, ...]) -> Iterator[str]:
    for child in (draft.table(number) for number in table.referenced_by):
        for found in child.foreign_keys:
            if found.parent == table.id and referring(found, table, columns) is None:
                on = f"index {table.primary_key_name}"
                yield f"constraint {found.name} on table {child.name} depends on {on}"


def _swap(draft: Draft, table: Table, key: NextKey) -> None:
    """All at once: nobody has rows."""
    step = (StepKind.ELEMENT_STATE, (key.id,))
    after = draft.edit(table.id, step, next_id=key.id + 1, **key_elements.swapped(table, key))
    draft.free(rules.rowsets(table) - rules.rowsets(after))
    for related in key_elements.relatives(table):
        other = draft.table(related)
        foreign_keys = key_elements.foreign_keys_after(other, after, key)
        changes = {} if foreign_keys == other.foreign_keys else {"foreign_keys": foreign_keys}
        draft.edit(related, (StepKind.ELEMENT_STATE, ()), **changes)
