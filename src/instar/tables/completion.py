"""Changes of a table one of whose columns their statements did not see, while a job gave every row a value of it.

An image that was read before the job came to its row has no value of the column, and the row may have one by now: the
job keeps timestamps, so nothing else would notice it. So before such a change is derived or read, it is completed with
what stands in the store: a row keeps its value, its old index keys are taken from that (rule 10), and a row that has
none is given one.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from instar.catalog.descriptors import Column, State, Table
from instar.store.engine import ROW_TOMBSTONE, View
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.rowset import TableReader
from instar.transactions.buffer import Change, TableBuffer

# Evaluates a column's default for one row.
Default = Callable[[Column], object]

_Values = dict[int, object]  # by ordinal


def unseen(meant: Table, newest: Table) -> list[tuple[int, Column]]:
    """The columns (with their ordinals) whose values a job gives or gave to rows, and which statements under `meant`
    could not name."""
    shown = {column.id for column in meant.columns if column.state is State.PUBLIC}
    return [
        (ordinal, column)
        for ordinal, column in enumerate(newest.columns)
        if column.per_row and column.id not in shown
    ]  # fmt: skip


def completed(buffer: TableBuffer, meant: Table, rows: TableReader, view: View, default: Default) -> TableBuffer:
    """A copy of `buffer` with values of all columns that are `unseen`. Its images are under the table of `rows`, which
    reads all columns; `meant` is the version that the statements saw."""
    late = unseen(meant, rows.table)
    written = {column.id for column in meant.columns}
    standing = {key: _standing(rows, late, view.get(rows.prefix + key)) for key in buffer.changes}
    gone = ((change.pair if change.image is None else change.gone, key) for key, change in buffer.changes.items())
    moved = {pair: standing[key] for pair, key in gone if pair}
    copy = TableBuffer(buffer.table)
    for key, change in buffer.changes.items():
        old, image = change.old, change.image
        if old is not None:
            old = _with(old, standing[key])
        if image is not None:
            image = _with(image, _values(change, image, late, standing[key], moved, written, default))
        copy.changes[key] = replace(change, old=old, image=image)
    return copy


def _standing(rows: TableReader, late: list[tuple[int, Column]], stored: bytes | None) -> _Values:
    """The values that the stored row has of those columns."""
    if stored is None or stored[LAYOUT_OFFSET] & ROW_TOMBSTONE:
        return {}
    has = {column for column, _ in rows.layout_of(stored).columns}
    image = rows.decode(stored)
    return {ordinal: image[ordinal] for ordinal, column in late if column.id in has}


def _values(
    change: Change,
    image: tuple[object, ...],
    late: list[tuple[int, Column]],
    standing: _Values,
    moved: dict[int, _Values],
    written: set[int],
    default: Default,
) -> _Values:
    """The values of those columns in the new row."""
    found: _Values = {}
    for ordinal, column in late:
        if column.derived is not None:
            continue  # of the new row it has been made already, whatever the old one had
        if change.pair:
            kept = moved[change.pair]  # the row has changed its key
        else:
            kept = standing if change.base is not None and change.changed is not None else {}
        if ordinal in kept:
            found[ordinal] = kept[ordinal]
        elif column.id not in written or (image[ordinal] is None and change.changed is not None):
            found[ordinal] = default(column)
    return found


def _with(image: tuple[object, ...], values: _Values) -> tuple[object, ...]:
    return tuple([values.get(ordinal, value) for ordinal, value in enumerate(image)]) if values else image
