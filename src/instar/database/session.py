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
from instar.database.cancelling import Cancellable
from instar.database.closing import require_open
from instar.database.commit import (
    Committer,
    Crossed,
    Restored,
    SessionTransaction,
    require_heeded,
    require_undoomed,
    upgrade_buffers,
)
from instar.database.control import CONTROL, ENDINGS, copied, known_controls, parsed
from instar.database.many import parsed_dml
from instar.database.numbers import SessionNumbers
from instar.database.queries import Queries
from instar.database.result import Result
from instar.database.row_locks import MAX_RESTARTS, RESTARTS_WITHOUT_LOCKS, RowLocks
from instar.database.schema import SchemaChanges
from instar.database.schema_locks import SchemaLocks
from instar.database.settings import SavedSettings, Settings
from instar.database.short_commits import commit_few
from instar.schemachange.explain import Row
from instar.schemachange.job_records import Job
from instar.sql import statements as ast
from instar.sql.ddl import is_schema_change
from instar.sql.functions import Context
from instar.store.forks import begin_anew_in_child
from instar.transactions.commit import Conflict, commit
from instar.transactions.reads import ReadSet
from instar.transactions.transaction import Isolation, Savepoint, Snapshot, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from instar.database.database import Database

T = TypeVar("T")


class Session(Cancellable):
    """Statements of one client, one after the other. Not for several threads at once, but for `cancel`: who hands a
    session to several takes `use` around each call."""

    def __init__(self, database: Database, *, autocommit: bool) -> None:
        super().__init__()
        self.database = database
        self.autocommit = autocommit
        self.use = threading.RLock()  # a notice's handler may execute statements itself
        self.notices: list[str] = []
        self.on_notice: Callable[[str], object] | None = None  # is handed notices as they come
        self.on_wait: Callable[[Job], None] | None = None  # shown the job that a statement waits for, now and then
        self.settings = Settings(database.fixed_settings())
        self.transaction: SessionTransaction | None = None
        self._ending = False  # what `_end` has begun is to be done
        self._saved_settings: SavedSettings | None = None
        self.numbers = SessionNumbers(self)
        self._queries = Queries(self)
        self._schema = SchemaChanges(self)
        self._inherited: SessionTransaction | None = None
        self._lasting: object | None = None  # token of the snapshot that a transaction keeps
        self.enlisted: list[int] = []  # tokens under which others see that the transaction has written
        self.locks = RowLocks(self)
        self.schema_locks = SchemaLocks(self)
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a forked child: a transaction belongs to the process that began it, else both would commit it."""
        self.use = threading.RLock()  # a thread that the child does not have may hold it
        self._lasting = None
        self.enlisted = []
        self.locks.forked()
        self.schema_locks.forked()
        self._inherited = self.transaction
        if self.transaction is not None:
            self.transaction.failed = True

    # --- the interface -----------------------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: with autocommit off, since its first statement."""
        self._finish_ending()
        return self.transaction is not None

    @property
    def has_work(self) -> bool:
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
        alone = open_ is None and self.autocommit and not self.settings.locking
        if alone:
            result = self._queries.fast(text, parameters)
            if result is not None:
                return result
        self.forget_cancel()
        if self._ending:
            self._end()
            open_ = None
        is_control = text in known_controls
        writes = None if is_control else self._queries.known(text)
        if alone and writes is False:
            result = self._queries.alone(text, parameters)
            if result is not None:
                return result
        if open_ is None and not self.autocommit and writes is not None:
            open_ = self.open(explicit=False)
        if open_ is not None and not is_control and open_.is_plain:
            result = self._queries.within(text, parameters, open_)
            if result is not None:
                open_.queried = True
                return result
        if writes is not None:
            return self._in_transaction(lambda: self._queries.execute(text, None, parameters), writes=writes)
        try:
            return self.run(parsed(text), text, parameters)
        except BaseException as failed:
            if self.transaction is not None:
                self.fail(self.transaction)
            if isinstance(failed, RecursionError):  # in whatever part of it: a CHECK, a view over views, EXPLAIN
                raise errors.error(errors.STATEMENT_TOO_COMPLEX, "statement is too deeply nested") from None
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
        self.forget_cancel()
        self._finish_ending()
        try:
            statement = parsed_dml(text)
        except errors.Error:
            if self.transaction is not None:
                self.fail(self.transaction)
            raise
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
            raise errors.error(errors.PROTOCOL_VIOLATION, "only queries, INSERT, UPDATE and DELETE take parameters")
        control = CONTROL.get(type(statement))
        if control is not None:
            if control not in ENDINGS:
                self._require_sound()
            return control(self, statement)
        if is_schema_change(statement):
            return self._in_transaction(lambda: self._schema.execute(statement, text))
        return self._in_transaction(lambda: utility.execute(self, statement, text))

    def explain_query(self, statement: ast.Query | ast.Dml) -> list[str]:
        """The lines of a query's plan."""
        return self._queries.explain(statement)

    def explain_schema(self, statement: ast.Explain, text: str) -> Result:
        """The stages of a schema change."""
        return self._schema.explain(statement, text)

    def rehearse_schema(self, statement: ast.Ddl, text: str) -> list[Row]:
        """Plan a schema change as if it were done, for a `Rehearsal`; its stages."""
        return self._schema.rehearse(statement, text)

    def insert_arrow(self, table: str, data: pa.Table | pa.RecordBatchReader) -> int:
        """Append Arrow rows; see the DB-API."""
        self.forget_cancel()
        self._finish_ending()
        return insert_arrow(self, table, data)

    def set(self, name: str, value: str) -> None:
        """SET name = value."""
        self.settings.set(name, value)
        self.settings_changed()

    def settings_changed(self) -> None:
        """What the open transaction has taken of the settings is as they say now."""
        if self.transaction is not None:
            self.transaction.buffer.max_rows = self.settings.max_rows

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

    def close(self) -> None:
        """Roll back what is open."""
        self.rollback()

    # --- transactions ------------------------------------------------------------------------------------------------

    def commit(self) -> Result:
        """COMMIT; a failed transaction is rolled back. Errors leave no transaction open."""
        self._finish_ending()
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

    def open(self, *, explicit: bool, modes: ast.TransactionModes | None = None) -> SessionTransaction:
        self._finish_ending()
        settings = self.settings
        isolation, read_only = settings.isolation, settings.read_only
        if modes is not None and modes.isolation is not None:
            isolation = Isolation(modes.isolation)
        if modes is not None and modes.read_only is not None:
            read_only = modes.read_only
        opened: SessionTransaction = Transaction(
            isolation, read_only=read_only, explicit=explicit, max_rows=settings.max_rows
        )
        opened.started_us = self.database.clock.wall_ns() // 1000
        if explicit or not self.autocommit:
            with self.database.store.read() as reader:
                opened.began_under = self.database.catalog.at(reader)
        self._saved_settings = settings.save()
        self.transaction = opened  # last: an interrupt comes before, or finds who ends it
        return opened

    def _end(self) -> None:
        """The transaction has ended. Who is interrupted in it ends it with whatever comes next."""
        self._ending = True
        self.transaction = None
        self._schema.forget()
        self._saved_settings = None
        self.settings.end_local()
        self._let_go()
        self._ending = False

    def _finish_ending(self) -> None:
        if self._ending:
            self._end()

    def _let_go(self) -> None:
        """Nobody has to wait for the transaction any more, nor to keep what it could read."""
        if self.enlisted:
            for token in self.enlisted:
                self.database.store.withdraw(token)
            self.enlisted = []
        self.schema_locks.forget()
        self._release_snapshot()
        self.locks.release()

    def fail(self, open_: SessionTransaction) -> None:
        """The transaction waits for ROLLBACK. Without a savepoint to go back to it has ended for everybody else."""
        open_.failed = True
        if open_.has_savepoints:
            self.locks.wait_no_more()
        else:
            self._let_go()

    def _release_snapshot(self) -> None:
        if self._lasting is not None:
            self.database.store.release_snapshot(self._lasting)
            self._lasting = None

    def _commit(self, open_: SessionTransaction) -> None:
        """Commit and end the transaction, whatever comes of it; then wait for the job that it began."""
        job, restoring, alone = None, None, not self.in_block
        try:
            if open_.ddl is not None:
                self._schema.await_leases()
                self._schema.await_writers(self.enlisted)
                job = self._schema.begin_job()
                restoring = self._schema.restoring  # with how long it waits for others
            if open_.has_written and not commit_few(self, open_):
                committer = Committer(self.database, open_, self.function_context, self.enlisted, self.locks, restoring)
                commit(self.database.store, committer.derive, committer.prepare)
                if open_.ddl:
                    self.database.after_change(open_.ddl.view)
                self.database.after_commit()
        except BaseException:
            self._restore_settings()
            raise
        finally:
            self._ending = True  # an interrupt may come before `_end` says so
            self._end()
        written = [*open_.enlisted.values(), *(() if restoring is None else restoring.tables)]
        if any(table.has_followers for table in written):
            self.database.after_followed()
        if job is not None:
            self._schema.finish_job(job, alone=alone)

    def _in_transaction(self, work: Callable[[], Result], *, writes: bool = False) -> Result:
        """Run one statement in the open transaction, or in one of its own, which runs again on conflicts. `writes`: it
        is an INSERT, UPDATE or DELETE."""
        if self.transaction is None and self.autocommit:
            return self._autocommitted(work, writes=writes)
        open_ = self.transaction or self.open(explicit=False)
        self._require_sound()
        point = open_.mark(copied(open_.ddl), self.keep())
        told, is_first = len(self.notices), open_.snapshot is None

        def take_back() -> None:
            self._undo(open_, point)
            del self.notices[told:]  # what the next attempt has to say, it says

        def attempt() -> Result:
            return self._run_statement(open_, work, point.mark, writes=writes)

        for number in range(MAX_RESTARTS):
            try:
                return self.locks.run(open_, attempt, take_back, writes=writes)
            except Crossed as crossed:
                # The change fell into the statement that first touched the table (IEP-110's quirk): nobody has seen
                # anything of it, nor, where all share one snapshot, of that.
                sees_anew = is_first or not open_.keeps_snapshot
                if number == MAX_RESTARTS - 1 or not sees_anew or crossed.table in point.enlisted:
                    self._fail(open_, point)
                    raise crossed.reported from None
                take_back()
                self._forget_snapshot(open_)
            except Conflict as conflict:
                self._fail(open_, point)
                raise conflict.reported from None
            except BaseException:
                self._fail(open_, point)
                raise
        raise errors.error(errors.INTERNAL_ERROR, "a statement never ran")

    def _undo(self, open_: SessionTransaction, point: Savepoint[CatalogChange, Table, Restored]) -> None:
        open_.restore(point)
        self.restore(open_, point)

    def _forget_snapshot(self, open_: SessionTransaction) -> None:
        """Nobody has seen anything of the snapshot: the next attempt takes another."""
        open_.snapshot = None
        self._release_snapshot()

    def _fail(self, open_: SessionTransaction, point: Savepoint[CatalogChange, Table, Restored]) -> None:
        """A failed statement restores the buffer (rule 15), and the transaction waits for ROLLBACK."""
        self._undo(open_, point)
        if self.transaction is open_:
            self.fail(open_)

    def keep(self) -> Restored:
        """What a savepoint keeps of the session."""
        return self._schema.mark(), self.settings.save()

    def restore(self, open_: SessionTransaction, point: Savepoint[CatalogChange, Table, Restored]) -> None:
        open_.ddl = copied(point.ddl)
        planned, settings = point.kept
        self._schema.restore(planned)
        self.settings.restore(settings)
        self.settings_changed()

    def _autocommitted(self, work: Callable[[], Result], *, writes: bool) -> Result:
        reported: errors.Error | None = None
        told = len(self.notices)
        for number in range(MAX_RESTARTS):
            self.locks.insists = number >= RESTARTS_WITHOUT_LOCKS
            open_ = self.open(explicit=False)
            try:
                result = self.locks.run(
                    open_,
                    lambda: self._run_statement(open_, work, 0, writes=writes),  # noqa: B023 - run here and now
                    lambda: self._begin_anew(open_, told),  # noqa: B023 - likewise
                    writes=writes,
                )
                self._commit(open_)
                return result
            except Conflict as conflict:
                reported = conflict.reported
                del self.notices[told:]  # what the next attempt has to say, it says
                self.check_cancel()
            finally:
                self.locks.insists = False
                if self.transaction is open_:
                    self._ending = True  # as in `_commit`
                    self._end()
        raise reported or errors.error(errors.INTERNAL_ERROR, "a statement never ran")

    def _begin_anew(self, open_: SessionTransaction, told: int) -> None:
        """Take back all of a transaction that is one statement."""
        open_.buffer.rollback(0)
        open_.enlisted.clear()
        open_.ddl = None
        self._schema.forget()
        del self.notices[told:]

    def _run_statement(
        self, open_: SessionTransaction, work: Callable[[], Result], mark: int, *, writes: bool
    ) -> Result:
        """Run a statement on a snapshot of its own. One that names what its schema has not (class 42) gets another try
        if the schema is a leased one and no longer the store's newest, and nothing was buffered since `mark`."""
        is_first = open_.snapshot is None
        self.begin_statement(open_, writes=writes)
        if open_.behind:
            self.locks.follow(open_)
        repository = self.database.repository
        if repository is None or not writes:
            return work()
        try:
            return work()
        except errors.Error as failed:
            if failed.sqlstate[:2] != "42" or open_.buffer.mark() != mark or not self._is_behind(open_):
                raise
        repository.reload()
        if is_first:
            self._forget_snapshot(open_)
        self.begin_statement(open_, writes=writes)
        if open_.behind:
            self.locks.follow(open_)
        return work()

    def _is_behind(self, open_: SessionTransaction) -> bool:
        """Whether the statement's schema is older than the store's."""
        with self.database.store.read() as reader:
            return open_.snapshot is not None and open_.snapshot.catalog.version < reader.catalog_version

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def begin_statement(self, open_: SessionTransaction, *, writes: bool) -> None:
        """Take the statement's snapshot, and bring what is buffered to its schema (rule 14)."""
        fixed = open_.keeps_snapshot and open_.snapshot is not None
        if not fixed:
            open_.snapshot = self._snapshot(open_, writes=writes)
            if open_.isolation is Isolation.SERIALIZABLE and not open_.read_only:
                open_.reads = ReadSet()
            if open_.keeps_snapshot:
                self.retain(open_.snapshot.timestamp)
        if open_.ddl and not fixed and open_.snapshot is not None:
            open_.ddl.rebase(open_.snapshot.catalog)
        if self.locks.selected_of:
            require_heeded(self.database.store, self.locks.selected_of, open_, self.catalog())
        if open_.enlisted:
            require_undoomed(self.database, open_)
            arrived = upgrade_buffers(self.database, open_, self.catalog(), self.function_context)
            if arrived:
                self._announce(arrived)

    def retain(self, snapshot: int) -> None:
        """Say that the transaction needs what there was at a snapshot, and has since come, until it ends."""
        if self._lasting is None:
            self._lasting = self.database.store.register_snapshot(snapshot)

    def _snapshot(self, open_: SessionTransaction, *, writes: bool) -> Snapshot[CatalogSnapshot]:
        """A new snapshot. Queries, schema changes, SERIALIZABLE transactions and those at a locking level use its own
        schema version; under leases others that write use the newest that this server knows, and none older than they
        have used before."""
        repository = self.database.repository
        if repository is not None and (writes or open_.buffer) and not self._needs_newest(open_):
            seen = 0 if open_.snapshot is None else open_.snapshot.catalog.version
            return Snapshot(*repository.snapshot(max(seen, open_.seen_version)))
        with self.database.store.read() as reader:
            return Snapshot(reader.timestamp, self.database.catalog.at(reader))

    @staticmethod
    def _needs_newest(open_: SessionTransaction) -> bool:
        level = open_.isolation
        return bool(open_.ddl) or not (level is Isolation.READ_COMMITTED or level is Isolation.REPEATABLE_READ)

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
        """What stable functions read: the time is that at which the transaction was begun; now, where none is open."""
        open_ = self.transaction
        started_us = self.database.clock.wall_ns() // 1000 if open_ is None else open_.started_us
        return Context(now=started_us, zone=self.settings.get("timezone"))

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
        touched = [buffer.table for buffer in open_.buffer if buffer.table not in open_.enlisted]
        if touched:
            require_open(self.database, open_, touched)
        for table in touched:
            open_.enlisted[table] = catalog.table(table)
        self._announce(touched)

    def _announce(self, tables: Sequence[int]) -> None:
        """Have changes of these tables, which the transaction has come to write to, wait for its end. Crossed if it
        cannot cross one that was made meanwhile."""
        open_ = self.open_transaction()
        if self.in_block:
            for table in tables:
                self.database.store.enlist(table, open_.started_us, into=self.enlisted)
        require_undoomed(self.database, open_, tables if self.in_block else ())


def _inherited() -> errors.Error:
    return errors.error(
        errors.INVALID_TRANSACTION_STATE,
        "the transaction was begun by the parent process",
        hint="ROLLBACK ends it in this process only.",
    )
