"""ALTER COLUMN TYPE where values have to be converted: a column of the new type takes the place of the old one.

It is written from the first stage on, by whoever writes the row, and is derived of the row where that was written
before (tables/derivations.py). The job sees that all rows can be converted, builds indexes and checks anew on the
new column, beside the old ones, and puts everything in place in its last stage. Rows are not rewritten: they are
converted when they are read, until they are written or compacted. Only where the conversion is another each time
(random()) the job stores a value in each row (populate.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.descriptors import (
    Check,
    Column,
    Derivation,
    Index,
    IndexColumn,
    State,
    StepKind,
    Table,
)
from instar.encoding.keys import key_tag
from instar.schemachange import wanted as want
from instar.schemachange.alteration import require_no_view
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.generation import require_own_type
from instar.schemachange.next_layout import next_layout
from instar.schemachange.replacements import handed_on, swapped, uses
from instar.schemachange.stages import Scheduled
from instar.schemachange.states import Work, first_state
from instar.types import INTEGERS, STRINGS


class _New(NamedTuple):
    """What takes the place of columns, and of the indexes and checks that stand on them."""

    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]
    checks: tuple[Check, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(found.id for group in (self.columns, self.indexes, self.checks) for found in group)


def convert_columns(draft: Draft, wanted: want.ConvertColumns) -> None:
    """By the paths of the new elements; in one step where nobody has rows, or where any value is one of the new type
    and no index or check stands in the way."""
    table = draft.find(Table, wanted.table)
    draft.require_settled(table)
    pairs = [(draft.column(table, new.column), new) for new in wanted.columns]
    _require_convertible(draft, table, pairs)
    replaced = {column.id: table.next_id + place for place, (column, _new) in enumerate(pairs)}
    _require_unvalidated(draft, table, set(replaced))
    standing: list[Index | Check] = [*table.indexes, *table.checks]
    total = all(map(_is_total, wanted.columns)) and not any(uses(found, set(replaced)) for found in standing)
    # What is total is so for an empty table too: rows that others have buffered are converted.
    empty = not total and draft.has_no_rows(table)
    columns = tuple(_column(draft, table, column, new, replaced, empty=empty) for column, new in pairs)
    made = _with_elements(draft, table, wanted, columns, replaced, empty=empty)
    if empty or total:
        _swap(draft, table, made, StepKind.CHANGE_TYPE if empty else StepKind.CHANGE_TYPE_TO_TEXT)
    else:
        draft.edit(table.id, (StepKind.ELEMENT_STATE, made.ids), **_beside(table, made))
        _schedule(draft, table, made)


def _require_convertible(draft: Draft, table: Table, pairs: list[tuple[Column, want.NewType]]) -> None:
    """0A000 for columns of keys, primary or foreign, and for those that views use; 22023 for an identity that would be
    no integer."""
    for column, new in pairs:
        require_own_type(table, column)
        what = f'converting column "{column.name}" of table "{table.name}" to {new.type}'
        if column.id in table.primary_key:
            raise errors.unsupported(f"{what}, as it is part of the primary key,")
        children = (draft.table(child) for child in table.referenced_by)
        theirs = (key for child in children for key in child.foreign_keys if key.parent == table.id)
        keys = [(key, key.columns) for key in table.foreign_keys] + [(key, key.parent_columns) for key in theirs]
        for key, columns in keys:
            if column.id in columns:
                raise errors.unsupported(f'{what}, as foreign key "{key.name}" uses it,')
        for index in table.indexes:
            users = [key for key in table.foreign_keys if key.child_index == index.id]
            if users and uses(index, {column.id}):
                raise errors.unsupported(f'{what}, as foreign key "{users[0].name}" uses index "{index.name}" on it,')
        require_no_view(draft, table, column)
        if column.identity is not None and new.type.kind not in INTEGERS:
            raise errors.error(errors.INVALID_PARAMETER, "identity column type must be smallint, integer, or bigint")


def _require_unvalidated(draft: Draft, table: Table, columns: set[int]) -> None:
    """55006 while a constraint on them is being validated: what takes its place is NOT VALID all the same."""
    found = [Element(ElementKind.CHECK, table.id, check.id) for check in table.checks if uses(check, columns)]
    found += [Element(ElementKind.NOT_NULL, table.id, column) for column in sorted(columns)]
    for element in found:
        draft.require_unvalidated(table, element)


def _is_total(new: want.NewType) -> bool:
    """Whether any value is one of the new type too: whatever the column is, it can be written as text."""
    return new.plain and new.type.kind in STRINGS and new.type.length is None


def _column(
    draft: Draft, table: Table, column: Column, new: want.NewType, replaced: Mapping[int, int], *, empty: bool
) -> Column:
    found = new.conversion
    rests = column.not_null_not_valid and not empty
    sources = tuple(source for source in table.columns if source.id in found.columns)
    derived = Derivation(
        expression=found.text, type=new.type, sources=sources, now=found.now, zone=found.zone
    )  # fmt: skip
    return msgspec.structs.replace(
        column,
        id=replaced[column.id],
        type=new.type,
        default=None if new.default is None else draft.freeze_default(table, new.default),
        missing=None,
        nullable=column.nullable and not (column.not_null_not_valid and empty),
        not_null=first_state(ElementKind.NOT_NULL) if rests else None,
        not_null_yields=False,
        not_null_not_valid=rests,
        per_row=found.volatile and not empty,
        derived=None if empty else derived,
        replaces=column.id,
        state=first_state(ElementKind.COLUMN),
    )


def _with_elements(
    draft: Draft,
    table: Table,
    wanted: want.ConvertColumns,
    columns: tuple[Column, ...],
    replaced: Mapping[int, int],
    *,
    empty: bool,
) -> _New:
    """With the indexes and checks on the columns once more, on the new ones."""
    number = table.next_id + len(columns)
    new = {column.id: column for column in columns}
    state = State.PUBLIC if empty else first_state(ElementKind.INDEX)
    indexes: list[Index] = []
    for index in (index for index in table.indexes if uses(index, set(replaced))):
        parts = tuple(IndexColumn(replaced.get(part.column, part.column), part.descending) for part in index.columns)
        for part in parts:
            if part.column in new:
                key_tag(new[part.column].type.kind, new[part.column].name)
        rowset = draft.ids.new_rowset(table.id)
        indexes.append(
            msgspec.structs.replace(index, id=number + len(indexes), columns=parts, rowset=rowset, state=state)
        )
    number += len(indexes)
    after = _after(table, columns)
    state = State.PUBLIC if empty else first_state(ElementKind.CHECK)
    checks: list[Check] = []
    for check in (check for check in table.checks if uses(check, set(replaced))):
        frozen = wanted.check(check, table, after)
        checks.append(
            msgspec.structs.replace(
                check,
                id=number + len(checks),
                expression=frozen.text,
                columns=frozen.columns,
                state=state,
                not_valid=check.not_valid and not empty,
            )
        )
    return _New(columns, tuple(indexes), tuple(checks))


def _after(table: Table, columns: tuple[Column, ...]) -> Table:
    """The table with the new columns in the place of the old ones."""
    for column in columns:
        table = msgspec.structs.replace(table, columns=(*table.columns, column))
        table = msgspec.structs.replace(table, **swapped(table, column.id))
    return table


def _beside(table: Table, made: _New) -> dict[str, object]:
    """The fields that change when all of it comes beside what there is."""
    stored = (*table.layout.columns, *((column.id, column.type) for column in made.columns))
    return {
        "columns": (*table.columns, *made.columns),
        "indexes": (*table.indexes, *made.indexes),
        "checks": (*table.checks, *made.checks),
        "layout": next_layout(table, stored, populated=any(column.per_row for column in made.columns)),
        "next_id": table.next_id + len(made.ids),
    }


def _swap(draft: Draft, table: Table, made: _New, kind: StepKind) -> None:
    """All at once."""
    after = msgspec.structs.replace(table, **_beside(table, made))
    for column in made.columns:
        after = msgspec.structs.replace(after, **swapped(after, column.id))
    fields = {name: getattr(after, name) for name in ("columns", "indexes", "checks", "layout", "locks", "next_id")}
    steps = (kind, tuple(column.replaces for column in made.columns if column.replaces is not None))
    before = {index.rowset for index in table.indexes}
    draft.edit(table.id, steps, **fields)
    draft.free(before - {index.rowset for index in after.indexes})
    published = draft.publication().published
    for sequence in list(handed_on(published, draft.view.sequences())):
        draft.replace(sequence)


def _schedule(draft: Draft, table: Table, made: _New) -> None:
    """On their paths: what stands on a column waits for its values."""
    rows = draft.facts.estimated_rows(table)

    def element(kind: ElementKind, found: Column | Index | Check) -> Element:
        return Element(kind, table.id, found.id)

    def reads(columns: set[int]) -> tuple[Element, ...]:
        return tuple(element(ElementKind.COLUMN, column) for column in made.columns if column.id in columns)

    for column in made.columns:
        work = None if column.per_row else Work.VALIDATE
        draft.schedule(Scheduled(element(ElementKind.COLUMN, column), Phase.ABSENT, Phase.PUBLIC, rows, work=work))
    for index in made.indexes:
        on = reads({part.column for part in index.columns})
        draft.schedule(Scheduled(element(ElementKind.INDEX, index), Phase.ABSENT, Phase.PUBLIC, rows, reads=on))
    for check in made.checks:
        named = element(ElementKind.CHECK, check)
        if check.not_valid:
            draft.resting.append(Scheduled(named, Phase.ABSENT, Phase.WRITE_ONLY, None))
            draft.own.add(named)
        else:
            draft.schedule(Scheduled(named, Phase.ABSENT, Phase.PUBLIC, rows, reads=reads(set(check.columns))))
