"""Pairs of statements, of which one is committed between the other and its commit: if both stand, what there is then
is what one after the other would have left. The transaction does nothing else, so nothing else was read or locked."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

import instar
from instar import errors
from instar.dbapi import Connection
from support.databases import Engine, rows, run


class Scene(NamedTuple):
    """What there is, the tables that have it then, and statements of which each may meet each."""

    setup: tuple[str, ...]
    tables: tuple[str, ...]
    statements: tuple[str, ...]


_JOIN = "ALTER TABLE r JOIN s ON r.x = s.x INTO j (id, r.x AS rx, a, q, s.x AS sx, b) WITH (keep_views = true)"
_OF_A_JOIN = (
    "INSERT INTO r VALUES (9, 1, 0)",
    "INSERT INTO r VALUES (9, 7, 0)",
    "INSERT INTO s VALUES (9, 7, 0)",
    "UPDATE s SET x = NULL WHERE q = 1",
    "UPDATE s SET x = 7 WHERE q = 3",
    "UPDATE s SET b = 9 WHERE q = 1",
    "DELETE FROM s WHERE q = 1",
    "DELETE FROM r WHERE x = 1",
    "UPDATE r SET x = 3 WHERE id = 1",
    "UPDATE r SET x = 1 WHERE id = 3",
    "UPDATE r SET id = 6 WHERE id = 3",
    "UPDATE j SET a = a + 1 WHERE id = 1",
)
_R = ("CREATE TABLE r (id int PRIMARY KEY, x int, a int)", "INSERT INTO r VALUES (1, 1, 0), (2, 1, 0), (3, 2, 0)")
_Q = """CREATE TABLE q (
    id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE, c int REFERENCES p (c) ON UPDATE CASCADE,
    v int CHECK (v >= 0), UNIQUE (p, v)
)"""
SCENES = {
    "keys": Scene(
        (
            "CREATE TABLE p (id int PRIMARY KEY, c int UNIQUE, v int)",
            _Q,
            "INSERT INTO p VALUES (1, 10, 0), (2, 20, 0), (3, 30, 0)",
            "INSERT INTO q VALUES (1, 1, 10, 0), (2, 2, NULL, 0), (3, NULL, 30, 1)",
        ),
        ("p", "q"),
        (
            "INSERT INTO p VALUES (9, 90, 0)",
            "INSERT INTO p VALUES (8, 90, 0) ON CONFLICT (c) DO UPDATE SET v = 77",
            "INSERT INTO p SELECT max(id) + 1, max(c) + 1, count(*) FROM p",
            "INSERT INTO q VALUES (9, 1, 10, 5)",
            "INSERT INTO q VALUES (7, 3, 20, 5)",
            "DELETE FROM p WHERE id = 1",
            "UPDATE p SET c = 99 WHERE id = 1",
            "UPDATE p SET id = 7 WHERE id = 3",
            "UPDATE p SET v = v + 1",
            "UPDATE q SET p = 3 WHERE id = 1",
            "UPDATE q SET p = NULL, c = NULL",
            "DELETE FROM p WHERE NOT EXISTS (SELECT 1 FROM q WHERE q.p = p.id OR q.c = p.c)",
        ),
    ),
    "split": Scene(
        (
            "CREATE TABLE t (id int PRIMARY KEY, name text, z int, town text)",
            "INSERT INTO t VALUES (1, 'a', 1, 'A'), (2, 'b', 1, 'A'), (3, 'c', 2, 'B'), (4, 'd', NULL, NULL)",
            "ALTER TABLE t SPLIT INTO p (id, name, z), w (z, town) ON (z) WITH (keep_views = true)",
        ),
        ("p", "w"),
        (
            "INSERT INTO t VALUES (9, 'x', 1, 'A')",
            "INSERT INTO t VALUES (9, 'x', 7, 'G')",
            "INSERT INTO t VALUES (8, 'y', 7, 'H')",
            "DELETE FROM t WHERE id = 3",
            "DELETE FROM t WHERE z = 1",
            "UPDATE t SET town = 'X' WHERE z = 1",
            "UPDATE t SET z = 2, town = 'B' WHERE id = 1",
            "UPDATE t SET z = 1, town = 'A' WHERE id = 3",
            "UPDATE t SET id = 6 WHERE id = 3",
            "UPDATE w SET town = 'W' WHERE z = 2",
            "INSERT INTO p VALUES (7, 'p', 2)",
            "DELETE FROM w WHERE z NOT IN (SELECT z FROM p WHERE z IS NOT NULL)",
        ),
    ),
    "join": Scene(
        (
            *_R,
            "CREATE TABLE s (q int PRIMARY KEY, x int UNIQUE, b int)",
            "INSERT INTO s VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0)",
            _JOIN,
        ),
        ("j",),
        _OF_A_JOIN,
    ),
    "many to many": Scene(
        (
            *_R,
            "CREATE TABLE s (q int PRIMARY KEY, x int, b int)",
            "INSERT INTO s VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 1, 0)",
            _JOIN,
        ),
        ("j",),
        _OF_A_JOIN,
    ),
}
# Of a statement: its SQLSTATE, "" if it went well, and how many rows it has changed.
Outcome = tuple[str, int]
State = list[list[tuple[object, ...]]]


@contextmanager
def opened(scene: Scene) -> Iterator[tuple[Engine, Connection]]:
    """A database with what a scene begins with, and a session."""
    engine = Engine(":memory:")
    connection = engine.connect()
    run(connection, *scene.setup)
    yield engine, connection
    engine.close()


def outcome(connection: Connection, statement: str) -> Outcome:
    """What becomes of a statement."""
    try:
        return "", connection.execute(statement).rowcount
    except instar.Error as refused:
        return refused.sqlstate, 0


def state(connection: Connection, scene: Scene) -> State:
    """What is in a scene's tables, which are sound."""
    assert rows(connection, "CHECK DATABASE") == []
    return [sorted(rows(connection, f"SELECT * FROM {table}"), key=repr) for table in scene.tables]


