"""Unique and foreign keys on the short way of writes: as the general way has them, and as sqlite3 has them."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import instar
from instar import errors
from instar.database.point_writes import ENTANGLED, Buffered, PointWriter
from instar.database.session import Session
from support.databases import Engine, fails, rows, run, value

TIMES = 4  # the first execution goes the general way, the second compiles the short one, the others take it


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the short way has answered, each time that it was taken."""
    found: list[object] = []
    run_ = PointWriter.run

    def counted(self: PointWriter, parameters: Any, session: Session) -> object:
        found.append(run_(self, parameters, session))
        return found[-1]

    monkeypatch.setattr(PointWriter, "run", counted)
    return found


def test_unique_keys(engine: Engine, counts: list[object]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a text UNIQUE, b int, UNIQUE (b, id))")
    insert, update = "INSERT INTO t VALUES (?, ?, ?)", "UPDATE t SET a = ? WHERE id = ?"
    for number in range(TIMES):
        c.execute(insert, (number, f"a{number}", number))
        c.execute(update, (f"b{number}", number))
        c.execute(update, (f"b{number}", number))  # its own value is in nobody's way
    assert len(counts) > TIMES
    assert set(counts) == {1}
    for number in range(TIMES):
        with fails(errors.UNIQUE_VIOLATION, "t_a_key"):
            c.execute(insert, (10 + number, "b1", 7))
        with fails(errors.UNIQUE_VIOLATION, "t_a_key"):
            c.execute(update, ("b1", 2))
    assert counts[-1] == ENTANGLED
    for number in range(TIMES):
        c.execute(insert, (20 + number, f"x{number}", None))
        c.execute(update, (None, 20 + number))  # equals nothing
    assert counts[-1] == 1
    c.execute("DELETE FROM t WHERE id = 1")
    c.execute(insert, (30, "b1", 1))  # what it has left is in nobody's way
    assert counts[-1] == 1
    assert not rows(c, "CHECK DATABASE")


def test_long_unique_keys(engine: Engine, counts: list[object]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a text UNIQUE)")
    long = "x" * 3000
    for number in range(TIMES):
        c.execute("INSERT INTO t VALUES (?, ?)", (number, f"{long}{number}"))
    for _ in range(TIMES):
        with fails(errors.UNIQUE_VIOLATION):
            c.execute("INSERT INTO t VALUES (?, ?)", (9, f"{long}2"))
    assert counts[-1] == ENTANGLED
    assert not rows(c, "CHECK DATABASE")


PARENTS = {
    "primary": "CREATE TABLE p (x int, y int, other int, PRIMARY KEY (y, x))",
    "unique": "CREATE TABLE p (id serial PRIMARY KEY, x int, y int, other int, UNIQUE (y, x))",
}


@pytest.mark.parametrize("kind", PARENTS)
def test_parents(engine: Engine, counts: list[object], kind: str) -> None:
    c = engine.connect()
    run(c, PARENTS[kind], "CREATE TABLE c (id int PRIMARY KEY, x int, y int, FOREIGN KEY (x, y) REFERENCES p (x, y))")
    insert, update = "INSERT INTO c VALUES (?, ?, ?)", "UPDATE c SET x = ? WHERE id = ?"
    for number in range(TIMES):
        c.execute("INSERT INTO p (x, y) VALUES (?, 1)", (number,))
        c.execute(insert, (number, number, 1))
        c.execute(update, (0, number))
    c.execute(insert, (50, None, 2))  # as nobody's child
    assert set(counts) == {1}
    told = set()
    for _ in range(TIMES):
        with fails(errors.FOREIGN_KEY_VIOLATION, "c_x_y_fkey") as failed:
            c.execute(insert, (60, 1, 2))
        told.add((failed.error.message, failed.error.detail))
        with fails(errors.FOREIGN_KEY_VIOLATION, "c_x_y_fkey"):
            c.execute(update, (99, 1))
    assert counts[-1] == ENTANGLED
    assert len(told) == 1
    counts.clear()
    where = "x = ? AND y = 1" if kind == "primary" else "id = ?"
    for number in range(TIMES):
        c.execute(f"UPDATE p SET other = ? WHERE {where}", (5, 1 + number % 3))
    assert set(counts) == {1}
    assert not rows(c, "CHECK DATABASE")


def test_rows_that_refer_to_themselves(engine: Engine, counts: list[object]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t)")
    for number in range(TIMES):
        c.execute("INSERT INTO t VALUES (?, ?)", (number, number))
        c.execute("UPDATE t SET up = ? WHERE id = ?", (number, number))
        with fails(errors.FOREIGN_KEY_VIOLATION):
            c.execute("INSERT INTO t VALUES (?, ?)", (100, 101))
    assert counts.count(1) > TIMES
    assert not rows(c, "CHECK DATABASE")


