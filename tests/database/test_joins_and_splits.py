"""ALTER TABLE ... SPLIT and JOIN in a session: in transactions, beside other changes, and what EXPLAIN says of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import instar
from support.databases import fails, rows, run, value

SPLIT = "ALTER TABLE person SPLIT INTO person (id, zip), place (zip, town) ON (zip)"
JOIN = "ALTER TABLE r JOIN s USING (b) INTO t (a, b, c)"


@pytest.fixture
def connection() -> Iterator[instar.Connection]:
    with instar.connect(autocommit=True) as made:
        run(
            made,
            "CREATE TABLE person (id bigint PRIMARY KEY, zip text, town text)",
            "INSERT INTO person VALUES (1, '1', 'x'), (2, '2', 'y')",
            "CREATE TABLE r (a int PRIMARY KEY, b int)",
            "INSERT INTO r VALUES (1, 1)",
            "CREATE TABLE s (b int PRIMARY KEY, c int)",
            "CREATE TABLE other (a int)",
            "INSERT INTO other VALUES (1)",
        )
        yield made


def test_nothing_is_left_of_one_that_is_rolled_back(connection: instar.Connection) -> None:
    version = value(connection, "SELECT max(version) FROM instar.schema_versions")
    run(connection, "BEGIN", "ALTER TABLE other ADD COLUMN b int", SPLIT, "ROLLBACK")
    assert value(connection, "SELECT max(version) FROM instar.schema_versions") == version
    assert rows(connection, "SELECT id, town FROM person ORDER BY id") == [(1, "x"), (2, "y")]
    assert rows(connection, "SHOW JOBS") == []
    run(connection, "CREATE TABLE place (a int)")


def test_targets_are_not_there_before_the_end_but_their_names_are_taken(connection: instar.Connection) -> None:
    run(connection, "BEGIN", SPLIT)
    for statement, sqlstate in (
        ("SELECT * FROM place", "42P01"),
        ("DROP TABLE place", "42P01"),
        ("CREATE TABLE place (a int)", "42P07"),
        ("CREATE INDEX place ON other (a)", "42P07"),
    ):
        run(connection, "SAVEPOINT a")
        with fails(sqlstate):
            connection.execute(statement)
        run(connection, "ROLLBACK TO a")
    assert rows(connection, "SELECT town FROM person WHERE id = 1") == [("x",)]
    run(connection, "ROLLBACK")


@pytest.mark.parametrize("change", [SPLIT, JOIN])
def test_it_shares_its_stages_with_no_other_change(connection: instar.Connection, change: str) -> None:
    for statements in (("CREATE INDEX i ON other (a)", change), (change, "CREATE INDEX i ON other (a)")):
        run(connection, "BEGIN", statements[0])
        with fails("0A000", "whose other changes take a job"):
            connection.execute(statements[1])
        run(connection, "ROLLBACK")


def test_explain_tells_of_the_pause(connection: instar.Connection) -> None:
    told = rows(connection, f"EXPLAIN (DDL) {SPLIT} WITH (pause_rows = 5)")
    assert [(row[0], row[1]) for row in told] == [
        ("1", 'table "person": created, to be seen at the end'),
        ("1", 'table "place": created, to be seen at the end'),
        ("1", 'table "person": its rows are logged whole'),
        ("2", 'table "person": all writers log its rows whole'),
        ("2", 'table "person": all writers log its rows whole'),
        ("3", 'table "person": dropped'),
        ("3", 'table "person": seen'),
        ("3", 'table "place": seen'),
    ]
    assert [row[4] for row in told if row[4]] == [
        'initial population of "person", "place", about 2 rows, in the call',
        "log propagation, until at most about 5 target rows are left, in the call",
        "pause: at most about 5 target rows in one commit",
    ]
    assert rows(connection, "SHOW JOBS") == []
