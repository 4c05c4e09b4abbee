"""Processes that work on a database until they are killed, and tell what was acknowledged to them.

Started by a fork server that has everything imported, so that a start takes milliseconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

import instar
from instar import errors
from instar.clock import SystemClock
from instar.schemachange.jobs import LEASE_SECONDS
from instar.store import open_store
from instar.store.lmdb_section import LmdbSection
from instar.worker.work import Worker

CONTEXT = multiprocessing.get_context("forkserver")
# What of these is not found by the server's path is imported by each process. The tests' own files import pytest.
CONTEXT.set_forkserver_preload(
    ["pytest", "support.victims", "instar.dbapi", "instar.database.bulk", "instar.sql.analytic"]
)

Work = Callable[[str, int, Callable[[object], None]], None]


class Victim:
    """One process that runs `work(path, number, say)`."""

    def __init__(self, work: Work, path: str, number: int) -> None:
        self._pipe, theirs = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_run, args=(work, path, number, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.said: list[object] = []

    def listen(self) -> object | None:
        """What it said last, after taking in everything that it has said so far."""
        try:
            while self._pipe.poll():
                self.said.append(self._pipe.recv())
        except EOFError:
            pass
        return self.said[-1] if self.said else None

    def wait(self, messages: int = 1, seconds: float = 20.0) -> None:
        """Until it has said that much more; fails if it dies or falls silent."""
        wanted = len(self.said) + messages
        until = time.monotonic() + seconds
        while len(self.said) < wanted:
            assert self._pipe.poll(max(until - time.monotonic(), 0)), "a process fell silent"
            self.said.append(self._pipe.recv())  # EOFError: it died of an error, which it has printed

    def kill(self) -> object | None:
        """SIGKILL, at whatever instruction it is; returns the last thing that it said."""
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has come to its own end
                os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        last = self.listen()
        self._pipe.close()
        return last

    @property
    def is_over(self) -> bool:
        """Whether it has ended, however."""
        return not self._process.is_alive()

    def join(self, seconds: float = 60.0) -> object | None:
        """Wait for its natural end; returns the last thing that it said."""
        until = time.monotonic() + seconds
        while self._process.is_alive() and time.monotonic() < until:
            self.listen()  # a full pipe would stop it
            self._process.join(0.02)
        assert self._process.exitcode == 0, self._process.exitcode
        last = self.listen()
        self._pipe.close()
        return last

    def end(self, seconds: float = 60.0) -> int:
        """Wait for its end, whatever that is; returns its exit code: negative, the signal that it was killed with."""
        self._process.join(seconds)
        self._pipe.close()
        code = self._process.exitcode
        assert code is not None, "it goes on"
        return code


def _run(work: Work, path: str, number: int, pipe: Pipe) -> None:
    work(path, number, pipe.send)


def die_in_write(number: int, *, after: bool) -> None:
    """This process dies in its `number`-th write to a store of files from now on: before it stands, or right after."""
    commit, writes = LmdbSection.commit, 0

    def dying(section: LmdbSection, *, durably: bool = True) -> None:
        nonlocal writes
        writes += 1
        if writes < number:
            commit(section, durably=durably)
            return
        if after:
            commit(section, durably=durably)
        os.kill(os.getpid(), signal.SIGKILL)

    LmdbSection.commit = dying  # type: ignore[method-assign, assignment]  # this process has not long to live


ACCOUNTS = 20
START = 1000

BANK = (
    "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)",
    "CREATE INDEX account_balance ON account (balance)",
    "CREATE TABLE journal (writer int, n int, source int, target int, amount int, PRIMARY KEY (writer, n))",
    "CREATE INDEX journal_target ON journal (target, amount)",
)


def open_bank(path: str, synchronous: str) -> instar.Connection:
    """A new bank: every account has START, and the journal is empty."""
    connection = instar.connect(path, synchronous=synchronous, autocommit=True)
    for statement in BANK:
        connection.execute(statement)
    connection.executemany("INSERT INTO account VALUES (?, ?)", [(number, START) for number in range(ACCOUNTS)])
    return connection


def transfer(connection: instar.Connection, chance: random.Random, writer: int, number: int) -> None:
    """Move an amount between two accounts and write it down, in one transaction that is retried on conflicts."""
    source, target = chance.sample(range(ACCOUNTS), 2)
    amount = chance.randrange(1, 50)
    while True:
        try:
            connection.execute("BEGIN")
            connection.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (amount, source))
            connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", (writer, number, source, target, amount))
            connection.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (amount, target))
            connection.execute("COMMIT")
        except instar.OperationalError as conflict:
            if conflict.sqlstate not in (errors.SERIALIZATION_FAILURE, errors.DEADLOCK_DETECTED):
                raise
            connection.rollback()
        else:
            return


def transfers(path: str, writer: int, say: Callable[[object], None]) -> None:
    """Transfers without end, numbered from where the journal ends; says each number once it is acknowledged."""
    connection = instar.connect(path, synchronous=None, autocommit=True)
    found = connection.execute("SELECT n FROM journal WHERE writer = ? ORDER BY n DESC LIMIT 1", (writer,)).fetchone()
    number = 0 if found is None else found[0]
    chance = random.Random(writer * 1_000_003 + number)
    while True:
        number += 1
        transfer(connection, chance, writer, number)
        say(number)


def check_bank(connection: instar.Connection, acknowledged: dict[int, int], *, whole: bool = True) -> None:
    """Nothing acknowledged is lost, nothing else is half there; table, index and analytic engine agree.

    `whole`: CHECK DATABASE too, which reads everything.
    """
    journal = connection.execute("SELECT * FROM journal ORDER BY writer, n").fetchall()
    balances = dict.fromkeys(range(ACCOUNTS), START)
    last: dict[int, int] = {}
    for writer, number, source, target, amount in journal:
        assert number == last.get(writer, 0) + 1, (writer, number)
        last[writer] = number
        balances[source] -= amount
        balances[target] += amount
    for writer, number in acknowledged.items():
        assert number <= last.get(writer, 0) <= number + 1, (writer, number, last)
    by_key = {}
    for number in range(ACCOUNTS):
        by_key[number] = connection.execute("SELECT balance FROM account WHERE id = ?", (number,)).fetchall()[0][0]
        own = connection.execute("SELECT id FROM account WHERE balance = ?", (balances[number],)).fetchall()
        assert (number,) in own
    assert by_key == balances
    assert dict(connection.execute("SELECT id, balance FROM account").fetchall()) == balances
    assert connection.execute("SELECT sum(balance), count(*) FROM account").fetchall() == [(ACCOUNTS * START, ACCOUNTS)]
    through_index = [
        found
        for number in range(ACCOUNTS)
        for found in connection.execute("SELECT writer, n FROM journal WHERE target = ?", (number,)).fetchall()
    ]
    assert sorted(through_index) == [row[:2] for row in journal]
    if whole:
        assert connection.execute("CHECK DATABASE").fetchall() == []


INSERT_ROW = "INSERT INTO item VALUES (?, ?, ?)"


def items(path: str, writer: int, say: Callable[[object], None]) -> None:
    """Inserts, updates and deletes rows of `item` without end; says how many it has made."""
    connection = instar.connect(path, synchronous=None, autocommit=True)
    chance = random.Random(time.time_ns())
    made = 0
    while True:
        key = chance.randrange(3000) * 10 + writer
        try:
            connection.execute(INSERT_ROW, (key, chance.randrange(100), "new"))
        except instar.IntegrityError:
            if chance.random() < 0.5:
                connection.execute("UPDATE item SET a = ? WHERE id = ?", (chance.randrange(100), key))
            else:
                connection.execute("DELETE FROM item WHERE id = ?", (key,))
        made += 1
        say(made)


def index_builder(path: str, number: int, say: Callable[[object], None]) -> None:
    """Builds an index on `item`."""
    connection = instar.connect(path, synchronous=None, autocommit=True)
    say("begun")
    connection.execute(f"CREATE INDEX item_a{number} ON item (a, b DESC)")
    say("built")


class Later(SystemClock):
    """The system's clock some seconds ahead: what is seen when the leases of the dead have ended."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._ahead = int(seconds * 1e9)

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self._ahead


def successor(path: str, number: int, say: Callable[[object], None]) -> None:
    """Takes up the jobs of those that were killed before, as the `number`-th of them, when all their leases have ended;
    says when nothing is left to do."""
    worker = Worker(open_store(path), Later(number * (LEASE_SECONDS + 1)))
    say("begun")
    while worker.turn():
        pass
    say("done")
    time.sleep(60)


def loader(path: str, number: int, say: Callable[[object], None]) -> None:
    """Loads 200,000 rows into the empty table `item`."""
    import pyarrow as pa

    rows = 200_000
    data = pa.table({
        "id": pa.array(range(rows), pa.int32()),
        "a": pa.array((value % 1000 for value in range(rows)), pa.int32()),
        "b": pa.array(["x" * (value % 20) for value in range(rows)]),
    })  # fmt: skip
    connection = instar.connect(path, synchronous=None, autocommit=True)
    say("begun")
    connection.insert_arrow("item", data)
    say("loaded")
