"""Schema locks across processes: who waits for another process, and what is left of one that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import instar
from instar import errors
from instar.dbapi import Connection
from store.building import ended, in_child
from support.databases import fails, rows, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a table t, closed."""
    found = tmp_path / "db"
    with instar.connect(found, synchronous="off", autocommit=True) as connection:
        run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 0)")
    return found


@pytest.fixture
def connection(path: Path) -> Iterator[Connection]:
    with instar.connect(path, synchronous="off", autocommit=True) as made:
        run(made, "SET lock_timeout = '20ms'")
        yield made


def child(path: Path, *statements: str) -> int:
    """A process that has executed the statements, and does nothing more until it is killed."""
    heard, hear = os.pipe()

    def work() -> None:
        with instar.connect(path, synchronous="off", autocommit=True) as own:
            run(own, *statements)
            os.write(hear, b".")
            signal.pause()

    made = in_child(work)
    assert os.read(heard, 1) == b"."
    return made


def test_a_killed_holder_lets_go_of_the_schema(path: Path, connection: Connection) -> None:
    holder = child(path, "BEGIN ISOLATION LEVEL READ COMMITTED LOCK", "UPDATE t SET a = 1 WHERE id = 1")
    assert ("t", "SCH-S", holder) in rows(connection, "SELECT table_name, mode, pid FROM instar.transaction_locks")
    with fails(errors.LOCK_NOT_AVAILABLE):
        run(connection, "ALTER TABLE t ADD COLUMN n int")
    os.kill(holder, signal.SIGKILL)
    assert ended(holder) == -signal.SIGKILL
    run(connection, "ALTER TABLE t ADD COLUMN n int")
    assert rows(connection, "SELECT * FROM t") == [(1, 0, None)]
    assert rows(connection, "SELECT * FROM instar.transaction_locks") == []


@pytest.mark.parametrize(("change", "mode"), [("ALTER TABLE t ADD COLUMN n int", "SCH-C"), ("DROP TABLE t", "SCH-M")])
def test_a_killed_change_leaves_nothing(path: Path, connection: Connection, change: str, mode: str) -> None:
    holder = child(path, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", change)
    assert rows(connection, "SELECT table_name, mode, pid FROM instar.transaction_locks") == [("t", mode, holder)]
    assert rows(connection, "SELECT * FROM t") == [(1, 0)]
    with fails(errors.LOCK_NOT_AVAILABLE):
        run(connection, "SELECT * FROM t WITH (NOLOCK)")
    os.kill(holder, signal.SIGKILL)
    assert ended(holder) == -signal.SIGKILL
    assert rows(connection, "SELECT * FROM t WITH (NOLOCK)") == [(1, 0)]
