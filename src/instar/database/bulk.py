"""Bulk input: Arrow rows into a table, into unseen rowsets where the table is empty, else through the buffer.

A load is a job like any other: its record and claim say that somebody is at it, every batch carries the claim, and
when its process dies the worker fails the job and removes the rowsets it was building (rule 9).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from instar import errors
from instar.catalog.descriptors import Column, State, Table
from instar.database.columns import parameter_columns
from instar.database.result import Result
from instar.schemachange.loading import Loading
from instar.sql import tree
from instar.store.engine import prefix_end, rowset_prefix
from instar.tables.layout import arrow_type
from instar.tables.load import ROWS_PER_BATCH, TableLoad
from instar.types import Kind
from instar.values import from_text

if TYPE_CHECKING:
    from instar.database.session import Session

SMALLEST_LOAD = 10_000  # fewer rows are not worth a job of their own


def insert_arrow(session: Session, name: str, data: pa.Table | pa.RecordBatchReader) -> int:
    """Append rows, matched to columns by name; returns how many.

    Outside a transaction an empty table is loaded into unseen rowsets, published by one commit. Everything else goes
    through the buffer: one statement of the open transaction, bounded by max_transaction_rows (54000).
    """
    reader = data.to_reader() if isinstance(data, pa.Table) else data
    batches: Iterator[pa.RecordBatch] = (batch for batch in _sized(reader) if batch.num_rows)
    if session.transaction is None and session.autocommit:
        with session.database.store.read() as store_reader:
            catalog = session.database.catalog.at(store_reader)
        found = catalog.lookup(None, name)
        first = next(batches, None)
        if first is None:
            return 0
        batches = itertools.chain([first], batches)
        if (
            isinstance(found, Table)
            and first.num_rows >= SMALLEST_LOAD
            and _loadable(session, found, reader.schema.names)
        ):
            return _load(session, found, batches)
    return _append(session, name, reader.schema, batches)


def insert_many(session: Session, bound: tree.BoundStatement, sets: list[Sequence[object]]) -> int | None:
    """executemany of an INSERT of parameters into an empty table, in autocommit: loaded as `insert_arrow` loads.

    None where it is not such a case, or somebody else wrote to the table meanwhile: the general way is right always.
    """
    columns = parameter_columns(bound, session.settings.get("timezone"))
    statement = bound.statement
    if columns is None or not isinstance(statement, tree.Insert):
        return None
    table = statement.target.table
    names = [table.columns[ordinal].name for ordinal in statement.columns]
    if not _loadable(session, table, names):
        return None
    batches = (columns.batch(sets[begin : begin + ROWS_PER_BATCH]) for begin in range(0, len(sets), ROWS_PER_BATCH))
    try:
        return _load(session, table, batches)
    except errors.OperationalError as refused:
        if refused.sqlstate == errors.SERIALIZATION_FAILURE:
            return None
        raise


def _sized(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The reader's rows in batches of up to ROWS_PER_BATCH: small ones are joined, since each costs a fixed price."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        held.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_PER_BATCH:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
            held, rows = [], 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)


def _loadable(session: Session, table: Table, names: Sequence[str]) -> bool:
    """Whether nothing but the rows themselves must be judged, and nobody can have rows in the table."""
    if table.checks or table.foreign_keys or table.referenced_by:
        return False
    if any(index.state is not State.PUBLIC for index in table.indexes):
        return False
    given = set(names)
    for column in table.columns:
        simple = column.default is None or column.missing is not None
        if column.name not in given and not (simple or column.sequence is not None):
            return False
        if column.identity == "always" and column.name in given:
            return False
    prefix = rowset_prefix(table.rowset)
    with session.database.store.read() as reader:
        return next(reader.scan(prefix, prefix_end(prefix)), None) is None


def _load(session: Session, table: Table, batches: Iterator[pa.RecordBatch]) -> int:
    """Load into unseen rowsets and publish. Sequences are advanced for rows that say nothing of their columns."""
    database = session.database
    loading = Loading(database.store, database.ids, database.clock, table)
    rows = 0
    try:
        load = TableLoad(loading.table, loading.timestamp)
        for batch in batches:
            session.check_cancel()
            complete = _complete(session, table, batch)
            loading.put(load.steps(complete))
            rows += batch.num_rows
        loading.publish(database.catalog)
    except BaseException:
        loading.abandon()
        raise
    return rows


def _complete(session: Session, table: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a column per column of the table, in order and in its Arrow type."""
    names = batch.schema.names
    known = {column.name for column in table.columns if not column.hidden}
    for name in names:
        if name not in known:
            raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" of relation "{table.name}" does not exist')
    arrays = [
        batch.column(names.index(column.name)) if column.name in names else _filled(session, column, batch.num_rows)
        for column in table.columns
    ]
    fields = [pa.field(column.name, array.type) for column, array in zip(table.columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _filled(session: Session, column: Column, rows: int) -> Any:
    """A column that the data does not have: values of its sequence, its constant default, or NULL."""
    target: Any = arrow_type(column.type)  # the stubs are generic in types known at run time only
    if column.sequence is not None:
        return pa.array([session.database.next_value(column.sequence) for _ in range(rows)], target)
    if column.missing is None or column.default is None:
        return pa.nulls(rows, target)
    value = from_text(column.type, column.missing)
    if column.type.kind is Kind.NUMERIC and column.type.precision is None:
        value = column.missing
    return pa.repeat(pa.scalar(value, target), rows)


def _append(session: Session, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """INSERT with parameters, one statement for all rows."""
    columns = ", ".join('"' + field.replace('"', '""') + '"' for field in schema.names)
    places = ", ".join("?" for _ in schema.names)
    quoted = '"' + name.replace('"', '""') + '"'
    text = f"INSERT INTO {quoted} ({columns}) VALUES ({places})"

    def rows() -> Iterator[tuple[object, ...]]:
        for batch in batches:
            listed = [column.to_pylist() for column in batch.columns]
            yield from zip(*listed, strict=True)

    result: Result = session.executemany(text, rows())
    return result.rowcount
