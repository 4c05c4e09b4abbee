"""Constraints as information_schema shows them. What is expected is what PostgreSQL 15 gives for the same schema, but
for the names of NOT NULLs, which are numbers there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import instar
from support.databases import fails, rows, run

SCHEMA = """
CREATE TABLE parent (a int, b text, c int UNIQUE, d int NOT NULL, e int,
    PRIMARY KEY (b, a), CONSTRAINT de UNIQUE (d, e), CHECK (e > 0));
CREATE TABLE child (id serial PRIMARY KEY, pa int, pb text,
    pc int REFERENCES parent (c) ON DELETE CASCADE ON UPDATE SET NULL, pd int, pe int,
    CONSTRAINT two FOREIGN KEY (pb, pa) REFERENCES parent (b, a), FOREIGN KEY (pa, pb) REFERENCES parent (a, b),
    FOREIGN KEY (pd, pe) REFERENCES parent (d, e) ON DELETE SET NULL);
CREATE TABLE heap (x int NOT NULL, y int CHECK (y BETWEEN 1 AND 9), CONSTRAINT named CHECK (x < y));
CREATE UNIQUE INDEX plain ON heap (x);
CREATE TABLE refs_index (x int REFERENCES heap (x))
"""


@pytest.fixture
def connection() -> Iterator[instar.Connection]:
    with instar.connect(":memory:", autocommit=True) as made:
        run(made, *SCHEMA.split(";"))
        yield made


def shown(connection: instar.Connection, view: str, columns: str) -> list[tuple[object, ...]]:
    return sorted(rows(connection, f"SELECT {columns} FROM information_schema.{view}"), key=str)


def test_table_constraints(connection: instar.Connection) -> None:
    assert shown(connection, "table_constraints", "table_name, constraint_name, constraint_type") == [
        ("child", "child_id_not_null", "CHECK"),
        ("child", "child_pa_pb_fkey", "FOREIGN KEY"),
        ("child", "child_pc_fkey", "FOREIGN KEY"),
        ("child", "child_pd_pe_fkey", "FOREIGN KEY"),
        ("child", "child_pkey", "PRIMARY KEY"),
        ("child", "two", "FOREIGN KEY"),
        ("heap", "heap_x_not_null", "CHECK"),
        ("heap", "heap_y_check", "CHECK"),
        ("heap", "named", "CHECK"),
        ("parent", "de", "UNIQUE"),
        ("parent", "parent_a_not_null", "CHECK"),
        ("parent", "parent_b_not_null", "CHECK"),
        ("parent", "parent_c_key", "UNIQUE"),
        ("parent", "parent_d_not_null", "CHECK"),
        ("parent", "parent_e_check", "CHECK"),
        ("parent", "parent_pkey", "PRIMARY KEY"),
        ("refs_index", "refs_index_x_fkey", "FOREIGN KEY"),
    ]
    others = "constraint_schema, table_schema, is_deferrable, initially_deferred, enforced"
    assert set(shown(connection, "table_constraints", others)) == {("public", "public", "NO", "NO", "YES")}
    assert rows(
        connection,
        "SELECT DISTINCT constraint_type, nulls_distinct FROM information_schema.table_constraints ORDER BY 1",
    ) == [("CHECK", None), ("FOREIGN KEY", None), ("PRIMARY KEY", None), ("UNIQUE", "YES")]


def test_key_column_usage(connection: instar.Connection) -> None:
    columns = "constraint_name, column_name, ordinal_position, position_in_unique_constraint"
    assert shown(connection, "key_column_usage", columns) == [
        ("child_pa_pb_fkey", "pa", 1, 2),
        ("child_pa_pb_fkey", "pb", 2, 1),
        ("child_pc_fkey", "pc", 1, 1),
        ("child_pd_pe_fkey", "pd", 1, 1),
        ("child_pd_pe_fkey", "pe", 2, 2),
        ("child_pkey", "id", 1, None),
        ("de", "d", 1, None),
        ("de", "e", 2, None),
        ("parent_c_key", "c", 1, None),
        ("parent_pkey", "a", 2, None),
        ("parent_pkey", "b", 1, None),
        ("refs_index_x_fkey", "x", 1, 1),
        ("two", "pa", 2, 2),
        ("two", "pb", 1, 1),
    ]


def test_referential_constraints(connection: instar.Connection) -> None:
    of_unique = "unique_constraint_schema, unique_constraint_name"
    columns = f"constraint_name, {of_unique}, match_option, update_rule, delete_rule"
    assert shown(connection, "referential_constraints", columns) == [
        ("child_pa_pb_fkey", "public", "parent_pkey", "NONE", "NO ACTION", "NO ACTION"),
        ("child_pc_fkey", "public", "parent_c_key", "NONE", "SET NULL", "CASCADE"),
        ("child_pd_pe_fkey", "public", "de", "NONE", "NO ACTION", "SET NULL"),
        ("refs_index_x_fkey", None, None, "NONE", "NO ACTION", "NO ACTION"),
        ("two", "public", "parent_pkey", "NONE", "NO ACTION", "NO ACTION"),
    ]


def test_constraint_column_usage(connection: instar.Connection) -> None:
    assert shown(connection, "constraint_column_usage", "constraint_name, table_name, column_name") == [
        ("child_pa_pb_fkey", "parent", "a"),
        ("child_pa_pb_fkey", "parent", "b"),
        ("child_pc_fkey", "parent", "c"),
        ("child_pd_pe_fkey", "parent", "d"),
        ("child_pd_pe_fkey", "parent", "e"),
        ("child_pkey", "child", "id"),
        ("de", "parent", "d"),
        ("de", "parent", "e"),
        ("heap_y_check", "heap", "y"),
        ("named", "heap", "x"),
        ("named", "heap", "y"),
        ("parent_c_key", "parent", "c"),
        ("parent_e_check", "parent", "e"),
        ("parent_pkey", "parent", "a"),
        ("parent_pkey", "parent", "b"),
        ("refs_index_x_fkey", "heap", "x"),
        ("two", "parent", "a"),
        ("two", "parent", "b"),
    ]


def test_check_constraints(connection: instar.Connection) -> None:
    assert shown(connection, "check_constraints", "constraint_name, check_clause") == [
        ("child_id_not_null", "id IS NOT NULL"),
        ("heap_x_not_null", "x IS NOT NULL"),
        ("heap_y_check", "(((y >= 1) AND (y <= 9)))"),
        ("named", "((x < y))"),
        ("parent_a_not_null", "a IS NOT NULL"),
        ("parent_b_not_null", "b IS NOT NULL"),
        ("parent_d_not_null", "d IS NOT NULL"),
        ("parent_e_check", "((e > 0))"),
    ]


def test_what_is_not_valid_is_listed_and_columns_have_their_names_of_now(connection: instar.Connection) -> None:
    run(
        connection,
        "INSERT INTO heap VALUES (1, 2)",
        "ALTER TABLE heap ADD CONSTRAINT late CHECK (x > 1) NOT VALID",
        "ALTER TABLE heap RENAME COLUMN x TO z",
    )
    with fails("23514"):
        connection.execute("INSERT INTO heap VALUES (0, 2)")
    wanted = "WHERE constraint_name IN ('late', 'named')"
    assert rows(
        connection, f"SELECT constraint_name, enforced FROM information_schema.table_constraints {wanted} ORDER BY 1"
    ) == [("late", "YES"), ("named", "YES")]
    assert rows(
        connection, f"SELECT check_clause FROM information_schema.check_constraints {wanted} ORDER BY constraint_name"
    ) == [("((z > 1))",), ("((z < y))",)]


def test_a_unique_constraint_that_is_not_built_yet_is_not_enforced(connection: instar.Connection) -> None:
    run(
        connection,
        "INSERT INTO heap VALUES (1, 2)",
        "BEGIN",
        "ALTER TABLE heap ADD CONSTRAINT u UNIQUE (y)",
    )
    listed = "SELECT enforced FROM information_schema.table_constraints WHERE constraint_name = 'u'"
    assert rows(connection, listed) == [("NO",)]
    run(connection, "COMMIT")
    assert rows(connection, listed) == [("YES",)]
