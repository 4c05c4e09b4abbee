"""What takes away: DROP of everything, and TRUNCATE; with PostgreSQL's dependencies.

Without leases every removal collapses into one step, and safely so: a snapshot and its schema come from one header, so
no reader has a schema newer or older than its snapshot; f = c keeps out every writer that still maintains the element;
and a rowset is freed only below the watermark, so that old snapshots go on reading it (rule 22). Under leases elements
leave by their paths (leaving.py).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.descriptors import Column, ForeignKey, Index, Object, Sequence, State, StepKind, Table, View
from instar.schemachange import rules
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft, busy
from instar.schemachange.elements import Element, ElementKind
from instar.schemachange.foreign_keys import bump_relatives, spare_index, unlink_parent
from instar.schemachange.generation import reading
from instar.schemachange.key_elements import without_column
from instar.schemachange.leaving import leave, leave_column, leave_foreign_keys, leave_tables, takes_path
from instar.schemachange.online.kept_views import needs_index
from instar.schemachange.online.materialized import drop_materialized, require_unfollowed
from instar.schemachange.probed_indexes import without_keys


class Dependent(NamedTuple):
    """Something that must go too: what it is, and what it depends on, in words."""

    subject: str
    on: str
    view: View | None = None
    key: tuple[int, int] | None = None  # (table, foreign key)
    default: tuple[int, int] | None = None  # (table, column)
    column: tuple[str, str] | None = None  # a generated one, by the names of the table and its own


def _resolve(draft: Draft, what: str, dependents: list[Dependent], *, cascade: bool) -> None:
    """Drop what depends on `what`, or refuse to (2BP01)."""
    dependents = list({(found.subject, found.on): found for found in dependents}.values())
    views = set[int]()
    if not dependents:
        return
    if not cascade:
        raise errors.error(
            errors.DEPENDENT_OBJECTS,
            f"cannot drop {what} because other objects depend on it",
            detail="\n".join(f"{found.subject} depends on {found.on}" for found in dependents),
            hint="Use DROP ... CASCADE to drop the dependent objects too.",
        )
    if len(dependents) == 1:
        draft.notices.append(f"drop cascades to {dependents[0].subject}")
    else:
        draft.notices.append(f"drop cascades to {len(dependents)} other objects")
    for found in dependents:
        if found.view is not None and found.view.id not in views:
            views.add(found.view.id)
            _drop_view(draft, found.view)
        if found.key is not None:
            remove_foreign_keys(draft, found.key[0], {found.key[1]})
        if found.default is not None:
            _drop_default(draft, *found.default)
        if found.column is not None:
            drop_column(draft, want.DropColumn(*found.column, cascade=True))


# --- who depends -----------------------------------------------------------------------------------------------------


def _describe(found: Object) -> str:
    if isinstance(found, View):
        return f"{found.kind} {found.name}"
    return f"{'table' if isinstance(found, Table) else 'sequence'} {found.name}"


def _views_on(draft: Draft, objects: set[int], column: tuple[Table, Column] | None = None) -> list[Dependent]:
    """The views that use any of `objects`, and the views on those; for a column: the views that use it."""
    found: list[Dependent] = []
    reached = set(objects)
    grown = True
    while grown:
        grown = False
        for view in draft.view.views():
            if view.id in reached:
                continue
            for used, columns in view.depends_on:
                if column is not None and used == column[0].id and column[1].id not in columns:
                    continue
                if used in reached:
                    target = draft.view.by_id(used)
                    on = _describe(target) if target is not None else f"object {used}"
                    if column is not None and used == column[0].id:
                        on = f"column {column[1].name} of {on}"
                    found.append(Dependent(f"{view.kind} {view.name}", on, view=view))
                    reached.add(view.id)
                    grown = True
                    break
    return found


def _key_dependent(child: Table, key: ForeignKey, on: str) -> Dependent:
    return Dependent(f"constraint {key.name} on table {child.name}", on, key=(child.id, key.id))


def _keys_to(draft: Draft, parent: Table, outside: set[int], on: str, index: Index | None = None) -> list[Dependent]:
    """Foreign keys of tables not in `outside` that refer to `parent` (through `index`, if one is given)."""
    return [
        _key_dependent(child, key, on)
        for child_id in parent.referenced_by
        if child_id not in outside
        for child in [draft.table(child_id)]
        for key in child.foreign_keys
        if key.parent == parent.id and (index is None or key.parent_index == index.id)
    ]


def _index_users(draft: Draft, table: Table, index: Index, leaving: set[int]) -> list[Dependent]:
    """Foreign keys (but `leaving`) that refer to the index, and views that need it. What finds children by it does not
    depend on it: see `spare_index`."""
    on = f"index {index.name}"
    gone_anyway = {(table.id, key) for key in leaving}
    others = [user for user in _keys_to(draft, table, set(), on, index) if user.key not in gone_anyway]
    views = [view for view in draft.view.views() if needs_index(view, table, index)]
    users = [Dependent(f"view {view.name}", on, view=view) for view in views]
    return [*others, *users, *_views_on(draft, {view.id for view in views})]


def _sequence_users(draft: Draft, sequence: Sequence, outside: set[int]) -> list[Dependent]:
    """Columns whose default takes values of the sequence."""
    return [
        Dependent(
            f"default value for column {column.name} of table {table.name}",
            f"sequence {sequence.name}",
            default=(table.id, column.id),
        )
        for table, column in draft.view.takers(sequence.id)
        if table.id not in outside
    ]


def _owned_sequences(draft: Draft, table: int, column: int | None = None) -> list[Sequence]:
    return [
        found
        for found in draft.view.sequences()
        if found.owned_by is not None and found.owned_by[0] == table and (column is None or found.owned_by[1] == column)
    ]


# --- elements --------------------------------------------------------------------------------------------------------


def remove_foreign_keys(draft: Draft, table_id: int, gone: set[int]) -> None:
    """Take foreign keys off a table, with the indexes they own; the referenced tables' writers are told. 55006 while a
    job moves one of them."""
    table = draft.table(table_id)
    draft.require_still(table, *(Element(ElementKind.FOREIGN_KEY, table_id, key) for key in gone))
    if takes_path(draft, table):
        leave_foreign_keys(draft, table, gone)
        return
    parents = {key.parent for key in table.foreign_keys if key.id in gone}
    fields = without_keys(table, gone)
    left = draft.edit(table_id, (StepKind.ELEMENT_STATE, tuple(sorted(gone))), **fields)
    draft.free(rules.rowsets(table) - rules.rowsets(left))
    for parent in sorted(parents):
        unlink_parent(draft, parent, left)


def remove_index(draft: Draft, table_id: int, index: Index) -> None:
    """Take an index off a table: by its path, or all of it at once. 55006 while a job moves it."""
    if index.state is not State.PUBLIC:
        element = Element(ElementKind.INDEX, table_id, index.id)
        raise busy(draft.table(table_id), f'index "{index.name}" is being changed', element)
    table = draft.table(table_id)
    if takes_path(draft, table):
        leave(draft, table, ElementKind.INDEX, [index.id])
        return
    draft.edit(
        table_id,
        (StepKind.ELEMENT_STATE, (index.id,)),
        indexes=tuple(found for found in table.indexes if found.id != index.id),
    )
    draft.free([index.rowset])


def _remove_unless_spared(draft: Draft, table_id: int, index: Index) -> None:
    if not spare_index(draft, table_id, index, keeps=not takes_path(draft, draft.table(table_id))):
        remove_index(draft, table_id, index)


def _remove_checks(draft: Draft, table_id: int, gone: set[int]) -> None:
    table = draft.table(table_id)
    draft.require_still(table, *(Element(ElementKind.CHECK, table_id, check) for check in gone))
    if takes_path(draft, table):
        leave(draft, table, ElementKind.CHECK, sorted(gone))
        return
    kept = tuple(check for check in table.checks if check.id not in gone)
    draft.edit(table_id, (StepKind.ELEMENT_STATE, tuple(sorted(gone))), checks=kept)


def _drop_default(draft: Draft, table_id: int, column_id: int) -> None:
    table = draft.table(table_id)
    if any(column.id == column_id and column.state is not State.PUBLIC for column in table.columns):
        draft.require_settled(table)  # its job takes values of the default
    columns = tuple(
        msgspec.structs.replace(column, default=None, sequence=None, identity=None)
        if column.id == column_id
        else column
        for column in table.columns
    )
    draft.edit(table_id, (StepKind.DROP_DEFAULT, (column_id,)), columns=columns)


# --- statements ------------------------------------------------------------------------------------------------------


def drop_tables(draft: Draft, wanted: want.DropTables) -> None:
    """DROP TABLE: one direct step, incompatible for whoever wrote."""
    targets = [draft.find(Table, name) for name in dict.fromkeys(wanted.names)]
    ids = {table.id for table in targets}
    dependents = _views_on(draft, ids)
    for table in targets:
        draft.require_settled(table)
        dependents += _keys_to(draft, table, ids, f"table {table.name}")
        for sequence in _owned_sequences(draft, table.id):
            dependents += _sequence_users(draft, sequence, ids)
    what = f"table {targets[0].name}" if len(targets) == 1 else "desired object(s)"
    if wanted.cascade and any(found.key and takes_path(draft, draft.table(found.key[0])) for found in dependents):
        # The keys leave in stages, through which the tables have to stay, and what else stands on them.
        if any(found.view is not None and found.view.materialized is not None for found in dependents):
            raise errors.unsupported("dropping materialized views together with foreign keys under a schema lease")
        views = [found.view.id for found in dependents if found.view is not None]
        _resolve(draft, what, [found for found in dependents if found.view is None], cascade=True)
        draft.notices += [f"drop cascades to {found.subject}" for found in dependents if found.view is not None]
        leave_tables(draft, sorted(ids), views)
        return
    _resolve(draft, what, dependents, cascade=wanted.cascade)
    for table_id in sorted(ids):
        table = draft.table(table_id)
        for sequence in _owned_sequences(draft, table_id):
            draft.drop(sequence)
        draft.drop(table)
        for parent in sorted({key.parent for key in table.foreign_keys} - ids):
            unlink_parent(draft, parent, msgspec.structs.replace(table, foreign_keys=()))


def drop_column(draft: Draft, wanted: want.DropColumn) -> None:
    """DROP COLUMN, with the indexes and constraints that use it (rule 25: in the stage in which they leave)."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    _require_droppable(table, column)
    own = (ElementKind.COLUMN, ElementKind.NOT_NULL)
    draft.require_still(table, *(Element(kind, table.id, column.id) for kind in own))
    indexes = [index for index in table.indexes if any(part.column == column.id for part in index.columns)]
    checks = {check.id for check in table.checks if column.id in check.columns}
    keys = {key.id for key in table.foreign_keys if column.id in key.columns}
    dependents = _views_on(draft, {table.id}, (table, column))
    for index in indexes:
        dependents += _index_users(draft, table, index, keys)
    sequences = _owned_sequences(draft, table.id, column.id)
    for sequence in sequences:
        users = _sequence_users(draft, sequence, set())
        dependents += [user for user in users if user.default != (table.id, column.id)]
    dependents += _generated_of(draft, table, column)
    _resolve(draft, f"column {column.name} of table {table.name}", dependents, cascade=wanted.cascade)
    left_with = draft.table(table.id)
    _require_droppable(left_with, column)
    path = takes_path(draft, table) and bool(indexes or checks or keys or _is_read(left_with, column))
    checks &= {check.id for check in left_with.checks} - draft.leaving(table)
    keys -= draft.leaving(table)
    if checks:
        _remove_checks(draft, table.id, checks)
    keys &= {key.id for key in draft.table(table.id).foreign_keys}
    if keys:
        remove_foreign_keys(draft, table.id, keys)
    left = {index.id for index in draft.table(table.id).indexes} - draft.leaving(table)
    for index in indexes:
        if index.id in left:
            spare_index(draft, table.id, index, keeps=False)
            remove_index(draft, table.id, index)
    if path:
        leave_column(draft, table, column.id)
        return
    for sequence in sequences:
        draft.drop(sequence)
    fields = without_column(draft.table(table.id), column.id)
    draft.edit(table.id, (StepKind.DROP_COLUMN, (column.id,)), **fields)


