"""The commit of a plain transaction that has changed a few rows: derived and judged in the atomic section, as a write
in autocommit is, without the general way's objects.

Most transactions of applications are of this kind; drivers begin one for a single statement. It serves under the schema
that the rows were changed under alone, where all locks that the commit meets are the transaction's own, and, if there
are several, where each row is judged by itself. Whatever does not hold is left to the general way, which says what is
violated, or with whom it conflicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from instar import errors
from instar.database.commit import SessionTransaction
from instar.database.point_demands import Demanded, Demands, Unmet, require
from instar.database.point_derivations import entry_writes
from instar.store.engine import ROW_HEADER, EntryWrite, Lease, Refused, RowCommit, View
from instar.store.lock_modes import Mode
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.writes import TableWriter
from instar.transactions.buffer import Change

if TYPE_CHECKING:
    from instar.database.session import Session

# Of more rows the general way takes less for each, and less time of it in the section.
_MOST_ROWS = 32


def commit_few(session: Session, open_: SessionTransaction) -> bool:
    """Commit the rows that the transaction has changed, if it is such a transaction; whether that has been done. Errors
    as of the store."""
    database, snapshot = session.database, open_.snapshot
    if open_.buffer.rows > _MOST_ROWS or snapshot is None or not open_.is_unconditional:
        return False
    # Rows that were selected FOR UPDATE are locked still, unless a change has replaced them since.
    if any(snapshot.catalog.by_id(table) is not meant for table, meant in session.locks.selected_of.items()):
        return False
    try:
        rows = _rows(session, open_)
    except (errors.Error, Unmet):
        return False
    if not rows:
        return False
    version = snapshot.catalog.version
    lease = database.lease_at(version)

    def derive(view: View) -> RowCommit | None:
        if view.catalog_version != version:
            return None
        made = [row.made(view, lease) for row in rows]
        first = made[0]
        if first is None or None in made:
            return None
        if len(made) > 1:
            first.more = made[1:]  # type: ignore[assignment]  # None is none of them
        return first

    try:
        if not database.store.commit_derived(derive):
            return False
    except Refused:
        return False
    database.after_commit()
    return True


def _rows(session: Session, open_: SessionTransaction) -> list[_Row]:
    """What becomes of the rows; empty if that is for the general way."""
    assert open_.snapshot is not None
    catalog, held, rows = open_.snapshot.catalog, session.locks.held, list[_Row]()
    for buffer in open_.buffer:
        table = open_.enlisted[buffer.table]
        if catalog.by_id(table.id) is not table:
            return []
        writer = session.database.writers.get(table, catalog)
        if not writer.is_plain:
            return []
        demands = Demands([codec for codec in writer.codecs if codec.index.unique], writer.parents, writer.children)
        for key, change in buffer.changes.items():
            row = None if change.version != table.version else _row(writer, demands, key, change, held)
            if row is None:
                return []
            rows.append(row)
    depend = len(rows) > 1 and any(row.keyed or row.demanded is not None for row in rows)
    return [] if depend else rows


def _row(writer: TableWriter, demands: Demands, key: bytes, change: Change, held: Mapping[bytes, Mode]) -> _Row | None:
    """What becomes of one row; None where that is for the general way, or meets locks that are not among those
    `held`."""
    old, new = change.old, change.image
    if not change.is_alone:
        return None
    stored_at = writer.prefix + key
    entries, taken = _entries(writer, key, change)
    demanded = demands.of(old, new) if demands else None
    demanded = demanded if demanded is not None and any(demanded) else None
    whole = new is None or old is None or bool(taken)
    is_own = old is None and writer.has_row_id  # nobody else comes to a row id
    if not is_own and held.get(stored_at, -1) < (Mode.UPDATE if whole else Mode.NO_KEY_UPDATE):
        return None
    if any(held.get(prefix, -1) < Mode.UPDATE for prefix in taken):
        return None
    if demanded is not None and any(held.get(parent, -1) < Mode.KEY_SHARE for parent in demanded.all_parents):
        return None
    body = None if new is None else writer.encode(new)
    return _Row(writer, stored_at, change.base, body, entries, bool(taken), demanded)


def _entries(writer: TableWriter, key: bytes, change: Change) -> tuple[Sequence[EntryWrite], list[bytes]]:
    """What becomes of the row's index entries, and the unique keys that come and go with them."""
    entries: list[EntryWrite] = []
    taken: list[bytes] = []
    for codec in writer.codecs:
        written = entry_writes((codec,), key, change.old, change.image)
        entries += written
        if codec.index.unique:
            taken += [entry.key[: entry.primary_offset] for entry in written]
    return entries, taken


class _Row(NamedTuple):
    """What becomes of a row: of which version it was made, its new body, its index entries, whether a unique key of it
    changes, what it demands of other rows."""

    writer: TableWriter
    stored_at: bytes
    base: int | None
    body: bytes | None
    entries: Sequence[EntryWrite]
    keyed: bool
    demanded: Demanded | None

    def made(self, view: View, lease: Lease | None) -> RowCommit | None:
        """Its commit on the state that `view` sees; None if it is another version there."""
        table, stored = self.writer.table, view.get(self.stored_at)
        if stored is None or stored[LAYOUT_OFFSET] & 1:
            if self.base is not None:
                return None
        elif ROW_HEADER.unpack_from(stored)[0] != self.base:
            return None
        parents: Sequence[bytes] = ()
        if self.demanded is not None:
            require(view, self.demanded, self.stored_at)
            parents = self.demanded.all_parents
        return RowCommit(
            table.id, table.version, self.stored_at, stored, self.body, table.layout.id, self.entries, lease, (), 0,
            table.logged_whole, False, self.keyed, parents, True,
        )  # fmt: skip
