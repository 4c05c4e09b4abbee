"""What holds at the end of a statement whose foreign keys move rows in rounds."""

from __future__ import annotations

import pytest

from instar import errors
from instar.tables.index import IndexCodec
from support.databases import Engine, fails, rows, run
from support.engines import engine  # noqa: F401 - pytest finds the fixture by its name here

pytestmark = pytest.mark.parametrize("within", [(), ("BEGIN",)])


def test_a_row_that_a_cascade_changes_again_is_judged_for_both(engine: Engine, within: tuple[str, ...]) -> None:  # noqa: F811
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE q (id int PRIMARY KEY)",
        "CREATE TABLE n (id int PRIMARY KEY, up int REFERENCES n ON UPDATE CASCADE, q int REFERENCES q, u int UNIQUE)",
        "INSERT INTO n VALUES (1, null, null, 1), (2, 1, null, 2), (3, null, null, 5)",
    )
    # The cascade of 1 changes row 2, which the statement changed before.
    with fails(errors.FOREIGN_KEY_VIOLATION, "n_q_fkey", "(q)=(9)"):
        run(connection, *within, "UPDATE n SET id = id + 10, q = CASE WHEN id = 2 THEN 9 END")
    connection.rollback()
    with fails(errors.UNIQUE_VIOLATION, "n_u_key", "(u)=(5)"):
        run(connection, *within, "UPDATE n SET id = id + 10, u = CASE WHEN id = 2 THEN 5 END WHERE id < 3")
    connection.rollback()
    run(connection, *within, "UPDATE n SET id = id + 10, u = u + 10")
    assert rows(connection, "SELECT id, up, u FROM n ORDER BY id") == [(11, None, 11), (12, 11, 12), (13, None, 15)]


@pytest.mark.parametrize("action", ["DELETE FROM p WHERE id = 5", "UPDATE p SET id = 6 WHERE id = 5"])
def test_set_default_to_the_key_that_is_gone(engine: Engine, within: tuple[str, ...], action: str) -> None:  # noqa: F811
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (p int DEFAULT 5 REFERENCES p ON DELETE SET DEFAULT ON UPDATE SET DEFAULT)",
        "INSERT INTO p VALUES (1), (5)",
        "INSERT INTO c VALUES (1), (5)",
        "DELETE FROM p WHERE id = 1",
    )
    with fails(errors.FOREIGN_KEY_VIOLATION, "c_p_fkey", "(id)=(5)"):
        run(connection, *within, action)


