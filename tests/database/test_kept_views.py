"""Kept views: names of tables that were joined or split, as views that can be written to."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import instar
from support.databases import Engine, fails, rows, run, value

LEVELS = ("READ UNCOMMITTED", "READ COMMITTED LOCK", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
SPLIT = "ALTER TABLE person SPLIT INTO folk (id, name, zip), place (zip, town) ON (zip) WITH (keep_views = true)"
JOIN = "ALTER TABLE r JOIN s ON r.k = s.k INTO t (id, a, r.k AS rk, s.k AS sk, b) WITH (keep_views = true)"


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(":memory:")
    yield made
    made.close()


@pytest.fixture
def person(engine: Engine) -> instar.Connection:
    """A table that was split, and is a kept view by now."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE person (id bigserial PRIMARY KEY, name text UNIQUE, zip text, town text CHECK (town <> ''))",
        "INSERT INTO person (name, zip, town) VALUES ('Ada', '1', 'B'), ('Ben', '1', 'B'), ('Cleo', '2', 'H')",
        SPLIT,
    )
    return connection


@pytest.fixture
def joined(engine: Engine) -> instar.Connection:
    """Two tables that were joined, and are kept views by now."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE r (id int PRIMARY KEY, a text UNIQUE, k int)",
        "CREATE TABLE s (k serial PRIMARY KEY, b text NOT NULL)",
        "CREATE TABLE child (no int PRIMARY KEY, rid int REFERENCES r ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO r VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 3)",
        "INSERT INTO s (b) VALUES ('x'), ('y')",
        "INSERT INTO child VALUES (1, 1), (3, 3)",
        JOIN,
    )
    return connection


# --- what is refused before anything starts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "change", "sqlstate", "told"),
    [
        (
            ["CREATE TABLE p (id int PRIMARY KEY, z int, t text)"],
            "p SPLIT INTO p (id, z), q (z, t) ON (z)",
            "42P07",
            'relation "p" is to be a view',
        ),
        (
            ["CREATE TABLE p (id int PRIMARY KEY, z int, t text)"],
            "p SPLIT INTO q (id), p (z, t, id) ON (id)",
            "42P07",
            'relation "p" is to be a view',
        ),
        (
            ["CREATE TABLE p (id int PRIMARY KEY, z int, t text)"],
            "p SPLIT INTO r (id), q (z, t) ON (z)",
            "55000",
            'table "r" would have no column "z"',
        ),
        (
            ["CREATE TABLE p (id int PRIMARY KEY, z int, t text UNIQUE)"],
            "p SPLIT INTO r (id, z), q (z, t) ON (z)",
            "0A000",
            'unique index "p_t_key"',
        ),
        (
            ["CREATE TABLE p (id int PRIMARY KEY, z int, t text)"],
            "p SPLIT IN PLACE INTO r (id, z), q (z, t) ON (z)",
            "55000",
            'table "r" would have no index on (z)',
        ),
        (
            ["CREATE TABLE r (id int PRIMARY KEY, k int, x int)", "CREATE TABLE s (k int PRIMARY KEY)"],
            "r JOIN s USING (k) INTO t (id, k)",
            "55000",
            'no column "x" of table "r"',
        ),
        (
            ["CREATE TABLE r (id int PRIMARY KEY, k int)", "CREATE TABLE s (k int PRIMARY KEY)"],
            "r JOIN s USING (k) INTO s (id, k)",
            "42P07",
            'relation "s" is to be a view',
        ),
        (
            ["CREATE TABLE r (id int PRIMARY KEY, k int)", "CREATE TABLE s (k int PRIMARY KEY)"],
            "r JOIN s USING (k) INTO t (id, k)",
            "0A000",
            'no row of table "s"',
        ),
        (
            [
                "CREATE TABLE r (id int PRIMARY KEY, k int, b int)",
                "CREATE TABLE s (i int PRIMARY KEY, k int, b int UNIQUE)",
            ],
            "r JOIN s ON r.k = s.k AND r.b = s.b INTO t (id, r.k, r.b, i, s.k AS sk, s.b AS sb)",
            "0A000",
            'unique index "s_b_key"',
        ),
    ],
)
def test_what_views_could_not_be_kept_for_is_named(
    engine: Engine, tables: list[str], change: str, sqlstate: str, told: str
) -> None:
    connection = engine.connect()
    run(connection, *tables)
    with fails(sqlstate, told):
        connection.execute(f"ALTER TABLE {change} WITH (keep_views = true)")
    assert rows(connection, "SHOW JOBS") == []


def test_the_plan_tells_of_the_views(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE person (id int PRIMARY KEY, name text, zip text, town text)")
    told = [(row[0], row[1]) for row in rows(connection, f"EXPLAIN (DDL) {SPLIT}")]
    assert ("3", 'view "person": created') in told


# --- what is there afterwards -----------------------------------------------------------------------------------------


def test_the_catalog_knows_the_view(person: instar.Connection) -> None:
    assert rows(
        person,
        "SELECT table_name, table_type, is_insertable_into FROM information_schema.tables WHERE table_schema = 'public'"
        " ORDER BY 1",
    ) == [("folk", "BASE TABLE", "YES"), ("person", "VIEW", "YES"), ("place", "BASE TABLE", "YES")]
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'person'"
    assert rows(person, columns) == [("id", "bigint"), ("name", "text"), ("zip", "text"), ("town", "text")]
    assert rows(person, "CHECK DATABASE") == []


def test_explain_says_where_writes_go(person: instar.Connection) -> None:
    told = [line for (line,) in rows(person, "EXPLAIN UPDATE person SET town = 'C' WHERE id = 1")]
    assert told[:2] == ["Update on person", "    Writes: folk, place"]
    assert any("Lookup folk" in line for line in told)
    told = [line for (line,) in rows(person, "EXPLAIN INSERT INTO person (name) VALUES ('x')")]
    assert told[:2] == ["Insert on person", "    Writes: folk, place"]


def test_a_row_of_a_joined_table_is_found_by_its_key(joined: instar.Connection) -> None:
    told = [line for (line,) in rows(joined, "EXPLAIN DELETE FROM s WHERE k = 1")]
    assert any("Range t by t_sk_idx" in line for line in told)


@pytest.mark.parametrize(
    ("statement", "sqlstate", "told"),
    [
        (
            "INSERT INTO person VALUES (9, 'x', '1', 'B') ON CONFLICT DO NOTHING",
            "0A000",
            'ON CONFLICT on view "person"',
        ),
        ("TRUNCATE person", "42809", '"person" is not a table'),
        ("SELECT * FROM person FOR UPDATE", "0A000", "a view"),
        ("ALTER TABLE person ADD COLUMN x int", "42809", '"person" is not a table'),
        ("INSERT INTO person VALUES (9, 'x', '1', 'C')", "23514", "would contradict each other"),
        ("UPDATE person SET town = 'C' WHERE id = 1", "23514", "(zip)=(1)"),
        ("INSERT INTO person VALUES (9, 'x', NULL, 'C')", "23502", '"town"'),
        ("INSERT INTO person VALUES (1, 'x', '1', 'B')", "23505", "person_pkey"),
        ("INSERT INTO person VALUES (9, 'Ada', '1', 'B')", "23505", "person_name_key"),
        ("INSERT INTO person VALUES (9, 'x', '7', '')", "23514", "person_town_check"),
        ("INSERT INTO person VALUES (9, 'x', '1', 'B'), (9, 'y', '2', 'H')", "23505", "person_pkey"),
        ("UPDATE person SET id = 9", "23505", "person_pkey"),
        ("UPDATE person SET nothing = 1", "42703", 'column "nothing" of relation "person"'),
        ("DROP TABLE place", "2BP01", "view person depends on table place"),
        ("DROP INDEX folk_zip_idx", "2BP01", "view person depends on index folk_zip_idx"),
        ("ALTER TABLE place DROP COLUMN town", "2BP01", "view person depends on column town"),
        ("ALTER TABLE folk ALTER PRIMARY KEY (name)", "2BP01", "view person depends on constraint"),
        ("ALTER TABLE place ALTER COLUMN town TYPE varchar(9)", "0A000", "view person depends on column"),
        ("ALTER TABLE folk JOIN place USING (zip) INTO t (id, name, zip, town)", "2BP01", "view person depends"),
    ],
)
def test_what_is_refused(person: instar.Connection, statement: str, sqlstate: str, told: str) -> None:
    before = rows(person, "SELECT * FROM person ORDER BY id")
    with fails(sqlstate, told):
        person.execute(statement)
    assert rows(person, "SELECT * FROM person ORDER BY id") == before


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO person VALUES (9, 'x', '9', 'C')",
        "INSERT INTO person VALUES (8, 'w', '9', 'C'), (9, 'x', '9', 'C')",
        "UPDATE person SET zip = '9', town = 'C' WHERE id = 1",
    ],
)
def test_a_row_that_nobody_refers_to_yet_is_not_overwritten(person: instar.Connection, statement: str) -> None:
    person.execute("INSERT INTO place (zip, town) VALUES ('9', 'N')")
    with fails("23514", "would contradict each other"):
        person.execute(statement)
    assert rows(person, "SELECT zip, town FROM place WHERE zip = '9'") == [("9", "N")]
    person.execute(statement.replace("'C'", "'N'"))
    assert rows(person, "SELECT DISTINCT town FROM person WHERE zip = '9'") == [("N",)]


def test_defaults_and_parameters(person: instar.Connection) -> None:
    statement = "INSERT INTO person (name, zip, town) VALUES (?, ?, ?) RETURNING id, town"
    assert rows(person, statement, "Dan", "2", "H") == [(4, "H")]
    both = [("E", "3", "K"), ("F", "3", "K")]
    person.cursor().executemany("INSERT INTO person (name, zip, town) VALUES (?, ?, ?)", both)
    assert rows(person, "SELECT id, name FROM folk WHERE zip = '3' ORDER BY id") == [(5, "E"), (6, "F")]
    assert rows(person, "SELECT town FROM place WHERE zip = '3'") == [("K",)]


def test_what_is_loaded_goes_through_the_view(person: instar.Connection) -> None:
    given = pa.table({"name": ["Dan", "Eve"], "zip": ["2", "5"], "town": ["H", "M"]})
    assert person.insert_arrow("person", given) == 2
    assert rows(person, "SELECT id, zip FROM folk WHERE name IN ('Dan', 'Eve') ORDER BY id") == [(4, "2"), (5, "5")]
    assert rows(person, "SELECT town FROM place WHERE zip = '5'") == [("M",)]


def test_a_row_of_s_goes_with_the_last_of_its_rows(person: instar.Connection) -> None:
    run(person, "DELETE FROM person WHERE id = 1")
    assert rows(person, "SELECT town FROM place WHERE zip = '1'") == [("B",)]
    run(person, "UPDATE person SET zip = '2', town = 'H' WHERE id = 2")
    assert rows(person, "SELECT zip, town FROM place") == [("2", "H")]


def test_what_is_equal_contradicts_nothing(engine: Engine) -> None:
    """1.00 beside 1.0: the row that both have one of has what was written last."""
    one = engine.connect()
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, k numeric, n numeric)",
        "INSERT INTO t VALUES (1, 1.0, 5.0), (2, 1.0, 5.0), (3, 2, 7)",
        "ALTER TABLE t SPLIT INTO r (id, k), s (k, n) ON (k) WITH (keep_views = true)",
        "UPDATE t SET k = 1.00, n = 5.00 WHERE id = 2",
    )
    with fails("23514", "would contradict each other") as refused:
        run(one, "UPDATE t SET k = 1.000, n = 5.01 WHERE id = 1")
    assert refused.error.hint == "Change all of them alike, in one statement."
    assert rows(one, "SELECT id, k::text, n::text FROM t ORDER BY id") == [
        (1, "1.0", "5.00"), (2, "1.00", "5.00"), (3, "2", "7"),
    ]  # fmt: skip
    assert rows(one, "CHECK DATABASE") == []


def test_it_lives_with_renames_and_new_columns(person: instar.Connection) -> None:
    run(
        person,
        "ALTER TABLE folk RENAME TO people",
        "ALTER TABLE people RENAME COLUMN name TO called",
        "ALTER TABLE people ADD COLUMN since int DEFAULT 5",
        "ALTER VIEW person RENAME TO resident",
        "INSERT INTO resident (name, zip, town) VALUES ('Dan', '2', 'H')",
        "UPDATE resident SET name = 'Ed' WHERE name = 'Dan'",
    )
    assert rows(person, "SELECT called, since FROM people WHERE id = 4") == [("Ed", 5)]
    with fails("23505", "person_name_key"):
        person.execute("UPDATE resident SET name = 'Ada' WHERE id = 4")


def test_an_identity_column_goes_on_counting_for_the_view(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE person (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, zip text, town text)",
        "INSERT INTO person (zip, town) VALUES ('1', 'B')",
        SPLIT,
    )
    assert rows(connection, "INSERT INTO person (zip, town) VALUES ('2', 'H') RETURNING id") == [(2,)]
    with fails("428C9"):
        connection.execute("INSERT INTO person (id) VALUES (9)")
    with fails("2BP01", "view person depends on sequence"):
        connection.execute("ALTER TABLE folk ALTER COLUMN id DROP IDENTITY")


def test_columns_that_have_come_since_go_with_a_row_to_its_new_key() -> None:
    with instar.connect(autocommit=True) as connection:
        run(connection, "CREATE TABLE p (id int PRIMARY KEY, z int, t text)", "INSERT INTO p VALUES (3, 1, 'q')")
        run(connection, "ALTER TABLE p SPLIT INTO r (id, z), s (z, t) ON (z) WITH (keep_views = true)")
        run(connection, "ALTER TABLE r ADD COLUMN since int", "UPDATE r SET since = 77", "UPDATE p SET id = 4, z = 2")
        assert rows(connection, "SELECT id, z, since FROM r") == [(4, 2, 77)]


def test_cascade_and_drop_view_free_the_tables(person: instar.Connection) -> None:
    run(person, "BEGIN", "DROP INDEX folk_zip_idx CASCADE")
    with fails("42P01"):
        person.execute("SELECT 1 FROM person")
    run(person, "ROLLBACK", "DROP VIEW person", "DROP INDEX folk_zip_idx", "ALTER TABLE place DROP COLUMN town")
    assert rows(person, "CHECK DATABASE") == []


def test_replaced_by_another_query_it_is_a_view_as_others(person: instar.Connection) -> None:
    run(person, "CREATE OR REPLACE VIEW person AS SELECT id, name, zip, 'x' AS town FROM folk")
    with fails("0A000", 'writing to view "person"'):
        person.execute("DELETE FROM person")


# --- joins ------------------------------------------------------------------------------------------------------------


def test_sequences_of_joined_tables_stay_for_the_views(joined: instar.Connection) -> None:
    assert rows(joined, "INSERT INTO s (b) VALUES ('z') RETURNING k") == [(3,)]
    assert rows(joined, "SELECT id, sk FROM t WHERE b = 'z'") == [(3, 3)]
    with fails("2BP01", "view s depends on sequence s_k_seq"):
        joined.execute("DROP SEQUENCE s_k_seq")
    run(joined, "DROP VIEW s", "DROP SEQUENCE s_k_seq")


def test_foreign_keys_see_rows_of_the_joined_table_go_and_move(joined: instar.Connection) -> None:
    run(joined, "UPDATE r SET id = 11 WHERE id = 1", "UPDATE r SET id = 13, k = 1 WHERE id = 3")
    assert rows(joined, "SELECT no, rid FROM child ORDER BY no") == [(1, 11), (3, 13)]
    run(joined, "DELETE FROM r WHERE id = 13")
    assert rows(joined, "SELECT no, rid FROM child") == [(1, 11)]
    run(joined, "DELETE FROM r WHERE id = 2", "DELETE FROM r WHERE id = 11")
    assert rows(joined, "SELECT no FROM child") == []
    assert rows(joined, "SELECT rk, sk, b FROM t ORDER BY sk") == [(None, 1, "x"), (None, 2, "y")]


def test_a_joined_row_that_moves_to_another_leaves_its_own_behind(joined: instar.Connection) -> None:
    """T's row of r becomes that of s alone, and another row comes for r: those that refer to r follow it."""
    run(joined, "DELETE FROM r WHERE id = 2", "UPDATE r SET id = 12, k = 7 WHERE id = 1")
    assert rows(joined, "SELECT rid FROM child WHERE no = 1") == [(12,)]
    assert rows(joined, "SELECT id, rk, sk FROM t WHERE id = 12 OR sk = 1 ORDER BY id") == [
        (12, 7, None),
        (None, None, 1),
    ]


