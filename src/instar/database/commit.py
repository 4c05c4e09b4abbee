"""What a transaction commits: its buffer and its catalog change, derived under the newest schema.

I to e: the steps between the schema that the statements meant and the newest one are put to the validators, and the
buffered images are brought to the newest version. e to c is the store's fence (transactions/commit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Column, Object, Table, changes_since, transformation_of
from instar.catalog.history import dropped_table
from instar.catalog.layouts import Layouts
from instar.database.crossing import Again, Crossings
from instar.database.settings import SavedSettings
from instar.schemachange.compatibility import Usage, require_compatible
from instar.schemachange.waiting import holders
from instar.sql.defaults import compile_default
from instar.sql.functions import Context
from instar.store.engine import (
    ROW_HEADER,
    Commit,
    Lease,
    Precondition,
    Reader,
    Refused,
    StaleSchema,
    Store,
    TableWrites,
    ValueUnchanged,
    View,
    rowset_prefix,
)
from instar.store.lock_modes import SCHEMA_MODES
from instar.store.lock_table import Locked
from instar.store.records import table_key
from instar.tables.completion import unseen
from instar.tables.locks import Image, Recheck
from instar.tables.pending import encode_violation
from instar.tables.upgrade import crossed
from instar.tables.validation import Validation
from instar.tables.writes import Derivation, Met, NewerRow, TableWriter, Violated, note_refusal, row_conflict
from instar.transactions.buffer import Change, TableBuffer
from instar.transactions.commit import Conflict
from instar.transactions.reads import ReadSet
from instar.transactions.transaction import Snapshot, Transaction

if TYPE_CHECKING:
    from instar.database.database import Database
    from instar.database.restoring import Restoring
    from instar.database.row_locks import RowLocks

# What a session keeps for savepoints beside the transaction: how many schema changes were planned, and its settings.
Restored = tuple[int, SavedSettings]
# So often a commit is turned back for its schema version before changes are asked to give way.
_PATIENCE = 3
# How a catalog change fails that found its objects changed or its names taken since it was planned.
_MET_ANOTHER = frozenset({errors.SERIALIZATION_FAILURE, errors.DUPLICATE_TABLE})

SessionTransaction = Transaction[CatalogSnapshot, CatalogChange, Table, Restored]


class Crossed(Conflict):
    """What was written to the table of this id has no meaning under a change of it that was committed meanwhile."""

    def __init__(self, table: int, reported: errors.Error) -> None:
        super().__init__(reported)
        self.table = table


def dropped(table: Table) -> errors.Error:
    """40001: the table that was written to is gone; if it was being joined or split then, that is what has become of
    it."""
    if table.transformed is not None:
        return errors.error(
            errors.SERIALIZATION_FAILURE,
            f'table "{table.name}", which the transaction wrote to, was joined or split meanwhile',
            detail=f"The change was: {transformation_of(table)}",
            hint="Retry the transaction, on the new tables.",
        )
    return errors.error(
        errors.SERIALIZATION_FAILURE,
        f'table "{table.name}", which the transaction wrote to, was dropped by a concurrent drop table',
        hint="Retry the transaction.",
    )


def require_crossing(store: Store, meant: Table, newest: Object | None, changes: Iterable[Change]) -> Table:
    """The newest version of the table, if writes that were meant under `meant` may cross to it; else Crossed."""
    if not isinstance(newest, Table):
        with store.read() as reader:
            last = dropped_table(reader, meant.id)  # it knows of a join or split that began after `meant`
        raise Crossed(meant.id, dropped(last or meant))
    try:
        require_compatible(newest, meant.version, usage_of(changes))
    except errors.Error as refused:
        raise Crossed(meant.id, refused) from None
    return newest


def require_read_columns(reads: ReadSet, known: CatalogSnapshot, newest: CatalogSnapshot) -> None:
    """Crossed if a column that a SERIALIZABLE transaction has read, on a snapshot whose catalog is `known`, is gone."""
    for place, _ranges in reads:
        meant, now = known.by_id(place.table), newest.by_id(place.table)
        if isinstance(meant, Table) and isinstance(now, Table):
            try:
                require_compatible(now, meant.version, Usage(wrote=False, read=place.columns))
            except errors.Error as refused:
                raise Crossed(meant.id, refused) from None


def require_undoomed(database: Database, transaction: SessionTransaction, touched: Collection[int] = ()) -> None:
    """Crossed as soon as a change is committed that the writes of a transaction cannot cross: one that keeps its
    snapshot would learn of it at COMMIT only, and do all the rest in vain. Others look at what they have just `touched`
    for the first time; of the rest their next statement's schema tells them."""
    judged = transaction.enlisted if transaction.keeps_snapshot else touched
    if not judged or transaction.snapshot is None:
        return
    with database.store.read() as reader:
        if reader.catalog_version == transaction.snapshot.catalog.version:
            return
        newest = database.catalog.at(reader)
    for table in judged:
        buffer, found = transaction.buffer.table(table), newest.by_id(table)
        if buffer is None or (transaction.ddl and transaction.ddl.changes(table)):
            continue
        if found is not None or newest.kept_of(table) is None:  # else COMMIT translates them
            require_crossing(database.store, transaction.enlisted[table], found, buffer.changes.values())


