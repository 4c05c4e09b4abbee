"""Sessions that interleave against a model of snapshot isolation with buffered writes: READ COMMITTED with row locks
(on which nobody waits here for long), REPEATABLE READ, autocommit, savepoints, failed statements, primary keys that
move, a unique index; on both engines."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

import instar
from instar import errors
from instar.dbapi import Connection
from support.databases import Engine, rows, run, value

STEPS = int(os.environ.get("INSTAR_STEPS", "3000"))
SESSIONS = 3
KEYS = range(30)

Row = tuple[int | None, str]  # a (unique), b
Resource = tuple[int, int]  # (0, key) of a row, (1, value) of a unique key


class Written(NamedTuple):
    """A buffered row: the version it was made on (None: inserted), the row it replaces, the new row."""

    base: int | None
    old: Row | None
    new: Row | None


@dataclass
class State:
    """Committed rows, and a counter per key that moves with every commit that touches it."""

    rows: dict[int, Row] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)

    def snapshot(self) -> State:
        return State(dict(self.rows), dict(self.versions))


class Refused(Exception):
    """What the model refuses, by SQLSTATE."""


class Client:
    """One session, and what the model knows of its transaction."""

    def __init__(self, engine: Engine, committed: State, all_: list[Client]) -> None:
        self.connection: Connection = engine.connect(lock_timeout="1us")
        self.committed = committed
        self._all = all_
        self.end()

    def end(self) -> None:
        self.open = False
        self.failed = False
        self.repeatable = False
        self.snapshot: State | None = None
        self.buffer: dict[int, Written] = {}
        self.savepoints: list[tuple[str, dict[int, Written]]] = []
        self.locks: set[Resource] = set()

    def fail(self) -> None:
        """A transaction that can only be rolled back holds nothing any more."""
        self.failed = True
        if not self.savepoints:
            self.locks = set()

    def others_hold(self) -> set[Resource]:
        """What other transactions have locked."""
        return {lock for client in self._all if client is not self for lock in client.locks}

    def lock(self, before: dict[int, Written]) -> None:
        """Lock what is not in the buffer as it was `before`; refused at the first lock that is another's."""
        others = self.others_hold()
        for resource in sorted(set(_resources(self.buffer, before))):
            if resource in others:
                self.buffer = before
                raise Refused(errors.LOCK_NOT_AVAILABLE)
            self.locks.add(resource)

    def begin(self, *, repeatable: bool) -> None:
        self.end()
        self.open, self.repeatable = True, repeatable

    def see(self) -> dict[int, Row]:
        """Rows as a statement that begins now sees them."""
        if self.snapshot is None or not self.repeatable:
            self.snapshot = self.committed.snapshot()
        return {key: row for key, row in self._overlaid(self.snapshot.rows).items() if row is not None}

    def _overlaid(self, under: dict[int, Row]) -> dict[int, Row | None]:
        return {**under, **{key: written.new for key, written in self.buffer.items()}}

    def change(self, changed: dict[int, tuple[int, Row] | None]) -> None:
        """Old keys to new key and row, or None to delete; raises Refused and leaves the buffer as it was."""
        before = dict(self.buffer)
        self._change(changed, before)
        if self.open and not self.repeatable:
            self.lock(before)

    def _change(self, changed: dict[int, tuple[int, Row] | None], before: dict[int, Written]) -> None:
        seen = self.see()
        try:
            for key, target in changed.items():
                if key >= 0 and (target is None or target[0] != key):
                    self._delete(key, seen[key])
            moved = [(key, target) for key, target in changed.items() if target is not None]
            # Where an own insert went, a row shows that another session has committed under the same key since.
            assert self.snapshot is not None
            staying = {key for key, target in changed.items() if target is not None and target[0] == key}
            after = {
                key: row
                for key, row in self._overlaid(self.snapshot.rows).items()
                if row is not None and key not in staying
            }
            for key, (new_key, row) in moved:
                if new_key in after:
                    raise Refused(errors.UNIQUE_VIOLATION)
                after[new_key] = row
                self._put(key, new_key, row, seen)
            for key, (new_key, row) in moved:
                if key < 0 or seen[key][0] != row[0]:
                    _require_unique(after, new_key, row)
        except Refused:
            self.buffer = before
            raise

    def _delete(self, key: int, row: Row) -> None:
        written = self.buffer.get(key)
        if written is None:
            assert self.snapshot is not None
            self.buffer[key] = Written(self.snapshot.versions[key], row, None)
        elif written.base is None:
            del self.buffer[key]
        else:
            self.buffer[key] = written._replace(new=None)

    def _put(self, key: int, new_key: int, row: Row, seen: dict[int, Row]) -> None:
        written = self.buffer.get(new_key)
        if written is not None:
            self.buffer[new_key] = written._replace(new=row)
        elif key == new_key:
            assert self.snapshot is not None
            self.buffer[key] = Written(self.snapshot.versions[key], seen[key], row)
        else:
            self.buffer[new_key] = Written(None, None, row)

    def commit(self) -> None:
        """Refused with 40001 where another commit came first, with 55P03 where another transaction has locks: neither
        befalls one that has locked what it wrote."""
        current = self.committed
        after = {key: row for key, row in self._overlaid(current.rows).items() if row is not None}
        for key, written in self.buffer.items():
            stands = key in current.rows
            if stands if written.base is None else not stands or current.versions[key] != written.base:
                raise Refused(errors.SERIALIZATION_FAILURE)
        if not self.others_hold().isdisjoint(_resources(self.buffer, {})):
            raise Refused(errors.LOCK_NOT_AVAILABLE)
        for key, written in self.buffer.items():
            if written.new is not None and (written.old is None or written.old[0] != written.new[0]):
                try:
                    _require_unique(after, key, written.new)
                except Refused:
                    raise Refused(errors.SERIALIZATION_FAILURE) from None
        current.rows = after
        for key in self.buffer:
            current.versions[key] = current.versions.get(key, 0) + 1


