"""Queries and DML of a session: from text to a prepared statement, from that to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.catalog.own_layouts import OwnLayouts
from instar.catalog.system_tables import SYSTEM_VIEWS
from instar.catalog.system_views import Source
from instar.database.buffered_writes import buffered
from instar.database.bulk import insert_many
from instar.database.commit import SessionTransaction
from instar.database.former_names import by_former_names
from instar.database.jobs import history_rows, job_rows
from instar.database.layouts import layout_rows
from instar.database.lock_names import lock_rows
from instar.database.many import Many
from instar.database.materialized import view_rows
from instar.database.numbers import StatementNumbers
from instar.database.past import query_as_of
from instar.database.point_locks import selected
from instar.database.point_writes import OUTDATED, UNSERVED, PointWriter, point_writer
from instar.database.result import Result, written
from instar.database.servers import cache_rows, server_rows, version_rows
from instar.sql import statements as ast
from instar.sql import tree
from instar.sql.binder import bind, thaw_check, thaw_default, thaw_generated
from instar.sql.binder.deparse import quote_identifier
from instar.sql.execution import ExecutionContext, Row
from instar.sql.execution import Result as Executed
from instar.sql.integrity import Rules
from instar.sql.parser import parse_one
from instar.sql.plan_cache import Entry, Lean, Prepared, hints_of
from instar.sql.planner import plan_statement
from instar.sql.point import FALLBACK, PointWrite
from instar.tables.view import View
from instar.transactions.buffer import Buffer
from instar.transactions.transaction import Snapshot

if TYPE_CHECKING:
    from instar.database.session import Session

_SYSTEM_VIEWS = {f"{view.schema}.{view.name}": view for view in SYSTEM_VIEWS}
_NOTHING = Buffer()  # of queries, none of which puts anything into it
_COMMANDS = {tree.Insert: "INSERT", tree.Update: "UPDATE", tree.Delete: "DELETE"}


class Queries:
    """Executes queries and DML for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._database = session.database
        self._plans = session.database.plans
        self._entry = self._plans.entry
        # The short way of a write, by its text, if it has one: the dictionary's own function, as of the plans.
        self._writer = session.database.point_writers.get

    def fast(self, text: str, parameters: Sequence[object]) -> Result | None:
        """A look-up by primary key in autocommit, or an autocommit write of one row by its key; None where the general
        way must be taken."""
        entry = self._entry(text)
        if entry is not None and entry.fast is not None:
            found = self._looked_up(entry, text, parameters)
            if found is not None:
                return found
        session = self._session
        known = None if session.settings.read_only else self._writer(text)
        if known is None:
            return None
        count = known[1].run(parameters, session)
        if count == 1:
            return known[2]
        return _told(known[0], known[1], count) or self._renewed(text, parameters, count, PointWriter.run)

    def alone(self, text: str, parameters: Sequence[object]) -> Result | None:
        """A query that was planned before, on the newest snapshot, as if no transaction were around it; None where the
        general way must be taken."""
        session, database = self._session, self._database
        with database.store.read() as reader:
            timestamp, catalog = reader.timestamp, database.catalog.at(reader)
        prepared = self._plans.find(text, parameters, catalog)
        if prepared is None or not prepared.stands_alone:
            return None
        zone = session.settings.get("timezone")
        open_ = session.transaction
        migrated = self._migrated(prepared, catalog, session.settings.read_only if open_ is None else open_.read_only)
        view = View(database.store, timestamp, None, database.layouts)
        if migrated:
            view.older = database.migration.notes_for(migrated)
        context = ExecutionContext(
            view=view,
            catalog=catalog,
            buffer=_NOTHING,
            parameters=prepared.convert(parameters, zone),
            functions=session.function_context(),
            next_value=database.next_value,
            system_rows=_none_of_system,
            check_cancel=session.check_cancel,
            interruptible=session.interruptible,
        )
        token = database.store.register_snapshot(timestamp)  # see `execute`
        try:
            executed = prepared.run(context)
        finally:
            database.store.release_snapshot(token)
        if view.older is not None:
            database.migration.take(view.older, migrated)
        if open_ is not None:
            open_.seen_version = catalog.version
        return Result.of("SELECT", executed, returns_rows=True)

    def within(self, text: str, parameters: Sequence[object], open_: SessionTransaction) -> Result | None:
        """The same in an open transaction that is plain, which buffers what it writes."""
        entry = self._entry(text)
        if entry is not None and entry.fast is not None:
            found = self._looked_up(entry, text, parameters, open_)
            if found is not None:
                return found
        if entry is not None and entry.locking is not None and not open_.read_only:
            found = self._locked(entry, entry.locking, parameters, open_)
            if found is not None:
                return found
        known = None if open_.read_only else self._writer(text)
        if known is None:
            return self._alone_within(text, parameters, open_)
        count = buffered(open_, known[1], parameters, self._session)
        return _told(known[0], known[1], count) or self._renewed(text, parameters, count, partial(buffered, open_))

    def _alone_within(self, text: str, parameters: Sequence[object], open_: SessionTransaction) -> Result | None:
        """A query in a transaction that has done nothing yet which a query could see, nor relies on."""
        if open_.enlisted or self._session.locks.selected_of or self.known(text) is not False:
            return None
        try:
            return self.alone(text, parameters)
        except BaseException:
            self._session.fail(open_)
            raise

    def _looked_up(
        self, entry: Entry, text: str, parameters: Sequence[object], own: SessionTransaction | None = None
    ) -> Result | None:
        """The rows of a point lookup, by its lean form, which `entry` had a moment ago. `own`: what the transaction has
        written that it is part of, if any is open."""
        fast = entry.fast
        try:
            rows: Any = FALLBACK if fast is None else fast[0](self._database.store, parameters, own)
            if rows is FALLBACK:
                fast = self._lookup_anew(text, parameters)
                rows = FALLBACK if fast is None else fast[0](self._database.store, parameters, own)
        except errors.DataError:  # a date that Python has no object for: who fetches it may want its text
            return None
        if fast is None or rows is FALLBACK:
            return None
        entry.used = True
        if own is not None:
            if self._session.locks.selected_of and not own.is_at(fast[2].version):
                return None  # whether what is locked is still what there is, the general way sees
            own.seen_version = fast[2].version
        return Result("SELECT", fast[1], rows, len(rows))

    def _locked(
        self, entry: Entry, lean: Lean, parameters: Sequence[object], open_: SessionTransaction
    ) -> Result | None:
        """The row of a point lookup that locks it."""
        rows = selected(open_, lean[2], parameters, self._session)
        if rows is None:
            return None
        entry.used = True
        return Result("SELECT", lean[1], rows, len(rows))

    def _renewed(
        self,
        text: str,
        parameters: Sequence[object],
        count: int | list[Row],
        run: Callable[[PointWriter, Sequence[object], Session], int | list[Row]],
    ) -> Result | None:
        """What `run` makes of a write whose short way has not served, as `count` says, but may under another schema."""
        known = self._writer(text)
        point = None if known is None else known[1]
        if known is not None and count == OUTDATED:
            point = self._writer_anew(text, known[0], parameters)
            count = UNSERVED if point is None else run(point, parameters, self._session)
        if count == UNSERVED:
            self._database.point_writers.pop(text, None)  # another thread may have found out as well
        return None if known is None or point is None else _told(known[0], point, count)

    def known(self, text: str) -> bool | None:
        """Whether a text that was planned before is an INSERT, UPDATE or DELETE; None for other texts."""
        statement = self._plans.statement(text)
        return None if statement is None else isinstance(statement, ast.Dml)

    def _lookup_anew(self, text: str, parameters: Sequence[object]) -> Lean | None:
        """The lean form of a point lookup, which was made for another schema than the newest, for that; None if it
        cannot be made. The general way knows who uses which schema, and what failed."""
        database, plans = self._database, self._plans
        with database.store.read() as reader:
            catalog = database.catalog.at(reader)
        if plans.is_of(text, catalog.version):
            return None  # it is the parameters that the lean form does not serve
        try:
            planned = self._planned(text, parameters, catalog)
        except errors.Error:
            return None
        entry = self._entry(text)
        return None if planned is None or entry is None else entry.fast

    def _writer_anew(self, text: str, command: str, parameters: Sequence[object]) -> PointWriter | None:
        """The short way of a write, whose text had one under another schema, under the newest; None as above."""
        database = self._database
        if database.repository is not None:
            return None
        with database.store.read() as reader:
            catalog = database.catalog.at(reader)
        try:
            prepared = self._plans.known(text, parameters)
            write = None if prepared is None else prepared.write_under(catalog, database.rules(catalog))
            if write is None:
                prepared = self._planned(text, parameters, catalog)
                write = None if prepared is None else prepared.write
            if prepared is None or write is None:
                return None
            return self._keep_writer(text, command, prepared, write, catalog, parameters)
        except errors.Error:
            return None

    def _planned(self, text: str, parameters: Sequence[object], catalog: CatalogSnapshot) -> Prepared | None:
        """The plan of a text that was planned before, for a committed schema."""
        found, statement = self._plans.find(text, parameters, catalog), self._plans.statement(text)
        if found is None and statement is not None:
            found = self._plan(statement, catalog, parameters, self._database.layouts)
            self._plans.add(text, parameters, catalog, found)
        return found

    def execute(self, text: str, statement: ast.Query | ast.Dml | None, parameters: Sequence[object]) -> Result:
        """Execute a query or DML in the session's transaction; the text is parsed only where it must be planned."""
        if isinstance(statement, ast.Query) and statement.as_of is not None:
            return query_as_of(self._session, statement, statement.as_of, parameters)
        prepared = self.prepare(text, statement, parameters)
        context = self.context(prepared.convert(parameters, self._session.settings.get("timezone")))
        if prepared.is_query and not self._session.in_block:
            context.view.reads = None  # nothing will be written that what is read now could have to do with
        open_ = self._session.open_transaction()
        migrated = {}
        if prepared.is_query and not open_.ddl:
            migrated = self._migrated(prepared, self._session.catalog(), open_.read_only)
        if migrated:
            context.view.older = self._database.migration.notes_for(migrated)
        # A query may take longer than retention keeps the log: the collector is told what it still needs.
        token = self._database.store.register_snapshot(self._snapshot().timestamp)
        try:
            executed = prepared.run(context)
        finally:
            self._database.store.release_snapshot(token)
        if context.view.older is not None:
            self._database.migration.take(context.view.older, migrated)
        command = _COMMANDS.get(type(prepared.bound.statement), "SELECT")
        if prepared.write is not None and (not self._session.in_block or self._session.open_transaction().is_plain):
            self._offer_writer(text, command, prepared, prepared.write, parameters)
        if command != "SELECT":
            self._session.enlist()
        return Result.of(command, executed, returns_rows=prepared.is_query or bool(prepared.columns))

    @staticmethod
    def _migrated(prepared: Prepared, catalog: CatalogSnapshot, read_only: bool) -> dict[int, Table]:
        """The tables of a query whose rows it is to put into their newest layouts: not where it may not write."""
        if read_only:
            return {}
        return {table.id: catalog.table(table.id) for table in prepared.bound.tables if table.migration == "read"}

    def execute_many(self, text: str, statement: ast.Dml, sets: Iterable[Sequence[object]]) -> Result:
        """Execute DML once per parameter set (many.py)."""
        total = Many(self._session, self).execute(text, statement, sets)
        return Result(statement.expression.key.upper(), rowcount=total)

    def load_many(self, statement: ast.Dml, sets: list[Sequence[object]]) -> int | None:
        """Many rows of an INSERT into an empty table, as a bulk load; None where it is not such a case."""
        if self._session.settings.read_only or statement.parameters != len(sets[0]):
            return None
        with self._database.store.read() as reader:
            catalog = self._database.catalog.at(reader)
        return insert_many(self._session, bind(statement, catalog, hints_of(sets[0])), sets)

    def explain(self, statement: ast.Query | ast.Dml) -> list[str]:
        """The lines of the plan."""
        from instar.sql.explain import explain

        try:
            bound = bind(statement, self._session.catalog())
        except errors.Error as failed:
            bound = by_former_names(self._session, failed, lambda names: bind(statement, names))
        return explain(plan_statement(bound))

    def prepare(self, text: str, statement: ast.Query | ast.Dml | None, parameters: Sequence[object]) -> Prepared:
        """The plan of a statement that the session's transaction is to execute, which may do so."""
        catalog = self._session.catalog()
        is_own = bool(self._session.open_transaction().ddl)
        found = None if is_own else self._plans.find(text, parameters, catalog)
        if found is None:
            parsed = statement or self._plans.statement(text) or _parsed(text)
            try:
                found = self._plan(parsed, catalog, parameters, self._layouts())
            except errors.Error as failed:
                found = by_former_names(
                    self._session, failed, lambda names: self._plan(parsed, names, parameters, self._layouts())
                )
                is_own = True  # nobody else may use it
            if not is_own:
                self._plans.add(text, parameters, catalog, found)
        if not found.is_query:
            command = _COMMANDS[type(found.bound.statement)]
            self._session.open_transaction().require_writable(command)
        elif found.locks is not None:
            self._session.open_transaction().require_writable(f"SELECT FOR {found.locks.shown}")
        self._session.schema_locks.stabilise(found)
        return found

    def _offer_writer(
        self, text: str, command: str, prepared: Prepared, write: PointWrite, parameters: Sequence[object]
    ) -> None:
        """Keep the short way of a write that was executed, if all may use it: not if the session knows other names."""
        catalog = self._session.catalog()
        is_shared = self._plans.known(text, parameters) is prepared
        if is_shared and catalog.by_id(write.table.id) is write.table and prepared.holds(catalog):
            self._keep_writer(text, command, prepared, write, catalog, parameters)

    def _keep_writer(
        self,
        text: str,
        command: str,
        prepared: Prepared,
        write: PointWrite,
        catalog: CatalogSnapshot,
        parameters: Sequence[object],
    ) -> PointWriter | None:
        """Have the next execution of this text take the short way, if it has one under this schema: that."""
        database = self._database
        kept = database.point_writers.get(text)
        made = None
        if kept is not None and not kept[1].is_of(write):
            had = (one.alike(write, catalog, parameters) for one in (kept[1], kept[3]) if one is not None)
            made = next((one for one in had if one is not None), None)
        if made is None:
            writer = database.writers.get(write.table, catalog)
            if kept is not None and kept[1].moves_to(catalog.version, write, writer, parameters):
                return kept[1]
            made = point_writer(database, write, prepared.bound, parameters, writer, catalog.version)
        if made is not None:
            database.keep_point_writer(text, command, made)
        return made

    def _plan(
        self,
        statement: ast.Query | ast.Dml,
        catalog: CatalogSnapshot,
        parameters: Sequence[object],
        layouts: Layouts,
    ) -> Prepared:
        ast.require_parameters(statement.parameters, len(parameters))
        bound = bind(statement, catalog, hints_of(parameters))
        try:
            return Prepared(statement, bound, catalog, layouts, Rules(catalog, layouts), self._database.analytic)
        except RecursionError:
            raise errors.error(errors.STATEMENT_TOO_COMPLEX, "statement is too deeply nested") from None

    def _layouts(self) -> Layouts:
        """The layouts in which the transaction may find rows."""
        ddl = self._session.open_transaction().ddl
        return OwnLayouts(self._database.layouts, ddl) if ddl else self._database.layouts

    def context(self, parameters: Sequence[object]) -> ExecutionContext:
        """What a statement of the session's transaction is executed in."""
        session, database = self._session, self._database
        open_ = session.open_transaction()
        catalog = session.catalog()
        buffer = open_.buffer if open_.buffer else None
        view = View(database.store, self._snapshot().timestamp, buffer, self._layouts(), open_.reads)
        if open_.isolation.is_locking:
            view = session.schema_locks.newest_view(view, open_.isolation)
        numbers = StatementNumbers(session, catalog)
        return ExecutionContext(
            view=view,
            catalog=catalog,
            buffer=open_.buffer,
            parameters=parameters,
            functions=session.function_context(),
            next_value=numbers.next_value,
            current_value=numbers.current_value,
            set_value=numbers.set_value,
            system_rows=lambda name: _system_rows(session, catalog, name),
            check_cancel=session.check_cancel,
            interruptible=session.interruptible,
            lock_row=session.locks.select,
            require_unlocked=session.locks.require_unlocked,
            view_at=partial(session.schema_locks.view_at, view),
            judged_view=partial(self._judged_view, view),
        )

    def _judged_view(self, view: View) -> View:
        """The view of a statement with all that the transaction has written, whose reads are judged at the commit."""
        open_ = self._session.open_transaction()
        self._session.retain(self._snapshot().timestamp)
        return View(view.store, view.snapshot, open_.buffer, view.layouts, open_.judged_reads(), view.guard)

    def _snapshot(self) -> Snapshot[CatalogSnapshot]:
        snapshot = self._session.open_transaction().snapshot
        if snapshot is None:
            raise errors.error(errors.INTERNAL_ERROR, "a statement runs without a snapshot")
        return snapshot


