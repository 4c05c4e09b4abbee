"""Look-ups by an index in their lean form: what the general way finds, whatever has been written and changed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import instar
from instar import errors
from instar.database.queries import Queries
from instar.database.result import Result
from instar.sql import point
from support.databases import Engine, fails, rows, run

TIMES = 3


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the lean form has served, each time that it was tried."""
    found: list[bool] = []
    looked_up = Queries._looked_up

    def counted(self: Queries, *given: Any) -> Result | None:
        result = looked_up(self, *given)
        found.append(result is not None)
        return result

    monkeypatch.setattr(Queries, "_looked_up", counted)
    return found


@pytest.fixture
def filled(engine: Engine) -> instar.Connection:
    """Keys long and short, several to a value and none."""
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int, b text, c bigint, d date DEFAULT '2024-05-01', u text UNIQUE)")
    run(c, "CREATE INDEX ON t (a DESC, b)", "CREATE INDEX ON t (b, c DESC)")
    c.executemany(
        "INSERT INTO t (id, a, b, c, u) VALUES (?, ?, ?, ?, ?)",
        [(n, n % 7 or None, f"b{n % 5}" * (60 if n % 10 == 0 else 1), n % 3, f"u{n}") for n in range(100)],
    )
    return c


QUERIES: Sequence[tuple[str, list[tuple[object, ...]]]] = (
    ("SELECT id, a, b, d FROM t WHERE a = ?", [(1,), (6,), (0,), (None,)]),
    ("SELECT id, c FROM t WHERE a = ? AND b = ?", [(1, "b1"), (2, "b0" * 60), (3, "none"), (None, "b1"), (4, None)]),
    ("SELECT d, id FROM t WHERE b = ?", [("b1",), ("b0" * 60,), ("b",), ("",)]),
    ("SELECT id FROM t WHERE b = ? AND c = ?", [("b3", 1), ("b0" * 60, 2), ("b3", 9)]),
    ("SELECT id, d FROM t WHERE u = ?", [("u7",), ("u0",), ("",), ("u" * 500,), (None,)]),
    ("SELECT id FROM t WHERE a = 3", [()]),
)


def _same(c: instar.Connection, number: int) -> None:
    """All queries, beside the same as a text that was never seen."""
    for text, parameters in QUERIES:
        for given in parameters:
            expected = c.execute(f"{text} -- {number}", given)
            found = c.execute(text, given)
            assert found.description == expected.description
            assert sorted(found.fetchall()) == sorted(expected.fetchall())


def test_look_ups_by_an_index(filled: instar.Connection, served: list[bool]) -> None:
    for number in range(TIMES):
        _same(filled, number)
    served.clear()
    for text, parameters in QUERIES:
        filled.execute(text, parameters[0])
    assert served == [False, True, True, True, True, False]  # under a alone lie entries that are cut, too
    served.clear()
    for given in ("b0" * 60,), (None,):  # cut, and equal to nothing
        filled.execute(QUERIES[2][0], given)
    assert served == [False] * 2


CHANGES = (
    "UPDATE t SET a = 1, b = 'moved' WHERE id % 4 = 0",
    "DELETE FROM t WHERE id % 9 = 1",
    "ALTER TABLE t ADD COLUMN e int DEFAULT 5",
    "ALTER TABLE t ALTER a TYPE bigint",
    "UPDATE t SET e = 6 WHERE id < 20",
    "ALTER TABLE t DROP COLUMN e",
    "ALTER TABLE t SET (migration = 'read')",
    "ALTER TABLE t ADD COLUMN f text DEFAULT 'f'",
    "ALTER TABLE t SET (migration = 'write')",
    "DROP INDEX t_a_b_idx",
    "CREATE INDEX ON t (a)",
    "ALTER TABLE t ALTER b TYPE varchar(200)",
    "TRUNCATE t",
    "INSERT INTO t (id, a, b, u) SELECT g, g % 7, 'b' || g % 5, 'u' || g FROM generate_series(1, 50) AS s (g)",
)


LAYOUTS = "CREATE TABLE l (id int PRIMARY KEY, a smallint, b bigint NOT NULL, c text)"
BY_KEY, OF_FIXED = "SELECT id, b, c, a FROM l WHERE id = ?", "SELECT a, id FROM l WHERE id = ?"


