"""R and S of a split as stored tables: what rules 8 to 11 read and write (a `SplitTarget`)."""

from __future__ import annotations

from collections.abc import Iterator

from instar.catalog.descriptors import Table
from instar.schemachange.online.overlay import Writable
from instar.schemachange.online.shapes import column_places
from instar.schemachange.online.stored_rows import LookUp, StoredRow, StoredRows, index_on
from instar.schemachange.online.target_rows import SplitTargets
from instar.store.engine import prefix_end
from instar.transformations.records import Flag, Part, Row, SRecord, choosing


class StoredSplit:
    """R and S over something to write to: an overlay, or the atomic section.

    `doubtful` are the split values whose S record is U and has to be checked, as far as they were put here or
    `find_doubtful` has met them.
    """

    def __init__(self, targets: SplitTargets, source: Table, store: Writable) -> None:
        made = targets.made
        self.targets = targets
        self.doubtful: set[Row] = set()
        self.r_rows, self.s_rows = StoredRows(targets.r, store), StoredRows(targets.s, store)
        r, s = targets.r.table, targets.s.table
        self._r_key = choosing(tuple([source.primary_key.index(column) for column in r.primary_key]))
        self._s_key = choosing(tuple([made.on.index(column) for column in s.primary_key]))
        self._by_value = LookUp(targets.r, index_on(targets.r, made.on), made.on)
        found = column_places(s)
        self._counter, self._consistent = found[made.counter], found[made.consistent]
        hidden = (made.counter, made.consistent)
        self._values = choosing(tuple([place for column, place in found.items() if column not in hidden]))
        self._on = choosing(tuple([found[column] for column in made.on]))

    @property
    def rows(self) -> int:
        """How many rows were put or removed."""
        return self.r_rows.written + self.s_rows.written

    def r(self, key: Row) -> Part | None:
        """As in `SplitTarget`."""
        row = self.r_rows.get(self._key_in_r(key))
        return None if row is None else Part(row.image, row.timestamp)

    def put_r(self, key: Row, record: Part) -> None:
        """As in `SplitTarget`."""
        self.r_rows.put(self.targets.r_row(record, self._key_in_r(key)))

    def remove_r(self, key: Row) -> None:
        """As in `SplitTarget`."""
        row = self.r_rows.get(self._key_in_r(key))
        assert row is not None, "no such record of R"
        self.r_rows.remove(row)

    def s(self, value: Row) -> SRecord | None:
        """As in `SplitTarget`."""
        row = self.s_rows.get(self.key_in_s(value))
        return None if row is None else self._record(row)

    def put_s(self, value: Row, record: SRecord) -> None:
        """As in `SplitTarget`."""
        self.s_rows.put(self.targets.s_row(record, self.key_in_s(value)))
        if record.flag is Flag.UNKNOWN:
            self.doubtful.add(value)
        else:
            self.doubtful.discard(value)

    def overwrite_s(self, value: Row, key: bytes, stored: bytes, *, consistent: bool) -> None:
        """Put what becomes of S's record with a split value, which is at `key` and whose entries stay as they are."""
        self.s_rows.overwrite(key, stored)
        if consistent:
            self.doubtful.discard(value)
        else:
            self.doubtful.add(value)

    def remove_s(self, value: Row) -> None:
        """As in `SplitTarget`."""
        row = self.s_rows.get(self.key_in_s(value))
        assert row is not None, "no such record of S"
        self.s_rows.remove(row)
        self.doubtful.discard(value)

    def find_doubtful(self) -> Iterator[None]:
        """Look at all records of S for those that are U; stops after each."""
        prefix = self.targets.s.prefix
        for key, value in self.s_rows.store.scan(prefix, prefix_end(prefix)):
            row = self.s_rows.row(key, value)
            if not row.image[self._consistent]:
                self.doubtful.add(self._on(row.image))
            yield

    def source_keys(self, value: Row) -> Iterator[bytes]:
        """The encoded primary keys of the rows of R with a split value, which are those of the source's, and perhaps
        of some that have another."""
        for key in self.r_rows.keys(self._by_value, value):
            yield key[len(self.targets.r.prefix) :]

    def _record(self, row: StoredRow) -> SRecord:
        image = row.image
        counter = image[self._counter]
        assert isinstance(counter, int)
        flag = Flag.CONSISTENT if image[self._consistent] else Flag.UNKNOWN
        return SRecord(self._values(image), counter, row.timestamp, flag)

    def _key_in_r(self, key: Row) -> bytes:
        return self.targets.r.key(self._r_key(key))

    def key_in_s(self, value: Row) -> bytes:
        """The store key of S's record with a split value."""
        return self.targets.s.key(self._s_key(value))