@pytest.mark.parametrize(
    ("statement", "sqlstate", "told"),
    [
        ("INSERT INTO s (k, b) VALUES (1, 'z')", "23505", "s_pkey"),
        ("INSERT INTO r VALUES (1, 'z', 2)", "23505", "r_pkey"),
        ("INSERT INTO r VALUES (9, 'a', 2)", "23505", "r_a_key"),
        ("INSERT INTO r VALUES (8, 'x', 2), (8, 'y', 3)", "23505", "r_pkey"),
        ("INSERT INTO s VALUES (8, 'x'), (8, 'y')", "23505", "s_pkey"),
        ("UPDATE s SET k = 8", "23505", "s_pkey"),
        ("INSERT INTO s (b) VALUES (NULL)", "23502", '"b" of relation "s"'),
        ("INSERT INTO child VALUES (9, 9)", "23503", "child_rid_fkey"),
        ("DROP INDEX t_sk_idx", "2BP01", "view r depends on index t_sk_idx\nview s depends on index t_sk_idx"),
    ],
)
def test_what_is_refused_of_a_join(joined: instar.Connection, statement: str, sqlstate: str, told: str) -> None:
    before = rows(joined, "SELECT * FROM t ORDER BY id, sk")
    with fails(sqlstate, told):
        joined.execute(statement)
    assert rows(joined, "SELECT * FROM t ORDER BY id, sk") == before


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_statements_see_each_other_at_every_level(joined: instar.Connection, level: str) -> None:
    run(
        joined,
        f"BEGIN ISOLATION LEVEL {level}",
        "INSERT INTO r VALUES (7, 'g', 2)",
        "UPDATE s SET b = 'yy' WHERE k = 2",
        "SAVEPOINT p",
        "DELETE FROM s",
        "ROLLBACK TO p",
    )
    with fails("23505"):
        joined.execute("INSERT INTO r VALUES (7, 'h', 2)")
    run(joined, "ROLLBACK TO p", "UPDATE r SET a = 'gg' WHERE id = 7", "COMMIT")
    assert rows(joined, "SELECT id, a, rk, sk, b FROM t WHERE id = 7") == [(7, "gg", 2, 2, "yy")]
    assert rows(joined, "CHECK DATABASE") == []


