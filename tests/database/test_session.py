"""Transactions of a session: anomalies by name, conflicts, savepoints, statement atomicity, DDL, limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import instar
from instar import errors
from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run, value

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
# Under READ COMMITTED writers of one row wait for one another: test_row_locks.py.
KEPT = LEVELS[1:]


@pytest.fixture
def pair(engine: Engine) -> tuple[Connection, Connection]:
    """Two sessions, and table t with rows (1, 10, 'x') and (2, 20, 'y')."""
    one, two = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int, b text)", "INSERT INTO t VALUES (1, 10, 'x'), (2, 20, 'y')")
    return one, two


def begin(connection: Connection, level: str = "READ COMMITTED") -> None:
    connection.execute(f"BEGIN ISOLATION LEVEL {level}")


def all_of(connection: Connection) -> list[tuple[object, ...]]:
    return rows(connection, "SELECT id, a FROM t ORDER BY id")


# --- anomalies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", KEPT)
def test_dirty_write_is_excluded(pair: tuple[Connection, Connection], level: str) -> None:
    one, two = pair
    begin(one, level)
    begin(two, level)
    run(one, "UPDATE t SET a = 11 WHERE id = 1")
    run(two, "UPDATE t SET a = 12 WHERE id = 1", "UPDATE t SET a = 22 WHERE id = 2")
    run(one, "UPDATE t SET a = 21 WHERE id = 2", "COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, '"t"', "(id)=(1)"):
        two.execute("COMMIT")
    assert not two.in_transaction
    assert all_of(two) == [(1, 11), (2, 21)]


@pytest.mark.parametrize("level", LEVELS)
def test_dirty_read_is_excluded(pair: tuple[Connection, Connection], level: str) -> None:
    one, two = pair
    begin(one, level)
    begin(two, level)
    one.execute("UPDATE t SET a = 11 WHERE id = 1")
    assert all_of(two) == [(1, 10), (2, 20)]
    one.execute("ROLLBACK")
    assert all_of(two) == [(1, 10), (2, 20)]


@pytest.mark.parametrize("level", KEPT)
@pytest.mark.parametrize("second", ["UPDATE t SET a = a + 1 WHERE id = 1", "DELETE FROM t WHERE id = 1"])
def test_lost_update_is_excluded(pair: tuple[Connection, Connection], level: str, second: str) -> None:
    one, two = pair
    begin(one, level)
    begin(two, level)
    assert value(two, "SELECT a FROM t WHERE id = 1") == 10
    run(one, "UPDATE t SET a = a + 1 WHERE id = 1")
    two.execute(second)
    one.execute("COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, '"t"', "(id)=(1)"):
        two.execute("COMMIT")
    assert all_of(one)[0] == (1, 11)


def test_update_of_what_changed_after_the_snapshot(
    pair: tuple[Connection, Connection],
) -> None:
    one, two = pair
    begin(two, "REPEATABLE READ")
    assert value(two, "SELECT a FROM t WHERE id = 1") == 10
    one.execute("UPDATE t SET a = a + 1 WHERE id = 1")
    two.execute("UPDATE t SET a = a + 1 WHERE id = 1")
    with fails(errors.SERIALIZATION_FAILURE, '"t"', "(id)=(1)"):
        two.execute("COMMIT")
    begin(two, "READ COMMITTED")
    assert value(two, "SELECT a FROM t WHERE id = 1") == 11
    one.execute("UPDATE t SET a = a + 1 WHERE id = 1")
    run(two, "UPDATE t SET a = a + 1 WHERE id = 1", "COMMIT")  # a statement's own snapshot has seen it
    assert value(two, "SELECT a FROM t WHERE id = 1") == 13


def test_read_skew_is_excluded_under_repeatable_read(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    begin(two, "REPEATABLE READ")
    first = value(two, "SELECT a FROM t WHERE id = 1")
    run(one, "BEGIN", "UPDATE t SET a = a + 5 WHERE id = 1", "UPDATE t SET a = a - 5 WHERE id = 2", "COMMIT")
    assert first + value(two, "SELECT a FROM t WHERE id = 2") == 30
    assert value(two, "SELECT sum(a) FROM t") == 30


def test_non_repeatable_read_and_phantoms_under_read_committed(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    begin(two, "READ COMMITTED")
    assert value(two, "SELECT a FROM t WHERE id = 1") == 10
    run(one, "UPDATE t SET a = 11 WHERE id = 1", "INSERT INTO t VALUES (3, 30)")
    assert all_of(two) == [(1, 11), (2, 20), (3, 30)]


def test_reads_and_ranges_repeat_under_repeatable_read(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    one.execute("CREATE INDEX ta ON t (a)")
    begin(two, "REPEATABLE READ")
    assert value(two, "SELECT count(*) FROM t") == 2
    run(one, "UPDATE t SET a = 11 WHERE id = 1", "INSERT INTO t VALUES (3, 30)", "DELETE FROM t WHERE id = 2")
    for _ in range(2):
        assert all_of(two) == [(1, 10), (2, 20)]
        assert rows(two, "SELECT id FROM t WHERE id = 3") == []
        assert rows(two, "SELECT id FROM t WHERE a BETWEEN 10 AND 30 ORDER BY a") == [(1,), (2,)]
        assert value(two, "SELECT sum(a) FROM t") == 30
    two.execute("COMMIT")
    assert all_of(two) == [(1, 11), (3, 30)]


def test_write_skew_is_possible_under_repeatable_read(pair: tuple[Connection, Connection]) -> None:
    """Snapshot isolation's own anomaly: both read what the other writes. Only SERIALIZABLE excludes it."""
    one, two = pair
    begin(one, "REPEATABLE READ")
    begin(two, "REPEATABLE READ")
    assert value(one, "SELECT sum(a) FROM t") == value(two, "SELECT sum(a) FROM t") == 30
    run(one, "UPDATE t SET a = a - 30 WHERE id = 1", "COMMIT")
    run(two, "UPDATE t SET a = a - 30 WHERE id = 2", "COMMIT")
    assert value(one, "SELECT sum(a) FROM t") == -30


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_the_level_is_fixed_by_the_first_query(pair: tuple[Connection, Connection], level: str) -> None:
    """A look-up by key takes a way of its own from its second execution on; it is a query all the same."""
    one, _ = pair
    for _ in range(3):
        one.execute("BEGIN")
        assert value(one, "SELECT a FROM t WHERE id = 1") == 10
        with fails(errors.ACTIVE_TRANSACTION, "must be called before any query"):
            one.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        one.execute("ROLLBACK")


