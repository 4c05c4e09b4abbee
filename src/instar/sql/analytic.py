"""The analytic engine: DuckDB in this process, over Arrow batches of the statement's own snapshot.

DuckDB holds no data. Every table that a query reads is an input of its own, decoded batch by batch as DuckDB asks for
more, with the columns that the query needs and the key range that its WHERE leaves. Whatever the answer, it is the
executor's: functions.py writes each expression so that both agree, and what cannot be written so is 0A000.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import threading
from typing import Any

import duckdb
import pyarrow as pa

from instar import errors
from instar.sql.analytic_inputs import Input, given_input, key_ranges, system_input, table_input
from instar.sql.analytic_sql import Written, write_query
from instar.sql.beside import run_beside
from instar.sql.execution import ExecutionContext, Given, Result
from instar.sql.expressions import Compiler, Frame, FrameLayout, Scope
from instar.sql.functions import UDFS, duckdb_error
from instar.sql.plan import QueryPlan
from instar.sql.traversal import SUBQUERIES, walk
from instar.sql.tree import Expr

# After these a DuckDB refuses whatever it is asked, in all threads, and says the second line.
_BROKEN = (duckdb.InternalException, duckdb.FatalException)
_OF_ANOTHER = "has been invalidated because of a previous fatal error"

_UDF_NAME = re.compile(r"\binstar_\w+")


class _Engine:
    """DuckDB as this process has it: one instance, and a connection per thread."""

    def __init__(self) -> None:
        self._root: Any = duckdb.connect(
            ":memory:",
            config={
                "threads": str(min(4, os.cpu_count() or 1)),
                "enable_external_access": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "arrow_lossless_conversion": "true",
                "order_by_non_integer_literal": "true",
                # In 2.0.0 two lose an IS NULL in an Arrow scan below an outer join that becomes an anti-join; the third
                # leads to an internal error where a window is over a LATERAL with grouping sets and HAVING.
                "disabled_optimizers": "outer_join_simplification,projection_pullup,grouping_sets",
            },
        )
        # What holds DuckDB without being an object of its Python module, of which none may outlive the interpreter.
        self._pin: pa.RecordBatchReader = self._root.cursor().sql("SELECT 1").to_arrow_reader()
        self._lock = threading.Lock()
        self._registered: set[str] = set()
        self._local = threading.local()

    def connection(self) -> Any:
        """This thread's connection."""
        found = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = self._root.cursor()
        return found

    def register(self, text: str) -> None:
        """Make known to DuckDB those of our functions that the text calls."""
        missing = set(_UDF_NAME.findall(text)) - self._registered
        if not missing:
            return
        with self._lock:
            for name in missing - self._registered:
                udf = UDFS[name]
                self._root.create_function(
                    name,
                    udf.batch,
                    list(udf.parameters),
                    udf.result,
                    type="arrow",
                    null_handling="special",
                    side_effects=udf.volatile,
                )
                self._registered.add(name)

    def close(self) -> None:
        """Give DuckDB's memory back."""
        self._local = threading.local()
        self._pin.close()
        self._root.close()
        del self._root

    def abandon(self) -> None:
        """In a forked child: DuckDB's end would wait for its threads, which the child has not, and crash. So it never
        comes here, not even when the interpreter ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pin))
        atexit.unregister(self.close)


_engine: _Engine | None = None
_engine_lock = threading.Lock()


def _current() -> _Engine:
    """The engine of this process."""
    global _engine  # one per process is the point
    if _engine is None:
        with _engine_lock:
            if _engine is None:
                _engine = run_beside(_Engine)
                atexit.register(_engine.close)
    return _engine


def _retire(engine: _Engine) -> None:
    """No query begins in it any more: after an internal error DuckDB refuses whatever it is asked.

    It is not closed, since other threads may be in it; it goes with the last of them.
    """
    global _engine
    with _engine_lock:
        if _engine is engine:
            _engine = None
            atexit.unregister(engine.close)


def _after_fork() -> None:
    """In a child: let go of the parent's engine, without an end to it."""
    global _engine, _engine_lock
    _engine_lock = threading.Lock()  # a thread that the child does not have may hold it
    if _engine is not None:
        _engine.abandon()
        _engine = None


os.register_at_fork(after_in_child=_after_fork)


