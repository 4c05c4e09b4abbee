"""NOT NULL as a constraint that has a name, may be NOT VALID, and is validated, renamed and dropped."""

from __future__ import annotations

import pytest

from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run
from support.engines import engine  # noqa: F401 - pytest finds the fixture by its name here

ADD = "ALTER TABLE t ADD CONSTRAINT n NOT NULL a NOT VALID"
VALIDATE = "ALTER TABLE t VALIDATE CONSTRAINT n"
STATE = "SELECT name, state FROM instar.constraints WHERE kind = 'NOT NULL' AND name <> 't_id_not_null'"


@pytest.fixture(name="connection")
def connection_(engine: Engine) -> Connection:  # noqa: F811
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, NULL, 1), (2, 2, 2)")
    return connection


def test_not_valid_holds_for_new_writes_only(connection: Connection) -> None:
    run(connection, ADD)
    assert rows(connection, STATE) == [("n", "write-only")]
    assert rows(connection, "SELECT id FROM t WHERE a IS NULL") == [(1,)]
    for write in ("INSERT INTO t VALUES (3, NULL, 3)", "UPDATE t SET a = NULL WHERE id = 2", "UPDATE t SET b = 0"):
        with fails("23502", 'null value in column "a" of relation "t"'):
            run(connection, write)
    assert rows(connection, "CHECK DATABASE") == []
    with fails("23502", 'column "a" of relation "t" contains null values'):
        run(connection, VALIDATE)
    assert rows(connection, STATE) == [("n", "write-only")]
    run(connection, "UPDATE t SET a = 1 WHERE id = 1", VALIDATE, VALIDATE)
    assert rows(connection, STATE) == [("n", "public")]


@pytest.mark.parametrize(
    "statement", [VALIDATE, "ALTER TABLE t ALTER a SET NOT NULL", "ALTER TABLE t DROP CONSTRAINT n, ADD NOT NULL a"]
)
def test_ways_to_validate(connection: Connection, statement: str) -> None:
    run(connection, ADD, "DELETE FROM t WHERE id = 1", statement)
    assert rows(connection, STATE) == [("n", "public")]


@pytest.mark.parametrize("statement", ["ALTER TABLE t DROP CONSTRAINT n", "ALTER TABLE t ALTER a DROP NOT NULL"])
@pytest.mark.parametrize("valid", [False, True])
def test_it_is_dropped(connection: Connection, statement: str, valid: bool) -> None:
    run(connection, ADD)
    if valid:
        run(connection, "UPDATE t SET a = 1 WHERE id = 1", VALIDATE)
    run(connection, statement, "INSERT INTO t VALUES (3, NULL, 3)", ADD)
    assert rows(connection, STATE) == [("n", "write-only")]


def test_names(connection: Connection) -> None:
    run(connection, "DELETE FROM t", "ALTER TABLE t ALTER a SET NOT NULL")
    assert rows(connection, STATE) == [("t_a_not_null", "public")]
    run(connection, "ALTER TABLE t ADD NOT NULL a", "ALTER TABLE t ADD CONSTRAINT t_a_not_null NOT NULL a")
    with fails("55000", 'cannot create not-null constraint "n" on column "a" of table "t"'):
        run(connection, "ALTER TABLE t ADD CONSTRAINT n NOT NULL a")
    with fails("42710"):
        run(connection, "ALTER TABLE t ADD CONSTRAINT t_a_not_null CHECK (a > 0)")
    run(connection, "ALTER TABLE t RENAME CONSTRAINT t_a_not_null TO n", "ALTER TABLE t RENAME a TO c")
    assert rows(connection, STATE) == [("n", "public")]
    run(connection, "ALTER TABLE t DROP CONSTRAINT n, ADD CONSTRAINT m NOT NULL c")
    assert rows(connection, STATE) == [("m", "public")]
    for taken in ("ALTER TABLE t ADD CONSTRAINT m CHECK (b > 0)", "ALTER TABLE t ADD CONSTRAINT m NOT NULL b"):
        with fails("42710"):
            run(connection, taken)
    with fails("42710"):
        run(connection, "ALTER TABLE t ADD d int CONSTRAINT m NOT NULL")
    for twice in ("b int CONSTRAINT x NOT NULL", "CONSTRAINT x CHECK (a > 0)"):
        with fails("42710"):
            run(connection, f"CREATE TABLE u (a int CONSTRAINT x NOT NULL, {twice})")


def test_what_is_refused(connection: Connection) -> None:
    run(connection, ADD)
    with fails("55000", 'incompatible NOT VALID constraint "n" on relation "t"'):
        run(connection, "ALTER TABLE t ADD NOT NULL a")
    with fails("55000", 'cannot create primary key on column "a"'):
        run(connection, "ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (a)")
    with fails("42P16"):
        run(connection, "ALTER TABLE t DROP CONSTRAINT t_id_not_null")
    with fails("42809"):
        run(connection, "ALTER TABLE t VALIDATE CONSTRAINT t_pkey")
    with fails("42P16"):
        run(connection, "ALTER TABLE t DROP CONSTRAINT t_id_not_null, ADD NOT NULL id NOT VALID")
    with fails("42704"):
        run(connection, "ALTER TABLE t RENAME CONSTRAINT x TO y")


@pytest.mark.parametrize("how", ["text", "bigint USING a + 1", "float8 USING a + random()"])
def test_a_converted_column_takes_it_along(connection: Connection, how: str) -> None:
    run(connection, ADD, f"ALTER TABLE t ALTER a TYPE {how}")
    assert rows(connection, STATE) == [("n", "write-only")]
    assert rows(connection, "SELECT id FROM t WHERE a IS NULL") == [(1,)]
    with fails("23502"):
        run(connection, "UPDATE t SET a = NULL WHERE id = 2")
    run(connection, "DELETE FROM t WHERE id = 1", VALIDATE)
    assert rows(connection, STATE) == [("n", "public")]


def test_a_table_without_rows_has_it_at_once(connection: Connection) -> None:
    run(connection, "DELETE FROM t", "CREATE TABLE u (a int)", "ALTER TABLE u ADD CONSTRAINT n NOT NULL a NOT VALID")
    assert rows(connection, STATE) == [("n", "public")]


def test_one_of_two_tables_that_were_one(engine: Engine) -> None:  # noqa: F811
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int, g int, d text)",
        "INSERT INTO t VALUES (1, NULL, 1, 'x'), (2, 2, 1, 'x')",
        ADD,
        "ALTER TABLE t SPLIT INTO r (id, a, g), s (g, d) ON (g)",
    )
    assert rows(connection, "SELECT table_name, state FROM instar.constraints WHERE name = 'n'") == [
        ("r", "write-only")
    ]
    with fails("23502"):
        run(connection, "UPDATE r SET a = NULL WHERE id = 2")
    assert rows(connection, "SELECT id FROM r WHERE a IS NULL") == [(1,)]


def test_an_identity_keeps_it(connection: Connection) -> None:
    run(connection, "ALTER TABLE t ADD COLUMN e int GENERATED ALWAYS AS IDENTITY")
    for actions in ("ALTER e DROP NOT NULL", "ALTER e SET NOT NULL, ALTER e DROP NOT NULL"):
        with fails("42601", 'column "e" of relation "t" is an identity column'):
            run(connection, f"ALTER TABLE t {actions}")
    run(connection, "ALTER TABLE t ALTER e DROP IDENTITY, ALTER e DROP NOT NULL")
    run(connection, "INSERT INTO t VALUES (3, 3, 3, NULL)")
