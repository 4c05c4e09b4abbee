"""The atomic section as the engines share it: a view that may write, with the whole header in hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from instar.clock import Clock
from instar.store.engine import Lease, LeaseExpired
from instar.store.header import HEADER_KEY, SLACK_NS, TIMESTAMP_SHIFT, Head, Header, believed_wall, encode_header

if TYPE_CHECKING:
    from instar.store.lock_table import LockTable


class WriteSection(ABC):
    """One write transaction of an engine, entered in turn: no other writer of the store is inside one.

    `get`, `put` and `append` are attributes, so that an engine can hand out its own functions without a layer between.
    `append` puts a key that is greater than every key of the store (a log record), and gives false if it is not.
    """

    __slots__ = (
        *("append", "catalog_version", "get", "header", "locks", "log_end", "moved", "put", "timestamp", "watermark"),
    )

    catalog_version: int
    timestamp: int
    watermark: int
    log_end: int
    header: Header
    locks: LockTable
    moved: bool
    get: Callable[[bytes], bytes | None]
    put: Callable[[bytes, bytes], object]
    append: Callable[[bytes, bytes], object]

    def load(self, head: Head) -> None:
        """Take over the newest state, which is read first in every transaction."""
        self.timestamp, self.log_end, header = head
        self.header = header
        self.catalog_version = header.catalog_version
        self.watermark = header.watermark
        self.moved = False

    def next_timestamp(self, clock: Clock, lease: Lease | None) -> int:
        """A timestamp greater than every one before it (rule 8 judges the wall clock), for a commit under `lease`.

        LeaseExpired if that has run out: judged here because the clock is read here, and nothing has been written.
        """
        monotonic = clock.monotonic_ns()
        if lease is not None and monotonic >= lease.until:
            raise LeaseExpired("the lease of the schema version has run out")
        header, wall = self.header, clock.wall_ns()
        # What it says in nearly all cases, without the call.
        if clock.boot != header.boot or wall > header.wall + monotonic - header.monotonic + SLACK_NS:
            wall, header = believed_wall(clock, header, monotonic)
            if header is not self.header:
                self._move(header)
        timestamp = wall // 1_000_000 << TIMESTAMP_SHIFT  # as `wall_timestamp`, which costs a call
        if timestamp <= self.timestamp:
            timestamp = self.timestamp + 1
        self.timestamp = timestamp
        return timestamp

    def judges(self) -> None:  # noqa: B027 - an engine in which locks are taken in the section alone has nothing to do
        """A foreground commit is about to be judged, by locks, too."""

    def bump_catalog(self) -> None:
        """Go on to the next catalog version."""
        self.catalog_version += 1
        self._move(self.header._replace(catalog_version=self.catalog_version))

    def cut_log(self, watermark: int, start: int) -> None:
        """Raise the watermark, and what was cut from the log to `start` bytes; either may be there already."""
        self.watermark = max(watermark, self.watermark)
        self._move(self.header._replace(watermark=self.watermark, log_start=max(start, self.header.log_start)))

    def _move(self, header: Header) -> None:
        self.header = header
        self.moved = True

    def store_header(self) -> None:
        """Write the header, if it has `moved`, which the log does not tell: last, once for all members of a group."""
        self.moved = False
        self.header = self.header._replace(timestamp=self.timestamp, log_end=self.log_end)
        self.put(HEADER_KEY, encode_header(self.header))

    @abstractmethod
    def delete(self, key: bytes, /) -> bool:
        """Whether there was something at `key`."""

    @abstractmethod
    def put_many(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Put all pairs, of which there are some, all with different keys, in whatever order."""

    @abstractmethod
    def any_of(self, keys: list[bytes]) -> bytes | None:
        """One of `keys` at which something is stored, if there is one."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As in `View`."""

    @abstractmethod
    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        """As in `View`."""

    @abstractmethod
    def commit(self, *, durably: bool = True) -> None:
        """Make all that was written stand; ends the section. `durably`: wait until it stands as durably as the store is
        synchronous; else it does so once any later commit has waited."""

    @abstractmethod
    def abort(self) -> None:
        """Leave nothing of what was written; ends the section. Does nothing once it has ended."""
