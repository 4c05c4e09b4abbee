"""Foreign keys: what they demand of the referenced key, and the index that each owns or borrows (rule 27)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from instar import errors
from instar.catalog.descriptors import Column, ForeignKey, Index, IndexColumn, State, StepKind, Table
from instar.encoding.keys import same_key_family
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.generation import require_actions
from instar.schemachange.key_elements import relatives
from instar.schemachange.probed_indexes import found_otherwise, heirs, leading_index, leads, unique_index
from instar.schemachange.stages import Scheduled
from instar.schemachange.states import first_state
from instar.types import TIMESTAMPS
from instar.values import cast_context


def add_foreign_key(draft: Draft, table_id: int, wanted: want.ForeignKey) -> None:
    """A foreign key, on both tables: by its path, or collapsed where nobody can have rows in the child."""
    table = draft.table(table_id)
    empty = draft.has_no_rows(table)
    columns = [draft.column(table, name) for name in wanted.columns]
    require_actions(columns, wanted)
    parent = draft.find(Table, wanted.parent)
    parent_columns, parent_index = _referenced_key(draft, parent, wanted)
    if parent_index is not None and unique_index(parent, [column.id for column in parent_columns]) is None:
        empty = False  # the key comes with it, and is not one before its index is public
    name = _name(draft, table, wanted)
    if len(parent_columns) != len(columns):
        raise errors.error(
            errors.INVALID_FOREIGN_KEY, "number of referencing and referenced columns for foreign key disagree"
        )
    for child, referenced in zip(columns, parent_columns, strict=True):
        require_comparable(name, child, referenced)
    ids = tuple(column.id for column in columns)
    child_index, owns = _child_index(draft, table, ids, name, empty=empty)
    table = draft.table(table_id)
    made = ForeignKey(
        id=table.next_id,
        name=name,
        columns=ids,
        parent=parent.id,
        parent_columns=tuple(column.id for column in parent_columns),
        parent_index=parent_index,
        child_index=child_index,
        owns_index=owns,
        on_delete=wanted.on_delete,
        on_update=wanted.on_update,
        state=State.PUBLIC if empty else first_state(ElementKind.FOREIGN_KEY),
        not_valid=wanted.not_valid and not empty,
        yields=wanted.yields and not empty,
    )
    draft.own.add(Element(ElementKind.FOREIGN_KEY, table_id, made.id))
    draft.edit(
        table_id,
        (StepKind.ELEMENT_STATE, (made.id,)),
        foreign_keys=(*table.foreign_keys, made),
        next_id=made.id + 1,
    )
    link_parent(draft, parent.id, table_id)
    if not empty:
        _schedule(draft, table_id, made)


def _schedule(draft: Draft, table_id: int, made: ForeignKey) -> None:
    """The way from on record to public, or to write-only if it need not be validated; its own index comes first."""
    draft.schedule(
        Scheduled(
            Element(ElementKind.FOREIGN_KEY, table_id, made.id),
            Phase.ABSENT,
            Phase.WRITE_ONLY if made.not_valid else Phase.PUBLIC,
            None if made.not_valid else draft.facts.estimated_rows(draft.table(table_id)),
            related=(made.parent,),
            uses=used_indexes(table_id, made),
            reads=draft.read(draft.table(table_id), made.columns),
        )
    )


def owned_index(table_id: int, key: ForeignKey) -> tuple[Element, ...]:
    """The index that came with the key, and goes with it (rule 27)."""
    if key.child_index is None or not key.owns_index:
        return ()
    return (Element(ElementKind.INDEX, table_id, key.child_index),)


def used_indexes(table_id: int, key: ForeignKey) -> tuple[Element, ...]:
    """The indexes that must be public before the key holds (rule 27): its own, and the referenced one, which may come
    in the same change."""
    if key.parent_index is None:
        return owned_index(table_id, key)
    return (*owned_index(table_id, key), Element(ElementKind.INDEX, key.parent, key.parent_index))


def link_parent(draft: Draft, parent_id: int, child_id: int) -> None:
    """Tell the referenced table's writers who refers to it."""
    parent = draft.table(parent_id)
    referenced_by = tuple(dict.fromkeys((*parent.referenced_by, child_id)))
    draft.edit(parent_id, (StepKind.ELEMENT_STATE, ()), referenced_by=referenced_by)


def unlink_parent(draft: Draft, parent_id: int, child: Table) -> None:
    """Tell the referenced table's writers that `child` (as it is left) has fewer foreign keys to it, or none."""
    found = draft.view.by_id(parent_id)
    if isinstance(found, Table):
        refers = any(key.parent == parent_id for key in child.foreign_keys)
        left = tuple(other for other in found.referenced_by if refers or other != child.id)
        draft.edit(parent_id, (StepKind.ELEMENT_STATE, ()), referenced_by=left)


def _name(draft: Draft, table: Table, wanted: want.ForeignKey) -> str:
    if wanted.name is None:
        return draft.constraint_name(table, wanted.columns, "fkey")
    draft.require_free_constraint(table, wanted.name)
    return wanted.name