@pytest.mark.parametrize(
    ("action", "kept"), [("NO ACTION", "1.00"), ("CASCADE", "1.0"), ("SET NULL", None), ("SET DEFAULT", "7")]
)
def test_a_key_that_is_equal_and_written_otherwise_is_another(
    engine: Engine,  # noqa: F811
    within: tuple[str, ...],
    action: str,
    kept: str | None,
) -> None:
    """As in PostgreSQL, which compares the old key and the new by their bytes."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (k numeric PRIMARY KEY)",
        f"CREATE TABLE c (id int PRIMARY KEY, k numeric DEFAULT 7 REFERENCES p ON UPDATE {action})",
        "CREATE TABLE r (k numeric REFERENCES p ON UPDATE RESTRICT)",
        "INSERT INTO p VALUES (1.00), (7), (2.00)",
        "INSERT INTO c VALUES (1, 1.00)",
        "INSERT INTO r VALUES (2.00)",
    )
    run(connection, *within, "UPDATE p SET k = 1.0 WHERE k = 1")
    assert rows(connection, "SELECT k::text FROM c") == [(kept,)]
    with fails(errors.FOREIGN_KEY_VIOLATION, "(k)=(2.00)"):
        connection.execute("UPDATE p SET k = 2.0 WHERE k = 2")
    connection.rollback()
    assert rows(connection, "CHECK DATABASE") == []


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ("SET NULL", "SET DEFAULT", [(1, None)]),
        ("SET NULL", "CASCADE", [(1, None)]),
        ("CASCADE", "RESTRICT", []),
        ("CASCADE", "SET NULL", []),
    ],
)
def test_of_two_keys_to_one_row_the_first_acts(
    engine: Engine,  # noqa: F811
    within: tuple[str, ...],
    first: str,
    second: str,
    left: list[tuple[int, None]],
) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (k int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, k int DEFAULT 5)",
        f"ALTER TABLE c ADD FOREIGN KEY (k) REFERENCES p ON DELETE {first}",
        f"ALTER TABLE c ADD FOREIGN KEY (k) REFERENCES p ON DELETE {second}",
        "INSERT INTO p VALUES (5)",
        "INSERT INTO c VALUES (1, 5)",
        *within,
        "DELETE FROM p",
    )
    connection.commit()
    assert rows(connection, "SELECT * FROM c") == left


@pytest.mark.parametrize("type_", ["numeric", "double precision"])
def test_a_key_that_was_and_is_nan_goes_nowhere(engine: Engine, within: tuple[str, ...], type_: str) -> None:  # noqa: F811
    connection = engine.connect()
    run(
        connection,
        f"CREATE TABLE p (k {type_} PRIMARY KEY, v int)",
        f"CREATE TABLE c (id int PRIMARY KEY, k {type_} REFERENCES p ON UPDATE SET NULL)",
        f"CREATE TABLE d (id int PRIMARY KEY, k {type_} REFERENCES p)",
        "INSERT INTO p VALUES ('NaN', 1), (1, 1)",
        "INSERT INTO c VALUES (1, 'NaN')",
        "INSERT INTO d VALUES (1, 'NaN')",
    )
    run(connection, *within, "UPDATE p SET k = k + 0, v = 2")
    connection.commit()
    assert rows(connection, "SELECT c.k::text, d.k::text FROM c, d") == [("NaN", "NaN")]
    assert rows(connection, "SELECT k::text, v FROM p ORDER BY k") == [("1", 2), ("NaN", 2)]


def test_on_conflict_meets_rows_where_the_statement_has_put_them(engine: Engine, within: tuple[str, ...]) -> None:  # noqa: F811
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, k numeric UNIQUE)", "INSERT INTO t VALUES (1, 10)")
    run(connection, *within, "INSERT INTO t VALUES (2, 10), (3, 10) ON CONFLICT (k) DO UPDATE SET k = 20")
    connection.commit()
    assert rows(connection, "SELECT id, k::int FROM t ORDER BY id") == [(1, 20), (3, 10)]
    run(connection, *within, "INSERT INTO t VALUES (1, 1), (1, 2) ON CONFLICT (id) DO UPDATE SET id = 100")
    connection.commit()
    assert rows(connection, "SELECT id, k::int FROM t ORDER BY id") == [(1, 2), (3, 10), (100, 20)]
    with fails(errors.CARDINALITY_VIOLATION, "second time"):
        run(connection, *within, "INSERT INTO t VALUES (4, 10), (5, 30) ON CONFLICT (k) DO UPDATE SET k = 30")
    connection.rollback()
    nothing = "INSERT INTO t SELECT id + 1000, k * 'NaN' FROM t ON CONFLICT DO NOTHING RETURNING k::text"
    run(connection, *within)
    assert rows(connection, nothing) == [("NaN",)]


def test_keys_that_swap_round_a_circle_of_foreign_keys_end(engine: Engine, within: tuple[str, ...]) -> None:  # noqa: F811
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY REFERENCES p ON UPDATE CASCADE)",
        "INSERT INTO p VALUES (1), (2), (3)",
        "INSERT INTO c VALUES (1), (2), (3)",
        "ALTER TABLE p ADD FOREIGN KEY (id) REFERENCES c ON UPDATE CASCADE",
    )
    with fails(errors.LIMIT_EXCEEDED, "again and again"):
        run(connection, *within, "UPDATE p SET id = 3 - id WHERE id < 3")
    connection.rollback()
    run(connection, *within, "UPDATE p SET id = id + 10")
    assert rows(connection, "SELECT p.id, c.id FROM p FULL JOIN c ON p.id = c.id ORDER BY 1") == [
        (11, 11),
        (12, 12),
        (13, 13),
    ]


def test_a_statement_compares_its_rows_with_each_other_by_the_order_of_their_keys(
    engine: Engine,  # noqa: F811
    within: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each with all others, half a million rows took days."""
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text)", "CREATE INDEX t_v ON t (v)")
    made, whole = 0, IndexCodec.whole

    def counted(codec: IndexCodec, image: tuple[object, ...]) -> bytes:
        nonlocal made
        made += 1
        return whole(codec, image)

    monkeypatch.setattr(IndexCodec, "whole", counted)
    run(connection, *within, "INSERT INTO t SELECT g, -g, g::text FROM generate_series(1, 2000) g")
    run(connection, "UPDATE t SET u = u - 5000")
    assert made < 5 * 2000
    with fails(errors.UNIQUE_VIOLATION, "t_u_key", "(u)=(-7000)"):
        run(connection, "INSERT INTO t VALUES (-1, 1, ''), (-2, -7000, '')")
    connection.rollback()
