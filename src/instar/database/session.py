"""A session: one connection's settings, its transaction, and the execution of statements in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table
from instar.database import utility
from instar.database.bulk import SMALLEST_LOAD, insert_arrow
from instar.database.commit import (
    Committer,
    Kept,
    SessionTransaction,
    brought,
    hold,
    require_crossing,
    require_undoomed,
)
from instar.database.queries import Queries
from instar.database.result import Result
from instar.database.schema import SchemaChanges
from instar.database.settings import SavedSettings, Settings
from instar.schemachange.explain import Row
from instar.schemachange.jobs import Job
from instar.sql import statements as ast
from instar.sql.ddl import is_schema_change
from instar.sql.functions import Context
from instar.sql.parser import parse_one
from instar.store.forks import begin_anew_in_child
from instar.transactions.buffer import TableBuffer
from instar.transactions.commit import Conflict, commit
from instar.transactions.reads import ReadSet
from instar.transactions.transaction import Isolation, Savepoint, Snapshot, Transaction, isolation_of

if TYPE_CHECKING:
    import pyarrow as pa

    from instar.database.database import Database
    from instar.store.engine import View

# How often an autocommit statement runs again on a new snapshot before its conflict is reported after all.
MAX_RESTARTS = 50

T = TypeVar("T")


class Session:
    """Statements of one client, one after the other. Not for several threads at once, but for `cancel`: who hands a
    session to several takes `use` around each call."""

    def __init__(self, database: Database, *, autocommit: bool) -> None:
        self.database = database
        self.autocommit = autocommit
        self.use = threading.RLock()  # a notice's handler may execute statements itself
        self.notices: list[str] = []
        self.on_notice: Callable[[str], object] | None = None  # is handed notices as they come
        self.on_wait: Callable[[Job], None] | None = None  # shown the job that a statement waits for, now and then
        self.settings = Settings(
            {"synchronous": database.store.synchronous, "schema_lease": f"{database.store.schema_lease:g}"}
        )
        self.transaction: SessionTransaction | None = None
        self._saved_settings: SavedSettings | None = None
        self._cancelled = threading.Event()
        self._stop: Callable[[], None] | None = None
        self._queries = Queries(self)
        self._schema = SchemaChanges(self)
        self._inherited: SessionTransaction | None = None
        self._lasting: object | None = None  # token of the snapshot that a transaction keeps
        self.enlisted: list[int] = []  # tokens under which others see that the transaction has written
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a forked child: a transaction belongs to the process that began it, else both would commit it."""
        self.use = threading.RLock()  # a thread that the child does not have may hold it
        self._lasting = None
        self.enlisted = []
        self._inherited = self.transaction
        if self.transaction is not None:
            self.transaction.failed = True

    # --- the interface -----------------------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open that was begun by BEGIN or has written something."""
        open_ = self.transaction
        return open_ is not None and (open_.explicit or open_.has_written)

    @property
    def in_block(self) -> bool:
        """Whether the running statement is part of a transaction of several."""
        return not self.autocommit or (self.transaction is not None and self.transaction.explicit)

    @property
    def failed(self) -> bool:
        """Whether the open transaction has failed and only waits for ROLLBACK."""
        return self.transaction is not None and self.transaction.failed

    def execute(self, text: str, parameters: Sequence[object] = ()) -> Result:
        """Execute one statement. `parameters` are Python values for `?` or `$1`."""
        open_ = self.transaction
        if open_ is None and self.autocommit:
            result = self._queries.fast(text, parameters, write=True)
            if result is not None:
                return result
        elif open_ is not None and open_.is_plain:
            result = self._queries.fast(text, parameters, write=False)
            if result is not None:
                open_.queried = True
                return result
        self._cancelled.clear()
        writes = self._queries.known(text)
        if writes is not None:
            return self._in_transaction(lambda: self._queries.execute(text, None, parameters), writes=writes)
        try:
            return self.run(parse_one(text), text, parameters)
        except BaseException:
            if self.transaction is not None:
                self.transaction.failed = True
            raise
        finally:
            self.deliver_notices()

    def _require_sound(self) -> None:
        """25P02 in a transaction that waits for its ROLLBACK; 25000 in one that the parent process has begun."""
        if self.transaction is not None and self.transaction.failed:
            if self.transaction is self._inherited:
                raise _inherited()
            raise errors.error(
                errors.IN_FAILED_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            )

    def executemany(self, text: str, parameter_sets: Iterable[Sequence[object]]) -> Result:
        """Execute one data-changing statement once per parameter set, in one transaction."""
        self._cancelled.clear()
        statement = parse_one(text)
        if not isinstance(statement, ast.Dml):
            raise errors.error(errors.SYNTAX_ERROR, "executemany executes INSERT, UPDATE and DELETE only")
        sets = parameter_sets if isinstance(parameter_sets, list) else list(parameter_sets)
        if self.transaction is None and self.autocommit and len(sets) >= SMALLEST_LOAD:
            loaded = self._queries.load_many(statement, sets)
            if loaded is not None:
                return Result("INSERT", rowcount=loaded)
        return self._in_transaction(lambda: self._queries.execute_many(text, statement, sets), writes=True)

    def run(self, statement: ast.Statement, text: str, parameters: Sequence[object]) -> Result:
        """Execute a parsed statement."""
        if isinstance(statement, ast.Query | ast.Dml):
            writes = isinstance(statement, ast.Dml)
            return self._in_transaction(lambda: self._queries.execute(text, statement, parameters), writes=writes)
        if parameters:
            raise errors.error("08P01", "only queries, INSERT, UPDATE and DELETE take parameters")
        control = _CONTROL.get(type(statement))
        if control is not None:
            if control not in _ENDINGS:
                self._require_sound()
            return control(self, statement)
        if is_schema_change(statement):
            return self._in_transaction(lambda: self._schema.execute(statement, text))
        return self._in_transaction(lambda: utility.execute(self, statement, text))

    def explain_query(self, statement: ast.Query | ast.Dml) -> list[str]:
        """The lines of a query's plan."""
        return self._queries.explain(statement)

    def explain_schema(self, statement: ast.Statement, text: str) -> Result:
        """The stages of a schema change."""
        return self._schema.explain(statement, text)

    def rehearse_schema(self, statement: ast.Ddl, text: str) -> list[Row]:
        """See rehearsal.py."""
        return self._schema.rehearse(statement, text)

    def insert_arrow(self, table: str, data: pa.Table | pa.RecordBatchReader) -> int:
        """Append Arrow rows; see the DB-API."""
        return insert_arrow(self, table, data)

    def set(self, name: str, value: str) -> None:
        """SET name = value."""
        self.settings.set(name, value)

    def notice(self, text: str, severity: str = "NOTICE") -> None:
        """Tell the client something."""
        self.notices.append(f"{severity}:  {text}")

    def deliver_notices(self) -> None:
        """Hand the notices so far to `on_notice`, if there is one: now, in the middle of a statement that waits."""
        if self.on_notice is not None:
            told = list(self.notices)
            self.notices.clear()
            for notice in told:
                self.on_notice(notice)

    def cancel(self) -> None:
        """Make the running statement fail with 57014 at its next check; called from another thread."""
        self._cancelled.set()
        stop = self._stop
        if stop is not None:
            stop()

    def interruptible(self, stop: Callable[[], None] | None) -> None:
        """What runs now in another engine can be stopped by `stop`; None: it is over."""
        self._stop = stop
        if stop is not None:
            self.check_cancel()

    def check_cancel(self) -> None:
        """57014 if the statement was cancelled."""
        if self._cancelled.is_set():
            self._cancelled.clear()
            raise errors.error(errors.QUERY_CANCELED, "canceling statement due to user request")

    def close(self) -> None:
        """Roll back what is open."""
        self.rollback()

    # --- transactions ------------------------------------------------------------------------------------------------

    def begin(self, modes: ast.TransactionModes) -> Result:
        """BEGIN: a warning where a transaction is open, as in PostgreSQL."""
        if self.transaction is not None and self.transaction.explicit:
            self.notice("there is already a transaction in progress", "WARNING")
            return Result("BEGIN")
        self._open(explicit=True, modes=modes)
        return Result("BEGIN")

    def commit(self) -> Result:
        """COMMIT; a failed transaction is rolled back. Errors leave no transaction open."""
        open_ = self.transaction
        if open_ is None:
            return Result("COMMIT")
        if open_.failed:
            self.rollback()
            if open_ is self._inherited:
                raise _inherited()
            return Result("ROLLBACK")
        try:
            self._commit(open_)
        except Conflict as conflict:
            raise conflict.reported from None
        return Result("COMMIT")

    def rollback(self) -> Result:
        """ROLLBACK."""
        self._restore_settings()
        self._end()
        return Result("ROLLBACK")

    def _restore_settings(self) -> None:
        if self.transaction is not None and self._saved_settings is not None:
            self.settings.restore(self._saved_settings)

    def _open(self, *, explicit: bool, modes: ast.TransactionModes | None = None) -> SessionTransaction:
        modes = modes or ast.TransactionModes()
        level = modes.isolation or self.settings.get("default_transaction_isolation")
        read_only = modes.read_only
        if read_only is None:
            read_only = self.settings.get("default_transaction_read_only") == "on"
        opened: SessionTransaction = Transaction(
            isolation_of(level),
            read_only=read_only,
            explicit=explicit,
            max_rows=int(self.settings.get("max_transaction_rows")),
        )
        opened.started_us = self.database.clock.wall_ns() // 1000
        self.transaction = opened
        self._saved_settings = self.settings.save()
        return opened

    def _end(self) -> None:
        self.transaction = None
        self._schema.forget()
        self._saved_settings = None
        self.settings.end_local()
        if self.enlisted:
            for token in self.enlisted:
                self.database.store.withdraw(token)
            self.enlisted = []
        self._release_snapshot()

    def _release_snapshot(self) -> None:
        if self._lasting is not None:
            self.database.store.release_snapshot(self._lasting)
            self._lasting = None

    def _commit(self, open_: SessionTransaction) -> None:
        """Commit and end the transaction, whatever comes of it; then wait for the job that it began."""
        try:
            self._schema.await_writers(self.enlisted)
            job = self._schema.begin_job()
            if open_.has_written:
                committer = Committer(self.database, open_, self.function_context, self.enlisted)
                commit(self.database.store, committer.derive, committer.prepare)
                if open_.ddl:
                    self.database.outdate_schema()
                self.database.after_commit()
        except BaseException:
            self._restore_settings()
            raise
        finally:
            self._end()
        if job is not None:
            self._schema.finish_job(job, explicit=open_.explicit)

    def _in_transaction(self, work: Callable[[], Result], *, writes: bool = False) -> Result:
        """Run one statement in the open transaction, or in one of its own, which runs again on conflicts. `writes`: it
        is an INSERT, UPDATE or DELETE."""
        if self.transaction is None and self.autocommit:
            return self._autocommitted(work, writes=writes)
        open_ = self.transaction or self._open(explicit=False)
        self._require_sound()
        point = open_.mark(_copy(open_.ddl), self._keep())
        try:
            return self._run_statement(open_, work, point.mark, writes=writes)
        except Conflict as conflict:
            self._fail(open_, point)
            raise conflict.reported from None
        except BaseException:
            self._fail(open_, point)
            raise

    def _fail(self, open_: SessionTransaction, point: Savepoint[CatalogChange, Table, Kept]) -> None:
        """A failed statement restores the buffer (rule 15), and the transaction waits for ROLLBACK."""
        open_.restore(point)
        self._restore(open_, point)
        if self.transaction is open_:
            open_.failed = True

    def _keep(self) -> Kept:
        """What a savepoint keeps of the session."""
        return self._schema.mark(), self.settings.save()

    def _restore(self, open_: SessionTransaction, point: Savepoint[CatalogChange, Table, Kept]) -> None:
        open_.ddl = _copy(point.ddl)
        planned, settings = point.kept
        self._schema.restore(planned)
        self.settings.restore(settings)

    def _autocommitted(self, work: Callable[[], Result], *, writes: bool) -> Result:
        reported: errors.Error | None = None
        told = len(self.notices)
        for _ in range(MAX_RESTARTS):
            open_ = self._open(explicit=False)
            try:
                result = self._run_statement(open_, work, open_.buffer.mark(), writes=writes)
                self._commit(open_)
                return result
            except Conflict as conflict:
                reported = conflict.reported
                del self.notices[told:]  # what the next attempt has to say, it says
                self.check_cancel()
            finally:
                if self.transaction is open_:
                    self._end()
        raise reported or errors.error(errors.INTERNAL_ERROR, "a statement never ran")

    def _run_statement(
        self, open_: SessionTransaction, work: Callable[[], Result], mark: int, *, writes: bool
    ) -> Result:
        """Run a statement on a snapshot of its own. One that names what its schema has not (class 42) gets another try
        if the schema is a leased one and no longer the store's newest, and nothing was buffered since `mark`."""
        is_first = open_.snapshot is None
        self.begin_statement(open_, writes=writes)
        repository = self.database.repository
        if repository is None or not writes:
            return work()
        try:
            return work()
        except errors.Error as failed:
            if failed.sqlstate[:2] != "42" or open_.buffer.mark() != mark or not self._is_behind(open_):
                raise
        repository.reload()
        if is_first:  # nobody has seen anything of the snapshot that the transaction was to keep
            open_.snapshot = None
            self._release_snapshot()
        self.begin_statement(open_, writes=writes)
        return work()

    def _is_behind(self, open_: SessionTransaction) -> bool:
        """Whether the statement's schema is older than the store's."""
        with self.database.store.read() as reader:
            return open_.snapshot is not None and open_.snapshot.catalog.version < reader.catalog_version

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def begin_statement(self, open_: SessionTransaction, *, writes: bool) -> None:
        """Take the statement's snapshot, and bring what is buffered to its schema (rule 14)."""
        store = self.database.store
        fixed = open_.keeps_snapshot and open_.snapshot is not None
        if not fixed:
            open_.snapshot = self._snapshot(open_, writes=writes)
            if open_.isolation is Isolation.SERIALIZABLE and not open_.read_only:
                open_.reads = ReadSet()
            if open_.keeps_snapshot:
                self._lasting = store.register_snapshot(open_.snapshot.timestamp)
        if open_.ddl and not fixed and open_.snapshot is not None:
            open_.ddl.rebase(open_.snapshot.catalog)
        self._upgrade_buffers(open_)

    def _snapshot(self, open_: SessionTransaction, *, writes: bool) -> Snapshot[CatalogSnapshot]:
        """A new snapshot. Queries, schema changes and SERIALIZABLE transactions use its own schema version; under
        leases others that write use the newest that this server knows, and none older than they have used before."""
        repository = self.database.repository
        own = open_.ddl or open_.isolation is Isolation.SERIALIZABLE
        if repository is not None and not own and (writes or open_.buffer):
            seen = 0 if open_.snapshot is None else open_.snapshot.catalog.version
            return Snapshot(*repository.snapshot(seen))
        with self.database.store.read() as reader:
            return Snapshot(reader.timestamp, self.database.catalog.at(reader))

    def catalog(self) -> CatalogSnapshot:
        """The schema that the running statement sees: its snapshot's, with the transaction's own DDL."""
        open_ = self.open_transaction()
        if open_.ddl:
            return open_.ddl.view
        if open_.snapshot is None:
            raise errors.error(errors.INTERNAL_ERROR, "a statement runs without a snapshot")
        return open_.snapshot.catalog

    def open_transaction(self) -> SessionTransaction:
        """The transaction in which a statement runs."""
        if self.transaction is None:
            raise errors.error(errors.INTERNAL_ERROR, "a statement runs without a transaction")
        return self.transaction

    def function_context(self) -> Context:
        """What stable functions read."""
        return Context(now=self.open_transaction().started_us, zone=self.settings.get("timezone"))

    def run_statement(self, statement: ast.Dml) -> Result:
        """Execute DML that belongs to the running statement (CREATE TABLE AS)."""
        return self._queries.execute(statement.text, statement, ())

    def check(self, tables: tuple[str, ...] | None) -> Result:
        """CHECK TABLE, CHECK DATABASE: a row per problem."""
        from instar.database.checks import check

        return check(self, tables)

    def change(self) -> CatalogChange:
        """The transaction's catalog change, begun if it has none yet."""
        open_ = self.open_transaction()
        if not open_.ddl:
            # One that has changed nothing yet may stand on a schema that is the newest no more.
            open_.ddl = CatalogChange(self.catalog(), self.database.ids)
        return open_.ddl

    def enlist(self) -> None:
        """Remember under which descriptors the buffered changes were meant (I)."""
        open_ = self.open_transaction()
        catalog = self.catalog()
        for buffer in open_.buffer:
            if buffer.table not in open_.enlisted:
                open_.enlisted[buffer.table] = catalog.table(buffer.table)
                if self.in_block:
                    self.enlisted.append(self.database.store.enlist(buffer.table, open_.started_us))
        require_undoomed(self.database, open_)

    def _upgrade_buffers(self, open_: SessionTransaction) -> None:
        if not open_.enlisted:
            return
        require_undoomed(self.database, open_)
        catalog = self.catalog()
        for table_id, meant in list(open_.enlisted.items()):
            buffer = open_.buffer.table(table_id)
            newest = catalog.by_id(table_id)
            if buffer is None:
                # All of it was taken back: what is written next is meant under a schema of its own.
                del open_.enlisted[table_id]
                continue
            if newest is meant:
                continue
            if not (open_.ddl and open_.ddl.changes(table_id)):
                newest = require_crossing(meant, newest, buffer.changes.values())
            if not isinstance(newest, Table):
                open_.buffer.drop_table(table_id)
                del open_.enlisted[table_id]
                continue
            with self.database.store.read() as reader:
                now = brought(self.database, buffer, meant, newest, catalog, reader, self.function_context)
                if newest.checks_version != meant.checks_version:
                    self._judge_again(catalog, newest, now, reader)
            open_.buffer.replace(table_id, now.changes)
            open_.enlisted[table_id] = newest

    def _judge_again(self, catalog: CatalogSnapshot, table: Table, buffer: TableBuffer, view: View) -> None:
        """Hold buffered rows to the list that they are enlisted under from now on: the commit will not (rule 16)."""
        rules = self.database.rules(catalog).of(table)

        def judge(image: tuple[object, ...]) -> None:
            rules.recheck(image, self.function_context())

        hold(judge, buffer, self.database.writers.get(table, catalog), view)


