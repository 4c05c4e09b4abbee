"""A store with tables and nothing of SQL: what tests of the table layer stand on."""

from __future__ import annotations

from collections.abc import Iterable

from instar.catalog import system
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Column, Index, IndexColumn, Layout, Table
from instar.catalog.ids import IdAllocator
from instar.catalog.layouts import Layouts
from instar.clock import ManualClock
from instar.store import MemoryStore
from instar.store.engine import Commit, Reader, Store
from instar.tables.view import View
from instar.tables.writers import Writers
from instar.tables.writes import Derivation
from instar.transactions.buffer import Buffer
from instar.transactions.commit import commit
from instar.types import BIGINT, INTEGER, TEXT, Type

DEFAULT_COLUMNS = (("id", BIGINT), ("a", INTEGER), ("b", TEXT))


class World:
    """One store, its catalog, and commits of buffers and catalog changes as a session would make them."""

    def __init__(self, store: Store | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.store = store or MemoryStore(clock=self.clock)
        self.store.commit(Commit(catalog_version=0, raw=system.bootstrap_records(), bump_catalog=True))
        self.catalog_cache = Catalog(self.store, self.clock)
        self.ids = IdAllocator(self.store)
        self.layouts = Layouts(self.store)
        self.writers = Writers(self.layouts)

    def catalog(self) -> CatalogSnapshot:
        with self.store.read() as reader:
            return self.catalog_cache.at(reader)

    def now(self) -> int:
        with self.store.read() as reader:
            return reader.timestamp

    def view(self, snapshot: int | None = None, buffer: Buffer | None = None) -> View:
        return View(self.store, self.now() if snapshot is None else snapshot, buffer, self.layouts)

    def change(self) -> CatalogChange:
        return CatalogChange(self.catalog(), self.ids)

    def create_table(
        self,
        name: str = "t",
        columns: Iterable[tuple[str, Type]] = DEFAULT_COLUMNS,
        primary_key: tuple[int, ...] = (1,),
        indexes: Iterable[tuple[str, tuple[int, ...], bool]] = (),
    ) -> Table:
        """A table whose columns have ids from 1; `indexes` are (name, column ids, unique)."""
        change = self.change()
        table = describe_table(change, name, columns, primary_key, indexes)
        change.create(table)
        self.commit(change=change)
        return self.catalog().table(table.id)

    def alter(self, table: Table, **fields: object) -> Table:
        """Publish one more version of the table with these fields."""
        change = self.change()
        import msgspec

        change.update(msgspec.structs.replace(table, version=table.version + 1, **fields), floor="current")
        self.commit(change=change)
        return self.catalog().table(table.id)

    def commit(self, buffer: Buffer | None = None, change: CatalogChange | None = None) -> int:
        """Derive and commit; returns the timestamp (0: nothing to write)."""

        def derive(reader: Reader) -> Commit | None:
            catalog = self.catalog_cache.at(reader)
            request = Commit(catalog_version=reader.catalog_version)
            if change is not None:
                change.rebase(catalog)
                change.parts(reader).add_to(request)
                catalog = change.view
            if buffer is not None:
                derivation = Derivation(reader)
                for changed in buffer:
                    derivation.table(self.writers.get(catalog.table(changed.table), catalog), changed)
                request.tables += derivation.tables
                request.entries += derivation.entries
                request.preconditions += derivation.preconditions
            return request if request.tables or request.raw else None

        return commit(self.store, derive) or 0


def describe_table(
    change: CatalogChange,
    name: str,
    columns: Iterable[tuple[str, Type]],
    primary_key: tuple[int, ...],
    indexes: Iterable[tuple[str, tuple[int, ...], bool]] = (),
) -> Table:
    table_id = change.new_id()
    described = tuple(
        Column(id=number, name=column, type=type_, nullable=number not in primary_key)
        for number, (column, type_) in enumerate(columns, 1)
    )
    listed = tuple(
        Index(
            id=100 + number,
            name=index,
            columns=tuple(IndexColumn(column) for column in indexed),
            unique=unique,
            rowset=change.new_rowset(table_id),
        )
        for number, (index, indexed, unique) in enumerate(indexes)
    )
    return Table(
        id=table_id,
        name=name,
        version=1,
        columns=described,
        primary_key=primary_key,
        primary_key_name=f"{name}_pkey",
        rowset=change.new_rowset(table_id),
        layout=Layout(1, tuple((column.id, column.type) for column in described)),
        oldest_layout=1,
        indexes=listed,
        next_id=200,
    )
