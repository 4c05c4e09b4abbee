"""What rows get for a column that comes back (ALTER TABLE ... UNDROP COLUMN) if they were written since it went.

Each row that was there at the drop has the value that it had then, though it may have been changed since, or have
another key by now; the log tells. A row that has come since has the column's default, as if the column had been added
now. Both are updates of the statement's own transaction, so that they are bounded, logged and judged like any other.
Rows that nobody has written since are not touched: they are in layouts that have the column.

That nobody writes to the table between the statement's snapshot and the commit is a precondition of the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.descriptors import Column, Table
from instar.catalog.history import DroppedColumn, dropped_columns
from instar.sql.defaults import compile_default
from instar.store.engine import LogRecord, rowset_prefix
from instar.store.versions import read_row
from instar.tables.rowset import TableReader
from instar.tables.view import View

if TYPE_CHECKING:
    from instar.database.session import Session

# Records of the log after which it is looked whether the statement was cancelled.
_BATCH = 1000

# Where the row at a key was at the drop: None if it has come since.
Origins = dict[bytes, bytes | None]


def restore_values(session: Session, table: Table, before: Table) -> None:
    """Buffer what makes the rows of `table` have the values of the columns that `before` had not. Errors: 23502 (rows
    that have come since have no value of a NOT NULL column), 54000 (too many rows), 55000 (it is not known where a row
    comes from), 72000 (the store has forgotten what rows had)."""
    known = {column.id for column in before.columns}
    with session.database.store.read() as reader:
        found = {lost.column.id: lost for lost in dropped_columns(reader, before)}
    for column in table.columns:
        if column.id not in known:
            if column.id not in found:
                raise errors.error(errors.SNAPSHOT_TOO_OLD, f'the values of column "{column.name}" are gone')
            _restore(session, table, column, found[column.id])


def _restore(session: Session, table: Table, column: Column, lost: DroppedColumn) -> None:
    open_ = session.open_transaction()
    assert open_.snapshot is not None  # a statement is running
    snapshot, kept = open_.snapshot.timestamp, lost.timestamp - 1
    session.change().require_untouched(table, snapshot, kept)
    store = session.database.store
    prefix = rowset_prefix(table.rowset)
    records = (record for record in store.log(kept, snapshot) if record.table == table.id)
    origins = _origins(_checked(session, records), table)
    layouts = session.database.layouts
    reader = TableReader(table, range(len(table.columns)), layouts)
    ordinal = table.columns.index(column)
    then = TableReader(lost.table, [lost.table.columns.index(lost.column)], layouts)
    view = View(store, snapshot, None, layouts)
    default = _default(session, column)
    without = 0
    for key, origin in origins.items():
        version = reader.get_version(view, key[len(prefix) :])
        if version is None:
            continue
        session.check_cancel()
        with store.read_at(kept) as past:
            stored = None if origin is None else read_row(past, origin, kept)
        value = default() if stored is None else then.decode(stored)[0]
        if value is None:
            without += column.refuses_null
            if version.values[ordinal] is None:
                continue
        image = (*version.values[:ordinal], value, *version.values[ordinal + 1 :])
        open_.buffer.update(
            table.id, table.version, version.key, version.base, version.values, image, frozenset({column.id})
        )
    if without:
        raise _null_values(table, column, without)
    session.enlist()


def _origins(records: Iterable[LogRecord], table: Table) -> Origins:
    """The keys at which rows were written since the drop. 55000 for one that has come to the place of another by a
    change of keys: the log does not tell from where."""
    origins: Origins = {}
    unknown: set[bytes] = set()
    for _timestamp, group in groupby(records, lambda record: record.timestamp):
        commit = list(group)
        moved = {one.pair: origins.get(one.key, one.key) for one in commit if one.deleted and one.pair}
        lost = {one.pair for one in commit if one.deleted and one.key in unknown}
        for one in commit:
            if one.deleted or (one.before is None and not one.pair):
                unknown.discard(one.key)
                origins[one.key] = None
        for one in commit:
            if one.deleted:
                continue
            if not one.pair:
                origins.setdefault(one.key, one.key)
                continue
            origins[one.key] = moved.get(one.pair)
            if one.pair in moved and one.pair not in lost:
                unknown.discard(one.key)
            else:
                unknown.add(one.key)
    if unknown:
        raise errors.error(
            errors.OBJECT_NOT_READY,
            f'it is not known which rows of table "{table.name}" had which values of the column',
            detail=f"Since it was dropped, {len(unknown)} rows have taken others' places by changes of keys.",
        )
    return origins


def _checked(session: Session, records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """The records, for as long as the statement is not cancelled."""
    for number, record in enumerate(records):
        if not number % _BATCH:
            session.check_cancel()
        yield record


def _default(session: Session, column: Column) -> Callable[[], object]:
    """What a row has that says nothing of the column."""
    database, catalog = session.database, session.catalog()

    def next_value(sequence: int) -> int:
        return database.sequences.next_value(database.sequence(sequence, catalog))

    return compile_default(column, catalog, session.function_context(), next_value)


def _null_values(table: Table, column: Column, rows: int) -> errors.Error:
    return errors.error(
        errors.NOT_NULL_VIOLATION,
        f'column "{column.name}" of relation "{table.name}" contains null values',
        detail=f"{rows} rows have come since it was dropped, and it has no default.",
        hint="UNDROP COLUMN ... CASCADE brings it back without NOT NULL.",
    )