# What either would have the other do by the rules, had it seen it: each pair has to come out as one after the other.
CONFLICTS = [
    # The last row with a split value goes with the row of S, and another comes that finds that row there.
    ("person", "DELETE FROM person WHERE id = 3", "INSERT INTO person VALUES (9, 'x', '2', 'H')"),
    # Each sees the other row, and leaves that of S.
    ("person", "DELETE FROM person WHERE id = 1", "DELETE FROM person WHERE id = 2"),
    # Alone with its split value, it changes it for a row that comes meanwhile.
    ("person", "UPDATE person SET town = 'K' WHERE id = 3", "INSERT INTO person VALUES (9, 'x', '2', 'H')"),
    ("joined", "INSERT INTO s (k, b) VALUES (9, 'n')", "INSERT INTO s (k, b) VALUES (9, 'm')"),
    ("joined", "UPDATE s SET b = 'xx' WHERE k = 1", "INSERT INTO r VALUES (9, 'n', 1)"),
    ("joined", "INSERT INTO s (k, b) VALUES (3, 'n')", "INSERT INTO r VALUES (9, 'n', 3)"),
    ("joined", "DELETE FROM r WHERE id = 1", "DELETE FROM r WHERE id = 2"),
    ("joined", "DELETE FROM s WHERE k = 1", "INSERT INTO r VALUES (9, 'n', 1)"),
    ("joined", "INSERT INTO r VALUES (9, 'n', 3)", "INSERT INTO s (k, b) VALUES (3, 'n')"),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("tables", "one", "other"), CONFLICTS)