def leaves_by_path(draft: Draft, table: Table, wanted: want.DropColumn | want.DropConstraint) -> bool:
    """Whether what the action drops leaves the table stage by stage, with or before the column, if it is one."""
    if not takes_path(draft, table):
        return False
    if isinstance(wanted, want.DropConstraint):
        return True
    column = next((found for found in table.columns if found.name == wanted.column and not found.hidden), None)
    return column is not None and (
        any(part.column == column.id for index in table.indexes for part in index.columns)
        or any(column.id in check.columns for check in table.checks)
        or any(column.id in key.columns for key in table.foreign_keys)
        or _is_read(table, column)
    )


def _is_read(table: Table, column: Column) -> bool:
    """Whether generated columns are made of it."""
    return any(True for _ in reading(table, column.id))


def _generated_of(draft: Draft, table: Table, column: Column) -> list[Dependent]:
    """The generated columns that are made of a column, as far as the statement has not sent them on their way."""
    going = {move.element for move in draft.at_the_end}
    return [
        Dependent(
            f"column {found.name} of table {table.name}",
            f"column {column.name} of table {table.name}",
            column=(table.name, found.name),
        )
        for found in reading(table, column.id)
        if Element(ElementKind.COLUMN, table.id, found.id) not in going
    ]


def _require_droppable(table: Table, column: Column) -> None:
    if column.id in table.primary_key:
        raise errors.unsupported(f'dropping column "{column.name}" of the primary key of table "{table.name}"')
    if sum(not found.hidden for found in table.columns) == 1:
        raise errors.unsupported(f'dropping the only column of table "{table.name}"')


