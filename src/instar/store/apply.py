"""One commit inside the atomic section: every judgement first, then every write. Both engines run this code.

Because nothing is written before all judgements stand, a commit that is refused leaves nothing, and several commits
can share one write transaction of the engine: each is judged on the state that its predecessors left (rule 2).
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from instar import errors
from instar.clock import Clock
from instar.store import schema_version
from instar.store.engine import (
    ENTRY_VALUE,
    NO_RECORD,
    PREFIX_LOG,
    ROW_FLAGS,
    ROW_HEADER,
    ROW_TOMBSTONE,
    ClaimLost,
    Commit,
    CopyWrite,
    Damaged,
    Derive,
    EntryWrite,
    Fails,
    KeyExists,
    LogUntouched,
    Precondition,
    PreconditionFailed,
    RangeEmpty,
    RangeUnchanged,
    RowCommit,
    RowWrite,
    StaleRow,
    StaleSchema,
    TableWrites,
    ValueUnchanged,
    View,
    prefix_end,
)
from instar.store.header import shown_time
from instar.store.log import LOG_KEY, decode, encode_change, encode_inserts, encode_replaced
from instar.store.records import decode_table_header, table_key
from instar.store.row_locks import demands, derived_demands
from instar.store.section import WriteSection

_ENTRY_SIZE = ENTRY_VALUE.size  # a row value is longer: its header alone is
_ENTRY_LIVE = 8  # where an entry's live byte lies

# From so many rows on, a commit is judged and written in bulk: finding out costs more than it saves below.
_BULK = 16

_LOG_KEY_BYTES = LOG_KEY.size
_pack_log_key = LOG_KEY.pack
_pack_row_header = ROW_HEADER.pack
_pack_lock = struct.Struct("<Q").pack


def is_live(value: bytes) -> bool:
    """Whether a stored row or entry is there, rather than a tombstone."""
    if len(value) == _ENTRY_SIZE:
        return value[_ENTRY_LIVE] == 1
    return not value[ROW_FLAGS] & ROW_TOMBSTONE


def apply_commit(section: WriteSection, request: Commit | Derive, clock: Clock) -> int:
    """Judge `request` on the section's state and write it; returns its timestamp, 0 if there is nothing to write.

    Raises Refused or 72000 before anything is written. The header is moved on but not stored.
    """
    section.judges()
    if not isinstance(request, Commit):
        return _apply_derived(section, request(section), clock)
    _judge_fence(section, request)
    if request.complete is not None:
        request.complete(section)
    for table in request.tables:
        _judge_rows(section, table.rows)
        if table.copies:
            _judge_copies(section, table.copies)
    if section.locks.may_be_held():
        section.locks.require_free(demands(request), request.owner, request.held)
    if request.preconditions:
        overlay = _Overlay(request)
        for precondition in request.preconditions:
            _judge(section, precondition, overlay)
    timestamp = section.next_timestamp(clock, request.lease)
    _write(section, request, timestamp)
    if request.bump_catalog:
        schema_version.publish(section, timestamp, request.change, abrupt=request.abrupt)
    return timestamp


def _apply_derived(section: WriteSection, derived: RowCommit | None, clock: Clock) -> int:
    """Write what was derived here and now, which has seen the row as it is stored, under the schema of the moment."""
    if derived is None:
        return 0
    if section.locks.may_be_held():
        for row in (derived, *derived.more):
            if not row.held:
                section.locks.require_free(derived_demands(row))
    timestamp = section.next_timestamp(clock, derived.lease)
    for sequence, row in enumerate((derived, *derived.more)):
        if row.stored is None:
            _write_insert(section, row, timestamp, sequence)
        else:
            _write_change(section, row, row.stored, timestamp, sequence)
        if row.entries:
            _write_entries(section, row.entries, timestamp)
    return timestamp


def _judge_fence(section: WriteSection, request: Commit) -> None:
    """Catalog version, floors and lists; watermark; claim (rule 6). The lease is judged with the timestamp."""
    if request.catalog_version != section.catalog_version:
        if request.snapshot is not None:
            # What was read is validated under the newest schema only (rule 13: e = c).
            raise StaleSchema(0, None)
        for writes in request.tables:
            value = section.get(table_key(writes.table))
            if value is None:
                raise StaleSchema(writes.table, None)
            header = decode_table_header(value)
            if writes.version < header.floor or writes.checks != header.checks or header.dropped:
                raise StaleSchema(writes.table, header)
    snapshot = request.snapshot
    if snapshot is not None and snapshot < section.watermark:
        raise snapshot_too_old(snapshot, section.watermark)
    claim = request.claim
    if claim is not None and section.get(claim[0]) != claim[1]:
        raise ClaimLost(claim[0])


def snapshot_too_old(snapshot: int, watermark: int) -> errors.Error:
    """72000: versions that `snapshot` needs may have been cut."""
    return errors.error(
        errors.SNAPSHOT_TOO_OLD,
        f"snapshot too old: it is of {shown_time(snapshot)}, and the store keeps what there was since "
        f"{shown_time(watermark)}",
        hint="Begin a new transaction. A store made with a longer retention, or a larger log_max_bytes, keeps more.",
    )


def _judge_rows(section: WriteSection, rows: list[RowWrite]) -> None:
    """Every row's stored bytes are those that its write was derived from (rule 10)."""
    if len(rows) < _BULK:
        get = section.get
        for row in rows:
            if get(row.key) != row.stored:
                raise StaleRow(row.key)
        if len(rows) > 1:
            _refuse_twice(rows)
        return
    _refuse_twice(rows)
    absent = [row.key for row in rows if row.stored is None]
    found = section.any_of(absent) if absent else None
    if found is not None:
        raise StaleRow(found)
    if len(absent) < len(rows):
        get = section.get
        for row in rows:
            if row.stored is not None and get(row.key) != row.stored:
                raise StaleRow(row.key)


