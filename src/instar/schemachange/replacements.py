"""Columns that take the place of others, with another type (ALTER COLUMN TYPE): what the last step of their path does
to a table, and what nobody may change until then.

Until then the new column is write-only beside the one that it replaces, and bears its name; so do the indexes and
checks that are built on it. The last step puts all of them into the place of the old ones, which go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from instar.catalog.descriptors import Check, Column, Index, State, Table
from instar.catalog.descriptors import Sequence as SequenceDescriptor
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.next_layout import next_layout
from instar.schemachange.stages import Published

# What nobody may change in a table while one of its columns is being replaced, or it would be lost in the end.
_HELD = frozenset(
    "rowset primary_key primary_key_name indexes checks foreign_keys referenced_by locks coverage_changes "
    "next_key".split()
)


def taken_place(table: Table, element: Element, goal: Phase) -> int | None:
    """The id of the column whose place the element takes by going to the phase `goal`, if it does."""
    if element.kind is not ElementKind.COLUMN or goal is not Phase.PUBLIC:
        return None
    found = next(column for column in table.columns if column.id == element.id)
    return found.replaces


def swapped(table: Table, column: int) -> dict[str, object]:
    """The fields that change when `column` takes the place of the one that it replaces."""
    made = next(found for found in table.columns if found.id == column)
    old = made.replaces
    before = next(found for found in table.columns if found.id == old)
    made = msgspec.structs.replace(made, name=before.name, state=State.PUBLIC)
    columns = tuple(made if found.id == old else found for found in table.columns if found.id != column)
    stored = tuple((found.id, found.type) for found in columns)
    return {
        "columns": columns,
        "layout": next_layout(table, stored),
        "indexes": tuple(index for index in table.indexes if not uses(index, {before.id})),
        "checks": tuple(check for check in table.checks if before.id not in check.columns),
        "locks": tuple(
            msgspec.structs.replace(lock, columns=tuple(made.id if part == old else part for part in lock.columns))
            for lock in table.locks
        ),
    }


def uses(found: Index | Check, columns: set[int]) -> bool:
    """Whether an index or a check stands on one of the columns."""
    if isinstance(found, Index):
        return any(part.column in columns for part in found.columns)
    return not columns.isdisjoint(found.columns)


def is_held(table: Table, fields: Iterable[str], columns: Sequence[Column]) -> bool:
    """Whether a change of these fields, to these columns, has to wait for a column that is being replaced. Columns may
    come, without a job, and be renamed; those that take no part may be altered."""
    coming = [column for column in table.columns if column.replaces is not None and column.state is not State.PUBLIC]
    if not coming:
        return False
    if not _HELD.isdisjoint(fields):
        return True
    known = {column.id for column in table.columns}
    if any(column.state is not State.PUBLIC for column in columns if column.id not in known):
        return True
    part = {number for column in coming for number in (column.id, column.replaces)}
    part.update(source.id for column in coming if column.derived is not None for source in column.derived.sources)
    now = {column.id: column for column in columns}
    return any(
        column.id not in now or msgspec.structs.replace(now[column.id], name=column.name) != column
        for column in table.columns
        if column.id in part
    )


def handed_on(published: Iterable[Published], sequences: Iterable[SequenceDescriptor]) -> Iterator[SequenceDescriptor]:
    """The sequences of columns that others have taken the place of, as theirs."""
    heirs = {
        (one.after.id, column.replaces): column.id
        for one in published
        if isinstance(one.before, Table) and isinstance(one.after, Table)
        for column in one.after.columns
        if any(found.id == column.replaces for found in one.before.columns)
        and all(found.id != column.replaces for found in one.after.columns)
    }
    for sequence in sequences:
        heir = None if sequence.owned_by is None else heirs.get(sequence.owned_by)
        if sequence.owned_by is not None and heir is not None:
            owner = (sequence.owned_by[0], heir)
            yield msgspec.structs.replace(sequence, owned_by=owner, version=sequence.version + 1)
