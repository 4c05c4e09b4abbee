"""SELECT ... FOR UPDATE and the like of one row by its primary key in an open READ COMMITTED transaction: the short way
to the row and its lock.

It does what the general way does for such a query: a snapshot of its own, the row as it is then, and a lock that is had
only if the row has not moved since. Whatever else there may be to do (the row was changed by the transaction itself, or
has moved, somebody has it locked) is left to that: then nothing has been done, but that a row which
has moved is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from instar import errors
from instar.database.commit import SessionTransaction
from instar.database.row_locks import Moved
from instar.encoding.keys import ROWSET_PREFIX_BYTES
from instar.sql.execution import Row
from instar.sql.point import FALLBACK, PointLookup
from instar.store.lock_table import Locked
from instar.transactions.transaction import Snapshot

if TYPE_CHECKING:
    from instar.database.session import Session


def selected(
    open_: SessionTransaction, lookup: PointLookup, parameters: Sequence[object], session: Session
) -> list[Row] | None:
    """The row that a look-up finds, locked, or none, within a transaction that is plain (`Transaction.is_plain`) and
    may write; None where only the general way knows what to do."""
    database, locks, before = session.database, session.locks, open_.snapshot
    assert lookup.mode is not None
    with database.store.read() as reader:
        timestamp = reader.timestamp
        known = None if before is None else before.catalog
        if known is None or known.version != reader.catalog_version:
            if locks.selected_of:  # whether these rows are still what was locked, the general way sees
                return None
            known = database.catalog.at(reader)
    try:
        rows: Any = lookup.fast(database.store, parameters, open_)
    except errors.DataError:  # a date that Python has no object for: who fetches it may want its text
        return None
    if rows is FALLBACK or lookup.version != known.version:
        return None
    if rows:
        writer = database.writers.get(known.table(lookup.table.id), known)
        if writer.locks is not None:  # a row of several parts has a lock for each
            return None
        # The row was read after that moment: it is what it was then, if it still is.
        open_.snapshot = Snapshot(timestamp, known)
        try:
            key = lookup.key_of(parameters)[ROWSET_PREFIX_BYTES:]
            locks.have_row(open_, writer, key, lookup.mode, arrives=False)
        except (Moved, Locked):
            open_.snapshot = before
            return None
        except BaseException:
            session.fail(open_)
            raise
        locks.note_selected(writer.table)
    open_.seen_version = known.version
    found: list[Row] = rows
    return found
