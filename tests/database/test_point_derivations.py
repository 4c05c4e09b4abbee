"""ON CONFLICT, and rows that others refer to, on the short way of writes: served there, as by the general way."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import instar
from instar import errors
from instar.database.point_writes import ENTANGLED, Buffered, PointWriter
from instar.database.queries import Queries
from support.databases import Engine, fails, rows, run, value

TIMES = 4  # the first execution goes the general way, the second compiles the short one, the others take it


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the short way has answered, in autocommit or into a transaction's buffer."""
    found: list[object] = []

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            made = method(*given)
            found.append(1 if isinstance(made, Buffered) else made)
            return made

        return noted

    monkeypatch.setattr(PointWriter, "run", noting(PointWriter.run))
    monkeypatch.setattr(PointWriter, "to_buffer", noting(PointWriter.to_buffer))
    return found


UPSERTS = {
    "key": "INSERT INTO t VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n",
    "constraint": "INSERT INTO t VALUES (?, ?, 1) ON CONFLICT ON CONSTRAINT t_pkey DO UPDATE SET n = t.n + excluded.n",
    "unique": "INSERT INTO t VALUES (?, ?, 1) ON CONFLICT (u) DO UPDATE SET n = t.n + excluded.n",
}


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("kind", UPSERTS)
def test_rows_in_the_way_are_changed(engine: Engine, served: list[object], kind: str, block: bool) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE, n int)", "CREATE INDEX ON t (n)")
    for number in range(TIMES):
        if block:
            run(c, "BEGIN")
        for key in (1, 2):
            assert c.execute(UPSERTS[kind], (key, f"u{key}")).rowcount == 1
        if block:
            run(c, "COMMIT")
        assert rows(c, "SELECT * FROM t ORDER BY n, id") == [(1, "u1", number + 1), (2, "u2", number + 1)]
    assert len(served) >= 2 * (TIMES - 1) - 1
    assert set(served) == {1}
    assert not rows(c, "CHECK DATABASE")


@pytest.mark.parametrize("target", ["", "(id)", "(u)"])
def test_rows_in_the_way_are_left_alone(engine: Engine, served: list[object], target: str) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE)", "INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    text = f"INSERT INTO t VALUES (?, ?) ON CONFLICT {target} DO NOTHING"
    for number in range(TIMES):
        assert c.execute(text, (10 + number, None)).rowcount == 1  # NULL equals nothing
        for given in ((1, "a"), (1, "b"), (3, "a")):
            stands = target == "" or (given[0] == 1 if target == "(id)" else given[1] == "a")
            if stands:
                assert c.execute(text, given).rowcount == 0
                assert c.execute(text + " RETURNING id", given).fetchall() == []
            else:
                with fails(errors.UNIQUE_VIOLATION):
                    c.execute(text, given)
    assert {0, 1} <= {found for found in served if isinstance(found, int)}
    assert [] in served
    assert (ENTANGLED in served) == (target == "(id)")  # where another key is taken, nobody knows of it beforehand
    assert rows(c, "SELECT * FROM t WHERE id < 10 ORDER BY id") == [(1, "a"), (2, None)]
    served.clear()
    run(c, "BEGIN")
    assert c.execute(text, (1, "a")).rowcount == 0
    assert c.execute(text + " RETURNING id", (1, "a")).fetchall() == []
    run(c, "COMMIT")
    assert served == [0, []]


def test_what_is_returned_and_which_rows_a_condition_leaves_alone(engine: Engine, served: list[object]) -> None:
    c = engine.connect()
    run(
        c,
        "CREATE TABLE t (id int PRIMARY KEY, a int CHECK (a < 9), twice int GENERATED ALWAYS AS (a * 2) STORED)",
        "CREATE UNIQUE INDEX ON t (twice)",
    )
    text = """INSERT INTO t (id, a) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET a = excluded.a + 1
              WHERE t.a <> excluded.a RETURNING id, a, twice"""
    for number in range(TIMES):
        key = 10 * number
        assert c.execute(text, (key, 3)).fetchall() == [(key, 3, 6)]
        assert c.execute(text, (key, 3)).fetchall() == []
        assert c.execute(text, (key, 4)).fetchall() == [(key, 5, 10)]
        for refused in (8, 9):  # what is proposed is judged, too
            with fails(errors.CHECK_VIOLATION):
                c.execute(text, (key, refused))
        assert c.execute(text, (key, 0)).fetchall() == [(key, 1, 2)]
        assert c.execute(text, (key + 1, 7)).fetchall() == [(key + 1, 7, 14)]
        with fails(errors.UNIQUE_VIOLATION):
            c.execute(text, (key, 6))
        run(c, "DELETE FROM t")
    assert [] in served
    assert [(0 if not isinstance(found, list) else len(found)) for found in served].count(1) > TIMES
    assert not rows(c, "CHECK DATABASE")


