"""Plain updates of the sources of a join: rule 7 (§4.2), for both kinds of join. A join column in T stays what it is,
and so does the join value."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from instar.catalog.descriptors import DEFAULT_LOCK, Index
from instar.encoding.comparing import RowComparer
from instar.encoding.keys import ROWSET_PREFIX_BYTES, is_cut
from instar.schemachange.online.changes import SourceRows
from instar.schemachange.online.join_target import StoredJoin
from instar.schemachange.online.overlay import Readable
from instar.schemachange.online.plain_updates import Batch, key_types, layouts_of, tags_of
from instar.schemachange.online.shapes import column_places
from instar.schemachange.online.target_rows import R_PART, S_PART, JoinTarget, TargetTable
from instar.store.engine import LogRecord, rowset_prefix
from instar.tables.layout import layout_format
from instar.tables.patching import mover
from instar.tables.rowset import wanted
from instar.transformations.records import Row
from instar.types import Type

_HEAD_FIELDS = 3  # of a row's header, before the timestamps of its locks
# So many rows of T, at least, are read and put at once.
_TOGETHER = 1_024


class PlainJoin:
    """The plain updates of the sources of a join."""

    def __init__(self, sources: tuple[SourceRows, SourceRows], target: JoinTarget) -> None:
        made = target.made
        r_on, s_on = ([pair[side] for pair in made.on] for side in (0, 1))
        r, s = sources
        of_r = _Side(R_PART, made.r_lock, made.s_lock, dict(made.r_columns), r_on, made.r_index)
        of_s = _Side(S_PART, made.s_lock, made.r_lock, dict(made.s_columns), s_on, made.s_index)
        self.parts = {r.table.id: _PlainPart(r, target, of_r), s.table.id: _PlainPart(s, target, of_s)}

    def batch(self, target: StoredJoin, view: Readable) -> Batch:
        """An empty batch of commits."""
        return _JoinBatch(self, target, view)


class _Side(NamedTuple):
    """A part of T: its bit among the parts, its lock and that of the other part, where T has its columns, the join
    columns of the source, and the index on the source's key."""

    bit: int
    lock: int
    other_lock: int
    columns: dict[int, int]
    on: list[int]
    by_key: int


class _PlainPart:
    """The plain updates of one source of a join."""

    def __init__(self, rows: SourceRows, target: JoinTarget, side: _Side) -> None:
        self._t, self._bit = target.t, side.bit
        source, t = rows.table, target.t.table
        index = next(one for one in t.indexes if one.id == side.by_key)
        self._entries = rowset_prefix(index.rowset)
        of_key = [(side.columns[column], type_) for column, type_ in key_types(source)]
        self._is_keyed_alike = _entry_types(target.t, index) == of_key  # else entries do not begin with the row's key
        put = [column.id for column in source.columns if column.id not in side.on and column.id in side.columns]
        layout = [column for column, _ in t.layout.columns]
        of_t = column_places(t)
        self._rows, self._put = rows, frozenset(put)
        self._kept = frozenset(
            [*side.on, *[column for column in put if of_t[side.columns[column]] in target.t.indexed]]
        )
        self._comparers: dict[bytes, RowComparer] = {}
        self._values = rows.reader(put)
        patch = mover(
            t.layout,
            [wanted(t.columns[of_t[column]]) for column in layout],
            [layout.index(side.columns[column]) for column in put],
        )
        assert patch is not None, "columns of the one layout that there is"
        self._patch = patch
        form = layout_format(t.layout)
        slot = form.slots[layout.index(target.made.parts)]
        self._parts_of = struct.Struct("<" + slot.code).unpack_from
        self._parts_at = form.start + slot.offset
        locks = t.layout.locks
        self._own, self._other = (_HEAD_FIELDS + locks.index(lock) for lock in (side.lock, side.other_lock))
        self._locks = itemgetter(*[(DEFAULT_LOCK, side.lock, side.other_lock).index(lock) for lock in locks])

    def keys(self, target: StoredJoin, record: LogRecord, view: Readable) -> list[bytes] | None:
        """The store keys of the rows of T that a plain update comes to; None if it is none."""
        before, after, key = record.before, record.after, record.key
        if before is None or after is None or record.renewed or not self._is_keyed_alike or is_cut(len(key)):
            return None
        tags = tags_of(before, after)
        stays = self._comparers.get(tags)
        if stays is None:
            # What entries of T are made of stays, too, and nothing that is put is NULL.
            stays = layouts_of(self._rows, before, after, view).alike(self._kept, self._put)
            self._comparers[tags] = stays
        if not stays(before, after):
            return None
        return target.t_rows.keys_at(self._entries + key[ROWSET_PREFIX_BYTES:])

    def values(self, record: LogRecord, view: Readable) -> Row:
        """What a plain update puts."""
        assert record.after is not None, "an update has a row after it"
        return self._values(record.after, view)

    def updated(self, old: bytes, values: Row, timestamp: int) -> bytes | None:
        """Rule 7 for one record of T, ignored if that is newer, or lacks the part though it has the key in a column
        that both parts share."""
        head = self._t.head.unpack_from(old)
        if not self._parts_of(old, self._parts_at)[0] & self._bit or head[self._own] >= timestamp:
            return None
        body = self._patch(old, values)
        assert body is not None, "a NULL in a plain update"
        other = head[self._other]
        newest = timestamp if timestamp > other else other
        return self._t.value(body, newest, self._locks((newest, timestamp, other)))


