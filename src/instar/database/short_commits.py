"""The commit of a plain transaction that has changed a few rows: derived and judged in the atomic section, as a write
in autocommit is, without the general way's objects.

Most transactions of applications are of this kind; drivers begin one for a single statement. It serves under the schema
that the rows were changed under alone, and where no row takes away what another one demands. Locks that a transaction
of several statements has taken by then are not looked for again. Whatever does not hold is left to the general way,
which says what is violated, or with whom it conflicts.
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
    return _judgeable(rows) if len(rows) > 1 else rows


def _judgeable(rows: list[_Row]) -> list[_Row]:
    """The rows, which demand only what others do not bring themselves; empty if one takes away what another demands.
    What they demand is judged on what was there before all of them."""
    demanding = [row.demanded for row in rows if row.demanded is not None]
    if not demanding:
        return rows
    come = {row.stored_at for row in rows if row.base is None}
    gone = {row.stored_at for row in rows if row.body is None}
    entries = [entry for row in rows for entry in row.entries]
    for entry in entries:
        (come if entry.live else gone).add(entry.key[: entry.primary_offset])
    arriving = [*come, *[entry.key for entry in entries if entry.live]]
    free = [prefix for demanded in demanding for prefix in demanded.free]
    if (
        len(free) > len(set(free))
        or any(not gone.isdisjoint(demanded.all_parents) for demanded in demanding)
        or any(key.startswith(prefix) for demanded in demanding for prefix in demanded.childless for key in arriving)
    ):
        return []
    return [row if row.demanded is None else row._replace(demanded=row.demanded.without(come)) for row in rows]


def _row(writer: TableWriter, demands: Demands, key: bytes, change: Change, held: Mapping[bytes, Mode]) -> _Row | None:
    """What becomes of one row; None where that is for the general way. `held`: the transaction's locks."""
    old, new = change.old, change.image
    if not change.is_alone:
        return None
    stored_at = writer.prefix + key
    entries, taken = _entries(writer, key, change)
    demanded = demands.of(old, new) if demands else None
    demanded = demanded if demanded is not None and any(demanded) else None
    is_exclusive = new is None or old is None or bool(taken)  # nobody may refer to the row meanwhile
    is_own = old is None and writer.has_row_id  # nobody else comes to a row id
    is_held = (
        (is_own or held.get(stored_at, -1) >= (Mode.UPDATE if is_exclusive else Mode.NO_KEY_UPDATE))
        and all(prefix is None or held.get(prefix, -1) >= Mode.UPDATE for prefix in taken)
        and all(held.get(parent, -1) >= Mode.KEY_SHARE for parent in (demanded.all_parents if demanded else ()))
    )
    body = None if new is None else writer.encode(new)
    return _Row(writer, stored_at, change.base, body, entries, bool(taken), demanded, is_held)


def _entries(writer: TableWriter, key: bytes, change: Change) -> tuple[Sequence[EntryWrite], list[bytes | None]]:
    """What becomes of the row's index entries, and the unique keys that come and go with them; None for one with a
    NULL, which equals nothing."""
    entries: list[EntryWrite] = []
    taken: list[bytes | None] = []
    for codec in writer.codecs:
        written = entry_writes((codec,), key, change.old, change.image)
        entries += written
        if codec.index.unique and written:
            taken += [codec.unique_prefix(image) for image in (change.old, change.image) if image is not None]
    return entries, taken


class _Row(NamedTuple):
    """What becomes of a row: of which version it was made, its new body, its index entries, whether a unique key of it
    changes, what it demands of other rows, whether the transaction holds all locks that it meets."""

    writer: TableWriter
    stored_at: bytes
    base: int | None
    body: bytes | None
    entries: Sequence[EntryWrite]
    keyed: bool
    demanded: Demanded | None
    is_held: bool

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
            table.logged_whole, False, self.keyed, parents, self.is_held,
        )  # fmt: skip
