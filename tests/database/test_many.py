"""executemany comes to what its sets come to one by one, whichever way it takes."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

import instar
from instar import errors
from instar.database import many
from instar.database.point_writes import Buffered, PointWriter
from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run, value

SCHEMA = (
    "CREATE TABLE p (id int PRIMARY KEY, u int UNIQUE, n int)",
    "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE, n int CHECK (n < 90))",
    "CREATE INDEX ON c (n)",
    "INSERT INTO p SELECT g, g, 0 FROM generate_series(0, 29) AS s (g)",
    "INSERT INTO c SELECT g, g, 0 FROM generate_series(0, 29) AS s (g)",
)
TEXTS = (
    ("UPDATE c SET n = ? WHERE id = ?", 2),
    ("UPDATE p SET n = n + ? WHERE id = ?", 2),
    ("UPDATE p SET u = ? WHERE id = ?", 2),
    ("DELETE FROM c WHERE id = ?", 1),
    ("DELETE FROM p WHERE id = ?", 1),
    ("INSERT INTO p VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET n = p.n + 1", 2),
    ("INSERT INTO p VALUES (?, ?, 1) ON CONFLICT (u) DO UPDATE SET n = excluded.n", 2),
    ("INSERT INTO c VALUES (?, ?, 1) ON CONFLICT DO NOTHING", 2),
)


@pytest.fixture
def buffered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the short way has served, for each set that was tried."""
    found: list[bool] = []
    to_buffer = PointWriter.to_buffer

    def noted(self: PointWriter, *given: Any) -> Any:
        made = to_buffer(self, *given)
        found.append(isinstance(made, Buffered))
        return made

    monkeypatch.setattr(PointWriter, "to_buffer", noted)
    return found


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_as_one_by_one(seed: int, block: bool, monkeypatch: pytest.MonkeyPatch, buffered: list[bool]) -> None:
    """Sets with NULLs, keys that come again, and refusals, which take back all sets."""
    monkeypatch.setattr(many, "_TOGETHER", 3)
    chance = random.Random(seed)
    engines = [Engine(":memory:") for _ in range(2)]
    together, alone = [engine.connect() for engine in engines]
    for side in (together, alone):
        run(side, *SCHEMA)
    for _ in range(60):
        text, count = chance.choice(TEXTS)
        sets = [tuple(chance.choice((None, *range(35))) for _ in range(count - 1)) for _ in range(chance.randint(2, 9))]
        keyed = [(chance.randrange(35), *rest) if "INSERT" in text else (*rest, chance.randrange(35)) for rest in sets]
        outcomes = [
            _outcome(side, text, keyed, block=block or side is alone, one_by_one=side is alone)
            for side in (together, alone)
        ]
        assert outcomes[0] == outcomes[1], (text, keyed)
        for table in "pc":
            assert rows(together, f"SELECT * FROM {table} ORDER BY id") == rows(
                alone, f"SELECT * FROM {table} ORDER BY id"
            )
    assert buffered.count(True) > 50
    assert not rows(together, "CHECK DATABASE")
    for engine in engines:
        engine.close()


_fresh = itertools.count()


def _outcome(side: Connection, text: str, sets: list[Any], *, block: bool, one_by_one: bool) -> object:
    """How many rows were changed, or the error's SQLSTATE."""
    if block:
        run(side, "BEGIN", "SAVEPOINT s")
    try:
        if one_by_one:
            found: object = sum(side.execute(f"{text} -- {next(_fresh)}", given).rowcount for given in sets)
        else:
            found = side.cursor().executemany(text, sets).rowcount
    except instar.Error as failed:
        found = failed.sqlstate
        if block:
            run(side, "ROLLBACK TO s")
    if block:
        run(side, "COMMIT")
    return found


def test_values_of_other_classes_in_between(engine: Engine, buffered: list[bool]) -> None:
    c = engine.connect()
    run(c, *SCHEMA)
    text, sets = "UPDATE p SET n = ? WHERE id = ?", [(7, n) for n in range(25)]
    mixed = [("8", 3), *sets, (None, 4), (7.0, 5), *sets[:2]]
    assert c.cursor().executemany(text, mixed).rowcount == len(mixed)
    assert rows(c, "SELECT n, count(*) FROM p WHERE id < 25 GROUP BY n ORDER BY n") == [(7, 24), (None, 1)]
    assert buffered.count(True) == 24  # a key that comes again takes more


def test_rows_that_another_has_locked_are_waited_for(engine: Engine) -> None:
    """Then all sets run again, on what that has committed."""
    c, other = engine.connect(lock_timeout="20s"), engine.connect(lock_timeout="50ms")
    run(c, *SCHEMA)
    run(other, "BEGIN", "UPDATE p SET n = 5 WHERE id = 20")
    sets = [(1, n) for n in range(30)]
    run(c, "BEGIN")
    working = threading.Thread(target=lambda: c.cursor().executemany("UPDATE p SET n = n + ? WHERE id = ?", sets))
    working.start()
    working.join(0.2)
    assert working.is_alive()
    run(other, "ROLLBACK")
    working.join(20)
    assert not working.is_alive()
    run(c, "COMMIT")
    assert rows(c, "SELECT DISTINCT n FROM p") == [(1,)]


