"""The catalog's past, as far as the log has it: earlier versions of objects, and what was dropped (MD-MVCC §5.2).

Descriptors are versioned like rows, so that what was dropped needs no record of its own: its tombstone stands, and the
descriptor that it replaced is in the log, until the watermark passes the drop. Then its rowsets may go, too (rule 22):
what is found here can come back, if a commit sees to it that the watermark still has not passed it (`History`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from instar.catalog import system
from instar.catalog.descriptors import Column, Object, Table, is_seen
from instar.catalog.directory import descriptor_changes
from instar.store.engine import NO_RECORD, ROW_HEADER, ROW_TOMBSTONE, View
from instar.store.log import before_image, log_key
from instar.store.schema_version import history
from instar.store.versions import read_row


class Dropped(NamedTuple):
    """An object as it was when it was dropped, and the commit timestamp of the drop."""

    found: Object
    timestamp: int


class DroppedColumn(NamedTuple):
    """A column that a table has lost: the table as it was right before, and the commit timestamp of the drop."""

    table: Table
    column: Column
    timestamp: int

    def is_kept(self, table: Table) -> bool:
        """Whether the rows of the table, as it is now, may have its values still: they are not others since."""
        return (table.rowset, table.primary_key) == (self.table.rowset, self.table.primary_key)


def versions(view: View, object_id: int) -> Iterator[tuple[int, Object | None]]:
    """(commit timestamp, descriptor) of an object's versions, the newest first; None where it was not there."""
    stored = view.get(system.descriptor_key(object_id))
    while stored is not None:
        timestamp, sequence, _tag = ROW_HEADER.unpack_from(stored)
        yield timestamp, system.decode_stored(stored)
        stored = _before(view, timestamp, sequence)


def _before(view: View, timestamp: int, sequence: int) -> bytes | None:
    """What the version of this timestamp replaced; None if it was the first, or the log is cut past it."""
    if sequence == NO_RECORD or timestamp <= view.watermark:
        return None
    record = view.get(log_key(timestamp, sequence))
    return None if record is None else before_image(record)


def dropped_objects(view: View) -> Iterator[Dropped]:
    """All that was dropped and that the watermark has not passed, in the order of ids: by the history of catalog
    versions, as far as that tells of all since then, else among all objects."""
    commits = _commits_since_watermark(view)
    if commits is None:
        yield from _all_dropped(view)
        return
    found: dict[int, Dropped] = {}
    for timestamp in commits:
        for record in descriptor_changes(view, timestamp):
            number = system.decode_id(record.key)
            found.pop(number, None)  # it has come back
            before = None if record.before is None or not record.deleted else system.decode_stored(record.before)
            if before is not None and is_seen(before):
                found[number] = Dropped(before, timestamp)
    yield from (found[number] for number in sorted(found))


def _commits_since_watermark(view: View) -> list[int] | None:
    """The timestamps of the catalog's commits that the log still has; None if the history does not tell of all."""
    known = list(history(view))
    numbers = [version for version, _ in known]
    if numbers != list(range(view.catalog_version - len(known) + 1, view.catalog_version + 1)):
        return None
    kept = [published.timestamp for _, published in known if published.timestamp > view.watermark]
    is_whole = len(kept) < len(known) or view.catalog_version == len(known)
    return kept if is_whole else None


def _all_dropped(view: View) -> Iterator[Dropped]:
    for _key, stored in system.scan_descriptors(view):
        timestamp, sequence, tag = ROW_HEADER.unpack_from(stored)
        if tag & ROW_TOMBSTONE:
            before = _before(view, timestamp, sequence)
            found = None if before is None else system.decode_stored(before)
            if found is not None and is_seen(found):
                yield Dropped(found, timestamp)


def dropped_table(view: View, table_id: int) -> Table | None:
    """The table of that id as it was when it was dropped; None if it is there, or gone for good."""
    found = list(zip(versions(view, table_id), range(2), strict=False))
    if len(found) < 2 or found[0][0][1] is not None:
        return None
    before = found[1][0][1]
    return before if isinstance(before, Table) else None


def object_at(view: View, object_id: int, snapshot: int) -> Object | None:
    """An object as a snapshot sees it that is not below the watermark."""
    stored = read_row(view, system.descriptor_key(object_id), snapshot)
    return None if stored is None else system.decode_stored(stored)


def dropped_columns(view: View, table: Table) -> Iterator[DroppedColumn]:
    """The columns that users saw in a table and that it has lost, the one dropped last first. One that another has
    taken the place of, with another type, is not lost."""
    known = {column.id for column in table.columns}
    since = 0
    for timestamp, found in versions(view, table.id):
        if not isinstance(found, Table):
            continue
        known |= {column.replaces for column in found.columns if column.replaces is not None and column.visible}
        for column in found.columns:
            if column.visible and column.id not in known:
                known.add(column.id)
                if not since:  # by a transaction that has not committed
                    continue
                yield DroppedColumn(found, column, since)
        since = timestamp
