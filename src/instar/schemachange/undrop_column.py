"""ALTER TABLE ... UNDROP COLUMN (MD-MVCC §5.2): one direct step, incompatible for whoever wrote.

Rows that nobody has written since the drop are still in layouts that have the column, by its id: they read as before.
Compaction puts no row into a layout that lacks one of its columns while the watermark has not passed the drop (rule
26), so that what comes back then is all that was there. Rows that were written since are in layouts without it; the
statement's own transaction gives them their values again (database/restoring.py). So writers from before have no say:
a row of theirs would be stored as one without the column.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from instar import errors
from instar.catalog.descriptors import Column, Sequence, State, StepKind, Table
from instar.catalog.history import DroppedColumn
from instar.catalog.naming import constraint_names, not_null_names
from instar.schemachange import wanted as want
from instar.schemachange.creation import require_columns
from instar.schemachange.draft import Draft
from instar.schemachange.next_layout import next_layout
from instar.schemachange.publishing import without_not_null
from instar.schemachange.undrop import free_name, needs_gone_sequence


def undrop_column(draft: Draft, wanted: want.UndropColumn) -> None:
    """UNDROP COLUMN: 42703 if no column of that name can come back, 42701 if the name is taken, 55000 if its values are
    gone or its default needs what is gone, 55006 while a job moves something of the table."""
    table = draft.find(Table, wanted.table)
    draft.require_settled(table)
    lost = _found(draft, table, wanted.column)
    if lost.column.generated:
        # Rows that were written since would have the values of then, which their columns do not give any more.
        raise errors.unsupported(f'bringing back generated column "{lost.column.name}"')
    name = wanted.new or wanted.column
    if any(column.name == name and not column.hidden for column in table.columns):
        raise errors.error(
            errors.DUPLICATE_COLUMN,
            f'column "{name}" of relation "{table.name}" already exists',
            hint=f'UNDROP COLUMN "{wanted.column}" AS another_name brings it back under another name.',
        )
    require_columns(sum(not column.hidden for column in table.columns) + 1)
    _require_values(draft, table, lost)
    _sequences(draft, table, lost, name)
    column = msgspec.structs.replace(lost.column, name=name)
    if column.not_null_name in constraint_names(table):
        column = msgspec.structs.replace(column, not_null_name=None)
    column = _with_default(draft, table, column, cascade=wanted.cascade)
    columns = _in_place(table, lost.table, column)
    stored = tuple((found.id, found.type) for found in columns)
    layout = next_layout(table, stored)
    draft.edit(table.id, (StepKind.UNDROP_COLUMN, (column.id,)), columns=columns, layout=layout)
    draft.notices += [f"{what} does not come back with it" for what in _users(lost)]


def _found(draft: Draft, table: Table, name: str) -> DroppedColumn:
    for lost in draft.facts.dropped_columns(table):
        if lost.column.name == name:
            return lost
    raise errors.error(
        errors.UNDEFINED_COLUMN,
        f'no dropped column "{name}" of relation "{table.name}" can be brought back',
        detail="There was none, or it was dropped longer ago than the store retains.",
        hint="SELECT * FROM instar.dropped shows what can be brought back.",
    )


def _require_values(draft: Draft, table: Table, lost: DroppedColumn) -> None:
    """55000 if rows were put elsewhere since, where nothing says what they had."""
    if not lost.is_kept(table):
        raise errors.error(
            errors.OBJECT_NOT_READY,
            f'the values of column "{lost.column.name}" of table "{table.name}" are gone',
            detail="All rows of the table were replaced since, by TRUNCATE, ALTER PRIMARY KEY or a load.",
        )
    if draft.facts.has_buffered(table):
        raise errors.unsupported("UNDROP COLUMN in a transaction that has written to the table")


def _sequences(draft: Draft, table: Table, lost: DroppedColumn, name: str) -> None:
    """The sequences that the column owned go where it goes."""
    for one in draft.facts.dropped():
        found = one.found
        owned = isinstance(found, Sequence) and found.owned_by == (table.id, lost.column.id)
        if owned and one.timestamp >= lost.timestamp and draft.view.by_id(found.id) is None:
            free = free_name(draft, draft.name_taken, found.name, "sequence", table.name, (name,), "seq")
            draft.revive(msgspec.structs.replace(found, name=free, version=found.version + 1), one.timestamp)


def _with_default(draft: Draft, table: Table, column: Column, *, cascade: bool) -> Column:
    """The column as it was; with `cascade`, NULL where rows may have no value, and no default that cannot be."""
    if needs_gone_sequence(draft, column):
        if not cascade:
            raise errors.error(
                errors.OBJECT_NOT_READY,
                f'column "{column.name}" of table "{table.name}" cannot come back as it was',
                detail="Its default needs a sequence that is gone.",
                hint="UNDROP COLUMN ... CASCADE brings it back without its default.",
            )
        draft.notices.append(f'the default of column "{column.name}" needs a sequence that is gone: left out')
        column = msgspec.structs.replace(column, default=None, sequence=None, identity=None)
    if cascade and column.default is None and column.sequence is None and column.refuses_null:
        draft.notices.append(f'column "{column.name}" comes back without NOT NULL')
        return without_not_null(column)
    if column.nullable:  # a NOT NULL was being validated, or left so: what was written since is held to nothing
        return without_not_null(column)
    return msgspec.structs.replace(column, not_null=None)


def _in_place(table: Table, then: Table, column: Column) -> tuple[Column, ...]:
    """The table's columns with the one that comes back behind those that it came behind."""
    order = [found.id for found in then.columns]
    before = {*order[: order.index(column.id)], *(found.id for found in table.columns if found.id < column.id)}
    before -= set(order[order.index(column.id) :])
    place = max((number for number, found in enumerate(table.columns, 1) if found.id in before), default=0)
    return (*table.columns[:place], column, *table.columns[place:])


def _users(lost: DroppedColumn) -> Iterator[str]:
    """What stood on the column and was dropped with it, in words."""
    column = lost.column.id
    then = lost.table
    for index in then.indexes:
        if any(part.column == column for part in index.columns) and index.state is State.PUBLIC:
            yield f'index "{index.name}"'
    for listed in (then.checks, then.foreign_keys):
        for constraint in listed:
            if column in constraint.columns:
                yield f'constraint "{constraint.name}"'
    if lost.column.not_null_not_valid:
        yield f'constraint "{not_null_names(then)[column]}"'
    for lock in then.locks:
        if column in lock.columns:
            yield f'the cover of lock "{lock.name}"'
