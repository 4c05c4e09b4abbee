"""Writes of one row by its primary key: in autocommit read, derived and committed without transaction, buffer or plan.

What the general way does in several objects is one function here, with everything that does not change from one
execution to the next compiled when the statement is prepared. Whatever is not plain (another catalog version, a
parameter that a session's settings convert, a foreign key with an action) is left to the general way.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import State
from instar.catalog.layouts import Layouts
from instar.database.point_demands import Demands, Unmet, demands_of
from instar.database.point_derivations import (
    ByValues,
    LeftAlone,
    Unlearnt,
    arbiters_of,
    changing,
    deriving,
    inserting,
    upserting,
)
from instar.encoding.generate import compile_function
from instar.sql import tree
from instar.sql.defaults import Execution
from instar.sql.execution import Row
from instar.sql.functions import Context
from instar.sql.plan_cache import class_of
from instar.sql.point import FALLBACK, PointWrite, internal_class, unfit
from instar.store.engine import ROW_HEADER, Derive, LeaseExpired, Reader
from instar.store.lock_modes import Mode
from instar.store.lock_table import Locked
from instar.tables.index import IndexCodec
from instar.tables.patching import Patchers, never, patchers
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.writes import TableWriter
from instar.transactions.buffer import Buffer
from instar.transactions.commit import MAX_EXPIRIES
from instar.types import STRINGS, Kind, Type
from instar.values import converter

if TYPE_CHECKING:
    from instar.database.database import Database
    from instar.database.session import Session

# How often a write is derived again, because somebody else changed the row, before the general way has a try.
ROUNDS = 20

# What a writer returns that does not serve such parameters, or such a row; one that was made for another version of the
# catalog than the newest; one whose row or transaction is in a state that only the general way knows about.
UNSERVED, OUTDATED, ENTANGLED = -1, -2, -3

_CONSTANT = Context(now=0)
# Classes of errors that a commit may have ended with although it stands, or that no other way would mend: 08 (it may
# stand or not), 53 and 58 (the disk), XX.
_OF_THE_COMMIT = frozenset({"08", "53", "58", "XX"})

_DATED: dict[Kind, type] = {
    Kind.DATE: datetime.date,
    Kind.TIMESTAMP: datetime.datetime,
    Kind.TIMESTAMPTZ: class_of(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)),
}


def point_writer(
    database: Database,
    write: PointWrite,
    bound: tree.BoundStatement,
    parameters: Sequence[object],
    writer: TableWriter,
    version: int,
) -> PointWriter | None:
    """The short way of a write; see `PointWriter.run`.

    It serves parameters of the same classes as `parameters`, for which the statement was `bound`. None for statements
    that have no such form: they have parameters that only a session's time zone can convert, say. Where a NULL was
    asked for its type there is none either, until other values come.
    """
    types = bound.parameters
    if any(parameters[index] is None for index in bound.by_value):
        return None
    # Under several locks a write touches some of a row's lock timestamps: the general way knows which.
    # So it does about copies under another key.
    demands = demands_of(write, writer)
    if writer.locks or writer.copies or write.checks_read_context:
        return None
    # About constraints that tell their change what violates them, too, and about tables that close.
    transformed = write.table.transformed
    if writer.yields or (transformed is not None and transformed.closing):
        return None
    if not _zoneless(types, parameters):
        return None
    # An update is derived inside the atomic section, where a sequence could not reserve its next block.
    if write.operation != "insert" and write.draws:
        return None
    # What is violated the general way finds, too, which draws anew: a number is lost, and nothing else may be.
    if demands and write.knows_numbers:
        return None
    codecs = _touched(writer, write.changed, write.operation)
    if any(codec.index.state is not State.PUBLIC for codec in codecs):
        return None
    return PointWriter(database, write, bound, parameters, writer, demands, version)


def _zoneless(types: Sequence[Type], parameters: Sequence[object]) -> bool:
    """Whether values of the parameters' classes are converted without a time zone."""
    return all(
        type_.kind not in _DATED or class_of(value) is _DATED[type_.kind]
        for type_, value in zip(types, parameters, strict=True)
    )


