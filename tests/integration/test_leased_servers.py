"""Servers under leases, one schema version apart: populated columns, SERIALIZABLE transactions beside changes of what
covers them, a process that is stopped between deriving and committing, and one that forks."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

import instar
from instar import errors
from instar.dbapi import Connection
from instar.store.engine import Commit, Derive
from integration.test_populated_columns import ROWS, Table
from integration.test_serializability import SESSIONS, Program, drawn, serial, stored
from support.databases import Engine, rows, run, value
from support.servers import Servers, version
from support.steps import hook_jobs


class Leased(Engine):
    """Each connection is a server of its own."""

    def __init__(self) -> None:
        self.servers = Servers()

    def connect(self, *, autocommit: bool = True, **settings: str) -> Connection:
        return self.servers.server()

    def newest(self) -> int:
        """The store's schema version."""
        with self.servers.store.read() as reader:
            return reader.catalog_version


# --- populated columns -----------------------------------------------------------------------------------------------

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


class Laggards:
    """Servers that are one version behind at every step of a job: each writes once, in autocommit or in a transaction
    that commits some steps later."""

    def __init__(self, engine: Leased, chance: random.Random) -> None:
        self._engine, self._chance = engine, chance
        self._fresh: list[Connection] = []
        self._open: list[tuple[Connection, int]] = []
        self._number = 0
        self.added = self.refused = self.behind = 0  # what updates added to a; transactions; statements

    def step(self, step: str, _number: int) -> None:
        """What they do there."""
        if step.startswith("stage"):
            self._fresh = [self._engine.connect() for _ in range(14)]
            for server in self._fresh:
                server.execute("SET lock_timeout = '1us'")  # all are in one thread
                server.execute("DELETE FROM t WHERE a < -1")  # and so renew: what comes now they do not know
            return
        for _ in range(2):
            if self._fresh:
                self._write(self._fresh.pop())
        for connection, added in [found for found in self._open if self._chance.random() < 0.4]:
            self._open.remove((connection, added))
            self._commit(connection, added)

    def end(self) -> None:
        """All that is open commits."""
        for connection, added in self._open:
            self._commit(connection, added)

    def _statement(self) -> str:
        self._number += 1
        number, place = self._number, self._chance.randrange(ROWS)
        return self._chance.choice(
            [
                f"UPDATE t SET a = a + 1 WHERE id = {place}",
                f"UPDATE t SET a = a + 1 WHERE id IN ({place}, {place + 3}) AND a >= 0",
                f"UPDATE t SET b = 'y{number}' WHERE id = {place}",
                f"INSERT INTO t (id, a) VALUES ({100 + number}, 0)",
                f"INSERT INTO t (id, a) VALUES ({place}, 0) ON CONFLICT (id) DO UPDATE SET b = 'z'",
                f"UPDATE t SET id = id + 1000000 WHERE id = {100 + number - 1}",
                f"DELETE FROM t WHERE id = {100 + number - 2}",
            ]
        )

    def _write(self, server: Connection) -> None:
        statement = self._statement()
        assert version(server) == self._engine.newest() - 1
        self.behind += 1
        block = self._chance.random() < 0.5
        if block:
            server.execute(f"BEGIN ISOLATION LEVEL {self._chance.choice(LEVELS)}")
        try:
            written = server.execute(statement).rowcount
        except instar.Error as failed:
            if failed.sqlstate != errors.LOCK_NOT_AVAILABLE:
                raise
            server.execute("ROLLBACK")
            self.refused += 1
            return
        added = written if "a + 1" in statement else 0
        if block:
            self._open.append((server, added))
        else:
            self.added += added

    def _commit(self, connection: Connection, added: int) -> None:
        try:
            connection.execute("COMMIT")
            self.added += added
        except instar.Error as failed:
            if failed.sqlstate not in (errors.SERIALIZATION_FAILURE, errors.LOCK_NOT_AVAILABLE):
                raise
            self.refused += 1


