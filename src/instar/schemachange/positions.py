"""Where columns stand: FIRST, or AFTER another. Rows are stored in the columns' order, so a move makes a layout."""

from __future__ import annotations

from collections.abc import Iterable

from instar import errors
from instar.catalog.descriptors import Column, Layout, StepKind, Table
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft
from instar.schemachange.next_layout import next_layout
from instar.types import Type


def place_of(draft: Draft, table: Table, columns: tuple[Column, ...], place: want.Place | None) -> int:
    """Before which of `columns` a new or moved one comes; at the end if nothing was said. 42703 for an unknown one."""
    if place is None:
        return len(columns)
    if place.after is None:
        return 0
    after = draft.column(table, place.after)
    return columns.index(after) + 1


def layout_of(
    table: Table, columns: tuple[Column, ...], new: Iterable[tuple[int, Type]] = (), *, populated: bool = False
) -> Layout:
    """The table's next layout with its stored columns, and new ones, in the order of `columns`."""
    stored = dict([*table.layout.columns, *new])
    ordered = [(column.id, stored[column.id]) for column in columns]
    return next_layout(table, ordered, populated=populated)


def move_column(draft: Draft, wanted: want.MoveColumn) -> None:
    """ALTER COLUMN ... FIRST or AFTER: direct. Rows that are there are read as they lie, by the ids of columns."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    if wanted.place.after == column.name:
        raise errors.error(errors.INVALID_TABLE_DEFINITION, f'column "{column.name}" cannot come after itself')
    others = tuple(found for found in table.columns if found.id != column.id)
    at = place_of(draft, table, others, wanted.place)
    columns = (*others[:at], column, *others[at:])
    if columns != table.columns:
        draft.edit(
            table.id, (StepKind.MOVE_COLUMN, (column.id,)), columns=columns, layout=layout_of(table, columns)
        )  # fmt: skip