def _resources(buffer: dict[int, Written], before: dict[int, Written]) -> Iterator[Resource]:
    """The rows, and the unique keys that come and go, of what is in the buffer and was not before."""
    for key, written in buffer.items():
        if before.get(key) is not written:
            yield 0, key
            old, new = (None if row is None else row[0] for row in (written.old, written.new))
            if old != new or written.old is None or written.new is None:
                yield from ((1, value) for value in (old, new) if value is not None)


def _require_unique(among: dict[int, Row], key: int, row: Row) -> None:
    if row[0] is not None and any(other[0] == row[0] for place, other in among.items() if place != key):
        raise Refused(errors.UNIQUE_VIOLATION)


class Interleaving:
    """A run of random steps of several sessions."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.chance = random.Random(seed)
        self.committed = State()
        self.clients: list[Client] = []
        self.clients += [Client(engine, self.committed, self.clients) for _ in range(SESSIONS)]
        run(self.clients[0].connection, "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, b text)")
        self.refused: dict[str, int] = {}

    def step(self) -> None:
        client = self.chance.choice(self.clients)
        kinds: list[Callable[[Client], None]] = [*[self.write] * 6, *[self.read] * 3]
        kinds += [self.savepoint, self.rollback_to, *[self.commit] * 2] if client.open else [self.begin] * 2
        if client.failed and self.chance.random() < 0.7:
            kinds = [self.rollback_to, self.rollback]
        self.chance.choice(kinds)(client)

    def expect(self, client: Client, wanted: str | None, sql: str, *given: object) -> None:
        """Executing `sql` raises this SQLSTATE, or nothing."""
        try:
            client.connection.execute(sql, given)
        except instar.Error as error:
            raised = error
        else:
            assert wanted is None, sql
            return
        # What stands in the way may be another's to remove: then the statement waits for that.
        locked = wanted == errors.UNIQUE_VIOLATION and raised.sqlstate == errors.LOCK_NOT_AVAILABLE
        assert raised.sqlstate == wanted or (locked and client.others_hold()), (sql, given, raised)
        self.refused[raised.sqlstate] = self.refused.get(raised.sqlstate, 0) + 1

    # --- transactions -------------------------------------------------------------------------------------------------

    def begin(self, client: Client) -> None:
        repeatable = self.chance.random() < 0.5
        self.expect(client, None, f"BEGIN ISOLATION LEVEL {'REPEATABLE READ' if repeatable else 'READ COMMITTED'}")
        client.begin(repeatable=repeatable)

    def commit(self, client: Client) -> None:
        try:
            if not client.failed:
                assert client.repeatable or client.locks or not client.buffer
                client.commit()
            wanted = None
        except Refused as refused:
            wanted = str(refused)
            assert client.repeatable
        self.expect(client, wanted, "COMMIT")
        client.end()

    def rollback(self, client: Client) -> None:
        self.expect(client, None, "ROLLBACK")
        client.end()

    def savepoint(self, client: Client) -> None:
        name = self.chance.choice("xy")
        self.expect(client, errors.IN_FAILED_TRANSACTION if client.failed else None, f"SAVEPOINT {name}")
        if not client.failed:
            client.savepoints.append((name, dict(client.buffer)))

    def rollback_to(self, client: Client) -> None:
        name = self.chance.choice("xy")
        places = [place for place, (known, _) in enumerate(client.savepoints) if known == name]
        self.expect(client, None if places else errors.INVALID_SAVEPOINT, f"ROLLBACK TO {name}")
        if places:
            del client.savepoints[places[-1] + 1 :]
            client.buffer = dict(client.savepoints[-1][1])
            client.failed = False
        else:
            client.fail()

    # --- statements ---------------------------------------------------------------------------------------------------

    def write(self, client: Client) -> None:
        chance = self.chance
        seen = {} if client.failed else client.see()
        key, a, b = chance.choice(KEYS), chance.choice([None, *range(40)]), chance.choice("pqr")
        kind = chance.choice(["insert", "insert", "two", *["update"] * 6, "shift", "move", "delete"])
        changed: dict[int, tuple[int, Row] | None] = {}
        given: tuple[object, ...]
        if kind == "insert":
            sql, given = "INSERT INTO t VALUES (?, ?, ?)", (key, a, b)
            changed[-1] = (key, (a, b))
        elif kind == "two":
            sql, given = "INSERT INTO t SELECT ? + n, NULL, ? FROM generate_series(0, 1) AS g (n)", (key, b)
            changed[-1], changed[-2] = (key, (None, b)), (key + 1, (None, b))
        elif kind == "update":
            sql, given = "UPDATE t SET a = ?, b = ? WHERE id = ?", (a, b, key)
            changed.update({key: (key, (a, b))} if key in seen else {})
        elif kind == "shift":
            sql, given = "UPDATE t SET a = a + 1 WHERE b = ?", (b,)
            for found, (own, text) in seen.items():
                if text == b:
                    changed[found] = (found, (None if own is None else own + 1, text))
        elif kind == "move":
            sql, given = "UPDATE t SET id = id + 1 WHERE id >= ?", (key,)
            changed.update({found: (found + 1, row) for found, row in seen.items() if found >= key})
        else:
            sql, given = "DELETE FROM t WHERE id = ? OR a = ?", (key, a)
            changed.update(
                {found: None for found, row in seen.items() if found == key or (a is not None and row[0] == a)}
            )
        self._run(client, changed, sql, given)

    def _run(
        self, client: Client, changed: dict[int, tuple[int, Row] | None], sql: str, given: tuple[object, ...]
    ) -> None:
        if client.failed:
            self.expect(client, errors.IN_FAILED_TRANSACTION, sql, *given)
            return
        try:
            client.change(changed)
            if not client.open:
                client.commit()
            wanted = None
        except Refused as refused:
            wanted = str(refused)
        self.expect(client, wanted, sql, *given)
        if not client.open:
            client.end()
        elif wanted is not None:
            client.fail()

    def read(self, client: Client) -> None:
        if client.failed:
            self.expect(client, errors.IN_FAILED_TRANSACTION, "SELECT * FROM t")
            return
        seen, connection, chance = client.see(), client.connection, self.chance
        kind = chance.randrange(5)
        if kind == 0:
            assert rows(connection, "SELECT * FROM t ORDER BY id") == [(key, *seen[key]) for key in sorted(seen)]
        elif kind == 1:
            key = chance.choice(KEYS)
            assert rows(connection, "SELECT a, b FROM t WHERE id = ?", key) == ([seen[key]] if key in seen else [])
        elif kind == 2:
            a = chance.randrange(15)
            assert rows(connection, "SELECT id FROM t WHERE a = ?", a) == [
                (k,) for k, row in seen.items() if row[0] == a
            ]
        elif kind == 3:
            wanted = sorted((row[0], key) for key, row in seen.items() if row[0] is not None and row[0] > 4)
            assert rows(connection, "SELECT a, id FROM t WHERE a > 4 ORDER BY a") == wanted
        else:
            total = sum(row[0] for row in seen.values() if row[0] is not None)
            found = rows(connection, "SELECT count(*), coalesce(sum(a), 0) FROM t")
            assert found == [(len(seen), total)]
        if not client.open:
            client.end()


@pytest.mark.parametrize("seed", range(4))
def test_interleaved_sessions(engine: Engine, seed: int) -> None:
    interleaving = Interleaving(engine, seed)
    for number in range(STEPS):
        interleaving.step()
        if number % 100 == 99:
            fresh = rows(engine.connect(), "SELECT * FROM t ORDER BY id")
            assert fresh == [(key, *row) for key, row in sorted(interleaving.committed.rows.items())]
    for client in interleaving.clients:
        client.connection.rollback()
    assert rows(engine.connect(), "CHECK DATABASE") == []
    assert min(interleaving.refused.values()) > 1
    assert interleaving.refused.keys() == {
        errors.SERIALIZATION_FAILURE, errors.UNIQUE_VIOLATION, errors.IN_FAILED_TRANSACTION, errors.INVALID_SAVEPOINT,
        errors.LOCK_NOT_AVAILABLE,
    }  # fmt: skip
    assert value(engine.connect(), "SELECT count(*) FROM t") == len(interleaving.committed.rows)
