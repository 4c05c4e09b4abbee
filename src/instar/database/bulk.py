"""Bulk input: Arrow rows into a table, into unseen rowsets where the table is empty, else through the buffer.

A load is a job like any other: its record and claim say that somebody is at it, every batch carries the claim, and
when its process dies the worker fails the job and removes the rowsets it was building (rule 9).

Rows come in about the order of their keys, entries of indexes do not. So a large load puts its rows first, and then
has Spark sort the entries of each index. Only a process that is there for the load may do that: it starts Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from instar import errors
from instar.catalog.catalog import PUBLIC_SCHEMA
from instar.catalog.descriptors import Column, State, Table
from instar.database.columns import parameter_columns
from instar.database.result import Result
from instar.encoding.arrow_values import arrow_array, internal_values
from instar.pipeline.session import java_home
from instar.schemachange.loading import Loading
from instar.sql import tree
from instar.sql.binder import bind_default
from instar.sql.expressions import Compiler, FrameLayout, Scope
from instar.sql.functions import Context
from instar.sql.traversal import is_volatile
from instar.store import key_ranges
from instar.store.engine import prefix_end, rowset_prefix
from instar.tables.layout import arrow_type
from instar.tables.load import ROWS_PER_BATCH, TableLoad
from instar.types import DATE, TIMESTAMP, TIMESTAMPTZ, Kind, Type
from instar.values import converter, to_text

if TYPE_CHECKING:
    from instar.database.database import Database
    from instar.database.session import Session

SMALLEST_LOAD = 10_000  # fewer rows are not worth a job of their own
# From so many rows on the entries of an index are sorted before they are put: each batch would touch as many pages of
# the index as it has entries, and they would not stay in memory. At two million, putting them as they come is faster.
SPARK_ROWS = 10_000_000

# Told how many entries of which index are there.
Indexed = Callable[[str, int], None]


def _reader_of(data: object) -> pa.RecordBatchReader:
    """22023 for what is not Arrow's."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatchReader):
        return data
    what = type(data).__name__
    raise errors.error(errors.INVALID_PARAMETER, f"rows come as an Arrow table, batch or reader, not as {what}")


def insert_arrow(
    session: Session,
    name: str,
    data: pa.Table | pa.RecordBatchReader,
    *,
    expected: int = 0,
    indexed: Indexed | None = None,
) -> int:
    """Append rows, matched to columns by name; returns how many.

    Outside a transaction an empty table is loaded into unseen rowsets, published by one commit. Everything else goes
    through the buffer: one statement of the open transaction, bounded by max_transaction_rows (54000).

    `expected`: how many rows there are, about. With `indexed`, which is told of progress, a load of SPARK_ROWS or more
    starts Spark in this process for the indexes; 58030 if Spark fails.
    """
    reader = _reader_of(data)
    batches: Iterator[pa.RecordBatch] = (batch for batch in sized(reader) if batch.num_rows)
    if session.transaction is None and session.autocommit and not session.settings.read_only:
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
            return _load(session, found, batches, expected, indexed)
    return _append(session, name, reader.schema, batches)


def estimated_table_rows(session: Session, name: str) -> int:
    """About how many rows a table has, from a look at some hundred keys. 42P01 if there is no such table."""
    store = session.database.store
    with store.read() as reader:
        found = session.database.catalog.at(reader).lookup(PUBLIC_SCHEMA, name)
    if not isinstance(found, Table):
        raise errors.error(errors.UNDEFINED_TABLE, f'relation "{name}" does not exist')
    prefix = rowset_prefix(found.rowset)
    return key_ranges.estimate(store.read, prefix, prefix_end(prefix))


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


