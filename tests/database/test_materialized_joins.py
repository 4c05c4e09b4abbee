"""Materialized views of joins in a session."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import instar
from instar.schemachange.launching import WorkerLauncher
from support.databases import Engine, fails, rows, run
from support.steps import hook_jobs

KINDS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
# One-to-many by the key of either side; many-to-many.
CONDITIONS = ("r.b = s.id", "r.id = s.b", "r.b = s.b", "r.b = s.b AND s.c = r.c")


def query(kind: str, on: str) -> str:
    return f"SELECT s.b AS sb, r.id, r.b, s.id AS sid, s.c FROM r {kind} s ON {on}"


def view(name: str, kind: str, on: str) -> str:
    return f"CREATE MATERIALIZED VIEW {name} WITH (refresh = 'log') AS {query(kind, on)}"


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are kept up when the test says so."""
    monkeypatch.setattr(WorkerLauncher, "ensure", lambda launcher: True)


@pytest.fixture
def connection(engine: Engine) -> Iterator[instar.Connection]:
    made = engine.connect()
    run(
        made,
        "CREATE TABLE r (id int PRIMARY KEY, b int, c text, d int DEFAULT 3 CHECK (d > 0))",
        "CREATE TABLE s (id int PRIMARY KEY, b int, c text, d int)",
        "INSERT INTO r VALUES (1, 1, 'x'), (2, 1, 'y'), (3, 2, 'x'), (4, NULL, 'x'), (5, 9, NULL)",
        "INSERT INTO s VALUES (1, 1, 'x'), (2, 1, 'y'), (3, 5, 'x'), (6, NULL, 'x')",
    )
    yield made
    assert rows(made, "CHECK DATABASE") == []


def check(connection: instar.Connection, name: str, text: str) -> None:
    assert sorted(rows(connection, f"SELECT * FROM {name}"), key=repr) == sorted(rows(connection, text), key=repr)


def write(connection: instar.Connection, chance: random.Random) -> None:
    """A commit of some changes of both tables."""
    run(connection, "BEGIN")
    for _ in range(chance.randint(1, 4)):
        table, key = chance.choice("rs"), chance.randint(1, 6)
        value, text = chance.choice(("NULL", "1", "2", "5")), chance.choice(("NULL", "'x'", "'y'"))
        connection.execute(
            chance.choice(
                (
                    f"DELETE FROM {table} WHERE id = {key}",
                    f"INSERT INTO {table} VALUES ({key}, {value}, {text}) ON CONFLICT (id) DO UPDATE SET b = {value}",
                    f"UPDATE {table} SET b = {value}, c = {text} WHERE id = {key}",
                    f"UPDATE {table} SET c = {text}",
                    f"UPDATE {table} SET d = 4 WHERE id = {key}",
                )
            )
        )
    run(connection, "COMMIT")


@pytest.mark.parametrize("on", CONDITIONS)
def test_it_is_what_its_query_says_after_random_commits(engine: Engine, connection: instar.Connection, on: str) -> None:
    for number, kind in enumerate(KINDS):
        run(connection, view(f"v{number}", kind, on))
        check(connection, f"v{number}", query(kind, on))
    chance = random.Random(5)
    for _ in range(15):
        for _ in range(chance.randint(1, 3)):
            write(connection, chance)
        engine.database.keep_views()
        for number, kind in enumerate(KINDS):
            check(connection, f"v{number}", query(kind, on))


@pytest.mark.parametrize("kind", KINDS)
def test_using(engine: Engine, connection: instar.Connection, kind: str) -> None:
    text = f"SELECT * FROM r {kind} s USING (b)"
    run(connection, f"CREATE MATERIALIZED VIEW v (b, rid, rc, rd, sid, sc, sd) WITH (refresh = 'log') AS {text}")
    check(connection, "v", text)
    run(connection, "INSERT INTO s VALUES (9, 9, 'new')", "DELETE FROM r WHERE b = 2")
    engine.database.keep_views()
    check(connection, "v", text)


def test_what_is_written_while_it_is_populated_is_in_it(engine: Engine, connection: instar.Connection) -> None:
    chance, other = random.Random(6), engine.connect()
    with pytest.MonkeyPatch.context() as patched:
        hook_jobs(patched, lambda point: write(other, chance))
        run(connection, view("v", "FULL JOIN", "r.b = s.id"))
    engine.database.keep_views()
    check(connection, "v", query("FULL JOIN", "r.b = s.id"))