def require_heeded(
    store: Store, locked: Mapping[int, Table], transaction: SessionTransaction, catalog: CatalogSnapshot
) -> None:
    """Conflict if rows that were selected FOR UPDATE or the like, of tables as they were then, have been replaced by
    those of another rowset, or of the tables of a join or split, or were dropped, or have more parts by now: what is
    there instead is not locked, so others may have changed it since."""
    for table, meant in locked.items():
        newest = catalog.by_id(table)
        last = newest if isinstance(newest, Table) else None
        if last is not None and _is_locked(meant, last):
            continue
        if transaction.ddl and transaction.ddl.changes(table):
            continue
        became = "replaced"  # by which of the changes is not on record
        if last is None:
            last = _dropped(store, table) or meant
            became = became if last.transformed is not None else "dropped"
        elif last.rowset == meant.rowset:
            became = "divided into more parts"
        raise Conflict(
            errors.error(
                errors.SERIALIZATION_FAILURE,
                f'rows of table "{last.name}" that the transaction has locked were {became} by a concurrent change',
                detail=changes_since(last, meant.version),
                hint="Retry the transaction.",
            )
        )


def _is_locked(meant: Table, newest: Table) -> bool:
    """Whether the locks on rows of a table as it was when they were taken are on all of these rows still. Parts are
    known by their numbers, so fewer of them are all locked."""
    return newest.rowset == meant.rowset and len(newest.layout.locks) <= len(meant.layout.locks)


def _dropped(store: Store, table: int) -> Table | None:
    """A table that was dropped, or joined or split, as it was last."""
    with store.read() as reader:
        return dropped_table(reader, table)


def brought(
    database: Database,
    buffer: TableBuffer,
    meant: Table,
    writer: TableWriter,
    catalog: CatalogSnapshot,
    view: View,
    functions: Callable[[], Context],
) -> TableBuffer:
    """The changes of a table, which were meant under `meant`, with images at its newest version, that of `writer`."""
    newest = writer.table
    if newest is meant and not writer.per_row:
        return buffer

    def next_value(sequence: int) -> int:
        return database.sequences.next_value(database.sequence(sequence, catalog))

    def default(column: Column) -> object:
        return compile_default(column, catalog, functions(), next_value)()

    return crossed(buffer, meant, writer, view, default)


