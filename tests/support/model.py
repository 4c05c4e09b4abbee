"""A model checker that drives the real code: all interleavings of transactions with the stages of a change.

The states are those of the memory engine, which are copied and put back; the steps are the code's own: a transaction
begins (and reads what it writes), derives its commit under the schema that its server holds, and submits it; a change
publishes a stage, derives a piece of work, puts it. A server learns another schema only when it begins a transaction or
is refused, as under a lease. Each state that is reached is looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Check, Column, Table
from instar.schemachange import planner
from instar.schemachange import wanted as want
from instar.schemachange.compatibility import Usage, require_compatible
from instar.schemachange.elements import ElementKind
from instar.schemachange.executor import apply
from instar.schemachange.jobs import Checkpoint
from instar.schemachange.populate import Population
from instar.schemachange.propagate import Propagation
from instar.schemachange.rekey import KeyBackfill
from instar.schemachange.reorganize import Backfill
from instar.schemachange.stages import Reorganization, advance
from instar.schemachange.states import Work
from instar.schemachange.tasks import Step, Task
from instar.schemachange.touched import Touched
from instar.schemachange.validate import Validation
from instar.store.engine import (
    PREFIX_ROW,
    ROW_HEADER,
    ROW_TOMBSTONE,
    Commit,
    PreconditionFailed,
    Reader,
    Section,
    StaleRow,
    StaleSchema,
    prefix_end,
    rowset_prefix,
)
from instar.store.memory import _State
from instar.store.records import decode_table_header, table_key
from instar.tables.copies import image_key
from instar.tables.rowset import TableReader
from instar.tables.upgrade import crossed
from instar.tables.writes import Derivation
from instar.transactions.buffer import Buffer
from instar.transactions.commit import Conflict
from support.changes import ChangingWorld, Facts

# The value that rows get of a column whose values a job gives them.
GIVEN = 7
CLAIM = (b"\x08claim", b"the model's")
Predicate = Callable[[tuple[object, ...]], bool]


@dataclass(frozen=True)
class Write:
    """One write of a transaction: an insert of `values` by column name, an update that sets them, a "count" that adds
    them to what it read, or a delete."""

    kind: str
    table: str
    key: int
    values: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Server:
    """Where a server is with its one transaction. `held`: how many stages it had seen when it last learned."""

    step: str = "begin"
    held: int = 0
    meant: int = 0
    read: tuple[Any, ...] = ()
    request: Commit | None = field(default=None, compare=False)
    rounds: int = 0
    outcome: str = ""


@dataclass(frozen=True)
class Node:
    """A state of everything. `stage`: stages that are published; `work`: pieces of the stage's work that are derived
    and not put; `todo`: works of the stage that are not derived."""

    store: tuple[tuple[bytes, bytes], ...]
    stage: int
    todo: tuple[Reorganization, ...]
    pieces: int
    failed: bool
    servers: tuple[Server, ...]


class Violation(AssertionError):
    """A state that breaks what must hold, and how it was reached."""


def _told(task: Backfill, step: Step) -> Step:
    """The step of a backfill that follows the log of the state that it is run in, and not of the one before in time."""

    def told(section: Section) -> None:
        task._touched = touched = Touched(task.table.id)
        touched._upto = touched._from = section.watermark
        step(section)

    return told


class Model:
    """One change and the transactions beside it. `checks` are the predicates of CHECK constraints by name (SQL's
    business, which this does without); `servers`: the writes of each server's transaction."""

    def __init__(
        self,
        world: ChangingWorld,
        wanted: Sequence[want.Wanted],
        servers: Sequence[Sequence[Write]],
        checks: dict[str, Predicate] | None = None,
        *,
        fences: bool = True,
    ) -> None:
        self.world = world
        self.writes = servers
        self._fences = fences
        self.checks = checks or {}
        self.seen = 0
        self._readers: dict[int, tuple[Table, TableReader]] = {}
        self.initial = {table.name: self.rows(table) for table in world.catalog().tables()}
        change = world.change()
        plan = planner.plan(change.view, change, Facts(world, None), wanted, "the change")
        apply(plan.first, change)
        self._first = change
        self.stages = plan.stages
        self._derived: dict[tuple[object, ...], tuple[Step, ...]] = {}
        self._catalogs: dict[int, CatalogSnapshot] = {0: world.catalog()}
        with world.store.read() as reader:
            self._version = reader.catalog_version

    # --- the search --------------------------------------------------------------------------------------------------

    def run(self, judge: Callable[[Model, Node], None]) -> int:
        """Visit every state; `judge` raises if it may not be. Returns how many there are. States that differ in nothing
        that `judge` looks at (timestamps, who has begun what) are judged once."""
        judged: set[object] = set()
        start = Node(self._contents(), 0, (), 0, False, tuple(Server() for _ in self.writes))
        seen: set[object] = set()
        waiting: list[tuple[Node, tuple[str, ...], tuple[Step, ...]]] = [(start, (), ())]
        while waiting:
            node, way, pieces = waiting.pop()
            self._restore(node)
            look = self._look(node)
            if look not in judged:
                judged.add(look)
                try:
                    judge(self, node)
                except AssertionError as problem:
                    raise Violation(f"{problem}\nafter: {' | '.join(way)}") from None
            for name, following, left in self._moves(node, pieces):
                mark = self._mark(following, left)
                if mark not in seen:
                    seen.add(mark)
                    waiting.append((following, (*way, name), left))
        self.seen = len(seen) + 1
        return self.seen

    def _look(self, node: Node) -> object:
        """What can be judged of a state: rows and entries without their timestamps, and who has committed."""
        data = frozenset((key, value[8:]) for key, value in node.store if key.startswith(PREFIX_ROW))
        return data, node.stage, tuple(server.outcome for server in node.servers)

    def rows(self, table: Table) -> dict[object, tuple[object, ...]]:
        """The live rows of a table, by their first column."""
        known = self._readers.get(id(table))
        if known is None:
            reads = TableReader(table, range(len(table.columns)), self.world.layouts)
            known = self._readers[id(table)] = (table, reads)
        start = rowset_prefix(table.rowset)
        with self.world.store.read() as reader:
            images = [
                known[1].decode(value)
                for _, value in reader.scan(start, prefix_end(start))
                if not ROW_HEADER.unpack_from(value)[2] & ROW_TOMBSTONE
            ]
        return {image[0]: image for image in images}

    def _mark(self, node: Node, pieces: tuple[Step, ...]) -> object:
        return node, tuple(map(id, pieces)), tuple(repr(server.request) for server in node.servers)

    def _moves(self, node: Node, pieces: tuple[Step, ...]) -> Iterator[tuple[str, Node, tuple[Step, ...]]]:
        changed = self._change(node, pieces)
        if changed is not None:
            yield changed
        for number, server in enumerate(node.servers):
            if server.step != "end":
                for after in self._serve(node, number, server):
                    servers = (*node.servers[:number], after, *node.servers[number + 1 :])
                    name = f"server {number}: {server.step} -> {after.outcome or after.step} at {after.held}"
                    yield name, replace(node, store=self._contents(), servers=servers), pieces

    def _contents(self) -> tuple[tuple[bytes, bytes], ...]:
        return tuple(self.world.store.state.values.items())  # type: ignore[attr-defined] # the memory engine

    def _restore(self, node: Node) -> None:
        values = dict(node.store)
        self.world.store.state = _State(sorted(values), values)  # type: ignore[attr-defined] # the memory engine

    # --- the change --------------------------------------------------------------------------------------------------

    def _change(self, node: Node, pieces: tuple[Step, ...]) -> tuple[str, Node, tuple[Step, ...]] | None:
        self._restore(node)
        if node.failed:
            return None
        if pieces:
            try:
                self.world.store.background([pieces[0]], claim=CLAIM)
            except errors.Error as failed:
                return f"work fails: {failed.sqlstate}", replace(node, store=self._contents(), failed=True), ()
            left = pieces[1:]
            return "work: put", replace(node, store=self._contents(), pieces=len(left)), left
        if node.todo:
            try:
                made = self._derive(node, node.todo[0])
            except errors.Error as failed:
                return f"work fails: {failed.sqlstate}", replace(node, failed=True), ()
            return "work: derive", replace(node, todo=node.todo[1:], pieces=len(made)), made
        if node.stage == len(self.stages):
            return None
        self._publish(node.stage)
        stage = self.stages[node.stage]
        after = replace(node, store=self._contents(), stage=node.stage + 1, todo=stage.work)
        return f"stage {node.stage + 1}", after, ()

    def _publish(self, number: int) -> None:
        world, stage = self.world, self.stages[number]
        change = CatalogChange(self.catalog(number), world.ids)
        if number == 0:
            change = self._first
        else:
            apply(advance(self.catalog(number).table, stage, "the change"), change)
            for table in stage.fences if self._fences else ():
                change.fence(change.view.table(table))
            change.write(*CLAIM)
        request = Commit(catalog_version=self._version + number)
        with world.store.read() as reader:
            change.parts(reader).add_to(request)
        request.raw.append(CLAIM)
        world.store.commit(request)
        if number + 1 not in self._catalogs:
            self._catalogs[number + 1] = change.view

    def catalog(self, stage: int) -> CatalogSnapshot:
        """The schema after `stage` stages."""
        return self._catalogs[stage]

    def _derive(self, node: Node, work: Reorganization) -> tuple[Step, ...]:
        """The work as pieces that others come in between; the same objects for the same rows and entries, so that
        states meet."""
        task = self._task(node, work)
        at = Checkpoint(task.start, task.stop, task.start, 0)
        steps = tuple(step for batch, _at in task.batches(at) for step in batch)
        looked_at = [task.start]
        if isinstance(task, Backfill):
            looked_at += [rowset_prefix(index.rowset) for index in task.indexes]
            steps = tuple(_told(task, step) for step in steps)
        found = tuple(pair for pair in node.store if pair[0].startswith(tuple(looked_at)))
        return self._derived.setdefault((node.stage, work, found), steps)

    def _task(self, node: Node, work: Reorganization) -> Task:
        catalog = self.catalog(node.stage)
        table = catalog.table(work.element.table)
        given: dict[str, Any] = {"job": 1, "stage": node.stage, "claim": CLAIM, "rows": 2}
        known: Any = _Known(catalog)
        if work.work is Work.VALIDATE:
            return Validation(self.world.store, known, work.element, self._compile, **given)
        if work.work is Work.PROPAGATE:
            change = next(found for found in table.coverage_changes if found.id == work.element.id)
            return Propagation(self.world.store, table, change, **given)
        if work.work is Work.POPULATE:
            given |= {"now": 0, "zone": "UTC"}
            return Population(self.world.store, known, work.element, _Given(), **given)
        if work.element.kind is ElementKind.PRIMARY_KEY:
            return KeyBackfill(self.world.store, table, **given)
        index = next(found for found in table.indexes if found.id == work.element.id)
        return Backfill(self.world.store, table, [index], **given)

    def _compile(self, table: Table, check: Check) -> Callable[[tuple[object, ...]], object]:
        return self.checks[check.name]

    # --- the servers -------------------------------------------------------------------------------------------------

    def _serve(self, node: Node, number: int, server: Server) -> Iterator[Server]:
        self._restore(node)
        if server.step == "begin":
            yield self._begin(number, node.stage)
            if node.stage and self._is_admitted(number, node.stage - 1):
                yield self._begin(number, node.stage - 1)
        elif server.step == "derive":
            yield self._derive_commit(number, server)
        else:
            yield self._submit(node, server)

    def _is_admitted(self, number: int, stage: int) -> bool:
        """Whether a server may begin under the schema of that stage: no table has left it behind (rule 17)."""
        with self.world.store.read() as reader:
            for write in self.writes[number]:
                table = self.catalog(stage).lookup("public", write.table)
                assert isinstance(table, Table)
                stored = reader.get(table_key(table.id))
                assert stored is not None
                if decode_table_header(stored).floor > table.version:
                    return False
        return True

    def _submit(self, node: Node, server: Server) -> Server:
        assert server.request is not None
        try:
            self.world.store.commit(server.request)
        except (StaleSchema, StaleRow):
            # A server that is refused learns the newest schema, and derives again.
            return replace(server, step="derive", held=node.stage, request=None, rounds=server.rounds + 1)
        except PreconditionFailed:
            return replace(server, step="end", request=None, outcome="refused")
        return replace(server, step="end", request=None, outcome="committed")

    def _begin(self, number: int, stage: int) -> Server:
        """Learn the schema of a stage, and read what is to be written."""
        catalog = self.catalog(stage)
        read = []
        for write in self.writes[number]:
            table = catalog.lookup("public", write.table)
            assert isinstance(table, Table)
            reader = TableReader(table, range(len(table.columns)), self.world.layouts)
            own = (image_key(table)(image) for image in self.rows(table).values() if image[0] == write.key)
            version = next((reader.get_version(self.world.view(), key) for key in own), None)
            read.append(None if version is None else (version.base, version.values))
        return Server("derive", held=stage, meant=stage, read=tuple(read))

    def _derive_commit(self, number: int, server: Server) -> Server:
        meant, held = self.catalog(server.meant), self.catalog(server.held)
        buffer = Buffer()
        for write, read in zip(self.writes[number], server.read, strict=True):
            if not _buffered(buffer, meant, write, read):
                return replace(server, step="end", outcome="nothing to do")
        try:
            with self.world.store.read() as reader:
                request = self._request(reader, buffer, meant, held, server.held)
        except (Conflict, errors.Error):
            return replace(server, step="end", outcome="refused")
        return replace(server, step="submit", request=request)

    def _request(
        self, reader: Reader, buffer: Buffer, meant: CatalogSnapshot, held: CatalogSnapshot, stage: int
    ) -> Commit:
        request = Commit(catalog_version=self._version + stage)
        derivation = Derivation(reader, self._hold)
        for changed in buffer:
            before, table = meant.table(changed.table), held.table(changed.table)
            require_compatible(table, before.version, Usage(wrote=True))
            writer = self.world.writers.get(table, held)
            now = crossed(changed, before, writer, reader, lambda _: GIVEN)
            for change in now.changes.values():
                if change.image is not None:
                    self._hold(table, change.image)
            derivation.table(writer, now, before)
        request.tables += derivation.tables
        request.entries += derivation.entries
        request.preconditions += derivation.preconditions
        return request

    def _hold(self, table: Table, image: tuple[object, ...]) -> None:
        """What SQL judges of a row before the commit: checks and NOT NULL, pending ones included (rule 16)."""
        for check in table.checks:
            if check.enforced and not self.checks[check.name](columns_of(table, check, image)):
                raise errors.error(errors.CHECK_VIOLATION, check.name)
        for column, value in zip(table.columns, image, strict=True):
            if column.refuses_null and value is None:
                raise errors.error(errors.NOT_NULL_VIOLATION, column.name)


