"""AS OF SYSTEM TIME: old rows under the schema of then, or under today's; compared with what was there then."""

from __future__ import annotations

import datetime as dt
import random
import time
from typing import Any

import pytest

import instar
from instar.dbapi import Connection
from support.databases import Engine, rows, run, value


def moment(connection: Connection) -> str:
    """A time that all before is committed by, and nothing after."""
    time.sleep(0.003)
    found = value(connection, "SELECT CAST(now() AS text)")
    time.sleep(0.003)
    assert isinstance(found, str)
    return found


def refused(connection: Connection, text: str, *parameters: object) -> tuple[str, str]:
    with pytest.raises(instar.Error) as caught:
        connection.execute(text, parameters)
    return caught.value.sqlstate, caught.value.message


@pytest.fixture
def connection(engine: Engine) -> Connection:
    made = engine.connect()
    run(
        made,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text)",
        "CREATE INDEX t_a ON t (a)",
        "INSERT INTO t SELECT g, g * 10, 'b' || g FROM generate_series(1, 5) g",
    )
    return made


def test_old_rows_under_the_schema_of_then(connection: Connection) -> None:
    then = moment(connection)
    before = rows(connection, "SELECT * FROM t ORDER BY id")
    run(
        connection,
        "UPDATE t SET a = 0 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "ALTER TABLE t DROP COLUMN b",
        "ALTER TABLE t RENAME COLUMN a TO c",
        "ALTER TABLE t ADD COLUMN d int DEFAULT 4",
        "ALTER TABLE t RENAME TO u",
    )
    assert rows(connection, f"SELECT * FROM t ORDER BY id AS OF SYSTEM TIME '{then}'") == before
    assert rows(connection, f"SELECT * FROM t AS OF SYSTEM TIME '{then}' ORDER BY id") == before
    assert rows(connection, f"SELECT b FROM t AS OF SYSTEM TIME '{then}' WHERE a = 10") == [("b1",)]
    assert rows(connection, f"SELECT b FROM t WHERE id = 2 AS OF SYSTEM TIME '{then}'") == [("b2",)]
    assert rows(connection, "SELECT b FROM t WHERE id = ? AS OF SYSTEM TIME ?", 2, then) == [("b2",)]
    when = dt.datetime.fromisoformat(then + ":00" if then[-3] == "+" else then)
    assert rows(connection, "SELECT b FROM t WHERE id = $1 AS OF SYSTEM TIME $2", 2, when) == [("b2",)]
    analytic = "SELECT count(*), sum(a) OVER (ORDER BY id) FROM t GROUP BY id, a ORDER BY id LIMIT 1"
    assert rows(connection, f"{analytic} AS OF SYSTEM TIME '{then}'") == [(1, 10)]
    assert refused(connection, f"SELECT * FROM u AS OF SYSTEM TIME '{then}'")[0] == "42P01"
    assert refused(connection, f"SELECT d FROM t AS OF SYSTEM TIME '{then}'")[0] == "42703"
    # Another time is another answer, whatever was asked before; and now is as it ever was.
    assert rows(connection, "SELECT * FROM u ORDER BY id LIMIT 1") == [(1, 0, 4)]
    assert rows(connection, "SELECT * FROM u ORDER BY id LIMIT 1 AS OF SYSTEM TIME now()") == [(1, 0, 4)]


def test_what_was_dropped_is_there(connection: Connection) -> None:
    run(connection, "CREATE VIEW v AS SELECT a + 1 AS more FROM t WHERE id < 3")
    then = moment(connection)
    run(connection, "DROP VIEW v", "TRUNCATE t", "INSERT INTO t VALUES (7, 7, '7')")
    later = moment(connection)
    run(connection, "DROP TABLE t")
    assert rows(connection, f"SELECT count(*) FROM t AS OF SYSTEM TIME '{then}'") == [(5,)]
    assert rows(connection, f"SELECT * FROM v ORDER BY 1 AS OF SYSTEM TIME '{then}'") == [(11,), (21,)]
    assert rows(connection, f"SELECT * FROM t AS OF SYSTEM TIME '{later}'") == [(7, 7, "7")]
    assert refused(connection, "SELECT * FROM t AS OF SYSTEM TIME now()")[0] == "42P01"
    run(connection, "CREATE TABLE t (x int)")
    assert rows(connection, f"SELECT count(a) FROM t AS OF SYSTEM TIME '{then}'") == [(5,)]


