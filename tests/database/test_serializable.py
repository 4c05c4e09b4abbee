"""SERIALIZABLE: what a transaction has read is as it was when it commits what it has written, or it is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instar import errors
from instar.dbapi import Connection
from instar.store.engine import Commit
from instar.tables import validation
from support.databases import Engine, fails, rows, run, value

Pair = tuple[Connection, Connection]
OTHER = "INSERT INTO log VALUES (1)"
SERIALIZABLE = "BEGIN ISOLATION LEVEL SERIALIZABLE"


@pytest.fixture(params=["direct", "log"])
def pair(engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Two sessions, and tables t (20 rows; indexes on a, c), parent and child, and log. What was read is looked at one
    by one, or compared with the log."""
    if request.param == "log":
        monkeypatch.setattr(validation, "DIRECT", 0)
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, c text UNIQUE)",
        "CREATE INDEX ta ON t (a)",
        "CREATE TABLE log (id int PRIMARY KEY)",
        "CREATE TABLE parent (id int PRIMARY KEY, note text)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1, 'x'), (2, 'y')",
        "INSERT INTO child VALUES (1, 1)",
    )
    one.executemany("INSERT INTO t VALUES (?, ?, 0, ?)", [(number, number, f"c{number}") for number in range(0, 40, 2)])
    return one, two


def refused(connection: Connection, *words: str) -> None:
    """COMMIT is 40001, naming the table and whatever else, and ends the transaction."""
    with fails(errors.SERIALIZATION_FAILURE, *words):
        connection.execute("COMMIT")
    assert not connection.in_transaction


# --- what counts as read ---------------------------------------------------------------------------------------------

# A query, a change that makes its answer another one, and what the refusal names.
READS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "key": ("SELECT b FROM t WHERE id = 4", "UPDATE t SET b = 1 WHERE id = 4", ('"t"', "(id)=(4)")),
    "key deleted": ("SELECT b FROM t WHERE id = 4", "DELETE FROM t WHERE id = 4", ('"t"', "(id)=(4)")),
    "absent key": ("SELECT b FROM t WHERE id = 5", "INSERT INTO t VALUES (5, 5, 5, 'n')", ('"t"', "(id)=(5)")),
    "keys": ("SELECT b FROM t WHERE id IN (4, 5)", "INSERT INTO t VALUES (5, 5, 5, 'n')", ('"t"', "(id)=(5)")),
    "key range": (
        "SELECT sum(b) FROM t WHERE id BETWEEN 4 AND 10",
        "INSERT INTO t VALUES (5, 5, 5, 'n')",
        ('"t"', "(id)=(5)"),
    ),
    "key range from the end": (
        "SELECT id FROM t WHERE id < 10 ORDER BY id DESC",
        "INSERT INTO t VALUES (5, 5, 5, 'n')",
        ('"t"', "(id)=(5)"),
    ),
    "deleted from a key range": (
        "SELECT count(*) FROM t WHERE id BETWEEN 4 AND 10",
        "DELETE FROM t WHERE id = 6",
        ('"t"', "(id)=(6)"),
    ),
    "empty range": ("SELECT id FROM t WHERE id > 100", "INSERT INTO t VALUES (101, 1, 1, 'n')", ('"t"', "(id)=(101)")),
    "index key": ("SELECT id FROM t WHERE a = 4", "INSERT INTO t VALUES (5, 4, 0, 'n')", ('"t"',)),
    "index range": ("SELECT id FROM t WHERE a BETWEEN 4 AND 8", "INSERT INTO t VALUES (101, 5, 0, 'n')", ('"t"',)),
    "out of an index range": ("SELECT id FROM t WHERE a BETWEEN 4 AND 8", "UPDATE t SET a = 99 WHERE id = 6", ('"t"',)),
    "into an index range": ("SELECT id FROM t WHERE a BETWEEN 4 AND 8", "UPDATE t SET a = 5 WHERE id = 20", ('"t"',)),
    "row behind an index": ("SELECT b FROM t WHERE a = 4", "UPDATE t SET b = 9 WHERE id = 4", ('"t"', "(id)=(4)")),
    "index from the end": (
        "SELECT a FROM t WHERE a < 10 ORDER BY a DESC LIMIT 1",
        "INSERT INTO t VALUES (101, 9, 0, 'n')",
        ('"t"',),
    ),
    "whole table": ("SELECT count(*) FROM t WHERE b = 7", "INSERT INTO t VALUES (5, 5, 7, 'n')", ('"t"', "(id)=(5)")),
    "nested loop": (
        "SELECT t.b FROM child JOIN t ON t.id = child.parent",
        "INSERT INTO t VALUES (1, 1, 1, 'n')",
        ('"t"', "(id)=(1)"),
    ),
    "subquery": (
        "SELECT (SELECT max(b) FROM t WHERE t.a = child.id) FROM child",
        "INSERT INTO t VALUES (101, 1, 0, 'n')",
        ('"t"',),
    ),
    "view": ("SELECT total FROM totals", "UPDATE t SET b = 3 WHERE id = 8", ('"t"', "(id)=(8)")),
    "windows in the analytic engine": (
        "SELECT id, sum(b) OVER (ORDER BY id) FROM t",
        "UPDATE t SET b = 3 WHERE id = 8",
        ('"t"', "(id)=(8)"),
    ),
    "system view": ("SELECT count(*) FROM information_schema.tables", "CREATE TABLE u (id int)", ("catalog",)),
}