def _referenced_key(draft: Draft, parent: Table, wanted: want.ForeignKey) -> tuple[list[Column], int | None]:
    """The referenced columns and the unique index that proves them a key (None: the primary key); 42830 if none."""
    if not wanted.parent_columns:
        by_id = {column.id: column for column in parent.columns}
        key = [by_id[column] for column in parent.primary_key]
        if key[0].hidden:
            raise errors.error(errors.UNDEFINED_OBJECT, f'there is no primary key for referenced table "{parent.name}"')
        return key, None
    columns = [draft.column(parent, name) for name in wanted.parent_columns]
    ids = [column.id for column in columns]
    if sorted(ids) == sorted(parent.primary_key):
        return columns, None
    index = unique_index(parent, ids) or _coming_index(draft, parent, ids)
    if index is not None:
        return columns, index.id
    raise errors.error(
        errors.INVALID_FOREIGN_KEY,
        f'there is no unique constraint matching given keys for referenced table "{parent.name}"',
    )


def _coming_index(draft: Draft, parent: Table, columns: Sequence[int]) -> Index | None:
    """A unique index on just these columns that this very change brings, or another statement of its transaction."""
    for index in parent.indexes:
        element = Element(ElementKind.INDEX, parent.id, index.id)
        comes = element in draft.begun or any(found.element == element for found in draft.scheduled)
        if comes and index.unique and sorted(part.column for part in index.columns) == sorted(columns):
            return index
    return None


def require_comparable(name: str, child: Column, parent: Column) -> None:
    """Both sides must encode equal values equally, since constraints are judged on encoded keys: 0A000 for other types
    that are compared with each other, and 42804 for what never can be one."""
    kinds = {child.type.kind, parent.type.kind}
    if same_key_family(child.type, parent.type) and not (len(kinds) == 2 and kinds <= TIMESTAMPS):
        return
    if cast_context(child.type, parent.type) == "implicit":
        raise errors.unsupported(f'a foreign key of {child.type} to {parent.type} (constraint "{name}")')
    raise errors.error(
        errors.DATATYPE_MISMATCH,
        f'foreign key constraint "{name}" cannot be implemented',
        detail=f'Key columns "{child.name}" and "{parent.name}" are of incompatible types: '
        f"{child.type} and {parent.type}.",
    )


def _child_index(
    draft: Draft, table: Table, columns: tuple[int, ...], name: str, *, empty: bool
) -> tuple[int | None, bool]:
    """The index that finds a parent's children: the primary key (None), a public index, or one of the key's own."""
    if leads(table.primary_key, columns):
        return None, False
    found = leading_index(table, columns)
    if found is not None:
        return found.id, False
    index = Index(
        id=table.next_id,
        name=draft.relation_name(name, (), "idx"),
        columns=tuple(IndexColumn(column) for column in columns),
        rowset=draft.ids.new_rowset(table.id),
        state=State.PUBLIC if empty else first_state(ElementKind.INDEX),
    )
    draft.edit(table.id, (StepKind.ELEMENT_STATE, (index.id,)), indexes=(*table.indexes, index), next_id=index.id + 1)
    if not empty:
        element = Element(ElementKind.INDEX, table.id, index.id)
        rows, reads = draft.facts.estimated_rows(table), draft.read(table, columns)
        draft.schedule(Scheduled(element, Phase.ABSENT, Phase.PUBLIC, rows, reads=reads))
    return index.id, True


def spare_index(draft: Draft, table_id: int, index: Index, *, keeps: bool) -> bool:
    """Foreign keys that find children by an index which is dropped find them by another one. Where there is none, the
    index goes on as theirs, unique no more and under another name, if `keeps` allows that (else 0A000). Returns
    whether it goes on."""
    table = draft.table(table_id)
    leaving = draft.leaving(table)
    users = [key for key in table.foreign_keys if key.child_index == index.id and key.id not in leaving]
    if not users:
        return False
    draft.require_still(table, *(Element(ElementKind.FOREIGN_KEY, table_id, key.id) for key in users))
    others = tuple(found for found in table.indexes if found.id not in {index.id, *leaving})
    moved = {key.id: found_otherwise(key, msgspec.structs.replace(table, indexes=others)) for key in users}
    stranded = [key for key in users if moved[key.id] is None]
    if draft.collapsing or (stranded and not keeps):
        raise _still_walked(table, index, (stranded or users)[0], together=draft.collapsing)
    keys: tuple[ForeignKey, ...] = tuple(moved.get(key.id) or key for key in table.foreign_keys)
    indexes = table.indexes
    if stranded:
        name = draft.relation_name(stranded[0].name, (), "idx")
        kept = msgspec.structs.replace(index, name=name, unique=False, constraint=False)
        indexes = tuple(kept if found.id == index.id else found for found in indexes)
        keys = tuple(heirs(keys, {index.id}))
    # Whoever writes to either table by an older version of it would probe what is maintained no more.
    steps = ((StepKind.ELEMENT_STATE, (index.id,)), (StepKind.ELEMENT_STATE, ()))
    bump_relatives(draft, draft.edit(table_id, *steps, foreign_keys=keys, indexes=indexes))
    return bool(stranded)


def _still_walked(table: Table, index: Index, key: ForeignKey, *, together: bool) -> errors.Error:
    refused = errors.unsupported(
        f'dropping index "{index.name}", by which foreign key "{key.name}" finds its rows,'
        + (" in one statement with what takes a job" if together else "")
    )
    names = ", ".join(column.name for column in table.columns if column.id in key.columns)
    refused.hint = "Drop it in a statement of its own." if together else f"Make another index on ({names}) first."
    return refused


def bump_relatives(draft: Draft, table: Table) -> None:
    """A new version of every table whose writers probe a rowset of `table`: both sides of its foreign keys."""
    for related in relatives(table):
        draft.edit(related, (StepKind.ELEMENT_STATE, ()))