def test_a_foreign_key_that_comes_between_two_executions(engine: Engine) -> None:
    """The parent's row of the catalog is as it was, if it has one of that child already."""
    c, other = engine.connect(), engine.connect()
    run(c, "CREATE TABLE p (id int PRIMARY KEY, a int UNIQUE, b int)", "INSERT INTO p VALUES (1, 1, 1)")
    run(c, "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, a int)", "INSERT INTO c VALUES (1, 1, 1)")
    for number in range(TIMES):
        c.execute("UPDATE p SET a = ? WHERE id = ?", (number, 1))
        c.execute("INSERT INTO c VALUES (?, ?, ?)", (10 + number, 1, number))
    run(other, "UPDATE c SET a = 3", "ALTER TABLE c ADD FOREIGN KEY (a) REFERENCES p (a)")
    for _ in range(TIMES):
        with fails(errors.FOREIGN_KEY_VIOLATION):
            c.execute("UPDATE p SET a = ? WHERE id = ?", (7, 1))
        with fails(errors.FOREIGN_KEY_VIOLATION):
            c.execute("INSERT INTO c VALUES (?, ?, ?)", (30, 1, 7))


def test_locks_of_others_are_waited_for(engine: Engine, counts: list[object]) -> None:
    """A parent that is about to go, and a unique key that is about to come."""
    c, other = engine.connect(lock_timeout="50ms"), engine.connect()
    run(c, "CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p SELECT g FROM generate_series(1, 9) AS s (g)")
    run(c, "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, u int UNIQUE)")
    insert = "INSERT INTO c VALUES (?, ?, ?)"
    for number in range(TIMES):
        c.execute(insert, (number, 1, number))
    run(other, "BEGIN", "DELETE FROM p WHERE id = 2", "INSERT INTO c VALUES (50, 3, 50)")
    for blocked in ((20, 2, 20), (20, 3, 50)):
        with fails(errors.LOCK_NOT_AVAILABLE):
            c.execute(insert, blocked)
    run(c, "INSERT INTO c VALUES (20, 3, 20)")  # which is shared
    c.execute(insert, (21, 3, 21))
    run(other, "COMMIT")
    with fails(errors.FOREIGN_KEY_VIOLATION):
        c.execute(insert, (22, 2, 22))
    with fails(errors.UNIQUE_VIOLATION):
        c.execute(insert, (22, 3, 50))
    counts.clear()
    c.execute(insert, (22, 3, 22))
    assert counts == [1]


def test_a_unique_key_that_is_locked_as_a_parent_stays(engine: Engine) -> None:
    """FOR KEY SHARE lets a row's other columns be changed, and no key that others may refer to."""
    c, other = engine.connect(lock_timeout="50ms"), engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, a int)", "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)")
    key, plain = "UPDATE t SET u = ? WHERE id = ?", "UPDATE t SET a = ? WHERE id = ?"
    for number in range(TIMES):
        c.execute(key, (10 + number, 1))
        c.execute(plain, (number, 1))
    run(other, "BEGIN", "SELECT u FROM t WHERE id = 1 FOR KEY SHARE")
    c.execute(plain, (50, 1))
    c.execute(key, (50, 2))
    with fails(errors.LOCK_NOT_AVAILABLE):
        c.execute(key, (51, 1))
    run(other, "ROLLBACK")
    c.execute(key, (51, 1))


def test_a_transaction_judges_on_its_snapshot(engine: Engine) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE)")
    for number in range(TIMES):
        c.execute("INSERT INTO t VALUES (?, ?)", (number, number))
    for _ in range(TIMES):
        c.execute("BEGIN")
        with fails(errors.UNIQUE_VIOLATION):
            c.execute("INSERT INTO t VALUES (?, ?)", (9, 1))
        c.execute("ROLLBACK")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_clocks(engine: Engine, counts: list[object], zone: str) -> None:
    """now() is the time of the statement, which is a transaction by itself, and dates are the session's."""
    c = engine.connect(timezone=zone)
    run(c, "CREATE TABLE t (id int PRIMARY KEY, at timestamptz DEFAULT now(), day date DEFAULT current_date, b int)")
    for number in range(TIMES):
        before = value(c, "SELECT now()")
        c.execute("INSERT INTO t (id) VALUES (?)", (number,))
        c.execute("UPDATE t SET b = extract(year FROM now())::int WHERE id = ?", (number,))
        after = value(c, "SELECT now()")
        assert before <= value(c, f"SELECT at FROM t WHERE id = {number}") <= after
    assert set(counts) == {1}
    assert value(c, "SELECT count(*) FROM t WHERE day = at::date AND b = extract(year FROM at)") == TIMES
    c.execute("BEGIN")
    now = value(c, "SELECT now()")
    c.execute("INSERT INTO t (id) VALUES (?)", (50,))
    c.execute("COMMIT")
    assert value(c, "SELECT at FROM t WHERE id = 50") == now