def test_old_rows_under_todays_schema(connection: Connection) -> None:
    then = moment(connection)
    run(
        connection,
        "UPDATE t SET a = 0, b = 'new' WHERE id = 1",
        "ALTER TABLE t RENAME COLUMN a TO c",
        "ALTER TABLE t ALTER COLUMN c TYPE bigint",
        "ALTER TABLE t ADD COLUMN d int NOT NULL DEFAULT 4",
        "CREATE INDEX t_b ON t (b)",
        "CREATE TABLE later (x int)",
        "INSERT INTO later VALUES (1)",
    )
    now = f"AS OF SYSTEM TIME '{then}' WITH CURRENT SCHEMA"
    assert rows(connection, f"SELECT id, c, b, d FROM t ORDER BY id LIMIT 1 {now}") == [(1, 10, "b1", 4)]
    # The index on b had no entries for the rows of then.
    assert rows(connection, f"SELECT id FROM t WHERE b = 'b1' {now}") == [(1,)]
    assert rows(connection, f"SELECT id FROM t WHERE b = 'new' {now}") == []
    assert rows(connection, f"SELECT id FROM t WHERE c = 10 {now}") == [(1,)]
    assert rows(connection, f"SELECT * FROM later {now}") == []
    run(connection, "TRUNCATE t", "INSERT INTO t (id, c) VALUES (9, 9)")
    assert rows(connection, f"SELECT count(*), min(c) FROM t {now}") == [(5, 10)]
    assert rows(connection, f"SELECT id FROM t WHERE c = 20 {now}") == [(2,)]
    run(connection, "ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (c)")
    assert refused(connection, f"SELECT count(*) FROM t {now}")[0] == "0A000"
    assert rows(connection, f"SELECT * FROM later {now}") == []  # a table that is not asked is in nobody's way
    run(connection, "CREATE VIEW over AS SELECT c FROM t")
    assert refused(connection, f"SELECT * FROM over {now}")[0] == "0A000"
    assert rows(connection, f"SELECT count(*) FROM t AS OF SYSTEM TIME '{then}'") == [(5,)]


def test_what_is_not_null_today_may_have_been(connection: Connection) -> None:
    run(connection, "INSERT INTO t (id) VALUES (6)")
    then = moment(connection)
    run(connection, "DELETE FROM t WHERE id = 6", "ALTER TABLE t ALTER a SET NOT NULL", "CREATE INDEX t_ab ON t (a, b)")
    for query in (
        "SELECT id FROM t WHERE a NOT IN (10) ORDER BY id",
        "SELECT id FROM t WHERE NOT (a = 50) ORDER BY id",
        "SELECT count(*) FROM t WHERE (a = 5) IS NULL",
        "SELECT a + 1, -a, CASE WHEN a < 20 THEN 1 ELSE 2 END FROM t ORDER BY id",
        "SELECT a FROM t ORDER BY a NULLS FIRST LIMIT 1",
        "SELECT a FROM t ORDER BY a DESC NULLS LAST LIMIT 2",
        "SELECT count(a), count(*) FROM t",
    ):
        as_then = rows(connection, f"{query} AS OF SYSTEM TIME '{then}'")
        assert rows(connection, f"{query} AS OF SYSTEM TIME '{then}' WITH CURRENT SCHEMA") == as_then
    run(connection, "ALTER TABLE t ADD COLUMN e bigserial")
    assert refused(connection, f"SELECT 1 FROM t AS OF SYSTEM TIME '{then}' WITH CURRENT SCHEMA")[0] == "0A000"


def test_it_stands_beside_its_transaction(connection: Connection) -> None:
    then = moment(connection)
    run(connection, "BEGIN ISOLATION LEVEL SERIALIZABLE", "UPDATE t SET a = 99", "ALTER TABLE t ADD COLUMN d int")
    assert rows(connection, f"SELECT max(a) FROM t AS OF SYSTEM TIME '{then}'") == [(50,)]
    assert rows(connection, "SELECT max(a), count(d) FROM t") == [(99, 0)]
    run(connection, "COMMIT")
    assert rows(connection, "SELECT max(a) FROM t AS OF SYSTEM TIME ?", then) == [(50,)]


def test_texts_that_say_how_long_ago(connection: Connection) -> None:
    time.sleep(0.25)
    run(connection, "DELETE FROM t")
    assert rows(connection, "SELECT count(*) FROM t AS OF SYSTEM TIME '-200ms'") == [(5,)]
    assert rows(connection, "SELECT count(*) FROM t AS OF SYSTEM TIME ' -0.2 s'") == [(5,)]
    for hours in ("60min", "2h", "0.5 d"):
        assert refused(connection, f"SELECT count(*) FROM t AS OF SYSTEM TIME '-{hours}'")[0] == "42P01"


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("SELECT 1 AS OF SYSTEM TIME 'nonsense'", "22007"),
        ("SELECT 1 AS OF SYSTEM TIME '-nonsense'", "22023"),
        ("SELECT 1 AS OF SYSTEM TIME NULL", "22023"),
        ("SELECT 1 AS OF SYSTEM TIME 5", "42804"),
        ("SELECT 1 AS OF SYSTEM TIME 'infinity'", "0A000"),
        ("SELECT 1 AS OF SYSTEM TIME '2999-01-01'", "22023"),
        ("SELECT 1 AS OF SYSTEM TIME now() AS OF SYSTEM TIME now()", "42601"),
        ("SELECT 1 AS OF SYSTEM TIME", "42601"),
        ("SELECT * FROM (SELECT 1 AS OF SYSTEM TIME now()) x", "0A000"),
        ("INSERT INTO t SELECT * FROM t AS OF SYSTEM TIME now()", "0A000"),
        ("CREATE VIEW v AS SELECT * FROM t AS OF SYSTEM TIME now()", "0A000"),
        ("EXPLAIN SELECT * FROM t AS OF SYSTEM TIME now()", "0A000"),
        ("SELECT * FROM instar.tables AS OF SYSTEM TIME now()", "0A000"),
        ("SELECT id FROM t WHERE id = a AS OF SYSTEM TIME a", "42703"),
        ("SELECT 1 AS OF SYSTEM TIME (SELECT b FROM t)", "0A000"),
    ],
)
def test_what_is_refused(connection: Connection, text: str, sqlstate: str) -> None:
    assert refused(connection, text)[0] == sqlstate