def upgrade_buffers(
    database: Database, transaction: SessionTransaction, catalog: CatalogSnapshot, functions: Callable[[], Context]
) -> Sequence[int]:
    """Bring what is buffered to the schema of the statement that begins (rule 14); the tables that the transaction has
    come to write to by that. Crossed where that cannot be."""
    crossings: Crossings | None = None  # made where it is needed, which is hardly ever
    crossed_over = []
    for table_id, meant in list(transaction.enlisted.items()):
        buffer = transaction.buffer.table(table_id)
        newest = catalog.by_id(table_id)
        if buffer is None:
            # All of it was taken back: what is written next is meant under a schema of its own.
            del transaction.enlisted[table_id]
            continue
        if newest is meant:
            continue
        if not (transaction.ddl and transaction.ddl.changes(table_id)):
            if newest is None:
                crossings = crossings or Crossings(database, catalog)
                if crossings.take(buffer, meant):
                    crossed_over.append(table_id)
                    continue
            newest = require_crossing(database.store, meant, newest, buffer.changes.values())
        if not isinstance(newest, Table):
            transaction.buffer.drop_table(table_id)
            del transaction.enlisted[table_id]
            continue
        with database.store.read() as reader:
            writer = database.writers.get(newest, catalog)
            now = brought(database, buffer, meant, writer, catalog, reader, functions)
            if newest.checks_version != meant.checks_version:
                # The commit will not: they are enlisted under this list from now on (rule 16).
                hold(database.rules(catalog).of(newest).judge_by(functions), now, writer, reader)
        transaction.buffer.replace(table_id, now.changes)
        transaction.enlisted[table_id] = newest
        transaction.behind.setdefault(table_id, meant)
    if crossings is not None and crossed_over:
        return _cross(database, transaction, catalog, functions, crossings, crossed_over)
    return ()


def _cross(
    database: Database,
    transaction: SessionTransaction,
    catalog: CatalogSnapshot,
    functions: Callable[[], Context],
    crossings: Crossings,
    sources: Iterable[int],
) -> Sequence[int]:
    """Put what was buffered on tables that were joined or split meanwhile to their targets, which are returned but for
    those that it had written to. From now on it is as if it had been written there; what it rests on must hold at the
    commit still."""
    with database.store.read() as reader:
        buffers, unchanged = crossings.buffers(reader, lasting=True)
        for writer, made in buffers:
            hold(database.rules(catalog).of(writer.table).judge_by(functions), made, writer, reader)
    for source in sources:
        transaction.buffer.drop_table(source)
        del transaction.enlisted[source]
    arrived = [writer.table.id for writer, _ in buffers if writer.table.id not in transaction.enlisted]
    for writer, made in buffers:
        transaction.buffer.replace(writer.table.id, made.changes)
        transaction.enlisted[writer.table.id] = writer.table
        # That is the table that it is found under now; it has no version from before the change.
        transaction.behind.setdefault(writer.table.id, writer.table)
    transaction.rests_on.extend(unchanged)
    return arrived


def hold(judge: Callable[[Image], None], buffer: TableBuffer, writer: TableWriter, view: View) -> None:
    """Put the new images of rows to `judge`, which their statements did not know of. What another has changed since
    is a conflict rather than a violation: the row that is to be judged is not this one any more."""
    for key, change in buffer.changes.items():
        if change.image is None:
            continue
        try:
            judge(change.image)
        except errors.Error as violated:
            stored = None if change.base is None else view.get(writer.prefix + key)
            if change.base is not None and (stored is None or ROW_HEADER.unpack_from(stored)[0] != change.base):
                raise row_conflict(writer.table, key, change.version) from None
            told = violated.detail, changes_since(writer.table, change.version)
            violated.detail = " ".join(filter(None, told)) or None
            raise


def usage_of(changes: Iterable[Change]) -> Usage:
    """What the buffered changes did with their table."""
    columns: set[int] = set()
    for change in changes:
        if change.changed is None:
            return Usage(wrote=True)
        columns |= change.changed
    return Usage(wrote=True, columns=frozenset(columns))


