"""T of a join as a stored table: what rules 1 to 7 read and write (a `JoinTarget`).

T need not have all columns of its sources. In the parts that are found here, the others are None: the rules look at
keys and join columns only, which T has, and copy or overwrite the rest, so that what T lacks goes nowhere.

A row of T keeps its row id for as long as its record has the same keys. A new record gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from instar.catalog.descriptors import Table
from instar.schemachange.online.overlay import Writable
from instar.schemachange.online.shapes import column_places
from instar.schemachange.online.stored_rows import LookUp, StoredRow, StoredRows
from instar.schemachange.online.target_rows import R_PART, S_PART, JoinTarget
from instar.transformations.records import Joined, Part, Row, Source, choosing

# So many records are remembered, about.
_MOST_KNOWN = 100_000

Keys = tuple[Row | None, Row | None]


class StoredJoin:
    """T over something to write to: an overlay, or the atomic section."""

    def __init__(
        self, target: JoinTarget, sources: tuple[Table, Table], store: Writable, new_row_id: Callable[[], int]
    ) -> None:
        made, table = target.made, target.t.table
        self.target = target
        self._new_row_id = new_row_id
        self.t_rows = StoredRows(target.t, store)
        self._known = _Known()
        found = column_places(table)
        self._id, self._parts = found[table.primary_key[0]], found[made.parts]
        r_on, s_on = ([pair[side] for pair in made.on] for side in (0, 1))
        self._r = _Side(target, R_PART, sources[0], made.r_columns, made.r_index, made.r_lock)
        self._s = _Side(target, S_PART, sources[1], made.s_columns, made.s_index, made.s_lock)
        self._by_value = _by_value(target, [self._r.in_target(r_on), self._s.in_target(s_on)])
        self._r_key, self._s_key = choosing(target.shape.r_key), choosing(target.shape.s_key)

    @property
    def rows(self) -> int:
        """How many rows were put or removed."""
        return self.t_rows.written

    def of(self, source: Source, key: Row) -> Iterable[Joined]:
        """As in `JoinTarget`. A row that lacks the part may have its key nevertheless, in a column that both share."""
        began = self._known.cleared
        side = self._r if source is Source.R else self._s
        for row in self.t_rows.found(side.by_key, key):
            record = self._record(row)
            if record.part(source) is not None:
                yield record
        self._known.has_all(source, key, began)

    def matching(self, value: Row) -> Iterable[Joined]:
        """As in `JoinTarget`. Where each part has join columns of its own, a record with both is found by either."""
        seen: set[bytes] = set()
        for look_up in self._by_value:
            for row in self.t_rows.found(look_up, value):
                if row.key not in seen:
                    seen.add(row.key)
                    yield self._record(row)

    def put(self, record: Joined) -> None:
        """As in `JoinTarget`."""
        keys = self._keys(record)
        old = self._stored(keys)
        row_id = self._new_row_id() if old is None else old.image[self._id]
        assert isinstance(row_id, int)
        row = self.target.row(row_id, record, None if old is None else old.key)
        self.t_rows.put(row, old)
        if old is None:
            self._known.add(keys, row.key)

    def remove(self, record: Joined) -> None:
        """As in `JoinTarget`."""
        keys = self._keys(record)
        old = self._stored(keys)
        assert old is not None, "no such record of T"
        self.t_rows.remove(old)
        self._known.discard(keys)

    def _stored(self, keys: Keys) -> StoredRow | None:
        """The row of the record with these keys."""
        known = self._known.get(keys)
        if known is None and not self._known.is_absent(keys):
            source = Source.R if keys[0] is not None else Source.S
            for _ in self.of(source, keys[0] or keys[1] or ()):
                known = self._known.get(keys)
                if known is not None:
                    break
        return None if known is None else self.t_rows.get(known)

    def _keys(self, record: Joined) -> Keys:
        r, s = record.r, record.s
        return None if r is None else self._r_key(r.values), None if s is None else self._s_key(s.values)

    def _record(self, row: StoredRow) -> Joined:
        parts = row.image[self._parts]
        assert isinstance(parts, int)
        record = Joined(self._r.part(row, parts), self._s.part(row, parts))
        self._known.add(self._keys(record), row.key)
        return record


class _Side:
    """Where T has the part of one source, and how its rows are found by that source's key."""

    def __init__(
        self,
        target: JoinTarget,
        part: int,
        source: Table,
        columns: Sequence[tuple[int, int]],
        index: int,
        lock: int,
    ) -> None:
        table = target.t.table
        places = column_places(table)
        self._part = part
        self._in_target = dict(columns)
        self._lock = table.layout.locks.index(lock)
        of_source = [self._in_target.get(column.id) for column in source.columns]
        self._is_whole = None not in of_source
        # Behind a row's columns there is a NULL, for what T has not.
        self._values = choosing(tuple([len(places) if column is None else places[column] for column in of_source]))
        found = next(one for one in table.indexes if one.id == index)
        self.by_key = LookUp(target.t, found, self.in_target(source.primary_key))

    def in_target(self, columns: Iterable[int]) -> tuple[int, ...]:
        """What columns of the source are in T."""
        return tuple([self._in_target[column] for column in columns])

    def part(self, row: StoredRow, parts: int) -> Part | None:
        """The part of the source in a row that has these."""
        if not parts & self._part:
            return None
        image = row.image if self._is_whole else (*row.image, None)
        return Part(self._values(image), row.locks[self._lock])


def _by_value(target: JoinTarget, sides: Sequence[Sequence[int]]) -> list[LookUp]:
    """How rows are found by the join columns of either part, which are one look-up where T has them once."""
    indexes = [index for index in target.t.table.indexes if index.id in target.made.on_indexes]
    found = {}
    for columns in map(tuple, sides):
        index = next(index for index in indexes if {part.column for part in index.columns} == set(columns))
        found[columns] = LookUp(target.t, index, columns)
    return list(found.values())


class _Known:
    """Where records are that were met, and of which rows of the sources all records were: without this, each of the
    many records of a row would be looked for among the others. What is written goes through here, and nobody else
    writes."""

    def __init__(self) -> None:
        self.cleared = 0
        self._rows: dict[Keys, bytes] = {}
        self._whole: set[tuple[Source, Row]] = set()

    def get(self, keys: Keys) -> bytes | None:
        """The store key of the record with these keys, if it is known."""
        return self._rows.get(keys)

    def is_absent(self, keys: Keys) -> bool:
        """Whether there is surely no such record, given that it is not known."""
        r, s = keys
        return (r is not None and (Source.R, r) in self._whole) or (s is not None and (Source.S, s) in self._whole)

    def add(self, keys: Keys, row: bytes) -> None:
        """A record is there."""
        if len(self._rows) + len(self._whole) > _MOST_KNOWN:
            self._rows.clear()
            self._whole.clear()
            self.cleared += 1
        self._rows[keys] = row

    def discard(self, keys: Keys) -> None:
        """A record is gone."""
        self._rows.pop(keys, None)

    def has_all(self, source: Source, key: Row, began: int) -> None:
        """All records with this row of the source have been added, since `cleared` was `began`."""
        if began == self.cleared:
            self._whole.add((source, key))
