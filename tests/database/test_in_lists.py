"""IN with a list: which items are compared as what, as PostgreSQL 15 has it."""

from __future__ import annotations

import pytest

from support.databases import Engine, rows, run

# Conditions, and the ids of the rows for which they are true.
CONDITIONS = [
    ("r IN (0.1)", ""),
    ("r NOT IN (0.1)", "12"),
    ("0.1 IN (r)", ""),
    ("0.1 IN (r, 5)", ""),
    ("r NOT IN (n)", "12"),
    ("r IN (n, 0.2)", ""),
    ("r IN (0.1, id)", ""),
    ("r IN (0.1, 5)", "1"),  # two constants are of one type, real
    ("i IN (16777216::real)", ""),
    ("l IN (16777216::real, 5)", ""),
    ("l IN (16777217::real, n)", "2"),
    ("16777217 IN (r, l)", "1"),
    ("l IN (n, d)", "2"),
    ("id IN (1, 2.0)", "12"),
    ("id IN (1::bigint, 3)", "1"),
    ("id IN (1, '2', 2.5)", "12"),
    ("NOT (r IN (0.1, n) OR id IN (2::real))", "1"),
]


@pytest.mark.parametrize(("condition", "wanted"), CONDITIONS)
def test_in_both_engines(engine: Engine, condition: str, wanted: str) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE a (id int PRIMARY KEY, r real, l bigint, i int, n numeric, d double precision)",
        "INSERT INTO a VALUES (1, 0.1, 16777217, 16777217, 0.1, 0), (2, 16777216, 9007199254740993, 7, "
        "9007199254740993, 9007199254740992)",
    )
    for source in ("a", "(SELECT *, row_number() OVER () FROM a) a"):
        found = rows(connection, f"SELECT id FROM {source} WHERE {condition} ORDER BY id")
        assert "".join(str(number) for (number,) in found) == wanted