class Analytic:
    """Runs queries in this process's DuckDB."""

    def run(self, plan: QueryPlan, context: ExecutionContext, given: Given) -> Result:
        """The whole result of a query, some of whose tables are `given`. Errors: those of the functions in it, 53100,
        53200, and what its scans raise."""
        layout = FrameLayout(len(context.parameters))
        frame = layout.frame(context.parameters, context.functions, context)
        written = write_query(
            plan.query,
            context.parameters,
            context.functions,
            lambda expr, clause: _value(expr, clause, layout, frame),
            lambda expr, clause: _count(expr, clause, layout, frame),
        )
        found: dict[str, Input] = {}
        for name, (held, ordinals) in written.scans.tables.items():
            rows = given.get(held.scan.relation)
            if rows is not None:
                found[name] = given_input(held.scan, ordinals, rows)
            else:
                found[name] = table_input(held.scan, ordinals, key_ranges(held, layout, frame), context)
        for name, system in written.scans.systems.items():
            found[name] = system_input(system, context)
        table = _run(written, found, context)
        columns = tuple(zip(plan.names, plan.types, strict=True))
        # Without columns there is one in DuckDB (analytic_sql._listed).
        return Result(columns, None, table.num_rows, table if columns else table.select([]))


def _value(expr: Expr, clause: str, layout: FrameLayout, frame: Frame) -> object:
    """The value of an expression that reads no row."""
    if any(isinstance(found, SUBQUERIES) for found in walk(expr)):
        raise errors.unsupported(f"a subquery in {clause} of an analytic query")
    return Compiler(Scope({}), layout).value(expr)((), frame)


def _count(expr: Expr, clause: str, layout: FrameLayout, frame: Frame) -> int | None:
    """The value of LIMIT or OFFSET; None is none."""
    value = _value(expr, clause, layout, frame)
    if value is None:
        return None
    count = int(value)  # type: ignore[call-overload]  # the binder casts it to bigint
    if count < 0:
        raise errors.error(
            errors.INVALID_LIMIT if clause == "LIMIT" else errors.INVALID_OFFSET, f"{clause} must not be negative"
        )
    return int(count)


def _run(written: Written, inputs: dict[str, Input], context: ExecutionContext) -> pa.Table:
    relations = {name: source.relation() for name, source in inputs.items()}
    outcome = _attempt(written.text, relations, context)
    if isinstance(outcome, str) and _OF_ANOTHER in outcome:
        # Another thread's query has brought down the engine that this one ran in, too.
        outcome = _attempt(written.text, relations, context)
    if isinstance(outcome, str):
        context.check_cancel()
        for source in inputs.values():
            if source.failure is not None:
                raise source.failure
        failure = duckdb_error(outcome)
        if written.unsure and failure.sqlstate != errors.QUERY_CANCELED:
            raise errors.unsupported("a subquery below a condition, which failed for some row, in an analytic query")
        raise failure
    return _stored(outcome)


def _attempt(text: str, relations: dict[str, Input | pa.Table], context: ExecutionContext) -> pa.Table | str:
    """The result, or DuckDB's message."""
    engine = _current()
    # Of this thread, whichever one it is used in: there is no other use of it before that one has ended.
    connection = engine.connection()

    def work() -> pa.Table | str:
        try:
            engine.register(text)
            return _outcome(connection, text, relations)
        except _BROKEN as failure:
            _retire(engine)
            return str(failure)
        except duckdb.Error as failure:  # an interrupt may come while inputs are made known
            return str(failure)

    context.interruptible(connection.interrupt)
    try:
        return run_beside(work, connection.interrupt)
    finally:
        context.interruptible(None)


def _outcome(connection: Any, text: str, relations: dict[str, Input | pa.Table]) -> pa.Table | str:
    """As `_attempt`. Errors: DuckDB's that leave it useless."""
    try:
        for name, relation in relations.items():
            connection.register(name, relation)
        return _answer(connection, text)
    finally:
        for name in relations:
            _forget(connection, name)


def _forget(connection: Any, name: str) -> None:
    """Let go of an input, interrupted or not. What is useless keeps nothing for long."""
    with contextlib.suppress(*_BROKEN):
        try:
            connection.unregister(name)
        except duckdb.InterruptException:
            connection.unregister(name)


def _answer(connection: Any, text: str) -> pa.Table | str:
    """As `_outcome`. DuckDB's exception stays here: the frames that hang on it would keep the connection alive past the
    engine's end."""
    try:
        table: pa.Table = connection.sql(text).to_arrow_table()
        return table
    except _BROKEN:
        raise
    except duckdb.Error as failure:
        return str(failure)


def _stored(table: pa.Table) -> pa.Table:
    """Columns of Arrow's extensions as the types they stand for: a uuid as its 16 bytes, DuckDB's boolean as such."""
    if not any(isinstance(field.type, pa.BaseExtensionType) for field in table.schema):
        return table
    arrays = []
    for column in table.columns:
        if isinstance(column.type, pa.BaseExtensionType):
            storage = column.cast(column.type.storage_type)
            column = storage.cast(pa.bool_()) if pa.types.is_int8(storage.type) else storage
        arrays.append(column)
    return pa.Table.from_arrays(arrays, names=table.column_names)