def _newest_first(c: instar.Connection, text: str) -> bool:
    entry = c.database.plans.entry(text)
    assert entry is not None
    assert entry.fast is not None
    return entry.fast[2]._newest_first


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_many_layouts(engine: Engine, served: list[bool], seed: int) -> None:
    """A plan that goes on through changes finds rows in each layout, by the key and by an index, and none that was
    deleted, whoever has made the change."""
    draw = random.Random(seed)
    c, other = engine.connect(), engine.connect()
    run(c, LAYOUTS, "CREATE INDEX ON l (b)")
    c.executemany("INSERT INTO l (id, a, b, c) VALUES (?, ?, ?, ?)", [(n, n, n % 9, f"c{n}") for n in range(40)])
    by_index = "SELECT a, id FROM l WHERE b = ?"
    extra: list[str] = []
    for number in range(30):
        kind = draw.choice(("bigint DEFAULT 5", "text DEFAULT 'x'", "drop", "drop"))
        if kind != "drop":
            extra.append(f"e{number}")
            draw.choice((c, other)).execute(f"ALTER TABLE l ADD COLUMN e{number} {kind}")
        elif extra:
            draw.choice((c, other)).execute(f"ALTER TABLE l DROP COLUMN {extra.pop(draw.randrange(len(extra)))}")
        if number == 20:
            other.execute("ALTER TABLE l ALTER COLUMN a TYPE int")
        for _ in range(4):
            key = draw.randrange(50)
            writer = draw.choice((c, other))
            writer.execute("UPDATE l SET a = ?, c = ? WHERE id = ?", (number, "cc" * draw.randrange(3), key))
            writer.execute("DELETE FROM l WHERE id = ?", (draw.randrange(50),))
            writer.execute("INSERT INTO l (id, b) VALUES (?, ?) ON CONFLICT DO NOTHING", (key, number % 9))
        for text in (BY_KEY, OF_FIXED, by_index):
            for value in range(50) if text != by_index else range(9):
                expected = c.execute(f"{text} -- {number}", (value,)).fetchall()
                assert sorted(c.execute(text, (value,)).fetchall(), key=str) == sorted(expected, key=str)
    assert served
    assert all(served)


def test_layouts_that_came_and_went_unseen(engine: Engine) -> None:
    """A few of them do not interrupt the run of those whose rows are read alike; of many, rows tell."""
    c, other = engine.connect(), engine.connect()
    run(c, LAYOUTS, "INSERT INTO l VALUES (1, 1, 1, 'one'), (2, 2, 2, 'two')")
    for unseen in (1, 2, 4, 7):
        c.execute(OF_FIXED, (1,)).fetchall()
        for _ in range(unseen):
            run(other, "ALTER TABLE l ADD COLUMN e bigint DEFAULT 5", "UPDATE l SET a = 7 WHERE id = 1")
            run(other, "ALTER TABLE l DROP COLUMN e", "UPDATE l SET a = 8 WHERE id = 2")
        assert c.execute(OF_FIXED, (3,)).fetchall() == []  # so what is known is not told by rows
        entry = c.database.plans.entry(OF_FIXED)
        assert entry is not None
        assert entry.fast is not None
        tags = entry.fast[2]._alike
        newest = c.database.plans.known(OF_FIXED, (1,))
        assert newest is not None
        table = newest.table(entry.fast[2].table)
        assert table.layout.id << 8 in tags
        assert (tags.high == table.layout.id << 8) == (unseen < 7)
        assert c.execute(OF_FIXED, (1,)).fetchall() == [(7, 1)]
        assert c.execute(OF_FIXED, (2,)).fetchall() == [(8, 2)]


