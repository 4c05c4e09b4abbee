"""What must be so of every commit in a store's log, by a scan of its bytes, whatever sessions were told.

The schema version of each row's writer was at or above its table's floor when it committed, and the layout in which the
row was put is the one that this version writes, or a later one (compaction) that keeps what the version put in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instar.catalog import system
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.store.engine import PREFIX_ROW, ROW_HEADER, ROW_TOMBSTONE, LogRecord, Reader, Store, prefix_end
from instar.tables.resolver import is_widening

Floors = Mapping[int, Sequence[tuple[int, int]]]  # by table: (timestamp, floor) as they were committed


def broken(store: Store, floors: Floors, since: int = 0) -> list[str]:
    """What is not so of the commits after `since`. `floors` were seen from the store's first commit on."""
    layouts = Layouts(store)
    with store.read() as reader:
        upto = reader.timestamp
        versions = _versions(reader, list(store.log(0, upto)))
        left = _left(reader, list(store.log(since, upto)))
    problems = []
    for record, stored in left:
        floor = max((floor for at, floor in floors.get(record.table, ()) if at <= record.timestamp), default=0)
        if record.version < floor:
            problems.append(f"{record} was derived below the floor {floor}")
        writer = versions.get((record.table, record.version))
        if writer is None:
            problems.append(f"{record} was derived under a version that never was")
        elif stored is not None:
            problems += _lost(record, writer, ROW_HEADER.unpack_from(stored)[2] >> 8, layouts)
    return problems


def _lost(record: LogRecord, writer: Table, layout: int, layouts: Layouts) -> list[str]:
    """What is not so of a row that `writer` made and that stands in a layout."""
    if layout == writer.layout.id:
        return []
    if layout < writer.layout.id:
        return [f"{record} was written in layout {layout} by a version that writes in {writer.layout.id}"]
    stored = dict(layouts.get(record.table, layout).columns)
    return [
        f"{record} was put into layout {layout}, where column {column} of type {type_} is {stored[column]}"
        for column, type_ in writer.layout.columns
        if column in stored and not is_widening(type_, stored[column])
    ]


def _versions(reader: Reader, records: Sequence[LogRecord]) -> dict[tuple[int, int], Table]:
    """Every version of every table, from the rows of the descriptors and what they were before."""
    prefix = system.descriptor_key(0)[:5]
    stored = [value for _, value in reader.scan(prefix, prefix_end(prefix))]
    stored += [record.before for record in records if record.table == system.DESCRIPTORS and record.before is not None]
    found = [system.decode_stored(value) for value in stored]
    return {(table.id, table.version): table for table in found if isinstance(table, Table)}


def _left(reader: Reader, records: Sequence[LogRecord]) -> list[tuple[LogRecord, bytes | None]]:
    """Each change of a user's table and the row that it left: what the next change of that key found, or what stands
    there now. None: it left none, or one of a rowset that is gone."""
    following: dict[bytes, bytes | None] = {}
    left = []
    for record in reversed(records):
        if record.replaced is not None or record.table in (system.DESCRIPTORS, system.NAMES):
            continue
        found = following[record.key] if record.key in following else _standing(reader, record.key)
        if not record.deleted:
            left.append((record, found))
        following[record.key] = record.before
    return left


def _standing(reader: Reader, key: bytes) -> bytes | None:
    assert key.startswith(PREFIX_ROW)
    value = reader.get(key)
    return None if value is None or ROW_HEADER.unpack_from(value)[2] & ROW_TOMBSTONE else value
