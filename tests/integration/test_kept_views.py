"""An application that is not changed goes on through kept views as on the tables that it knew: random statements on
both, with the same results, and the same rows at the end; and the new tables are what the operator makes of these."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any, NamedTuple

import pytest

import instar
from support.databases import Engine, rows, run

Row = tuple[Any, ...]

SPLIT = ["CREATE TABLE p (id int PRIMARY KEY, n text DEFAULT 'new', z int, t text CHECK (t <> 'bad'))"]
FILLED = ["INSERT INTO p VALUES (1, 'a', 1, 'T1'), (2, 'b', 1, 'T1'), (3, 'c', 2, 'T2'), (4, NULL, NULL, NULL)"]
ONE_TO_MANY = [
    "CREATE TABLE r (id int PRIMARY KEY, a text NOT NULL DEFAULT 'new', k int)",
    "CREATE TABLE s (k int PRIMARY KEY, b text CHECK (b <> 'bad'))",
    "INSERT INTO r VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 3), (4, 'd', NULL)",
    "INSERT INTO s VALUES (1, 'x'), (2, 'y')",
]
MANY_TO_MANY = [
    "CREATE TABLE r (id int PRIMARY KEY, a text NOT NULL DEFAULT 'new', k int)",
    "CREATE TABLE s (no int PRIMARY KEY, b text CHECK (b <> 'bad'), k int)",
    "INSERT INTO r VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 3), (4, 'd', NULL)",
    "INSERT INTO s VALUES (1, 'x', 1), (2, 'y', 1), (3, 'z', 2), (4, 'z', NULL)",
]


_CONTRADICTIONS = ("23514", "23502")  # what rows of the new tables cannot say


class World(NamedTuple):
    """Tables, the change of them, and what the application says."""

    tables: list[str]
    change: str
    statement: Callable[[random.Random], str]
    names: tuple[str, ...]
    # Queries that must give the same: over the old tables, and over the new ones.
    operator: tuple[tuple[str, str], ...]


def split_statement(chance: random.Random) -> str:
    number, value, other = chance.randrange(8), chance.choice(["1", "2", "3", "NULL"]), chance.randrange(1, 4)
    text = {"1": "'T1'", "2": "'T2'", "3": "'T3'", "NULL": "NULL"}[value]
    text = text if chance.random() < 0.8 else chance.choice(["'U'", "NULL", "'bad'"])
    return chance.choice([
        f"INSERT INTO p VALUES ({number}, 'i', {value}, {text})",
        f"INSERT INTO p (t, id, z) VALUES ({text}, {number}, {value}), ({text}, {number + 1}, {value}) RETURNING *",
        f"INSERT INTO p SELECT id + 4, n, z, t FROM p WHERE z = {other} RETURNING id, t",
        f"INSERT INTO p SELECT id + 3, n, {value}, {text} FROM p WHERE id < 3",
        f"UPDATE p SET n = n || 'u' WHERE z = {other} OR id = {number} RETURNING *",
        f"UPDATE p SET z = {value}, t = {text} WHERE id IN ({number}, {other}) RETURNING id, z, t",
        f"UPDATE p SET t = 'W' || {other} WHERE z = {other} RETURNING id, t",
        f"UPDATE p AS old SET t = {text}, n = 'w' WHERE old.id >= {number}",
        f"UPDATE p SET id = id + {other} WHERE id >= {number} RETURNING id",
        f"UPDATE p SET id = {number + other} - id WHERE id BETWEEN {other} AND {number} RETURNING *",
        f"UPDATE p SET n = q.n, z = q.z, t = q.t FROM p AS q WHERE q.id = p.id + {other} AND p.id < {number}",
        f"DELETE FROM p WHERE id = {number} OR t = {text} RETURNING id, n",
        f"DELETE FROM p USING p AS q WHERE p.z = q.z AND q.id = {number} AND p.id <> {other} RETURNING p.id",
        f"SELECT p.id, q.id FROM p JOIN p AS q ON p.z = q.z WHERE p.t = {text}",
    ])  # fmt: skip


def join_statement(chance: random.Random) -> str:
    number, value, other = chance.randrange(7), chance.choice(["1", "2", "3", "NULL"]), chance.randrange(1, 4)
    return chance.choice([
        f"INSERT INTO r VALUES ({number}, 'i', {value})",
        f"INSERT INTO r (k, id) VALUES ({value}, {number}), ({other}, {number + 1}) RETURNING *",
        f"INSERT INTO r SELECT id + 4, a, {value} FROM r WHERE k = {other} RETURNING id, k",
        f"UPDATE r SET a = a || 'u' WHERE k = {other} OR id = {number} RETURNING *",
        f"UPDATE r SET k = {value} WHERE id IN ({number}, {other}) RETURNING id, k",
        f"UPDATE r SET id = id + {other}, k = {value} WHERE id >= {number} RETURNING id",
        f"UPDATE r SET id = {number + other} - id WHERE id BETWEEN {other} AND {number} RETURNING *",
        f"UPDATE r SET a = b FROM (SELECT k, max(b) AS b FROM s GROUP BY k) q WHERE q.k = r.k AND id < {number}",
        f"UPDATE r SET a = NULL WHERE id = {number}",
        f"DELETE FROM r WHERE id = {number} RETURNING id, a",
        "DELETE FROM r USING s WHERE r.k = s.k AND s.b = 'x' RETURNING r.id",
        f"UPDATE s SET b = b || {other} WHERE k = {other} RETURNING *",
        "UPDATE s SET b = 'bad' WHERE k = 1",
        f"DELETE FROM s WHERE k = {other} RETURNING b",
        f"SELECT r.id, s.b FROM r LEFT JOIN s ON r.k = s.k WHERE r.id < {number}",
    ])  # fmt: skip


def one_to_many_statement(chance: random.Random) -> str:
    number, other = chance.randrange(1, 5), chance.randrange(1, 4)
    own = [
        f"INSERT INTO s VALUES ({number}, 'i')",
        f"INSERT INTO s VALUES ({number}, 'j'), ({number + 1}, NULL) RETURNING *",
        f"UPDATE s SET k = k + {other} WHERE k >= {number} RETURNING k",
        f"UPDATE s SET k = {number + other} - k WHERE k BETWEEN {other} AND {number}",
        f"DELETE FROM s WHERE k >= {number}",
    ]
    return chance.choice(own) if chance.random() < 0.4 else join_statement(chance)


def many_to_many_statement(chance: random.Random) -> str:
    number, other, value = chance.randrange(6), chance.randrange(1, 4), chance.choice(["1", "2", "3", "NULL"])
    own = [
        f"INSERT INTO s VALUES ({number}, 'i', {value})",
        f"INSERT INTO s (no, k) VALUES ({number}, {value}), ({number + 1}, {other}) RETURNING *",
        f"UPDATE s SET k = {value} WHERE no IN ({number}, {other}) RETURNING no",
        f"UPDATE s SET no = no + {other}, b = 'm' WHERE no >= {number} RETURNING no, k",
        f"DELETE FROM s WHERE no = {number}",
    ]
    return chance.choice(own) if chance.random() < 0.4 else join_statement(chance)


OPERATOR_OF_SPLIT = (
    ("SELECT id, n, z FROM p", "SELECT id, n, z FROM pr"),
    ("SELECT DISTINCT z, t FROM p WHERE z IS NOT NULL", "SELECT z, t FROM ps"),
)
OPERATOR_OF_JOIN = (("SELECT id, a, r.k, s.k, b FROM r FULL JOIN s ON r.k = s.k", "SELECT id, a, rk, sk, b FROM t"),)
WORLDS = {
    "split": World(
        [*SPLIT, *FILLED],
        "ALTER TABLE p SPLIT INTO pr (id, n, z), ps (z, t) ON (z) WITH (keep_views = true)",
        split_statement,
        ("p",),
        OPERATOR_OF_SPLIT,
    ),
    "split in place": World(
        [*SPLIT, "CREATE INDEX ON p (z)", *FILLED],
        "ALTER TABLE p SPLIT IN PLACE INTO pr (id, n, z), ps (z, t) ON (z) WITH (keep_views = true)",
        split_statement,
        ("p",),
        OPERATOR_OF_SPLIT,
    ),
    "one-to-many join": World(
        ONE_TO_MANY,
        "ALTER TABLE r JOIN s ON r.k = s.k INTO t (id, a, r.k AS rk, s.k AS sk, b) WITH (keep_views = true)",
        one_to_many_statement,
        ("r", "s"),
        OPERATOR_OF_JOIN,
    ),
    "many-to-many join": World(
        MANY_TO_MANY,
        "ALTER TABLE r JOIN s ON r.k = s.k INTO t (id, a, r.k AS rk, no, b, s.k AS sk) WITH (keep_views = true)",
        many_to_many_statement,
        ("r", "s"),
        (("SELECT id, a, r.k, no, b, s.k FROM r FULL JOIN s ON r.k = s.k", "SELECT id, a, rk, no, b, sk FROM t"),),
    ),
}  # fmt: skip


class Both:
    """The application on the tables that it knew, and on the views in their stead."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model, self.views = (instar.connect(autocommit=True) for _ in range(2))
        for connection in (self.model, self.views):
            run(connection, *world.tables)
        run(self.views, world.change)

    def close(self) -> None:
        self.model.close()
        self.views.close()

    def compare(self) -> None:
        """Both have the same rows, and the new tables what the operator makes of them."""
        for name in self.world.names:
            assert bag(self.model, f"SELECT * FROM {name}") == bag(self.views, f"SELECT * FROM {name}")
        for old, new in self.world.operator:
            assert bag(self.model, old) == bag(self.views, new)

    def step(self, statement: str) -> str:
        """A statement on both: what it failed with, if it did."""
        savepoint = "SAVEPOINT a"
        run(self.model, savepoint)
        run(self.views, savepoint)
        expected = outcome(self.model, statement)
        got = outcome(self.views, statement)
        if isinstance(expected, Counter) and self._contradicts():
            assert got in _CONTRADICTIONS, statement
            expected = got
        elif expected == "23505" and got in _CONTRADICTIONS:
            expected = got  # it is wrong in both ways
        assert got == expected, statement
        if isinstance(expected, str):
            run(self.model, "ROLLBACK TO a")
            run(self.views, "ROLLBACK TO a")
        self.compare()
        return expected if isinstance(expected, str) else ""

    def _contradicts(self) -> bool:
        """Whether the old table has rows by now that the new ones cannot have."""
        if self.world.names != ("p",):
            return False
        several = (
            "SELECT 1 FROM p GROUP BY z HAVING z IS NOT NULL AND (count(DISTINCT t) > 1 OR count(t) % count(*) > 0)"
        )
        return bool(rows(self.model, several) or rows(self.model, "SELECT 1 FROM p WHERE z IS NULL AND t IS NOT NULL"))


