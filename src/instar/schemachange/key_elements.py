"""The next primary key as an element (rule 24): what a step of its path does to a table, and what the swap does to the
tables around it.

Delete-only and write-only it is a second set of rowsets beside the table's own, which writers maintain
(tables/copies.py) and nobody reads. Its last step puts them in the place of the table's own, and leaves nothing to tell
it apart from a table that was made so. That step sets f = c: whoever wrote under the old key finds his rows by their
old images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from instar import errors
from instar.catalog.descriptors import Column, ForeignKey, NextKey, State, Table
from instar.schemachange import lock_elements
from instar.schemachange.elements import Phase, state_in
from instar.schemachange.next_layout import next_layout
from instar.schemachange.probed_indexes import referring, referring_from

# What nobody may change in a table while its next key is under way, or the copies would not be what takes their place.
_HELD = frozenset(
    "rowset primary_key primary_key_name indexes foreign_keys referenced_by locks coverage_changes".split()
)


def moved(table: Table, goal: Phase) -> dict[str, object]:
    """The fields of `table` that change when its next key goes to the phase `goal`."""
    if goal is Phase.ABSENT:
        return {"next_key": None}
    assert table.next_key is not None  # the caller has found it in another phase
    if goal is Phase.PUBLIC:
        return swapped(table, table.next_key)
    return {"next_key": msgspec.structs.replace(table.next_key, state=state_in(goal))}


def swapped(table: Table, key: NextKey) -> dict[str, object]:
    """The fields that change when `key` becomes the primary key. The hidden row id has had its day."""
    copies = dict(key.indexes)
    fields: dict[str, object] = {
        "next_key": None,
        "primary_key": key.columns,
        "primary_key_name": key.name,
        "rowset": key.rowset,
        "indexes": tuple(msgspec.structs.replace(index, rowset=copies[index.id]) for index in table.indexes),
        "foreign_keys": tuple(_own_key(found, table, key) for found in table.foreign_keys),
    }
    for column in table.columns:
        if column.hidden:
            fields |= without_column(table, column.id)
    return fields


def without_column(table: Table, column: int) -> dict[str, object]:
    """The fields that change when a column goes: rows are written without it from now on, in a layout of their own."""
    stored = tuple(part for part in table.layout.columns if part[0] != column)
    layout = next_layout(table, stored)
    columns = tuple(found for found in table.columns if found.id != column)
    return {"columns": columns, "layout": layout, **lock_elements.without_column(table, column)}


def _own_key(found: ForeignKey, table: Table, key: NextKey) -> ForeignKey:
    made = referring_from(found, table, key.columns)
    if made is not None and made.parent == table.id:
        made = referring(made, table, key.columns)
    return _certain(made, found)


def foreign_keys_after(child: Table, parent: Table, key: NextKey) -> tuple[ForeignKey, ...]:
    """The foreign keys of a table once `key` is the primary key of `parent`, which some of them refer to."""
    return tuple(
        _certain(referring(found, parent, key.columns), found) if found.parent == parent.id else found
        for found in child.foreign_keys
    )


def _certain(made: ForeignKey | None, found: ForeignKey) -> ForeignKey:
    if made is None:
        raise errors.error(errors.INTERNAL_ERROR, f'the index that foreign key "{found.name}" needs is gone')
    return made


def relatives(table: Table) -> Iterator[int]:
    """The other tables whose writers probe rowsets of this one: both sides of its foreign keys."""
    around = dict.fromkeys((*table.referenced_by, *(found.parent for found in table.foreign_keys)))
    return (related for related in around if related != table.id)


def is_held(table: Table, fields: Iterable[str], columns: Iterable[Column]) -> bool:
    """Whether a change of these fields, to these columns, has to wait for the next key of the table."""
    if table.next_key is None:
        return False
    if not _HELD.isdisjoint(fields):
        return True
    now = {column.id: column for column in columns}
    was = {column.id: column for column in table.columns}
    # Values that rows are given one by one are put in place, where no copy would get them.
    if any(column.state is not State.PUBLIC for column in now.values() if column.id not in was):
        return True
    needed = {*table.primary_key, *table.next_key.columns}
    needed.update(part.column for index in table.indexes for part in index.columns)
    if not needed <= now.keys():
        return True
    return any(was[column].refuses_null and not now[column].refuses_null for column in table.next_key.columns)


def told(before: Table, after: Table) -> Iterator[str]:
    """What became of the key itself, in words."""
    if before.primary_key == after.primary_key:
        return
    names = {column.id: column.name for column in (*before.columns, *after.columns)}
    one, other = (", ".join(names[column] for column in table.primary_key) for table in (before, after))
    yield f"primary key ({one}) -> ({other}), rows and indexes in the rowsets made for it"
