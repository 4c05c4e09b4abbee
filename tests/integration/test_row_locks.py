"""Row locks across processes: a queue, the death of a holder, one that is stopped, schedule 5, forks, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import instar
from instar import errors
from instar.dbapi import Connection
from store.building import ended, in_child
from support.databases import fails, rows, run, value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a table t of 60 rows, closed."""
    found = tmp_path / "db"
    with instar.connect(found, synchronous="off", autocommit=True) as connection:
        run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE done (id int PRIMARY KEY, by int)")
        connection.executemany("INSERT INTO t VALUES (?, 0)", [(number,) for number in range(60)])
    return found


@pytest.fixture
def connection(path: Path) -> Iterator[Connection]:
    with instar.connect(path, synchronous="off", autocommit=True) as made:
        yield made


def waiting(connection: Connection) -> int:
    return int(value(connection, "SELECT count(*) FROM instar.transaction_locks WHERE NOT granted"))


class Child:
    """A process that holds row 1 of t, in a transaction of its own, until it is told to go on and commits."""

    def __init__(self, path: Path, then: Callable[[Connection], object] = lambda connection: None) -> None:
        told, self._tell = os.pipe()
        self._heard, hear = os.pipe()

        def work() -> None:
            with instar.connect(path, synchronous="off", autocommit=True) as own:
                run(own, "BEGIN", "UPDATE t SET a = a + 10 WHERE id = 1")
                os.write(hear, b".")
                os.read(told, 1)
                then(own)
                run(own, "COMMIT")

        self.pid = in_child(work)
        assert os.read(self._heard, 1) == b"."

    def go_on(self) -> None:
        os.write(self._tell, b".")


TAKE = "SELECT id FROM t ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED"


def test_a_queue_that_several_processes_consume(path: Path, connection: Connection) -> None:
    """Each job is done exactly once, though one who has two of them in hand is killed."""

    def consume(number: int) -> None:
        with instar.connect(path, synchronous="off", autocommit=True) as own:
            while value(own, "SELECT count(*) FROM t"):
                run(own, "BEGIN")
                for (job,) in rows(own, TAKE):
                    own.execute("INSERT INTO done VALUES (?, ?)", (job, number))
                    own.execute("DELETE FROM t WHERE id = ?", (job,))
                run(own, "COMMIT")

    heard, hear = os.pipe()

    def die() -> None:
        with instar.connect(path, synchronous="off", autocommit=True) as own:
            run(own, "BEGIN")
            assert rows(own, TAKE) == [(0,), (1,)]
            run(own, "DELETE FROM t WHERE id = 0", "INSERT INTO done VALUES (0, -1)")
            os.write(hear, b".")
            signal.pause()

    dying = in_child(die)
    assert os.read(heard, 1) == b"."
    children = [in_child(lambda number=number: consume(number)) for number in range(3)]  # type: ignore[misc]  # bound now
    while value(connection, "SELECT count(*) FROM t") > 2:
        pass
    assert rows(connection, "SELECT id FROM t ORDER BY id") == [(0,), (1,)]
    os.kill(dying, signal.SIGKILL)
    assert [ended(child) for child in (dying, *children)] == [-signal.SIGKILL, 0, 0, 0]
    assert [job for (job,) in rows(connection, "SELECT id FROM done ORDER BY id")] == list(range(60))
    assert rows(connection, "CHECK DATABASE") == []


def test_a_killed_holder_lets_go(path: Path, connection: Connection) -> None:
    holder = Child(path)
    with fails(errors.LOCK_NOT_AVAILABLE):
        run(connection, "SELECT * FROM t WHERE id = 1 FOR SHARE NOWAIT")
    waiter = in_child(lambda: _update_one(path))
    while not waiting(connection):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    assert ended(holder.pid) == -signal.SIGKILL
    assert ended(waiter) == 0
    assert value(connection, "SELECT a FROM t WHERE id = 1") == 1
    assert rows(connection, "SELECT * FROM instar.transaction_locks") == []


def _update_one(path: Path) -> None:
    with instar.connect(path, synchronous="off", autocommit=True) as own:
        own.execute("UPDATE t SET a = a + 1 WHERE id = 1")