def _judge_copies(section: WriteSection, copies: Iterable[CopyWrite]) -> None:
    """As for rows: a backfill may have put a copy since."""
    for copy in copies:
        if section.get(copy.key) != copy.stored:
            raise StaleRow(copy.key)


def _refuse_twice(rows: list[RowWrite]) -> None:
    """A row has at most one change per commit (rule 2)."""
    if len({row.key for row in rows}) != len(rows):
        raise errors.error(errors.INTERNAL_ERROR, "a commit changes one row twice")


class _Overlay:
    """What the commit's own writes make of keys: the state that preconditions look at (rule 5)."""

    def __init__(self, request: Commit) -> None:
        live = {row.key: row.body is not None for writes in request.tables for row in writes.rows}
        for entry in request.entries:
            live[entry.key] = entry.live
        self.live = live
        self.written = sorted(key for key, stands in live.items() if stands)

    def first_written(self, start: bytes, stop: bytes, allow: bytes | None) -> bytes | None:
        """The first key in [start, stop) other than `allow` that the commit makes live."""
        for index in range(bisect_left(self.written, start), len(self.written)):
            key = self.written[index]
            if key >= stop:
                return None
            if key != allow:
                return key
        return None

    def first_live(self, section: WriteSection, start: bytes, stop: bytes, allow: bytes | None) -> bytes | None:
        """A key in [start, stop) other than `allow` at which a row or entry is live once the writes are applied."""
        live = self.live
        for key, value in section.scan(start, stop):
            if key != allow and key not in live and is_live(value):
                return key
        return self.first_written(start, stop, allow)


def _judge(section: WriteSection, precondition: Precondition, overlay: _Overlay) -> None:
    match precondition:
        case ValueUnchanged(key=key, value=value):
            if section.get(key) != value:
                raise PreconditionFailed(precondition, key)
        case RangeEmpty(start=start, stop=stop, allow=allow):
            found = overlay.first_live(section, start, stop, allow)
            if found is not None:
                raise PreconditionFailed(precondition, found)
        case KeyExists(key=key, prefix=True):
            if overlay.first_live(section, key, prefix_end(key), None) is None:
                raise PreconditionFailed(precondition)
        case KeyExists(key=key):
            if not _stands(section, key, overlay):
                raise PreconditionFailed(precondition)
        case RangeUnchanged():
            judge_unchanged(section, precondition)
        case LogUntouched():
            _judge_log(section, precondition)
        case Fails(precondition=inner):
            with contextlib.suppress(PreconditionFailed):
                _judge(section, inner, overlay)
                raise StaleRow(inner.key if isinstance(inner, KeyExists) else inner.start)


