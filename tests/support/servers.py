"""Several servers of one store in one process, each with caches of its own, under a clock that the test moves."""

from __future__ import annotations

import time
from multiprocessing.queues import Queue
from pathlib import Path

import instar
from instar.clock import ManualClock
from instar.database import Database
from instar.dbapi import Connection
from instar.store import MemoryStore, open_store
from instar.store.engine import Section, Store
from instar.store.schema_version import COPIES
from support.databases import run

LEASE = 10.0


class Servers:
    """A store with a schema lease, and connections to servers of it; in memory, or in a directory if `path` is one."""

    def __init__(self, lease: float = LEASE, path: Path | None = None) -> None:
        self.clock = ManualClock()
        self.store: Store
        if path is None:
            self.store = MemoryStore(clock=self.clock, schema_lease=lease)
        else:
            self.store = open_store(path, synchronous="off", schema_lease=lease, clock=self.clock)

    def server(self) -> Connection:
        """A new server, and a session in autocommit with it. The store is the test's to close."""
        return Connection(Database(self.store, ":memory:", self.clock), autocommit=True, settings={})

    def versions(self) -> list[int]:
        """The schema versions under which the changes in the log were derived, oldest first."""
        with self.store.read() as reader:
            upto = reader.timestamp
        return [record.version for record in self.store.log(0, upto) if record.table >= 1000]

    def damage(self, *copies: int) -> None:
        """Make copies of the canonical version unreadable."""

        def step(section: Section) -> None:
            for copy in copies:
                section.put(COPIES[copy], b"damaged")

        self.store.background([step])


def version(connection: Connection) -> int:
    """The catalog version that the server has cached."""
    repository = connection.database.repository
    assert repository is not None
    current = repository.current()
    return -1 if current is None else current.catalog.version


def write_while_there(path: str, number: int, flag: Path, out: Queue[tuple[int, list[str]]]) -> None:
    """Insert and update rows of one's own for as long as there is a file, with pauses, so that others get something
    done too; says how many rows stand, and what else befell."""
    connection = instar.connect(path, synchronous="off", autocommit=True)
    done, strange = 0, []
    while flag.exists():
        time.sleep(0.005)
        key = number * 1_000_000 + done
        try:
            connection.execute("INSERT INTO t (id, a) VALUES (?, ?)", (key, key))
            done += 1
            connection.execute("UPDATE t SET a = a + 1 WHERE id = ?", (key,))
            run(connection, "BEGIN", f"UPDATE t SET a = a - 1 WHERE id = {key}", "COMMIT")
        except instar.Error as failed:
            if failed.sqlstate != "40001":
                strange.append(repr(failed))
            connection.rollback()
    connection.close()
    out.put((done, strange))
