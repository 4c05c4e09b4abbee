"""Whom a change waits for: leases between the stages of a path, transactions that it would doom, and nobody else."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import instar
from instar.clock import Clock, ManualClock
from instar.database import Database
from instar.database import commit as committing
from instar.dbapi import Connection
from instar.schemachange import executor, waiting
from instar.store import MemoryStore, open_store
from instar.store.engine import Commit, Store
from instar.store.presence import SharedPresence, Writer
from instar.transactions import commit as loop
from support.databases import Engine, fails, general_commits, rows, run, value
from support.servers import LEASE, Servers
from support.slow import Slow

# --- leases ----------------------------------------------------------------------------------------------------------


def test_leases_are_waited_for_from_when_the_version_was_there() -> None:
    clock = ManualClock()
    told: list[str] = []
    began = clock.monotonic
    waiting.wait_for_leases(10, clock, began - 4_000_000_000, told.append)
    assert 6 <= (clock.monotonic - began) / 1e9 < 6.01
    assert all("schema lease of 10 s" in what for what in told)
    waiting.wait_for_leases(10, clock, began - 4_000_000_000, pytest.fail)  # nothing is left to wait for


def stamps(servers: Servers) -> list[float]:
    """When the stages of jobs were published, in seconds."""
    found = rows(
        servers.server(),
        "SELECT committed_at FROM instar.schema_versions WHERE change LIKE '%(stage%' ORDER BY version",
    )
    return [moment.timestamp() for (moment,) in found]


def test_a_path_takes_a_lease_per_step() -> None:
    servers = Servers()
    one = servers.server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)", "CREATE INDEX i ON t (a)")
    published = stamps(servers)
    assert len(published) >= 3
    assert all(LEASE <= later - earlier < LEASE + 1 for earlier, later in itertools.pairwise(published))


def test_without_leases_a_path_waits_for_nobody() -> None:
    servers = Servers(lease=0)
    one = servers.server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)", "CREATE INDEX i ON t (a)")
    published = stamps(servers)
    assert published[-1] == published[0]


def test_writers_on_either_side_of_each_step_leave_a_complete_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the job waits, a server of the older version and one of the newer write."""
    servers = Servers()
    one, old, new = servers.server(), servers.server(), servers.server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)")
    run(old, "UPDATE t SET a = a")
    ahead: list[int] = []

    def write_and_wait(lease: float, clock: Clock, since_ns: int, tick: Callable[[str], None]) -> None:
        number = 10 * len(ahead) + 10
        known, newest = old.database.repository, new.database.repository
        assert known is not None
        assert newest is not None
        newest.reload()
        cached, version = known.current(), newest.schema().catalog.version
        assert cached is not None
        ahead.append(version - cached.catalog.version)
        run(new, f"INSERT INTO t VALUES ({number}, 7)", f"UPDATE t SET a = a + 1 WHERE id = {number}")
        run(old, f"INSERT INTO t VALUES ({number + 1}, 7)", "UPDATE t SET a = a + 1 WHERE id = 1")
        waiting.wait_for_leases(lease, clock, since_ns, tick)
        run(old, "UPDATE t SET a = a + 1 WHERE id = 1")  # it has renewed

    monkeypatch.setattr(executor, "wait_for_leases", write_and_wait)
    run(one, "CREATE INDEX i ON t (a)")
    assert len(ahead) >= 2
    assert set(ahead) == {1}  # never more than one version behind
    assert rows(one, "CHECK DATABASE") == []
    assert value(one, "SELECT count(*) FROM t WHERE a = 7") == len(ahead)


# --- transactions ----------------------------------------------------------------------------------------------------


def test_only_those_are_waited_for_that_had_written_when_the_wait_began(store: Store, clock: ManualClock) -> None:
    first = store.enlist(1, 5)
    store.enlist(2, 5)
    told: list[str] = []

    def tick(names: str) -> None:
        told.append(names)
        if len(told) == 3:
            store.withdraw(first)
            store.enlist(1, 6)

    # Of another thread: what one's own has written it cannot wait for.
    waiter = threading.Thread(target=waiting.wait_for_writers, args=(store, clock, {1}, 5.0, tick))
    waiter.start()
    waiter.join()
    assert len(told) == 3
    assert clock.monotonic < 1_100_000_000