# --- against sqlite3 --------------------------------------------------------------------------------------------------

SCHEMA = (
    "CREATE TABLE p (id integer PRIMARY KEY, u integer UNIQUE, v integer)",
    """CREATE TABLE c (id integer PRIMARY KEY, p integer REFERENCES p (id), u integer REFERENCES p (u),
       up integer REFERENCES c (id), x integer, y integer, UNIQUE (x, y))""",
    "CREATE INDEX c_v ON c (y)",
    "CREATE TABLE s (id integer PRIMARY KEY, u integer UNIQUE, up integer REFERENCES s (u))",
)
STATEMENTS = (
    ("INSERT INTO p VALUES (?, ?, ?)", 3),
    ("UPDATE p SET v = ? WHERE id = ?", 2),
    ("UPDATE p SET u = ? WHERE id = ?", 2),
    ("DELETE FROM p WHERE id = ?", 1),
    ("INSERT INTO c VALUES (?, ?, ?, ?, ?, ?)", 6),
    ("UPDATE c SET p = ?, up = ? WHERE id = ?", 3),
    ("UPDATE c SET u = ? WHERE id = ?", 2),
    ("UPDATE c SET x = ?, y = ? WHERE id = ?", 3),
    ("UPDATE c SET y = y + 1 WHERE id = ?", 1),
    ("DELETE FROM c WHERE id = ?", 1),
    ("INSERT INTO p VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v + p.v", 3),
    ("INSERT INTO p VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET u = excluded.u, v = p.u", 3),
    ("INSERT INTO p VALUES (?, ?, ?) ON CONFLICT (u) DO UPDATE SET v = excluded.v WHERE p.v < excluded.v", 3),
    ("INSERT INTO p VALUES (?, ?, ?) ON CONFLICT (u) DO NOTHING", 3),
    ("INSERT INTO c VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", 6),
    ("INSERT INTO c VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (x, y) DO UPDATE SET p = excluded.p, up = excluded.id", 6),
    ("INSERT INTO c VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET x = excluded.x, y = c.y + 1", 6),
    ("INSERT INTO s VALUES (?, ?, ?)", 3),
    ("UPDATE s SET u = ?, up = ? WHERE id = ?", 3),
    ("DELETE FROM s WHERE id = ?", 1),
    ("INSERT INTO s VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET u = excluded.u, up = excluded.up", 3),
    ("INSERT INTO s VALUES (?, ?, ?) ON CONFLICT (u) DO UPDATE SET up = excluded.up", 3),
)
VALUES = st.integers(0, 3)
NULLABLE = st.one_of(st.none(), VALUES, VALUES)


def _given(statement: tuple[str, int]) -> st.SearchStrategy[tuple[str, tuple[int | None, ...]]]:
    """A statement with values: NULL for all but the key."""
    text, count = statement
    drawn = [NULLABLE] * count
    drawn[0 if text.startswith("INSERT") else -1] = VALUES
    return st.tuples(st.just(text), st.tuples(*drawn))


@contextmanager
def _beside_sqlite() -> Iterator[tuple[instar.Connection, sqlite3.Connection]]:
    """Both with the schema, ours with the short ways of all statements; at the end they have the same rows."""
    peer = sqlite3.connect(":memory:", isolation_level=None)
    engine = Engine(":memory:")
    ours = engine.connect()
    try:
        for text in ("PRAGMA foreign_keys = ON", *SCHEMA):
            peer.execute(text)
        run(ours, *SCHEMA)
        _warm_up(ours)
        yield ours, peer
        for table in "pcs":
            everything = f"SELECT * FROM {table} ORDER BY id"
            assert rows(ours, everything) == peer.execute(everything).fetchall()
        assert not rows(ours, "CHECK DATABASE")
    finally:
        peer.close()
        engine.close()


@given(st.lists(st.one_of([_given(statement) for statement in STATEMENTS]), max_size=60))
@settings(max_examples=40, deadline=None)
@example([(STATEMENTS[0][0], (1, 1, 1))] * 3 + [(STATEMENTS[4][0], (1, 1, 1, 1, 1, 1))] * 3)
def test_as_sqlite_has_it(script: list[tuple[str, tuple[int | None, ...]]]) -> None:
    with _beside_sqlite() as (ours, peer):
        for text, parameters in script:
            outcome = _outcome(ours, instar.IntegrityError, text, parameters)
            assert outcome == _outcome(peer, sqlite3.IntegrityError, text, parameters)