def bag(connection: instar.Connection, query: str) -> Counter[Row]:
    return Counter(rows(connection, query))


def outcome(connection: instar.Connection, statement: str) -> Counter[Row] | str:
    """What a statement gives, and of how many rows, or the SQLSTATE that it fails with."""
    try:
        cursor = connection.execute(statement)
    except instar.Error as failed:
        return str(failed.sqlstate)
    found = Counter(cursor.fetchall() if cursor.description else ())
    found[cursor.rowcount,] += 1
    return found


@pytest.fixture(params=WORLDS)
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    made = Both(WORLDS[request.param])
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(3))
def test_an_old_application_goes_on(both: Both, seed: int) -> None:
    chance = random.Random(seed)
    failed: Counter[str] = Counter()
    for _ in range(25):
        for connection in (both.model, both.views):
            run(connection, "BEGIN")
        for _ in range(chance.randrange(1, 5)):
            failed[both.step(both.world.statement(chance))] += 1
        end = chance.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        for connection in (both.model, both.views):
            run(connection, end)
        both.compare()
    assert failed[""] > 20
    assert rows(both.views, "CHECK DATABASE") == []


# --- through the change ----------------------------------------------------------------------------------------------

THREADS = 3

# Statements with their parameters, each with what it makes of the rows that the client knows; how many it changes.
Said = list[tuple[str, tuple[object, ...], Callable[[dict[int, Row]], int]]]


