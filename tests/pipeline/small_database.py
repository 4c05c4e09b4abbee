"""A database without SQL: a store with a catalog, tables made from descriptors, rows committed through TableWriter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from instar.catalog import system
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Check, Column, Index, IndexColumn, Layout, State, Table
from instar.catalog.ids import IdAllocator
from instar.catalog.layouts import Layouts
from instar.clock import SystemClock
from instar.pipeline import stores
from instar.schemachange.elements import Phase, moving, phase_of
from instar.schemachange.job_records import Job, JobState, encode_job, job_key
from instar.schemachange.jobs import Held, Jobs
from instar.schemachange.stages import Move, Stage
from instar.schemachange.validate import Predicate
from instar.store import open_store
from instar.store.engine import Commit
from instar.tables.writes import Derivation, TableWriter
from instar.transactions.buffer import Buffer
from instar.types import Type

Row = tuple[object, ...]


class SmallDatabase:
    """One LMDB store, never synced if nothing else is said, with whatever tables a test wants."""

    def __init__(self, path: Path, synchronous: str = "off") -> None:
        self.path = str(path)
        self.store = open_store(self.path, synchronous=synchronous)
        self.layouts = Layouts(self.store)
        self.ids = IdAllocator(self.store)
        self._catalog = Catalog(self.store, SystemClock())
        with self.store.read() as reader:
            version = reader.catalog_version
        self.store.commit(Commit(catalog_version=version, raw=system.bootstrap_records(), bump_catalog=True))

    def new_catalog(self) -> Catalog:
        """A catalog of its own, as another process has."""
        return Catalog(self.store, SystemClock())

    @property
    def catalog(self) -> CatalogSnapshot:
        with self.store.read() as reader:
            return self._catalog.at(reader)

    @property
    def now(self) -> int:
        """The newest commit."""
        with self.store.read() as reader:
            return reader.timestamp

    def change(self) -> CatalogChange:
        return CatalogChange(self.catalog, self.ids)

    def publish(self, change: CatalogChange) -> int:
        """Commit a catalog change."""
        with self.store.read() as reader:
            parts = change.parts(reader)
            version = reader.catalog_version
        request = Commit(
            catalog_version=version,
            tables=parts.tables,
            raw=parts.raw,
            preconditions=parts.preconditions,
            bump_catalog=True,
        )
        return self.store.commit(request)

    def create(self, name: str, columns: Sequence[tuple[str, Type]], key: Sequence[str], **fields: object) -> Table:
        """A table; columns have ids from 1 on, key columns are NOT NULL."""
        change = self.change()
        ids = {column: ordinal for ordinal, (column, _) in enumerate(columns, 1)}
        table_id = change.new_id()
        layout = Layout(1, tuple((ids[column], type_) for column, type_ in columns))
        table = Table(
            id=table_id,
            name=name,
            version=1,
            columns=tuple(
                Column(id=ids[column], name=column, type=type_, nullable=column not in key) for column, type_ in columns
            ),
            primary_key=tuple(ids[column] for column in key),
            primary_key_name=f"{name}_pkey",
            rowset=change.new_rowset(table_id),
            layout=layout,
            oldest_layout=1,
            next_id=100,
        )
        table = msgspec.structs.replace(table, **fields)
        change.create(table)
        self.publish(change)
        return table

    def add_index(
        self, table: Table, name: str, columns: Sequence[str], state: State, *, unique: bool = False, id_: int = 50
    ) -> Table:
        """The table with one more index, in `state` at once; whatever rows there are have no entries."""
        change = self.change()
        ids = {column.name: column.id for column in table.columns}
        index = Index(
            id=id_,
            name=name,
            columns=tuple(IndexColumn(ids[column.lstrip("-")], column.startswith("-")) for column in columns),
            unique=unique,
            rowset=change.new_rowset(table.id),
            state=state,
        )
        changed = msgspec.structs.replace(table, version=table.version + 1, indexes=(*table.indexes, index))
        change.update(changed, floor="current")
        self.publish(change)
        return changed

    def alter(self, table: Table, **fields: object) -> Table:
        """The table one version on, with other fields."""
        changed = msgspec.structs.replace(table, version=table.version + 1, **fields)
        change = self.change()
        change.update(changed, floor="current")
        self.publish(change)
        return changed

    def claimed(self, job: int) -> Held:
        """A claim of job `job`, which is made."""
        self._record(Job(job, "test", "a test", (), 0, JobState.RUNNING, 0, 0))
        held = Jobs(self.store, SystemClock()).claim(job, b"test")
        assert held is not None
        return held

    def under_way(self, table: Table, job: int = 900) -> None:
        """Have a job that moves what `table` has between two states."""
        moves = [Move(element, phase_of(table, element), Phase.PUBLIC) for element in moving(table)]
        self._record(Job(job, "test", "a test", (Stage(tuple(moves)),), 0, JobState.RUNNING, 0, 0))

    def _record(self, job: Job) -> None:
        with self.store.read() as reader:
            version = reader.catalog_version
        self.store.commit(Commit(catalog_version=version, raw=[(job_key(job.id), encode_job(job))]))

    def insert(self, table: Table, rows: Iterable[Row]) -> int:
        """Commit rows, one value per column."""
        writer = TableWriter(table, self.catalog, self.layouts)
        buffer = Buffer()
        ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
        for row in rows:
            key = writer.reader.encode_key([row[ordinals[column]] for column in table.primary_key])
            buffer.insert(table.id, table.version, key, row)
        return self._commit(writer, buffer)

    def update(self, table: Table, old: Row, new: Row) -> int:
        """Commit new values of a row whose key stays."""
        return self._replace(table, old, new)

    def delete(self, table: Table, old: Row) -> int:
        """Commit the removal of a row."""
        return self._replace(table, old, None)

    def _replace(self, table: Table, old: Row, new: Row | None) -> int:
        writer = TableWriter(table, self.catalog, self.layouts)
        ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
        key = writer.reader.encode_key([old[ordinals[column]] for column in table.primary_key])
        with self.store.read() as reader:
            stored = reader.get(writer.prefix + key)
        assert stored is not None
        base = int.from_bytes(stored[:8], "little")
        buffer = Buffer()
        if new is None:
            buffer.delete(table.id, table.version, key, base, old)
        else:
            changed = frozenset(column.id for column, a, b in zip(table.columns, old, new, strict=True) if a != b)
            buffer.update(table.id, table.version, key, base, old, new, changed)
        return self._commit(writer, buffer)

    def _commit(self, writer: TableWriter, buffer: Buffer) -> int:
        with self.store.read() as reader:
            derivation = Derivation(reader)
            for changes in buffer:
                derivation.table(writer, changes)
            request = Commit(
                catalog_version=reader.catalog_version,
                tables=derivation.tables,
                entries=derivation.entries,
                preconditions=derivation.preconditions,
            )
        return self.store.commit(request)

    def close(self) -> None:
        stores.forget(self.path)
        self.store.close()


def compile_check(table: Table, check: Check) -> Predicate:
    """What the database compiles from SQL: here every check is that its column is not negative."""
    place = [column.id for column in table.columns].index(check.columns[0])

    def holds(image: Row) -> bool | None:
        value = image[place]
        return None if value is None else value >= 0  # type: ignore[operator]  # the column is an integer

    return holds
