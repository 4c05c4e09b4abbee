"""Queries of the past: old rows under the schema of then (MD-MVCC §5.2), or under today's.

The rows and the catalog of a timestamp are both read from the log, for as long as the store retains it. Such a query is
planned for itself: neither it nor its catalog is kept. It does not see what its transaction has buffered, and nothing
that it reads is validated at commit, since it cannot change any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlglot import exp

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import State, Table
from instar.database.result import Result
from instar.database.settings import duration_us
from instar.sql import statements as ast
from instar.sql import tree
from instar.sql.binder import bind
from instar.sql.execution import ExecutionContext, Row
from instar.sql.integrity import Rules
from instar.sql.parser import parse_expression
from instar.sql.plan_cache import Prepared, hints_of
from instar.sql.traversal import walk
from instar.store.header import TIMESTAMP_SHIFT, wall_timestamp
from instar.tables.view import View
from instar.transactions.buffer import Buffer
from instar.types import Kind, Type
from instar.values import to_text

if TYPE_CHECKING:
    from instar.database.session import Session

_TIMES = frozenset({Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE})
_TEXTS = frozenset({Kind.TEXT, Kind.VARCHAR, Kind.UNKNOWN})


def query_as_of(session: Session, statement: ast.Query, as_of: ast.AsOf, parameters: Sequence[object]) -> Result:
    """Execute a query AS OF SYSTEM TIME. Errors: 22007, 22023 (no time, or one to come), 72000 (longer ago than the
    store retains), 25006 for nextval and setval, and the query's own."""
    statement, parameters, moment = _split(statement, as_of, parameters)
    snapshot = timestamp_of(session, moment, as_of)
    database = session.database
    # Held while the query runs; whether it was there in time the reads find out.
    token = database.store.register_snapshot(snapshot)
    try:
        catalog = database.catalog.past(snapshot)
        past = catalog
        if as_of.current_schema:
            catalog = _under_current(session.catalog(), past)
        prepared = _prepared(session, statement, catalog, parameters)
        if prepared.locks is not None:
            raise errors.unsupported("a row lock AS OF SYSTEM TIME", position=as_of.position)
        if prepared.hints:
            raise errors.unsupported("a table hint AS OF SYSTEM TIME", position=as_of.position)
        if as_of.current_schema:
            _require_readable(prepared.bound.tables, past)
        context = _context(session, snapshot, catalog, prepared, parameters)
        return Result.of("SELECT", prepared.run(context), returns_rows=True)
    finally:
        database.store.release_snapshot(token)


def _split(
    statement: ast.Query, as_of: ast.AsOf, parameters: Sequence[object]
) -> tuple[ast.Query, Sequence[object], exp.Expr | object]:
    """The query without the parameter that says when, the other parameters, and when: an expression or a value."""
    ast.require_parameters(statement.parameters, len(parameters))
    used = {int(found.name) for found in as_of.moment.find_all(exp.Parameter)}
    if not used:
        return statement, parameters, as_of.moment
    elsewhere = {int(found.name) for found in statement.expression.find_all(exp.Parameter)}
    if not isinstance(as_of.moment, exp.Parameter) or used != {statement.parameters} or used & elsewhere:
        raise errors.unsupported(
            "a parameter in AS OF SYSTEM TIME that is not the whole of it, the statement's last one, and used once",
            position=as_of.position,
        )
    shorter = ast.Query(statement.expression, statement.text, statement.parameters - 1)
    return shorter, parameters[:-1], parameters[-1]


# --- when ------------------------------------------------------------------------------------------------------------


def timestamp_of(session: Session, moment: exp.Expr | object, as_of: ast.AsOf) -> int:
    """The store's timestamp of a moment, to the millisecond, with all that was committed in it."""
    store = session.database.store
    microseconds = _moment(session, moment, as_of)
    first = wall_timestamp(microseconds * 1000)
    if first > store.now():
        raise errors.error(errors.INVALID_PARAMETER, "AS OF SYSTEM TIME lies in the future", position=as_of.position)
    with store.read() as reader:
        return min(max(first, 0) + (1 << TIMESTAMP_SHIFT) - 1, reader.timestamp)


def _moment(session: Session, moment: exp.Expr | object, as_of: ast.AsOf) -> int:
    """Microseconds since the epoch: of a time or its text, or of a text like '-10 s', which is before now."""
    if not isinstance(moment, exp.Expr):
        type_, value = _evaluated(session, parse_expression("$1"), (moment,))
    else:
        type_, value = _evaluated(session, moment, ())
    if value is None:
        raise errors.error(errors.INVALID_PARAMETER, "AS OF SYSTEM TIME is NULL", position=as_of.position)
    if type_.kind not in _TIMES and type_.kind not in _TEXTS:
        message = f"AS OF SYSTEM TIME takes a time, or a text like '-10 s', not {type_}"
        raise errors.error(errors.DATATYPE_MISMATCH, message, position=as_of.position)
    text = to_text(type_, value, session.settings.get("timezone")).strip()
    if text.startswith("-"):
        ago = duration_us(text[1:].strip())
        if ago is None:
            message = f"AS OF SYSTEM TIME '{text}' is not understood"
            hint = 'Say how long ago in "us", "ms", "s", "min", "h" or "d".'
            raise errors.error(errors.INVALID_PARAMETER, message, hint=hint, position=as_of.position)
        return session.database.clock.wall_ns() // 1000 - ago
    _, found = _evaluated(session, parse_expression("CAST($1 AS timestamptz)"), (text,))
    if not isinstance(found, int):  # infinity, say
        message = f"AS OF SYSTEM TIME '{text}' is no moment"
        raise errors.error(errors.INVALID_PARAMETER, message, position=as_of.position)
    return found


