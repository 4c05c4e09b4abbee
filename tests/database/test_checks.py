"""CHECK TABLE: of tables alone."""

from __future__ import annotations

import instar
from support.databases import fails, rows, run


def test_only_tables_are_checked() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        run(connection, "CREATE TABLE t (id int)", "CREATE VIEW v AS SELECT id FROM t", "CREATE SEQUENCE s")
        assert rows(connection, "CHECK TABLE t") == []
        with fails("42809", '"v" is not a table', '"v" is a view'):
            run(connection, "CHECK TABLE v")
        with fails("42809", '"s" is a sequence'):
            run(connection, "CHECK TABLE s")
        with fails("42P01"):
            run(connection, "CHECK TABLE u")
