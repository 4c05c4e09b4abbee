"""Plain updates, taken on bytes: those that leave alone what tables are split or joined by, which most of a log is.

They are rule 10 of a split, with nothing for rule 11 to do, and rule 7 of a join. Each comes to rows of the targets
that are there already, and stay where they are with all their entries; only the update's part of them is put anew. So
no value is made of what is only copied. What is not surely of this kind is left to the rules, over values, and so is an
update of which some rows are put already: the rules find these to be ahead.

Of a commit they may go before all that is not plain (rule 28 of the protocol). A split's plain update writes to the one
record of R that is its row's, and a row has one change per commit; a join's writes to its own part of records, and all
others move that part from record to record as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from instar.catalog.descriptors import DEFAULT_LOCK, Table
from instar.encoding.keys import ROWSET_PREFIX_BYTES
from instar.encoding.patching import RowPatcher
from instar.schemachange.online.changes import SourceRows
from instar.schemachange.online.join_target import StoredJoin
from instar.schemachange.online.overlay import Readable
from instar.schemachange.online.shapes import column_places
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.target_rows import R_PART, S_PART, JoinTarget, SplitTargets
from instar.store.engine import ROW_HEADER, LogRecord
from instar.tables.layout import layout_format
from instar.tables.patching import mover
from instar.tables.resolver import Wanted
from instar.tables.rowset import wanted
from instar.transformations.records import Row, Source, choosing
from instar.types import Type

_HEAD_FIELDS = 3  # of a row's header, before the timestamps of its locks


class _Moved:
    """Some columns of a source's rows as the bytes of a body. Equal bytes are the same values, to the last bit."""

    def __init__(self, rows: SourceRows, columns: Sequence[Wanted]) -> None:
        self._rows = rows
        self._columns = columns
        self._movers: dict[int, RowPatcher | None] = {}

    def of(self, stored: bytes, view: Readable) -> bytes | None:
        """Of a stored row, in whichever layout (rule 26); None if a value would have to be converted or computed."""
        layout = ROW_HEADER.unpack_from(stored)[2] >> 8
        try:
            move = self._movers[layout]
        except KeyError:
            move = self._movers[layout] = mover(self._rows.layout(layout, view), self._columns)
        return None if move is None else move(stored, ())