def judge_unchanged(section: View, precondition: RangeUnchanged) -> None:
    """PreconditionFailed if something in the range is newer, and has `moved`."""
    start, stop, since, _on_failure, moved = precondition
    found: Iterable[tuple[bytes, bytes]]
    if stop == start + b"\x00":
        value = section.get(start)
        found = () if value is None else ((start, value),)
    else:
        found = section.scan(start, stop)
    for key, value in found:
        if int.from_bytes(value[:8], "little") > since and (moved is None or moved(value)):
            raise PreconditionFailed(precondition, key)


def judge_locked(view: View, precondition: RangeUnchanged) -> None:
    """As `judge_unchanged`, outside of a commit, whose snapshot is judged by itself: what is below the watermark may
    have changed, since no tombstone is left of what was deleted (rule 6)."""
    if precondition.since < view.watermark:
        raise PreconditionFailed(precondition, precondition.start)
    judge_unchanged(view, precondition)


def _judge_log(section: WriteSection, precondition: LogUntouched) -> None:
    since, limit, touches, _on_failure = precondition
    left = limit
    start, stop = _pack_log_key(PREFIX_LOG, since + 1, 0), _pack_log_key(PREFIX_LOG, section.timestamp + 1, 0)
    for key, value in section.scan(start, stop):
        for record in decode(key, value):
            left -= 1
            if left < 0:
                raise StaleRow(record.key)
            found = touches(section, record)
            if found is not None:
                raise PreconditionFailed(precondition, found)


def _stands(section: WriteSection, key: bytes, overlay: _Overlay) -> bool:
    own = overlay.live.get(key)
    if own is not None:
        return own
    value = section.get(key)
    return value is not None and is_live(value)


def _write(section: WriteSection, request: Commit, timestamp: int) -> None:
    """All writes of a commit that stands: rows with their log records, entries, raw records."""
    sequence = 0
    for writes in request.tables:
        sequence = _write_rows(section, writes, timestamp, sequence)
        if writes.copies:
            _write_copies(section, writes.copies, timestamp)
    for change in request.replaced:
        _append_log(section, timestamp, sequence, encode_replaced(section.log_end, change))
        sequence += 1
    if not sequence:
        section.moved = True  # no record bears the timestamp
    if request.entries:
        _write_entries(section, request.entries, timestamp)
    for key, value in request.raw:
        if value is None:
            section.delete(key)
        else:
            section.put(key, value)


def _write_rows(section: WriteSection, writes: TableWrites, timestamp: int, sequence: int) -> int:
    """The rows of a table, then their log records, the first of which is the `sequence`-th; returns that of the next.

    Were each row put together with its record, a large commit's pages of the table and of the log would lie in the file
    by turns: whoever reads the rows would go through memory of twice the size.
    """
    changes = [row for row in writes.rows if row.stored is not None]
    inserts = [row for row in writes.rows if row.stored is None and row.body is not None]
    changed = [_changed(row, timestamp, number) for number, row in enumerate(changes, sequence)]
    _put_all(section, changes, changed)
    inserted = _put_inserts(section, inserts, timestamp) if inserts else ()
    for row, value in zip(changes, changed, strict=True):
        assert row.stored is not None, "an insert is none of the changes"
        after = value if writes.whole and row.body is not None else None
        record = encode_change(section.log_end, writes.table, writes.version, row, row.stored, after)
        _append_log(section, timestamp, sequence, record)
        sequence += 1
    if inserts:
        afters = inserted if writes.whole else ()
        for record in encode_inserts(section.log_end, writes.table, writes.version, inserts, afters):
            _append_log(section, timestamp, sequence, record)
            sequence += 1
    return sequence