class _Given:
    """The default of a column that is the same in every row, though nobody says so."""

    def __call__(self, column: Column, catalog: CatalogSnapshot, now: int, zone: str) -> Callable[[], object]:
        return lambda: GIVEN

    def draws(self, column: Column, catalog: CatalogSnapshot) -> tuple[int, ...]:
        return ()


class _Known:
    """A catalog whose one version is known."""

    def __init__(self, catalog: CatalogSnapshot) -> None:
        self._catalog = catalog

    def at(self, _reader: object) -> CatalogSnapshot:
        return self._catalog


def columns_of(table: Table, check: Check, image: tuple[object, ...]) -> tuple[object, ...]:
    """The values that a CHECK reads, as validations give them to its predicate."""
    return tuple(value for column, value in zip(table.columns, image, strict=True) if column.id in check.columns)


def _buffered(buffer: Buffer, catalog: CatalogSnapshot, write: Write, read: Any) -> bool:
    """Put the write into the buffer as a statement would that has read `read`; False if it has nothing to write on."""
    table = catalog.lookup("public", write.table)
    assert isinstance(table, Table)
    values = dict(write.values)
    key_of = image_key(table)
    if write.kind == "insert":
        if read is not None:
            return False
        values["id"] = write.key
        given = {column.name: GIVEN for column in table.columns if column.per_row}
        image = tuple((given | values).get(column.name) for column in table.columns)
        buffer.insert(table.id, table.version, key_of(image), image)
        return True
    if read is None:
        return False
    base, old = read
    if write.kind == "delete":
        buffer.delete(table.id, table.version, key_of(old), base, old)
        return True
    image = written(write, [column.name for column in table.columns], old)
    if key_of(image) != key_of(old):
        pair = buffer.pair_of(table.id, key_of(old))  # a change of key is a delete and an insert (rule 2)
        buffer.delete(table.id, table.version, key_of(old), base, old, pair=pair)
        buffer.insert(table.id, table.version, key_of(image), image, pair=pair)
        return True
    changed = frozenset(column.id for column in table.columns if column.name in values)
    buffer.update(table.id, table.version, key_of(old), base, old, image, changed)
    return True


def written(write: Write, names: Sequence[str], old: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row `old` after an update or a count."""
    row = dict(zip(names, old, strict=True))
    for name, value in write.values:
        row[name] = row[name] + value if write.kind == "count" else value
    return tuple(row.values())
