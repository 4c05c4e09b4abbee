"""The layout that a table's rows are written in from a change on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from instar.catalog.descriptors import Layout, State, Table
from instar.types import Type


def next_layout(
    table: Table, columns: Sequence[tuple[int, Type]], *, locks: tuple[int, ...] | None = None, populated: bool = False
) -> Layout:
    """The one after the table's own. `locks`: if they are others; `populated`: a job is to give rows that are there
    values of a column, and so puts them into another layout; if there may be rows with columns that older snapshots may
    read and it has not, those into one that is kept beside it."""
    before = table.layout
    populated |= any(column.per_row and column.state is not State.PUBLIC for column in table.columns)
    made = numbered(Layout(0, tuple(columns), before.locks if locks is None else locks), table)
    if populated and (made.left or table.oldest_layout < before.id):
        made = numbered(msgspec.structs.replace(made, has_wide=True), table)
    return made


def numbered(layout: Layout, before: Table) -> Layout:
    """The layout as the next one after that of `before`, with room for the one beside it."""
    has = {column for column, _ in layout.columns}
    left = tuple(column for column in before.columns if column.id not in has and not column.hidden)
    return msgspec.structs.replace(layout, id=before.layout.id + (2 if layout.has_wide else 1), left=left)
