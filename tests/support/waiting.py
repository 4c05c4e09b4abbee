"""Sessions that wait for one another: in threads, told from those that run by the system view of locks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from instar import errors
from instar.dbapi import Connection
from support.databases import Engine, fails, run, value


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def sessions(engine: Engine) -> list[Connection]:
    """Four sessions; table t with rows 1 to 4, a table c that refers to it, and q without a key."""
    made = [engine.connect() for _ in range(4)]
    run(
        made[0],
        "CREATE TABLE t (id int PRIMARY KEY, a int, u int UNIQUE, s text)",
        "CREATE TABLE c (id int PRIMARY KEY, t int REFERENCES t)",
        "CREATE TABLE q (a int)",
        "INSERT INTO t VALUES (1, 0, 1, 'x'), (2, 0, 2, 'x'), (3, 0, 3, 'x'), (4, 0, 4, 'x')",
    )
    return made


def waiting(connection: Connection, number: int = 1) -> None:
    """Until so many transactions wait for a lock, as the system view has it."""
    while value(connection, "SELECT count(*) FROM instar.transaction_locks WHERE NOT granted") != number:
        pass


def later(pool: ThreadPoolExecutor, connection: Connection, *statements: str) -> Future[list[tuple[Any, ...]]]:
    """The statements, in a thread of their own; the rows of the last."""

    def work() -> list[tuple[Any, ...]]:
        run(connection, *statements[:-1])
        cursor = connection.execute(statements[-1])
        return cursor.fetchall() if cursor.description else []

    return pool.submit(work)


def give_up(connection: Connection, *statements: str) -> None:
    """The statements meet a lock: they would wait."""
    before = value(connection, "SHOW lock_timeout")
    with fails(errors.LOCK_NOT_AVAILABLE):
        run(connection, "SET lock_timeout = '1ms'", *statements)
    if connection.in_transaction:
        connection.rollback()
    connection.execute(f"SET lock_timeout = '{before}'")