def sized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches of ROWS_PER_BATCH, the last of fewer: each batch costs a fixed price."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        while rows + batch.num_rows >= ROWS_PER_BATCH:
            held.append(batch.slice(0, ROWS_PER_BATCH - rows))
            batch = batch.slice(ROWS_PER_BATCH - rows)
            yield from _joined(held)
            held, rows = [], 0
        held.append(batch)
        rows += batch.num_rows
    if rows:
        yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """All of their rows in one batch; in several where one would have more than 2 GiB of text in a column."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


def _loadable(session: Session, table: Table, names: Sequence[str]) -> bool:
    """Whether nothing but the rows themselves must be judged, and nobody can have rows in the table."""
    if table.checks or table.foreign_keys or table.referenced_by or table.next_key is not None:
        return False
    if table.logged_whole:  # whoever follows the log could not follow other rowsets
        return False
    if any(index.state is not State.PUBLIC for index in table.indexes):
        return False
    given = set(names)
    with session.database.store.read() as reader:
        catalog = session.database.catalog.at(reader)
    for column in table.columns:
        if column.state is not State.PUBLIC or column.not_null_yields:
            return False  # its job goes on with the rows that it has begun with
        if column.name not in given and column.default is not None and is_volatile(bind_default(column, catalog)):
            return False
        if (column.identity == "always" or column.generated) and column.name in given:
            return False
    prefix = rowset_prefix(table.rowset)
    with session.database.store.read() as reader:
        return next(reader.scan(prefix, prefix_end(prefix)), None) is None


def _load(
    session: Session,
    table: Table,
    batches: Iterator[pa.RecordBatch],
    expected: int = 0,
    indexed: Indexed | None = None,
) -> int:
    """Load into unseen rowsets and publish. Sequences are advanced for rows that say nothing of their columns."""
    database = session.database
    loading = Loading(database.store, database.ids, database.clock, table, expected=expected)
    sorting = indexed is not None and expected >= SPARK_ROWS and has_spark(database)
    defaults: dict[int, object] | None = None
    rows = 0
    try:
        filled = msgspec.structs.replace(loading.table, indexes=()) if sorting else loading.table
        load = TableLoad(filled, loading.timestamp)
        for batch in batches:
            session.check_cancel()
            if defaults is None:
                defaults = _defaults(session, table, batch.schema.names)
            complete = _complete(session, table, batch, defaults)
            loading.put(load.steps(complete), batch.num_rows)
            rows += batch.num_rows
        if sorting and indexed is not None:
            _fill_indexes(session, loading, indexed)
        loading.publish(database.catalog, session.check_cancel)
    except BaseException:
        loading.abandon()
        raise
    return rows


def has_spark(database: Database) -> bool:
    """Whether other processes can open the store, and there is a Java to run them with."""
    try:
        return not database.in_memory and bool(java_home())
    except errors.Error:
        return False


def _fill_indexes(session: Session, loading: Loading, indexed: Indexed) -> None:
    """Put the entries of every index in order."""
    from instar.pipeline.reorganizer import SparkReorganizer

    reorganizer = SparkReorganizer(session.database.path)
    for place, index in enumerate(loading.table.indexes):

        def pulse(place: int = place, name: str = index.name) -> None:
            session.check_cancel()
            loading.pulse()
            indexed(name, loading.index_rows(place))

        reorganizer.run(loading.index(place), pulse)


def _defaults(session: Session, table: Table, given: Sequence[str]) -> dict[int, object]:
    """The values of the defaults of columns that are not given, by column id. They are not what older rows have in a
    column that was added: a default may be another by now, or `now()`."""
    database, layout = session.database, FrameLayout(0)
    with database.store.read() as reader:
        catalog = database.catalog.at(reader)
    frame = layout.frame((), Context(database.clock.wall_ns() // 1000, session.settings.get("timezone")), None)
    return {
        column.id: Compiler(Scope({}), layout).value(bind_default(column, catalog))((), frame)
        for column in table.columns
        if column.default is not None and column.name not in given
    }


def _complete(session: Session, table: Table, batch: pa.RecordBatch, defaults: dict[int, object]) -> pa.RecordBatch:
    """The batch with a column per column of the table, in order and in its Arrow type."""
    names = batch.schema.names
    known = {column.name for column in table.columns if column.visible}
    for name in names:
        if name not in known:
            raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" of relation "{table.name}" does not exist')
    zone = session.settings.get("timezone")
    arrays = [
        _fitting(column.type, batch.column(names.index(column.name)), zone)
        if column.name in names and not column.hidden  # a user's column may be named as the row id is
        else _filled(session, column, batch.num_rows, defaults.get(column.id))
        for column in table.columns
    ]
    fields = [pa.field(column.name, array.type) for column, array in zip(table.columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _fitting(type_: Type, array: Any, zone: str) -> Any:
    """The given column; where Arrow's cast to the table's type is not PostgreSQL's, converted value by value.

    Those are the casts that round to a numeric's scale, those that the session's time zone decides, and all to jsonb,
    which is kept as its canonical text.
    """
    given = array.type
    if type_.kind is Kind.NUMERIC and type_.precision is not None:
        scale = type_.scale or 0
        if pa.types.is_integer(given):
            # Arrow asks for a precision that any integer would fit; whether these fit is seen when they are stored.
            return array.cast(pa.decimal128(38, min(scale, 18)))
        same = pa.types.is_decimal(given) and given.scale <= scale
    elif type_.kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ) and zone != "UTC":
        zoned = pa.types.is_timestamp(given) and given.tz is not None
        same = zoned is (type_.kind is Kind.TIMESTAMPTZ)
    elif type_.kind is Kind.JSONB:
        same = False
    else:
        same = True
    if same or array.null_count == len(array):
        return array
    convert = converter(type_, zone)
    return arrow_array(type_, [None if value is None else convert(value) for value in python_values(array)])


def python_values(array: Any) -> list[Any]:
    """The values as parameters of a statement; dates and times outside of Python's years as text. 22003 for more than
    microseconds."""
    try:
        return array.to_pylist()  # type: ignore[no-any-return]  # of whatever class
    except (OverflowError, ValueError):
        given = array.type
        type_ = DATE if pa.types.is_date(given) else TIMESTAMP if given.tz is None else TIMESTAMPTZ
        try:
            stored = array.cast(arrow_type(type_))
        except pa.ArrowInvalid as problem:
            message = f"a value does not fit type {type_}: {problem}"
            raise errors.error(errors.NUMERIC_OUT_OF_RANGE, message) from None
        return [None if value is None else to_text(type_, value) for value in internal_values(stored, type_)]


def _filled(session: Session, column: Column, rows: int, default: object) -> Any:
    """A column that the data does not have: values of its sequence, its default, or NULL."""
    target: Any = arrow_type(column.type)  # the stubs are generic in types known at run time only
    if column.sequence is not None:
        taken = session.numbers.next_values(column.sequence, rows)
        return pa.array(np.concatenate([np.arange(part.start, part.stop, part.step) for part in taken])).cast(target)
    if default is None:
        return pa.nulls(rows, target)
    return pa.repeat(arrow_array(column.type, [default])[0], rows)


def _append(session: Session, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """INSERT with parameters, one statement for all rows."""
    columns = ", ".join('"' + field.replace('"', '""') + '"' for field in schema.names)
    places = ", ".join("?" for _ in schema.names)
    quoted = '"' + name.replace('"', '""') + '"'
    text = f"INSERT INTO {quoted} ({columns}) VALUES ({places})"

    def rows() -> Iterator[tuple[object, ...]]:
        for batch in batches:
            listed = [python_values(column) for column in batch.columns]
            yield from zip(*listed, strict=True)

    # One row too many is refused as a million too many are, and need not be waited for.
    most = int(session.settings.get("max_transaction_rows")) + 1
    result: Result = session.executemany(text, itertools.islice(rows(), most))
    return result.rowcount
