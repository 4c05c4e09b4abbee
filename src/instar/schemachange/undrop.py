"""What brings back: UNDROP TABLE (MD-MVCC §5.2), one direct step.

A dropped table's rowsets are dead, and stay as they are until the watermark has passed the drop (rule 22); nobody
writes to them, since its header refuses all. So its descriptor of then fits them still, and makes it live again, one
version on and with f = c. What others have done meanwhile is looked at anew: names may be taken, tables that it refers
to may be gone, and rows of theirs that its own refer to, so that such a foreign key comes back NOT VALID.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.descriptors import (
    Column,
    ForeignKey,
    Sequence,
    State,
    Step,
    StepKind,
    Table,
    View,
    transformation_of,
)
from instar.catalog.history import Dropped
from instar.catalog.naming import generated_name
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft
from instar.schemachange.foreign_keys import link_parent, require_comparable
from instar.schemachange.probed_indexes import unique_index, without_keys


class _Return(NamedTuple):
    """A table that comes back: as it was, when it was dropped, and as it is to be."""

    was: Table
    timestamp: int
    table: Table


def undrop_tables(draft: Draft, wanted: want.UndropTables) -> None:
    """UNDROP TABLE: one direct step. 42P01 if nothing of that name can come back, 42P07 if the name is taken, 55000 if
    something of the table is gone (without CASCADE)."""
    dropped = draft.facts.dropped()
    tables = dict.fromkeys(wanted.tables)  # as DROP TABLE a, a drops it once
    found = [_found(draft, dropped, name, wanted.as_of) for name, _ in tables]
    numbers = [one.found.id for one in found]
    for one in found:
        if numbers.count(one.found.id) > 1:
            raise errors.error(errors.DUPLICATE_ALIAS, f'table name "{one.found.name}" specified more than once')
    returns = [_revive(draft, dropped, one, new) for one, (_, new) in zip(found, tables, strict=True)]
    left = [lost for one in returns for lost in (*_defaults(draft, one), *_foreign_keys(draft, one, returns, dropped))]
    if left and not wanted.cascade:
        raise errors.error(
            errors.OBJECT_NOT_READY,
            f'table "{returns[0].was.name}" cannot come back as it was',
            detail="\n".join(left),
            hint="Bring back what is missing first, or in the same statement; UNDROP TABLE ... CASCADE does without.",
        )
    draft.notices += [f"{lost}: left out" for lost in left]
    _views(draft, dropped, returns)


def _found(draft: Draft, dropped: list[Dropped], name: str, as_of: int | None) -> Dropped:
    """The table to bring back: the one of that name which was dropped last, or which had it at a time."""
    tables = [one for one in dropped if isinstance(one.found, Table) and draft.view.by_id(one.found.id) is None]
    if as_of is None:
        named = [one for one in tables if one.found.name == name]
    else:
        named = [one for one in tables if _name_at(draft, one.found.id, as_of) == name]
    if named:
        return max(named, key=lambda one: one.timestamp)
    then = "" if as_of is None else " that was there at that time"
    raise errors.error(
        errors.UNDEFINED_TABLE,
        f'no dropped table "{name}"{then} can be brought back',
        detail="There was none, or it was dropped longer ago than the store retains and has been deallocated.",
        hint="SELECT * FROM instar.dropped shows what can be brought back.",
    )


def _name_at(draft: Draft, object_id: int, snapshot: int) -> str | None:
    found = draft.facts.object_at(object_id, snapshot)
    return None if found is None else found.name


def _revive(draft: Draft, dropped: list[Dropped], one: Dropped, new_name: str | None) -> _Return:
    """The table with its sequences and indexes, and without what others have a part in."""
    was = one.found
    assert isinstance(was, Table)  # the caller has looked for one
    _require_ended(draft, was)
    name = new_name or was.name
    if draft.name_taken(name):
        hint = f'UNDROP TABLE "{was.name}" AS another_name brings it back under another name.'
        raise errors.error(errors.DUPLICATE_TABLE, f'relation "{name}" already exists', hint=hint)
    step = Step(version=was.version + 2, kind=StepKind.UNDROP_TABLE, statement=draft.statement)
    table = msgspec.structs.replace(
        was,
        name=name,
        version=step.version,  # the drop took one
        steps=(*was.steps, step),
        referenced_by=tuple(found for found in was.referenced_by if found == was.id),
        checks_version=was.checks_version + 1,
        transformed=None,  # of one that was joined or split, with what it was made into as it is
        followed_by=(),  # materialized views do not come back
    )
    draft.revive(_named(draft, table), one.timestamp)
    for found in dropped:
        sequence = found.found
        if isinstance(sequence, Sequence) and found.timestamp == one.timestamp and _owns(was, sequence):
            columns = [column.name for column in was.columns if column.id == (sequence.owned_by or (0, 0))[1]]
            free = free_name(draft, draft.name_taken, sequence.name, "sequence", name, columns, "seq")
            draft.revive(msgspec.structs.replace(sequence, name=free, version=sequence.version + 1), one.timestamp)
    return _Return(was, one.timestamp, draft.table(was.id))


def _require_ended(draft: Draft, was: Table) -> None:
    """55006 while transactions that have written to a table which was joined or split may commit: what they have
    written is for the new tables, and would go to this one."""
    kept = draft.view.kept_of(was.id)
    if kept is None:
        return
    new = " and ".join(f'"{draft.table(target).name}"' for target in kept.made.targets)
    raise errors.error(
        errors.OBJECT_IN_USE,
        f'table "{was.name}" cannot come back yet: transactions from before it was joined or split may still commit',
        detail=f"What they have written to it goes to {new}. The change was: {transformation_of(was)}",
        hint="Try again when its job has ended (SHOW JOBS): they are given their grace. CANCEL JOB is too late.",
    )


def _owns(table: Table, sequence: Sequence) -> bool:
    return sequence.owned_by is not None and sequence.owned_by[0] == table.id


def _named(draft: Draft, table: Table) -> Table:
    """The table with names of its primary key and indexes that no other relation has."""
    names = {table.name}

    def taken(name: str) -> bool:
        return name in names or draft.name_taken(name)

    key = table.primary_key_name
    if key:
        key = free_name(draft, taken, key, "primary key", table.name, (), "pkey")
        names.add(key)
    indexes = []
    by_id = {column.id: column.name for column in table.columns}
    for index in table.indexes:
        columns = [by_id[part.column] for part in index.columns]
        label = "key" if index.constraint else "idx"
        free = free_name(draft, taken, index.name, "index", table.name, columns, label)
        names.add(free)
        indexes.append(msgspec.structs.replace(index, name=free))
    return msgspec.structs.replace(table, primary_key_name=key, indexes=tuple(indexes))


def free_name(
    draft: Draft, taken: Callable[[str], bool], name: str, what: str, table: str, columns: Iterable[str], label: str
) -> str:
    """The name that something had, or a generated one if it is taken."""
    if not taken(name):
        return name
    free = generated_name(table, tuple(columns), label, taken)
    draft.notices.append(f'{what} "{name}" comes back as "{free}", since its name is taken')
    return free


# --- what others have a part in --------------------------------------------------------------------------------------


def _defaults(draft: Draft, one: _Return) -> Iterator[str]:
    """Take away the defaults that need sequences which are gone, and say which."""
    columns = []
    for column in draft.table(one.was.id).columns:
        if needs_gone_sequence(draft, column):
            yield f'the default of column "{column.name}" of table "{one.was.name}" needs a sequence that is gone'
            column = msgspec.structs.replace(column, default=None, sequence=None, identity=None)
        columns.append(column)
    draft.edit(one.was.id, columns=tuple(columns))


def needs_gone_sequence(draft: Draft, column: Column) -> bool:
    """Whether the column takes values of a sequence that is not there."""
    if column.hidden:  # its numbers come from a sequence without a descriptor
        return False
    used = {int(number) for number in re.findall(r"#(\d+)", column.default or "")}
    if column.sequence is not None:
        used.add(column.sequence)
    return any(not isinstance(draft.view.by_id(number), Sequence) for number in used)


def _foreign_keys(draft: Draft, one: _Return, returns: list[_Return], dropped: list[Dropped]) -> Iterator[str]:
    """Join the table to those that it refers to, leave out the foreign keys that cannot be, and say which and why."""
    together = {other.was.id for other in returns if other.timestamp == one.timestamp}
    kept: dict[int, ForeignKey] = {}
    for key in one.was.foreign_keys:
        made = _joined(draft, one.was, key)
        if made is None:
            yield f'foreign key "{key.name}" of table "{one.was.name}" refers to {_parent_named(draft, key, dropped)}'
            continue
        if key.parent not in together and not made.not_valid:
            made = msgspec.structs.replace(made, state=State.WRITE_ONLY, not_valid=True)
            draft.notices.append(
                f'foreign key "{key.name}" comes back NOT VALID, since rows that it refers to may have gone: '
                f'ALTER TABLE "{one.table.name}" VALIDATE CONSTRAINT "{key.name}" looks'
            )
        kept[key.id] = made
    gone = {key.id for key in one.was.foreign_keys} - kept.keys()
    fields = without_keys(draft.table(one.was.id), gone)
    fields["foreign_keys"] = tuple(
        msgspec.structs.replace(kept[key.id], owns_index=key.owns_index)
        for key in fields["foreign_keys"]  # type: ignore[attr-defined] # what foreign keys are
    )
    draft.edit(one.was.id, **fields)
    for parent in sorted({key.parent for key in kept.values()} - {one.was.id}):
        link_parent(draft, parent, one.was.id)
    for child in one.was.referenced_by:
        found = draft.view.by_id(child)
        if isinstance(found, Table) and child not in together:
            draft.notices.append(f'foreign keys of table "{found.name}" to "{one.table.name}" do not come back')


def _joined(draft: Draft, child: Table, key: ForeignKey) -> ForeignKey | None:
    """The foreign key on the parent as it is now; None if that is gone, or what the key refers to is none any more."""
    parent = draft.view.by_id(key.parent)
    if not isinstance(parent, Table):
        return None
    columns = {column.id: column for column in parent.columns if column.state is State.PUBLIC}
    if not columns.keys() >= set(key.parent_columns):
        return None
    own = {column.id: column for column in child.columns}
    try:
        for mine, theirs in zip(key.columns, key.parent_columns, strict=True):
            require_comparable(key.name, own[mine], columns[theirs])
    except errors.Error:
        return None
    if sorted(parent.primary_key) == sorted(key.parent_columns):
        return msgspec.structs.replace(key, parent_index=None)
    index = unique_index(parent, key.parent_columns)
    return None if index is None else msgspec.structs.replace(key, parent_index=index.id)


def _parent_named(draft: Draft, key: ForeignKey, dropped: list[Dropped]) -> str:
    parent = draft.view.by_id(key.parent)
    if parent is not None:
        return f'what is no key of table "{parent.name}" any more'
    names = [one.found.name for one in dropped if one.found.id == key.parent]
    return f'table "{names[0]}", which is dropped' if names else "a table that is gone"


def _views(draft: Draft, dropped: list[Dropped], returns: list[_Return]) -> None:
    """The views that were dropped together with the tables, as far as all that they read is there as it was."""
    times = {one.timestamp for one in returns}
    waiting = {one.found: one.timestamp for one in dropped if isinstance(one.found, View) and one.timestamp in times}
    back = {one.was.id for one in returns}
    grown = True
    while grown:
        grown = False
        for view, timestamp in waiting.items():
            if view.id in back or not _uses(view) & back or draft.name_taken(view.name):
                continue
            if all(used in back or _is_same(draft, used, columns, timestamp) for used, columns in view.depends_on):
                for needed in map(draft.view.by_id, sorted(_uses(view) - back)):
                    if needed is not None:
                        draft.touch(needed)
                draft.revive(msgspec.structs.replace(view, version=view.version + 1), timestamp)
                back.add(view.id)
                grown = True
    for view in waiting:
        if view.id not in back and _uses(view) & back:
            draft.notices.append(f'view "{view.name}", which was dropped with what it reads, does not come back')


def _uses(view: View) -> set[int]:
    return {used for used, _ in view.depends_on}


def _is_same(draft: Draft, object_id: int, columns: Iterable[int], timestamp: int) -> bool:
    """Whether an object has these columns, with the types that they had before the commit of that timestamp."""
    now, then = draft.view.by_id(object_id), draft.facts.object_at(object_id, timestamp - 1)
    if not (isinstance(now, Table) and isinstance(then, Table)):
        return now is not None and not isinstance(now, View)
    types, old = ({column.id: column.type for column in one.columns if column.visible} for one in (now, then))
    return all(column in types and types[column] == old.get(column) for column in columns)