@pytest.mark.parametrize("case", READS)
def test_what_was_read_has_changed(pair: Pair, case: str) -> None:
    one, two = pair
    query, change, words = READS[case]
    one.execute("CREATE VIEW totals AS SELECT sum(b) AS total FROM t")
    run(two, SERIALIZABLE)
    before = rows(two, query)
    run(two, OTHER)
    run(one, change)
    assert rows(two, query) == before, "a snapshot repeats"
    refused(two, *words)
    assert rows(one, "SELECT * FROM log") == []
    run(two, SERIALIZABLE)
    assert rows(two, query) != before, "else there was nothing to refuse"
    run(two, OTHER, "COMMIT")
    assert rows(one, "CHECK DATABASE") == []


# A query, and a change beside it.
APART = {
    "another key": ("SELECT b FROM t WHERE id = 4", "UPDATE t SET b = 1 WHERE id = 6"),
    "below the range": ("SELECT sum(b) FROM t WHERE id > 6", "UPDATE t SET b = 1 WHERE id = 6"),
    "behind the range": ("SELECT sum(b) FROM t WHERE id BETWEEN 2 AND 6", "INSERT INTO t VALUES (7, 4, 4, 'n')"),
    "another index key": ("SELECT b FROM t WHERE a = 4", "INSERT INTO t VALUES (5, 6, 0, 'n')"),
    "a row moved elsewhere in the index": ("SELECT b FROM t WHERE a < 5", "UPDATE t SET a = 90 WHERE id = 38"),
    "another table": ("SELECT sum(b) FROM t", "INSERT INTO parent VALUES (3, 'z')"),
    "an empty WHERE": ("SELECT b FROM t WHERE id = NULL", "UPDATE t SET b = 1"),
    "a new column": ("SELECT sum(b) FROM t", "ALTER TABLE t ADD COLUMN d int DEFAULT 4"),
    "another name": ("SELECT sum(b) FROM t", "ALTER TABLE t RENAME TO t2"),
    "a new index": ("SELECT sum(b) FROM t WHERE b > 5", "CREATE INDEX tb ON t (b)"),
    "another index dropped": ("SELECT b FROM t WHERE id = 4", "DROP INDEX ta"),
    "another table dropped": ("SELECT sum(b) FROM t", "DROP TABLE child"),
}


@pytest.mark.parametrize("case", APART)
def test_changes_of_what_was_not_read_are_no_conflict(pair: Pair, case: str) -> None:
    one, two = pair
    query, change = APART[case]
    run(two, SERIALIZABLE)
    rows(two, query)
    run(one, change)
    run(two, OTHER, "COMMIT")
    assert rows(one, "SELECT * FROM log") == [(1,)]
    assert rows(one, "CHECK DATABASE") == []


