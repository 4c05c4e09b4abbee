"""The commits of one process on one lmdb store: a row alone, derived in the section, is committed in a straight line.

An update or insert by key in autocommit is the commit that there are most of, and of what it takes half would be the
making of a section that can do everything. So where the store is written through its map, and a thread has nobody to
commit for but itself, this is done on LMDB's transaction: what `apply`, `section` and `mapped_section` do, in their
order, for one row that is put where one stands, or nothing ever did, and its index entries. Whatever else turns out to
be due goes their way, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any, Protocol

import msgspec

from instar import errors
from instar.clock import Clock
from instar.store.cursors import batch_of_range, read_head, scan_range
from instar.store.engine import (
    ENTRY_VALUE,
    NO_RECORD,
    PREFIX_LOG,
    ROW_FLAGS,
    ROW_HEADER,
    ROW_TOMBSTONE,
    Damaged,
    Derive,
    Refused,
    RowCommit,
)
from instar.store.group import LEADER, CommitQueue
from instar.store.header import SLACK_NS, TIMESTAMP_SHIFT
from instar.store.lmdb_environment import APPENDING
from instar.store.lmdb_section import LmdbSection, Newest
from instar.store.log import LOG_KEY, encode_delete, encode_insert, encode_update
from instar.store.mapped_section import DATA_FACTOR, EXCESS_BYTES, PATH_PAGES
from instar.store.presence import Presence
from instar.store.space import SLACK_BYTES, SLACK_SHARE, Space

_pack_row_header, _pack_log_key, _LOG_KEY_BYTES = ROW_HEADER.pack, LOG_KEY.pack, LOG_KEY.size
_pack_entry, _ENTRY_BYTES = ENTRY_VALUE.pack, ENTRY_VALUE.size


class _Newest(msgspec.Struct, gc=False):
    """The newest state, as a transaction of LMDB that may write sees it; a `View`."""

    get: Callable[[bytes], bytes | None]
    catalog_version: int
    timestamp: int
    watermark: int
    transaction: Any

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As in `View`."""
        return scan_range(self.transaction.cursor(), start, stop, reverse)

    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        """As in `View`."""
        return batch_of_range(self.transaction.cursor(), start, stop, limit, reverse)


class Entered(Newest, Protocol):
    """Of the environment, beside what its sections need: how the atomic section is entered, by LMDB's transaction."""

    def begin_section(self) -> LmdbSection: ...

    def leave(self) -> None: ...

    def enter(self) -> Any: ...

    def section(self, transaction: Any) -> LmdbSection: ...


def _already(row: RowCommit) -> Derive:
    return lambda _view: row