def test_numbers_are_drawn_once_and_not_within_the_commit(engine: Engine, served: list[object]) -> None:
    c = engine.connect()
    run(c, "CREATE SEQUENCE s", "CREATE TABLE t (id serial PRIMARY KEY, u text UNIQUE, n bigint)")
    text = "INSERT INTO t (u, n) VALUES (?, 0) ON CONFLICT (u) DO UPDATE SET n = t.n + 1"
    for _ in range(TIMES):
        c.execute(text, ("a",))
    assert served[-1] == 1
    assert value(c, "SELECT max(id) FROM t") == 1
    assert value(c, "SELECT nextval('t_id_seq')") == TIMES + 1
    served.clear()
    for number in range(TIMES):
        c.execute("INSERT INTO t (id, u) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET n = nextval('s')", ("a",))
        assert value(c, "SELECT n FROM t") == number + 1
    assert not served


def test_a_change_of_the_key_takes_the_general_way(engine: Engine, served: list[object]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE)", "INSERT INTO t VALUES (0, 'a')")
    for number in range(TIMES):
        c.execute("INSERT INTO t VALUES (?, 'a') ON CONFLICT (u) DO UPDATE SET id = excluded.id", (number,))
        assert rows(c, "SELECT * FROM t") == [(number, "a")]
    assert not served


def test_an_index_that_is_another_by_now(engine: Engine) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, u int, n int)", "CREATE UNIQUE INDEX t_u ON t (u)")
    text = "INSERT INTO t VALUES (?, ?, 0) ON CONFLICT (u) DO UPDATE SET n = t.n + 1"
    for _ in range(TIMES):
        c.execute(text, (1, 1))
    run(c, "DROP INDEX t_u")
    with fails("42P10"):
        c.execute(text, (2, 1))
    run(c, "INSERT INTO t VALUES (2, 2, 0)", "CREATE UNIQUE INDEX t_w ON t (u)")
    for _ in range(TIMES):
        c.execute(text, (9, 2))
    run(c, "ALTER TABLE t ADD COLUMN m int DEFAULT 7, DROP COLUMN n", "ALTER TABLE t ADD COLUMN n int DEFAULT 0")
    text = "INSERT INTO t VALUES (?, ?) ON CONFLICT (u) DO UPDATE SET n = t.n + t.m"
    for _ in range(TIMES):
        c.execute(text, (9, 2))
    assert rows(c, "SELECT * FROM t ORDER BY id") == [(1, 1, 7, 0), (2, 2, 7, 7 * TIMES)]
    assert not rows(c, "CHECK DATABASE")


def test_rows_that_others_have_locked_are_waited_for(engine: Engine, served: list[object]) -> None:
    c, other = engine.connect(lock_timeout="50ms"), engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, n int)", "INSERT INTO t VALUES (1, 1, 0), (2, 2, 0)")
    by_key = "INSERT INTO t VALUES (?, ?, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1"
    by_unique = "INSERT INTO t VALUES (?, ?, 0) ON CONFLICT (u) DO UPDATE SET n = t.n + 1"
    moving = "INSERT INTO t VALUES (?, ?, 0) ON CONFLICT (id) DO UPDATE SET u = excluded.u"
    nothing = "INSERT INTO t VALUES (?, ?, 0) ON CONFLICT DO NOTHING"
    for _ in range(TIMES):
        for text in (by_key, by_unique, moving, nothing):
            c.execute(text, (1, 1))
    run(other, "BEGIN", "UPDATE t SET n = 50 WHERE id = 1", "INSERT INTO t VALUES (3, 3, 0)")
    for text, given in (
        (by_key, (1, 9)), (by_unique, (9, 1)), (moving, (1, 7)),
        (by_key, (3, 9)), (by_unique, (9, 3)), (moving, (2, 3)), (nothing, (3, 9)), (nothing, (9, 3)),
    ):  # fmt: skip
        with fails(errors.LOCK_NOT_AVAILABLE):
            c.execute(text, given)
    assert c.execute(nothing, (1, 1)).rowcount == 0  # which nobody waits for
    run(other, "COMMIT")
    for text in (by_key, by_unique):
        c.execute(text, (1, 1))
    assert served[-1] == 1
    run(other, "BEGIN", "SELECT FROM t WHERE id = 1 FOR KEY SHARE")
    c.execute(by_key, (1, 1))  # of whose key nobody takes anything
    with fails(errors.LOCK_NOT_AVAILABLE):
        c.execute(moving, (1, 8))
    run(other, "COMMIT")
    assert rows(c, "SELECT * FROM t ORDER BY id") == [(1, 1, 53), (2, 2, 0), (3, 3, 0)]


