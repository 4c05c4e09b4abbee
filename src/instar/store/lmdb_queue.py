"""The commits of one process on one lmdb store: a row alone, derived in the section, is committed in a straight line.

An update by key in autocommit is the commit that there are most of, and of what it takes half would be the making of a
section that can do everything. So where the store is written through its map, and a thread has nobody to commit for but
itself, this is done on LMDB's transaction: what `apply`, `section` and `mapped_section` do, in their order, for one row
that is put where one stands. Whatever else turns out to be due goes their way, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Protocol

import msgspec

from instar import errors
from instar.clock import Clock
from instar.store.cursors import batch_of_range, read_head, scan_range
from instar.store.engine import PREFIX_LOG, ROW_HEADER, Damaged, Derive, Refused, RowCommit
from instar.store.group import CommitQueue
from instar.store.header import SLACK_NS, TIMESTAMP_SHIFT
from instar.store.lmdb_environment import APPENDING
from instar.store.lmdb_section import LmdbSection, Newest
from instar.store.log import LOG_KEY, encode_change
from instar.store.mapped_section import DATA_FACTOR, EXCESS_BYTES, PATH_PAGES
from instar.store.presence import Presence
from instar.store.space import SLACK_BYTES, SLACK_SHARE

_pack_row_header, _pack_log_key, _LOG_KEY_BYTES = ROW_HEADER.pack, LOG_KEY.pack, LOG_KEY.size


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

    def enter(self) -> Any: ...

    def section(self, transaction: Any) -> LmdbSection: ...


def _already(row: RowCommit) -> Derive:
    return lambda _view: row


class LmdbQueue(CommitQueue):
    """The queue of one environment."""

    def __init__(
        self, environment: Entered, translate: Callable[[Exception], Exception], clock: Clock, presence: Presence
    ) -> None:
        super().__init__(lambda: environment.section(environment.enter()), translate, clock, presence)
        self._environment = environment

    def derived(self, derive: Derive) -> int:
        """As `commit`, of what is derived."""
        if not self._lead.acquire(False):
            return self.commit(derive)
        presence, environment = self._presence, self._environment
        transaction = None
        try:
            presence.wait_begins()
            transaction = environment.enter()
            if self._queue:
                return self._led(environment.section(transaction), derive)
            return self._straight(transaction, derive)
        except BaseException as caught:
            if transaction is not None:
                transaction.abort()  # which does nothing once it has ended
                environment.inside.discard(get_ident())
            if isinstance(caught, Refused | errors.Error) or not isinstance(caught, Exception):
                raise
            raise self._translate(caught) from caught
        finally:
            presence.wait_ends()
            self._leave()

    def _straight(self, transaction: Any, derive: Derive) -> int:
        """Judge and write what is derived, and end the transaction; as of `_alone`."""
        environment, clock = self._environment, self._clock
        number = transaction.id()
        known, head = environment.newest
        if number != known + 1:
            head = read_head(transaction)
        timestamp, log_end, header = head
        row = derive(_Newest(transaction.get, header.catalog_version, timestamp, header.watermark, transaction))
        if row is None:
            transaction.abort()
            environment.inside.discard(get_ident())
            return 0
        monotonic, wall, lease = clock.monotonic_ns(), clock.wall_ns(), row.lease
        space = environment.space
        if space is None:
            return self._alone(environment.section(transaction), _already(row))
        begun = space.used()
        room = space.reserved - begun - SLACK_BYTES - begun // SLACK_SHARE
        needed = (PATH_PAGES + 1) * space.page_bytes  # beside the bytes of row and record
        body = row.body
        if (
            body is None
            or row.entries
            or row.locks
            or environment.locks.may_be_held()
            or (lease is not None and monotonic >= lease.until)
            or clock.boot != header.boot
            or wall > header.wall + monotonic - header.monotonic + SLACK_NS
            or not needed + DATA_FACTOR * (2 * len(body) + len(row.stored)) <= room <= EXCESS_BYTES + begun
        ):
            return self._alone(environment.section(transaction), _already(row))
        timestamp = max(timestamp + 1, wall // 1_000_000 << TIMESTAMP_SHIFT)
        value = _pack_row_header(timestamp, 0, row.layout << 8) + body
        after = value if row.whole else None
        record = encode_change(log_end, row.table, row.version, row, row.stored, after)
        if not space.written.dirty:
            space.written.begin()
        transaction.put(row.key, value)
        if not transaction.put(_pack_log_key(PREFIX_LOG, timestamp, 0), record, *APPENDING):
            raise Damaged("there are keys above the log's end")
        transaction.commit()
        environment.newest = number, (timestamp, log_end + _LOG_KEY_BYTES + len(record), header)
        environment.inside.discard(get_ident())
        return timestamp