def test_who_is_told_of_together_with_others_is_waited_for_till_the_end(tmp_path: Path, clock: ManualClock) -> None:
    """What a process has no words for stands for a writer of the table, and so it may come to be shown."""
    store = open_store(tmp_path / "store", synchronous="off", clock=clock)
    other = SharedPresence(str(tmp_path / "store" / "presence"), clock, 60.0)
    now = clock.wall_ns() // 1000
    others = [other.enlist(2, now) for _ in range(20)]
    own = other.enlist(1, now)
    told: list[str] = []

    def tick(names: str) -> None:
        told.append(names)
        if len(told) == 3:
            for token in others:
                other.withdraw(token)
        if len(told) == 6:
            clock.wall += 2_000_000_000
            other.enlist(1, clock.wall_ns() // 1000)  # of one that began later
            other.withdraw(own)

    waiting.wait_for_writers(store, clock, {1}, 5.0, tick)
    assert len(told) == 6
    assert waiting.writers_of(store, (), moved={0}) == []  # any change is waited for by those alone that ask for it
    other.close()
    store.close()


def test_the_wait_ends_after_ddl_wait(store: Store, clock: ManualClock) -> None:
    store.enlist(1, 5)
    began = clock.monotonic
    waiter = threading.Thread(target=waiting.wait_for_writers, args=(store, clock, {1}, 5.0, lambda names: None))
    waiter.start()
    waiter.join()
    assert 5 <= (clock.monotonic - began) / 1e9 < 5.1


def test_own_transactions_are_not_waited_for(store: Store, clock: ManualClock) -> None:
    own = store.enlist(1, 5)
    assert waiting.writers_of(store, {1}) == []
    found: list[list[Writer]] = []
    ask = threading.Thread(
        target=lambda: found.extend([waiting.writers_of(store, {1}), waiting.writers_of(store, {1}, (own,))])
    )
    ask.start()
    ask.join()
    assert [len(listed) for listed in found] == [1, 0]


def test_transactions_are_named_by_process_and_begin() -> None:
    listed = [
        Writer(7, 1, 1_700_000_000_123_456),
        Writer(7, 2, 1_700_000_000_123_456),
        Writer(5, 1, 1_600_000_000_000_000),
    ]
    assert waiting.named(listed) == (
        "the transaction of process 5, begun 2020-09-13 12:26:40+00, "
        "the transaction of process 7, begun 2023-11-14 22:13:20+00"
    )
    assert waiting.named(Writer(pid, 1, 0) for pid in range(5)).endswith("2 more")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock):
    if request.param == "memory":
        made: Store = MemoryStore(clock=clock)
    else:
        made = open_store(tmp_path / "store", synchronous="off", clock=clock)
    yield made
    made.close()


class Blocked:
    """A transaction that has written to t, held open by another thread until it is told to end."""

    def __init__(self, connection: Connection, statement: str = "UPDATE t SET a = a + 1") -> None:
        self.error: instar.Error | None = None
        self._end, begun = threading.Event(), threading.Event()

        def hold() -> None:
            run(connection, "BEGIN", statement)
            begun.set()
            self._end.wait(30)
            try:
                connection.execute("COMMIT")
            except instar.Error as failed:
                self.error = failed

        self._thread = threading.Thread(target=hold)
        self._thread.start()
        assert begun.wait(30)

    def end(self, after: float = 0.0) -> None:
        time.sleep(after)
        self._end.set()
        self._thread.join()


@pytest.fixture
def shop(tmp_path: Path):
    engine = Engine(str(tmp_path / "db"))
    one = engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 10, 5)")
    yield engine
    engine.close()


@pytest.mark.parametrize("change", ["ALTER TABLE t DROP COLUMN b", "TRUNCATE t", "DROP TABLE t"])
def test_a_change_that_dooms_a_transaction_waits_for_it(shop: Engine, change: str) -> None:
    one = shop.connect()
    run(one, "SET ddl_wait = '60 s'")
    blocked = Blocked(shop.connect())
    ending = threading.Thread(target=blocked.end, args=(0.3,))
    ending.start()
    began = time.monotonic()
    run(one, change)
    assert 0.2 < time.monotonic() - began < 30
    ending.join()
    assert blocked.error is None