def _touched(writer: TableWriter, changed: frozenset[int], operation: str) -> list[IndexCodec]:
    """The indexes whose entries the write can change."""
    if operation != "update":
        return list(writer.codecs)
    return [codec for codec in writer.codecs if not changed.isdisjoint(codec.ordinals)]


@lru_cache(maxsize=1024)
def _conversion(
    types: tuple[Type, ...], classes: tuple[type, ...], by_value: frozenset[int]
) -> Callable[[Sequence[object], list[Any]], list[Any] | None]:
    """A generated function from Python parameters to a frame: internal values, then the rest that it is given. None
    where a parameter is of another class, so that the statement may have another plan. Values that are internal ones
    already cost one test."""
    scope: dict[str, Any] = {"FALLBACK": FALLBACK}
    names = "".join(f"p{index}, " for index in range(len(types)))
    lines = ["def convert(parameters, rest):", f"    if len(parameters) != {len(types)}:", "        return None"]
    if types:
        lines.append(f"    {names}= parameters")
    for index, (type_, class_) in enumerate(zip(types, classes, strict=True)):
        scope[f"slow{index}"] = _slow_conversion(type_, class_, by_value=index in by_value)
        slow = [f"p{index} = slow{index}(p{index})", f"if p{index} is FALLBACK:", "    return None"]
        # A place that decides the type takes what is of it after a NULL as well.
        as_it_is = class_.__name__ == internal_class(type_) or (class_ is type(None) and index not in by_value)
        if as_it_is:
            # Some strings are no text: what is not plain is looked at.
            test = unfit(index, type_) + (f" or not p{index}.isascii()" if type_.kind in STRINGS else "")
            slow = [f"if {test}:", *(f"    {line}" for line in slow)]
        lines += [f"    {line}" for line in slow]
    lines.append(f"    return [{names}*rest]")
    made: Callable[[Sequence[object], list[Any]], list[Any] | None] = compile_function("convert", lines, scope)
    return made


def _slow_conversion(type_: Type, wanted: type, *, by_value: bool) -> Callable[[Any], Any]:
    convert = converter(type_)

    def slow(value: Any) -> Any:
        if value is None and not by_value:
            return None
        return convert(value) if class_of(value) is wanted else FALLBACK

    return slow


def _patchers(
    write: PointWrite, layouts: Layouts, codecs: Sequence[IndexCodec], demands: Demands, former: Patchers | None
) -> Patchers | None:
    """Of an update that only puts values of its own into columns, which no index has and no foreign key."""
    if write.assigned is None or codecs or demands.parents or demands.children:
        return None
    return patchers(write.table, layouts, write.assigned[0], former)


def _mode(write: PointWrite, writer: TableWriter) -> Mode | None:
    """The mode in which the write's row is to be locked, of a table with one optimistic lock, where nothing is demanded
    of other rows. None where that is not all (a row that goes gives up its unique keys), or too much (nobody else can
    come to a row id), or not known before (of ON CONFLICT)."""
    if write.operation == "update":
        return Mode.NO_KEY_UPDATE
    if write.operation == "insert":
        return None if writer.has_row_id or write.conflict is not None else Mode.UPDATE
    return None if any(codec.index.unique for codec in writer.codecs) else Mode.UPDATE


class Buffered(NamedTuple):
    """The change of one row: its key, the timestamp and image of what is stored there, and its new image, as of
    `Change`."""

    key: bytes
    base: int | None
    old: tuple[Any, ...] | None
    image: tuple[Any, ...] | None
    returned: list[Row] | None  # what the statement returns, if it returns something


# What a write has of its table's shape: the same under each version of it.
_OF_THE_SHAPE = (
    *("_after_commit", "_arbiters", "_classes", "_codecs", "_database", "_draws", "_encode", "_frame", "_has_rest"),
    *("_inserts", "_prefix", "_repository", "_rest", "_returning", "_store", "_table_id", "_upserting", "columns"),
    *("demands", "mode"),
)


