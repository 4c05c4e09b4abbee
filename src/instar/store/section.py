"""The atomic section as the engines share it: a view that may write, with the whole header in hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from instar.clock import Clock
from instar.store.header import HOT, HOT_KEY, believed_wall, wall_timestamp


class WriteSection(ABC):
    """One write transaction of an engine, entered in turn: no other writer of the store is inside one.

    `get`, `put` and `delete` are attributes, so that an engine can hand out its own functions without a layer between.
    """

    __slots__ = (
        "boot",
        "catalog_version",
        "delete",
        "get",
        "log_bytes",
        "monotonic",
        "put",
        "timestamp",
        "wall",
        "watermark",
    )

    catalog_version: int
    timestamp: int
    watermark: int
    log_bytes: int
    boot: bytes
    monotonic: int
    wall: int
    get: Callable[[bytes], bytes | None]
    put: Callable[[bytes, bytes], object]
    delete: Callable[[bytes], bool]

    def load_header(self, value: bytes) -> None:
        """Take over the hot header, which is read first in every transaction."""
        (
            self.catalog_version,
            self.timestamp,
            self.watermark,
            self.log_bytes,
            self.boot,
            self.monotonic,
            self.wall,
        ) = HOT.unpack(value)

    def store_header(self) -> None:
        """Write the header; last, and once for all members of a group."""
        self.put(
            HOT_KEY,
            HOT.pack(
                self.catalog_version,
                self.timestamp,
                self.watermark,
                self.log_bytes,
                self.boot,
                self.monotonic,
                self.wall,
            ),
        )

    def next_timestamp(self, clock: Clock) -> int:
        """A timestamp greater than every one before it (rule 8 judges the wall clock)."""
        wall, self.monotonic, self.wall = believed_wall(clock, self.boot, self.monotonic, self.wall)
        self.boot = clock.boot_id()
        following = self.timestamp + 1
        physical = wall_timestamp(wall)
        timestamp = physical if physical > following else following
        self.timestamp = timestamp
        return timestamp

    @abstractmethod
    def append(self, key: bytes, value: bytes) -> None:
        """Put `key`, which is greater than every key of the store (a log record)."""

    @abstractmethod
    def put_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Put all pairs."""

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
    def commit(self) -> None:
        """Make all that was written stand, durably as the store is synchronous; ends the section."""

    @abstractmethod
    def abort(self) -> None:
        """Leave nothing of what was written; ends the section. Does nothing once it has ended."""