class _JoinBatch:
    """A batch of a join: plain updates by the rows' keys, of which the last of each is kept, and what is left."""

    def __init__(self, plain: PlainJoin, target: StoredJoin, view: Readable) -> None:
        self.weight = 0
        self.is_closed = False
        self._parts, self._target, self._view = plain.parts, target, view
        self._newest: dict[bytes, tuple[LogRecord, list[bytes]]] = {}
        self._left: list[LogRecord] = []

    def add(self, records: list[LogRecord]) -> None:
        """As in `Batch`."""
        assert not self._left, "the changes of a row stay in order"
        for record in records:
            keys = self._parts[record.table].keys(self._target, record, self._view)
            if keys is None:
                self._left.append(record)
                self.is_closed = True
            else:
                self._newest[record.key] = record, keys
                self.weight += max(len(keys), 1)

    def apply(self, by_rules: Callable[[list[LogRecord]], None]) -> None:
        """As in `Batch`."""
        waiting: list[tuple[LogRecord, list[bytes]]] = []
        rows = 0
        for record, keys in self._newest.values():
            waiting.append((record, keys))
            rows += len(keys)
            if rows >= _TOGETHER:
                self._update(waiting)
                waiting, rows = [], 0
        self._update(waiting)
        if self._left:
            by_rules(self._left)

    def _update(self, records: list[tuple[LogRecord, list[bytes]]]) -> None:
        """Rule 7 for some records. A row of T may be met by two, one of each source."""
        view, t_rows = self._view, self._target.t_rows
        keys = [key for _, found in records for key in found]
        rows, puts = dict(zip(keys, t_rows.store.get_many(keys), strict=True)), {}
        for record, found in records:
            part, timestamp = self._parts[record.table], record.timestamp
            values = part.values(record, view)
            for key in found:
                old = rows[key]
                assert old is not None, "an entry of no row"
                new = part.updated(old, values, timestamp)
                if new is not None:
                    rows[key] = puts[key] = new
        t_rows.overwrite_many(puts)


def _entry_types(target: TargetTable, index: Index) -> list[tuple[int, Type]] | None:
    """The columns that entries of an index begin with, and their types; None if some are in descending order."""
    if any(part.descending for part in index.columns):
        return None
    places = column_places(target.table)
    return [(part.column, target.table.columns[places[part.column]].type) for part in index.columns]