def _warm_up(connection: instar.Connection) -> None:
    """Have all statements come to their short way."""
    for text, count in STATEMENTS:
        for number in range(TIMES):
            _outcome(connection, instar.IntegrityError, text, (number,) * count)
    run(connection, "DELETE FROM c", "DELETE FROM p", "DELETE FROM s")


def _outcome(connection: Any, refusal: type[Exception], text: str, parameters: tuple[int | None, ...]) -> int | None:
    try:
        count: int = connection.execute(text, parameters).rowcount
    except refusal:
        return None
    return count


# --- several processes ------------------------------------------------------------------------------------------------


def _insert(path: Path, seed: int, count: int) -> None:
    """Children and unique keys that the others insert as well, under parents that come and go."""
    draw = random.Random(seed)
    with instar.connect(path, synchronous=None, autocommit=True) as connection:
        statements: list[Callable[[], tuple[str, tuple[int, ...]]]] = [
            lambda: ("INSERT INTO c VALUES (?, ?, ?)", (draw.randrange(10**9), draw.randrange(9), draw.randrange(50))),
            lambda: ("UPDATE c SET u = ? WHERE id = ?", (draw.randrange(50), draw.choice(own or [0]))),
            lambda: ("UPDATE c SET p = ? WHERE id = ?", (draw.randrange(9), draw.choice(own or [0]))),
            lambda: ("DELETE FROM c WHERE id = ?", (own.pop() if own else 0,)),
            lambda: ("INSERT INTO p VALUES (?)", (draw.randrange(9),)),
            lambda: ("DELETE FROM p WHERE id = ?", (draw.randrange(9),)),
        ]
        own: list[int] = []
        for _ in range(count):
            text, given_ = draw.choice(statements)()
            try:
                connection.execute(text, given_)
            except instar.IntegrityError:
                continue
            if text.startswith("INSERT INTO c"):
                own.append(given_[0])


def test_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with instar.connect(path, synchronous="off", autocommit=True) as c:
        run(c, "CREATE TABLE p (id int PRIMARY KEY)")
        run(c, "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, u int UNIQUE)")
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_insert, args=(path, seed, 1500)) for seed in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        assert value(c, "SELECT count(*) FROM c WHERE p NOT IN (SELECT id FROM p)") == 0
        assert value(c, "SELECT count(u) - count(DISTINCT u) FROM c") == 0
        assert value(c, "SELECT count(*) FROM c") > 0
        assert not rows(c, "CHECK DATABASE")


# --- in transactions --------------------------------------------------------------------------------------------------


@pytest.fixture
def buffered_counts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the short way into a transaction's buffer has served, each time that it was tried."""
    found: list[bool] = []
    to_buffer = PointWriter.to_buffer

    def counted(self: PointWriter, *given_: Any) -> Any:
        made = to_buffer(self, *given_)
        found.append(isinstance(made, Buffered))
        return made

    monkeypatch.setattr(PointWriter, "to_buffer", counted)
    return found