def test_rows_of_which_others_keep_the_key_are_changed(
    engine: Engine, served: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    c, other = engine.connect(lock_timeout="50ms"), engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 0)")
    text = "INSERT INTO t VALUES (?, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1"
    run(other, "BEGIN", "SELECT FROM t WHERE id = 1 FOR KEY SHARE")
    for _ in range(TIMES):
        c.execute(text, (1,))
    run(c, "BEGIN")
    with monkeypatch.context() as patched:
        patched.setattr(Queries, "execute", lambda *_: pytest.fail("the general way"))
        c.execute(text, (1,))
    run(c, "COMMIT")
    assert served[-1] == 1
    run(other, "COMMIT")
    assert value(c, "SELECT n FROM t") == TIMES + 1


def test_what_a_transaction_has_changed_itself(engine: Engine) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, n int)", "INSERT INTO t VALUES (1, 1, 0), (2, 2, 0)")
    by_key = "INSERT INTO t VALUES (?, ?, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1"
    by_unique = "INSERT INTO t VALUES (?, ?, 0) ON CONFLICT (u) DO UPDATE SET n = t.n + 1"
    for _ in range(TIMES):
        c.execute(by_key, (1, 1))
        c.execute(by_unique, (1, 1))
    run(c, "BEGIN")
    for _ in range(2):
        c.execute(by_key, (1, 1))
        c.execute(by_unique, (9, 1))
        c.execute(by_key, (5, 5))
        c.execute(by_unique, (9, 5))
    run(c, "UPDATE t SET u = 7 WHERE id = 2")
    c.execute(by_unique, (9, 7))
    c.execute(by_unique, (3, 2))
    run(c, "DELETE FROM t WHERE id = 3")
    c.execute(by_key, (3, 3))
    c.execute(by_unique, (6, 8))
    c.execute(by_unique, (1, 8))  # where a row has the key, and another, which is new, is in the way
    run(c, "COMMIT")
    assert rows(c, "SELECT * FROM t ORDER BY id") == [(1, 1, 2 * TIMES + 4), (2, 7, 1), (3, 3, 0), (5, 5, 3), (6, 8, 1)]
    assert not rows(c, "CHECK DATABASE")


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE ON UPDATE CASCADE"])
def test_rows_that_others_may_refer_to(engine: Engine, served: list[object], action: str, block: bool) -> None:
    """Short where nobody does; else the general way refuses it, or changes whoever does."""
    c = engine.connect()
    run(
        c,
        "CREATE TABLE p (id int PRIMARY KEY, u int UNIQUE, v int)",
        f"CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p {action}, u int REFERENCES p (u) {action})",
        "INSERT INTO p SELECT g, g, 0 FROM generate_series(0, 19) AS s (g)",
        "INSERT INTO c VALUES (1, 10, NULL), (2, NULL, 11)",
    )
    delete, move = "DELETE FROM p WHERE id = ?", "UPDATE p SET u = ? WHERE id = ?"
    upsert = "INSERT INTO p VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET u = excluded.u"
    for number in range(TIMES):
        if block:
            run(c, "BEGIN")
        for text, given in ((delete, (number,)), (move, (100 + number, 18)), (upsert, (19, 200 + number))):
            assert c.execute(text, given).rowcount == 1
        if block:
            run(c, "COMMIT")
    assert len(served) >= 3 * (TIMES - 2)
    assert set(served) == {1}
    for text, given in ((delete, (10,)), (delete, (11,)), (move, (50, 11)), (upsert, (11, 50))):
        run(c, "BEGIN" if block else "SELECT 1")
        if action:
            assert c.execute(text, given).rowcount == 1
        else:
            with fails(errors.FOREIGN_KEY_VIOLATION):
                c.execute(text, given)
        if block:
            run(c, "ROLLBACK")
        elif action:
            run(c, "DELETE FROM c", "DELETE FROM p WHERE id IN (10, 11)", "INSERT INTO p VALUES (10, 10), (11, 11)")
            run(c, "INSERT INTO c VALUES (1, 10, NULL), (2, NULL, 11)")
        assert served[-1] == ENTANGLED
    assert not rows(c, "CHECK DATABASE")