def test_a_row_deleted_and_inserted_again_has_changed(pair: Pair) -> None:
    """Tombstones count, and so does what was put over them (rule 5)."""
    one, two = pair
    for query in ("SELECT b FROM t WHERE id = 4", "SELECT sum(b) FROM t WHERE id < 9", "SELECT b FROM t WHERE a = 4"):
        run(two, SERIALIZABLE)
        rows(two, query)
        run(two, OTHER)
        run(one, "DELETE FROM t WHERE id = 4", "INSERT INTO t VALUES (4, 4, 0, 'c4')")
        refused(two, '"t"', "4")
    run(two, SERIALIZABLE)
    rows(two, "SELECT b FROM t WHERE id = 5")
    run(two, OTHER)
    run(one, "INSERT INTO t VALUES (5, 5, 5, 'n')", "DELETE FROM t WHERE id = 5")
    refused(two, '"t"', "(id)=(5)")
    run(two, SERIALIZABLE)
    rows(two, "SELECT id FROM t WHERE a BETWEEN 11 AND 13")
    run(two, OTHER)
    run(one, "UPDATE t SET a = 11 WHERE id = 30", "UPDATE t SET a = 30 WHERE id = 30")
    refused(two, '"t"')


# --- what DML reads --------------------------------------------------------------------------------------------------


def test_schedule_6(pair: Pair) -> None:
    """Two transactions count a range and insert into it: one fails."""
    one, two = pair
    for connection, key in ((one, 101), (two, 103)):
        run(connection, SERIALIZABLE)
        assert value(connection, "SELECT count(*) FROM t WHERE id >= 100") == 0
        connection.execute(f"INSERT INTO t VALUES ({key}, 0, 0, 'n{key}')")
    one.execute("COMMIT")
    refused(two, '"t"', "(id)=(101)")
    assert value(one, "SELECT count(*) FROM t WHERE id >= 100") == 1


@pytest.mark.parametrize("query", ["SELECT sum(b) FROM t", "SELECT sum(b) FROM t WHERE id IN (2, 4)"])
def test_write_skew_is_excluded(pair: Pair, query: str) -> None:
    one, two = pair
    run(one, "UPDATE t SET b = 15 WHERE id IN (2, 4)")
    for connection in pair:
        run(connection, SERIALIZABLE)
        assert value(connection, query) == 30
    run(one, "UPDATE t SET b = b - 30 WHERE id = 2", "COMMIT")
    two.execute("UPDATE t SET b = b - 30 WHERE id = 4")
    refused(two, '"t"', "(id)=(2)")
    assert value(one, "SELECT sum(b) FROM t") == 0


def test_the_rows_that_dml_has_found_count_as_read(pair: Pair) -> None:
    """That UPDATE and DELETE meet no further rows is part of what they say."""
    one, two = pair
    for statement in ("UPDATE t SET b = 1 WHERE a > 30", "DELETE FROM t WHERE a > 30", "UPDATE t SET b = 1"):
        run(two, SERIALIZABLE, statement)
        run(one, "INSERT INTO t VALUES (101, 101, 0, 'n')")
        refused(two, '"t"')
        run(one, "DELETE FROM t WHERE id = 101")
    run(two, SERIALIZABLE, "INSERT INTO log SELECT id FROM t WHERE b = 0")
    run(one, "UPDATE t SET b = 1 WHERE id = 2")
    refused(two, '"t"', "(id)=(2)")


def test_on_conflict_has_read_the_row_in_the_way(pair: Pair) -> None:
    one, two = pair
    run(two, SERIALIZABLE, "INSERT INTO t VALUES (4, 0, 0, 'n') ON CONFLICT DO NOTHING", OTHER)
    run(one, "DELETE FROM t WHERE id = 4")
    refused(two, '"t"', "(id)=(4)")


