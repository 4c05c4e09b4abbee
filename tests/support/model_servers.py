"""The servers of a model: each has one transaction, which begins, derives its commit, and submits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Check, State, Table
from instar.database import Database
from instar.database.crossing import Crossings
from instar.schemachange.compatibility import Usage, require_compatible
from instar.store.engine import Commit, PreconditionFailed, Reader, StaleRow, StaleSchema
from instar.store.records import decode_table_header, table_key
from instar.tables.copies import image_key
from instar.tables.derivations import deriver
from instar.tables.pending import encode_violation
from instar.tables.rowset import TableReader
from instar.tables.upgrade import crossed
from instar.tables.view import View
from instar.tables.writes import Derivation, Met, TableWriter, note_refusal
from instar.transactions.buffer import Buffer
from instar.transactions.commit import Conflict

if TYPE_CHECKING:
    from support.model import Model

# The value that rows get of a column whose values a job gives them.
GIVEN = 7
Predicate = Callable[[tuple[object, ...]], bool]


class Moment(NamedTuple):
    """How far a change is: so many stages are published, on the way back since it turned round after stage `back`."""

    back: int | None
    stage: int


FIRST = Moment(None, 0)


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
    """Where a server is with its one transaction. `held`: the schema that it knew when it last learned; `meant`: that
    of its statements; `anew`: columns of its tables had gone by then; `met`: the flags of constraints that yield
    and are found to be violated; `said`: its request and these in words, which tell it from
    others."""

    step: str = "begin"
    held: Moment = FIRST
    meant: Moment = FIRST
    anew: bool = False
    read: tuple[Any, ...] = ()
    request: Commit | None = field(default=None, compare=False)
    met: Mapping[bytes, Met] = field(default_factory=dict, compare=False)
    said: str = ""
    outcome: str = ""


class Servers:
    """What the servers of one model may do. `checks` as of `Model`."""

    def __init__(self, model: Model, checks: Mapping[str, Predicate]) -> None:
        self._model = model
        self._world = model.world
        self._checks = checks
        self._database = Database(self._world.store, ":memory:", self._world.clock)
        # The table is kept with what is made of it, so that its id stays its own.
        self._readers: dict[tuple[int, int | None], tuple[Table, TableReader]] = {}
        self._keys: dict[int, tuple[Table, Callable[[tuple[object, ...]], bytes]]] = {}
        self._writers: dict[tuple[int, Moment, int | None], TableWriter] = {}

    def moves(self, restore: Callable[[], None], moment: Moment, number: int, server: Server) -> Iterator[Server]:
        """What server `number` may be next, with the store as it is then; `restore` undoes what it did to that."""
        restore()
        if server.step == "begin":
            if self._is_closed(number, moment):
                return  # until the change is over
            yield self._begin(number, moment, moment.back)
            before = self._model.before(moment)
            if before is not None and self._is_admitted(number, before):
                yield self._begin(number, before, moment.back)
        elif server.step == "derive":
            yield self._derive(number, server, moment)
        else:
            yield self._submit(server, moment)

    def _is_closed(self, number: int, moment: Moment) -> bool:
        """Whether a server that has not written yet has to wait: it would write to what is about to be replaced."""
        tables = [self._model.catalog(moment).lookup("public", write.table) for write in self._model.writes[number]]
        return any(
            isinstance(table, Table) and table.transformed is not None and table.transformed.closing for table in tables
        )

    def _is_admitted(self, number: int, moment: Moment) -> bool:
        """Whether a server may begin under the schema of then: no table has left it behind (rule 17)."""
        with self._world.store.read() as reader:
            for write in self._model.writes[number]:
                table = self._model.catalog(moment).lookup("public", write.table)
                if not isinstance(table, Table):
                    return False
                stored = reader.get(table_key(table.id))
                assert stored is not None
                if decode_table_header(stored).floor > table.version:
                    return False
        return True

    def _begin(self, number: int, moment: Moment, back: int | None) -> Server:
        """Learn the schema of then, and read what is to be written. `back`: the way that the change is on."""
        layouts = self._model.layouts(back)
        read, anew = [], False
        for write in self._model.writes[number]:
            table = self._model.catalog(moment).lookup("public", write.table)
            if not isinstance(table, Table):
                return Server("end", outcome="nothing to do")
            names = {column.name for column in table.columns if column.state is State.PUBLIC}
            if not names.issuperset(name for name, _ in write.values):
                return Server("end", outcome="nothing to do")
            anew = anew or not _public(self._before(write.table)) <= _public(table)
            reader = self._reader(table, back)
            rows = self._model.rows(table, back).values()
            own = (self._key(table)(image) for image in rows if image[0] == write.key)
            view = View(self._world.store, self._world.now(), None, layouts)
            version = next((reader.get_version(view, key) for key in own), None)
            read.append(None if version is None else (version.base, version.values))
        return Server("derive", held=moment, meant=moment, anew=anew, read=tuple(read))

    def _reader(self, table: Table, back: int | None) -> TableReader:
        place = (id(table), back)
        if place not in self._readers:
            reader = TableReader(table, range(len(table.columns)), self._model.layouts(back))
            self._readers[place] = (table, reader)
        return self._readers[place][1]

    def _key(self, table: Table) -> Callable[[tuple[object, ...]], bytes]:
        """The key of a row of the table."""
        if id(table) not in self._keys:
            self._keys[id(table)] = (table, image_key(table))
        return self._keys[id(table)][1]

    def _before(self, name: str) -> Table:
        """The table of that name before the change."""
        return _named(self._model.catalog(FIRST), name)

    def _submit(self, server: Server, moment: Moment) -> Server:
        assert server.request is not None
        met = dict(server.met)
        try:
            self._world.store.commit(server.request)
        except (StaleSchema, StaleRow, PreconditionFailed) as refused:
            note_refusal(met, refused)
            if isinstance(refused, PreconditionFailed) and not _goes_on(refused):
                return Server("end", outcome="refused")
            # A server that is refused learns the newest schema, and derives again.
            return replace(server, step="derive", held=moment, request=None, met=met, said=repr(met))
        return Server("end", anew=server.anew, outcome="committed")

    def _derive(self, number: int, server: Server, moment: Moment) -> Server:
        meant, held = self._model.catalog(server.meant), self._model.catalog(server.held)
        buffer = Buffer()
        try:
            for write, read in zip(self._model.writes[number], server.read, strict=True):
                if not _buffered(buffer, meant, write, read):
                    return Server("end", outcome="nothing to do")
            with self._world.store.read() as reader:
                request = self._request(reader, buffer, meant, held, server, moment.back)
        except (Conflict, errors.Error):
            return Server("end", outcome="refused")
        return replace(server, step="submit", request=request, said=f"{request!r} {server.met!r}")

    def _request(
        self,
        reader: Reader,
        buffer: Buffer,
        meant: CatalogSnapshot,
        held: CatalogSnapshot,
        server: Server,
        back: int | None,
    ) -> Commit:
        request = Commit(catalog_version=self._model.version(server.held))
        derivation = Derivation(reader, self._hold, violated=self._violated, met=server.met)
        crossings = Crossings(self._database, held)
        for changed in buffer:
            before, table = meant.table(changed.table), held.by_id(changed.table)
            if not isinstance(table, Table):
                if not crossings.take(changed, before):
                    raise errors.error(errors.SERIALIZATION_FAILURE, f'table "{before.name}" is gone')
                continue
            require_compatible(table, before.version, Usage(wrote=True))
            writer = self._writer(table, held, server.held, back)
            now = crossed(changed, before, writer, reader, lambda _: GIVEN)
            for change in now.changes.values():
                if change.image is not None:
                    self._hold(table, change.image)
            derivation.table(writer, now, before)
        buffers, unchanged = crossings.buffers(reader)
        derivation.preconditions.extend(unchanged)
        for writer, made in buffers:
            derivation.table(writer, made)
        request.tables += derivation.tables
        request.entries += derivation.entries
        request.preconditions += derivation.preconditions
        request.raw += [(key, encode_violation(found)) for key, found in derivation.flags.items()]
        return request

    def _writer(self, table: Table, catalog: CatalogSnapshot, held: Moment, back: int | None) -> TableWriter:
        place = (table.id, held, back)
        if place not in self._writers:
            self._writers[place] = TableWriter(table, catalog, self._model.layouts(back))
        return self._writers[place]

    # --- what SQL judges of a row ------------------------------------------------------------------------------------

    def _hold(self, table: Table, image: tuple[object, ...]) -> None:
        """Checks and NOT NULL, before the commit, pending ones included (rule 16)."""
        for check in table.checks:
            if check.enforced and not self._checks[check.name](columns_of(table, check, image)):
                raise errors.error(errors.CHECK_VIOLATION, check.name)
        for column, value in zip(table.columns, image, strict=True):
            if column.refuses_null and value is None:
                raise errors.error(errors.NOT_NULL_VIOLATION, column.name)

    def _violated(self, table: Table, image: tuple[object, ...]) -> Iterator[int]:
        """Those that yield."""
        for check in table.checks:
            pending = check.yields and check.state is State.WRITE_ONLY
            if pending and not self._checks[check.name](columns_of(table, check, image)):
                yield check.id
        for column, value in zip(table.columns, image, strict=True):
            if column.tells_null and value is None:
                yield column.id


def _goes_on(refused: PreconditionFailed) -> bool:
    """Whether what does not hold is no error, and the commit is derived once more."""
    failure: Any = getattr(refused.precondition, "on_failure", None)
    return failure is not None and failure.error() is None


def _named(catalog: CatalogSnapshot, name: str) -> Table:
    table = catalog.lookup("public", name)
    assert isinstance(table, Table)
    return table


def _public(table: Table) -> set[int]:
    """The columns that statements can name, by their ids."""
    return {column.id for column in table.columns if column.state is State.PUBLIC}


def columns_of(table: Table, check: Check, image: tuple[object, ...]) -> tuple[object, ...]:
    """The values that a CHECK reads, as validations give them to its predicate."""
    return tuple(value for column, value in zip(table.columns, image, strict=True) if column.id in check.columns)


def _buffered(buffer: Buffer, catalog: CatalogSnapshot, write: Write, read: Any) -> bool:
    """Put the write into the buffer as a statement would that has read `read`; False if it has nothing to write on."""
    table = _named(catalog, write.table)
    values = dict(write.values)
    key_of = image_key(table)
    # A statement can name what is public only, though a column that takes the place of another bears its name.
    names = [column.name if column.state is State.PUBLIC else "" for column in table.columns]
    derive = deriver(table) or (lambda image: image)
    if write.kind == "insert":
        if read is not None:
            return False
        values["id"] = write.key
        pairs = zip(table.columns, names, strict=True)
        given = (GIVEN if column.per_row and not column.derived else values.get(name) for column, name in pairs)
        image = derive(tuple(given))
        buffer.insert(table.id, table.version, key_of(image), image)
        return True
    if read is None:
        return False
    base, old = read
    if write.kind == "delete":
        buffer.delete(table.id, table.version, key_of(old), base, old)
        return True
    image = derive(written(write, names, old))
    if key_of(image) != key_of(old):
        pair = buffer.pair_of(table.id, key_of(old))  # a change of key is a delete and an insert (rule 2)
        buffer.delete(table.id, table.version, key_of(old), base, old, pair=pair)
        buffer.insert(table.id, table.version, key_of(image), image, pair=pair)
        return True
    changed = frozenset(column.id for column, name in zip(table.columns, names, strict=True) if name in values)
    buffer.update(table.id, table.version, key_of(old), base, old, image, changed)
    return True


def written(write: Write, names: Sequence[str], old: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row `old` after an update or a count."""
    values = dict(write.values)
    if write.kind == "count":
        return tuple(value + values[name] if name in values else value for name, value in zip(names, old, strict=True))
    return tuple(values.get(name, value) for name, value in zip(names, old, strict=True))