class PlainSplit:
    """Plain updates of the source of a split: rule 10 (§5.2), where rule 11 does nothing since S's columns, by some of
    which the table is split, stay what they are."""

    def __init__(self, rows: SourceRows, targets: SplitTargets) -> None:
        source, made = rows.table, targets.made
        places = column_places(source)
        r = targets.r.table
        self._r = targets.r
        on = len(made.on)
        of_s = [place for place in targets.shape.s if source.columns[place].id not in made.on]
        kept = [*(places[column] for column in made.on), *of_s]
        self._kept = _Moved(rows, [wanted(source.columns[place]) for place in kept])
        # Where a body's bitmap says that a split column is NULL: such a row may have values that would be lost.
        self._null_masks = [(at // 8, 1 << at % 8) for at in range(on)]
        self._part = _Moved(
            rows, [wanted(source.columns[places[id_]])._replace(type=type_) for id_, type_ in r.layout.columns]
        )
        # Else rows of R are elsewhere than their keys in T say.
        self._is_keyed_alike = _key_types(r) == _key_types(source)

    def apply(self, target: StoredSplit, record: LogRecord, before: bytes, after: bytes, view: Readable) -> bool:
        """Apply the update of a row from `before` to `after`, if it is plain; else do nothing."""
        kept = self._kept.of(after, view)
        if kept is None or kept != self._kept.of(before, view) or not self._is_keyed_alike:
            return False
        if any(kept[at] & mask for at, mask in self._null_masks):
            return False
        part = self._part.of(after, view)
        return part is not None and self._update_r(target, record, part)

    def _update_r(self, target: StoredSplit, record: LogRecord, part: bytes) -> bool:
        """Rule 10: the R-part of t^y, and its timestamp; ignored if there is no r^y, or a newer one."""
        r = self._r
        key = r.prefix + record.key[ROWSET_PREFIX_BYTES:]
        old = target.r_rows.store.get(key)
        if old is None or ROW_HEADER.unpack_from(old)[0] >= record.timestamp:
            return True
        new = r.value(part, record.timestamp)
        if r.indexed_bytes(old, ()) != r.indexed_bytes(new, ()):
            return False  # its split value among them: T's is the same as before, but R need not be at that
        target.r_rows.overwrite(key, new)
        return True


class PlainJoin:
    """Plain updates of the sources of a join: rule 7 (§4.2), for both kinds of join. A join column in T stays what it
    is, and so does the join value."""

    def __init__(self, sources: tuple[SourceRows, SourceRows], target: JoinTarget) -> None:
        made = target.made
        r_on, s_on = ([pair[side] for pair in made.on] for side in (0, 1))
        r, s = sources
        self._parts = {
            r.table.id: _PlainPart(r, target, _Side(Source.R, R_PART, made.r_lock, made.s_lock, made.r_columns, r_on)),
            s.table.id: _PlainPart(s, target, _Side(Source.S, S_PART, made.s_lock, made.r_lock, made.s_columns, s_on)),
        }

    def apply(self, target: StoredJoin, record: LogRecord, before: bytes, after: bytes, view: Readable) -> bool:
        """As of `PlainSplit`; what is put already of an update that turns out not to be plain is at its timestamp."""
        return self._parts[record.table].apply(target, record.timestamp, before, after, view)


class _Side(NamedTuple):
    """A part of T: its bit among the parts, its lock and that of the other part, where T has its columns, and the
    join columns of the source."""

    source: Source
    bit: int
    lock: int
    other_lock: int
    columns: tuple[tuple[int, int], ...]
    on: list[int]


class _PlainPart:
    """The plain updates of one source of a join."""

    def __init__(self, rows: SourceRows, target: JoinTarget, side: _Side) -> None:
        self._rows, self._t, self._side = rows, target.t, side
        source, t = rows.table, target.t.table
        places, in_target = column_places(source), dict(side.columns)
        self._kept = _Moved(rows, [wanted(source.columns[places[column]]) for column in side.on])
        put = [column.id for column in source.columns if column.id not in side.on and column.id in in_target]
        self._values: Callable[[Row], Row] = choosing(tuple([places[column] for column in put]))
        layout = [column for column, _ in t.layout.columns]
        of_t = column_places(t)
        self._patch = mover(
            t.layout,
            [wanted(t.columns[of_t[column]]) for column in layout],
            [layout.index(in_target[column]) for column in put],
        )
        self._puts_indexed = not {of_t[in_target[column]] for column in put}.isdisjoint(target.t.indexed)
        slot, form = layout_format(t.layout).slots[layout.index(target.made.parts)], layout_format(t.layout)
        self._parts_of = struct.Struct("<" + slot.code).unpack_from
        self._parts_at = form.start + slot.offset
        locks = t.layout.locks
        self._newest, self._own, self._other = (
            _HEAD_FIELDS + locks.index(lock) for lock in (DEFAULT_LOCK, side.lock, side.other_lock)
        )

    def apply(self, target: StoredJoin, timestamp: int, before: bytes, after: bytes, view: Readable) -> bool:
        """See `PlainJoin`."""
        kept = self._kept.of(after, view)
        if kept is None or kept != self._kept.of(before, view):
            return False
        row = self._rows.row(after, view)
        keys, values = target.row_keys(self._side.source, self._rows.key(row)), self._values(row)
        return keys is not None and all(self._update_part(target, key, values, timestamp) for key in keys)

    def _update_part(self, target: StoredJoin, key: bytes, values: Row, timestamp: int) -> bool:
        """Rule 7 for one record of T, ignored if that is newer, or lacks the part though it has the key in a column
        that both parts share."""
        old = target.t_rows.store.get(key)
        assert old is not None, "an entry of no row"
        head = list(self._t.head.unpack_from(old))
        if not self._parts_of(old, self._parts_at)[0] & self._side.bit or head[self._own] >= timestamp:
            return True
        assert self._patch is not None, "columns of the one layout that there is"
        body = self._patch(old, values)
        if body is None:  # a NULL comes
            return False
        head[self._own], head[self._newest] = timestamp, max(timestamp, head[self._other])
        new = self._t.value(body, head[self._newest], head[_HEAD_FIELDS:])
        if self._puts_indexed and self._t.indexed_bytes(old, ()) != self._t.indexed_bytes(new, ()):
            return False
        target.t_rows.overwrite(key, new)
        return True


def _key_types(table: Table) -> list[tuple[int, Type]]:
    """The columns of a table's primary key with their types."""
    places = column_places(table)
    return [(column, table.columns[places[column]].type) for column in table.primary_key]