def test_constraints_are_judged_on_the_current_state_and_count_as_read_only_where_that_is_not_enough(
    pair: Pair,
) -> None:
    one, two = pair
    run(two, SERIALIZABLE, "INSERT INTO child VALUES (2, 2)")
    run(one, "UPDATE parent SET note = 'z' WHERE id = 2")  # the parent is still there
    run(two, "COMMIT", SERIALIZABLE, "INSERT INTO child VALUES (3, 2)")
    run(one, "DELETE FROM parent WHERE id = 2")
    refused(two, "foreign key")
    run(two, SERIALIZABLE, "INSERT INTO t VALUES (51, 1, 1, 'new')")
    run(one, "INSERT INTO t VALUES (53, 1, 1, 'new')")
    refused(two, '"t"')


@pytest.mark.parametrize(
    "taken_back",
    [
        ("INSERT INTO t VALUES (51, 1, 1, 'n')", "DELETE FROM t WHERE id = 51"),
        ("SAVEPOINT s", "INSERT INTO t VALUES (51, 1, 1, 'n')", "ROLLBACK TO s"),
    ],
)
def test_what_an_insert_that_was_taken_back_has_shown(pair: Pair, taken_back: tuple[str, ...]) -> None:
    """That the key was free is known to whoever inserted it, whatever became of the row."""
    one, two = pair
    run(two, SERIALIZABLE, *taken_back, OTHER)
    run(one, "INSERT INTO t VALUES (51, 7, 7, 'm')")
    refused(two, '"t"', "(id)=(51)")


@pytest.mark.parametrize(
    ("statement", "sqlstate", "change", "table"),
    [
        ("INSERT INTO t VALUES (4, 0, 0, 'n')", errors.UNIQUE_VIOLATION, "DELETE FROM t WHERE id = 4", "t"),
        ("INSERT INTO t VALUES (5, 0, 0, 'c4')", errors.UNIQUE_VIOLATION, "DELETE FROM t WHERE id = 4", "t"),
        (
            "INSERT INTO child VALUES (9, 9)",
            errors.FOREIGN_KEY_VIOLATION,
            "INSERT INTO parent VALUES (9, '')",
            "parent",
        ),
    ],
)
def test_a_statement_that_failed_has_shown_something_too(
    pair: Pair, statement: str, sqlstate: str, change: str, table: str
) -> None:
    one, two = pair
    run(two, SERIALIZABLE, "SAVEPOINT s")
    with fails(sqlstate):
        two.execute(statement)
    run(two, "ROLLBACK TO s", OTHER)
    one.execute(change)
    refused(two, f'"{table}"')


def test_reads_before_a_savepoint_that_was_rolled_back_to_stay(pair: Pair) -> None:
    one, two = pair
    run(two, SERIALIZABLE, "SAVEPOINT s")
    rows(two, "SELECT b FROM t WHERE id = 4")
    run(two, "ROLLBACK TO s", OTHER)
    one.execute("UPDATE t SET b = 1 WHERE id = 4")
    refused(two, '"t"', "(id)=(4)")


# --- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_that_only_reads_commits(pair: Pair) -> None:
    one, two = pair
    for begin in (SERIALIZABLE, f"{SERIALIZABLE} READ ONLY"):
        two.execute(begin)
        before = value(two, "SELECT sum(b) FROM t")
        one.execute("UPDATE t SET b = b + 1")
        assert value(two, "SELECT sum(b) FROM t") == before
        two.execute("COMMIT")


def test_the_read_only_anomaly_is_excluded(pair: Pair) -> None:
    """Fekete, O'Neil and O'Neil: under snapshot isolation a reader sees the deposit without the withdrawal that, as its
    fee shows, came before it. Here whoever commits last must have read what is there, so the order of commits is one
    in which everything could have happened; a reader stands in it where its snapshot was taken."""
    withdrawal, deposit = pair
    run(withdrawal, "UPDATE t SET b = 0 WHERE id IN (2, 4)", SERIALIZABLE)
    assert value(withdrawal, "SELECT sum(b) FROM t WHERE id IN (2, 4)") == 0
    run(deposit, SERIALIZABLE, "UPDATE t SET b = b + 20 WHERE id = 4", "COMMIT")
    run(deposit, f"{SERIALIZABLE} READ ONLY")
    assert rows(deposit, "SELECT b FROM t WHERE id IN (2, 4) ORDER BY id") == [(0,), (20,)]
    deposit.execute("COMMIT")
    withdrawal.execute("UPDATE t SET b = b - 11 WHERE id = 2")  # 10, and a fee of 1 as the total is overdrawn
    refused(withdrawal, '"t"', "(id)=(4)")