def test_what_the_rules_have_read_holds_to_the_commit(
    engine: Engine, request: pytest.FixtureRequest, tables: str, one: str, other: str, level: str
) -> None:
    first = request.getfixturevalue(tables)
    second = engine.connect()
    run(second, f"BEGIN ISOLATION LEVEL {level}", other)  # first of all, so that nothing else has been read
    run(first, one)
    with fails("40001"):
        second.execute("COMMIT")
    assert rows(first, "CHECK DATABASE") == []


def test_rows_that_nobody_else_touches_are_written_side_by_side(engine: Engine, joined: instar.Connection) -> None:
    second = engine.connect()
    run(second, "BEGIN", "INSERT INTO r VALUES (8, 'h', 2)")
    run(joined, "UPDATE s SET b = 'xx' WHERE k = 1", "INSERT INTO r VALUES (9, 'i', 3)")
    run(second, "COMMIT")
    assert rows(joined, "SELECT id, b FROM t WHERE id IN (1, 8, 9) ORDER BY id") == [(1, "xx"), (8, "y"), (9, None)]


def test_what_a_statement_took_back_is_not_held_to_the_commit(engine: Engine, joined: instar.Connection) -> None:
    second = engine.connect()
    run(second, "BEGIN", "SAVEPOINT p", "INSERT INTO r VALUES (8, 'h', 1)", "ROLLBACK TO p")
    run(second, "INSERT INTO r VALUES (8, 'h', 2)")
    run(joined, "UPDATE s SET b = 'xx' WHERE k = 1")
    run(second, "COMMIT")
    assert value(joined, "SELECT b FROM t WHERE id = 8") == "y"