class PointWriter:
    """A write under one version of its table, and of the catalog."""

    __slots__ = (
        *_OF_THE_SHAPE,
        *("__weakref__", "_by_values", "_deriving", "_inserting", "_lease", "_make_writer", "_patchers", "_version"),
        *("_write", "_writer", "table"),
    )

    def __init__(
        self,
        database: Database,
        write: PointWrite,
        bound: tree.BoundStatement,
        parameters: Sequence[object],
        writer: TableWriter,
        demands: Demands,
        version: int,
    ) -> None:
        self._store = database.store
        followed = writer.table.has_followers
        self._after_commit = database.after_followed_commit if followed else database.after_commit
        self.columns = write.columns
        self._database = database
        self._repository = database.repository
        self._prefix = writer.prefix
        self._encode = writer.encode
        self._table_id = writer.table.id
        self._inserts = write.operation == "insert"  # not a method, with which it would be held by itself
        self._codecs = _touched(writer, write.changed, write.operation)
        self._arbiters = arbiters = arbiters_of(write, writer)
        self._upserting = None if arbiters is None else upserting(write, writer, arbiters, demands)
        # Row ids are all that it takes of sequences, unless it `draws`.
        self._rest = write.frame((), _CONSTANT, Execution(database.next_value, _CONSTANT))
        self._returning = write.returning
        self._draws = write.draws
        self._has_rest = write.draws or write.reads_context  # for each execution another
        self._classes = tuple(map(class_of, parameters))
        self._frame = _conversion(bound.parameters, self._classes, bound.by_value)
        self.demands = demands
        self.mode = _mode(write, writer)
        self._serve(version, write, lambda: writer, None)

    def _serve(
        self, version: int, write: PointWrite, make_writer: Callable[[], TableWriter], former: Patchers | None
    ) -> None:
        """Be for this version of the table: it is made anew with every change, of no more than serves."""
        self._write = write
        self.table = write.table
        self._version = version
        self._lease = self._database.lease_at(version)
        self._make_writer = make_writer
        self._writer: TableWriter | None = None
        codecs, demands = self._codecs, self.demands
        self._patchers: Patchers | None = None
        if self._inserts:
            self._inserting = inserting(write.table, self._encode, codecs, demands)
            return
        self._patchers = _patchers(write, self._database.layouts, codecs, demands, former)
        self._by_values = by_values = ByValues(lambda: changing(write, make_writer(), codecs, demands))
        if self._patchers is None:
            by_values.learn()
        self._deriving = deriving(write, self._patchers, by_values, demands)

    @property
    def writer(self) -> TableWriter:
        """The table's."""
        made = self._writer
        if made is None:
            made = self._writer = self._make_writer()
        return made

    def is_of(self, write: PointWrite) -> bool:
        """Whether this is its short form: the table is the same version."""
        return write is self._write

    def alike(self, write: PointWrite, catalog: CatalogSnapshot, parameters: Sequence[object]) -> PointWriter | None:
        """The same for another version of its table, which `write` is of and the catalog has; None unless that is of
        the same shape, and parameters of these classes are served."""
        if write.family is not self._write.family or self._upserting is not None:
            return None
        if tuple(map(class_of, parameters)) != self._classes:
            return None
        made = PointWriter.__new__(PointWriter)
        for name in _OF_THE_SHAPE:
            setattr(made, name, getattr(self, name))
        make_writer = partial(self._database.writers.get, write.table, catalog.unheld())
        made._serve(catalog.version, write, make_writer, self._patchers)
        return made

    def moves_to(self, version: int, write: PointWrite, writer: TableWriter, parameters: Sequence[object]) -> bool:
        """Serve this version of the catalog from now on, if `write` and `writer` are there what they were, and
        parameters of these classes are served: most changes of a schema are other tables'."""
        classes = tuple(map(class_of, parameters))
        if write is not self._write or writer is not self.writer or classes != self._classes:
            return False
        self._lease = self._database.lease_at(version)
        self._version = version
        return True

    def _renewed(self) -> bool:
        """Whether the lease of this schema version, which had run out, runs again; else another version is due."""
        repository = self._repository
        return repository is not None and repository.schema().lease is self._lease

    def _frame_of(self, parameters: Sequence[object], session: Session) -> list[Any] | None:
        if not self._has_rest:
            return self._frame(parameters, self._rest)
        context = session.function_context() if self._write.reads_context else _CONSTANT
        execution = session.numbers if self._draws else Execution(self._database.next_value, context)
        return self._frame(parameters, self._write.frame((), context, execution))

    def run(self, parameters: Sequence[object], session: Session) -> int | list[Row]:
        """From Python parameters to the number of rows changed, or the rows that are returned, of internal values;
        UNSERVED and ENTANGLED: take the general way; or OUTDATED."""
        version = self._version  # another session may have it move on at any time
        if version < self._database.known_version:
            return OUTDATED  # as the commit would find out
        try:
            if self._draws and self._is_outdated(version):
                return OUTDATED  # the sequence may be another by now
            # As `_frame_of` does it, without the call.
            frame = self._frame_of(parameters, session) if self._has_rest else self._frame(parameters, self._rest)
            if frame is None:
                return UNSERVED
            if self._inserts:
                return self._insert(version, frame)
            # What is updated or deleted is derived in the commit itself, since nothing in it can wait or ask for more
            # than the row.
            key = self._write.key(frame)
            if key is None:
                return self._none(version)
            returned: list[Row] | None = [] if self._returning is not None else None
            derive = self._deriving(version, self._lease, self._prefix + key, frame, returned)
            try:
                timestamp = self._store.commit_derived(derive)
            except (LeaseExpired, Locked, Unlearnt) as refused:
                timestamp = self._again(derive, refused)
            if timestamp > 0:
                self._after_commit()
                return 1 if returned is None else returned
            return UNSERVED if timestamp == UNSERVED else self._none(version)
        except Unmet:
            return ENTANGLED
        except LeftAlone:
            return self._nothing()
        except errors.Error as failed:
            if failed.sqlstate[:2] in _OF_THE_COMMIT:
                raise  # it may stand
            # What does not fit the schema that this was compiled for may fit the newest: a column was widened, say.
            if self._is_outdated(version):
                return OUTDATED
            raise

    def to_buffer(
        self,
        reader: Reader,
        parameters: Sequence[object],
        session: Session,
        buffer: Buffer,
    ) -> Buffered | int | list[Row]:
        """What a transaction is to buffer, which has `buffer` already and goes on at what `reader` sees. Or what `run`
        gives for no row; UNSERVED, OUTDATED, ENTANGLED. Errors as of the statement, and those of
        the session's locks for a key whose row stands in the way."""
        if reader.catalog_version != self._version:
            return OUTDATED
        frame = self._frame_of(parameters, session)
        if frame is None:
            return UNSERVED
        if self._inserts:
            return self._proposed(reader, frame, session, buffer)
        key = self._write.key(frame)
        if key is None:
            return self._nothing()
        if self._has_changed(buffer, key):
            return ENTANGLED
        stored = reader.get(self._prefix + key)
        if stored is None or stored[LAYOUT_OFFSET] & 1:
            return self._nothing()
        return self._changed(reader, buffer, key, stored, frame, None)

    def _proposed(
        self, reader: Reader, frame: list[Any], session: Session, buffer: Buffer
    ) -> Buffered | int | list[Row]:
        """As `to_buffer`, of an insert."""
        image = self._write.image(None, frame)
        assert image is not None  # an insert has a new row
        key = self._write.key_of(image)
        if self._has_changed(buffer, key):
            return ENTANGLED
        stored_at = self._prefix + key
        stored = reader.get(stored_at)
        if self._arbiters is not None:
            found = self._arbiters.in_the_way(reader, stored_at, stored, image)
            if found is not None:
                found_at, there = found
                return self._changed(reader, buffer, found_at[len(self._prefix) :], there, frame, image)
        returned = self._returned(image, frame)
        if stored is not None and not stored[LAYOUT_OFFSET] & 1:
            if self._arbiters is not None:
                return ENTANGLED  # the transaction may have put a row in the way itself
            session.locks.require_unlocked(stored_at)
            raise self._write.duplicate(image)
        if self.demands and not self.demands.are_met(reader, buffer, stored_at, None, image):
            return ENTANGLED
        return Buffered(key, None, None, image, returned)

    def _changed(
        self, reader: Reader, buffer: Buffer, key: bytes, stored: bytes, frame: list[Any], proposed: Row | None
    ) -> Buffered | int | list[Row]:
        """As `to_buffer`, of the row that is `stored`; `proposed`: that was to be inserted, and this one is in the
        way."""
        if proposed is not None and self._has_changed(buffer, key):
            return ENTANGLED
        old = self.writer.reader.decode(stored)
        if proposed is None:
            new = self._write.image(old, frame)
        elif (new := self._write.updated(old, proposed, frame)) is None:
            return self._nothing()
        if self.demands and not self.demands.are_met(reader, buffer, self._prefix + key, old, new):
            return ENTANGLED
        returned = self._returned(old if new is None else new, frame)
        return Buffered(key, ROW_HEADER.unpack_from(stored)[0], old, new, returned)

    def _has_changed(self, buffer: Buffer, key: bytes) -> bool:
        """Whether a transaction has changed the row."""
        own = buffer.tables.get(self._table_id)
        return own is not None and key in own.changes

    def _nothing(self) -> int | list[Row]:
        return 0 if self._returning is None else []

    def _returned(self, image: Row, frame: list[Any]) -> list[Row] | None:
        return None if self._returning is None else [self._returning(image, frame)]

    def _again(self, derive: Derive, refused: LeaseExpired | Locked | Unlearnt) -> int:
        """What becomes of a write that was `refused`: as of `commit_derived`, or UNSERVED."""
        for _ in range(MAX_EXPIRIES):
            if isinstance(refused, Unlearnt):
                self._learn(refused.stored)
            elif isinstance(refused, Locked) or not self._renewed():
                break  # the general way waits
            try:
                return self._store.commit_derived(derive)
            except (LeaseExpired, Locked, Unlearnt) as caught:
                refused = caught
        return UNSERVED

    def _learn(self, stored: bytes) -> None:
        """Make what serves rows in the layout of `stored`."""
        known = self._patchers
        assert known is not None  # the row was to be patched
        if known.has_met(stored) or known.learn(stored) is never:
            self._by_values.learn()
            self.writer.reader.decode(stored)

    def _none(self, version: int) -> int | list[Row]:
        """No row was changed: that, if the statement still means what it meant."""
        if self._is_outdated(version):
            return OUTDATED
        return self._nothing()

    def _is_outdated(self, version: int) -> bool:
        """Whether there is another version of the catalog by now: a default, a name or a check may be another, even
        where the row's layout still stands."""
        with self._store.read() as reader:
            return reader.catalog_version != version

    def _insert(self, version: int, frame: list[Any]) -> int | list[Row]:
        image = self._write.image(None, frame)
        assert image is not None  # an insert has a new row
        returned = self._returned(image, frame)
        key = self._write.key_of(image)
        stored_at = self._prefix + key
        if self._upserting is None:
            derive = self._inserting(version, self._lease, stored_at, key, image)
        else:
            derive = self._upserting(version, self._lease, stored_at, image, frame, returned)
        for _ in range(ROUNDS):
            try:
                timestamp = self._store.commit_derived(derive)
            except (LeaseExpired, Locked) as refused:
                timestamp = self._again(derive, refused)
            if timestamp > 0:
                self._after_commit()
                return 1 if returned is None else returned
            if timestamp == UNSERVED:
                return UNSERVED
            reader = self._store.read()
            try:
                if reader.catalog_version != version:
                    return OUTDATED
                stored = reader.get(stored_at)
            finally:
                reader.close()
            if stored is not None and not stored[LAYOUT_OFFSET] & 1:
                if self._store.locks.may_be_held():
                    return UNSERVED  # somebody may be about to remove the row
                raise self._write.duplicate(image)
        return UNSERVED
