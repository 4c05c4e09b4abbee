"""Databases to test through SQL: an engine of either kind, connections to it, and what a statement fails with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

import instar
from instar.database import Database, session
from instar.dbapi import Connection
from instar.store.engine import Store


class Engine:
    """One database of which any number of connections can be had, in memory too (where `instar.connect` gives each
    its own). `close` closes them all."""

    def __init__(self, path: str, *, schema_lease: float | None = None) -> None:
        self.path = path
        self._held = Database.open(path, synchronous="off", schema_lease=schema_lease)
        self._connections: list[Connection] = []

    @property
    def database(self) -> Database:
        """The database itself."""
        return self._held

    def connect(self, *, autocommit: bool = True, **settings: str) -> Connection:
        """A new session with the database."""
        connection = Connection(_use(self._held), autocommit=autocommit, settings=settings)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._held.release()


def _use(database: Database) -> Database:
    """One more use of an open database: Connection.close gives it back."""
    with Database._lock:
        database._users += 1
    return database


def general_commits(patch: pytest.MonkeyPatch) -> None:
    """Commits of few rows, too, are derived before they are judged: else nothing comes between (short_commits.py)."""
    patch.setattr(session, "commit_few", lambda *_: False)


def before_the_next_commit(store: Store, patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have `act` happen once, right before something is committed, however that is derived."""
    methods = {name: getattr(store, name) for name in ("commit", "commit_derived")}

    def later(name: str, asked: object) -> object:
        for each, real in methods.items():
            patch.setattr(store, each, real)
        act()
        return methods[name](asked)

    for name in methods:
        patch.setattr(store, name, partial(later, name))


def rows(connection: Connection, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return connection.execute(sql, parameters).fetchall()


def value(connection: Connection, sql: str, *parameters: object) -> Any:
    """The one value of a query that gives one."""
    ((found,),) = rows(connection, sql, *parameters)
    return found


def run(connection: Connection, *statements: str) -> None:
    """Execute statements one after the other."""
    for statement in statements:
        connection.execute(statement)


class Failed:
    """What a block failed with: `error` is there when it has ended."""

    error: instar.Error


@contextmanager
def fails(sqlstate: str, *words: str) -> Iterator[Failed]:
    """The block raises an error of this SQLSTATE whose message or detail holds all the words."""
    failed = Failed()
    with pytest.raises(instar.Error) as caught:
        yield failed
    failed.error = caught.value
    assert caught.value.sqlstate == sqlstate, repr(caught.value)
    told = f"{caught.value.message} {caught.value.detail}"
    assert all(word in told for word in words), told