def _write_copies(section: WriteSection, copies: Sequence[CopyWrite], timestamp: int) -> None:
    """All that goes before all that comes: rows may have changed places under the next key."""
    for copy in copies:
        for key in copy.gone:
            section.delete(key)
        if copy.goes and copy.body is None:
            section.delete(copy.key)
    for copy in copies:
        if copy.body is None:
            continue
        header = _pack_row_header(timestamp, NO_RECORD, copy.layout << 8)
        section.put(copy.key, header + _lock_bytes(copy.locks, timestamp) + copy.body)
        for key, offset in copy.entries:
            section.put(key, ENTRY_VALUE.pack(timestamp, 1, offset))


def _append_log(section: WriteSection, timestamp: int, sequence: int, record: bytes) -> None:
    if not section.append(_pack_log_key(PREFIX_LOG, timestamp, sequence), record):
        raise Damaged("there are keys above the log's end")
    section.log_end += _LOG_KEY_BYTES + len(record)


def _changed(row: RowWrite | RowCommit, timestamp: int, sequence: int) -> bytes:
    """The new version of a row, or its tombstone, whose before-image is in the `sequence`-th record."""
    body, tag = row.body, row.layout << 8
    if body is None:
        return _pack_row_header(timestamp, sequence, tag | ROW_TOMBSTONE)
    if row.locks:
        return _pack_row_header(timestamp, sequence, tag) + _lock_bytes(row.locks, timestamp) + body
    return _pack_row_header(timestamp, sequence, tag) + body


def _put_all(section: WriteSection, rows: Sequence[RowWrite], values: list[bytes]) -> None:
    if len(rows) < _BULK:
        for row, value in zip(rows, values, strict=True):
            section.put(row.key, value)
    else:
        section.put_many([(row.key, value) for row, value in zip(rows, values, strict=True)])


def _write_change(section: WriteSection, row: RowCommit, stored: bytes, timestamp: int, sequence: int) -> None:
    """An update or delete of one row, and the log's record."""
    value = _changed(row, timestamp, sequence)
    section.put(row.key, value)
    after = value if row.whole and row.body is not None else None
    _append_log(
        section, timestamp, sequence, encode_change(section.log_end, row.table, row.version, row, stored, after)
    )


def _lock_bytes(locks: tuple[int, ...], timestamp: int) -> bytes:
    """Lock timestamps as they are stored; 0 is that of the commit."""
    return b"".join([_pack_lock(lock or timestamp) for lock in locks])


def _write_insert(section: WriteSection, row: RowCommit, timestamp: int, sequence: int) -> None:
    """As `_put_inserts`, and the log's record, of one row."""
    assert row.body is not None, "what is not there is not deleted"
    header = _pack_row_header(timestamp, NO_RECORD, row.layout << 8)
    value = header + _lock_bytes(row.locks, timestamp) + row.body
    section.put(row.key, value)
    afters = (value,) if row.whole else ()
    (record,) = encode_inserts(section.log_end, row.table, row.version, (row,), afters)
    _append_log(section, timestamp, sequence, record)


def _put_inserts(section: WriteSection, rows: list[RowWrite], timestamp: int) -> list[bytes]:
    """Rows where nothing was, not even a tombstone: their header says that no version came before. Returns them as
    they are stored."""
    headers: dict[int, bytes] = {}
    values = []
    for row in rows:
        header = headers.get(row.layout)
        if header is None:
            header = headers[row.layout] = _pack_row_header(timestamp, NO_RECORD, row.layout << 8)
        if row.locks:
            values.append(header + _lock_bytes(row.locks, timestamp) + (row.body or b""))
        else:
            values.append(header + (row.body or b""))
    _put_all(section, rows, values)
    return values


def _write_entries(section: WriteSection, entries: Sequence[EntryWrite], timestamp: int) -> None:
    """Index entries in the given order; a tombstone over an existing entry only (rule 4)."""
    get, put, pack = section.get, section.put, ENTRY_VALUE.pack
    if len(entries) >= _BULK and all(entry.live for entry in entries):
        section.put_many([(entry.key, pack(timestamp, 1, entry.primary_offset)) for entry in entries])
        return
    for entry in entries:
        if entry.live:
            put(entry.key, pack(timestamp, 1, entry.primary_offset))
        elif get(entry.key) is not None:
            put(entry.key, pack(timestamp, 0, entry.primary_offset))
