"""Many processes on one store, forks of a process with a connection, openers who disagree."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import instar
from instar import errors
from support.databases import fails, rows, run, value
from support.victims import ACCOUNTS, START, Victim, check_bank, open_bank, transfer

PROCESSES = 8
SECONDS = float(os.environ.get("INSTAR_MIXED_SECONDS", "3"))


def mixed(path: str, number: int, say: Callable[[object], None]) -> None:
    """For some seconds: transfers, readers whose sum must hold, and one that changes the schema."""
    connection = instar.connect(path, synchronous=None, autocommit=True)
    chance = random.Random(number)
    until = time.monotonic() + SECONDS
    done = 0
    while time.monotonic() < until:
        if number == 0:
            _change_schema(connection, done)
        elif number < 4:
            transfer(connection, chance, number, done + 1)
        else:
            _read(connection, chance)
        done += 1
        say(done)
    connection.close()


def _change_schema(connection: instar.Connection, number: int) -> None:
    changes = [
        f"ALTER TABLE account ADD COLUMN c{number} int DEFAULT {number}",
        "CREATE INDEX extra ON journal (amount)",
        f"ALTER TABLE account RENAME COLUMN c{number - 2} TO d{number}",
        "DROP INDEX extra",
        f"ALTER TABLE account DROP COLUMN d{number - 2}",
    ]
    connection.execute(changes[number % 5])
    time.sleep(0.02)


def _read(connection: instar.Connection, chance: random.Random) -> None:
    kind = chance.randrange(4)
    if kind == 0:
        assert value(connection, "SELECT sum(balance) FROM account") == ACCOUNTS * START
    elif kind == 1:
        assert sum(balance for (balance,) in rows(connection, "SELECT balance FROM account ORDER BY id")) == (
            ACCOUNTS * START
        )
    else:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        found = [value(connection, "SELECT balance FROM account WHERE id = ?", number) for number in range(ACCOUNTS)]
        assert sum(found) == ACCOUNTS * START
        connection.execute("COMMIT")


def test_a_mixed_load_of_many_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    connection = open_bank(path, "off")
    running = [Victim(mixed, path, number) for number in range(PROCESSES)]
    done = [process.join() for process in running]
    assert all(isinstance(count, int) and count > 5 for count in done), done
    acknowledged = {number: count for number, count in enumerate(done) if 0 < number < 4 and isinstance(count, int)}
    check_bank(connection, acknowledged)
    connection.close()


def _in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked child; fails if the child does, or hangs."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    if process.is_alive():
        process.kill()
        process.join()
        pytest.fail("the child hangs")
    assert process.exitcode == 0


@pytest.fixture
def parent(tmp_path: Path) -> instar.Connection:
    connection = instar.connect(str(tmp_path / "db"), synchronous="off", autocommit=True)
    run(connection, "CREATE TABLE t (id serial PRIMARY KEY, a int)", "INSERT INTO t (a) VALUES (1), (2)")
    value(connection, "SELECT a FROM t WHERE id = ?", 1)
    return connection


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_its_own(parent: instar.Connection) -> None:
    path = parent.database.path

    def child() -> None:
        own = instar.connect(path, synchronous="off", autocommit=True)
        for number in range(20):
            own.execute("INSERT INTO t (a) VALUES (?)", (number,))
        assert value(own, "SELECT count(*) FROM t") == 22
        own.close()

    _in_child(child)
    parent.execute("INSERT INTO t (a) VALUES (99)")
    assert value(parent, "SELECT count(*) FROM t") == 23
    assert value(parent, "SELECT count(DISTINCT id) FROM t") == 23
    assert rows(parent, "CHECK DATABASE") == []
    parent.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_its_parents_connection(parent: instar.Connection) -> None:
    """It works: the store is opened anew, and what the parent holds back (a sequence's block) is not given twice."""

    def child() -> None:
        assert value(parent, "SELECT a FROM t WHERE id = ?", 1) == 1
        for number in range(20):
            parent.execute("INSERT INTO t (a) VALUES (?)", (number,))
        assert value(parent, "SELECT count(*) FROM t") == 22
        parent.execute("ALTER TABLE t ADD COLUMN c int")
        parent.close()

    _in_child(child)
    for number in range(20):
        parent.execute("INSERT INTO t (a) VALUES (?)", (number,))
    assert value(parent, "SELECT count(*) FROM t") == 42
    assert value(parent, "SELECT count(DISTINCT id) FROM t") == 42
    assert rows(parent, "CHECK DATABASE") == []
    parent.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_transaction(parent: instar.Connection) -> None:
    """A transaction belongs to the process that began it: a child that could commit it would do so twice."""
    parent.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    parent.execute("INSERT INTO t (a) VALUES (3)")

    def child() -> None:
        for statement in ("SELECT 1", "INSERT INTO t (a) VALUES (4)", "COMMIT"):
            with pytest.raises(instar.Error) as caught:
                parent.execute(statement)
            assert caught.value.sqlstate in ("25000", errors.IN_FAILED_TRANSACTION)
        assert value(parent, "SELECT count(*) FROM t") == 2

    _in_child(child)
    parent.execute("COMMIT")
    assert value(parent, "SELECT count(*) FROM t") == 3
    parent.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_that_ends_disturbs_nobody(parent: instar.Connection) -> None:
    """Its copies of the parent's objects are collected, or not, at its end."""

    def child() -> None:
        instar.connect(parent.database.path, synchronous="off")  # never closed

    for _ in range(3):
        _in_child(child)
        parent.execute("INSERT INTO t (a) VALUES (5)")
    assert value(parent, "SELECT count(*) FROM t") == 5
    parent.close()


def _open_as(path: str, synchronous: str, say: Callable[[object], None]) -> None:
    try:
        instar.connect(path, synchronous=synchronous).close()
    except instar.Error as refused:
        say((refused.sqlstate, str(refused)))
    else:
        say("opened")


def open_as_full(path: str, number: int, say: Callable[[object], None]) -> None:
    _open_as(path, "full", say)


def open_as_normal(path: str, number: int, say: Callable[[object], None]) -> None:
    _open_as(path, "normal", say)


def test_openers_must_agree_on_durability(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="normal")
    assert Victim(open_as_normal, path, 0).join() == "opened"
    refused = Victim(open_as_full, path, 0).join()
    assert isinstance(refused, tuple)
    assert "normal" in refused[1]
    assert refused[0] != errors.INTERNAL_ERROR
    connection.close()


def test_many_first_openers(tmp_path: Path) -> None:
    """One of them makes the store; none is refused."""
    path = str(tmp_path / "db")
    assert [opener.join() for opener in [Victim(open_as_normal, path, n) for n in range(4)]] == ["opened"] * 4


@pytest.mark.parametrize("synchronous", ["full", "off"])
def test_a_store_that_is_removed_under_its_users_takes_no_more_commits(tmp_path: Path, synchronous: str) -> None:
    path = tmp_path / "db"
    connection = instar.connect(str(path), synchronous=synchronous, autocommit=True)
    run(connection, "CREATE TABLE t (id int PRIMARY KEY)")
    path.rename(tmp_path / "moved")  # which takes nothing away
    insert = "INSERT INTO t VALUES (?)"
    for number in range(100):
        connection.execute(insert, (number,))
    shutil.rmtree(tmp_path / "moved")
    for statements in (1, 2):
        with fails(errors.IO_ERROR, "removed"):
            for number in range(100 * statements, 200 * statements):
                connection.execute(insert, (number,))
    connection.close()