def _inherited() -> errors.Error:
    return errors.error(
        "25000", "the transaction was begun by the parent process", hint="ROLLBACK ends it in this process only."
    )


def _copy(ddl: CatalogChange | None) -> CatalogChange | None:
    return ddl.copy() if ddl else None


def _savepoint(session: Session, statement: ast.Savepoint) -> Result:
    open_ = _require_block(session, "SAVEPOINT")
    open_.savepoint(statement.name, _copy(open_.ddl), session._keep())
    return Result("SAVEPOINT")


def _rollback_to(session: Session, statement: ast.RollbackTo) -> Result:
    open_ = _require_block(session, "ROLLBACK TO SAVEPOINT")
    session._restore(open_, open_.rollback_to(statement.name))
    return Result("ROLLBACK")


def _release(session: Session, statement: ast.ReleaseSavepoint) -> Result:
    open_ = _require_block(session, "RELEASE SAVEPOINT")
    open_.release(statement.name)
    return Result("RELEASE")


def _require_block(session: Session, what: str) -> SessionTransaction:
    """25P01 outside a transaction; with autocommit off, one is open as soon as it is asked for."""
    if session.transaction is None:
        if session.autocommit:
            raise errors.error(errors.NO_ACTIVE_TRANSACTION, f"{what} can only be used in transaction blocks")
        return session._open(explicit=False)
    return session.transaction


