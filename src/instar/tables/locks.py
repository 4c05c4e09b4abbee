"""Optimistic locks (F1 §2.5, §3.4): the lock timestamps of stored rows, which locks a change meets and moves, and the
merge of changes under different locks.

A row's timestamp under a lock is that of the last commit that changed a column which the lock covers. A layout of a
table with one lock stores none: there it is the commit timestamp in the row's header. So it is, too, for a lock that a
row's layout does not know yet: never earlier than the truth, so that nothing is missed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from instar import errors
from instar.catalog.descriptors import DEFAULT_LOCK, Column, Layout, Table
from instar.catalog.layouts import Layouts
from instar.encoding.rows import BODY_OFFSET, LOCK_BYTES
from instar.store.engine import ROW_HEADER
from instar.tables.derivations import deriver
from instar.tables.rowset import TableReader
from instar.transactions.buffer import Change

Image = tuple[object, ...]
# Raises 23502 or 23514 if a row does not satisfy the table's NOT NULL and CHECK constraints.
Recheck = Callable[[Table, Image], None]

_TIMESTAMP = struct.Struct("<Q")
_ROW_TIMESTAMP = 0  # where the commit timestamp lies in a stored row


def lock_places(layout: Layout) -> dict[int, int]:
    """Where the timestamps of the locks that a layout knows lie in its stored rows."""
    return {lock: BODY_OFFSET + LOCK_BYTES * number for number, lock in enumerate(layout.locks)}


def guarding(table: Table, column: Column) -> tuple[int, ...]:
    """The locks one of which moves when a row gets another value in the column: those that cover it, or, since nobody
    sets a generated one, those that cover what it is made of."""
    sources = column.derived.sources if column.generated and column.derived is not None else ()
    found = dict.fromkeys(lock for source in sources for lock in table.covering(source.id))
    return tuple(found) or table.covering(column.id)


class LockTimestamps:
    """Reads the lock timestamps of a table's stored rows, whichever layout they are in."""

    def __init__(self, table: Table, layouts: Layouts) -> None:
        self._table = table
        self._layouts = layouts
        self._places: dict[int, dict[int, int]] = {}

    def of(self, stored: bytes, lock: int) -> int:
        """The row's timestamp under one lock; `stored` is no tombstone."""
        layout = ROW_HEADER.unpack_from(stored)[2] >> 8
        places = self._places.get(layout)
        if places is None:
            own = self._table.layout
            places = lock_places(own if own.id == layout else self._layouts.get(self._table.id, layout))
            self._places[layout] = places
        moved: int = _TIMESTAMP.unpack_from(stored, places.get(lock, _ROW_TIMESTAMP))[0]
        return moved

    def newest(self, stored: bytes, locks: Iterable[int]) -> int:
        """The newest of the row's timestamps under these locks; 0 if there are none."""
        return max((self.of(stored, lock) for lock in locks), default=0)


class RowLocks:
    """What the locks of one version of a table, which has several, mean for its writers (made once per version)."""

    def __init__(self, table: Table, layouts: Layouts) -> None:
        self._table = table
        self._ids = table.layout.locks
        self._covering = {column.id: guarding(table, column) for column in table.columns}
        self._timestamps = LockTimestamps(table, layouts)

    def touched(self, change: Change) -> frozenset[int]:
        """The locks that a change meets and moves: those that cover what it set, in dual coverage both; all of them for
        a row that comes or goes."""
        if change.changed is None:
            return frozenset(self._ids)
        none = (DEFAULT_LOCK,)
        return frozenset(lock for column in change.changed for lock in self._covering.get(column, none))

    def parts(self, change: Change) -> list[int]:
        """The numbers, in the row's layout, of the locks that a change meets and moves."""
        touched = self.touched(change)
        return [number for number, lock in enumerate(self._ids) if lock in touched]

    def is_met(self, change: Change, stored: bytes) -> bool:
        """Whether a lock that the change meets has moved since the row version that the change was made on."""
        return change.base is not None and self._timestamps.newest(stored, self.touched(change)) > change.base

    def moved(self, columns: Iterable[int], stored: bytes) -> int:
        """When a lock that covers one of these columns last moved in the stored row."""
        return self._timestamps.newest(stored, {lock for column in columns for lock in self._covering[column]})

    def stamps(self, change: Change, stored: bytes | None) -> tuple[int, ...]:
        """The new row's lock timestamps, as `RowWrite` has them; `stored` is None or a tombstone's for a new row."""
        if change.base is None or stored is None:
            return (0,) * len(self._ids)
        touched = self.touched(change)
        return tuple([0 if lock in touched else self._timestamps.of(stored, lock) for lock in self._ids])


def merged(rows: TableReader, change: Change, stored: bytes, recheck: Recheck | None) -> Change:
    """`change`, made on an older version of the row under other locks, as a change of the row as it is stored: with its
    columns put into that row. Raises what `recheck` does if the two do not go together."""
    current = rows.decode(stored)
    base: int = _TIMESTAMP.unpack_from(stored)[0]
    if change.image is None or change.changed is None:
        return replace(change, base=base, old=current)
    table = rows.table
    has = {column for column, _ in rows.layout_of(stored).columns}
    image = tuple(
        [
            # A row that a job has not given its value yet gets the change's: in its new layout the job passes it by.
            new if column.id in change.changed or (column.per_row and column.id not in has) else now
            for column, new, now in zip(table.columns, change.image, current, strict=True)
        ]
    )
    derive = deriver(table)
    if derive is not None:
        image = derive(image)
    if recheck is not None:
        recheck(table, image)
    elif table.checks:
        raise errors.error(errors.INTERNAL_ERROR, f'nobody checks merged rows of table "{table.name}"')
    return replace(change, base=base, old=current, image=image)
