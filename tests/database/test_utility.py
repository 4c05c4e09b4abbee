"""Utility statements: what EXPLAIN takes, and where what it does not take stands."""

from __future__ import annotations

import pytest

import instar
from support.databases import Engine, fails


@pytest.mark.parametrize("statement", ["EXPLAIN ANALYZE SELECT 1", "EXPLAIN (DDL, ANALYZE) DROP TABLE t"])
def test_explain_analyze_is_not_supported(statement: str) -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a int)")
        with pytest.raises(instar.Error, match="EXPLAIN ANALYZE is not supported") as caught:
            connection.execute(statement)
    assert caught.value.sqlstate == "0A000"


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("EXPLAIN BEGIN", "BEGIN"),
        ("EXPLAIN (VERBOSE)  CREATE TABLE t (a int)", "CREATE"),
        ("EXPLAIN (DDL) SELECT 1", "SELECT"),
        ("EXPLAIN (DDL)\n SHOW JOBS", "SHOW"),
    ],
)
def test_what_cannot_be_explained_is_told_with_its_place(engine: Engine, sql: str, place: str) -> None:
    with fails("42601", "EXPLAIN") as failed:
        engine.connect().execute(sql)
    assert failed.error.position == sql.index(place) + 1


def test_executemany_of_a_query_is_told_with_its_place(engine: Engine) -> None:
    with fails("42601", "executemany") as failed:
        engine.connect().executemany("SELECT ?", [(1,)])
    assert failed.error.position == 1
