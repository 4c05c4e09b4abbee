"""Index keys that are cut and hashed: no row missed, none given twice, and the order is that of the whole values."""

from __future__ import annotations

import pytest

import instar


@pytest.fixture
def connection() -> instar.Connection:
    made = instar.connect(":memory:", autocommit=True)
    made.execute("CREATE TABLE t (id bigint PRIMARY KEY, a text, b bytea)")
    made.execute("CREATE INDEX t_a ON t (a)")
    made.execute("CREATE INDEX t_b ON t (b DESC)")
    stems = ["z" * 112, "z" * 150, "y" * 200, ""]
    texts = [stem + end for stem in stems for end in ("", "1", "10", "2", "b", "a")]
    rows = [(number, text, text.encode()) for number, text in enumerate(texts)]
    made.executemany("INSERT INTO t VALUES (?, ?, ?)", rows[::-1])
    return made


def test_lists_of_values_that_share_a_cut_prefix(connection: instar.Connection) -> None:
    wanted = ["z" * 150 + end for end in ("1", "2", "b")]
    found = connection.execute("SELECT a FROM t WHERE a IN (?, ?, ?)", wanted).fetchall()
    assert sorted(found) == [(text,) for text in wanted]


@pytest.mark.parametrize("column", ["a", "b"])
def test_order_and_limit_come_from_the_index(connection: instar.Connection, column: str) -> None:
    values = sorted(row[0] for row in connection.execute(f"SELECT {column} FROM t").fetchall())
    plan = "\n".join(
        line for (line,) in connection.execute(f"EXPLAIN SELECT {column} FROM t ORDER BY {column} LIMIT 7")
    )
    assert f"t_{column}" in plan
    assert "Sort" not in plan
    for direction, ordered in (("", values), (" DESC", values[::-1])):
        for limit in range(1, len(values) + 1):
            found = connection.execute(f"SELECT {column} FROM t ORDER BY {column}{direction} LIMIT {limit}").fetchall()
            assert [row[0] for row in found] == ordered[:limit]


@pytest.mark.parametrize("end", ["", "1", "10", "15", "2", "a", "c"])
def test_ranges_that_end_within_a_cut_prefix(connection: instar.Connection, end: str) -> None:
    values = sorted(row[0] for row in connection.execute("SELECT a FROM t").fetchall())
    bound = "z" * 150 + end
    for operator, holds in (
        ("<", lambda value: value < bound),
        ("<=", lambda value: value <= bound),
        (">", lambda value: value > bound),
        (">=", lambda value: value >= bound),
    ):
        found = connection.execute(f"SELECT a FROM t WHERE a {operator} ? ORDER BY a", (bound,)).fetchall()
        assert [row[0] for row in found] == [value for value in values if holds(value)]