def test_changes_of_the_sources_go_on(engine: Engine, connection: instar.Connection) -> None:
    """A unique index that went would make the rules for one-to-many wrong."""
    run(
        connection,
        "CREATE TABLE u (id int PRIMARY KEY, b int UNIQUE, c int)",
        "INSERT INTO u VALUES (1, 1, 1), (2, 2, 2)",
        "CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS SELECT r.id, u.c FROM r JOIN u ON r.b = u.b",
        "ALTER TABLE u DROP CONSTRAINT u_b_key",
        "INSERT INTO u VALUES (3, 1, 3)",
        "ALTER TABLE r DROP COLUMN d",
        "ALTER TABLE r ADD COLUMN e text DEFAULT 'e'",
        "INSERT INTO r VALUES (10, 1, 'x')",
        "ALTER TABLE u RENAME COLUMN c TO e",
        "UPDATE u SET e = 7 WHERE id = 2",
    )
    engine.database.keep_views()
    check(connection, "v", "SELECT r.id, u.e FROM r JOIN u ON r.b = u.b")
    for statement, sqlstate in (
        ("ALTER TABLE u DROP COLUMN b", "2BP01"),
        ("DROP TABLE u", "2BP01"),
        ("TRUNCATE u", "2BP01"),
        ("ALTER TABLE r ALTER PRIMARY KEY USING COLUMNS (id, b)", "2BP01"),
        ("ALTER TABLE r JOIN u ON r.b = u.b INTO t (r.id, u.e)", "2BP01"),
    ):
        with fails(sqlstate, "materialized view v"):
            connection.execute(statement)
    run(connection, "DROP TABLE u CASCADE", "TRUNCATE r")


def test_readers_repeat_what_they_have_read(engine: Engine, connection: instar.Connection) -> None:
    run(connection, view("v", "FULL JOIN", "r.b = s.id"))
    text = "SELECT * FROM v ORDER BY id, sid"
    before = rows(connection, text)
    chance = random.Random(8)
    with engine.connect() as reader:
        run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert rows(reader, text) == before
        for _ in range(10):
            write(connection, chance)
            engine.database.keep_views()
            assert rows(reader, text) == before
        assert rows(connection, text) != before


def test_a_serializable_transaction_that_has_read_it_is_refused(engine: Engine, connection: instar.Connection) -> None:
    run(connection, view("v", "FULL JOIN", "r.b = s.id"), "CREATE TABLE other (a int)")
    with engine.connect() as reader:
        run(
            reader, "BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT * FROM v WHERE id = 3", "INSERT INTO other VALUES (1)"
        )
        run(connection, "UPDATE s SET c = 'changed' WHERE id = 2")
        engine.database.keep_views()
        with fails("40001"):
            reader.execute("COMMIT")


def test_it_is_populated_anew_when_it_cannot_follow(engine: Engine, connection: instar.Connection) -> None:
    run(connection, view("v", "LEFT JOIN", "r.b = s.id"), "INSERT INTO r VALUES (50, 1, 'x')")
    store = engine.database.store
    with store.read() as reader:
        newest = reader.timestamp
    store.collect(newest, lambda record: [])
    engine.database.keep_views()
    check(connection, "v", query("LEFT JOIN", "r.b = s.id"))
    run(connection, "UPDATE s SET c = 'new'")
    engine.database.keep_views()
    check(connection, "v", query("LEFT JOIN", "r.b = s.id"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT r.id FROM r CROSS JOIN s", "CROSS JOIN"),
        ("SELECT r.id FROM r, s", "CROSS JOIN"),
        ("SELECT r.id FROM r JOIN s ON r.b < s.b", "no equality"),
        ("SELECT r.id FROM r JOIN s ON r.b = s.b AND r.c = 'x'", "no equality"),
        ("SELECT r.id FROM r JOIN s ON r.b = r.d", "no equality"),
        ("SELECT r.id FROM r JOIN big ON r.b = big.id", "columns of different types, integer and bigint,"),
        ("SELECT r.id FROM r JOIN r AS other ON r.b = other.id", "with itself"),
        ("SELECT r.id FROM r JOIN s ON r.b = s.b WHERE r.id > 1", "WHERE of a join"),
        ("SELECT r.id + 1 FROM r JOIN s ON r.b = s.b", "an expression"),
        ("SELECT r.b, count(*) FROM r JOIN s ON r.b = s.b GROUP BY r.b", "a grouping of a join"),
        ("SELECT r.id FROM r JOIN s ON r.b = s.b JOIN t ON r.b = t.b", "more than two tables"),
        ("SELECT r.id FROM r JOIN (SELECT b FROM s) AS q ON r.b = q.b", "a subquery in FROM"),
    ],
)
def test_not_supported(connection: instar.Connection, text: str, told: str) -> None:
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, b int)", "CREATE TABLE big (id bigint PRIMARY KEY)")
    with fails("0A000", told):
        connection.execute(f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {text}")
