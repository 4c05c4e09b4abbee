"""What CHECK DATABASE finds without reading rows: descriptors against each other, their records, and the keyspace."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Set
from typing import NamedTuple

from instar import errors
from instar.catalog import system
from instar.catalog.descriptors import DEFAULT_LOCK, ForeignKey, Object, Sequence, State, Table, View
from instar.pipeline.row_checks import Problem, Snapshot
from instar.schemachange import rules
from instar.schemachange.elements import Element, moving, name_of, phase_of
from instar.schemachange.job_records import readable_jobs
from instar.schemachange.online.followed import followed
from instar.store.engine import (
    PREFIX_COPY,
    PREFIX_LATEST,
    PREFIX_LOG,
    PREFIX_ROW,
    PREFIX_ROWSET,
    PREFIX_STORE,
    PREFIX_TABLE,
    ROW_HEADER,
    ROW_TOMBSTONE,
    LogRecord,
    Reader,
    prefix_end,
    rowset_prefix,
)
from instar.store.records import (
    Latest,
    RowsetState,
    decode_rowset_record,
    decode_table_header,
    latest_key,
    rowset_key,
    table_key,
)
from instar.store.schema_version import damaged_copies
from instar.store.versions import read_row

_ROWSET = struct.Struct(">BI")
_SYSTEM_ROWSETS = frozenset({system.DESCRIPTORS, system.NAMES})
CATALOG, ROWSETS, KEYS, WRITERS = "catalog", "3 rowsets", "7 keys", "writers"


def check_catalog(snapshot: Snapshot, reader: Reader) -> Iterator[Problem]:
    """Descriptors, headers, rowset records and the keyspace, all as `reader` sees them: the one that the snapshot was
    taken with, for headers and records have no history."""
    moved = _moved(reader)
    for found in snapshot.catalog.objects():
        yield from _names(reader, found)
        if isinstance(found, Table):
            yield from _abandoned(found, moved)
            yield from _header(reader, found)
            yield from _parts(found)
            yield from _layouts(snapshot, found)
            yield from _foreign_keys(snapshot, found)
            yield from _rowset_records(reader, found)
        elif isinstance(found, View):
            yield from _depends(snapshot, found)
            yield from _followed(snapshot, reader, found)
        else:
            yield from _owner(snapshot, found)
    yield from _left_behind(reader)
    yield from _followed_by_nobody(reader)
    yield from _strange_names(snapshot, reader)
    yield from _rowsets(snapshot, reader)
    yield from _strange_keys(reader)
    for key in damaged_copies(reader):
        yield Problem("", "schema version", CATALOG, key.hex(), "a copy of the canonical schema version is damaged")


def _moved(reader: Reader) -> set[Element]:
    """What the jobs that have not ended move."""
    under_way = [job for job in readable_jobs(reader)[0] if not job.is_finished]
    return {move.element for job in under_way for stage in job.stages for move in stage.moves}


def _left_behind(reader: Reader) -> Iterator[Problem]:
    """Jobs whose records are damaged; claims and checkpoints of jobs that have ended: whoever had such a claim could
    still write under it (rule 9)."""
    jobs, damaged = readable_jobs(reader)
    for number in damaged:
        yield Problem("", f"job {number}", CATALOG, "", f"the record of job {number} is damaged")
    under_way = {job.id for job in jobs if not job.is_finished}.union(damaged)
    for kind, what in ((Latest.CLAIM, "a claim"), (Latest.CHECKPOINT, "a checkpoint")):
        prefix = latest_key(kind)
        left = {int.from_bytes(key[len(prefix) :][:4], "big") for key, _ in reader.scan(prefix, prefix_end(prefix))}
        for job in sorted(left - under_way):
            yield Problem("", f"job {job}", CATALOG, "", f"job {job} has ended, and {what} of it is left")


def _followed(snapshot: Snapshot, reader: Reader, view: View) -> Iterator[Problem]:
    """Of a materialized view: how far it has come, without which nobody brings it any further, and that the log of its
    sources is kept for it."""
    if view.materialized is None:
        return
    known = followed(reader, view)
    if known is None:
        yield Problem(view.name, "position", CATALOG, "", "it is not on record how far the view has followed the log")
    elif known.position > reader.timestamp:
        yield Problem(view.name, "position", CATALOG, "", "the view has followed the log further than there is one")
    storage = snapshot.catalog.by_id(view.materialized.storage)
    if not isinstance(storage, Table) or storage.unseen is None:
        yield Problem(view.name, "rows", CATALOG, "", f"there is no table {view.materialized.storage} with its rows")
        return
    for number in storage.unseen.made.sources:
        source = snapshot.catalog.by_id(number)
        if not isinstance(source, Table) or storage.id not in source.followed_by:
            yield Problem(view.name, "source", CATALOG, "", f"table {number} does not know that the view follows it")


def _followed_by_nobody(reader: Reader) -> Iterator[Problem]:
    """Positions of materialized views of which nothing else is left."""
    prefix = latest_key(Latest.FOLLOWED)
    for key, _ in reader.scan(prefix, prefix_end(prefix)):
        storage = int.from_bytes(key[len(prefix) :], "big")
        if reader.get(table_key(storage)) is None:
            yield Problem("", "position", CATALOG, key.hex(), f"a position in the log is left of table {storage}")


def _abandoned(table: Table, moved: Set[Element]) -> Iterator[Problem]:
    """Elements between two states that no job takes any further: nothing can be done with their table any more."""
    for element in moving(table):
        if element not in moved:
            what, state = name_of(table, element), phase_of(table, element).value
            yield Problem(table.name, what, CATALOG, "", f"{what} is {state}, and no job is moving it")
    if table.unseen is not None and table.unseen.nameless:
        return  # a materialized view's
    if table.unseen is not None and not any(found.table in table.unseen.made.sources for found in moved):
        yield Problem(
            table.name, "table", CATALOG, "", "the table was to be made by a join or split, and no job is at it"
        )


def _names(reader: Reader, found: Object) -> Iterator[Problem]:
    for name in sorted(system.relation_names(found)):
        bearer = _bearer(reader.get(system.name_key(name)))
        if bearer != found.id:
            yield Problem(found.name, "name", CATALOG, name, f"the name belongs to object {bearer}, not to {found.id}")


def _strange_names(snapshot: Snapshot, reader: Reader) -> Iterator[Problem]:
    prefix = rowset_prefix(system.NAMES)
    for key, stored in reader.scan(prefix, prefix_end(prefix)):
        bearer = _bearer(stored)
        owner = None if bearer is None else snapshot.catalog.by_id(bearer)
        if bearer is not None and (
            owner is None or key not in {system.name_key(name) for name in system.relation_names(owner)}
        ):
            yield Problem(
                "", "name", CATALOG, key[len(prefix) :].hex(), f"a name is taken for object {bearer}, which has not it"
            )


def _header(reader: Reader, table: Table) -> Iterator[Problem]:
    stored = reader.get(table_key(table.id))
    if stored is None:
        yield Problem(table.name, "header", CATALOG, "", "the table has no header")
        return
    header = decode_table_header(stored)
    if header.dropped:
        yield Problem(table.name, "header", CATALOG, "", "the table's header says that it was dropped")
    if header.current != table.version:
        message = f"the header is at version {header.current}, the descriptor at {table.version}"
        yield Problem(table.name, "header", CATALOG, "", message)
    if header.floor > header.current:
        yield Problem(table.name, "header", CATALOG, "", f"the floor {header.floor} is above version {header.current}")
    if header.logged_whole != table.logged_whole:
        yield Problem(table.name, "header", CATALOG, "", "header and descriptor differ in whether it is logged whole")
    if header.checks != table.checks_version:
        message = f"the header has checks of version {header.checks}, the descriptor of {table.checks_version}"
        yield Problem(table.name, "header", CATALOG, "", message)


def _parts(table: Table) -> Iterator[Problem]:
    """Ids inside one descriptor: unique, below next_id, and pointing somewhere."""
    columns = [column.id for column in table.columns]
    listed = [*columns]
    for parts in (table.indexes, table.checks, table.foreign_keys, table.locks, table.coverage_changes):
        listed += [part.id for part in parts]
    if table.next_key is not None:
        listed.append(table.next_key.id)
    if len(set(listed)) < len(listed) or max(listed, default=0) >= table.next_id:
        message = "ids of columns, indexes and constraints are not distinct and used up"
        yield Problem(table.name, "table", CATALOG, "", message)
    used = {
        "the primary key": table.primary_key,
        "the next primary key": () if table.next_key is None else table.next_key.columns,
        **{f'index "{index.name}"': tuple(part.column for part in index.columns) for index in table.indexes},
        **{f'check "{check.name}"': check.columns for check in table.checks},
        **{f'foreign key "{found.name}"': found.columns for found in table.foreign_keys},
    }
    for what, wanted in used.items():
        if not set(columns).issuperset(wanted):
            yield Problem(table.name, what, CATALOG, "", f"{what} has columns that the table has not")
    stored = {column for column, _ in table.layout.columns}
    if stored != set(columns):
        yield Problem(
            table.name,
            f"layout {table.layout.id}",
            CATALOG,
            "",
            f"layout {table.layout.id} has other columns than the table",
        )
    layout = f"layout {table.layout.id}"
    locks = (DEFAULT_LOCK, *(lock.id for lock in table.locks)) if table.locks else ()
    if table.layout.locks != locks and table.unseen is None:  # one that is made of others may have their timestamps
        yield Problem(table.name, layout, CATALOG, "", f"{layout} has other locks than the table")
    covered = [column for lock in table.locks for column in lock.columns]
    if len(set(covered)) < len(covered) or not set(columns).issuperset(covered):
        message = "its locks cover a column twice, or one that the table has not"
        yield Problem(table.name, "locks", CATALOG, "", message)


def _layouts(snapshot: Snapshot, table: Table) -> Iterator[Problem]:
    if not table.oldest_layout <= table.layout.id:
        yield Problem(table.name, "layouts", CATALOG, "", "the oldest layout is newer than the newest")
    for number in range(table.oldest_layout, table.layout.id + 1):
        try:
            found = snapshot.layouts.get(table.id, number)
        except errors.Error as failed:
            yield Problem(table.name, f"layout {number}", CATALOG, "", failed.message)
            continue
        if number == table.layout.id and found != table.layout:
            yield Problem(table.name, f"layout {number}", CATALOG, "", f"layout {number} is not what its record says")


def _foreign_keys(snapshot: Snapshot, table: Table) -> Iterator[Problem]:
    for found in table.foreign_keys:
        what = f'foreign key "{found.name}"'
        parent = snapshot.catalog.by_id(found.parent)
        if not isinstance(parent, Table):
            yield Problem(table.name, what, CATALOG, "", f"{what} refers to a table that is not there")
            continue
        if table.id not in parent.referenced_by:
            yield Problem(parent.name, "table", CATALOG, "", f'does not know that table "{table.name}" refers to it')
        yield from _probed(table, found, table, found.child_index)
        yield from _probed(table, found, parent, found.parent_index)
    for child_id in table.referenced_by:
        child = snapshot.catalog.by_id(child_id)
        if not isinstance(child, Table) or all(found.parent != table.id for found in child.foreign_keys):
            yield Problem(table.name, "table", CATALOG, "", f"says that table {child_id} refers to it, which does not")


def _probed(table: Table, found: ForeignKey, holder: Table, index_id: int | None) -> Iterator[Problem]:
    if index_id is None or found.state is not State.PUBLIC:
        return
    index = next((index for index in holder.indexes if index.id == index_id), None)
    if index is None or index.state is not State.PUBLIC:
        what = f'foreign key "{found.name}"'
        yield Problem(table.name, what, CATALOG, "", f"{what} uses an index that is not public")


def _depends(snapshot: Snapshot, view: View) -> Iterator[Problem]:
    for object_id, columns in view.depends_on:
        found = snapshot.catalog.by_id(object_id)
        if found is None:
            yield Problem(view.name, "view", CATALOG, "", f"the view reads object {object_id}, which is not there")
        elif isinstance(found, Table) and not {column.id for column in found.columns}.issuperset(columns):
            yield Problem(view.name, "view", CATALOG, "", f'the view reads columns that table "{found.name}" has not')


def _owner(snapshot: Snapshot, sequence: Sequence) -> Iterator[Problem]:
    if sequence.owned_by is None:
        return
    table_id, column_id = sequence.owned_by
    table = snapshot.catalog.by_id(table_id)
    if not isinstance(table, Table) or all(column.id != column_id for column in table.columns):
        yield Problem(sequence.name, "sequence", CATALOG, "", "the sequence belongs to a column that is not there")


def _owned(table: Table) -> dict[int, str]:
    coming = () if table.next_key is None else table.next_key.rowsets
    return {
        table.rowset: "rows",
        **{index.rowset: f'index "{index.name}"' for index in table.indexes},
        **dict.fromkeys(coming, "the next primary key"),
    }


def _rowset_records(reader: Reader, table: Table) -> Iterator[Problem]:
    for rowset, what in _owned(table).items():
        stored = reader.get(rowset_key(rowset))
        if stored is None:
            yield Problem(table.name, what, ROWSETS, "", f"rowset {rowset} of {what} has no record")
            continue
        record = decode_rowset_record(stored)
        if record.state is not RowsetState.LIVE or record.owner != table.id:
            message = f"the record of rowset {rowset} of {what} says {record.state.value}, owner {record.owner}"
            yield Problem(table.name, what, ROWSETS, "", message)


def _rowsets(snapshot: Snapshot, reader: Reader) -> Iterator[Problem]:
    """Live records that no descriptor owns, and keys under rowsets without a record. Dead ones await deallocation."""
    owned = {rowset for table in snapshot.catalog.every_table() for rowset in _owned(table)} | _SYSTEM_ROWSETS
    recorded = set()
    for key, stored in reader.scan(PREFIX_ROWSET, prefix_end(PREFIX_ROWSET)):
        rowset = int.from_bytes(key[1:], "big")
        recorded.add(rowset)
        record = decode_rowset_record(stored)
        if record.state is RowsetState.LIVE and rowset not in owned:
            yield Problem("", f"rowset {rowset}", ROWSETS, "", f"rowset {rowset} is live, but nothing owns it")
    position = PREFIX_ROW
    while True:
        # One seek per rowset: to the first key at or above, then past all that share its prefix.
        keys, _ = reader.batch(position, prefix_end(PREFIX_ROW), 1)
        if not keys:
            return
        rowset = _ROWSET.unpack_from(keys[0])[1]
        if rowset not in recorded:
            yield Problem(
                "", f"rowset {rowset}", ROWSETS, "", f"there are keys under rowset {rowset}, which has no record"
            )
        position = prefix_end(rowset_prefix(rowset))


def _strange_keys(reader: Reader) -> Iterator[Problem]:
    known = [PREFIX_STORE, PREFIX_TABLE, PREFIX_ROWSET, PREFIX_LATEST, PREFIX_ROW, PREFIX_COPY, PREFIX_LOG]
    starts = [b"\x00", *(prefix_end(prefix) for prefix in known)]
    stops = [*known, b"\xff" * 8]
    for start, stop in zip(starts, stops, strict=True):
        keys, _ = reader.batch(start, stop, 1)
        if keys:
            yield Problem("", "store", KEYS, keys[0].hex(), "a key of no known kind")


class _Published(NamedTuple):
    """One version of a table: when it was published, its number, and the least floor from then on."""

    timestamp: int
    version: int
    floor: int


def check_writers(snapshot: Snapshot) -> Iterator[Problem]:
    """Log records against the floors that the rules demanded of the versions published before them.

    Known as far back as the log reaches: a descriptor's history is its row's.
    """
    with snapshot.store.read_at(snapshot.timestamp) as reader:
        histories = {table.id: _history(reader, table, snapshot.timestamp) for table in snapshot.catalog.every_table()}
        after = reader.watermark
    for record in _log(snapshot, after):
        history = histories.get(record.table)
        known = None
        if history:
            position = bisect.bisect_right(history, record.timestamp, key=lambda version: version.timestamp)
            known = history[position - 1] if position else None
        if known is not None and not known.floor <= record.version <= known.version:
            name = snapshot.catalog.table(record.table).name
            message = (
                f"a commit at {record.timestamp} was derived under version {record.version} of the table, "
                f"when the floor was at least {known.floor} and the version {known.version}"
            )
            yield Problem(name, "log", WRITERS, record.key[5:].hex(), message)


def _log(snapshot: Snapshot, after: int) -> Iterator[LogRecord]:
    """The log from `after` up to the snapshot; what the collector cuts meanwhile is left out."""
    while True:
        try:
            yield from snapshot.store.log(after, snapshot.timestamp)
        except errors.Error as cut:
            with snapshot.store.read() as reader:
                watermark = reader.watermark
            if cut.sqlstate != errors.SNAPSHOT_TOO_OLD or not after < watermark <= snapshot.timestamp:
                raise
            after = watermark
        else:
            return


def _history(reader: Reader, table: Table, snapshot: int) -> list[_Published]:
    """The versions of a table in the order of their publication, as far back as the log reaches."""
    key = system.descriptor_key(table.id)
    found: list[tuple[int, Table]] = []
    at = snapshot
    while at >= reader.watermark:
        stored = read_row(reader, key, at)
        descriptor = None if stored is None else system.decode_stored(stored)
        if stored is None or not isinstance(descriptor, Table):
            break
        timestamp = ROW_HEADER.unpack_from(stored)[0]
        found.append((timestamp, descriptor))
        at = timestamp - 1
    history: list[_Published] = []
    before: Table | None = None
    floor = 0
    for timestamp, descriptor in reversed(found):
        if before is not None:
            demanded = rules.floor(before, descriptor)
            floor = floor if demanded == "keep" else max(floor, demanded)
        history.append(_Published(timestamp, descriptor.version, floor))
        before = descriptor
    return history


def _bearer(stored: bytes | None) -> int | None:
    """The object that a row of the names says bears the name."""
    if stored is None or ROW_HEADER.unpack_from(stored)[2] & ROW_TOMBSTONE:
        return None
    return int.from_bytes(stored[ROW_HEADER.size :], "little", signed=True)