@functools.cache
def _one_after_the_other(name: str, one: str, other: str) -> tuple[Outcome, Outcome, State]:
    with opened(SCENES[name]) as (_, connection):
        return outcome(connection, one), outcome(connection, other), state(connection, SCENES[name])


def _meet(name: str, level: str, one: str, other: str) -> str:
    """Commit `other` before `one`, which has been executed before it; what became of that."""
    scene = SCENES[name]
    with opened(scene) as (engine, connection):
        transaction = engine.connect()
        run(transaction, f"BEGIN ISOLATION LEVEL {level}")
        of_one = outcome(transaction, one)
        run(connection, "SET lock_timeout = '1 ms'")
        of_other = outcome(connection, other)
        if of_other[0] == errors.LOCK_NOT_AVAILABLE:
            return "waited"
        committed, _ = outcome(transaction, "COMMIT" if not of_one[0] else "ROLLBACK")
        if committed:
            assert committed == errors.SERIALIZATION_FAILURE
            return "refused"
        left = of_one, of_other, state(connection, scene)
        turned = _one_after_the_other(name, other, one)
        expected = _one_after_the_other(name, one, other), (turned[1], turned[0], turned[2])
        assert left in expected, f"{one}; {other}"
        return "stood"


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("name", SCENES)
def test_pairs_come_out_as_one_after_the_other(name: str, level: str) -> None:
    met = Counter(_meet(name, level, one, other) for one, other in itertools.product(SCENES[name].statements, repeat=2))
    assert met["stood"] > 50
    locks = level == "READ COMMITTED"  # a row is waited for then; else one of the two is refused
    assert (met["waited"] > 0) is locks
    assert met["refused"] > 0 or locks