def test_a_statement_on_too_many_rows_is_refused(engine: Engine, joined: instar.Connection) -> None:
    limited = engine.connect(max_transaction_rows="2")
    with fails("54000"):
        limited.execute("UPDATE r SET a = a || 'z'")
    run(limited, "DELETE FROM r WHERE id = 3")


def test_a_part_that_could_not_be_told_and_how_it_can(engine: Engine) -> None:
    """Where a join column that both share is all that a table has for sure, nothing says whether a row has its part."""
    one = engine.connect()
    run(
        one,
        "CREATE TABLE r (id int PRIMARY KEY, k int, a int)",
        "CREATE TABLE s (k int PRIMARY KEY, b int)",
        "INSERT INTO r VALUES (1, 1, 0), (2, 5, 0)",
        "INSERT INTO s VALUES (1, NULL), (2, NULL)",
    )
    for option in ("keep_views = true", "strategy = 'commit'"):
        with fails("0A000", "keeping views and the strategy 'commit'", 'no row of table "s"') as failed:
            run(one, f"ALTER TABLE r JOIN s USING (k) INTO t (id, k, a, b) WITH ({option})")
        assert "r.k AS rk, s.k AS sk" in str(failed.error.hint)
    run(one, "ALTER TABLE r JOIN s ON r.k = s.k INTO t (id, r.k AS rk, s.k AS sk, a, b) WITH (keep_views = true)")
    assert rows(one, "SELECT * FROM s ORDER BY k") == [(1, None), (2, None)]
    assert rows(one, "SELECT * FROM r ORDER BY id") == [(1, 1, 0), (2, 5, 0)]