def test_numbers_are_not_taken_and_parameters_come_last(connection: Connection) -> None:
    run(connection, "CREATE SEQUENCE s")
    assert refused(connection, "SELECT nextval('s') AS OF SYSTEM TIME now()")[0] == "25006"
    assert refused(connection, "SELECT * FROM t AS OF SYSTEM TIME ? WHERE id = ?", "-1ms", 1)[0] == "0A000"
    assert refused(connection, "SELECT 1 AS OF SYSTEM TIME ?")[0] == "08P01"
    assert refused(connection, "SELECT $1::int, $1::text AS OF SYSTEM TIME $1", "-1ms")[0] == "0A000"
    assert rows(connection, "SELECT 1 AS of") == [(1,)]
    assert rows(connection, "SELECT of.id FROM t AS of WHERE of.id = 1") == [(1,)]


def test_longer_ago_than_the_store_retains(connection: Connection) -> None:
    then = moment(connection)
    run(connection, "DELETE FROM t", "INSERT INTO t VALUES (9, 9, '9')")
    connection.database.store.collect(1 << 62, lambda record: [])
    assert refused(connection, f"SELECT * FROM t AS OF SYSTEM TIME '{then}'")[0] == "72000"


def test_every_moment_of_a_random_history(engine: Engine) -> None:
    """Beside changes of rows and columns, and compaction."""
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE INDEX t_a ON t (a)")
    draw = random.Random(4)
    history: list[tuple[str, list[Any], list[Any]]] = []
    for number in range(40):
        deed = draw.choice(["insert", "insert", "update", "delete", "add", "drop", "truncate", "compact", "load"])
        names = [name for (name,) in rows(connection, "SELECT column_name FROM information_schema.columns")]
        extra = [name for name in names if name.startswith("x")]
        if deed == "insert":
            run(connection, f"INSERT INTO t (id, a) VALUES ({number}, {draw.randrange(5)})")
        elif deed == "update":
            run(connection, f"UPDATE t SET a = {draw.randrange(5)} WHERE id % 3 = {draw.randrange(3)}")
        elif deed == "delete":
            run(connection, f"DELETE FROM t WHERE a = {draw.randrange(5)}")
        elif deed == "add":
            run(connection, f"ALTER TABLE t ADD COLUMN x{number} text DEFAULT 'x{number}'")
        elif deed == "drop" and extra:
            run(connection, f"ALTER TABLE t DROP COLUMN {draw.choice(extra)}")
        elif deed == "truncate" and number % 4 == 0:
            run(connection, "TRUNCATE t")
        elif deed == "compact":
            run(connection, "COMPACT TABLE t")
        then = moment(connection)
        found = rows(connection, "SELECT id FROM t WHERE a = 2 ORDER BY id")
        history.append((then, rows(connection, "SELECT * FROM t ORDER BY id"), found))
    for then, table, two in history:
        assert rows(connection, "SELECT * FROM t ORDER BY id AS OF SYSTEM TIME ?", then) == table
        assert rows(connection, "SELECT id FROM t WHERE a = 2 ORDER BY id AS OF SYSTEM TIME ?", then) == two
        current = "SELECT id, a FROM t ORDER BY id AS OF SYSTEM TIME ? WITH CURRENT SCHEMA"
        assert rows(connection, current, then) == [row[:2] for row in table]


def test_todays_schema_does_not_fit_a_time_when_a_column_was_dropped(connection: Connection) -> None:
    run(connection, "ALTER TABLE t DROP COLUMN a", "UPDATE t SET b = 'x' WHERE id = 2")
    then = moment(connection)
    run(connection, "ALTER TABLE t UNDROP COLUMN a")
    assert rows(connection, f"SELECT * FROM t AS OF SYSTEM TIME '{then}' WHERE id = 2") == [(2, "x")]
    sqlstate, message = refused(connection, f"SELECT a FROM t AS OF SYSTEM TIME '{then}' WITH CURRENT SCHEMA")
    assert (sqlstate, 'column "a"' in message) == ("0A000", True)