def _parsed(text: str) -> ast.Query | ast.Dml:
    statement = parse_one(text)
    if not isinstance(statement, ast.Query | ast.Dml):
        raise errors.error(errors.INTERNAL_ERROR, "a planned text is neither a query nor DML")
    return statement


def _told(command: str, point: PointWriter, count: int | list[Row]) -> Result | None:
    """What the short way of a write has come to; None if it has not served."""
    if isinstance(count, list):
        return Result.of(command, Executed(point.columns, count, len(count)), returns_rows=True)
    return written(command, count) if count >= 0 else None


def _none_of_system(name: str) -> Iterable[Row]:
    raise errors.error(errors.INTERNAL_ERROR, f"a query of {name} stands alone")


def _system_rows(session: Session, catalog: CatalogSnapshot, name: str) -> Iterable[Row]:
    if name == "instar.jobs":
        return job_rows(session.database)
    if name == "instar.job_history":
        return history_rows(session.database)
    if name == "instar.materialized_views":
        return view_rows(session, catalog)
    if name == "instar.servers":
        return server_rows(session.database.store, session.database.clock)
    if name == "instar.transaction_locks":
        return lock_rows(session.database.store, catalog)
    if name == "instar.schema_versions":
        return version_rows(session.database.store)
    if name == "instar.metadata_cache":
        return cache_rows(session.database.catalog.cache, session.database.clock)
    reads = session.open_transaction().reads
    if reads is not None:
        reads.catalog = True
    if name == "instar.layouts":
        return layout_rows(session.database.store, catalog)
    database = session.database
    texts = (thaw_default, thaw_check, quote_identifier, thaw_generated)
    return _SYSTEM_VIEWS[name].rows(Source(catalog, database.store, database.name, *texts))