def test_rows_whose_children_are_about_to_come_or_to_go(engine: Engine) -> None:
    c, other = engine.connect(lock_timeout="50ms"), engine.connect()
    run(
        c,
        "CREATE TABLE p (id int PRIMARY KEY, u int UNIQUE)",
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, u int REFERENCES p (u))",
        "INSERT INTO p SELECT g, g FROM generate_series(0, 19) AS s (g)",
        "INSERT INTO c VALUES (1, 10, NULL)",
    )
    delete, move = "DELETE FROM p WHERE id = ?", "UPDATE p SET u = ? WHERE id = ?"
    for number in range(TIMES):
        c.execute(delete, (number,))
        c.execute(move, (100 + number, 19))
    run(other, "BEGIN", "INSERT INTO c VALUES (2, 11, 12)")
    for text, given in ((delete, (11,)), (delete, (12,)), (move, (50, 12))):
        with fails(errors.LOCK_NOT_AVAILABLE):
            c.execute(text, given)
    run(other, "ROLLBACK")
    run(c, "BEGIN", "INSERT INTO c VALUES (3, 13, NULL)", "DELETE FROM c WHERE id = 1")
    c.execute(delete, (10,))
    run(c, "SAVEPOINT s")
    with fails(errors.FOREIGN_KEY_VIOLATION):
        c.execute(delete, (13,))
    run(c, "ROLLBACK TO s", "COMMIT")
    assert rows(c, "SELECT * FROM c") == [(3, 13, None)]
    assert value(c, "SELECT count(*) FROM p WHERE id = 10") == 0
    assert not rows(c, "CHECK DATABASE")


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET up = ?, u = ? WHERE id = ?",
        "INSERT INTO t (up, u, id) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET u = excluded.u, up = excluded.up",
    ],
)
def test_who_refers_to_what_it_gives_up_itself(engine: Engine, text: str, block: bool) -> None:
    c = engine.connect()
    run(
        c,
        "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, up int REFERENCES t (u))",
        "INSERT INTO t SELECT g, g, NULL FROM generate_series(0, 9) AS s (g)",
    )
    for number in range(TIMES):
        c.execute(text, (None, 100 + number, number))
    for _ in range(TIMES):
        if block:
            run(c, "BEGIN")
        with fails(errors.FOREIGN_KEY_VIOLATION):
            c.execute(text, (8, 108, 8))
        run(c, "ROLLBACK" if block else "SELECT 1")
    assert c.execute(text, (7, 108, 8)).rowcount == 1
    assert c.execute(text, (109, 109, 9)).rowcount == 1
    assert not rows(c, "CHECK DATABASE")


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(("action", "expected"), [("CASCADE", "1.00"), ("SET NULL", "None")])
def test_a_value_that_is_equal_and_another_one(engine: Engine, action: str, expected: str, block: bool) -> None:
    """As the actions of foreign keys tell them: the key is the same."""
    c = engine.connect()
    run(
        c,
        "CREATE TABLE p (id int PRIMARY KEY, n numeric UNIQUE)",
        f"CREATE TABLE d (id int PRIMARY KEY, n numeric REFERENCES p (n) ON UPDATE {action})",
        "INSERT INTO p VALUES (1, 1), (2, NULL)",
        "INSERT INTO d VALUES (1, 1)",
    )
    text = "UPDATE p SET n = ? WHERE id = ?"
    for number in range(TIMES):
        c.execute(text, (Decimal(7 + number), 2))
    if block:
        run(c, "BEGIN")
    c.execute(text, (Decimal("1.00"), 1))
    if block:
        run(c, "COMMIT")
    assert str(value(c, "SELECT n FROM d")) == expected


# --- several processes ------------------------------------------------------------------------------------------------

_ROUNDS = 1500


def _count(path: Path, number: int) -> None:
    """Counters that all count, and rows that all delete and insert again."""
    with instar.connect(path, synchronous=None, autocommit=True) as connection:
        for turn in range(_ROUNDS):
            key = turn % 7
            connection.execute("INSERT INTO t VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET n = t.n + 1", (key, -key))
            text = "INSERT INTO t VALUES (?, ?, 1) ON CONFLICT (u) DO UPDATE SET n = t.n + excluded.n"
            connection.execute(text, (1000 * (number + 1) + turn, key % 3 - 100))
            connection.execute("INSERT INTO gone VALUES (?) ON CONFLICT DO NOTHING", (key,))
            connection.execute("DELETE FROM gone WHERE id = ?", (key,))


def test_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with instar.connect(path, synchronous="off", autocommit=True) as c:
        run(c, "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, n int)", "CREATE TABLE gone (id int PRIMARY KEY)")
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_count, args=(path, number)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        assert rows(c, "SELECT u < -50, sum(n), count(*) FROM t GROUP BY 1 ORDER BY 1") == [
            (False, 3 * _ROUNDS, 7), (True, 3 * _ROUNDS, 3),
        ]  # fmt: skip
        assert not rows(c, "CHECK DATABASE")
