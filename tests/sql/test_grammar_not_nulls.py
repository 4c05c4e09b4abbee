"""NOT NULL as a constraint, in CREATE TABLE and ALTER TABLE, as PostgreSQL 18 has it."""

from __future__ import annotations

import pytest

from instar.sql import statements as ast
from instar.sql.not_null_statement import NotNull
from instar.sql.parser import parse_one
from support.databases import fails


def test_create_table() -> None:
    made = parse_one(
        "CREATE TABLE t (a int CONSTRAINT n NOT NULL, b int, c int NOT NULL NOT NULL, d serial CONSTRAINT s NOT NULL, "
        "CONSTRAINT m NOT NULL b, NOT NULL a, NOT NULL c NOT VALID)"
    )
    assert isinstance(made, ast.CreateTable)
    named = [(column.name, column.nullable, column.not_null_name) for column in made.columns]
    assert named == [("a", False, "n"), ("b", False, "m"), ("c", False, None), ("d", False, "s")]
    assert made.constraints == ()


def test_alter_table() -> None:
    found = parse_one("ALTER TABLE t ADD CONSTRAINT n NOT NULL a NOT VALID, ADD NOT NULL b")
    assert isinstance(found, ast.AlterTable)
    assert found.actions == (
        ast.AddConstraint(NotNull("a", "n", not_valid=True)),
        ast.AddConstraint(NotNull("b")),
    )


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("CREATE TABLE t (a int CONSTRAINT x NOT NULL CONSTRAINT y NOT NULL)", "42601"),
        ("CREATE TABLE t (a int CONSTRAINT x NOT NULL, CONSTRAINT y NOT NULL a)", "42601"),
        ("CREATE TABLE t (a int NULL CONSTRAINT x NOT NULL)", "42601"),
        ("CREATE TABLE t (a int, NOT NULL b)", "42703"),
        ("CREATE TABLE t (a int NOT NULL NO INHERIT)", "0A000"),
        ("ALTER TABLE t ADD NOT NULL a NO INHERIT", "0A000"),
        ("ALTER TABLE t ADD NOT NULL a NOT VALID WITH (violation = 'abort change')", "0A000"),
        ("ALTER TABLE t ADD COLUMN a int NOT NULL NOT VALID", "42601"),
        ("ALTER TABLE t ADD NOT NULL (a)", "42601"),
    ],
)
def test_what_is_refused(text: str, sqlstate: str) -> None:
    with fails(sqlstate):
        parse_one(text)
