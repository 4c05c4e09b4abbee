"""Queries end to end where an engine below them has been wrong, or too deep."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import instar
from instar import errors
from instar.database.queries import Queries
from instar.database.result import Result
from instar.sql.execution import ExecutionContext
from instar.sql.plan_cache import Prepared
from support.databases import Engine, fails, rows, run, value

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
    ("sql", "term"),
    [
        ("CREATE TABLE t (a int, CHECK ({} > 0))", "a"),
        ("CREATE TABLE t (a int, b int GENERATED ALWAYS AS ({}) STORED)", "a"),
        ("CREATE TABLE t (a int); ALTER TABLE t ALTER a TYPE bigint USING {}", "a"),
        ("CREATE TABLE t (a int, b double precision DEFAULT {})", "random()"),
    ],
)
def test_a_table_that_is_there_takes_rows_however_deep_its_expressions(sql: str, term: str) -> None:
    """Whoever made it has been told, and not whoever writes to it, that they cannot be bound once more."""
    told = []
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE s (a int)")
        connection.execute("INSERT INTO s VALUES (1)")
        for terms in range(150, 210, 4):
            connection.execute("DROP TABLE IF EXISTS t")
            try:
                for statement in sql.split(";"):
                    connection.execute(statement.format(" + ".join([term] * terms)))
            except instar.Error as error:
                told.append(error.sqlstate)
                continue
            connection.execute("WITH w AS (SELECT a FROM s) INSERT INTO t (a) SELECT (SELECT (SELECT w.a)) FROM w")
            assert connection.execute("SELECT a FROM t").fetchall() == [(1,)]
    assert 0 < len(told) < 15
    assert set(told) == {"54001"}


# --- queries that stand alone -----------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a query was executed with no transaction around it, each time that it was tried."""
    found: list[bool] = []
    execute = Queries.alone

    def counted(self: Queries, text: str, parameters: Sequence[object]) -> Result | None:
        result = execute(self, text, parameters)
        found.append(result is not None)
        return result

    monkeypatch.setattr(Queries, "alone", counted)
    return found


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*), sum(a) FROM t",
        "SELECT x.a FROM t AS x JOIN t AS y ON y.id = x.a WHERE x.id = 1",
        "SELECT id FROM t WHERE a IN (SELECT a FROM t WHERE id < 3) ORDER BY id",
        "SELECT now() = now(), upper('a')",
        "SELECT id FROM v WHERE id < 3 ORDER BY id",
        "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r",
    ],
)
def test_what_needs_no_transaction(engine: Engine, alone: list[bool], query: str) -> None:
    c = engine.connect()
    run(
        c, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t SELECT g, g FROM generate_series(1, 9) AS s (g)"
    )
    run(c, "CREATE VIEW v AS SELECT * FROM t")
    first = rows(c, query)
    assert rows(c, query) == first
    assert alone == [True]
    run(c, "BEGIN")
    assert rows(c, query) == first
    assert alone == [True, True]
    run(c, "ROLLBACK")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT nextval('s')",
        "SELECT currval('s')",
        "SELECT id FROM t FOR UPDATE",
        "SELECT id FROM t WITH (NOLOCK)",
        "SELECT count(*) FROM information_schema.tables",
        "SELECT count(*) FROM t AS OF SYSTEM TIME '-1ms'",
    ],
)
def test_what_needs_one(engine: Engine, alone: list[bool], query: str) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE SEQUENCE s", "SELECT nextval('s')")
    time.sleep(0.01)
    for _ in range(3):
        c.execute(query)
    assert not any(alone)


def test_each_statement_of_a_transaction_sees_what_is_there(engine: Engine, alone: list[bool]) -> None:
    c, other = engine.connect(), engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    query = "SELECT sum(a) FROM t"
    assert value(c, query) == 1
    run(c, "BEGIN")
    for number in range(2, 5):
        run(other, f"UPDATE t SET a = {number}", f"ALTER TABLE t ADD COLUMN c{number} int")
        assert value(c, query) == number
    assert alone == [True] * 3
    run(c, "UPDATE t SET a = 10")
    assert value(c, query) == 10  # its own
    assert alone == [True] * 3
    run(c, "COMMIT", "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert value(c, query) == 10
    run(other, "UPDATE t SET a = 20")
    assert value(c, query) == 10
    run(c, "COMMIT")
    assert value(c, query) == 20
    assert alone == [True] * 4


def test_a_query_that_fails_alone_fails_its_transaction(engine: Engine, alone: list[bool]) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    query = "SELECT 1 / (a - ?) FROM t WHERE a < ?"
    assert c.execute(query, (2, 5)).fetchall() == [(-1,)]
    run(c, "BEGIN")
    assert c.execute(query, (2, 5)).fetchall() == [(-1,)]
    with fails(errors.DIVISION_BY_ZERO):
        c.execute(query, (1, 5))
    assert len(alone) == 1
    with fails(errors.IN_FAILED_TRANSACTION):
        c.execute(query, (2, 5))
    run(c, "ROLLBACK")
    assert c.execute(query, (2, 5)).fetchall() == [(-1,)]
    assert alone == [True] * 2


def test_rows_that_were_locked_and_are_replaced_are_told_at_once(engine: Engine, alone: list[bool]) -> None:
    c, other = engine.connect(), engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    for _ in range(2):
        rows(c, "SELECT count(*) FROM t")
    run(c, "BEGIN", "SELECT id FROM t FOR UPDATE")
    run(other, "TRUNCATE t")
    alone.clear()
    with fails(errors.SERIALIZATION_FAILURE, "replaced"):
        rows(c, "SELECT count(*) FROM t")
    assert not alone


def test_the_collector_is_told_of_the_snapshot_of_a_query_alone(
    engine: Engine, alone: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    store = c.database.store
    seen: list[int | None] = []
    execute = Prepared.run

    def looked(self: Prepared, context: ExecutionContext) -> object:
        seen.append(store.oldest_snapshot())
        return execute(self, context)

    monkeypatch.setattr(Prepared, "run", looked)
    for _ in range(3):
        rows(c, "SELECT count(*) FROM t")
    assert alone == [True] * 2
    assert len(seen) == 3
    assert None not in seen
    assert store.oldest_snapshot() is None
