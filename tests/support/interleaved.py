"""Histories of two servers and a few sessions on one store, interleaved by one thread as a seed says.

Others come in between statements, and wherever another process could: before a commit is judged, and between two steps
of a schema change's work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from instar.clock import ManualClock, SystemClock
from instar.database import Database, Session
from instar.store.engine import PREFIX_TABLE, Commit, Derive, Store
from instar.store.pace import Pace
from instar.store.records import Latest, decode_table_header, latest_key
from instar.worker.work import Worker
from support.histories import History
from support.recorded import NAMES, Client, Common

SESSIONS = 4
DEEPEST = 2
# Numbers are handed out under a lock of the process, which nobody comes in between.
_NUMBERS = (latest_key(Latest.COUNTER), latest_key(Latest.SEQUENCE))


class Between:
    """A store that calls `between` wherever another process could commit, and remembers the floors it was given: by
    table, (timestamp, floor) as they were committed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.between: Callable[[], None] = lambda: None
        self.floors: dict[int, list[tuple[int, int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, request: Commit) -> int:
        if not any(key.startswith(_NUMBERS) for key, _ in request.raw):
            self.between()
        timestamp = self._store.commit(request)
        for key, value in request.raw:
            if key.startswith(PREFIX_TABLE) and value is not None:
                floor = decode_table_header(value).floor
                self.floors.setdefault(int.from_bytes(key[1:], "big"), []).append((timestamp, floor))
        return timestamp

    def commit_derived(self, derive: Derive) -> int:
        self.between()
        return self._store.commit_derived(derive)

    def background(
        self, steps: Iterable[Any], *, claim: tuple[bytes, bytes] | None = None, pace: Pace | None = None
    ) -> int:
        def stepping() -> Iterator[Any]:
            for step in steps:
                self.between()
                yield step

        return self._store.background(stepping(), claim=claim, pace=pace)


class Interleaved:
    """Sessions of two servers of one store; `history` has them do so many steps and returns what they recorded.

    `collected`: now and then the log is cut as far as snapshots allow, and rowsets are freed that none sees. With a
    `clock` that stands still, it is the store's, and moves on between steps: for stores with a schema lease.
    """

    between = Between
    client = Client

    def __init__(self, store: Store, *, collected: bool = False, clock: ManualClock | None = None) -> None:
        self.store = self.between(store)
        self._clock = clock
        self._worker: Worker | None = None
        if collected:
            store.retention_seconds = 0.0
            self._worker = Worker(self.store, SystemClock())
        self._databases = [Database(self.store, ":memory:", clock or SystemClock()) for _ in range(2)]

    def history(self, seed: int, steps: int) -> History:
        draw = random.Random(seed)
        history, moments = History(seed=seed, leased=bool(self.store.schema_lease)), count(1)
        common = Common(history, draw, count(1), lambda: next(moments))
        sessions = [Session(self._databases[number % 2], autocommit=True) for number in range(SESSIONS)]
        clients = [self.client(session, f"s{number}", common) for number, session in enumerate(sessions)]
        clients[0].create_tables()
        depth = 0

        def between() -> None:
            nonlocal depth
            if depth < DEEPEST and draw.random() < 0.25:
                depth += 1
                for _ in range(draw.randrange(1, 4)):
                    step()
                depth -= 1

        def step() -> None:
            if self._clock is not None:
                self._clock.advance(draw.choice((0, 0.1, self.store.schema_lease / 2, self.store.schema_lease)))
            worker = self._worker
            if worker is not None and draw.random() < 0.15:
                self._worker = None  # which does one thing at a time
                draw.choice((worker.collect, worker.deallocate))()
                self._worker = worker
            free = [found for found in clients if not found.busy]
            if free:
                draw.choice(free).step()

        self.store.between = between
        for _ in range(steps):
            step()
        self.store.between = lambda: None
        for found in clients:
            found.finish()
        clients[0].read_all()
        return history

    def check(self) -> list[tuple[Any, ...]]:
        """CHECK DATABASE."""
        return list(Session(self._databases[0], autocommit=True).execute("CHECK DATABASE").rows)

    def forget(self) -> None:
        """Drop the tables of a history."""
        session = Session(self._databases[1], autocommit=True)
        session.execute("SET ddl_wait = 0")
        session.execute(f"DROP TABLE {', '.join(NAMES)}")

    def close(self) -> None:
        for database in self._databases:
            database.sequences.close()
        self.store.close()
