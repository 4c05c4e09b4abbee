"""The layout that a table's rows are written in from a change on."""

from __future__ import annotations

from collections.abc import Sequence

from instar.catalog.descriptors import Layout, Table
from instar.types import Type


def next_layout(
    table: Table, columns: Sequence[tuple[int, Type]], *, locks: tuple[int, ...] | None = None, populated: bool = False
) -> Layout:
    """The one after the table's own. `locks`: if they are others; `populated`: a job gives rows that are there values
    of a column, and so puts them into this layout, whatever theirs had."""
    before = table.layout
    has = {column for column, _ in columns}
    gone: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    if table.oldest_layout < before.id:
        gone, lost = before.gone, tuple(column for column in before.lost if column not in has)
    gone = tuple(column for column in (*gone, *(column for column, _ in before.columns)) if column not in has)
    if populated:
        lost = (*lost, *(column for column in gone if column not in lost))
    return Layout(before.id + 1, tuple(columns), before.locks if locks is None else locks, gone, lost)