def test_ways_to_ask_for_it(engine: Engine) -> None:
    connection = engine.connect(default_transaction_isolation="serializable")
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "BEGIN")
    assert value(connection, "SHOW transaction_isolation") == "serializable"
    run(connection, "COMMIT", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN")
    assert value(connection, "SHOW transaction_isolation") == "read committed"
    run(connection, "COMMIT", "BEGIN", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    assert value(connection, "SHOW transaction_isolation") == "serializable"
    run(connection, "INSERT INTO t VALUES (1, 1)", "COMMIT AND CHAIN")
    assert value(connection, "SHOW transaction_isolation") == "serializable"
    run(connection, "COMMIT", "SET default_transaction_isolation = 'SERIALIZABLE'")
    assert value(connection, "SHOW default_transaction_isolation") == "serializable"


def test_implicit_transactions_of_the_db_api(engine: Engine) -> None:
    one = engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    two = engine.connect(autocommit=False, default_transaction_isolation="serializable")
    assert value(two, "SELECT sum(a) FROM t") == 3
    two.execute("INSERT INTO t VALUES (3, 3)")
    one.execute("UPDATE t SET a = 9 WHERE id = 1")
    with fails(errors.SERIALIZATION_FAILURE, '"t"', "(id)=(1)"):
        two.commit()
    assert value(two, "SELECT sum(a) FROM t") == 11


@pytest.mark.parametrize("rounds", [1, 3])
def test_autocommit_statements_start_again(pair: Pair, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Unseen by the user, on a new snapshot; the look-ups and writes of one row that skip all that need no read set."""
    one, two = pair
    two.execute("SET default_transaction_isolation = 'serializable'")
    left = [rounds]
    committed = type(two.database.store).commit

    def commit(store: object, request: Commit) -> int:
        if request.snapshot is not None and left[0]:
            left[0] -= 1
            one.execute("UPDATE t SET b = b + 1 WHERE id = 2")
        return committed(store, request)  # type: ignore[arg-type]  # the store it was called for

    monkeypatch.setattr(type(two.database.store), "commit", commit)
    two.execute("INSERT INTO log SELECT sum(b) FROM t")
    assert rows(one, "SELECT id FROM log") == [(rounds,)]
    for _ in range(3):
        two.execute("UPDATE t SET b = b + ? WHERE id = ?", (1, 4))
        assert rows(two, "SELECT b FROM t WHERE id = ?", 2) == [(rounds,)]
    assert value(one, "SELECT b FROM t WHERE id = 4") == 3


# --- optimistic locks ------------------------------------------------------------------------------------------------

# With a lock on a: what one transaction does, what happens beside, and whether that is a conflict.
LOCKED = {
    "another lock": ("SELECT b FROM t WHERE id = 4", "UPDATE t SET a = 99 WHERE id = 4", False),
    "the lock itself": ("SELECT a FROM t WHERE id = 4", "UPDATE t SET a = 99 WHERE id = 4", True),
    "the default lock": ("SELECT b FROM t WHERE id = 4", "UPDATE t SET b = 99 WHERE id = 4", True),
    "both": ("SELECT a, b FROM t WHERE id = 4", "UPDATE t SET b = 99 WHERE id = 4", True),
    "a range": ("SELECT sum(b) FROM t WHERE id < 9", "UPDATE t SET a = 99 WHERE id = 4", False),
    "a range of the lock": ("SELECT sum(a) FROM t WHERE id < 9", "UPDATE t SET a = 99 WHERE id = 4", True),
    "a condition": ("SELECT count(*) FROM t WHERE b = 0", "UPDATE t SET a = 99 WHERE id = 4", False),
    "whether it is there": ("SELECT count(*) FROM t", "UPDATE t SET b = 99 WHERE id = 4", False),
    "it is there no more": ("SELECT count(*) FROM t", "DELETE FROM t WHERE id = 4", True),
    "it is new": ("SELECT count(*) FROM t", "INSERT INTO t VALUES (5, 5, 5, 'n')", True),
    "it was there before": (
        "SELECT b FROM t WHERE id = 4",
        "DELETE FROM t WHERE id = 4; INSERT INTO t VALUES (4, 4, 0, 'c4')",
        True,
    ),
    "another key": ("SELECT count(*) FROM t", "UPDATE t SET id = 5 WHERE id = 4", True),
    "an index": ("SELECT b FROM t WHERE a = 4", "UPDATE t SET a = 99 WHERE id = 4", True),
    "behind an index": ("SELECT a FROM t WHERE a = 4", "UPDATE t SET b = 99 WHERE id = 4", False),
    "an update": ("UPDATE t SET b = b + 1 WHERE id = 4", "UPDATE t SET a = 99 WHERE id = 4", False),
    "an update to what is there": ("UPDATE t SET a = 4 WHERE id = 4", "UPDATE t SET a = 99 WHERE id = 4", True),
    "a row of its own": (
        "UPDATE t SET b = 1 WHERE id = 4; SELECT a FROM t WHERE id = 4",
        "UPDATE t SET a = 99 WHERE id = 4",
        True,
    ),
    "an update that reads": ("UPDATE t SET b = a WHERE id = 4", "UPDATE t SET a = 99 WHERE id = 4", True),
    "an update that returns": ("UPDATE t SET b = 1 WHERE id = 4 RETURNING a", "UPDATE t SET a = 9 WHERE id = 4", True),
    "a column that goes": ("SELECT a FROM t WHERE id = 4", "UPDATE t SET a = 9; ALTER TABLE t DROP COLUMN a", True),
    "a lock that comes": (
        "SELECT c FROM t WHERE id = 4",
        "ALTER TABLE t ADD LOCK m COVERS (c); UPDATE t SET b = 9 WHERE id = 6; UPDATE t SET c = 'n' WHERE id = 4",
        True,
    ),
    "a lock that goes": (
        "SELECT a FROM t WHERE id = 4",
        "UPDATE t SET a = 9 WHERE id = 4; ALTER TABLE t DROP LOCK l; UPDATE t SET a = 4 WHERE id = 6",
        True,
    ),
}


@pytest.mark.parametrize("case", LOCKED)
def test_rows_are_validated_through_the_locks_of_what_was_read(pair: Pair, case: str) -> None:
    one, two = pair
    statement, changes, conflict = LOCKED[case]
    one.execute("ALTER TABLE t ADD LOCK l COVERS (a)")
    run(two, SERIALIZABLE, *statement.split("; "), OTHER)
    run(one, *changes.split("; "))
    if conflict:
        with fails(errors.SERIALIZATION_FAILURE):
            two.execute("COMMIT")
    else:
        two.execute("COMMIT")
    assert rows(one, "SELECT * FROM log") == ([] if conflict else [(1,)])
    assert rows(one, "CHECK DATABASE") == []


# --- schema changes beside -------------------------------------------------------------------------------------------

# Rules 13 and 24: a query, and a change after which nobody can tell whether what it has read is still so.
GONE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "truncate": ("SELECT b FROM t WHERE id = 4", "TRUNCATE t", ('"t"',)),
    "truncate of nothing": ("SELECT count(*) FROM log", "TRUNCATE log", ('"log"',)),
    "drop table": ("SELECT b FROM t WHERE id = 4", "DROP TABLE t", ('"t"', "drop table")),
    "drop index": ("SELECT b FROM t WHERE a = 4", "DROP INDEX ta", ('"t"', '"ta"')),
    "drop and create index": ("SELECT b FROM t WHERE a = 4", "DROP INDEX ta; CREATE INDEX ta ON t (a)", ('"ta"',)),
    "drop column": ("SELECT b FROM t WHERE id = 4", "ALTER TABLE t DROP COLUMN b", ('"t"', "drop column")),
    "drop column, in a filter": ("SELECT id FROM t WHERE b = 1", "ALTER TABLE t DROP COLUMN b", ('"t"', "drop column")),
    "drop column, in DuckDB": ("SELECT sum(b) FROM t", "ALTER TABLE t DROP COLUMN b", ('"t"', "drop column")),
    "drop and undrop column": (
        "SELECT b FROM t WHERE id = 4",
        "ALTER TABLE t DROP COLUMN b; ALTER TABLE t UNDROP COLUMN b",
        ('"t"', "drop column"),
    ),
    "change type": (
        "SELECT b FROM t WHERE id = 4",
        "ALTER TABLE t ALTER b TYPE varchar(9) USING 'x'",
        ('"t"', "change type"),
    ),
    "drop and create table": ("SELECT id FROM log", "DROP TABLE log; CREATE TABLE log (id int)", ('"log"',)),
}


@pytest.mark.parametrize("case", GONE)
def test_schema_changes_that_take_away_what_was_read(pair: Pair, case: str) -> None:
    one, two = pair
    query, changes, words = GONE[case]
    run(two, SERIALIZABLE)
    before = rows(two, query)
    run(two, "INSERT INTO parent VALUES (7, 'w')")
    run(one, *changes.split("; "))
    assert rows(two, query) == before
    refused(two, *words)
    assert value(one, "SELECT count(*) FROM parent") == 2


@pytest.mark.parametrize(
    ("query", "change"),
    [
        ("SELECT a FROM t WHERE id = 4", "ALTER TABLE t DROP COLUMN b"),
        ("SELECT count(*) FROM t", "ALTER TABLE t DROP COLUMN b"),
        ("UPDATE t SET a = 5 WHERE a = 4 RETURNING id", "ALTER TABLE parent DROP COLUMN note"),
        ("SELECT b FROM t WHERE id = 4", "ALTER TABLE t RENAME COLUMN b TO bb"),
        ("SELECT b FROM t WHERE id = 4", "ALTER TABLE t ALTER b TYPE bigint"),
        ("SELECT b FROM t WHERE id = 4", "ALTER TABLE t ADD COLUMN d int"),
    ],
)
def test_changes_of_what_was_not_read(pair: Pair, query: str, change: str) -> None:
    one, two = pair
    run(two, SERIALIZABLE)
    rows(two, query)
    run(two, "INSERT INTO log VALUES (7)")
    run(one, change)
    two.execute("COMMIT")


def test_why_whoever_has_read_a_dropped_column_cannot_stand_before_the_drop(engine: Engine) -> None:
    """R has read the column, so it comes before the drop D; T has seen the drop, so it comes after D; and T has read
    what R writes as it was before, so it comes before R. R does not commit."""
    r, t, d = engine.connect(), engine.connect(), engine.connect()
    run(d, "CREATE TABLE t (id int PRIMARY KEY, b int)", "CREATE TABLE log (x int)", "INSERT INTO t VALUES (1, 1)")
    run(r, SERIALIZABLE)
    assert rows(r, "SELECT b FROM t") == [(1,)]
    run(d, "ALTER TABLE t DROP COLUMN b")
    run(t, SERIALIZABLE)
    assert rows(t, "SELECT * FROM t") == [(1,)]
    assert rows(t, "SELECT * FROM log") == []
    run(t, "INSERT INTO t VALUES (2)", "COMMIT")
    run(r, "INSERT INTO log VALUES (1)")
    refused(r, '"t"', "drop column")


def test_the_transactions_own_drop_dooms_nobody(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, b int)", "INSERT INTO t VALUES (1, 1)")
    run(two, SERIALIZABLE)
    assert rows(two, "SELECT b FROM t") == [(1,)]
    run(two, "ALTER TABLE t DROP COLUMN b")
    run(one, "CREATE TABLE beside (id int)")
    two.execute("COMMIT")
    assert rows(two, "SELECT * FROM t") == [(1,)]


def test_a_bulk_load_into_a_table_that_was_seen_empty(engine: Engine) -> None:
    """Its rows come in a rowset of their own, without a record per row in the log."""
    one, two = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    run(two, SERIALIZABLE)
    assert rows(two, "SELECT id FROM t") == []
    two.execute("INSERT INTO u VALUES (1)")
    one.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(5000)])
    refused(two, '"t"')


def test_what_the_transaction_has_made_itself_is_nobody_elses_business(pair: Pair) -> None:
    one, two = pair
    run(two, SERIALIZABLE, "CREATE TABLE own (id int PRIMARY KEY, a int UNIQUE)", "INSERT INTO own VALUES (1, 1)")
    assert rows(two, "SELECT id FROM own WHERE a = 1") == [(1,)]
    run(two, "TRUNCATE log")
    assert rows(two, "SELECT * FROM log") == []
    run(two, OTHER)
    assert rows(two, "SELECT * FROM log") == [(1,)]
    run(one, "CREATE TABLE beside (id int)")
    two.execute("COMMIT")
    run(two, SERIALIZABLE)
    assert rows(two, "SELECT * FROM log") == [(1,)]
    two.execute("TRUNCATE log")
    one.execute("INSERT INTO log VALUES (2)")
    refused(two, '"log"', "(id)=(2)")


def test_a_schema_change_that_comes_between_deriving_and_committing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 13: e = c. The commit that is refused for that is derived and validated anew, under the newest schema."""
    one, two = pair
    changes: list[Callable[[], None]] = []
    committed = type(two.database.store).commit

    def commit(store: object, request: Commit) -> int:
        if request.snapshot is not None and changes:
            changes.pop()()
        return committed(store, request)  # type: ignore[arg-type]  # the store it was called for

    monkeypatch.setattr(type(two.database.store), "commit", commit)
    changes.append(lambda: run(one, "ALTER TABLE t ADD COLUMN d int"))
    run(two, SERIALIZABLE)
    rows(two, "SELECT b FROM t WHERE a = 4")
    run(two, OTHER, "COMMIT")
    changes.append(lambda: run(one, "DROP INDEX ta", "UPDATE t SET a = 0 WHERE id = 4"))
    run(two, SERIALIZABLE)
    rows(two, "SELECT b FROM t WHERE a = 4")
    run(two, "DELETE FROM log")
    refused(two, '"t"', '"ta"')
    assert not changes


def test_changes_that_come_between_deriving_and_committing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The atomic section judges them too, even rows in layouts that this process has not met yet."""
    one, two = pair
    one.execute("ALTER TABLE t ADD COLUMN d int")
    committed = type(two.database.store).commit
    change = ""

    def commit(store: object, request: Commit) -> int:
        nonlocal change
        if request.snapshot is not None and change:
            change, now = "", change
            run(one, now)
            two.database.layouts._known.clear()
        return committed(store, request)  # type: ignore[arg-type]  # the store it was called for

    monkeypatch.setattr(type(two.database.store), "commit", commit)
    for query, beside in (
        ("SELECT b FROM t WHERE id = 4", "UPDATE t SET b = 1 WHERE id = 4"),
        ("SELECT id FROM t WHERE a BETWEEN 4 AND 8", "UPDATE t SET a = 7 WHERE id = 30"),
        ("SELECT id FROM t WHERE a BETWEEN 4 AND 8", "UPDATE t SET a = 77 WHERE id = 6"),
        ("SELECT sum(b) FROM t", "DELETE FROM t WHERE id = 38"),
    ):
        run(two, SERIALIZABLE)
        rows(two, query)
        run(two, OTHER)
        change = beside
        refused(two, '"t"')
    change = "UPDATE t SET b = 1 WHERE id = 10"
    run(two, SERIALIZABLE)
    rows(two, "SELECT id FROM t WHERE a BETWEEN 4 AND 8")
    run(two, OTHER, "COMMIT")


def test_a_read_set_older_than_the_watermark_is_refused(pair: Pair) -> None:
    """Rule 6: what was cut from the log cannot be compared with."""
    one, two = pair
    run(two, SERIALIZABLE)
    rows(two, "SELECT b FROM t WHERE id = 4")
    run(two, OTHER)
    run(one, "DELETE FROM t WHERE id = 4", "UPDATE t SET b = 1 WHERE id = 6")
    store = one.database.store
    with store.read() as reader:
        newest = reader.timestamp
    store.collect(newest, lambda record: [])
    with fails(errors.SNAPSHOT_TOO_OLD):
        two.execute("COMMIT")
    assert rows(one, "SELECT * FROM log") == []