def _at(number: int, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have `act` done right before that set is taken."""
    to_buffer, taken = PointWriter.to_buffer, [0]

    def acting(self: PointWriter, *given: Any) -> Any:
        taken[0] += 1
        if taken[0] == number:
            act()
        return to_buffer(self, *given)

    monkeypatch.setattr(PointWriter, "to_buffer", acting)


def test_what_is_committed_in_between(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed before it is locked has all sets run again."""
    monkeypatch.setattr(many, "_TOGETHER", 5)
    c, other = engine.connect(), engine.connect()
    run(c, *SCHEMA)
    _at(13, monkeypatch, lambda: run(other, "UPDATE p SET n = 50 WHERE id IN (10, 11, 20)"))
    run(c, "BEGIN")
    assert c.cursor().executemany("UPDATE p SET n = n + 1 WHERE id = ?", [(n,) for n in range(30)]).rowcount == 30
    run(c, "COMMIT")
    assert rows(c, "SELECT n, count(*) FROM p GROUP BY n ORDER BY n") == [(1, 27), (51, 3)]


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ALTER TABLE p ADD COLUMN m int DEFAULT 3", 30),
        ("CREATE UNIQUE INDEX p_n ON p (id, n)", 30),
        ("ALTER TABLE p ADD CONSTRAINT few CHECK (n < 5)", 30),
        ("ALTER TABLE p DROP COLUMN n", errors.UNDEFINED_COLUMN),
        ("DROP TABLE c", 30),
    ],
)
def test_changes_of_the_schema_in_between(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, change: str, expected: int | str, block: bool
) -> None:
    monkeypatch.setattr(many, "_TOGETHER", 5)
    c, other = engine.connect(), engine.connect()
    run(c, *SCHEMA)
    _at(13, monkeypatch, lambda: run(other, change))
    if block:
        run(c, "BEGIN")
    try:
        found: int | str = (
            c.cursor().executemany("UPDATE p SET n = n + 1 WHERE id = ?", [(n,) for n in range(30)]).rowcount
        )
        if block:
            run(c, "COMMIT")
    except instar.Error as failed:
        found = failed.sqlstate
        c.rollback()
    if isinstance(expected, int):
        assert found == expected
        assert value(c, "SELECT sum(n) FROM p") == 30
    else:
        assert found in (expected, errors.SERIALIZATION_FAILURE)
    assert not rows(c, "CHECK DATABASE")


def test_a_plan_that_holds_under_another_version_of_its_table(engine: Engine) -> None:
    c = engine.connect()
    run(c, *SCHEMA)
    sets = [(n,) for n in range(30)]
    for change in ("ADD COLUMN m int DEFAULT 3", "ALTER COLUMN m SET DEFAULT 4", "ADD COLUMN o text", "DROP COLUMN m"):
        assert c.cursor().executemany("UPDATE p SET n = n + 1 WHERE id = ?", sets).rowcount == 30
        run(c, f"ALTER TABLE p {change}", "BEGIN")
        assert c.cursor().executemany("UPDATE p SET n = n + 1 WHERE id = ?", sets).rowcount == 30
        run(c, "COMMIT")
    assert rows(c, "SELECT DISTINCT n, o FROM p") == [(8, None)]
    assert not rows(c, "CHECK DATABASE")


def test_a_cancel_ends_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_TOGETHER", 5)
    c = engine.connect()
    run(c, *SCHEMA)
    _at(13, monkeypatch, c.cancel)
    with fails(errors.QUERY_CANCELED):
        c.cursor().executemany("UPDATE p SET n = n + 1 WHERE id = ?", [(n,) for n in range(30)])
    assert value(c, "SELECT sum(n) FROM p") == 0


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_other_levels_see_their_snapshot(engine: Engine, level: str, buffered: list[bool]) -> None:
    c, other = engine.connect(), engine.connect()
    run(c, *SCHEMA, f"BEGIN ISOLATION LEVEL {level}", "SELECT 1 FROM p")
    run(other, "UPDATE p SET n = 9 WHERE id = 29")
    sets = [(n,) for n in range(29)]
    assert c.cursor().executemany("UPDATE p SET n = n + 1 WHERE id = ?", sets).rowcount == 29
    with fails(errors.SERIALIZATION_FAILURE):
        c.cursor().executemany("UPDATE p SET n = n + 1 WHERE id = ?", [(28,), (29,)])
        run(c, "COMMIT")
    c.rollback()
    assert not buffered
