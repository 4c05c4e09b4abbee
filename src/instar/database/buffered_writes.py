"""Writes of one row by its primary key in an open READ COMMITTED transaction: the short way into its buffer.

It serves on the newest schema alone, with leases too: that of the commit is judged then, as always.

It does what the general way does for such a statement: a snapshot of its own, the change buffered, the table enlisted,
the row locked. Whatever else there may be to do (what is buffered is to be brought to another schema, the row was
changed before, somebody has it locked) is left to that: then nothing has been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from instar.catalog.descriptors import Table
from instar.database.commit import SessionTransaction, require_undoomed
from instar.database.point_writes import ENTANGLED, Buffered, PointWriter
from instar.database.row_locks import Moved
from instar.sql.execution import Row
from instar.sql.integrity import changed_columns
from instar.store.lock_table import Locked
from instar.transactions.commit import Conflict
from instar.transactions.transaction import Snapshot

if TYPE_CHECKING:
    from instar.database.session import Session


def buffered(
    open_: SessionTransaction, point: PointWriter, parameters: Sequence[object], session: Session
) -> int | list[Row]:
    """As `PointWriter.run`, within a transaction that is plain (`Transaction.is_plain`) and may write; or ENTANGLED,
    where only the general way knows what to do."""
    database = session.database
    if not session.in_block:
        return ENTANGLED
    before, mark = open_.snapshot, open_.buffer.mark()
    try:
        with database.store.read() as reader:
            known = None if before is None else before.catalog
            if known is None or known.version != reader.catalog_version:
                if open_.enlisted or session.locks.selected_of:
                    return ENTANGLED
                known = database.catalog.at(reader)
            made = point.to_buffer(reader, parameters, session, open_.buffer)
            timestamp = reader.timestamp
        if not isinstance(made, Buffered):
            return made
        open_.snapshot = Snapshot(timestamp, known)
        put(open_, point, made)
        if point.table.id not in open_.enlisted:
            _enlist(open_, session, known.table(point.table.id))
        if point.mode is None or point.demands:
            change = open_.buffer.tables[point.table.id].changes[made.key]
            session.locks.have_change(open_, point.writer, made.key, change)
        else:
            session.locks.have_row(open_, point.writer, made.key, point.mode, arrives=made.old is None)
    except BaseException as failed:
        open_.buffer.rollback(mark)
        if isinstance(failed, Conflict | Moved | Locked):
            open_.snapshot = before
            return ENTANGLED
        session.fail(open_)
        raise
    return 1 if made.returned is None else made.returned


def _enlist(open_: SessionTransaction, session: Session, table: Table) -> None:
    """As `Session.enlist`, of the newest version of one table, which does not close: no short way is of one that does.
    Crossed if that is not the newest any more."""
    open_.enlisted[table.id] = table
    session.database.store.enlist(table.id, open_.started_us, into=session.enlisted)
    require_undoomed(session.database, open_, (table.id,))


def put(open_: SessionTransaction, point: PointWriter, made: Buffered) -> None:
    """Buffer what the short way of a write has made of a row."""
    table, buffer = point.table, open_.buffer
    if made.old is None:
        assert made.image is not None  # nobody deletes what is not there
        buffer.insert(table.id, table.version, made.key, made.image)
    elif made.image is None:
        buffer.delete(table.id, table.version, made.key, made.base, made.old)
    else:
        changed = changed_columns(table, made.old, made.image)
        buffer.update(table.id, table.version, made.key, made.base, made.old, made.image, changed)
