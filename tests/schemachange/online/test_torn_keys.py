"""Foreign keys that a join or split could carry over, and that would not say there what they said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import instar
from support.databases import fails, rows, run

MERGED = "ALTER TABLE a JOIN b USING (k) INTO t (id, k, x, y)"
BOTH = "ALTER TABLE a JOIN b ON a.k = b.k INTO t (id, a.k AS ak, b.k AS bk, x, y)"
KEPT = " WITH (keep_views = true)"


@pytest.fixture
def connection() -> Iterator[instar.Connection]:
    with instar.connect(autocommit=True) as made:
        run(
            made,
            "CREATE TABLE ref (id int PRIMARY KEY, no int UNIQUE)",
            "CREATE TABLE a (id int PRIMARY KEY, k int, x int NOT NULL DEFAULT 1)",
            "CREATE TABLE b (k int PRIMARY KEY, y int DEFAULT 2, z int NOT NULL DEFAULT 0)",
            "INSERT INTO ref VALUES (1, 1), (2, 2)",
            "INSERT INTO a VALUES (1, 1, 1), (2, 2, 1)",
            "INSERT INTO b VALUES (1, 2), (2, 2)",
        )
        yield made


def add(table: str, columns: str, parent: str = "ref", more: str = "") -> str:
    return f"ALTER TABLE {table} ADD FOREIGN KEY ({columns}) REFERENCES {parent} {more}"


@pytest.mark.parametrize(
    ("keys", "change", "told"),
    [
        ([add("b", "k")], MERGED, 'b_k_fkey on table b, which refers to table ref: column "k" would have values'),
        ([add("a", "k")], MERGED, "a_k_fkey"),
        # One of them is not known to hold for rows that are there, or they are not the same.
        ([add("a", "k"), add("b", "k", more="NOT VALID")], MERGED, "a_k_fkey"),
        ([add("a", "k"), add("b", "k", "ref (no)")], MERGED, "b_k_fkey"),
        ([add("a", "k"), add("b", "k", more="ON UPDATE CASCADE")], MERGED, "by which they are joined"),
        ([add("a", "k", more="ON UPDATE CASCADE")], BOTH, 'ON UPDATE CASCADE would change column "ak", by which'),
        (
            [add("a", "k", more="ON UPDATE SET NULL ON DELETE SET DEFAULT")],
            BOTH,
            "ON UPDATE SET NULL and ON DELETE SET DEFAULT would change",
        ),
        ([add("a", "x", more="ON DELETE SET NULL")], BOTH, 'column "x" to another value than it did, or to NULL'),
        ([add("b", "y", more="ON DELETE SET DEFAULT")], BOTH, 'column "y" to another value than it did, or to NULL'),
    ],
)
def test_a_join_would_change_what_a_key_says(
    connection: instar.Connection, keys: list[str], change: str, told: str
) -> None:
    run(connection, *keys)
    with fails("2BP01", told) as failed:
        connection.execute(change)
    assert "or have a column of each table instead of one of both" in str(failed.error.hint)
    assert rows(connection, "SELECT count(*) FROM a") == [(2,)]


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ([add("a", "k"), add("b", "k", more="ON DELETE RESTRICT")], MERGED),
        ([add("a", "k"), add("b", "k")], BOTH),
        ([add("a", "x", more="ON DELETE SET DEFAULT ON UPDATE CASCADE")], BOTH),
        ([add("b", "y", more="ON DELETE SET NULL")], BOTH),
    ],
)
def test_what_says_the_same_is_carried_over(connection: instar.Connection, keys: list[str], change: str) -> None:
    run(connection, *keys, change)
    names = [name for (name,) in rows(connection, "SELECT name FROM instar.constraints WHERE table_name = 't'")]
    assert sum(name.endswith("_fkey") for name in names) == len(keys)
    assert rows(connection, "CHECK DATABASE") == []


def test_a_key_of_which_one_column_is_of_both_tables_holds_for_rows_of_its_own(connection: instar.Connection) -> None:
    """The others have NULL in its other column."""
    run(
        connection,
        "CREATE TABLE pair (k int, x int, PRIMARY KEY (k, x))",
        "INSERT INTO pair VALUES (1, 1), (2, 1)",
        "INSERT INTO b VALUES (3, 2)",
        add("a", "k, x", "pair"),
        MERGED,
    )
    assert rows(connection, "CHECK DATABASE") == []
    with fails("23503", "a_k_x_fkey"):
        connection.execute("UPDATE t SET x = 5 WHERE id = 1")


def test_keys_that_refer_to_a_column_of_both_tables(connection: instar.Connection) -> None:
    """Through a kept view the row that they refer to could go while the other table's stays. Without one there is one
    row."""
    change = "ALTER TABLE b JOIN c USING (k) INTO t (k, y, z, w)"
    run(
        connection,
        "CREATE TABLE c (k int PRIMARY KEY, w int NOT NULL)",
        "CREATE TABLE child (k int PRIMARY KEY REFERENCES b)",
        "INSERT INTO child VALUES (1)",
    )
    with fails("2BP01", 'it would refer to rows of both kept views, and not to those of "b" alone'):
        connection.execute(change + KEPT)
    run(connection, change)
    with fails("23503", "child_k_fkey"):
        connection.execute("DELETE FROM t WHERE k = 1")
    assert rows(connection, "CHECK DATABASE") == []


# --- splits -----------------------------------------------------------------------------------------------------------

SPLIT = "ALTER TABLE w SPLIT {}INTO w{} (id, zip, who), s (zip, town) ON (zip){}"


@pytest.fixture
def split(connection: instar.Connection) -> instar.Connection:
    run(
        connection,
        "CREATE TABLE w (id int PRIMARY KEY, zip int, who int, town int)",
        "INSERT INTO w VALUES (1, 1, 1, 1), (2, 1, 2, 1)",
        "CREATE INDEX ON w (zip)",
        "CREATE INDEX ON w (town)",
    )
    return connection


@pytest.mark.parametrize("in_place", ["", "IN PLACE "])
@pytest.mark.parametrize("action", ["ON UPDATE CASCADE", "ON DELETE SET NULL", "ON DELETE SET DEFAULT"])
def test_an_action_would_change_the_split_column_in_one_table(
    split: instar.Connection, action: str, in_place: str
) -> None:
    run(split, add("w", "zip", more=action))
    with fails("2BP01", f'w_zip_fkey on table w, which refers to table ref: {action} would change column "zip"'):
        split.execute(SPLIT.format(in_place, "", ""))


@pytest.mark.parametrize("column", ["zip", "who"])
def test_a_cascade_would_leave_what_a_kept_view_has_in_the_other_table(split: instar.Connection, column: str) -> None:
    run(split, add("w", column, more="ON DELETE CASCADE"))
    with fails("2BP01", f"w_{column}_fkey", "ON DELETE CASCADE would take rows away"):
        split.execute(SPLIT.format("", "2", KEPT))
    run(split, SPLIT.format("", "2", ""), "DELETE FROM ref WHERE id = 1")
    assert rows(split, "CHECK DATABASE") == []


def test_actions_that_leave_a_split_whole_are_seen_by_its_kept_view(split: instar.Connection) -> None:
    run(
        split,
        add("w", "zip"),
        add("w", "who", more="ON UPDATE CASCADE ON DELETE SET NULL"),
        add("w", "town", "ref (no)", "ON UPDATE CASCADE"),
        SPLIT.format("", "2", KEPT),
        "UPDATE ref SET no = 10 WHERE id = 1",
        "DELETE FROM ref WHERE id = 2",
    )
    assert rows(split, "SELECT * FROM w ORDER BY id") == [(1, 1, 1, 10), (2, 1, None, 10)]
    with fails("23503", "w_zip_fkey"):
        split.execute("DELETE FROM ref WHERE id = 1")
    assert rows(split, "CHECK DATABASE") == []


def test_a_key_of_a_table_to_itself_would_refer_to_rows_of_the_other(connection: instar.Connection) -> None:
    run(
        connection,
        "CREATE TABLE c (k int PRIMARY KEY, w int NOT NULL)",
        "INSERT INTO c VALUES (1, 1), (3, 3)",
        "ALTER TABLE b ADD COLUMN up int REFERENCES b",
        "UPDATE b SET up = 1",
    )
    change = "ALTER TABLE b JOIN c USING (k) INTO t (k, up, z, w)"
    with fails("2BP01", "it would refer to rows of both kept views"):
        connection.execute(change + KEPT)
    run(connection, change)


def test_an_action_would_set_a_serial_column_to_a_default_that_is_lost(connection: instar.Connection) -> None:
    run(
        connection,
        "ALTER TABLE b ADD COLUMN q serial",
        "ALTER TABLE b ALTER q DROP NOT NULL",
        add("b", "q", more="ON DELETE SET DEFAULT"),
    )
    with fails("2BP01", 'column "q" to another value than it did'):
        connection.execute("ALTER TABLE a JOIN b USING (k) INTO t (id, k, x, y, q)")