def test_a_column_that_comes_and_goes_leaves_rows_read_alike(engine: Engine) -> None:
    """Those in layouts with it, and without it, take the way of those in the newest one. No other do."""
    c = engine.connect()
    run(c, LAYOUTS, "INSERT INTO l VALUES (1, 1, 1, 'one'), (2, 2, 2, 'two')")
    for _ in range(TIMES):
        for text in (BY_KEY, OF_FIXED):
            c.execute(text, (1,)).fetchall()
        c.execute("ALTER TABLE l ADD COLUMN e bigint DEFAULT 5")
        c.execute("UPDATE l SET a = 7 WHERE id = 1")
        assert c.execute(OF_FIXED, (1,)).fetchall() == [(7, 1)]
        c.execute("ALTER TABLE l DROP COLUMN e")
        assert c.execute(OF_FIXED, (1,)).fetchall() == [(7, 1)]
        assert c.execute(BY_KEY, (1,)).fetchall() == [(1, 1, "one", 7)]
        assert c.execute(BY_KEY, (2,)).fetchall() == [(2, 2, "two", 2)]
    assert _newest_first(c, OF_FIXED)
    assert _newest_first(c, BY_KEY)
    c.execute("ALTER TABLE l ADD COLUMN e bigint DEFAULT 5")
    c.execute("UPDATE l SET a = 8 WHERE id = 1")
    assert c.execute(BY_KEY, (2,)).fetchall() == [(2, 2, "two", 2)]
    assert not _newest_first(c, BY_KEY)  # what comes before a text moves it
    assert c.execute(BY_KEY, (1,)).fetchall() == [(1, 1, "one", 8)]
    c.execute("ALTER TABLE l ALTER COLUMN a TYPE int")
    assert c.execute(OF_FIXED, (1,)).fetchall() == [(8, 1)]


def test_after_changes_by_others(engine: Engine, filled: instar.Connection, served: list[bool]) -> None:
    other = engine.connect()
    for number, change in enumerate(CHANGES):
        run(other, change)
        served.clear()
        for time_ in range(TIMES):
            _same(filled, 10 * number + time_)
        assert True in served, change


def test_what_a_transaction_has_written(filled: instar.Connection, served: list[bool]) -> None:
    for number in range(TIMES):
        _same(filled, number)
    run(filled, "BEGIN", "SELECT 1")
    served.clear()
    _same(filled, 50)
    assert True in served
    for number, change in enumerate(("UPDATE t SET a = 3 WHERE id = 5", "DELETE FROM t WHERE id = 8")):
        run(filled, change)
        served.clear()
        _same(filled, 60 + number)
        assert True not in served
    run(filled, "ROLLBACK")
    _same(filled, 70)
    run(filled, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM t")
    served.clear()
    _same(filled, 71)
    assert not served
    run(filled, "COMMIT")


def test_many_rows_take_the_way_that_can_be_cancelled(engine: Engine, served: list[bool]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE INDEX ON t (a)")
    most = point._MOST_ENTRIES
    run(
        c,
        f"INSERT INTO t SELECT g, g / {most} FROM generate_series(0, {2 * most}) AS s (g)",
        "INSERT INTO t VALUES (-1, 1)",
    )
    for _ in range(TIMES):
        served.clear()
        assert [len(rows(c, "SELECT id FROM t WHERE a = ?", value)) for value in (0, 1, 2)] == [most, most + 1, 1]
    assert served == [True, False, True]


def test_random_writes_and_look_ups(engine: Engine, served: list[bool]) -> None:
    """Beside a plain dictionary; values come back to keys that they have left."""
    c, draw = engine.connect(), random.Random(1)
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int, u int UNIQUE)", "CREATE INDEX ON t (a)")
    model: dict[int, tuple[int, int | None]] = {}
    for _ in range(600):
        key, a, u = draw.randrange(12), draw.randrange(4), draw.choice((None, *range(6)))
        taken = {value: other for other, (_, value) in model.items() if value is not None}
        match draw.randrange(3):
            case 0 if key in model:
                c.execute("DELETE FROM t WHERE id = ?", (key,))
                del model[key]
            case 1 if key in model and taken.get(u, key) == key:
                c.execute("UPDATE t SET a = ?, u = ? WHERE id = ?", (a, u, key))
                model[key] = a, u
            case 2 if key not in model and u not in taken:
                c.execute("INSERT INTO t VALUES (?, ?, ?)", (key, a, u))
                model[key] = a, u
        for value in range(4):
            found = rows(c, "SELECT id, u FROM t WHERE a = ?", value)
            assert sorted(found) == sorted((k, w) for k, (v, w) in model.items() if v == value)
        for value in range(6):
            expected = [(k, v) for k, (v, w) in model.items() if w == value]
            assert rows(c, "SELECT id, a FROM t WHERE u = ?", value) == expected
    assert served.count(True) > 1000
    with fails(errors.UNIQUE_VIOLATION):
        run(c, "INSERT INTO t VALUES (100, 1, 1), (101, 1, 1)")