def test_after_ddl_wait_it_goes_on_and_the_transaction_fails(shop: Engine) -> None:
    one = shop.connect()
    blocked = Blocked(shop.connect())
    run(one, "SET ddl_wait = '300 ms'")
    began = time.monotonic()
    run(one, "ALTER TABLE t DROP COLUMN b")
    assert 0.3 <= time.monotonic() - began < 4.5  # 5 s if nothing is set
    blocked.end()
    assert blocked.error is not None
    assert blocked.error.sqlstate == "40001"
    assert any("process" in notice and "ddl_wait" in notice for notice in one.session.notices)


def queued_drop(slow: Slow, ddl_wait: str) -> tuple[threading.Thread, Blocked]:
    """DROP TABLE t waits as job 2 for job 1, which is run by a thread, with all that follows; a transaction has written
    to t meanwhile."""
    connection = slow.connection
    run(connection, f"SET ddl_wait = '{ddl_wait}'", "ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0)", "DROP TABLE t")
    blocked = Blocked(slow.engine.connect())
    worker = threading.Thread(target=slow.finish)
    worker.start()
    return worker, blocked


def test_a_statement_that_was_queued_waits_for_whom_it_would_doom(slow: Slow) -> None:
    worker, blocked = queued_drop(slow, "20 s")
    blocked.end(0.5)
    worker.join()
    assert blocked.error is None
    with fails("42P01"):
        run(slow.connection, "SELECT 1 FROM t")


def test_a_statement_that_was_queued_waits_no_longer_than_it_was_to(slow: Slow) -> None:
    worker, blocked = queued_drop(slow, "200 ms")
    began = time.monotonic()
    worker.join()
    assert 0.1 < time.monotonic() - began < 4.5
    blocked.end()
    assert blocked.error is not None
    assert blocked.error.sqlstate == "40001"


def test_a_statement_that_was_queued_is_cancelled_while_it_waits(slow: Slow) -> None:
    worker, blocked = queued_drop(slow, "60 s")
    deadline = time.monotonic() + 5
    while "the transaction of process" not in (
        value(slow.connection, "SELECT reason FROM instar.jobs WHERE id = 2") or ""
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run(slow.connection, "CANCEL JOB 2")
    worker.join()
    assert value(slow.connection, "SELECT state FROM instar.jobs WHERE id = 2") == "cancelled"
    blocked.end()
    assert blocked.error is None


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE t ADD COLUMN c int", "CREATE INDEX i ON t (a)", "ALTER TABLE t RENAME TO u", "DROP TABLE other"],
)
def test_a_change_that_dooms_nobody_waits_for_nobody(shop: Engine, change: str) -> None:
    one = shop.connect()
    run(one, "CREATE TABLE other (id int)", "SET ddl_wait = '60 s'")
    blocked = Blocked(shop.connect())
    began = time.monotonic()
    run(one, change)
    assert time.monotonic() - began < 30
    blocked.end()
    assert blocked.error is None


def test_a_wait_can_be_cancelled_and_leaves_nothing(shop: Engine) -> None:
    one = shop.connect()
    blocked = Blocked(shop.connect())
    canceller = threading.Timer(0.3, one.session.cancel)
    canceller.start()
    with fails("57014"):
        run(one, "ALTER TABLE t DROP COLUMN b")
    blocked.end()
    assert blocked.error is None
    assert rows(one, "SELECT * FROM t") == [(1, 11, 5)]


def test_explain_names_whom_a_change_would_wait_for(shop: Engine) -> None:
    one = shop.connect()
    blocked = Blocked(shop.connect())
    drop, add = "EXPLAIN (DDL) ALTER TABLE t DROP COLUMN b", "EXPLAIN (DDL) ALTER TABLE t ADD COLUMN c int"
    assert "the transaction of process" in rows(one, drop)[0][-1]
    assert "process" not in rows(one, add)[0][-1]
    blocked.end()
    assert "process" not in rows(one, drop)[0][-1]


def test_explain_names_the_lease() -> None:
    one = Servers().server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)")
    found = rows(one, "EXPLAIN (DDL) CREATE INDEX i ON t (a)")
    assert [row[-1] for row in found] == ["a schema lease of 10 s"] * len(found)


