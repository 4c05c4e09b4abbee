"""The layout that a table's rows are written in from a change on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from instar.catalog.descriptors import Layout, State, Table
from instar.catalog.encoded_columns import encoded_columns, may_have_column
from instar.types import Type


def next_layout(
    table: Table, columns: Sequence[tuple[int, Type]], *, locks: tuple[int, ...] | None = None, populated: bool = False
) -> Layout:
    """The one after the table's own. `locks`: if they are others; `populated`: a job is to give rows that are there
    values of a column, and so puts them into another layout; if it drops nothing that older snapshots may read, into
    this one, else into the one that is kept beside it."""
    before = table.layout
    has = {column for column, _ in columns}
    kept = before.encoded if table.oldest_layout < before.id else b""
    if any(may_have_column(kept, column) for column in has.difference(found.id for found in table.columns)):
        kept = encoded_columns(tuple(found for found in before.dropped if found.id not in has))  # one comes back
    gone = tuple(column for column in table.columns if column.id not in has and not column.hidden)
    dropped = encoded_columns(gone, kept)
    populated |= any(column.per_row and column.state is not State.PUBLIC for column in table.columns)
    made = Layout(
        0,
        tuple(columns),
        before.locks if locks is None else locks,
        dropped,
        populated and bool(dropped),
    )
    return numbered(made, before)


def numbered(layout: Layout, before: Layout) -> Layout:
    """The layout as the next one after `before`, with room for the one beside it."""
    return msgspec.structs.replace(layout, id=before.id + (2 if layout.has_wide else 1))
