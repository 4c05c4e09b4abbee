"""The values of a column that comes back, in rows that were written since it was dropped; compared with a model."""

from __future__ import annotations

import random

import pytest

from support.databases import Engine, fails, rows, run, value


@pytest.mark.parametrize("seed", range(6))
def test_every_row_has_what_it_had(engine: Engine, seed: int) -> None:
    """Rows are told apart by `who`, which no statement changes: what has been there at the drop has its value then,
    wherever it is now, and what has come since has the default."""
    chance = random.Random(seed)
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, who int NOT NULL, c int DEFAULT -1 NOT NULL, n int)")
    run(connection, "INSERT INTO t SELECT g, g, g * 10, 0 FROM generate_series(1, 20) g")
    run(connection, "ALTER TABLE t ADD COLUMN late int DEFAULT 3", "UPDATE t SET late = id WHERE id > 10")
    had = {who: (c, late) for who, c, late in rows(connection, "SELECT who, c, late FROM t")}
    lost, ordinal = chance.choice([("c", 0), ("late", 1)])
    run(connection, f"ALTER TABLE t DROP COLUMN {lost}")
    new = iter(range(100, 1000))
    for _ in range(60):
        ids = [found for (found,) in rows(connection, "SELECT id FROM t ORDER BY id")]
        some = chance.choice(ids)
        match chance.randrange(6):
            case 0 | 1:
                run(connection, f"UPDATE t SET n = n + 1 WHERE id = {some}")
            case 2:
                run(connection, f"DELETE FROM t WHERE id = {some}")
            case 3:
                number = next(new)
                free = chance.choice(sorted(set(range(1, 40)) - set(ids)))
                run(connection, f"INSERT INTO t (id, who) VALUES ({free}, {number})")
            case 4:
                free = chance.choice(sorted(set(range(1, 60)) - set(ids)))
                run(connection, f"UPDATE t SET id = {free} WHERE id = {some}")
            case 5:  # several in one transaction, the last place of which is free when it is taken
                free = chance.choice(sorted(set(range(60, 90)) - set(ids)))
                run(connection, "BEGIN", f"UPDATE t SET id = {free} WHERE id = {some}", "UPDATE t SET n = 5", "COMMIT")
    run(connection, f"ALTER TABLE t UNDROP COLUMN {lost}")
    default = (-1, 3)[ordinal]
    found = dict(rows(connection, f"SELECT who, {lost} FROM t"))
    assert found == {who: had[who][ordinal] if who in had else default for who in found}
    assert rows(connection, "CHECK DATABASE") == []
    # And once more, with what was restored.
    run(connection, f"ALTER TABLE t DROP COLUMN {lost}", f"ALTER TABLE t UNDROP COLUMN {lost}")
    assert dict(rows(connection, f"SELECT who, {lost} FROM t")) == found


def test_rows_that_took_each_others_places_are_not_guessed_at(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int)",
        "INSERT INTO t SELECT g, g * 10 FROM generate_series(1, 5) g",
        "ALTER TABLE t DROP COLUMN c",
        "UPDATE t SET id = 6 - id WHERE id <> 3",
    )
    with fails("55000", "4 rows"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    run(connection, "UPDATE t SET id = id + 10 WHERE id = 1")
    with fails("55000", "4 rows"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    run(connection, "DELETE FROM t WHERE id <> 3", "ALTER TABLE t UNDROP COLUMN c")
    assert rows(connection, "SELECT * FROM t") == [(3, 30)]


def test_rows_that_have_come_since_have_the_default_or_are_named(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int NOT NULL, d text DEFAULT 'd')",
        "INSERT INTO t VALUES (1, 10)",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t DROP COLUMN d",
        "INSERT INTO t VALUES (2), (3)",
    )
    with fails("23502", "2 rows"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    assert value(connection, "SELECT count(*) FROM instar.columns WHERE table_name = 't'") == 1
    run(connection, "ALTER TABLE t UNDROP COLUMN c CASCADE", "ALTER TABLE t UNDROP COLUMN d")
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 10, "d"), (2, None, "d"), (3, None, "d")]


def test_what_the_transaction_of_the_drop_did_counts_as_done_since(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int DEFAULT 7)",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
        "BEGIN",
        "UPDATE t SET c = 11 WHERE id = 1",
        "ALTER TABLE t DROP COLUMN c",
        "INSERT INTO t VALUES (3)",
        "COMMIT",
        "ALTER TABLE t UNDROP COLUMN c",
    )
    # The update of c was part of the transaction that dropped it: nobody ever saw an 11.
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 10), (2, 20), (3, 7)]


def test_it_is_part_of_its_transaction_and_bounded(engine: Engine) -> None:
    connection, other = engine.connect(autocommit=False), engine.connect()
    run(
        other,
        "CREATE TABLE t (id int PRIMARY KEY, c int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 20) g",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t ADD COLUMN n int",
        "UPDATE t SET n = 1",
    )
    run(connection, "SET max_transaction_rows = 10")
    connection.commit()
    with fails("54000"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    connection.rollback()
    run(connection, "SET max_transaction_rows = 20")
    connection.commit()
    run(connection, "UPDATE t SET n = 2 WHERE id = 1")
    with fails("0A000", "has written to the table"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    connection.rollback()
    run(connection, "ALTER TABLE t UNDROP COLUMN c", "UPDATE t SET c = c + 1 WHERE id = 1")
    assert value(connection, "SELECT sum(c) FROM t") == 211
    connection.rollback()
    run(connection, "ALTER TABLE t UNDROP COLUMN c")
    run(other, "UPDATE t SET n = 3 WHERE id = 7")
    with fails("40001"):
        connection.commit()
    run(other, "ALTER TABLE t UNDROP COLUMN c")
    assert value(other, "SELECT count(*) FROM t WHERE c = id") == 20