class Application(Thread):
    """One client of an application, with rows of its own, which says the same through the whole change. It knows what
    its rows must be; whatever it meets but 40001 is an error."""

    def __init__(self, engine: Engine, number: int, statements: Callable[[random.Random, int], Said]) -> None:
        super().__init__()
        self._connection = engine.connect()
        self._number = number
        self._statements = statements
        self.ended = Event()
        self.rows: dict[int, Row] = {}
        self.done = self.retried = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        chance = random.Random(self._number)
        try:
            while not self.ended.is_set() or self.done < 40:
                said = self._statements(chance, self._number * 100 + chance.randrange(10))
                self._transaction(said, chance.random() < 0.5)
                self.ended.wait(0.002)  # a job makes way for who writes without a pause
        except (instar.Error, AssertionError) as failure:
            self.failure = failure

    def _transaction(self, said: Said, in_block: bool) -> None:
        rows = dict(self.rows)
        try:
            if in_block:
                run(self._connection, "BEGIN")
            for text, parameters, change in said:
                count = self._connection.execute(text, parameters).rowcount
                assert count == change(rows), text
            if in_block:
                run(self._connection, "COMMIT")
        except instar.Error as failed:
            if failed.sqlstate != "40001":
                raise
            self.retried += 1
            if in_block:
                run(self._connection, "ROLLBACK")
            return
        self.rows, self.done = rows, self.done + 1


