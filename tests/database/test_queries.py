"""Queries end to end where an engine below them has been wrong, or too deep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import instar

ROWS = 6000  # more than the executor reads by keys


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[instar.Connection]:
    path: Path = tmp_path_factory.mktemp("queries") / "db"
    with instar.connect(path, synchronous="off", autocommit=True) as made:
        made.execute("CREATE TABLE a (k int)")
        made.execute("CREATE TABLE b (id int PRIMARY KEY, h text)")
        made.execute(f"INSERT INTO a SELECT g FROM generate_series(1, {ROWS}) g")
        made.execute(f"INSERT INTO b SELECT g, CASE WHEN g % 2 = 0 THEN 'y' END FROM generate_series(1, {ROWS}) g")
        yield made


@pytest.mark.parametrize(
    "source",
    [
        "a LEFT JOIN b ON a.k = b.id AND b.h IS NULL WHERE b.id IS NULL",
        "a LEFT JOIN b ON a.k = b.id AND NOT (b.h IS NOT NULL) WHERE b.id IS NULL",
        "a LEFT JOIN b ON a.k = b.id AND b.h IS NULL WHERE b.id + 0 IS NULL",
        "b RIGHT JOIN a ON a.k = b.id AND b.h IS NULL WHERE b.id IS NULL",
        "a LEFT JOIN (SELECT * FROM b WHERE h IS NULL) b ON a.k = b.id WHERE b.id IS NULL",
        "a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.id = a.k AND b.h IS NULL)",
        "a WHERE k NOT IN (SELECT id FROM b WHERE h IS NULL)",
    ],
)
def test_anti_joins_keep_their_is_null(connection: instar.Connection, source: str) -> None:
    assert connection.execute(f"SELECT count(*) FROM {source}").fetchall() == [(ROWS // 2,)]


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELECT " + " + ".join(["?"] * 900), [1] * 900),
        ("SELECT " + " + ".join(["sum(k)"] * 800) + " FROM a", []),
        ("SELECT CASE k " + " ".join(f"WHEN {number} THEN 0" for number in range(10_000)) + " END FROM a", []),
    ],
)
def test_what_is_too_deep_is_an_error_of_sql(connection: instar.Connection, sql: str, parameters: list[object]) -> None:
    with pytest.raises(instar.Error) as caught:
        connection.execute(sql, parameters)
    assert caught.value.sqlstate == "54001"
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (a int, CHECK ({} > 0))",
        "CREATE TABLE t (a int, b int GENERATED ALWAYS AS ({}) STORED)",
        "CREATE VIEW v AS SELECT {} FROM a",
        "EXPLAIN SELECT {} FROM a",
        "SELECT sum(a) OVER (ORDER BY {}) FROM (SELECT k AS a FROM a) q",
    ],
)
def test_so_it_is_wherever_it_stands(connection: instar.Connection, sql: str) -> None:
    name = "k" if "FROM a" in sql and "OVER" not in sql else "a"
    with pytest.raises(instar.Error) as caught:
        connection.execute(sql.format(" + ".join([name] * 3_000)))
    assert caught.value.sqlstate == "54001"
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize("terms", range(180, 440, 20))
def test_a_column_that_is_too_deep_for_the_job_that_computes_it_is_an_error_of_sql(terms: int) -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a int)")
        connection.execute("INSERT INTO t VALUES (1)")
        expression = " + ".join(["a"] * terms)
        try:
            connection.execute(f"ALTER TABLE t ADD COLUMN b int GENERATED ALWAYS AS ({expression}) STORED")
        except instar.Error as error:
            assert error.sqlstate == "54001"  # noqa: PT017 - how deep it may be depends on who calls
        assert connection.execute("SELECT a FROM t").fetchall() == [(1,)]
        assert connection.execute("CHECK DATABASE").fetchall() == []


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (a int, CHECK ({} > 0))",
        "CREATE TABLE t (a int, b int GENERATED ALWAYS AS ({}) STORED)",
        "CREATE TABLE t (a int); ALTER TABLE t ALTER a TYPE bigint USING {}",
    ],
)
def test_a_table_that_is_there_takes_rows_however_deep_its_expressions(sql: str) -> None:
    """Whoever made it has been told, and not whoever writes to it, that they cannot be bound once more."""
    told = []
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE s (a int)")
        connection.execute("INSERT INTO s VALUES (1)")
        for terms in range(150, 210, 4):
            connection.execute("DROP TABLE IF EXISTS t")
            try:
                for statement in sql.split(";"):
                    connection.execute(statement.format(" + ".join(["a"] * terms)))
            except instar.Error as error:
                told.append(error.sqlstate)
                continue
            connection.execute("WITH w AS (SELECT a FROM s) INSERT INTO t (a) SELECT (SELECT (SELECT w.a)) FROM w")
            assert connection.execute("SELECT a FROM t").fetchall() == [(1,)]
    assert 0 < len(told) < 15
    assert set(told) == {"54001"}
