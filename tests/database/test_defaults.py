"""Constants that a schema change leaves in the catalog: read once, and refused only where a row is to take them."""

from __future__ import annotations

from instar import errors
from support.databases import Engine, fails, rows, run, value

NEW_YORK = "America/New_York"


def test_a_default_that_does_not_fit_is_refused_when_a_row_is_to_get_it(engine: Engine) -> None:
    connection = engine.connect()
    columns = "v varchar(3) DEFAULT 'too long', n numeric(3, 1) DEFAULT '12345'"
    run(connection, f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    with fails(errors.STRING_TOO_LONG, "value too long for type character varying(3)"):
        connection.execute("INSERT INTO t (id, n) VALUES (1, 1)")
    with fails(errors.NUMERIC_OUT_OF_RANGE, "numeric field overflow"):
        connection.execute("INSERT INTO t (id, v) VALUES (1, 'x')")
    # Rows that are there, or might be, would get it at once.
    with fails(errors.STRING_TOO_LONG):
        connection.execute("ALTER TABLE t ADD COLUMN w varchar(3) DEFAULT 'too long'")
    run(connection, "ALTER TABLE t ALTER v TYPE varchar(20) USING upper(v)", "INSERT INTO t (id, n) VALUES (1, 1)")
    assert value(connection, "SELECT v FROM t") == "too long"


def test_texts_of_timestamptz_are_read_in_the_zone_of_who_defines_them(engine: Engine) -> None:
    definer, other = engine.connect(timezone=NEW_YORK), engine.connect(timezone="Asia/Tokyo")
    run(
        definer,
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz DEFAULT '2024-01-01', CHECK (at >= '2024-01-01'))",
        "INSERT INTO t (id) VALUES (1)",
        "ALTER TABLE t ADD COLUMN added timestamptz DEFAULT timestamptz '2024-01-01'",
        "ALTER TABLE t ADD COLUMN later timestamptz",
        "ALTER TABLE t ALTER later SET DEFAULT '2024-01-01'",
        "CREATE VIEW v AS SELECT id FROM t WHERE at = '2024-01-01'",
    )
    run(other, "INSERT INTO t (id) VALUES (2)")
    with fails(errors.CHECK_VIOLATION):
        other.execute("INSERT INTO t (id, at) VALUES (3, '2024-01-01')")
    assert rows(definer, "SELECT id, at::text, added::text, later::text FROM t ORDER BY id") == [
        (1, "2024-01-01 00:00:00-05", "2024-01-01 00:00:00-05", None),
        (2, "2024-01-01 00:00:00-05", "2024-01-01 00:00:00-05", "2024-01-01 00:00:00-05"),
    ]
    assert rows(other, "SELECT id FROM v ORDER BY id") == [(1,), (2,)]