class LmdbQueue(CommitQueue):
    """The queue of one environment."""

    def __init__(
        self, environment: Entered, translate: Callable[[Exception], Exception], clock: Clock, presence: Presence
    ) -> None:
        super().__init__(environment.begin_section, translate, clock, presence, environment.leave)
        self._environment = environment
        self._locks_held = presence.locks_held
        self._say_judged = presence.say_judged

    def derived(self, derive: Derive) -> int:
        """As `commit`, of what is derived."""
        number = next(self._numbers)
        self.within[number] = get_ident()
        try:
            if self.leader.setdefault(LEADER, number) == number:
                return self._derived_leading(number, derive)
            return self._queued(number, derive)
        finally:
            del self.within[number]

    def _derived_leading(self, number: int, derive: Derive) -> int:
        presence, environment = self._presence, self._environment
        transaction = None
        try:
            presence.wait_begins()
            transaction = environment.enter()
            if self._queue:
                return self._led(number, environment.section(transaction), derive)
            return self._straight(transaction, derive)
        except BaseException as caught:
            if transaction is not None:
                transaction.abort()  # which does nothing once it has ended
            environment.leave()
            if isinstance(caught, Refused | errors.Error) or not isinstance(caught, Exception):
                raise
            raise self._translate(caught) from caught
        finally:
            presence.wait_ends()
            self._leave(number)

    def _straight(self, transaction: Any, derive: Derive) -> int:
        """Judge and write what is derived, and end the transaction; as of `_alone`."""
        environment, clock = self._environment, self._clock
        number = transaction.id()
        # Between this and the question for locks is what the row is derived from: LMDB's functions let go of the
        # interpreter's lock, which orders the two for other processors.
        self._say_judged(number)
        known, head = environment.newest
        if number != known + 1:
            head = read_head(transaction)
        timestamp, log_end, header = head
        version, _, watermark, _, _, boot, then, wall_then = header
        try:
            row = derive(_Newest(transaction.get, version, timestamp, watermark, transaction))
        except BaseException:
            self._say_judged(number - 1)
            raise
        if row is None:
            self._say_judged(number - 1)
            transaction.abort()
            return 0
        monotonic, wall, lease = clock.monotonic_ns(), clock.wall_ns(), row.lease
        space, stored, more = environment.space, row.stored, row.more
        if (
            space is None
            or row.locks
            or row.pair
            or row.renewed
            or (not row.held and self._locks_held())
            or (more and not all(map(_is_straight, more)))
            or (lease is not None and monotonic >= lease.until)
            or boot != clock.boot
            or wall - wall_then > monotonic - then + SLACK_NS
            or (stored is not None and stored[ROW_FLAGS] & ROW_TOMBSTONE)
            or not _has_room(space, _bytes_of(row), len(row.entries), more)
        ):
            return self._alone(environment.section(transaction), _already(row))
        moment = wall // 1_000_000 << TIMESTAMP_SHIFT
        timestamp = moment if moment > timestamp else timestamp + 1  # a call of `max` takes longer
        if not space.written.dirty:
            space.written.begin()
        log_end = _put(transaction, row, log_end, timestamp, 0)
        if more:
            for sequence, other in enumerate(more, 1):
                log_end = _put(transaction, other, log_end, timestamp, sequence)
        transaction.commit()
        environment.newest = number, (timestamp, log_end, header)
        return timestamp


def _is_straight(row: RowCommit) -> bool:
    """Whether a row is put where one stands, or nothing ever did, and has one optimistic lock."""
    stored = row.stored
    return not (row.locks or row.pair or row.renewed or (stored is not None and stored[ROW_FLAGS] & ROW_TOMBSTONE))


def _put(transaction: Any, row: RowCommit, log_end: int, timestamp: int, sequence: int) -> int:
    """Write a row, which has one optimistic lock, its entries and the log's record at `log_end`; where the log ends
    then."""
    body, stored, tag, key = row.body, row.stored, row.layout << 8, row.key
    if body is None:
        assert stored is not None, "what is not there is not deleted"
        value = _pack_row_header(timestamp, sequence, tag | ROW_TOMBSTONE)
        record = encode_delete(log_end, row.table, row.version, key, stored)
    elif stored is None:
        value = _pack_row_header(timestamp, NO_RECORD, tag) + body
        record = encode_insert(log_end, row.table, row.version, key, value if row.whole else b"")
    else:
        value = _pack_row_header(timestamp, sequence, tag) + body
        record = encode_update(log_end, row.table, row.version, key, stored, value if row.whole else b"")
    transaction.put(key, value)
    for entry in row.entries:
        live = entry.live
        if live or transaction.get(entry.key) is not None:  # a tombstone over an entry only (rule 4)
            transaction.put(entry.key, _pack_entry(timestamp, live, entry.primary_offset))
    if not transaction.put(_pack_log_key(PREFIX_LOG, timestamp, sequence), record, *APPENDING):
        raise Damaged("there are keys above the log's end")
    return log_end + _LOG_KEY_BYTES + len(record)


def _bytes_of(row: RowCommit) -> int:
    """Of the row as it becomes and its record."""
    return 2 * len(row.body or b"") + len(row.stored or b"")


def _has_room(space: Space, data: int, entries: int, more: Sequence[RowCommit]) -> bool:
    """Whether a row, its record, these two of so many bytes, and its entries, and those of `more` rows, may be written
    without anything being granted or given back."""
    if more:
        data += sum(map(_bytes_of, more))
        entries += sum(1 + len(row.entries) for row in more)
    begun, page_bytes = space.used(), space.page_bytes
    room = space.reserved - begun - SLACK_BYTES - begun // SLACK_SHARE
    needed = (PATH_PAGES * (entries + 1) + 1) * page_bytes + DATA_FACTOR * (data + _ENTRY_BYTES * entries)
    return needed <= room <= EXCESS_BYTES + begun