def _commit(session: Session, statement: ast.Commit) -> Result:
    if session.transaction is None and session.autocommit:
        session.notice("there is no transaction in progress", "WARNING")
    chained = session.transaction if statement.chain else None
    result = session.commit()
    return _chain(session, chained, result)


def _rollback(session: Session, statement: ast.Rollback) -> Result:
    if session.transaction is None and session.autocommit:
        session.notice("there is no transaction in progress", "WARNING")
    chained = session.transaction if statement.chain else None
    return _chain(session, chained, session.rollback())


def _chain(session: Session, ended: SessionTransaction | None, result: Result) -> Result:
    if ended is not None:
        session._open(explicit=True, modes=ast.TransactionModes(ended.isolation.value, ended.read_only))
    return result


def _set_transaction(session: Session, statement: ast.SetTransaction) -> Result:
    modes = statement.modes
    if statement.session:
        if modes.isolation is not None:
            isolation_of(modes.isolation)
            session.set("default_transaction_isolation", modes.isolation)
        if modes.read_only is not None:
            session.set("default_transaction_read_only", "on" if modes.read_only else "off")
        return Result("SET")
    open_ = session.transaction
    if open_ is None:
        if session.autocommit:
            session.notice("SET TRANSACTION can only be used in transaction blocks", "WARNING")
            return Result("SET")
        open_ = session._open(explicit=False)
    if modes.isolation is not None:
        if open_.has_begun and isolation_of(modes.isolation) is not open_.isolation:
            raise errors.error(
                errors.ACTIVE_TRANSACTION, "SET TRANSACTION ISOLATION LEVEL must be called before any query"
            )
        open_.isolation = isolation_of(modes.isolation)
    if modes.read_only is not None:
        if open_.has_begun and open_.read_only and not modes.read_only:
            raise errors.error(
                errors.ACTIVE_TRANSACTION, "cannot set transaction read-write mode inside a read-only transaction"
            )
        open_.read_only = modes.read_only
    return Result("SET")


_CONTROL: dict[type, Callable[..., Result]] = {
    ast.Begin: lambda session, statement: session.begin(statement.modes),
    ast.Commit: _commit,
    ast.Rollback: _rollback,
    ast.Savepoint: _savepoint,
    ast.RollbackTo: _rollback_to,
    ast.ReleaseSavepoint: _release,
    ast.SetTransaction: _set_transaction,
}
# What a failed transaction still takes.
_ENDINGS = (_commit, _rollback, _rollback_to)