def drop_indexes(draft: Draft, wanted: want.DropIndexes) -> None:
    """DROP INDEX. An index that a constraint made goes with its constraint only (2BP01)."""
    for name in wanted.names:
        found = draft.find_index(name)
        if found is None:
            _refuse_no_index(draft, name)
            continue
        table, index = found
        if index.constraint:
            raise _required_by_constraint(name, index.name, table)
        dependents = _index_users(draft, table, index, set())
        owner = next((key for key in table.foreign_keys if key.child_index == index.id and key.owns_index), None)
        if owner is not None:
            raise _required_by_constraint(name, owner.name, table)
        _resolve(draft, f"index {name}", dependents, cascade=wanted.cascade)
        _remove_unless_spared(draft, table.id, index)


def _refuse_no_index(draft: Draft, name: str) -> None:
    found = draft.view.relation(name)
    if isinstance(found, Table) and found.primary_key_name == name:
        raise _required_by_constraint(name, name, found)
    if found is not None and found.name == name:
        raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not an index')
    raise errors.error(errors.UNDEFINED_OBJECT, f'index "{name}" does not exist')


def _required_by_constraint(index: str, constraint: str, table: Table) -> errors.Error:
    return errors.error(
        errors.DEPENDENT_OBJECTS,
        f"cannot drop index {index} because constraint {constraint} on table {table.name} requires it",
        hint=f"You can drop constraint {constraint} on table {table.name} instead.",
    )