def test_a_stopped_holder_keeps_its_lock_and_nobody_else_waits(path: Path, connection: Connection) -> None:
    holder = Child(path)
    os.kill(holder.pid, signal.SIGSTOP)
    os.waitpid(holder.pid, os.WUNTRACED)
    run(connection, "UPDATE t SET a = 1 WHERE id = 2", "CREATE INDEX ta ON t (a)", "SET lock_timeout = '20ms'")
    for begin in ([], ["BEGIN"]):
        with fails(errors.LOCK_NOT_AVAILABLE, "lock timeout"):
            run(connection, *begin, "UPDATE t SET a = 1 WHERE id = 1")
        connection.rollback()
    os.kill(holder.pid, signal.SIGCONT)
    holder.go_on()
    run(connection, "SET lock_timeout = 0", "UPDATE t SET a = a + 1 WHERE id = 1")
    assert ended(holder.pid) == 0
    assert value(connection, "SELECT a FROM t WHERE id = 1") == 11


def test_schedule_5(path: Path, connection: Connection) -> None:
    """Autocommit update meets a row that a READ COMMITTED transaction has locked: the holder is not the one refused
    (nor anybody else). Many times, beside other processes."""

    def update() -> None:
        for _ in range(30):
            _update_one(path)

    others = [in_child(update) for _ in range(2)]
    for _ in range(40):
        run(connection, "BEGIN", "UPDATE t SET a = a + 1 WHERE id = 1", "UPDATE t SET a = a + 1 WHERE id = 1", "COMMIT")
    assert [ended(other) for other in others] == [0, 0]
    assert value(connection, "SELECT a FROM t WHERE id = 1") == 140


def test_a_deadlock_of_two_processes(path: Path, connection: Connection) -> None:
    """One of them is told; the other gets what it waited for."""

    def cross(own: Connection) -> None:
        own.execute("UPDATE t SET a = a + 10 WHERE id = 2")

    run(connection, "BEGIN", "UPDATE t SET a = 1 WHERE id = 2")
    other = Child(path, cross)
    other.go_on()
    with instar.connect(path, synchronous="off", autocommit=True) as looking:
        while not waiting(looking):
            pass
    with fails(errors.DEADLOCK_DETECTED, f"process {other.pid}", f"process {os.getpid()}"):
        run(connection, "UPDATE t SET a = 1 WHERE id = 1")
    run(connection, "ROLLBACK")
    assert ended(other.pid) == 0
    assert rows(connection, "SELECT a FROM t WHERE id IN (1, 2)") == [(10,), (10,)]


def test_a_forked_child_does_not_let_go_of_its_parents_locks(path: Path, connection: Connection) -> None:
    run(connection, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")

    def child() -> None:
        with fails("25000"):
            connection.execute("SELECT 1")
        connection.rollback()
        with fails(errors.LOCK_NOT_AVAILABLE):
            run(connection, "SET lock_timeout = '5ms'", "UPDATE t SET a = 6 WHERE id = 1")
        connection.close()

    assert ended(in_child(child)) == 0
    assert len(rows(connection, "SELECT * FROM instar.transaction_locks")) == 1
    run(connection, "COMMIT")
    assert value(connection, "SELECT a FROM t WHERE id = 1") == 5


def test_control_c_ends_a_wait(path: Path, connection: Connection) -> None:
    run(connection, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")

    def wait() -> None:
        try:
            _update_one(path)
        except KeyboardInterrupt:
            sys.exit(7)

    def child() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(SystemExit) as ends:
            wait()
        assert ends.value.code == 7

    waiter = in_child(child)
    while not waiting(connection):
        pass
    os.kill(waiter, signal.SIGINT)
    assert ended(waiter) == 0
    assert waiting(connection) == 0
    run(connection, "COMMIT")


def test_a_transaction_that_ends_while_the_disk_is_full_lends_nothing_to_the_next(path: Path) -> None:
    """Neither its snapshot nor its name: locks of one that has ended would be none."""

    def work() -> None:
        import resource

        oldest, one, two = (instar.connect(path, synchronous="off", autocommit=True) for _ in range(3))
        run(oldest, "BEGIN", "SELECT * FROM t WHERE id = 9 FOR UPDATE")  # else the end of `one` were a word in memory
        run(one, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT * FROM t WHERE id = 1 FOR UPDATE")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limit[1]))
        run(one, "ROLLBACK")
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert one.database.store.oldest_snapshot() is None
        run(one, "BEGIN", "SELECT * FROM t WHERE id = 2 FOR UPDATE")
        run(two, "SELECT * FROM t WHERE id = 1 FOR UPDATE NOWAIT")
        with fails(errors.LOCK_NOT_AVAILABLE):
            run(two, "SELECT * FROM t WHERE id = 2 FOR UPDATE NOWAIT")

    assert ended(in_child(work)) == 0
