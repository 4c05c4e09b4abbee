"""T of a join after the switch, as rules 1 to 7 read and write it (a `JoinTarget`).

A row of T stays the same row as long as it has the same row of R, or has none and the same row of S: its row id stays,
and what other columns it has got meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from instar import errors
from instar.catalog.descriptors import Kept, MadeByJoin, Table
from instar.schemachange.online.crossing_rows import Budget, Handle, RowChange, TableRows, TargetRows
from instar.schemachange.online.shapes import column_places, join_shape
from instar.tables.rowset import described
from instar.transformations.commits import Rules, joining
from instar.transformations.records import Change, Deleted, Joined, Part, Row, Source, Updated, chosen
from instar.transformations.targets import has

Keys = tuple[Row | None, Row | None]


def marks(made: MadeByJoin, sources: tuple[Table, ...], source: Source) -> tuple[int, ...]:
    """The columns of T that tell whether a row has R's part, or S's: those of its primary key that are its alone, else
    others that are and cannot be NULL. 0A000 if there are none."""
    of_r, of_s = dict(made.r_columns), dict(made.s_columns)
    own, other = (of_r, of_s) if source is Source.R else (of_s, of_r)
    table = sources[0 if source is Source.R else 1]
    alone = {column: place for column, place in own.items() if place not in other.values()}
    key = [column for column in table.primary_key if column in alone]
    told = key or [column.id for column in table.columns if column.id in alone and not column.nullable]
    if not told:
        raise errors.error(
            errors.FEATURE_NOT_SUPPORTED,
            f"keeping views and the strategy 'commit' are not supported where rows that have no row of table "
            f'"{table.name}" could not be told from others: no new column is of that table alone and NOT NULL',
            hint=f'Have join columns twice, so that one is of "{table.name}" alone (ON r.k = s.k INTO t (r.k AS rk, '
            "s.k AS sk, ...)), or a column that is NOT NULL. Or keep no views, and take another strategy.",
        )
    return tuple(alone[column] for column in told)


class _Side:
    """R or S: where its columns are in T."""

    def __init__(self, kept: Kept, made: MadeByJoin, source: Source, places: Mapping[int, int]) -> None:
        of_r = source is Source.R
        self.table = kept.sources[0 if of_r else 1]
        columns = dict(made.r_columns if of_r else made.s_columns)
        self.places = [places[columns[column.id]] if column.id in columns else None for column in self.table.columns]
        self.key = tuple(columns[column] for column in self.table.primary_key)
        self.on = tuple(columns[one if of_r else other] for one, other in made.on)
        self.has = [at for at, place in enumerate(self.places) if place is not None]
        self.marks = [places[column] for column in marks(made, kept.sources, source)]
        self._key_places = [column_places(self.table)[column] for column in self.table.primary_key]

    def part(self, image: Row) -> Part | None:
        """What a row of T has of it."""
        if any(image[place] is None for place in self.marks):
            return None
        return Part(tuple([None if place is None else image[place] for place in self.places]), 0)

    def key_of(self, part: Part | None) -> Row | None:
        return None if part is None else tuple([part.values[place] for place in self._key_places])


class CrossingJoin:
    """T as a translation reads and writes it."""

    def __init__(self, kept: Kept, made: MadeByJoin, table: Table, stored: TargetRows, budget: Budget) -> None:
        places = column_places(table)
        self.shape = join_shape(kept.sources[0], kept.sources[1], made)
        self._sides = {source: _Side(kept, made, source, places) for source in (Source.R, Source.S)}
        r, s = self._sides[Source.R], self._sides[Source.S]
        self._on = tuple(dict.fromkeys((r.on, s.on)))
        self._rows = TableRows(table, stored, {r.key, s.key, r.on, s.on}, budget)
        # Rows that are gone, by the keys of R, and of S where there was none of R: what comes in their place is them.
        self._gone: dict[Keys, list[Handle]] = {}

    def rules(self) -> Rules:
        """The rules by which it follows its sources."""
        return joining(self, self.shape)

    def changes(self) -> Iterable[RowChange]:
        """What has become of the rows."""
        return self._rows.changes()

    def has(self, change: Change) -> bool:
        """Whether the row that changes is there."""
        return has(self.of(change.source, change.key))

    def has_as_read(self, change: Updated | Deleted) -> bool:
        """Whether what the rows have of the row that changes is what it was, as far as they have its columns."""
        places = self._sides[change.source].has
        before = chosen(change.before, places)
        parts = [record.part(change.source) for record in self.of(change.source, change.key)]
        return all(part is None or chosen(part.values, places) == before for part in parts)

    def require_room(self, changes: Sequence[Change]) -> None:
        """23505 if a row of S that was put has found another one with its join value."""
        for change in changes if self.shape.unique else ():
            if change.source is Source.S and not isinstance(change, Deleted) and not self.has(change):
                raise _taken(self._sides[Source.S].table, self.shape.s_on, change.after)

    def of(self, source: Source, key: Row) -> Iterable[Joined]:
        """As in `JoinTarget`."""
        for row in self._rows.found(self._sides[source].key, key):
            record = self._record(row)
            if record is not None and record.part(source) is not None:
                yield record

    def matching(self, value: Row) -> Iterable[Joined]:
        """As in `JoinTarget`."""
        seen = set()
        for on in self._on:
            for row in self._rows.found(on, value):
                record = self._record(row)
                if record is not None and row not in seen:
                    seen.add(row)
                    yield record

    def put(self, record: Joined) -> None:
        """As in `JoinTarget`; where several rows have the keys of the record, they are all put."""
        keys = self._keys(record)
        rows = self._stored(keys) or [self._free(keys)]
        for row in rows:
            self._rows.put(row, self._image(row.now or row.before or self._rows.blank(), record))

    def remove(self, record: Joined) -> None:
        """As in `JoinTarget`."""
        keys = self._keys(record)
        place = (keys[0], None) if keys[0] is not None else (None, keys[1])
        for row in self._stored(keys):
            self._rows.remove(row)
            self._gone.setdefault(place, []).append(row)

    def _free(self, keys: Keys) -> Handle:
        """The row that a new record is to be."""
        for place in ((keys[0], None), (None, keys[1])):
            if place != (None, None) and self._gone.get(place):
                return self._gone[place].pop()
        return self._rows.new()

    def _stored(self, keys: Keys) -> list[Handle]:
        """The rows of the record with these keys."""
        source = Source.R if keys[0] is not None else Source.S
        key = keys[0] or keys[1] or ()
        found = []
        for row in self._rows.found(self._sides[source].key, key):
            record = self._record(row)
            if record is not None and self._keys(record) == keys:
                found.append(row)
        return found

    def _keys(self, record: Joined) -> Keys:
        return self._sides[Source.R].key_of(record.r), self._sides[Source.S].key_of(record.s)

    def _record(self, row: Handle) -> Joined | None:
        """The row as the rules know it; None if it has neither part, as whoever writes to T may leave it."""
        r, s = (self._sides[source].part(row.image) for source in (Source.R, Source.S))
        return None if r is None and s is None else Joined(r, s)

    def _image(self, before: Row, record: Joined) -> Row:
        """A row with the record's values: of a column that both parts have it is R's, if that part is there."""
        image = list(before)
        for source in (Source.S, Source.R):
            for place in self._sides[source].places:
                if place is not None:
                    image[place] = None
        for source in (Source.S, Source.R):
            part = record.part(source)
            for at, place in enumerate(self._sides[source].places):
                if part is not None and place is not None:
                    image[place] = part.values[at]
        return tuple(image)


def _taken(table: Table, on: Sequence[int], row: Row) -> errors.Error:
    columns = [table.columns[place] for place in on]
    ids = {column.id for column in columns}
    names = [index.name for index in table.indexes if index.unique and ids.issuperset(p.column for p in index.columns)]
    name = table.primary_key_name if ids.issuperset(table.primary_key) else names[0]
    return errors.error(
        errors.UNIQUE_VIOLATION,
        f'duplicate key value violates unique constraint "{name}"',
        detail=f"Key {described(columns, chosen(row, on))} already exists.",
    )