def test_what_a_transaction_has_buffered_counts(engine: Engine, buffered_counts: list[bool]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE p (id int PRIMARY KEY, a text UNIQUE)")
    run(c, "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, a text REFERENCES p (a), u text UNIQUE)")
    parent, child = "INSERT INTO p VALUES (?, ?)", "INSERT INTO c VALUES (?, ?, ?, ?)"
    for number in range(TIMES):
        c.execute(parent, (number, f"a{number}"))
        c.execute(child, (number, number, None, f"u{number}"))
    run(c, "BEGIN")
    c.execute(parent, (10, "a10"))
    c.execute(child, (10, 10, None, "u10"))  # its parent is buffered
    c.execute(child, (11, 1, "a1", None))
    assert buffered_counts == [True, True, False]  # a unique key of a parent that may be buffered takes more
    c.execute(child, (12, 1, "a10", None))
    run(c, "DELETE FROM c WHERE id = 2", "DELETE FROM p WHERE id = 2", "UPDATE c SET u = 'moved' WHERE id = 3")
    buffered_counts.clear()
    c.execute(child, (13, 1, None, "u2"))  # what has been deleted and moved is in nobody's way
    c.execute(child, (14, 1, None, "u3"))
    assert buffered_counts == [True, True]
    for blocked, sqlstate in (
        ((20, 2, None, None), errors.FOREIGN_KEY_VIOLATION),
        ((20, 1, None, "u10"), errors.UNIQUE_VIOLATION),
        ((20, 1, None, "u0"), errors.UNIQUE_VIOLATION),
        ((20, 1, None, "moved"), errors.UNIQUE_VIOLATION),
        ((20, 1, "a2", None), errors.FOREIGN_KEY_VIOLATION),
    ):
        run(c, "SAVEPOINT s")
        with fails(sqlstate):
            c.execute(child, blocked)
        run(c, "ROLLBACK TO s")
    run(c, "COMMIT")
    assert rows(c, "SELECT id FROM c ORDER BY id") == [(n,) for n in (0, 1, 3, 10, 11, 12, 13, 14)]
    assert not rows(c, "CHECK DATABASE")


def test_a_transaction_keeps_its_parents_and_unique_keys(engine: Engine, buffered_counts: list[bool]) -> None:
    """From the statement on nobody takes them away: others wait."""
    c, other = engine.connect(), engine.connect(lock_timeout="50ms")
    run(
        c, "CREATE TABLE p (id int PRIMARY KEY, a int)", "INSERT INTO p SELECT g, 0 FROM generate_series(0, 9) AS s (g)"
    )
    run(c, "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, u int UNIQUE)")
    for number in range(TIMES):
        c.execute("INSERT INTO c VALUES (?, ?, ?)", (number, 1, number))
    run(c, "BEGIN")
    c.execute("INSERT INTO c VALUES (?, ?, ?)", (20, 5, 20))
    assert buffered_counts == [True]
    for blocked in ("DELETE FROM p WHERE id = 5", "INSERT INTO c VALUES (21, 1, 20)"):
        with fails(errors.LOCK_NOT_AVAILABLE):
            other.execute(blocked)
    run(other, "UPDATE p SET a = 1 WHERE id = 5", "INSERT INTO c VALUES (21, 5, 21)")
    run(c, "COMMIT")
    assert not rows(c, "CHECK DATABASE")


@given(st.lists(st.tuples(st.one_of([_given(statement) for statement in STATEMENTS]), st.integers(0, 9)), max_size=60))
@settings(max_examples=40, deadline=None)
def test_transactions_as_sqlite_has_them(script: list[tuple[tuple[str, tuple[int | None, ...]], int]]) -> None:
    """Each statement under a savepoint, for sqlite3 a failed one ends no transaction."""
    with _beside_sqlite() as (ours, peer):
        run(ours, "BEGIN")
        peer.execute("BEGIN")
        for (text, parameters), ends in script:
            run(ours, "SAVEPOINT s")
            outcome = _outcome(ours, instar.IntegrityError, text, parameters)
            assert outcome == _outcome(peer, sqlite3.IntegrityError, text, parameters)
            run(ours, "ROLLBACK TO s" if outcome is None else "RELEASE s")
            if ends < 2:
                for each in (ours, peer):
                    each.execute("COMMIT" if ends else "ROLLBACK")
                    each.execute("BEGIN")
        run(ours, "COMMIT")


def test_a_parent_that_is_the_row_itself_by_a_unique_key(engine: Engine, counts: list[object]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id serial PRIMARY KEY, u int UNIQUE, r int REFERENCES t (u))")
    for number in range(TIMES):
        c.execute("INSERT INTO t (u, r) VALUES (?, ?)", (number, number))
        c.execute("UPDATE t SET u = ?, r = ? WHERE id = ?", (50 + number, 50 + number, number + 1))
    assert set(counts) == {1, ENTANGLED}  # what a row leaves that has referred to itself
    assert value(c, "SELECT max(id) FROM t") == TIMES  # each has drawn once
    run(c, "BEGIN")
    c.execute("INSERT INTO t (u, r) VALUES (?, ?)", (90, 90))
    with fails(errors.FOREIGN_KEY_VIOLATION):
        c.execute("INSERT INTO t (u, r) VALUES (?, ?)", (91, 92))
    run(c, "ROLLBACK")
    assert not rows(c, "CHECK DATABASE")


def test_what_is_set_of_a_sequence_is_set_once(engine: Engine) -> None:
    """Also where something is violated, which is found out twice."""
    c = engine.connect()
    run(c, "CREATE SEQUENCE s", "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)", "SELECT nextval('s')")
    insert = "INSERT INTO t VALUES (setval('s', currval('s') + 10), ?)"
    for number in range(TIMES):
        c.execute(insert, (number,))
    with fails(errors.UNIQUE_VIOLATION):
        c.execute(insert, (1,))
    assert value(c, "SELECT currval('s')") == 1 + (TIMES + 1) * 10