def drop_constraint(draft: Draft, wanted: want.DropConstraint) -> None:
    """DROP CONSTRAINT, collapsed; a unique one takes its index along."""
    table = draft.find(Table, wanted.table)
    for index in table.indexes:
        if index.constraint and index.name == wanted.name and draft.sees(ElementKind.INDEX, table, index.id):
            dependents = _index_users(draft, table, index, set())
            what = f"constraint {index.name} on table {table.name}"
            _resolve(draft, what, dependents, cascade=wanted.cascade)
            _remove_unless_spared(draft, table.id, index)
            return
    kinds = ((ElementKind.CHECK, table.checks), (ElementKind.FOREIGN_KEY, table.foreign_keys))
    checks, keys = (
        {found.id for found in listed if found.name == wanted.name and draft.sees(kind, table, found.id)}
        for kind, listed in kinds
    )
    if checks:
        _remove_checks(draft, table.id, checks)
    elif keys:
        remove_foreign_keys(draft, table.id, keys)
    elif table.primary_key_name == wanted.name:
        raise errors.unsupported(f'dropping the primary key of table "{table.name}"')
    else:
        raise no_constraint(table, wanted.name)


def no_constraint(table: Table, name: str) -> errors.Error:
    """The error that the table has no constraint of that name."""
    return errors.error(errors.UNDEFINED_OBJECT, f'constraint "{name}" of relation "{table.name}" does not exist')