def _evaluated(session: Session, expression: exp.Expr, parameters: Sequence[object]) -> tuple[Type, object]:
    """Type and internal value of an expression that reads no table."""
    statement = ast.Query(exp.Select(expressions=[expression]), "", len(parameters))
    catalog = session.catalog()
    prepared = _prepared(session, statement, catalog, parameters)
    if prepared.bound.tables or prepared.bound.views:
        raise errors.unsupported("a table in AS OF SYSTEM TIME")
    context = _context(session, 0, catalog, prepared, parameters)
    ((value,),) = prepared.run(context).values()
    return prepared.columns[0][1], value


# --- what ------------------------------------------------------------------------------------------------------------


def _prepared(
    session: Session, statement: ast.Query, catalog: CatalogSnapshot, parameters: Sequence[object]
) -> Prepared:
    bound = bind(statement, catalog, hints_of(parameters))
    for found in walk(bound.statement):
        if isinstance(found, tree.NextValue | tree.SetValue):
            name = "nextval" if isinstance(found, tree.NextValue) else "setval"
            message = f"cannot execute {name}() in a query of the past"
            raise errors.error(errors.READ_ONLY_TRANSACTION, message)
    database = session.database
    return Prepared(statement, bound, catalog, database.layouts, Rules(catalog, database.layouts), database.analytic)


def _context(
    session: Session, snapshot: int, catalog: CatalogSnapshot, prepared: Prepared, parameters: Sequence[object]
) -> ExecutionContext:
    database = session.database

    def system_rows(name: str) -> Iterable[Row]:
        raise errors.unsupported(f'reading "{name}" as of another time')

    def next_value(_sequence: int) -> int:
        raise errors.error(errors.INTERNAL_ERROR, "a query of the past takes no number")

    return ExecutionContext(
        view=View(database.store, snapshot, None, database.layouts),
        catalog=catalog,
        buffer=Buffer(),
        parameters=prepared.convert(parameters, session.settings.get("timezone")),
        functions=session.function_context(),
        next_value=next_value,
        current_value=session.numbers.current_value,
        system_rows=system_rows,
        check_cancel=session.check_cancel,
        interruptible=session.interruptible,
    )


def _under_current(current: CatalogSnapshot, past: CatalogSnapshot) -> CatalogSnapshot:
    """Today's catalog for rows of then: a table that was there has only the indexes that were public then."""

    def make(table: Table) -> Table:
        then = past.by_id(table.id)
        if not isinstance(then, Table):
            return msgspec.structs.replace(table, indexes=())
        known = {column.id: column for column in then.columns if column.state is State.PUBLIC}
        # What is NOT NULL today may have been NULL then.
        required = {column.id for column in known.values() if not column.nullable}
        columns = tuple(
            column if column.id in required else msgspec.structs.replace(column, nullable=True)
            for column in table.columns
        )
        # Its rows, and the entries of indexes, may have been replaced since (TRUNCATE).
        served = {index.id: index for index in then.indexes if index.state is State.PUBLIC}
        indexes = tuple(
            msgspec.structs.replace(index, rowset=served[index.id].rowset)
            for index in table.indexes
            if index.id in served and index.columns == served[index.id].columns
        )
        return msgspec.structs.replace(table, columns=columns, indexes=indexes, rowset=then.rowset)

    return current.mapped(make)


def _require_readable(tables: Iterable[Table], past: CatalogSnapshot) -> None:
    """0A000 for a table whose rows of then do not say what today's schema asks: they lie under another key, or have no
    value of a column that each row has been given one of since, or that was dropped then and is back."""
    for table in tables:
        then = past.by_id(table.id)
        if table.older_rows and not (isinstance(then, Table) and then.unseen is None):
            what = f'today\'s schema for rows of what table "{table.name}" was joined or split from since'
            raise errors.unsupported(what)
        if not isinstance(then, Table):
            continue
        if table.primary_key != then.primary_key:
            what = f'today\'s schema for rows that table "{table.name}" had under another primary key'
            raise errors.unsupported(what)
        public = {column.id for column in then.columns if column.state is State.PUBLIC}
        known = {column.id for column in then.columns}
        for column in table.columns:
            was_dropped = column.id < then.next_id and column.id not in known
            if (column.per_row and column.id not in public) or was_dropped:
                what = f'today\'s schema for rows that table "{table.name}" had before column "{column.name}"'
                raise errors.unsupported(what)
