"""What both engines do alike: commits through the queue, gated background work, the log, collection, presence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from instar.clock import Clock
from instar.store.apply import judge_locked, snapshot_too_old
from instar.store.collector import cut_steps
from instar.store.engine import MOVED, ClaimLost, Commit, Derive, LogRecord, RangeUnchanged, Reader, View, prefix_end
from instar.store.gate import SYNCED, UNSYNCED, Step, run_gated, with_calls
from instar.store.group import CommitQueue
from instar.store.header import SNAPSHOT_MAX_AGE_SECONDS, Head, Identity, believed_wall, wall_timestamp
from instar.store.lock_modes import Mode
from instar.store.lock_table import LockTable
from instar.store.log import LOG_KEY, TABLE, decode, log_key, tables_told
from instar.store.pace import Pace
from instar.store.presence import Presence, Process, Writer
from instar.store.section import WriteSection
from instar.store.versions import rows_of_entries

_LOG_BATCH = 1024


class BaseStore(ABC):
    """A store over an engine's `read`, `_begin` (enter the atomic section) and `_translate` (its exceptions)."""

    snapshot_max_age: float = SNAPSHOT_MAX_AGE_SECONDS
    max_key_bytes: int

    def __init__(self, identity: Identity, clock: Clock) -> None:
        self.uuid = identity.uuid_bytes
        self.synchronous = identity.synchronous
        self.retention_seconds = identity.retention_seconds
        self.log_max_bytes = identity.log_max_bytes
        self.schema_lease = identity.schema_lease
        self._clock = clock

    @abstractmethod
    def read(self) -> Reader:
        """As in `Store`."""

    def newest(self, key: bytes, catalog_version: int) -> Any:
        """As in `Store`."""
        with self.read() as reader:
            return reader.get(key) if reader.catalog_version == catalog_version else MOVED

    def newest_under(self, start: bytes, rows: bytes, most: int, catalog_version: int) -> Any:
        """As in `Store`."""
        with self.read() as reader:
            if reader.catalog_version != catalog_version:
                return MOVED
            return rows_of_entries(reader.scan(start, prefix_end(start)), reader.get, rows, most)

    @abstractmethod
    def close(self) -> None:
        """As in `Store`."""

    @property
    @abstractmethod
    def _queue(self) -> CommitQueue: ...

    @property
    @abstractmethod
    def _presence(self) -> Presence: ...

    @abstractmethod
    def _head(self) -> Head:
        """The newest state."""

    @abstractmethod
    def _begin(self) -> WriteSection:
        """Enter the atomic section, once no other writer is inside."""

    def _ended(self) -> None:  # noqa: B027 - nothing keeps the section of an engine that does not say so
        """Whatever has been interrupted, this thread is not in the section any more."""

    @abstractmethod
    def _translate(self, caught: Exception) -> Exception:
        """The error that leaves the store for an exception of the engine."""

    def read_at(self, snapshot: int) -> Reader:
        """As in `Store`."""
        reader = self.read()
        if snapshot < reader.watermark:
            reader.close()
            raise snapshot_too_old(snapshot, reader.watermark)
        return reader

    def now(self) -> int:
        """As in `Store`."""
        timestamp, _log_end, header = self._head()
        believed, _remembered = believed_wall(self._clock, header, self._clock.monotonic_ns())
        return max(timestamp + 1, wall_timestamp(believed))

    def log_bytes(self) -> int:
        """As in `Store`."""
        _timestamp, log_end, header = self._head()
        return log_end - header.log_start

    def commit(self, request: Commit) -> int:
        """As in `Store`."""
        return self._queue.commit(request)

    def commit_derived(self, derive: Derive) -> int:
        """As in `Store`."""
        return self._queue.derived(derive)

    @property
    @abstractmethod
    def locks(self) -> LockTable:
        """As in `Store`."""

    def lock(
        self, owner: bytes, wanted: Sequence[tuple[bytes, Mode]], unchanged: Iterable[RangeUnchanged] = ()
    ) -> None:
        """As in `Store`."""

        def take(view: View) -> None:
            self.locks.acquire(owner, wanted)
            for range_ in unchanged:
                judge_locked(view, range_)

        self._queue.derived(take)

    def background(
        self, steps: Iterable[Step], *, claim: tuple[bytes, bytes] | None = None, pace: Pace | None = None
    ) -> int:
        """As in `Store`."""

        def run_batch(drawn: deque[Step], budget: int) -> tuple[int, int]:
            return self._run_batch(drawn, budget, claim)

        rhythm = UNSYNCED if self.synchronous == "off" else SYNCED
        return run_gated(steps, run_batch, self._presence, self._clock, pace, rhythm)

    def _run_batch(self, drawn: deque[Step], budget: int, claim: tuple[bytes, bytes] | None) -> tuple[int, int]:
        """One gated batch: at least one step, no further one after `budget`; (duration of the steps, of all) in ns."""
        monotonic = self._clock.monotonic_ns
        section: WriteSection | None = None
        try:
            section = self._begin()
            entered = monotonic()
            if claim is not None and section.get(claim[0]) != claim[1]:
                raise ClaimLost(claim[0])
            deadline = entered + budget
            while drawn:
                drawn.popleft()(section)
                if monotonic() >= deadline:
                    break
            stepped = monotonic() - entered
            section.commit(durably=False)
        except Exception as caught:
            if section is not None:
                section.abort()
            translated = self._translate(caught)
            if translated is caught:
                raise
            raise translated from caught
        except BaseException:
            if section is not None:
                section.abort()
            raise
        finally:
            self._ended()
        return stepped, monotonic() - entered

    def log(
        self,
        after: int,
        upto: int,
        of: Iterable[int] | None = None,
        between: Callable[[int], None] = lambda records: None,
    ) -> Iterator[LogRecord]:
        """As in `Store`."""
        position, stop = log_key(after + 1, 0), log_key(upto + 1, 0)
        told = None if of is None else tables_told(of)
        complete = after  # every record up to this timestamp has been read
        while True:
            with self.read() as reader:
                if complete < reader.watermark:
                    raise snapshot_too_old(complete, reader.watermark)
                pairs = list(islice(reader.scan(position, stop), _LOG_BATCH + 1))
            following = pairs.pop()[0] if len(pairs) > _LOG_BATCH else None
            if told is not None:
                pairs = [pair for pair in pairs if pair[1][TABLE] in told]
            for key, value in pairs:
                yield from decode(key, value)
            if following is None:
                return
            between(_LOG_BATCH)
            position = following
            complete = int(LOG_KEY.unpack(following)[1]) - 1

    def collect(
        self,
        upto: int,
        dead_entries: Callable[[LogRecord], list[bytes]],
        between: Callable[[], None] = lambda: None,
    ) -> int:
        """As in `Store`."""
        total = 0

        def cut(count: int) -> None:
            nonlocal total
            total += count

        with self.read() as reader:
            upto = min(upto, reader.timestamp)
        self.background(with_calls(cut_steps(self.read, upto, dead_entries, cut), between))
        return total

    def register_snapshot(self, snapshot: int) -> int:
        """As in `Store`."""
        return self._presence.register(snapshot)

    def release_snapshot(self, token: object) -> None:
        """As in `Store`."""
        assert isinstance(token, int)  # what register_snapshot gave
        self._presence.release(token)

    def oldest_snapshot(self) -> int | None:
        """As in `Store`."""
        return self._presence.oldest_snapshot()

    def announce_worker(self, working: bool) -> None:
        """As in `Store`."""
        self._presence.announce_worker(working)

    def worker_goes_on(self) -> None:
        """As in `Store`."""
        self._presence.worker_goes_on()

    def worker_present(self) -> bool:
        """As in `Store`."""
        return self._presence.worker_present()

    def worker_starting(self) -> bool:
        """As in `Store`."""
        return self._presence.worker_starting()

    def wants_worker(self) -> bool:
        """As in `Store`."""
        return self._presence.wants_worker()

    def foreground_about(self) -> bool:
        """As in `Store`."""
        return self._presence.foreground_about()

    def others_commit(self) -> bool:
        """As in `Store`."""
        return self._presence.others_commit()

    def foreground_queues(self) -> bool:
        """As in `Store`."""
        return self._presence.foreground_queues()

    def processes(self) -> list[Process]:
        """As in `Store`."""
        return self._presence.processes()

    def this_process(self) -> tuple[int, int]:
        """As in `Store`."""
        return self._presence.this_process()

    def publish_schema(self, version: int, lease_until_ns: int) -> None:
        """As in `Store`."""
        self._presence.publish_schema(version, lease_until_ns)

    def enlist(self, table: int, begun_us: int, *, into: list[int] | None = None, refused: bool = False) -> int:
        """As in `Store`."""
        return self._presence.enlist(table, begun_us, into=into, refused=refused)

    def withdraw(self, token: int) -> None:
        """As in `Store`."""
        self._presence.withdraw(token)

    def writers(self) -> list[Writer]:
        """As in `Store`."""
        return self._presence.writers()
