"""R and S of a split after the switch, as rules 8 to 11 read and write them (a `SplitTarget`).

Whoever writes to R or S may leave rows of R whose split value S has not: their source would have NULL in S's columns,
so that is what stands for the record of S, as if it were there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from instar import errors
from instar.catalog.descriptors import Kept, MadeBySplit, Table
from instar.schemachange.online.crossing_rows import Budget, Handle, Limits, RowChange, TableRows, TargetRows
from instar.schemachange.online.shapes import column_places
from instar.schemachange.online.target_rows import require_kept
from instar.tables.rowset import described
from instar.transformations.commits import Rules, Splitting
from instar.transformations.records import Change, Deleted, Flag, Part, Row, Split, SRecord, Updated, chosen, same


class _Columns:
    """Which columns of a target have the values of which of the source's, by their places."""

    def __init__(self, source: Table, target: Table) -> None:
        found = column_places(source)
        shared = [(place, found[column.id]) for place, column in enumerate(target.columns) if column.id in found]
        self.in_target = [place for place, _ in shared]
        self.in_source = tuple(place for _, place in shared)

    def image(self, before: Row, values: Row) -> Row:
        """A row of the target with these values."""
        image = list(before)
        for place, value in zip(self.in_target, values, strict=True):
            image[place] = value
        return tuple(image)