def one_row(chance: random.Random, number: int) -> Said:
    """A client's next transaction: one row of `p`, whatever there is of it now, made another."""
    value = chance.randrange(4)
    new = (f"n{value}", value, f"T{value}")

    def inserted(rows: dict[int, Row]) -> int:
        added = number not in rows
        rows.setdefault(number, new)
        return int(added)

    def updated(rows: dict[int, Row]) -> int:
        if number in rows:
            rows[number] = (rows[number][0], *new[1:])
        return int(number in rows)

    def deleted(rows: dict[int, Row]) -> int:
        return int(rows.pop(number, None) is not None)

    insert = "INSERT INTO p (id, n, z, t) SELECT ?, ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM p WHERE id = ?)"
    return [chance.choice([
        (insert, (number, *new, number), inserted),
        ("UPDATE p SET z = ?, t = ? WHERE id = ?", (*new[1:], number), updated),
        ("DELETE FROM p WHERE id = ?", (number,), deleted),
    ])]  # fmt: skip


@pytest.mark.parametrize("kind", ["split", "split in place"])
def test_an_application_runs_through_the_change(kind: str) -> None:
    engine = Engine(":memory:")
    world = WORLDS[kind]
    connection = engine.connect()
    run(connection, *world.tables, "DELETE FROM p")
    clients = [Application(engine, number, one_row) for number in range(THREADS)]
    for client in clients:
        client.start()
    try:
        while not all(client.done > 5 or client.failure for client in clients):
            time.sleep(0.001)
        run(connection, world.change)
    finally:
        for client in clients:
            client.ended.set()
            client.join()
    assert [client.failure for client in clients] == [None] * THREADS
    expected = {number: row for client in clients for number, row in client.rows.items()}
    assert {row[0]: row[1:] for row in rows(connection, "SELECT id, n, z, t FROM p")} == expected
    assert Counter(rows(connection, "SELECT z, t FROM ps")) == Counter({row[1:] for row in expected.values()})
    assert rows(connection, "CHECK DATABASE") == []
    engine.close()