def test_transactions_of_other_processes_are_seen(tmp_path: Path) -> None:
    """Two databases in one process share a slot; what another process says is read from its slot's words."""
    clock = ManualClock()
    store = open_store(tmp_path / "store", synchronous="off", clock=clock)
    presence = store._presence  # type: ignore[attr-defined]  # what a second process would have beside it
    other = SharedPresence(str(tmp_path / "store" / "presence"), clock, 60.0)
    token = other.enlist(7, 1_700_000_000_900_000)
    assert [(found.table, found.begun_us, found.thread) for found in presence.writers()] == [
        (7, 1_700_000_000_000_000, 0)
    ]
    other.withdraw(token)
    assert 7 not in [found.table for found in presence.writers()]
    other.close()
    assert presence.writers() == []
    store.close()


def test_a_transaction_is_enlisted_from_its_first_write_to_its_end() -> None:
    database = Database(MemoryStore(), ":memory:", ManualClock())
    connection = Connection(database, autocommit=True, settings={})
    run(connection, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)", "BEGIN", "SELECT * FROM t")
    assert database.store.writers() == []
    for ending in ("COMMIT", "ROLLBACK"):
        run(connection, "INSERT INTO t VALUES (1)", "UPDATE t SET a = 2")
        assert len(database.store.writers()) == 1
        run(connection, ending, "BEGIN")
        assert database.store.writers() == []


# --- writes that changes keep turning back ---------------------------------------------------------------------------

STATEMENTS = ("UPDATE t SET a = a + 1 WHERE a >= 0",)
# Either moves the list of checks, so that what was derived before it is turned back, and dooms nobody.
MOVES = ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0) NOT VALID", "ALTER TABLE t DROP CONSTRAINT c")


class Adversary:
    """Changes the schema whenever `victim`, of the thread that makes this, has derived its commit."""

    def __init__(self, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds = 0
        self._connection = servers.server()
        self._connection.execute("SET ddl_wait = '60 min'")
        waits = self._waits = threading.Event()
        self._connection.on_notice = lambda text: waits.set()
        self._changes: threading.Thread | None = None
        victim, real = threading.get_ident(), servers.store.commit

        def commit(request: Commit) -> int:
            if threading.get_ident() == victim and request.tables and not request.bump_catalog:
                self.rounds += 1
                self._change()
            return real(request)

        def sleep(seconds: float) -> None:
            time.sleep(0.001)
            servers.clock.advance(seconds)

        general_commits(monkeypatch)
        monkeypatch.setattr(servers.store, "commit", commit)
        monkeypatch.setattr(servers.clock, "sleep", sleep)

    def _change(self) -> None:
        """Until it is done, or waits."""
        changes = self._changes
        if changes is None or not changes.is_alive():
            self._waits.clear()
            changes = self._changes = threading.Thread(target=run, args=(self._connection, *MOVES))
            changes.start()
        while changes.is_alive() and not self._waits.is_set():
            time.sleep(0.001)

    def end(self) -> None:
        """What it waits for has ended."""
        assert self._changes is not None
        self._changes.join(30)
        assert not self._changes.is_alive()


@pytest.mark.parametrize("lease", [0.0, 10.0])
@pytest.mark.parametrize("level", [None, "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_changes_give_way_to_a_write_that_they_keep_turning_back(
    monkeypatch: pytest.MonkeyPatch, level: str | None, lease: float
) -> None:
    servers = Servers(lease)
    two = servers.server()
    run(two, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10), (2, 20)")
    adversary = Adversary(servers, monkeypatch)
    begin, end = ([f"BEGIN ISOLATION LEVEL {level}"], ["COMMIT"]) if level else ([], [])
    run(two, *begin, *STATEMENTS, *end)
    adversary.end()
    assert rows(two, "SELECT a FROM t ORDER BY id") == [(11,), (21,)]
    assert 1 < adversary.rounds <= 5
    assert servers.store.writers() == []
    assert rows(two, "CHECK DATABASE") == []


def test_without_that_it_never_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test before can fail."""
    monkeypatch.setattr(committing, "_PATIENCE", -1)
    monkeypatch.setattr(loop, "MAX_ROUNDS", 30)
    servers = Servers(0)
    two = servers.server()
    run(two, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)")
    adversary = Adversary(servers, monkeypatch)
    with fails("40001", "changed under this commit 30 times"):
        run(two, *STATEMENTS)
    adversary.end()
    assert adversary.rounds == 30