def truncate(draft: Draft, wanted: want.Truncate) -> None:
    """TRUNCATE: new rowsets in the place of the old ones (rule 24); incompatible for whoever wrote."""
    targets = {found.id: found for found in (draft.find(Table, name) for name in wanted.names)}
    pending = list(targets.values())
    while pending:
        table = pending.pop()
        for child_id in table.referenced_by:
            if child_id in targets:
                continue
            child = draft.table(child_id)
            if not wanted.cascade:
                raise errors.error(
                    errors.FEATURE_NOT_SUPPORTED,
                    "cannot truncate a table referenced in a foreign key constraint",
                    detail=f'Table "{child.name}" references "{table.name}".',
                    hint=f'Truncate table "{child.name}" at the same time, or use TRUNCATE ... CASCADE.',
                )
            draft.notices.append(f'truncate cascades to table "{child.name}"')
            targets[child_id] = child
            pending.append(child)
    for table in targets.values():
        _truncate_one(draft, table)
        if wanted.restart_identity:
            for sequence in _owned_sequences(draft, table.id):
                draft.restart(sequence, None)


def _truncate_one(draft: Draft, table: Table) -> None:
    draft.require_settled(table)
    require_unfollowed(draft, table, "truncate")
    indexes = tuple(msgspec.structs.replace(index, rowset=draft.ids.new_rowset(table.id)) for index in table.indexes)
    draft.edit(
        table.id,
        (StepKind.TRUNCATE, ()),
        rowset=draft.ids.new_rowset(table.id),
        indexes=indexes,
        # Nobody writes in an older layout any more: f = c.
        oldest_layout=table.layout.id,
    )
    draft.free(rules.rowsets(table))
    bump_relatives(draft, table)


def drop_sequences(draft: Draft, wanted: want.DropSequences) -> None:
    """DROP SEQUENCE. One that an identity column owns goes with the column only."""
    for name in wanted.names:
        sequence = draft.find(Sequence, name)
        for table, column in draft.view.takers(sequence.id):
            if column.sequence == sequence.id and column.identity is not None:
                raise errors.error(
                    errors.DEPENDENT_OBJECTS,
                    f"cannot drop sequence {name} because column {column.name} of table {table.name} requires it",
                    hint=f"You can drop column {column.name} of table {table.name} instead.",
                )
        dependents = [*_sequence_users(draft, sequence, set()), *_views_on(draft, {sequence.id})]
        _resolve(draft, f"sequence {name}", dependents, cascade=wanted.cascade)
        draft.drop(sequence)


def _drop_view(draft: Draft, view: View) -> None:
    if view.materialized is None:
        draft.drop(view)
    else:
        drop_materialized(draft, view)


def drop_views(draft: Draft, wanted: want.DropViews) -> None:
    """DROP [MATERIALIZED] VIEW, with the views on it if CASCADE."""
    targets = [_find_view(draft, name, materialized=wanted.materialized) for name in dict.fromkeys(wanted.names)]
    dependents = _views_on(draft, {view.id for view in targets})
    what = f"{targets[0].kind} {targets[0].name}" if len(targets) == 1 else "desired object(s)"
    _resolve(draft, what, dependents, cascade=wanted.cascade)
    for view in targets:
        _drop_view(draft, view)


def _find_view(draft: Draft, name: str, *, materialized: bool) -> View:
    """The view of that name; 42P01 if there is none, 42809 if it is not of this kind."""
    noun = "materialized view" if materialized else "view"
    found = draft.view.lookup("public", name)
    if found is None:
        raise errors.error(errors.UNDEFINED_TABLE, f'{noun} "{name}" does not exist')
    if isinstance(found, View) and (found.materialized is not None) is materialized:
        return found
    kind = found.kind if isinstance(found, View) else "table" if isinstance(found, Table) else "sequence"
    hint = f"Use DROP {kind.upper()} to remove a {kind}."
    raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a {noun}', hint=hint)


def drop_identity(draft: Draft, wanted: want.DropIdentity) -> None:
    """ALTER COLUMN ... DROP IDENTITY: the column stays, its sequence goes."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    if column.identity is None:
        raise errors.error(
            errors.OBJECT_NOT_READY, f'column "{column.name}" of relation "{table.name}" is not an identity column'
        )
    _drop_default(draft, table.id, column.id)
    for sequence in _owned_sequences(draft, table.id, column.id):
        _resolve(draft, f"sequence {sequence.name}", _views_on(draft, {sequence.id}), cascade=False)
        draft.drop(sequence)