# --- conflicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", KEPT)
def test_two_inserts_of_one_key(pair: tuple[Connection, Connection], level: str) -> None:
    one, two = pair
    begin(one, level)
    begin(two, level)
    run(one, "INSERT INTO t VALUES (3, 30)")
    run(two, "INSERT INTO t VALUES (3, 31)")
    one.execute("COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, '"t"', "(id)=(3)"):
        two.execute("COMMIT")
    with fails(errors.UNIQUE_VIOLATION):
        two.execute("INSERT INTO t VALUES (3, 31)")


def test_a_conflict_names_composite_keys(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(one, "CREATE TABLE p (a text, b int, v int, PRIMARY KEY (a, b))", "INSERT INTO p VALUES ('it''s', -7, 0)")
    begin(two, "REPEATABLE READ")
    two.execute("UPDATE p SET v = 1")
    one.execute("UPDATE p SET v = 2")
    with fails(errors.SERIALIZATION_FAILURE, '"p"', "(a, b)=(it's, -7)"):
        two.execute("COMMIT")


def test_autocommit_runs_again_on_a_new_snapshot(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session commits between the statement's snapshot and its commit: the statement sees it, the user not."""
    one, two = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 0)")
    interfered: list[int] = []
    whole = two.session._commit

    def interfere(open_: object) -> None:
        if len(interfered) < 3:
            interfered.append(one.execute("UPDATE t SET a = a + 1 WHERE id = 1").rowcount)
        whole(open_)  # type: ignore[arg-type]  # passed on as it is

    monkeypatch.setattr(two.session, "_commit", interfere)
    assert two.execute("UPDATE t SET a = a + 10 WHERE a < 100 RETURNING a").fetchall() == [(13,)]
    assert interfered == [1, 1, 1]
    assert value(one, "SELECT a FROM t") == 13


def test_autocommit_reports_a_constraint_that_the_new_snapshot_shows(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE)")
    whole = two.session._commit

    def interfere(open_: object) -> None:
        if value(one, "SELECT count(*) FROM t") == 0:
            one.execute("INSERT INTO t VALUES (1, 7)")
        whole(open_)  # type: ignore[arg-type]  # passed on as it is

    monkeypatch.setattr(two.session, "_commit", interfere)
    with fails(errors.UNIQUE_VIOLATION, "(a)=(7)"):
        two.execute("INSERT INTO t VALUES (2, 7)")


def test_unique_index_between_two_transactions(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    one.execute("CREATE UNIQUE INDEX ta ON t (a)")
    begin(one, "REPEATABLE READ")
    begin(two, "REPEATABLE READ")
    run(one, "INSERT INTO t VALUES (3, 30)")
    run(two, "UPDATE t SET a = 30 WHERE id = 2")
    one.execute("COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, '"ta"', "(a)=(30)"):
        two.execute("COMMIT")
    begin(two)
    with fails(errors.UNIQUE_VIOLATION, '"ta"', "(a)=(30)"):
        two.execute("UPDATE t SET a = 30 WHERE id = 2")
    two.execute("ROLLBACK")


def test_unique_index_that_the_snapshot_could_not_see(pair: tuple[Connection, Connection]) -> None:
    """Rule 15: the statement had no way of judging it, and trying again would not help: 23505 at COMMIT."""
    one, two = pair
    begin(two, "REPEATABLE READ")
    run(two, "INSERT INTO t VALUES (3, 10)")
    one.execute("CREATE UNIQUE INDEX ta ON t (a)")
    with fails(errors.UNIQUE_VIOLATION, '"ta"', "(a)=(10)"):
        two.execute("COMMIT")
    assert all_of(two) == [(1, 10), (2, 20)]


def test_foreign_key_beside_delete_of_the_parent(engine: Engine) -> None:
    """DESIGN §11, schedule 7, either order."""
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p (id))",
        "INSERT INTO p VALUES (1), (2)",
    )
    begin(one, "REPEATABLE READ")
    begin(two, "REPEATABLE READ")
    one.execute("DELETE FROM p WHERE id = 1")
    two.execute("INSERT INTO c VALUES (1, 1)")
    one.execute("COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, '"c_p_fkey"'):
        two.execute("COMMIT")
    begin(one, "REPEATABLE READ")
    begin(two, "REPEATABLE READ")
    one.execute("DELETE FROM p WHERE id = 2")
    two.execute("INSERT INTO c VALUES (2, 2)")
    two.execute("COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, '"c_p_fkey"'):
        one.execute("COMMIT")
    assert rows(one, "SELECT p.id, c.id FROM p LEFT JOIN c ON c.p = p.id") == [(2, 2)]


def test_cascade_beside_a_new_child(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p (id) ON DELETE CASCADE)",
        "INSERT INTO p VALUES (1)",
        "INSERT INTO c VALUES (1, 1)",
    )
    begin(one, "REPEATABLE READ")
    assert one.execute("DELETE FROM p").rowcount == 1
    assert rows(one, "SELECT * FROM c") == []
    two.execute("INSERT INTO c VALUES (2, 1)")
    with fails(errors.SERIALIZATION_FAILURE):
        one.execute("COMMIT")
    assert one.execute("DELETE FROM p").rowcount == 1
    assert rows(one, "SELECT * FROM c") == []


@pytest.mark.parametrize("drop_first", [True, False])
def test_create_view_beside_drop_table(pair: tuple[Connection, Connection], drop_first: bool) -> None:
    """DESIGN §11, schedule 7."""
    one, two = pair
    begin(one)
    begin(two)
    one.execute("DROP TABLE t")
    two.execute("CREATE VIEW v AS SELECT * FROM t")
    first, second = (one, two) if drop_first else (two, one)
    first.execute("COMMIT")
    with fails(errors.SERIALIZATION_FAILURE):
        second.execute("COMMIT")


# --- statements, savepoints, failures --------------------------------------------------------------------------------


def test_a_failed_statement_leaves_nothing_of_itself(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    begin(one)
    run(one, "UPDATE t SET a = 11 WHERE id = 1", "SAVEPOINT s")
    with fails(errors.UNIQUE_VIOLATION):
        one.execute("INSERT INTO t VALUES (3, 30), (4, 40), (1, 0)")
    run(one, "ROLLBACK TO s")
    assert all_of(one) == [(1, 11), (2, 20)]
    one.execute("COMMIT")
    with fails(errors.DIVISION_BY_ZERO):
        one.execute("UPDATE t SET a = 10 / (a - 20)")
    assert all_of(one) == [(1, 11), (2, 20)]


def test_a_statement_does_not_see_its_own_writes(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    begin(one)
    assert one.execute("INSERT INTO t SELECT id + 2, a FROM t").rowcount == 2
    assert one.execute("INSERT INTO t SELECT id + 4, a FROM t").rowcount == 4
    assert one.execute("UPDATE t SET id = id + 1").rowcount == 8
    assert [identity for identity, _ in all_of(one)] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert one.execute("DELETE FROM t WHERE a = (SELECT max(a) FROM t)").rowcount == 4
    one.execute("COMMIT")
    assert value(one, "SELECT count(*) FROM t") == 4


FAILING = [
    ("SELECT * FROM nowhere", errors.UNDEFINED_TABLE),
    ("SELEC 1", errors.SYNTAX_ERROR),
    ("SELECT 1 / 0", errors.DIVISION_BY_ZERO),
    ("INSERT INTO t VALUES (1)", errors.UNIQUE_VIOLATION),
    ("CREATE TABLE t (id int)", errors.DUPLICATE_TABLE),
    ("ROLLBACK TO nowhere", errors.INVALID_SAVEPOINT),
    ("RELEASE nowhere", errors.INVALID_SAVEPOINT),
    ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", errors.ACTIVE_TRANSACTION),
    ("SET nonsense = 1", errors.UNDEFINED_OBJECT),
    ("VACUUM t", None),
]


@pytest.mark.parametrize(("statement", "sqlstate"), FAILING)
def test_a_failed_transaction_waits_for_its_end(
    pair: tuple[Connection, Connection], statement: str, sqlstate: str | None
) -> None:
    one, _ = pair
    begin(one)
    run(one, "UPDATE t SET a = 11 WHERE id = 1", "SAVEPOINT s", "UPDATE t SET a = 12 WHERE id = 1")
    with pytest.raises(instar.Error) as caught:
        one.execute(statement)
    assert sqlstate in (None, caught.value.sqlstate)
    for refused in (
        "SELECT 1", "SELECT a FROM t WHERE id = 1", "INSERT INTO t VALUES (9)", "CREATE TABLE u (id int)",
        "SAVEPOINT u", "RELEASE s", "SHOW timezone", "SET TRANSACTION READ ONLY", "EXPLAIN SELECT 1",
    ):  # fmt: skip
        for _ in range(2):
            with fails(errors.IN_FAILED_TRANSACTION):
                one.execute(refused)
    with fails(errors.IN_FAILED_TRANSACTION):
        one.executemany("INSERT INTO t VALUES (?)", [(9,)])
    one.execute("ROLLBACK TO s")
    assert all_of(one) == [(1, 11), (2, 20)]
    one.execute("COMMIT")
    assert all_of(one) == [(1, 11), (2, 20)]


@pytest.mark.parametrize(("statement", "sqlstate"), FAILING)
@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_nobody_waits_for_a_failed_transaction(
    pair: tuple[Connection, Connection], level: str, statement: str, sqlstate: str | None
) -> None:
    """As in PostgreSQL, its locks are gone before the ROLLBACK that it waits for; so are its snapshot and what changes
    of the schema wait for."""
    one, two = pair
    begin(one, level)
    run(one, "SELECT * FROM t WHERE id = 2 FOR UPDATE", "UPDATE t SET a = 11 WHERE id = 1")
    with pytest.raises(instar.Error) as caught:
        one.execute(statement)
    assert sqlstate in (None, caught.value.sqlstate)
    store = one.session.database.store
    assert (store.writers(), store.oldest_snapshot()) == ([], None)
    assert rows(two, "SELECT id FROM t FOR UPDATE NOWAIT") == [(1,), (2,)]
    run(two, "UPDATE t SET a = 21 WHERE id = 2")
    assert one.in_transaction
    one.execute("ROLLBACK")
    assert all_of(two) == [(1, 10), (2, 21)]


def test_a_failed_transaction_that_can_go_back_keeps_its_locks(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    begin(one)
    run(one, "UPDATE t SET a = 11 WHERE id = 1", "SAVEPOINT s")
    with fails(errors.DIVISION_BY_ZERO):
        one.execute("SELECT 1 / 0")
    with fails(errors.LOCK_NOT_AVAILABLE):
        two.execute("SELECT id FROM t FOR UPDATE NOWAIT")
    run(one, "ROLLBACK TO s", "RELEASE s")
    with fails(errors.DIVISION_BY_ZERO):
        one.execute("SELECT 1 / 0")
    assert rows(two, "SELECT id FROM t FOR UPDATE NOWAIT") == [(1,), (2,)]


def test_commit_of_a_failed_transaction_says_rollback(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    begin(one)
    one.execute("UPDATE t SET a = 11 WHERE id = 1")
    with fails(errors.DIVISION_BY_ZERO):
        one.execute("SELECT 1 / 0")
    assert one.session.execute("COMMIT").command == "ROLLBACK"
    assert all_of(one) == [(1, 10), (2, 20)]


def test_savepoints_nest_and_hide(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    begin(one)
    run(one, "SAVEPOINT s", "UPDATE t SET a = 1 WHERE id = 1", "SAVEPOINT s", "DELETE FROM t WHERE id = 1")
    run(one, "INSERT INTO t VALUES (1, 99)")
    assert all_of(one) == [(1, 99), (2, 20)]
    one.execute("ROLLBACK TO s")
    assert all_of(one) == [(1, 1), (2, 20)]
    run(one, "DELETE FROM t", "ROLLBACK TO SAVEPOINT s")
    assert all_of(one) == [(1, 1), (2, 20)]
    one.execute("RELEASE SAVEPOINT s")
    one.execute("ROLLBACK TO s")
    assert all_of(one) == [(1, 10), (2, 20)]
    run(one, "UPDATE t SET a = 5 WHERE id = 2", "RELEASE s", "COMMIT")
    assert all_of(one) == [(1, 10), (2, 5)]


def test_savepoints_need_a_transaction(engine: Engine) -> None:
    connection = engine.connect()
    for statement in ("SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"):
        with fails(errors.NO_ACTIVE_TRANSACTION):
            connection.execute(statement)
    assert not connection.in_transaction


def test_rollback_to_takes_schema_changes_back(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    begin(one)
    run(one, "ALTER TABLE t ADD COLUMN c int DEFAULT 1", "SAVEPOINT s")
    run(one, "CREATE INDEX ta ON t (a)", "ROLLBACK TO s")
    run(one, "ALTER TABLE t ADD COLUMN d int", "CREATE TABLE u (id int)", "INSERT INTO t VALUES (3, 30, 'z', 3, 4)")
    run(one, "ALTER TABLE t RENAME TO tt", "DROP TABLE tt")
    run(one, "ROLLBACK TO s", "INSERT INTO t VALUES (3, 30, 'z', 3)")
    with fails(errors.UNDEFINED_TABLE):
        two.execute("SELECT * FROM u")
    one.execute("COMMIT")
    assert rows(two, "SELECT * FROM t ORDER BY id") == [(1, 10, "x", 1), (2, 20, "y", 1), (3, 30, "z", 3)]
    assert rows(two, "SELECT * FROM instar.jobs") == []
    with fails(errors.UNDEFINED_TABLE):
        two.execute("SELECT * FROM u")
    two.execute("CREATE INDEX ta ON t (a)")


def test_settings_of_a_transaction_that_rolls_back(engine: Engine) -> None:
    connection = engine.connect()
    begin(connection)
    run(connection, "SET timezone = 'Europe/Oslo'", "ROLLBACK")
    assert value(connection, "SHOW timezone") == "UTC"
    begin(connection)
    run(connection, "SAVEPOINT s", "SET timezone = 'Europe/Oslo'", "ROLLBACK TO s")
    assert value(connection, "SHOW timezone") == "UTC"
    connection.execute("COMMIT")
    begin(connection)
    run(connection, "SET LOCAL timezone = 'Europe/Oslo'")
    assert value(connection, "SHOW timezone") == "Europe/Oslo"
    connection.execute("COMMIT")
    assert value(connection, "SHOW timezone") == "UTC"
    begin(connection)
    run(connection, "SET timezone = 'Europe/Oslo'", "COMMIT")
    assert value(connection, "SHOW timezone") == "Europe/Oslo"


# --- DDL inside transactions -----------------------------------------------------------------------------------------

CHANGES = [
    "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
    "ALTER TABLE t DROP COLUMN b",
    "ALTER TABLE t RENAME COLUMN a TO aa",
    "ALTER TABLE t RENAME TO tt",
    "ALTER TABLE t ALTER COLUMN a TYPE bigint",
    "ALTER TABLE t ALTER COLUMN a SET DEFAULT 5",
    "CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t (id))",
    "CREATE TABLE u AS SELECT * FROM t",
    "CREATE INDEX tb ON t (b)",
    "CREATE UNIQUE INDEX tb ON t (b)",
    "DROP INDEX ta",
    "CREATE SEQUENCE s",
    "CREATE VIEW v AS SELECT * FROM t",
    "TRUNCATE t",
    "DROP TABLE t",
]


@pytest.mark.parametrize("change", CHANGES)
def test_rolled_back_schema_changes_leave_nothing(pair: tuple[Connection, Connection], change: str) -> None:
    one, two = pair
    one.execute("CREATE INDEX ta ON t (a)")
    catalog = "SELECT table_name, column_name, data_type, column_default FROM information_schema.columns ORDER BY 1, 2"
    before = rows(one, catalog)
    begin(one)
    run(one, "INSERT INTO t VALUES (3, 30, 'z')", change)
    assert rows(two, catalog) == before
    one.execute("ROLLBACK")
    assert rows(one, catalog) == before
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 10, "x"), (2, 20, "y")]
    assert rows(one, "SELECT id FROM t WHERE a = 20") == [(2,)]
    assert rows(two, "CHECK DATABASE") == []
    one.execute(change)
    assert rows(two, "CHECK DATABASE") == []


@pytest.mark.parametrize("change", CHANGES)
def test_schema_changes_commit_with_the_rows(pair: tuple[Connection, Connection], change: str) -> None:
    one, two = pair
    one.execute("CREATE INDEX ta ON t (a)")
    begin(one)
    run(one, "INSERT INTO t VALUES (3, 30, 'z')", "UPDATE t SET a = 11 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    run(one, change, "COMMIT")
    assert rows(two, "CHECK DATABASE") == []
    found = {"ALTER TABLE t RENAME TO tt": "tt"}.get(change, "t")
    if change == "TRUNCATE t":
        assert rows(two, "SELECT * FROM t") == []
    elif change != "DROP TABLE t":
        assert rows(two, f"SELECT id FROM {found} ORDER BY id") == [(1,), (3,)]


def test_rows_written_before_and_after_a_change_in_one_transaction(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    begin(one)
    run(
        one,
        "INSERT INTO t VALUES (3, 30, 'z')",
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
        "INSERT INTO t VALUES (4, 40, 'w', 8)",
        "ALTER TABLE t DROP COLUMN b",
        "UPDATE t SET c = 9 WHERE id = 3",
        "ALTER TABLE t ALTER COLUMN a TYPE bigint",
        "UPDATE t SET a = 5000000000 WHERE id = 1",
        "CREATE INDEX tc ON t (c)",
        "INSERT INTO t VALUES (5, 50, 9)",
    )
    wanted = [(1, 5_000_000_000, 7), (2, 20, 7), (3, 30, 9), (4, 40, 8), (5, 50, 9)]
    assert rows(one, "SELECT * FROM t ORDER BY id") == wanted
    assert rows(one, "SELECT id FROM t WHERE c = 9 ORDER BY id") == [(3,), (5,)]
    one.execute("COMMIT")
    assert rows(two, "SELECT * FROM t ORDER BY id") == wanted
    assert rows(two, "SELECT id FROM t WHERE c = 9 ORDER BY id") == [(3,), (5,)]
    assert rows(two, "CHECK DATABASE") == []


def test_a_table_that_was_changed_is_dropped(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    begin(one)
    run(one, "ALTER TABLE t RENAME TO u", "ALTER TABLE u ADD COLUMN c int", "INSERT INTO u VALUES (3, 30, 'z', 1)")
    run(one, "DROP TABLE u", "CREATE TABLE t (a text)", "INSERT INTO t VALUES ('new')", "COMMIT")
    assert rows(two, "SELECT * FROM t") == [("new",)]
    with fails(errors.UNDEFINED_TABLE):
        two.execute("SELECT * FROM u")
    assert rows(two, "CHECK DATABASE") == []


def test_own_unique_index_meets_own_rows(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    begin(one)
    run(one, "CREATE TABLE u (id int PRIMARY KEY, a int)", "INSERT INTO u VALUES (1, 1), (2, 1)")
    with pytest.raises(instar.IntegrityError):
        run(one, "CREATE UNIQUE INDEX ua ON u (a)", "COMMIT")
    one.rollback()
    assert rows(one, "CHECK DATABASE") == []


def test_a_change_that_was_no_change_holds_no_old_schema(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    begin(one)
    one.execute("DROP TABLE IF EXISTS nowhere")
    run(two, "CREATE TABLE u (id int)", "ALTER TABLE t ADD COLUMN c int")
    run(one, "ALTER TABLE u ADD COLUMN d int", "ALTER TABLE t ADD COLUMN d int", "COMMIT")
    assert rows(two, "SELECT * FROM u") == []


@pytest.mark.parametrize("level", LEVELS)
def test_two_changes_of_one_table(pair: tuple[Connection, Connection], level: str) -> None:
    one, two = pair
    begin(one, level)
    begin(two, level)
    assert all_of(two) == all_of(one)
    one.execute("ALTER TABLE t ADD COLUMN c int")
    two.execute("ALTER TABLE t ADD COLUMN d int")
    one.execute("COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, '"t"'):
        two.execute("COMMIT")
    assert rows(two, "SELECT * FROM t WHERE id = 1") == [(1, 10, "x", None)]


# --- limits, read only, sequences ------------------------------------------------------------------------------------


def test_max_transaction_rows(engine: Engine) -> None:
    connection = engine.connect(max_transaction_rows="10")
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(10)])
    with fails(errors.LIMIT_EXCEEDED):
        connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(10, 21)])
    begin(connection)
    run(connection, "UPDATE t SET a = 1", "UPDATE t SET a = 2", "SAVEPOINT s")
    with fails(errors.LIMIT_EXCEEDED):
        connection.execute("INSERT INTO t VALUES (99)")
    run(connection, "ROLLBACK TO s", "DELETE FROM t WHERE id = 0", "COMMIT")
    assert value(connection, "SELECT sum(a) FROM t") == 18


def test_max_transaction_rows_holds_for_the_open_transaction(engine: Engine) -> None:
    connection = engine.connect(max_transaction_rows="3")
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    insert = "INSERT INTO t SELECT g FROM generate_series({}, {}) g"
    begin(connection)
    run(connection, insert.format(1, 2), "SAVEPOINT s", "SET LOCAL max_transaction_rows = 5", insert.format(3, 5))
    with fails(errors.LIMIT_EXCEEDED):
        connection.execute(insert.format(6, 6))
    run(connection, "ROLLBACK TO s", insert.format(3, 3))
    with fails(errors.LIMIT_EXCEEDED):
        connection.execute(insert.format(4, 4))
    run(connection, "ROLLBACK TO s", "SET max_transaction_rows = 4", insert.format(3, 4), "COMMIT")
    begin(connection)
    run(connection, insert.format(5, 8), "RESET max_transaction_rows", insert.format(9, 9), "COMMIT")
    assert value(connection, "SELECT count(*) FROM t") == 9


def test_read_only_transactions(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    one.execute("CREATE SEQUENCE s")
    for refused in (
        "INSERT INTO t VALUES (3)", "UPDATE t SET a = 1 WHERE id = 1", "DELETE FROM t WHERE id = 99",
        "CREATE TABLE u (id int)", "ALTER TABLE t ADD COLUMN c int", "DROP TABLE t", "TRUNCATE t",
        "SELECT nextval('s')", "CREATE INDEX ta ON t (a)",
    ):  # fmt: skip
        one.execute("BEGIN READ ONLY")
        assert all_of(one) == [(1, 10), (2, 20)]
        with fails(errors.READ_ONLY_TRANSACTION):
            one.execute(refused)
        one.execute("ROLLBACK")
    run(one, "SET default_transaction_read_only = on")
    with fails(errors.READ_ONLY_TRANSACTION):
        one.execute("INSERT INTO t VALUES (3)")
    run(one, "BEGIN READ WRITE", "INSERT INTO t VALUES (3)", "COMMIT")
    run(one, "BEGIN", "SET TRANSACTION READ WRITE", "INSERT INTO t VALUES (4)", "COMMIT")
    assert value(one, "SELECT count(*) FROM t") == 4


def test_a_read_only_transaction_stays_so(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    run(one, "BEGIN READ ONLY", "SELECT 1")
    with fails(errors.ACTIVE_TRANSACTION):
        one.execute("SET TRANSACTION READ WRITE")
    one.execute("ROLLBACK")


def test_sequences_are_outside_transactions(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    run(one, "CREATE SEQUENCE s", "CREATE TABLE u (id serial PRIMARY KEY, a int)")
    begin(one)
    first = value(one, "SELECT nextval('s')")
    one.execute("INSERT INTO u (a) VALUES (1), (2)")
    second = value(two, "SELECT nextval('s')")
    two.execute("INSERT INTO u (a) VALUES (3)")
    one.execute("ROLLBACK")
    third = value(one, "SELECT nextval('s')")
    assert len({first, second, third}) == 3
    one.execute("INSERT INTO u (a) VALUES (4)")
    assert rows(two, "SELECT * FROM u ORDER BY id") == [(3, 3), (4, 4)]


def test_sequences_of_a_transaction_that_rolls_back(engine: Engine) -> None:
    connection = engine.connect()
    begin(connection)
    run(connection, "CREATE TABLE u (id serial PRIMARY KEY, a int)", "INSERT INTO u (a) VALUES (1)")
    assert rows(connection, "SELECT id FROM u") == [(1,)]
    connection.execute("ROLLBACK")
    run(connection, "CREATE TABLE u (id serial PRIMARY KEY, a int)", "INSERT INTO u (a) VALUES (1)")
    assert rows(connection, "SELECT id FROM u") == [(1,)]


def test_begin_after_a_query_is_heeded(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    one.autocommit = False
    run(one, "SELECT * FROM t")
    with fails(errors.UNDEFINED_OBJECT):
        one.execute("PAUSE JOB 1")
    run(one, "ROLLBACK", "SELECT * FROM t", "BEGIN")
    with fails(errors.ACTIVE_TRANSACTION, "transaction block"):
        one.execute("PAUSE JOB 1")


def test_values_that_exists_draws_are_drawn(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE SEQUENCE s", "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
    assert value(connection, "SELECT EXISTS (SELECT nextval('s') FROM t)")
    assert value(connection, "SELECT nextval('s')") == 2


def test_what_exists_locks_is_computed(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    with fails(errors.DIVISION_BY_ZERO):
        one.execute("SELECT EXISTS (SELECT 1 / (id - id) FROM t FOR UPDATE)")


def test_transaction_control_without_a_transaction(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "COMMIT", "ROLLBACK", "SET TRANSACTION READ ONLY", "BEGIN", "BEGIN", "COMMIT")
    assert [notice.split(":")[0] for notice in connection.notices] == ["WARNING"] * 4


WORK = ["INSERT INTO t VALUES (3)", "CREATE TABLE u (id int)", "SAVEPOINT s", "SELECT a FROM t WHERE id = 1 FOR UPDATE"]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("autocommit", [True, False])
def test_begin_within_a_transaction(pair: tuple[Connection, Connection], work: str, autocommit: bool) -> None:
    """Whoever opened it, BEGIN or the first statement: it goes on, with all that it has done."""
    one, two = pair
    one.autocommit = autocommit
    if autocommit:
        one.execute("BEGIN")
    run(one, work, "BEGIN")
    assert one.notices == ["WARNING:  there is already a transaction in progress"]
    assert one.in_transaction
    match work.split(maxsplit=1)[0]:
        case "INSERT":
            with fails(errors.ACTIVE_TRANSACTION):
                one.execute("PAUSE JOB 1")
            run(one, "ROLLBACK")
            assert all_of(one) == [(1, 10), (2, 20)]
            run(one, work, "BEGIN", "COMMIT")
            assert all_of(two) == [(1, 10), (2, 20), (3, None)]
        case "CREATE":
            run(one, "INSERT INTO u VALUES (1)", "COMMIT")
            assert rows(two, "SELECT id FROM u") == [(1,)]
        case "SAVEPOINT":
            run(one, "DELETE FROM t", "ROLLBACK TO s", "COMMIT")
            assert all_of(two) == [(1, 10), (2, 20)]
        case "SELECT":
            with fails(errors.LOCK_NOT_AVAILABLE):
                two.execute(f"{work} NOWAIT")
            run(one, "COMMIT")
            two.execute(f"{work} NOWAIT")


@pytest.mark.parametrize("autocommit", [True, False])
def test_modes_of_begin_within_a_transaction(pair: tuple[Connection, Connection], autocommit: bool) -> None:
    one, _ = pair
    one.autocommit = autocommit
    first = "BEGIN" if autocommit else "SET TRANSACTION READ WRITE"
    run(one, first, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN READ ONLY")
    assert value(one, "SHOW transaction_isolation") == "serializable"
    with fails(errors.READ_ONLY_TRANSACTION):
        one.execute("DELETE FROM t")
    run(one, "ROLLBACK", first, "SELECT * FROM t")
    with fails(errors.ACTIVE_TRANSACTION):
        one.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    with fails(errors.IN_FAILED_TRANSACTION):
        one.execute("BEGIN")
    run(one, "ROLLBACK")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    "first", ["SET lock_timeout = '5s'", "SHOW timezone", "RESET timezone", "SET LOCAL timezone = 'UTC'"]
)
def test_settings_are_no_query(pair: tuple[Connection, Connection], level: str, first: str) -> None:
    """Nothing has been read: the level can still be chosen, and the snapshot is that of the first query."""
    one, two = pair
    one.autocommit = False
    run(one, first, f"SET TRANSACTION ISOLATION LEVEL {level}", first)
    run(two, "UPDATE t SET a = 11 WHERE id = 1")
    assert all_of(one) == [(1, 11), (2, 20)]
    run(two, "UPDATE t SET a = 12 WHERE id = 1")
    assert all_of(one) == [(1, 11), (2, 20)]


def test_settings_are_part_of_an_open_transaction(engine: Engine) -> None:
    one = engine.connect()
    one.autocommit = False
    run(one, "SET timezone = 'Asia/Tokyo'")
    assert one.in_transaction
    run(one, "ROLLBACK")
    assert value(one, "SHOW timezone") == "UTC"
    run(one, "SET timezone = 'Asia/Tokyo'")
    with fails(errors.INVALID_PARAMETER):
        one.execute("SET timezone = 'Nowhere'")
    with fails(errors.IN_FAILED_TRANSACTION):
        one.execute("SHOW timezone")
    run(one, "ROLLBACK")
    one.autocommit = True
    run(one, "SET LOCAL timezone = 'Asia/Tokyo'")
    assert one.notices == ["WARNING:  SET LOCAL can only be used in transaction blocks"]
    assert value(one, "SHOW timezone") == "UTC"


@pytest.mark.parametrize("begin", ["BEGIN", "SAVEPOINT zero"])
def test_modes_within_a_savepoint(pair: tuple[Connection, Connection], begin: str) -> None:
    one, _ = pair
    one.autocommit = begin == "BEGIN"
    run(one, begin, "SAVEPOINT s", "SET TRANSACTION READ ONLY", "ROLLBACK TO s", "INSERT INTO t VALUES (3)")
    run(one, "SAVEPOINT s", "BEGIN READ ONLY")
    with fails(errors.READ_ONLY_TRANSACTION):
        one.execute("DELETE FROM t")
    run(one, "ROLLBACK TO s", "BEGIN READ ONLY", "RELEASE s", "INSERT INTO t VALUES (4)")
    run(one, "ROLLBACK", begin, "SAVEPOINT s", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with fails(errors.ACTIVE_TRANSACTION, "subtransaction"):
        one.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    run(one, "ROLLBACK", begin, "SET TRANSACTION READ ONLY", "SAVEPOINT s")
    with fails(errors.ACTIVE_TRANSACTION, "read-write mode"):
        one.execute("SET TRANSACTION READ WRITE")
    run(one, "ROLLBACK")


def test_whether_a_transaction_is_open(pair: tuple[Connection, Connection]) -> None:
    """If it has failed, or only locked or read something, too: somebody has to end it."""
    one, two = pair
    assert not one.in_transaction
    one.autocommit = False
    for first in ("SELECT * FROM t", "SELECT a FROM t WHERE id = 1 FOR UPDATE", "SAVEPOINT s", "SET timezone = 'UTC'"):
        one.execute(first)
        assert one.in_transaction
        one.rollback()
        assert not one.in_transaction
    with fails(errors.DIVISION_BY_ZERO):
        one.execute("SELECT 1 / 0")
    assert one.in_transaction
    one.rollback()
    run(two, "SELECT a FROM t WHERE id = 1")
    assert not two.in_transaction


@pytest.mark.parametrize("text", ["INSERT INTO", "SELECT 1", "INSERT INTO nothing VALUES (?)"])
def test_a_failed_executemany_fails_its_transaction(pair: tuple[Connection, Connection], text: str) -> None:
    one, _ = pair
    begin(one)
    with pytest.raises(instar.Error):
        one.executemany(text, [(1,)])
    with fails(errors.IN_FAILED_TRANSACTION):
        one.execute("SELECT 1")
    run(one, "ROLLBACK")


def test_sets_that_cannot_be_had_are_no_failure_of_the_transaction(pair: tuple[Connection, Connection]) -> None:
    """Nothing of the statement has come to the database."""
    one, _ = pair

    def sets() -> Iterator[tuple[int]]:
        yield (3,)
        raise LookupError("no more")

    begin(one)
    run(one, "DELETE FROM t WHERE id = 1")
    with pytest.raises(LookupError):
        one.executemany("INSERT INTO t VALUES (?)", sets())
    run(one, "COMMIT")
    assert all_of(one) == [(2, 20)]


def test_nothing_is_chained_to_no_transaction(engine: Engine) -> None:
    connection = engine.connect()
    for text in ("COMMIT AND CHAIN", "ROLLBACK AND CHAIN"):
        with fails(errors.NO_ACTIVE_TRANSACTION):
            connection.execute(text)
    run(connection, "COMMIT AND NO CHAIN")
    assert not connection.in_transaction


@pytest.mark.parametrize("end", ["COMMIT", "commit", "switch", "with"])
@pytest.mark.parametrize("change", ["CREATE UNIQUE INDEX ON t (a)", "ALTER TABLE t ADD UNIQUE (a)"])
def test_a_commit_that_stands_says_so_though_its_job_failed(engine: Engine, change: str, end: str) -> None:
    """With autocommit off, too: who is told of a violation takes the transaction for rolled back."""
    one, two = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (id int)", "INSERT INTO t VALUES (1, 0)")
    one.autocommit = False
    run(one, "DROP TABLE u", "INSERT INTO t VALUES (2, 0)", change)
    with fails(errors.SCHEMA_CHANGE_FAILED, "the transaction was committed, but job", errors.UNIQUE_VIOLATION):
        match end:
            case "COMMIT":
                one.execute("COMMIT")
            case "commit":
                one.commit()
            case "switch":
                one.autocommit = True
            case "with":
                with one:
                    pass
    assert all_of(two) == [(1, 0), (2, 0)]
    one.rollback()
    one.autocommit = True
    with fails(errors.UNIQUE_VIOLATION):
        one.execute(change)


def test_chained_transactions(pair: tuple[Connection, Connection]) -> None:
    one, _ = pair
    begin(one, "REPEATABLE READ")
    run(one, "INSERT INTO t VALUES (3)", "COMMIT AND CHAIN")
    assert one.in_transaction
    assert value(one, "SHOW transaction_isolation") == "repeatable read"
    run(one, "DELETE FROM t", "ROLLBACK")
    assert value(one, "SELECT count(*) FROM t") == 3