@pytest.mark.parametrize("seed", range(4))
def test_servers_one_version_behind_write_while_a_column_is_populated(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Leased()
    table = Table(engine, monkeypatch)
    before = value(table.one, "SELECT sum(a) FROM t")
    laggards = Laggards(engine, random.Random(seed))
    table.add(laggards.step)
    laggards.end()
    assert laggards.behind >= 20
    table.check()
    assert value(table.one, "SELECT sum(a) FROM t") == before + laggards.added


# --- SERIALIZABLE ----------------------------------------------------------------------------------------------------

CHANGES = (
    "ADD LOCK l COVERS (b)",
    "ADD CONSTRAINT k CHECK (b > -1000)",
    "ALTER LOCK l COVERS (a)",
    "ADD COLUMN d int DEFAULT 1",
    "ALTER LOCK l COVERS (a, b)",
    "DROP COLUMN d",
    "DROP CONSTRAINT k",
    "DROP LOCK l",
)


class Round:
    """Transactions of several servers, their statements interleaved with one another and with the steps of changes."""

    def __init__(self, servers: list[Connection], chance: random.Random) -> None:
        self._servers, self._chance = servers, chance
        self._programs = [Program([drawn(chance) for _ in range(chance.randint(1, 4))]) for _ in servers]
        entries = [number for number, program in enumerate(self._programs) for _ in range(len(program.steps) + 1)]
        chance.shuffle(entries)
        self.left = deque(entries)
        self.committed: list[Program] = []
        self._refused: set[int] = set()

    def go_on(self) -> None:
        """The next statement of the one whose turn it is, or its COMMIT."""
        number = self.left.popleft()
        connection, program = self._servers[number], self._programs[number]
        if number in self._refused:
            return
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
            if len(program.seen) < len(program.steps):
                program.execute(connection)
            else:
                connection.execute("COMMIT")
                self.committed.append(program)
        except instar.Error as failed:
            if failed.sqlstate != errors.SERIALIZATION_FAILURE:
                raise
            connection.rollback()
            self._refused.add(number)

    def some(self, _step: str) -> None:
        """At a step of a change: some of what is left."""
        while self.left and self._chance.random() < 0.4:
            self.go_on()


@pytest.mark.parametrize("seed", range(2))
def test_serializable_transactions_beside_changes_of_coverage(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All outcomes are those of a serial order, whatever versions the servers have cached."""
    chance = random.Random(seed)
    engine = Leased()
    one, servers = engine.connect(), [engine.connect() for _ in range(SESSIONS)]
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE INDEX ta ON t (a)")
    changes, between, stood = 0, 0, 0
    real = engine.servers.store.commit

    changing = False

    def change() -> None:
        nonlocal changes, changing
        changing = True
        run(one, f"ALTER TABLE t {CHANGES[changes % len(CHANGES)]}")
        changing = False
        changes += 1

    def commit(request: Commit) -> int:
        """A change comes between deriving and committing, now and then."""
        nonlocal between
        if request.snapshot is not None and not changing and chance.random() < 0.2:
            between += 1
            change()
        return real(request)

    monkeypatch.setattr(engine.servers.store, "commit", commit)
    for number in range(30):
        before = stored(one)
        current = Round(servers, chance)
        hook_jobs(monkeypatch, current.some)
        engine.servers.clock.advance(chance.choice([0, 0, 3, 7]))
        while current.left:
            if chance.random() < 0.12:
                change()
            else:
                current.go_on()
        assert serial(before, stored(one), current.committed), f"seed {seed}, round {number}"
        stood += len(current.committed)
    assert changes > 15
    assert between > 5
    assert stood > 30
    assert rows(one, "CHECK DATABASE") == []


# --- processes -------------------------------------------------------------------------------------------------------

LEASE = 0.2


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child, which ends with status 0 if it does; returns its process number."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(60)
        work()
    except BaseException as failed:  # noqa: BLE001 - the child must not go on with the test
        os.write(2, f"in the child: {failed!r}\n".encode())
        os._exit(1)
    os._exit(0)


def ended(child: int) -> bool:
    """Whether it came to its end as it should, which is waited for."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("statement", "first", "second"),
    [("UPDATE t SET a = a + ?", 1, 1), ("INSERT INTO t (id, a) VALUES (?, 0)", 5, 7)],  # with a compiled form
)
def test_a_process_that_is_stopped_between_deriving_and_committing(
    tmp_path: Path, statement: str, first: int, second: int
) -> None:
    """It sleeps through two versions and more than two leases with its commit in hand, which must not stand so."""
    path = tmp_path / "db"
    with instar.connect(path, synchronous="off", schema_lease=LEASE, autocommit=True) as connection:
        run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)")

    def work() -> None:
        connection = instar.connect(path, synchronous="off", autocommit=True)
        connection.execute(statement, (first,))
        store, naps = connection.database.store, [True]
        commit, commit_derived = store.commit, store.commit_derived

        def nap() -> None:
            if naps:
                naps.pop()
                os.kill(os.getpid(), signal.SIGSTOP)

        def late(request: Commit) -> int:
            if request.lease is not None:
                nap()
            return commit(request)

        def late_derived(derive: Derive) -> int:
            nap()
            return commit_derived(derive)

        store.commit = late  # type: ignore[method-assign]  # of this process
        store.commit_derived = late_derived  # type: ignore[method-assign]
        connection.execute(statement, (second,))
        connection.close()

    child = in_child(work)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    with instar.connect(path, synchronous="off", autocommit=True) as connection:
        for number in range(2):
            run(connection, f"ALTER TABLE t ADD COLUMN c{number} int DEFAULT {number}")
            time.sleep(1.2 * LEASE)
        began = newest_timestamp(connection)
        os.kill(child, signal.SIGCONT)
        assert ended(child)
        log = connection.database.store.log(began, newest_timestamp(connection))
        assert [record.version for record in log if record.table >= 1000] == [3]
        assert rows(connection, "CHECK DATABASE") == []


def newest_timestamp(connection: Connection) -> int:
    with connection.database.store.read() as reader:
        return reader.timestamp


def test_a_child_has_the_leases_of_its_parent_and_no_more(tmp_path: Path) -> None:
    """A fork takes the cached versions along: they run out in the child as they do in the parent, and no later."""
    path = tmp_path / "db"
    connection = instar.connect(path, synchronous="off", schema_lease=LEASE, autocommit=True)
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)")
    heard, told = os.pipe()

    def work() -> None:
        before = version(connection)
        os.read(heard, 1)
        run(connection, "INSERT INTO t (id, a) VALUES (3, 30)", "UPDATE t SET a = a + 1")
        assert version(connection) == before + 3

    child = in_child(work)
    run(connection, "ALTER TABLE t ADD COLUMN b int DEFAULT 7", "ALTER TABLE t ADD COLUMN c int DEFAULT 8")
    run(connection, "ALTER TABLE t DROP COLUMN b")
    time.sleep(LEASE)
    os.write(told, b".")
    assert ended(child)
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 11, 8), (3, 31, 8)]
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()
    os.close(heard)
    os.close(told)
