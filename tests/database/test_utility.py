"""Utility statements: what EXPLAIN takes."""

from __future__ import annotations

import pytest

import instar


@pytest.mark.parametrize("statement", ["EXPLAIN ANALYZE SELECT 1", "EXPLAIN (DDL, ANALYZE) DROP TABLE t"])
def test_explain_analyze_is_not_supported(statement: str) -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a int)")
        with pytest.raises(instar.Error, match="EXPLAIN ANALYZE is not supported") as caught:
            connection.execute(statement)
    assert caught.value.sqlstate == "0A000"