class _Validated:
    """What a transaction has read at one snapshot, to be as it was at the commit."""

    def __init__(self, snapshot: Snapshot[CatalogSnapshot], reads: ReadSet) -> None:
        self.since = snapshot.timestamp
        self._known = snapshot.catalog
        self._reads = reads
        self._judged = snapshot.timestamp  # up to here
        self._validation: tuple[CatalogSnapshot, Validation] | None = None

    def follow(self, database: Database) -> None:
        """Judge it as far as that takes longer than a reader may be open."""
        with database.store.read() as reader:
            validation = self._under(database.catalog.at(reader), database.layouts)
            upto = reader.timestamp
        self._judged = validation.check(database.store, self._judged, upto)

    def preconditions(self, newest: CatalogSnapshot, layouts: Layouts) -> list[Precondition]:
        """What is left for the store to judge."""
        return self._under(newest, layouts).preconditions(self._judged)

    def _under(self, newest: CatalogSnapshot, layouts: Layouts) -> Validation:
        if self._validation is None or self._validation[0] is not newest:
            if self._known.version != newest.version:
                require_read_columns(self._reads, self._known, newest)
            self._validation = newest, Validation(self._reads, self._known, newest, self.since, layouts)
        return self._validation[1]


class Committer:
    """Derives the store commit of one transaction, as often as the store asks."""

    def __init__(
        self,
        database: Database,
        transaction: SessionTransaction,
        functions: Callable[[], Context],
        tokens: list[int],
        locks: RowLocks,
        restoring: Restoring | None = None,
    ) -> None:
        """`functions`: what the transaction's stable functions read. `tokens`: of what it has enlisted for, the session
        withdraws. `locks`: those that it holds. `restoring`: the columns that it brings back."""
        self._locks = locks
        self._restoring = restoring
        self._heeds_locks = True  # on rows of the tables that get a column back
        self._database = database
        self._transaction = transaction
        self._functions = functions
        self._tokens = tokens
        self._turned_back = 0
        self._told = ""  # what the client was told that it waits for
        # A schema that is merely leased does not do for catalog changes, which are made on the newest, nor for the
        # writes of a transaction whose reads are validated (rule 13), nor at a locking level, whose is the newest, nor
        # to see what has become of locked rows.
        locking = transaction.isolation.is_locking
        self._reads = [_Validated(snapshot, reads) for snapshot, reads in transaction.validated()]
        validates = bool(self._reads or transaction.rests_on) or transaction.reads is not None
        self._needs_newest = bool(transaction.ddl) or validates or locking or bool(locks.selected_of)
        # Its statements were meant under this version, so nothing of it is derived under an older one.
        self._at_least = 0 if transaction.snapshot is None else transaction.snapshot.catalog.version
        self._began = 0
        # Flags of constraints that yield, as the store has found them violated.
        self._met: dict[bytes, Met] = {}
        reads = transaction.reads
        if reads is not None and transaction.buffer.merged:
            reads.keep_probes()

    def prepare(self, refused: Refused | None) -> None:
        """Before each round, and so before the state is read that it is derived on: wait for locks of others, see to
        the schema's lease, and judge what a SERIALIZABLE transaction has read, as far as that takes longer than a
        reader may be open."""
        if isinstance(refused, Locked):
            self._wait(refused)
        note_refusal(self._met, refused)
        if isinstance(refused, StaleSchema):
            self._turned_back += 1
            if self._turned_back == _PATIENCE:
                self._ask_for_way()
        repository = self._database.repository
        if repository is not None and (self._needs_newest or refused is not None):
            if self._needs_newest:
                self._began = self._database.clock.monotonic_ns()
            elif isinstance(refused, StaleSchema):
                repository.reload()
            else:
                repository.schema(self._at_least)
        self._follow(refused)
        for validated in self._reads:
            validated.follow(self._database)

    def _wait(self, met: Locked) -> None:
        """Wait for a lock of another transaction. A change of the schema waits for so long only: whoever has written to
        a table that gets a column back is to get 40001, and whoever has only selected its rows reads them as before."""
        if self._transaction.ddl and met.mode in SCHEMA_MODES:
            reason = holders(self._database.store, met)
            if reason != self._told:
                self._told = reason
                self._locks.tell(reason)
        restoring = self._restoring
        prefixes = () if restoring is None else tuple(rowset_prefix(table.rowset) for table in restoring.tables)
        if restoring is None or not met.resource.startswith(prefixes):
            self._locks.wait(met)
            return
        left = max(0, restoring.until_ns - self._database.clock.monotonic_ns()) / 1e3
        self._heeds_locks = self._locks.wait(met, left)

    def _follow(self, refused: Refused | None) -> None:
        """What the changes of the schema have to know of the writes of others, as far as that takes longer than a
        reader may be open."""
        try:
            if self._transaction.ddl:
                self._transaction.ddl.judge_writes(self._database.store)
            if self._restoring is not None:
                for restoration in self._restoring.restorations:
                    restoration.follow(refused)
        except errors.Error as met:
            if met.sqlstate != errors.SERIALIZATION_FAILURE:
                raise
            raise Conflict(met) from None

    def _ask_for_way(self) -> None:
        """Have schema changes wait until this is committed: else one after the other might turn it back."""
        open_ = self._transaction
        for table in [buffer.table for buffer in open_.buffer] if open_.reads is None else [0]:
            self._database.store.enlist(table, open_.started_us, into=self._tokens, refused=True)

    def derive(self, reader: Reader) -> Commit | None:
        """The commit on the state that `reader` sees; None if there is nothing to write."""
        catalog, lease = self._schema(reader)
        try:
            return self._derived(reader, catalog, lease)
        except NewerRow:
            raise
        except (errors.Error, Conflict):
            # Under a schema that others have left behind, what is stored may seem to violate what it does not: the rows
            # of another rowset, say. The newest schema decides.
            if catalog.version < reader.catalog_version:
                raise StaleSchema(0, None) from None
            raise

    def _derived(self, reader: Reader, catalog: CatalogSnapshot, lease: Lease | None) -> Commit | None:
        transaction = self._transaction
        ddl = transaction.ddl
        request = Commit(catalog_version=catalog.version, lease=lease, owner=self._locks.owner, held=self._locks.held)
        if self._locks.selected_of:
            request.preconditions.extend(self._heeded(reader, catalog))
        for validated in self._reads:
            known = request.snapshot
            request.snapshot = validated.since if known is None else min(known, validated.since)
            request.preconditions.extend(validated.preconditions(catalog, self._database.layouts))
        if ddl:
            try:
                ddl.rebase(catalog)
                ddl.parts(reader).add_to(request)
            except errors.Error as met:
                if met.sqlstate not in _MET_ANOTHER:
                    raise
                raise Conflict(met) from None
            catalog = ddl.view
        for unchanged in transaction.rests_on:
            known = request.snapshot  # what is cut since then has left no trace (rule 6)
            request.snapshot = unchanged.since if known is None else min(known, unchanged.since)
            request.preconditions.append(unchanged)
        if transaction.buffer:
            behind = catalog.version < reader.catalog_version
            derivation = Derivation(
                reader,
                self._recheck(catalog),
                leased=lease is not None,
                behind=behind,
                violated=self._violated(catalog),
                met=self._met,
            )
            try:
                self._derive_tables(derivation, catalog)
            except NewerRow:
                self._database.outdate_schema()
                raise
            request.tables.extend(self._heeding(derivation.tables))
            request.entries.extend(derivation.entries)
            request.preconditions.extend(derivation.preconditions)
            if derivation.flags:
                request.raw.extend((key, encode_violation(found)) for key, found in derivation.flags.items())
        for restoration in () if self._restoring is None else self._restoring.restorations:
            restoration.add_to(request, reader, heeds_locks=self._heeds_locks)
        if not request.tables and not request.raw:
            return None
        return request

    def _heeding(self, tables: list[TableWrites]) -> list[TableWrites]:
        """The writes; those of tables that get a column back heed the locks of others for so long only."""
        if self._restoring is None:
            return tables
        restored = [table.id for table in self._restoring.tables]
        return [
            writes._replace(heeds_locks=self._heeds_locks) if writes.table in restored else writes for writes in tables
        ]

    def _heeded(self, reader: Reader, catalog: CatalogSnapshot) -> list[Precondition]:
        """As `require_heeded`, and what says that it is so still when the store judges: the fence does not, for tables
        that are not written."""
        locked = self._locks.selected_of
        require_heeded(self._database.store, locked, self._transaction, catalog)
        headers = [table_key(table) for table in locked]
        return [ValueUnchanged(header, reader.get(header), Again()) for header in headers]

    def _schema(self, reader: Reader) -> tuple[CatalogSnapshot, Lease | None]:
        """What to derive under (e): the newest schema, or under leases the newest that this server knows."""
        repository = self._database.repository
        if repository is None:
            return self._database.catalog.at(reader), None
        if self._needs_newest:
            # It has been read since the round began.
            period = int(self._database.store.schema_lease * 1e9)
            return self._database.catalog.at(reader), Lease(self._began + period)
        schema = repository.schema_for(reader, self._at_least)
        return schema.catalog, schema.lease

    def _derive_tables(self, derivation: Derivation, catalog: CatalogSnapshot) -> None:
        recheck = self._recheck(catalog)
        ddl, crossings = self._transaction.ddl, None
        for buffer in self._transaction.buffer:
            meant = self._transaction.enlisted[buffer.table]
            newest = catalog.by_id(buffer.table)
            if newest is None and not (ddl and ddl.changes(buffer.table)):
                crossings = crossings or Crossings(self._database, catalog)
                if crossings.take(buffer, meant):
                    continue
            table = meant if newest is meant else self._crossed(buffer, meant, newest, catalog)
            writer = self._database.writers.get(table, catalog)
            now = brought(self._database, buffer, meant, writer, catalog, derivation.reader, self._functions)
            if table.checks_version != meant.checks_version or (writer.per_row and unseen(meant, table)):
                # The statements did not know of all that their rows are held to now (rule 16), or of all of the rows.
                hold(partial(recheck, table), now, writer, derivation.reader)
            derivation.table(writer, now, meant)
        if crossings is None:
            return
        buffers, unchanged = crossings.buffers(derivation.reader)
        derivation.preconditions.extend(unchanged)
        for writer, made in buffers:
            hold(partial(recheck, writer.table), made, writer, derivation.reader)
            derivation.table(writer, made)

    def _recheck(self, catalog: CatalogSnapshot) -> Recheck:
        """Judges rows that no statement has seen."""

        def recheck(table: Table, image: tuple[object, ...]) -> None:
            self._database.rules(catalog).of(table).recheck(image, self._functions())

        return recheck

    def _violated(self, catalog: CatalogSnapshot) -> Violated:
        """Says what of the constraints that yield a row violates."""
        return lambda table, image: self._database.rules(catalog).of(table).violated(image, self._functions())

    def _crossed(self, buffer: TableBuffer, meant: Table, newest: Object | None, catalog: CatalogSnapshot) -> Table:
        """The newest version of the buffer's table, which is another than was meant."""
        ddl = self._transaction.ddl
        if ddl and ddl.changes(buffer.table):
            # Own DDL on the table: nobody else can have changed it since (rebase), so there is nothing to vote on.
            return catalog.table(buffer.table)
        return require_crossing(self._database.store, meant, newest, buffer.changes.values())