class CrossingSplit:
    """R and S as a translation of `changes` reads and writes them."""

    def __init__(
        self,
        kept: Kept,
        made: MadeBySplit,
        targets: tuple[Table, Table],
        stored: TargetRows,
        budget: Budget,
        changes: Sequence[Change],
    ) -> None:
        (source,) = kept.sources
        r, s = targets
        self._source, self._on = source, made.on
        self._of_r, self._of_s = _Columns(source, r), _Columns(source, s)
        places = column_places(source)
        on = tuple(places[column] for column in made.on)
        self.shape = Split(r=self._of_r.in_source, s=self._of_s.in_source, on=on)
        shown = [column.id for column in r.columns if not column.hidden]
        self._only_s = [place for place in self.shape.s if source.columns[place].id not in shown]
        self._r = TableRows(r, stored, {source.primary_key, made.on}, budget)
        self._s = TableRows(s, stored, {made.on}, budget)
        self._changes = changes
        self._gone: dict[Row, Handle] = {}
        # Records of S that were asked for: the row as it was, what stood for it, and what it is by now.
        self._rows: dict[Row, Handle | None] = {}
        self._before: dict[Row, SRecord | None] = {}
        self._records: dict[Row, SRecord | None] = {}

    def rules(self) -> Rules:
        """The rules by which they follow their source."""
        return Splitting(self, self.shape)

    def has(self, change: Change) -> bool:
        """Whether the row that changes is there."""
        return self.r(change.key) is not None

    def has_as_read(self, change: Updated | Deleted) -> bool:
        """Whether what R has of the row that changes is what it was; and what S has, if that changes, too."""
        part, value = self.r(change.key), self.shape.value(change.before)
        if part is None or part.values != self.shape.r_part(change.before):
            return False
        if value is None or self._leaves_s(change):
            return True
        record = self.s(value)
        return record is not None and record.values == self.shape.s_part(change.before)

    def _leaves_s(self, change: Change) -> bool:
        """Whether the change is one of other columns: what its images have of S may have been read long ago."""
        return isinstance(change, Updated) and same(self.shape.s_part(change.after), self.shape.s_part(change.before))

    def require_kept(self) -> None:
        """23502 if a row would lose values."""
        for change in self._changes:
            if not isinstance(change, Deleted):
                require_kept(self._source, self.shape, self._only_s, change.after)

    def r(self, key: Row) -> Part | None:
        """As in `SplitTarget`."""
        row = self._row_of_r(key)
        return None if row is None else Part(chosen(row.image, self._of_r.in_target), 0)

    def put_r(self, key: Row, record: Part) -> None:
        """As in `SplitTarget`."""
        row = self._row_of_r(key) or self._gone.pop(key, None) or self._r.new()
        self._r.put(row, self._of_r.image(row.now or row.before or self._r.blank(), record.values))

    def remove_r(self, key: Row) -> None:
        """As in `SplitTarget`."""
        row = self._row_of_r(key)
        assert row is not None, "no such record of R"
        self._r.remove(row)
        self._gone[key] = row

    def s(self, value: Row) -> SRecord | None:
        """As in `SplitTarget`. When a record is asked for first, R's rows are counted as they were: from then on it is
        counted here."""
        if value not in self._records:
            row = next(self._s.found(self._on, value), None)
            self._rows[value] = row
            self._before[value] = self._records[value] = self._found(value, row)
        return self._records[value]

    def put_s(self, value: Row, record: SRecord) -> None:
        """As in `SplitTarget`."""
        self._records[value] = record

    def remove_s(self, value: Row) -> None:
        """As in `SplitTarget`."""
        self._records[value] = None

    def changes(self, limits: Limits) -> Iterable[RowChange]:
        """What has become of the rows. `limits.contradiction` if rows of the source would contradict each other."""
        for value, record in self._records.items():
            row, before = self._rows[value], self._before[value]
            if record is not None and record.flag is Flag.UNKNOWN:
                record = self._agreed(value, record, limits)
            if record is None and row is not None:
                self._s.remove(row)
            elif record is not None and (before is None or not same(record.values, before.values)):
                row = row or self._s.new()
                self._s.put(row, self._of_s.image(row.before or self._s.blank(), record.values))
        yield from self._s.changes()
        yield from self._r.changes()

    def _row_of_r(self, key: Row) -> Handle | None:
        return next(self._r.found(self._source.primary_key, key), None)

    def _found(self, value: Row, row: Handle | None) -> SRecord | None:
        """The record of S that a row is, or that stands for one. It is enough to count so many that the changes do not
        use them up."""
        enough = len(self._changes) + 2
        counter = sum(1 for _ in islice(self._r.stored(self._on, value), enough))
        if row is not None:
            return SRecord(chosen(row.image, self._of_s.in_target), counter, 0, Flag.CONSISTENT)
        if not counter:
            return None
        by_place = dict(zip(self.shape.on, value, strict=True))
        values = tuple([by_place.get(place) for place in self.shape.s])
        return SRecord(values, counter, 0, Flag.CONSISTENT)

    def _agreed(self, value: Row, record: SRecord, limits: Limits) -> SRecord:
        """A record of which it is not known whether all that contribute to it agree: they do if these very changes say
        the same of all of them, or what the others do (1.00, where they have 1.0)."""
        made = {
            change.key: change.after
            for change in self._changes
            if not isinstance(change, Deleted) and not self._leaves_s(change)
        }
        said = [self.shape.s_part(row) for row in made.values() if self.shape.value(row) == value]
        contributing = islice(self._r.found(self._on, value), len(said) + 1)
        before = self._before[value]
        others_agree = before is not None and before.values == said[0]
        # No row of R has referred to that row of S, so these changes were not made on it: it stays what it is.
        others = (before is not None and not before.counter) or sum(1 for _ in contributing) > len(said)
        if all(part == said[0] for part in said) and (others_agree or not others):
            return SRecord(said[0], record.counter, record.timestamp, Flag.CONSISTENT)
        columns = {column.id: column for column in self._source.columns}
        shown = described([columns[column] for column in self._on], value)
        at_once = limits.contradiction == errors.CHECK_VIOLATION
        held = "one row for them" if self._rows[value] is not None else "no row for them yet: there they are NULL"
        raise errors.error(
            limits.contradiction,
            f'rows of what was table "{self._source.name}" would contradict each other',
            detail=f'Rows with {shown} would differ in columns of table "{self._s.table.name}", which has {held}.',
            # A transaction that crosses a switch is judged as a whole, what is written through a kept view at once.
            hint=f"Change all of them alike, in one {'statement' if at_once else 'transaction'}.",
        )
