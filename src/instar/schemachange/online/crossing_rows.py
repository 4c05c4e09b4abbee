"""Rows of a target as a translation has left them so far: what is read of the table, and over it what has been put and
removed. Nothing is written; at the end it is told what has become of which row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from instar import errors
from instar.catalog.descriptors import Index, State, Table
from instar.schemachange.online.shapes import column_places, comparable
from instar.transformations.records import Row, chosen

# So many rows may be read for each that may change: all that are found by a changed row are in its way.
_READ_PER_ROW = 64


class FoundRow(NamedTuple):
    """A row of a target as it is read: its encoded primary key, and its values in all of the table's columns, hidden
    ones too."""

    key: bytes
    image: tuple[object, ...]


class TargetRows(Protocol):
    """What the targets are read by. What a call gives is read to its end before the next one, or left."""

    def by_key(self, table: Table, values: tuple[object, ...], /) -> FoundRow | None:
        """The row with these values of the primary key."""
        ...

    def by_index(self, table: Table, index: Index, values: tuple[object, ...], /) -> Iterable[FoundRow]:
        """The rows with just these values in the leading columns of the index."""
        ...


class RowChange(NamedTuple):
    """A change of one row of a target, as a statement would make it. Images have all of the table's columns; `key` and
    `before` are None for a new row, `after` for one that goes. In a new row the columns that no source has are None,
    for the caller to fill: a hidden row id, what came later."""

    table: int
    key: bytes | None
    before: tuple[object, ...] | None
    after: tuple[object, ...] | None


class Limits(NamedTuple):
    """How many rows of targets may change, and as what it is reported if there are more, or if rows of a source would
    contradict each other."""

    rows: int
    too_many: str = errors.LIMIT_EXCEEDED
    contradiction: str = errors.CHECK_VIOLATION


class Handle:
    """A row that was met: as it was, and as it is by now (None: it is not there)."""

    __slots__ = ("before", "key", "now")

    def __init__(self, key: bytes | None, before: Row | None) -> None:
        self.key = key
        self.before = before
        self.now = before

    @property
    def image(self) -> Row:
        """Its values, given that it is there."""
        assert self.now is not None
        return self.now


class Budget:
    """How many rows may be read and changed yet by one translation."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._read = (limits.rows + 1) * _READ_PER_ROW
        self._changed: set[Handle] = set()

    def count_read(self) -> None:
        """A row has been read."""
        self._read -= 1
        if self._read < 0:
            raise self._too_many()

    def count_changed(self, row: Handle) -> None:
        """A row has been put or removed."""
        self._changed.add(row)
        if len(self._changed) > self._limits.rows:
            raise self._too_many()

    def _too_many(self) -> errors.Error:
        return errors.error(
            self._limits.too_many,
            f"what a transaction changes in a table that was joined or split comes to more than {self._limits.rows} "
            "rows of what was made of it",
        )


class TableRows:
    """The rows of one target."""

    def __init__(self, table: Table, stored: TargetRows, look_ups: Iterable[tuple[int, ...]], budget: Budget) -> None:
        """`look_ups`: the columns by which rows will be found."""
        self.table = table
        self.places = column_places(table)
        self._stored = stored
        self._budget = budget
        self._comparable = comparable(table.columns)
        self._met: dict[bytes, Handle] = {}
        self._new: list[Handle] = []
        wanted = {columns: [self.places[column] for column in columns] for columns in look_ups}
        self._look_ups: Mapping[tuple[int, ...], Sequence[int]] = wanted
        self._written: dict[tuple[int, ...], dict[Row, dict[Handle, None]]] = {columns: {} for columns in wanted}

    def found(self, columns: tuple[int, ...], values: Row) -> Iterator[Handle]:
        """The rows that have these values in these columns, none of which is NULL."""
        seen = dict(self._written[columns].get(values, {}))
        yield from seen
        places = self._look_ups[columns]
        for row in self.stored(columns, values):
            self._budget.count_read()
            met = self._met.get(row.key)
            if met is None:
                met = self._met[row.key] = Handle(row.key, self._comparable(row.image))
            if met not in seen and met.now is not None and chosen(met.now, places) == values:
                yield met

    def stored(self, columns: tuple[int, ...], values: Row) -> Iterable[FoundRow]:
        """The rows that had these values in these columns before anything was put or removed here."""
        table, by_column = self.table, dict(zip(columns, values, strict=True))
        if set(table.primary_key) == set(columns):
            row = self._stored.by_key(table, tuple([by_column[column] for column in table.primary_key]))
            return [] if row is None else [row]
        index = index_on(table, columns)
        leading = index.columns[: len(columns)]
        return self._stored.by_index(table, index, tuple([by_column[part.column] for part in leading]))

    def new(self) -> Handle:
        """A row that is to be put."""
        made = Handle(None, None)
        self._new.append(made)
        return made

    def put(self, row: Handle, image: Row) -> None:
        """Give a row these values."""
        self._set(row, image)

    def remove(self, row: Handle) -> None:
        """Take away a row that is there."""
        self._set(row, None)

    def blank(self) -> Row:
        """A row of which nothing is known."""
        return (None,) * len(self.table.columns)

    def changes(self) -> Iterator[RowChange]:
        """What has become of the rows: those that go, then those that change, then those that come."""
        met = [row for row in self._met.values() if row.now is None or _differs(row.now, row.before)]
        met.sort(key=lambda row: row.now is not None)
        for row in (*met, *(row for row in self._new if row.now is not None)):
            yield RowChange(self.table.id, row.key, row.before, row.now)

    def _set(self, row: Handle, image: Row | None) -> None:
        for columns, places in self._look_ups.items():
            written = self._written[columns]
            if row.now is not None:
                written.get(chosen(row.now, places), {}).pop(row, None)
            if image is not None:
                written.setdefault(chosen(image, places), {})[row] = None
        row.now = image
        self._budget.count_changed(row)


def index_on(table: Table, columns: Sequence[int]) -> Index:
    """An index by which rows are found by these columns; 55000 if somebody has dropped it."""
    for index in table.indexes:
        leading = {part.column for part in index.columns[: len(columns)]}
        if index.state is State.PUBLIC and leading == set(columns):
            return index
    names = ", ".join(column.name for column in table.columns if column.id in columns)
    raise errors.error(
        errors.OBJECT_NOT_READY,
        f'table "{table.name}" has no index on ({names}), by which rows of what it was made of are found',
    )


def _differs(now: Row, before: Row | None) -> bool:
    """1.0 and 1.00 are equal, and not the same."""
    return now != before or repr(now) != repr(before)
