"""Foreign keys and the indexes that they find children by: these can be dropped, and the key goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run

LEASE = 0.01


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Engine(":memory:")
    yield begun(made)
    made.close()


def begun(engine: Engine) -> Connection:
    """p (id) with two rows and c (id, a, b: u on a), whose f refers to p, with one of each."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, a int, b int, CONSTRAINT u UNIQUE (a))",
        "INSERT INTO p VALUES (1), (2)",
        "INSERT INTO c VALUES (1, 1, 1), (2, 2, 2)",
        "ALTER TABLE c ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p ON DELETE CASCADE",
    )
    return connection


def holds(connection: Connection) -> None:
    """The foreign key does, and finds every child; the unique constraint does not."""
    with fails("23503", '"f"'):
        run(connection, "INSERT INTO c VALUES (9, 9, 9)")
    run(connection, "INSERT INTO c VALUES (3, 1, 3)", "DELETE FROM p WHERE id = 1")
    assert rows(connection, "SELECT id FROM c") == [(2,)]


@pytest.mark.parametrize("behaviour", ["", " CASCADE"])
def test_a_unique_constraint_goes_and_the_key_stays(connection: Connection, behaviour: str) -> None:
    """Its index goes on as the key's own, under another name, and goes with the key."""
    run(connection, "ALTER TABLE c DROP CONSTRAINT u" + behaviour)
    holds(connection)
    run(connection, "ALTER TABLE c ADD CONSTRAINT u UNIQUE (a)")
    with fails("2BP01", "constraint f"):
        run(connection, "DROP INDEX f_idx")
    run(connection, "ALTER TABLE c DROP CONSTRAINT f", "CREATE INDEX f_idx ON c (a)")


def test_another_index_takes_the_place(connection: Connection) -> None:
    run(connection, "CREATE INDEX i ON c (a, b)", "ALTER TABLE c DROP CONSTRAINT u")
    holds(connection)
    with fails("42704", "f_idx"):
        run(connection, "DROP INDEX f_idx")
    run(connection, "DROP INDEX i")
    run(connection, "INSERT INTO p VALUES (1)")
    holds(connection)


def test_the_primary_key_takes_the_place(connection: Connection) -> None:
    run(connection, "CREATE TABLE d (a int, b int)", "CREATE INDEX d_a ON d (a)")
    run(connection, "ALTER TABLE d ADD FOREIGN KEY (a) REFERENCES p ON DELETE CASCADE")
    run(connection, "ALTER TABLE d ADD PRIMARY KEY (a, b)", "INSERT INTO d VALUES (1, 1), (2, 1)", "DROP INDEX d_a")
    run(connection, "DELETE FROM p WHERE id = 1")
    assert rows(connection, "SELECT a FROM d") == [(2,)]


def test_a_key_that_others_refer_to_goes_with_them_only(connection: Connection) -> None:
    run(connection, "CREATE TABLE g (a int REFERENCES c (a))")
    with fails("2BP01", "constraint g_a_fkey on table g depends on index u"):
        run(connection, "ALTER TABLE c DROP CONSTRAINT u")
    run(connection, "ALTER TABLE c DROP CONSTRAINT u CASCADE", "INSERT INTO g VALUES (77)")
    holds(connection)


def test_a_column_of_the_only_index_is_not_dropped(connection: Connection) -> None:
    run(connection, "ALTER TABLE c DROP CONSTRAINT f, DROP CONSTRAINT u", "CREATE INDEX i ON c (a, b)")
    run(connection, "ALTER TABLE c ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p ON DELETE CASCADE")
    with fails("0A000", 'dropping index "i", by which foreign key "f" finds its rows'):
        run(connection, "ALTER TABLE c DROP COLUMN b CASCADE")
    run(connection, "CREATE INDEX j ON c (a)", "ALTER TABLE c DROP COLUMN b", "INSERT INTO c VALUES (3, 1)")
    run(connection, "DELETE FROM p WHERE id = 1")
    assert rows(connection, "SELECT id FROM c") == [(2,)]


def test_not_together_with_what_takes_a_job(connection: Connection) -> None:
    with fails("0A000", "in one statement with what takes a job"):
        run(connection, "ALTER TABLE c DROP CONSTRAINT u, ADD CHECK (b > 0)")


def test_under_a_lease_only_if_there_is_another_index() -> None:
    engine = Engine(":memory:", schema_lease=LEASE)
    connection = begun(engine)
    with fails("0A000", 'dropping index "u", by which foreign key "f" finds its rows'):
        run(connection, "ALTER TABLE c DROP CONSTRAINT u")
    run(connection, "CREATE INDEX i ON c (a)", "CREATE INDEX j ON c (a)", "ALTER TABLE c DROP CONSTRAINT u")
    with fails("0A000", 'dropping index "j", by which foreign key "f" finds its rows'):
        run(connection, "DROP INDEX i, j")
    holds(connection)
    engine.close()
