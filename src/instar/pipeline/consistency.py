"""CHECK TABLE and CHECK DATABASE: definition 4 of F1 §3.2, restated clause by clause for whole rows in layouts.

    1 rows         every row decodes in a layout that exists, resolves into the schema, and stands under its own key
    2 columns      every row has a value for every public column; a frozen one counts, NULL only where it may be
    3 rowsets      every rowset with keys has a record, every live one an owner (exempt: what awaits deallocation)
    4 complete     every row has a live entry in every public index
    5 valid        every live entry, whatever the state of its index, belongs to a row with that key
    6 constraints  CHECK, UNIQUE and FOREIGN KEY hold, as far as they are public
    7 keys         there are no keys but those of clauses 1 and 3, the log and the small records
    catalog        names, ids, headers, layouts and references of the descriptors fit together
    writers        every log record's writer was at or above the floor that held when it committed, where that is known

All of it is judged at one snapshot and read in short store transactions, so it runs beside traffic. Rows and entries
are checked range by range: in this process one after the other, on Spark (where tables are large) in tasks, and what
takes all rows by an anti-join and a grouping (check_source.py). Either way it is the same rows, and the memory needed
does not grow with the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import State, Table
from instar.catalog.layouts import Layouts
from instar.pipeline.catalog_checks import check_catalog, check_writers
from instar.pipeline.importable import name_of
from instar.pipeline.row_checks import (
    ROWS,
    Part,
    Problem,
    Referenced,
    Snapshot,
    Unplaced,
    check_entries,
    check_rows,
)
from instar.pipeline.stores import identity
from instar.schemachange.validate import CompileCheck
from instar.store import key_ranges
from instar.store.engine import ENTRY_VALUE, Store, prefix_end, rowset_prefix
from instar.tables.view import END

__all__ = ["Consistency", "Problem"]

# Below this many rows a table is checked in this process even where Spark may be used: sooner than Spark starts.
SPARK_ROWS = 1_000_000
# A table of so many rows or more is checked in parts, so that there is progress to tell of.
ROWS_PER_PART = 50_000

# Told which table is checked, and which share of it has been; may raise to end the check.
Told = Callable[[str, float], None]


def _untold(table: str, share: float) -> None:
    pass


class Consistency:
    """The checks of one database. `compile_check` is a function of a module: Spark's tasks import it."""

    def __init__(
        self,
        store: Store,
        layouts: Layouts,
        catalog: Catalog,
        compile_check: CompileCheck,
        *,
        spark: str | None = None,
        spark_rows: int | None = None,
        told: Told = _untold,
    ) -> None:
        """`spark`: the path of the store, if large tables are to be checked on Spark, which it then starts; from so
        many rows on (SPARK_ROWS, if that is not said)."""
        self._store = store
        self._layouts = layouts
        self._catalog = catalog
        self._compile = compile_check
        self._spark = None if spark is None else os.path.realpath(spark)
        self._spark_rows = SPARK_ROWS if spark_rows is None else spark_rows
        self._told = told

    def is_large(self, table: Table) -> bool:
        """Whether the table is worth starting Spark for."""
        return self._rows(table) >= self._spark_rows

    def _rows(self, table: Table) -> int:
        prefix = rowset_prefix(table.rowset)
        return key_ranges.estimate(self._store.read, prefix, prefix_end(prefix))

    def check_database(self) -> Iterator[Problem]:
        """Every problem there is. 72000 if the watermark passes the snapshot before the end: begin again."""
        with self._store.read() as reader:
            snapshot = Snapshot(self._store, self._layouts, reader.timestamp, self._catalog.at(reader))
            # Headers and records have no history, so they are compared in the transaction of the snapshot.
            found = list(check_catalog(snapshot, reader))
        token = self._store.register_snapshot(snapshot.timestamp)
        try:
            yield from found
            yield from check_writers(snapshot)
            for table in sorted(snapshot.catalog.tables(), key=lambda table: table.name):
                yield from self._table(snapshot, table)
        finally:
            self._store.release_snapshot(token)

    def check_table(self, table: int) -> Iterator[Problem]:
        """Problems of one table's rows, indexes and constraints; `table` is its id. 72000 as above."""
        with self._store.read() as reader:
            snapshot = Snapshot(self._store, self._layouts, reader.timestamp, self._catalog.at(reader))
        token = self._store.register_snapshot(snapshot.timestamp)
        try:
            yield from self._table(snapshot, snapshot.catalog.table(table))
        finally:
            self._store.release_snapshot(token)

    def _table(self, snapshot: Snapshot, table: Table) -> Iterator[Problem]:
        rows = self._rows(table)
        self._told(table.name, 0.0)
        try:
            if self._spark is not None and rows >= self._spark_rows:
                found = self._on_spark(snapshot, table, self._spark)
                if found is not None:
                    yield from found
                    return
            ranges = self._ranges(table, rows // ROWS_PER_PART + 1)
            unplaced: list[Unplaced] = []
            for done, part in enumerate(ranges, 1):
                if part.item:
                    index = next(index for index in table.indexes if index.id == part.item)
                    yield from check_entries(snapshot, table, index, part.start, part.stop, unplaced)
                else:
                    for problems in check_rows(snapshot, table, self._compile, part.start, part.stop, unplaced):
                        yield from problems
                self._told(table.name, done / len(ranges))
        except errors.Error as failed:
            if failed.sqlstate != errors.DATA_CORRUPTED:
                raise
            yield Problem(table.name, "rows", ROWS, "", f"the table cannot be checked: {failed.message}")

    def _ranges(self, table: Table, parts: int) -> list[Part]:
        """Rows, and then each index, in about so many ranges."""
        ranges: list[Part] = []
        for index, rowset in [(0, table.rowset), *((index.id, index.rowset) for index in table.indexes)]:
            prefix = rowset_prefix(rowset)
            bounds: list[bytes] = []
            if parts > 1:
                split = key_ranges.split(self._store.read, prefix, prefix_end(prefix), parts).ranges
                bounds = [start for start, _ in split[1:]]
            if index:
                bounds = sorted({self._columns_of(bound) for bound in bounds})
            cuts = [b"", *(bound[len(prefix) :] for bound in bounds), END]
            ranges += [Part(index, cuts[i], cuts[i + 1]) for i in range(len(cuts) - 1)]
        return ranges

    def _on_spark(self, snapshot: Snapshot, table: Table, path: str) -> list[Problem] | None:
        """The problems of a table; None if Spark does not start, or fails again and again."""
        from instar.pipeline import check_source

        work = check_source.Work(
            path=path,
            identity=identity(path, self._store),
            timestamp=snapshot.timestamp,
            objects=tuple(snapshot.catalog.tables()),
            table=table.id,
            compile_check=name_of(self._compile),
            parts=tuple(self._parts(snapshot, table)),
        )
        try:
            return check_source.problems(work, lambda share: self._told(table.name, share))
        except errors.Error as failed:
            if failed.sqlstate != errors.IO_ERROR:
                raise
            return None

    def _parts(self, snapshot: Snapshot, table: Table) -> Iterator[Part]:
        """Rows, entries, and the parents of foreign keys, in ranges of about as many keys each."""
        tasks = min(self._rows(table) // ROWS_PER_PART + 1, 4 * (os.cpu_count() or 1))
        yield from self._ranges(table, tasks)
        for foreign_key in table.foreign_keys:
            if foreign_key.state is State.PUBLIC:
                prefix = Referenced(snapshot, table, foreign_key).parents
                for start, stop in key_ranges.split(self._store.read, prefix, prefix_end(prefix), tasks).ranges:
                    yield Part(foreign_key.id, start, stop, True)

    def _columns_of(self, entry: bytes) -> bytes:
        """An entry's key without its primary key: entries with equal index columns must stay in one range."""
        with self._store.read() as reader:
            value = reader.get(entry)
        return entry if value is None else entry[: ENTRY_VALUE.unpack(value)[2]]
