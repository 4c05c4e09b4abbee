"""A world whose schema changes: statements planned and committed, jobs run, servers that lag behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Column, Index, Object, Sequence, Table
from instar.catalog.history import Dropped, DroppedColumn, dropped_columns, dropped_objects, object_at
from instar.catalog.sequences import Sequences
from instar.clock import ManualClock
from instar.schemachange import planner
from instar.schemachange import wanted as want
from instar.schemachange.compact import is_settled, older_layouts
from instar.schemachange.compatibility import Usage, require_compatible
from instar.schemachange.dependents import bound_elements
from instar.schemachange.elements import Element
from instar.schemachange.executor import Executor, Replan, apply
from instar.schemachange.job_records import Job, encode_job, job_key, new_job
from instar.schemachange.jobs import Jobs
from instar.schemachange.reorganize import InProcess
from instar.schemachange.stages import Plan
from instar.schemachange.tasks import Reorganizer, Task
from instar.sql.checks import compile_check
from instar.sql.defaults import Defaults, compile_default
from instar.sql.functions import Context
from instar.sql.integrity import Rules
from instar.store.engine import (
    ENTRY_VALUE,
    ROW_HEADER,
    ROW_TOMBSTONE,
    Commit,
    Refused,
    StaleSchema,
    Store,
    prefix_end,
    rowset_prefix,
)
from instar.store.lock_table import Locked
from instar.tables.copies import image_key
from instar.tables.derivations import deriver
from instar.tables.index import IndexCodec
from instar.tables.pending import encode_violation
from instar.tables.rowset import TableReader
from instar.tables.upgrade import crossed
from instar.tables.view import RowVersion
from instar.tables.writes import Derivation, Met, note_refusal
from instar.transactions.buffer import Buffer
from instar.transactions.commit import Conflict, commit
from instar.types import BIGINT, INTEGER, TEXT
from instar.worker.work import replanner
from support.world import World

T_COLUMNS = (want.NewColumn("id", BIGINT), want.NewColumn("a", INTEGER), want.NewColumn("b", TEXT))


class Facts:
    """What planning must know, counted."""

    def __init__(self, world: ChangingWorld, buffer: Buffer | None) -> None:
        self._world = world
        self._buffer = buffer
        self.schema_lease = world.store.schema_lease

    def stored_empty(self, table: Table) -> bool:
        return not self._world.rows(table)

    def has_buffered(self, table: Table) -> bool:
        return self._buffer is not None and self._buffer.table(table.id) is not None

    def estimated_rows(self, table: Table) -> int:
        return len(self._world.rows(table))

    def is_settled(self, table: Table) -> bool:
        with self._world.store.read() as reader:
            return all(is_settled(reader, table, layout) for layout in older_layouts(reader, table))

    def is_moved(self, element: Element) -> bool:
        return any(element in job.elements for job in self._world.jobs.all() if not job.is_finished)

    def bound(self) -> dict[Element, int]:
        return {element: job.id for job in self._world.jobs.all() for element in bound_elements(job)}

    def last_value(self, sequence: Sequence) -> int | None:
        return self._world.sequences.last_value(sequence)

    def dropped(self) -> list[Dropped]:
        with self._world.store.read() as reader:
            return list(dropped_objects(reader))

    def dropped_columns(self, table: Table) -> list[DroppedColumn]:
        with self._world.store.read() as reader:
            return list(dropped_columns(reader, table))

    def object_at(self, object_id: int, snapshot: int) -> Object | None:
        with self._world.store.read_at(snapshot) as reader:
            return object_at(reader, object_id, snapshot)


class ChangingWorld(World):
    """`execute` is a DDL statement in autocommit; `transaction` is a session's."""

    def __init__(self, store: Store | None = None, clock: ManualClock | None = None) -> None:
        super().__init__(store, clock)
        self.jobs = Jobs(self.store, self.clock)
        self.sequences = Sequences(self.store)

    def plan(self, *wanted: want.Wanted, statement: str = "a statement", buffer: Buffer | None = None) -> Plan:
        facts = Facts(self, buffer)
        return planner.plan(self.catalog(), self.change(), facts, wanted, statement)

    def execute(self, *wanted: want.Wanted, statement: str = "a statement") -> int | None:
        """Plan and commit the first stage; returns the id of the job that has to finish it, if there is one."""
        change = self.change()
        facts = Facts(self, None)
        made = planner.plan(change.view, change, facts, wanted, statement)
        apply(made.first, change)
        job = None
        if made.needs_job:
            record = new_job(self.ids.next_job(), made, self.clock.wall_ns() // 1000)
            change.write(job_key(record.id), encode_job(record))
            job = record.id
        self.commit(change=change)
        return job

    def executor(
        self,
        owner: bytes = b"worker",
        reorganizer: Callable[[Task], Reorganizer] | None = None,
        hook: Callable[[Job], str] | None = None,
        replan: Replan | None = None,
    ) -> Executor:
        return Executor(
            self.store,
            self.catalog_cache,
            self.ids,
            self.clock,
            owner,
            reorganizer or (lambda task: InProcess()),
            compile_check,
            replan or replanner(self.store, self.clock),
            Defaults(self.sequences),
            hook=hook,
        )

    def table(self, name: str = "t") -> Table:
        found = self.catalog().lookup("public", name)
        assert isinstance(found, Table)
        return found

    def create_t(self, rows: Iterable[tuple[object, ...]] = ()) -> Table:
        """Table t (id bigint primary key, a integer, b text) with these rows."""
        self.execute(want.CreateTable("t", T_COLUMNS, ("id",)), statement="CREATE TABLE t")
        server = Server(self)
        for row in rows:
            server.insert(*row)
        if server.buffer:
            server.commit()
        return self.table()

    # --- what is stored ----------------------------------------------------------------------------------------------

    def rows(self, table: Table) -> dict[bytes, tuple[int, tuple[object, ...]]]:
        """Live rows by key: (timestamp, values)."""
        reader_of = TableReader(table, range(len(table.columns)), self.layouts)
        start = rowset_prefix(table.rowset)
        with self.store.read() as reader:
            return {
                key[len(start) :]: (ROW_HEADER.unpack_from(value)[0], reader_of.decode(value))
                for key, value in reader.scan(start, prefix_end(start))
                if not ROW_HEADER.unpack_from(value)[2] & ROW_TOMBSTONE
            }

    def entries(self, index: Index) -> dict[bytes, int]:
        """Live entries of an index: whole key -> timestamp."""
        start = rowset_prefix(index.rowset)
        with self.store.read() as reader:
            return {
                key: ENTRY_VALUE.unpack(value)[0]
                for key, value in reader.scan(start, prefix_end(start))
                if ENTRY_VALUE.unpack(value)[1]
            }

    def check_index(self, name: str, table: str = "t") -> None:
        """Definition 4, clauses 4 and 5: one live entry per live row, no other, none newer than its row."""
        found = self.table(table)
        index = next(index for index in found.indexes if index.name == name)
        codec = IndexCodec(found, index)
        wanted = {codec.entry(values, key): timestamp for key, (timestamp, values) in self.rows(found).items()}
        stored = self.entries(index)
        assert stored.keys() == wanted.keys()
        assert all(stored[key] <= wanted[key] for key in stored)


class Server:
    """One server and its transaction: a schema it holds, a snapshot, a buffer. `refresh` is how it learns the newest.

    `commit` derives under the schema that the server holds (e), and again under the newest if it is refused for e.
    """

    def __init__(self, world: ChangingWorld, table: str = "t") -> None:
        self.world = world
        self.name = table
        self.begin()

    def begin(self, *, learn: bool = True) -> None:
        """A new transaction; without `learn` under the schema that the server had, as under a lease."""
        if learn:
            self.catalog = self.world.catalog()
            self.meant = self.world.table(self.name)
        else:
            self.meant = self.catalog.table(self.meant.id)
        self.snapshot = self.world.now()
        self.buffer = Buffer()
        self.refused = 0
        self.met: dict[bytes, Met] = {}

    def refresh(self) -> CatalogSnapshot:
        self.catalog = self.world.catalog()
        return self.catalog

    def _key(self, identity: object) -> bytes:
        """The key of the row with this value in the column `id`, or the first, which is the primary key unless that was
        altered."""
        reader = TableReader(self.meant, range(len(self.meant.columns)), self.world.layouts)
        names = [column.name for column in self.meant.columns]
        first = names.index("id") if "id" in names else 0
        if self.meant.primary_key == (self.meant.columns[first].id,):
            return reader.encode_key((identity,))
        found = [key for key, (_, values) in self.world.rows(self.meant).items() if values[first] == identity]
        assert found
        return found[0]

    def insert(self, *values: object) -> None:
        values += tuple(self.default(column) for column in self.meant.columns[len(values) :])
        values = self._derived_of(values)
        self.buffer.insert(self.meant.id, self.meant.version, image_key(self.meant)(values), values)

    def update(self, identity: object, **changes: object) -> None:
        version = self._read(identity)
        names = [column.name for column in self.meant.columns]
        image = list(version.values)
        for name, value in changes.items():
            image[names.index(name)] = value
        made = self._derived_of(tuple(image))
        ids = frozenset(self.meant.columns[names.index(name)].id for name in changes)
        if not ids.isdisjoint(self.meant.primary_key):
            self._move(version, made)
            return
        self.buffer.update(self.meant.id, self.meant.version, version.key, version.base, version.values, made, ids)

    def _derived_of(self, image: tuple[object, ...]) -> tuple[object, ...]:
        """The row with what is derived of it."""
        derive = deriver(self.meant)
        return image if derive is None else derive(image)

    def _move(self, version: RowVersion, image: tuple[object, ...]) -> None:
        """A change of key is a delete and an insert (rule 2)."""
        table = self.meant
        pair = self.buffer.pair_of(table.id, version.key)
        self.buffer.delete(table.id, table.version, version.key, version.base, version.values, pair=pair)
        self.buffer.insert(table.id, table.version, image_key(table)(image), image, pair=pair)

    def delete(self, identity: object) -> None:
        version = self._read(identity)
        self.buffer.delete(self.meant.id, self.meant.version, version.key, version.base, version.values)

    def _read(self, identity: object) -> RowVersion:
        reader = TableReader(self.meant, range(len(self.meant.columns)), self.world.layouts)
        version = reader.get_version(self.world.view(self.snapshot, self.buffer), self._key(identity))
        assert version is not None
        return version

    def default(self, column: Column) -> object:
        """The value of the column's default for one row."""

        def next_value(number: int) -> int:
            found = self.catalog.by_id(number)
            assert isinstance(found, Sequence)
            return self.world.sequences.next_value(found)

        return compile_default(column, self.catalog, Context(now=0), next_value)()

    def _recheck(self, table: Table, image: tuple[object, ...]) -> None:
        """Judge a merged row."""
        Rules(self.catalog, self.world.layouts).of(table).recheck(image, Context(now=0))

    def commit(self) -> int:
        """Derive and commit, as often as the store or what it holds says that the schema is too old."""

        def derive(reader: Any) -> Any:
            if self.refused:
                self.catalog = self.world.catalog_cache.at(reader)
            self.refused += 1
            try:
                return self._derived(reader)
            except (errors.Error, Conflict):
                if self.catalog.version < reader.catalog_version:
                    raise StaleSchema(0, None) from None
                raise

        timestamp = commit(self.world.store, derive, self._prepare)
        self.refused -= 1
        assert timestamp is not None
        return timestamp

    def _prepare(self, refused: Refused | None) -> None:
        """Remember which constraints that yield the store has found violated."""
        if isinstance(refused, Locked):
            raise refused  # nobody else goes on while this thread waits
        note_refusal(self.met, refused)

    def _violated(self, table: Table, image: tuple[object, ...]) -> Iterable[int]:
        return Rules(self.catalog, self.world.layouts).of(table).violated(image, Context(now=0))

    def _derived(self, reader: Any) -> Commit | None:
        """The commit under the schema that the server holds."""
        newest = self.catalog.by_id(self.meant.id)
        if not isinstance(newest, Table):
            raise errors.error(errors.SERIALIZATION_FAILURE, f'table "{self.name}" was dropped')
        request = Commit(catalog_version=self.catalog.version)
        for changed in self.buffer:
            require_compatible(newest, self.meant.version, Usage(wrote=True))
            derivation = Derivation(reader, self._recheck, violated=self._violated, met=self.met)
            writer = self.world.writers.get(newest, self.catalog)
            derivation.table(writer, crossed(changed, self.meant, writer, reader, self.default), self.meant)
            request.tables += derivation.tables
            request.entries += derivation.entries
            request.preconditions += derivation.preconditions
            request.raw += [(key, encode_violation(found)) for key, found in derivation.flags.items()]
        return request if request.tables else None
