"""Columns come where a statement says, and rows of every layout are read by the ids of their columns."""

from __future__ import annotations

import pytest

import instar
from instar import errors
from support.databases import Engine, fails, rows, run


@pytest.fixture
def connection(engine: Engine) -> instar.Connection:
    made = engine.connect()
    run(made, "CREATE TABLE t (id int PRIMARY KEY, a int, b text)", "INSERT INTO t VALUES (1, 2, 'x')")
    return made


def names(connection: instar.Connection) -> list[str]:
    return [column[0] for column in connection.execute("SELECT * FROM t LIMIT 0").description or ()]


@pytest.mark.parametrize(
    ("change", "order"),
    [
        ("ADD COLUMN c int FIRST", ["c", "id", "a", "b"]),
        ("ADD c int DEFAULT 7 NOT NULL AFTER id", ["id", "c", "a", "b"]),
        ("ADD c int, ADD d int AFTER c, ADD e int AFTER c", ["id", "a", "b", "c", "e", "d"]),
        ("ADD c bigserial AFTER id", ["id", "c", "a", "b"]),
        ("ALTER COLUMN b FIRST", ["b", "id", "a"]),
        ("ALTER b AFTER id", ["id", "b", "a"]),
        ("ALTER id AFTER b", ["a", "b", "id"]),
        ("ALTER b AFTER a", ["id", "a", "b"]),
        ("ALTER b AFTER id, ALTER a FIRST", ["a", "id", "b"]),
        ("DROP a, ALTER b FIRST", ["b", "id"]),
        ("RENAME a TO first", ["id", "first", "b"]),
    ],
)
def test_columns_come_where_the_statement_says(connection: instar.Connection, change: str, order: list[str]) -> None:
    run(connection, f"ALTER TABLE t {change}")
    assert names(connection) == order
    (row,) = connection.execute("SELECT * FROM t").fetchall()
    assert dict(zip(order, row, strict=True)) | {"id": 1, "b": "x"} == dict(zip(order, row, strict=True))
    run(connection, "INSERT INTO t (b, id) VALUES ('y', 2)", "UPDATE t SET b = 'z' WHERE id = 1")
    assert rows(connection, "SELECT id, b FROM t ORDER BY id") == [(1, "z"), (2, "y")]
    run(connection, "COMPACT TABLE t")
    assert rows(connection, "SELECT id, b FROM t ORDER BY id") == [(1, "z"), (2, "y")]
    assert rows(connection, "CHECK DATABASE") == []


def test_a_column_that_stays_where_it_is_makes_no_layout(connection: instar.Connection) -> None:
    before = rows(connection, "SELECT * FROM instar.layouts")
    run(connection, "ALTER TABLE t ALTER a AFTER id")
    assert rows(connection, "SELECT * FROM instar.layouts") == before


@pytest.mark.parametrize(
    ("change", "sqlstate"),
    [
        ("ALTER a AFTER a", errors.INVALID_TABLE_DEFINITION),
        ("ALTER a AFTER z", errors.UNDEFINED_COLUMN),
        ("ALTER z FIRST", errors.UNDEFINED_COLUMN),
        ("ADD c int AFTER z", errors.UNDEFINED_COLUMN),
        ("ADD c int AFTER", errors.SYNTAX_ERROR),
        ("ADD c int BEFORE a", errors.SYNTAX_ERROR),
        ("ALTER a LAST", errors.SYNTAX_ERROR),
    ],
)
def test_refusals(connection: instar.Connection, change: str, sqlstate: str) -> None:
    with fails(sqlstate):
        run(connection, f"ALTER TABLE t {change}")
    assert names(connection) == ["id", "a", "b"]


def test_older_snapshots_keep_their_order(engine: Engine, connection: instar.Connection) -> None:
    older = engine.connect()
    run(older, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert rows(older, "SELECT * FROM t") == [(1, 2, "x")]
    run(connection, "ALTER TABLE t ALTER b FIRST", "UPDATE t SET a = 3", "INSERT INTO t VALUES ('y', 2, 4)")
    assert rows(older, "SELECT * FROM t") == [(1, 2, "x")]
    run(older, "INSERT INTO t VALUES (5, 6, 'own')", "COMMIT")
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [("x", 1, 3), ("y", 2, 4), ("own", 5, 6)]


@pytest.mark.parametrize("change", ["ALTER b FIRST", "SET (migration = 'read')", "SET (compaction_share = 0.5)"])
def test_what_cannot_wait_for_a_job_is_refused_beside_one(connection: instar.Connection, change: str) -> None:
    """Else it would stay if the job failed."""
    with fails(errors.FEATURE_NOT_SUPPORTED, "in one statement with what takes a job"):
        run(connection, f"ALTER TABLE t {change}, ADD UNIQUE (a)")
    run(connection, f"ALTER TABLE t {change}, ADD COLUMN c int")  # which is there at once
    run(connection, "CREATE TABLE none (id int PRIMARY KEY, a int, b text)")
    run(connection, f"ALTER TABLE none {change}, ADD UNIQUE (a)")
