"""What new elements may be called, and what keys may be of."""

from __future__ import annotations

import pytest

from instar import errors
from support.databases import Engine, fails, rows, run
from support.engines import engine  # noqa: F401 - pytest finds the fixture by its name here

SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, b int, CONSTRAINT c CHECK (a > 0))",
    "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES t",
    "ALTER TABLE t ADD CONSTRAINT u UNIQUE (a)",
)


@pytest.mark.parametrize("row", [(), ("INSERT INTO t VALUES (1, 1, 1)",)])
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD CONSTRAINT c UNIQUE (b)",
        "ALTER TABLE t ADD CONSTRAINT f UNIQUE (b)",
        "ALTER TABLE t ADD COLUMN n int CONSTRAINT c UNIQUE",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT c PRIMARY KEY (a)",
        "ALTER INDEX u RENAME TO c",
        "ALTER INDEX t_pkey RENAME TO f",
        "CREATE TABLE s (a int, CONSTRAINT c CHECK (a > 0), CONSTRAINT c UNIQUE (a))",
    ],
)
def test_a_unique_constraint_takes_no_name_of_another_constraint(
    engine: Engine,  # noqa: F811
    row: tuple[str, ...],
    statement: str,
) -> None:
    """Else no statement could tell the two, and the schema could not be written as a file."""
    connection = engine.connect()
    run(connection, *SETUP, *row)
    with fails(errors.DUPLICATE_OBJECT, "already exists"):
        run(connection, statement)


def test_a_unique_constraint_takes_the_name_of_one_that_goes(engine: Engine) -> None:  # noqa: F811
    connection = engine.connect()
    run(
        connection,
        *SETUP,
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t DROP CONSTRAINT c, ADD CONSTRAINT c UNIQUE (b)",
    )
    with fails(errors.UNIQUE_VIOLATION, '"c"'):
        run(connection, "INSERT INTO t VALUES (2, 2, 1)")


def test_a_generated_name_is_no_other_constraint_s(engine: Engine) -> None:  # noqa: F811
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (a int, CONSTRAINT t_a_key CHECK (a > 0), CONSTRAINT t_pkey CHECK (a > 1))",
        "INSERT INTO t VALUES (2)",
        "ALTER TABLE t ADD UNIQUE (a)",
        "ALTER TABLE t ADD PRIMARY KEY (a)",
    )
    assert rows(connection, "SELECT name FROM instar.indexes WHERE table_name = 't'") == [("t_a_key1",)]
    run(connection, "ALTER TABLE t RENAME CONSTRAINT t_pkey1 TO k")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX ON t (id, j)",
        "ALTER TABLE t ADD UNIQUE (j)",
        "CREATE TABLE s (a int, j jsonb PRIMARY KEY)",
        "ALTER TABLE t ALTER COLUMN a TYPE jsonb USING to_jsonb(a), ALTER COLUMN b TYPE text",
        "ALTER TABLE t SPLIT INTO r (id, a, b, j), s (j, c) ON (j)",
    ],
)
def test_of_several_columns_the_one_that_no_key_can_be_of_is_named(
    engine: Engine,  # noqa: F811
    statement: str,
) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int, j jsonb)", "CREATE INDEX ON t (b, a)")
    column = "a" if "USING" in statement else "j"
    with fails(errors.FEATURE_NOT_SUPPORTED, f'a key of type jsonb (column "{column}") is not supported'):
        run(connection, statement)
