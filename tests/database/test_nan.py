"""NaN in decimals, which Arrow's have not: what reads whole columns to change a schema takes it all the same."""

from __future__ import annotations

import pytest

from support.databases import Engine, rows, run

CHANGES = [
    ("CREATE INDEX ON a (n)",),
    ("CREATE UNIQUE INDEX ON a (n DESC, b)",),
    ("ALTER TABLE a ADD UNIQUE (n)",),
    ("ALTER TABLE a ALTER n SET NOT NULL",),
    ("ALTER TABLE a ALTER n TYPE numeric(12,4)",),
    ("ALTER TABLE a ALTER PRIMARY KEY USING COLUMNS (n)",),
    ("ALTER TABLE a ADD FOREIGN KEY (n) REFERENCES p",),
    ("ALTER TABLE a ADD c numeric(12,3) GENERATED ALWAYS AS (n * 2) STORED",),
    ("CREATE INDEX ON a (n)", "ALTER TABLE a ALTER n TYPE numeric(12,4)"),
]


@pytest.mark.parametrize("changes", CHANGES)
def test_changes_beside_nan(engine: Engine, changes: tuple[str, ...]) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (n numeric(10,3) PRIMARY KEY)",
        "INSERT INTO p VALUES ('NaN'), (1.5), (-2)",
        "CREATE TABLE a (id int PRIMARY KEY, n numeric(10,3) NOT NULL, b int)",
        "INSERT INTO a VALUES (1, 'NaN', 1), (2, 1.5, 1), (3, -2, 2)",
        *changes,
    )
    assert rows(connection, "SELECT id FROM a WHERE n = 'NaN'") == [(1,)]
    assert rows(connection, "SELECT id FROM a WHERE n > 1 ORDER BY n") == [(2,), (1,)]
    assert rows(connection, "CHECK DATABASE") == []
