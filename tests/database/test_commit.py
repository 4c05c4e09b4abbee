"""Transactions that cross schema changes (rules 11, 14, 15, 24, IEP-110): what they wrote under the schema before is
committed under the one after, or refused naming the change."""

from __future__ import annotations

import pytest

from instar import errors
from instar.dbapi import Connection
from instar.store.engine import Commit
from support.databases import Engine, fails, rows, run, value
from support.steps import hook_jobs

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]

# Changes that a transaction's writes survive, and what rows (1, 10, 'x') updated to a = 11 and (3, 30, 'z') inserted
# before the change are after it.
COMPATIBLE = {
    "ALTER TABLE t ADD COLUMN c int": [(1, 11, "x", None), (3, 30, "z", None)],
    "ALTER TABLE t ADD COLUMN c int DEFAULT 7": [(1, 11, "x", 7), (3, 30, "z", 7)],
    "ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 7": [(1, 11, "x", 7), (3, 30, "z", 7)],
    "ALTER TABLE t RENAME COLUMN a TO aa": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t RENAME TO t2": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t ALTER COLUMN a TYPE bigint": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t ALTER COLUMN id TYPE bigint": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t ALTER COLUMN b TYPE text": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t ALTER COLUMN a SET DEFAULT 5": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t ALTER COLUMN a DROP DEFAULT": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t ALTER COLUMN a DROP NOT NULL": [(1, 11, "x"), (3, 30, "z")],
    "CREATE INDEX ta ON t (a)": [(1, 11, "x"), (3, 30, "z")],
    "CREATE UNIQUE INDEX ta ON t (a DESC)": [(1, 11, "x"), (3, 30, "z")],
    "DROP INDEX tb": [(1, 11, "x"), (3, 30, "z")],
    "ALTER TABLE t ADD COLUMN c int DEFAULT 7, RENAME COLUMN a TO aa": None,
}
INCOMPATIBLE = {
    "ALTER TABLE t DROP COLUMN b": "drop column",
    "TRUNCATE t": "truncate",
    "DROP TABLE t": "drop table",
}


@pytest.fixture
def pair(engine: Engine) -> tuple[Connection, Connection]:
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1, b varchar(5))",
        "CREATE INDEX tb ON t (b)",
        "INSERT INTO t VALUES (1, 10, 'x'), (2, 20, 'y')",
    )
    return one, two


def write(connection: Connection, level: str) -> None:
    """One row updated, one inserted, one deleted."""
    run(
        connection,
        f"BEGIN ISOLATION LEVEL {level}",
        "UPDATE t SET a = a + 1 WHERE id = 1",
        "INSERT INTO t VALUES (3, 30, 'z')",
        "DELETE FROM t WHERE id = 2",
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", [change for change, wanted in COMPATIBLE.items() if wanted is not None])
def test_writes_cross_compatible_changes(pair: tuple[Connection, Connection], change: str, level: str) -> None:
    one, two = pair
    write(two, level)
    one.execute(change)
    two.execute("COMMIT")
    table = "t2" if change.endswith("TO t2") else "t"
    wanted = COMPATIBLE[change]
    assert rows(one, f"SELECT * FROM {table} ORDER BY id") == wanted
    assert [rows(one, f"SELECT * FROM {table} WHERE id = ?", key)[0] for key in (1, 3)] == wanted
    assert value(one, f"SELECT count(*) FROM {table} WHERE b >= ''") == 2
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", INCOMPATIBLE)
def test_writes_do_not_cross_incompatible_changes(pair: tuple[Connection, Connection], change: str, level: str) -> None:
    one, two = pair
    write(two, level)
    one.execute(change)
    with fails(errors.SERIALIZATION_FAILURE, '"t"', INCOMPATIBLE[change]):
        two.execute("COMMIT")
    assert not two.in_transaction
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("change", INCOMPATIBLE)
def test_read_committed_meets_an_incompatible_change_at_its_next_statement(
    pair: tuple[Connection, Connection], change: str
) -> None:
    """Rule 14: whatever the statement reads, the buffer is brought to its schema first."""
    one, two = pair
    write(two, "READ COMMITTED")
    two.execute("SAVEPOINT s")
    one.execute(change)
    with fails(errors.SERIALIZATION_FAILURE, '"t"', INCOMPATIBLE[change]):
        two.execute("SELECT 1")
    with fails(errors.IN_FAILED_TRANSACTION):
        two.execute("SELECT 1")
    two.execute("ROLLBACK")


@pytest.mark.parametrize("change", INCOMPATIBLE)
def test_readers_cross_every_change(pair: tuple[Connection, Connection], change: str) -> None:
    one, two = pair
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = rows(two, "SELECT * FROM t ORDER BY id")
    one.execute(change)
    assert rows(two, "SELECT * FROM t ORDER BY id") == before
    assert rows(two, "SELECT * FROM t WHERE id = 2") == before[1:]
    assert rows(two, "SELECT * FROM t WHERE b = 'y'") == before[1:]
    assert value(two, "SELECT sum(a) FROM t") == 30
    two.execute("COMMIT")


def test_a_read_committed_statement_sees_the_new_schema(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    write(two, "READ COMMITTED")
    one.execute("ALTER TABLE t ADD COLUMN c int DEFAULT 7")
    assert rows(two, "SELECT * FROM t ORDER BY id") == [(1, 11, "x", 7), (3, 30, "z", 7)]
    run(two, "UPDATE t SET c = 8 WHERE id = 3", "INSERT INTO t VALUES (4, 40, 'w', 9)")
    run(one, "ALTER TABLE t RENAME COLUMN a TO aa", "ALTER TABLE t ALTER COLUMN c TYPE bigint")
    run(two, "UPDATE t SET aa = 12, c = 5000000000 WHERE id = 1", "COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 12, "x", 5_000_000_000), (3, 30, "z", 8), (4, 40, "w", 9)]
    assert rows(one, "CHECK DATABASE") == []


def test_a_buffer_that_was_emptied_forgets_its_schema(pair: tuple[Connection, Connection]) -> None:
    """The row written next is meant under the schema of its own statement."""
    one, two = pair
    run(two, "BEGIN", "INSERT INTO t VALUES (3, 30, 'z')", "DELETE FROM t WHERE id = 3")
    one.execute("ALTER TABLE t ADD COLUMN c int DEFAULT 7")
    run(two, "INSERT INTO t VALUES (4, 40, 'w', 8)", "COMMIT")
    assert rows(one, "SELECT * FROM t WHERE id = 4") == [(4, 40, "w", 8)]


def test_rollback_to_restores_what_the_writes_meant(pair: tuple[Connection, Connection]) -> None:
    """Rule 14: rows buffered before the savepoint are meant under the old schema again, and cross once more."""
    one, two = pair
    run(two, "BEGIN", "UPDATE t SET a = 11 WHERE id = 1", "SAVEPOINT s")
    one.execute("ALTER TABLE t ADD COLUMN c int DEFAULT 7")
    run(two, "UPDATE t SET c = 8 WHERE id = 1", "INSERT INTO t VALUES (3, 30, 'z', 9)", "ROLLBACK TO s")
    assert rows(two, "SELECT * FROM t ORDER BY id") == [(1, 11, "x", 7), (2, 20, "y", 7)]
    one.execute("ALTER TABLE t ADD COLUMN d int DEFAULT 6")
    run(two, "ROLLBACK TO s", "COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 11, "x", 7, 6), (2, 20, "y", 7, 6)]


def test_rollback_to_before_an_incompatible_change(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    run(two, "BEGIN", "SAVEPOINT s", "UPDATE t SET a = 11 WHERE id = 1")
    one.execute("ALTER TABLE t DROP COLUMN b")
    with fails(errors.SERIALIZATION_FAILURE):
        two.execute("UPDATE t SET a = 12 WHERE id = 1")
    run(two, "ROLLBACK TO s", "UPDATE t SET a = 13 WHERE id = 1", "COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 13), (2, 20)]


def test_a_repeatable_read_transaction_keeps_its_schema(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    wanted = rows(two, "SELECT * FROM t ORDER BY id")
    columns = rows(two, "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 't'")
    for number in range(12):
        run(
            one, f"ALTER TABLE t ADD COLUMN c{number} int DEFAULT {number}", f"UPDATE t SET c{number} = -1 WHERE id = 1"
        )
    run(one, "ALTER TABLE t RENAME COLUMN a TO aa", "ALTER TABLE t ALTER COLUMN aa TYPE bigint", "ALTER TABLE t DROP b")
    run(
        one, "ALTER TABLE t RENAME TO other", "CREATE TABLE t (id text)", "UPDATE other SET aa = 99", "DROP TABLE other"
    )
    for _ in range(2):
        assert rows(two, "SELECT * FROM t ORDER BY id") == wanted
        assert [rows(two, "SELECT * FROM t WHERE id = ?", key)[0] for key in (1, 2)] == wanted
        assert rows(two, "SELECT a FROM t WHERE b = 'y'") == [(20,)]
        assert value(two, "SELECT sum(a) FROM t") == 30
    assert rows(two, "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 't'") == columns
    with fails(errors.UNDEFINED_COLUMN):
        two.execute("SELECT c1 FROM t")
    run(two, "ROLLBACK")
    assert rows(two, "SELECT * FROM t") == []


def test_a_column_of_the_same_name_is_another_column(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert rows(two, "SELECT b FROM t WHERE id = 1") == [("x",)]
    run(one, "ALTER TABLE t DROP COLUMN b", "ALTER TABLE t ADD COLUMN b int DEFAULT 5")
    assert rows(two, "SELECT b FROM t WHERE id = 1") == [("x",)]
    assert rows(one, "SELECT b FROM t ORDER BY id") == [(5,), (5,)]
    with fails(errors.SERIALIZATION_FAILURE, "drop column"):  # at once: it could not commit
        two.execute("UPDATE t SET a = 11 WHERE id = 1")
    two.execute("ROLLBACK")


def test_a_change_between_statement_and_commit_in_one_own_transaction(pair: tuple[Connection, Connection]) -> None:
    """Own DDL under REPEATABLE READ stands on the snapshot's schema: somebody else's change of the table wins."""
    one, two = pair
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "INSERT INTO t VALUES (3, 30, 'z')")
    one.execute("ALTER TABLE t ADD COLUMN c int")
    run(two, "ALTER TABLE t ADD COLUMN d int")
    with fails(errors.SERIALIZATION_FAILURE, '"t"'):
        two.execute("COMMIT")


def test_widening_under_a_buffered_key(pair: tuple[Connection, Connection]) -> None:
    """All integer types share one key encoding: rows buffered under int find their keys under bigint."""
    one, two = pair
    write(two, "READ COMMITTED")
    one.execute("ALTER TABLE t ALTER COLUMN id TYPE bigint")
    run(two, "INSERT INTO t VALUES (5000000000, 1, 'w')", "UPDATE t SET a = 31 WHERE id = 3", "COMMIT")
    assert rows(one, "SELECT id, a FROM t ORDER BY id") == [(1, 11), (3, 31), (5_000_000_000, 1)]
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", LEVELS)
def test_not_null_is_not_asked_of_rows_from_before_it_was_dropped(
    pair: tuple[Connection, Connection], level: str
) -> None:
    one, two = pair
    write(two, level)
    one.execute("ALTER TABLE t ALTER COLUMN a DROP NOT NULL")
    one.execute("INSERT INTO t VALUES (9, NULL)")
    if level != "READ COMMITTED":
        with fails(errors.NOT_NULL_VIOLATION):
            two.execute("INSERT INTO t VALUES (8, NULL)")
        two.execute("ROLLBACK")
    else:
        run(two, "INSERT INTO t VALUES (8, NULL)", "COMMIT")
        assert value(one, "SELECT count(*) FROM t") == 4


@pytest.mark.parametrize(
    ("mine", "others", "reported"),
    [
        ("ALTER TABLE t ADD COLUMN c int", "ALTER TABLE t ADD COLUMN d int", None),
        ("ALTER TABLE t ADD COLUMN c int", "ALTER TABLE t ADD COLUMN c int", "42701"),
        ("CREATE INDEX ta ON t (a)", "ALTER TABLE t DROP COLUMN b", None),
        ("CREATE INDEX tc ON t (b)", "ALTER TABLE t DROP COLUMN b", "42703"),
        ("CREATE TABLE IF NOT EXISTS n (id int)", "CREATE TABLE n (id int)", None),
        ("CREATE TABLE n (id int)", "CREATE TABLE n (id int)", "42P07"),
        ("CREATE OR REPLACE VIEW v AS SELECT id FROM t", "CREATE VIEW v AS SELECT id FROM t", None),
        ("DROP TABLE IF EXISTS t", "DROP TABLE t", None),
        ("DROP TABLE t", "DROP TABLE t", "42P01"),
        ("TRUNCATE t", "TRUNCATE t", None),
    ],
)
def test_a_schema_change_in_autocommit_that_meets_another_is_planned_again(
    engine: Engine, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, mine: str, others: str,
    reported: str | None,
) -> None:  # fmt: skip
    """As any statement in autocommit: on a new snapshot, unseen by the user."""
    one, two = pair
    store = engine._held.store
    commit = store.commit

    def beside(request: Commit) -> int:
        if request.bump_catalog:
            monkeypatch.setattr(store, "commit", commit)
            two.execute(others)
        return commit(request)

    monkeypatch.setattr(store, "commit", beside)
    if reported is None:
        one.execute(mine)
    else:
        with fails(reported):
            one.execute(mine)
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "others",
    ["INSERT INTO t VALUES (7, 70, 'z')", "UPDATE t SET a = 7 WHERE id = 1", "DELETE FROM t WHERE id = 1", None],
)
def test_truncate_takes_no_rows_away_that_a_snapshot_does_not_show(
    pair: tuple[Connection, Connection], others: str | None, level: str
) -> None:
    one, two = pair
    run(one, "CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t)")
    run(two, f"BEGIN ISOLATION LEVEL {level}", "SELECT 1", "SAVEPOINT a", "TRUNCATE t, child", "ROLLBACK TO a")
    run(two, "TRUNCATE t CASCADE", "INSERT INTO t VALUES (8, 80, 'w')")
    if others is not None:
        run(one, others)
    before = rows(one, "SELECT * FROM t ORDER BY id")
    if level == "READ COMMITTED" or others is None:
        run(two, "COMMIT")
        assert rows(one, "SELECT id FROM t") == [(8,)]
    else:
        with fails("40001", "could not truncate", f"(id)=({'7' if 'INSERT' in others else '1'})"):
            two.execute("COMMIT")
        assert rows(one, "SELECT * FROM t ORDER BY id") == before
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", LEVELS)
def test_truncate_in_autocommit_empties_the_table_as_it_is(
    engine: Engine, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    one, two = pair
    run(two, f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
    store = engine.database.store
    commit = store.commit

    def beside(request: Commit) -> int:
        if request.bump_catalog:
            monkeypatch.setattr(store, "commit", commit)
            one.execute("INSERT INTO t VALUES (7, 70, 'z')")
        return commit(request)

    monkeypatch.setattr(store, "commit", beside)
    run(two, "TRUNCATE t")
    assert rows(one, "SELECT * FROM t") == []


def test_truncate_beside_another_that_replaces_the_rows(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1", "TRUNCATE t")
    run(one, "TRUNCATE t")
    with fails("40001"):
        two.execute("COMMIT")


def test_what_is_done_again_gives_its_notices_once(
    pair: tuple[Connection, Connection], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    run(one, "CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t)", "CREATE VIEW v AS SELECT id FROM child")
    store = engine._held.store
    commit = store.commit
    met: list[Commit] = []

    def beside(request: Commit) -> int:
        if request.bump_catalog and len(met) < 2:
            met.append(request)
            monkeypatch.setattr(store, "commit", commit)
            two.execute("ALTER TABLE t ALTER COLUMN id SET DEFAULT 1")
            monkeypatch.setattr(store, "commit", beside)
        return commit(request)

    monkeypatch.setattr(store, "commit", beside)
    one.notices[:] = ["NOTICE:  of before"]
    one.execute("TRUNCATE t CASCADE")
    met.clear()
    one.execute("DROP TABLE IF EXISTS nosuch, t CASCADE")
    assert len(met) == 2
    assert one.notices == [
        "NOTICE:  of before",
        'NOTICE:  truncate cascades to table "child"',
        'NOTICE:  table "nosuch" does not exist, skipping',
        "NOTICE:  drop cascades to constraint child_t_fkey on table child",
    ]


# Constraints that came while the transaction was on its way: what it wrote is held to them at its commit (rule 16).
CONSTRAINTS = {
    "ALTER TABLE t ADD CONSTRAINT c CHECK (a < 30)": ("INSERT INTO t VALUES (3, 30, 'z')", "23514"),
    "ALTER TABLE t ADD CONSTRAINT c CHECK (a < 30) NOT VALID": ("UPDATE t SET a = 30 WHERE id = 1", "23514"),
    "ALTER TABLE t ALTER b SET NOT NULL": ("UPDATE t SET b = NULL WHERE id = 2", "23502"),
    "ALTER TABLE t ADD UNIQUE (b)": ("INSERT INTO t VALUES (3, 30, 'x')", "23505"),
    "ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p": ("INSERT INTO t VALUES (3, 30, 'z')", "40001"),
    "ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p NOT VALID": ("UPDATE t SET a = 30 WHERE id = 1", "23503"),
}


@pytest.fixture
def constrained(pair: tuple[Connection, Connection]) -> tuple[Connection, Connection]:
    run(pair[0], "CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p VALUES (10), (11), (20)")
    return pair


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", CONSTRAINTS)
def test_writes_from_before_a_constraint_are_held_to_it(
    constrained: tuple[Connection, Connection], change: str, level: str
) -> None:
    one, two = constrained
    statement, sqlstate = CONSTRAINTS[change]
    run(two, f"BEGIN ISOLATION LEVEL {level}", statement)
    one.execute(change)
    # A key, which COMMIT alone could judge, is told with the change that has brought it.
    named = [f"The change was: {change}"] if "FOREIGN KEY" in change or "UNIQUE" in change else []
    with fails(sqlstate, *named):
        two.execute("COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 10, "x"), (2, 20, "y")]
    assert rows(one, "CHECK DATABASE") == []


def test_a_key_that_was_there_before_is_told_without_a_change(constrained: tuple[Connection, Connection]) -> None:
    one, two = constrained
    one.execute("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p")
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "INSERT INTO t VALUES (3, 11, 'z')")
    run(one, "ALTER TABLE t ADD COLUMN c int", "DELETE FROM p WHERE id = 11")
    with fails("40001", "t_a_fkey") as failed:
        two.execute("COMMIT")
    assert "The change was" not in str(failed.error.detail)


@pytest.mark.parametrize("drop", ["ALTER b DROP NOT NULL", "ALTER b DROP NOT NULL, ADD CHECK (a > 0)"])
def test_a_not_null_that_took_a_job_can_be_dropped(pair: tuple[Connection, Connection], drop: str) -> None:
    one, two = pair
    run(one, "ALTER TABLE t ALTER b SET NOT NULL", f"ALTER TABLE t {drop}")
    assert rows(one, "SELECT is_nullable FROM information_schema.columns WHERE column_name = 'b'") == [("YES",)]
    run(two, "INSERT INTO t VALUES (3, 30, NULL)", "UPDATE t SET b = NULL WHERE id = 1")
    with fails("23502"):
        one.execute("ALTER TABLE t ALTER b SET NOT NULL")
    run(one, "DELETE FROM t WHERE b IS NULL", "ALTER TABLE t ALTER b SET NOT NULL")
    with fails("23502"):
        two.execute("UPDATE t SET b = NULL")


def test_a_not_null_on_its_way_is_not_dropped_in_vain(pair: tuple[Connection, Connection]) -> None:
    """Else the job would make the column NOT NULL after the statement that says otherwise."""
    one = pair[0]
    run(one, "BEGIN", "ALTER TABLE t ALTER b SET NOT NULL")
    with fails("55006"):
        one.execute("ALTER TABLE t ALTER b DROP NOT NULL")
    run(one, "ROLLBACK", "ALTER TABLE t ALTER b DROP NOT NULL", "UPDATE t SET b = NULL")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", CONSTRAINTS)
def test_writes_that_keep_to_a_constraint_cross_it(
    constrained: tuple[Connection, Connection], change: str, level: str
) -> None:
    one, two = constrained
    run(two, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET a = 11 WHERE id = 1", "INSERT INTO t VALUES (3, 20, 'z')")
    one.execute(change)
    two.execute("COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 11, "x"), (2, 20, "y"), (3, 20, "z")]
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_parent_deleted_before_the_foreign_key_came(constrained: tuple[Connection, Connection], level: str) -> None:
    """Rule 27: the key belongs to the parent's writers too."""
    one, two = constrained
    run(two, f"BEGIN ISOLATION LEVEL {level}", "DELETE FROM p WHERE id = 20")
    one.execute("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p")
    with fails(errors.SERIALIZATION_FAILURE, "The change was: ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p"):
        two.execute("COMMIT")
    with fails("23503"):
        two.execute("DELETE FROM p WHERE id = 20")
    two.execute("DELETE FROM p WHERE id = 11")
    assert rows(one, "CHECK DATABASE") == []


def test_a_row_that_violates_a_key_that_is_not_validated(constrained: tuple[Connection, Connection]) -> None:
    one, _two = constrained
    run(one, "DELETE FROM p WHERE id = 20", "ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p NOT VALID")
    run(one, "UPDATE t SET b = 'q' WHERE id = 2")
    with fails("23503"):
        one.execute("UPDATE t SET id = 9 WHERE id = 2")
    run(one, "UPDATE t SET id = 9, a = 10 WHERE id = 2", "ALTER TABLE t VALIDATE CONSTRAINT t_a_fkey")
    assert rows(one, "CHECK DATABASE") == []


def test_a_constraint_that_the_rows_violate_leaves_nothing(constrained: tuple[Connection, Connection]) -> None:
    one, _two = constrained
    before = rows(one, "SELECT * FROM instar.constraints"), rows(one, "SELECT name FROM instar.indexes")
    for change, sqlstate in (
        ("ALTER TABLE t ADD CHECK (a < 20)", "23514"),
        ("ALTER TABLE t ADD COLUMN c int DEFAULT 0 CHECK (c > 0)", "23514"),
        ("ALTER TABLE t ADD COLUMN c int DEFAULT 0 UNIQUE", "23505"),
        ("ALTER TABLE t ADD COLUMN c int DEFAULT 0 REFERENCES p", "23503"),
        ("ALTER TABLE t ADD COLUMN c int, ALTER a SET DEFAULT 5, ADD CHECK (a < 20), ADD UNIQUE (b)", "23514"),
        ("ALTER TABLE t ADD COLUMN c int, ADD UNIQUE (c), ALTER c SET NOT NULL, DROP CONSTRAINT t_pkey", "0A000"),
        ("ALTER TABLE t ADD COLUMN c int, ADD UNIQUE (c), ALTER c SET NOT NULL", "23502"),
        ("ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES p", "23503"),
        ("ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0), DROP CONSTRAINT k", "42704"),
        ("ALTER TABLE t ADD COLUMN c text DEFAULT 'x', ADD UNIQUE (c), DROP COLUMN a", "23505"),
    ):
        with fails(sqlstate):
            one.execute(change)
    assert (rows(one, "SELECT * FROM instar.constraints"), rows(one, "SELECT name FROM instar.indexes")) == before
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 10, "x"), (2, 20, "y")]
    run(one, "INSERT INTO t VALUES (3, -1, 'x')")
    assert rows(one, "CHECK DATABASE") == []


def test_several_statements_share_a_job(constrained: tuple[Connection, Connection]) -> None:
    one, two = constrained
    run(one, "BEGIN", "CREATE INDEX i ON t (a)", "ALTER TABLE t ADD CHECK (a > 0), ADD UNIQUE (b)", "COMMIT")
    assert rows(two, "SELECT statement, state FROM instar.jobs") == [
        ("CREATE INDEX i ON t (a); ALTER TABLE t ADD CHECK (a > 0), ADD UNIQUE (b)", "succeeded")
    ]
    run(one, "BEGIN", "INSERT INTO t VALUES (3, 12, 'z')", "CREATE INDEX j ON t (a)", "ALTER TABLE t ADD UNIQUE (a)")
    one.execute("ALTER TABLE t ADD CHECK (a < 20)")
    with fails(errors.SCHEMA_CHANGE_FAILED, "23514"):
        one.execute("COMMIT")
    assert rows(two, "SELECT name FROM instar.indexes WHERE table_name = 't' ORDER BY name") == [
        ("i",), ("t_b_key",), ("tb",)
    ]  # fmt: skip
    assert rows(two, "SELECT * FROM t WHERE id = 3") == [(3, 12, "z")]
    assert rows(two, "CHECK DATABASE") == []


def test_a_column_that_the_same_statement_adds_can_be_altered(constrained: tuple[Connection, Connection]) -> None:
    """Rows that are there have the default that the column came with (thesis §3.1), later ones the new one."""
    one, _two = constrained
    run(one, "ALTER TABLE t ADD COLUMN c int DEFAULT 1, ALTER c SET DEFAULT 2", "INSERT INTO t VALUES (3, 30, 'z')")
    run(one, "ALTER TABLE t ADD COLUMN d int DEFAULT 5 CHECK (d > 4), ALTER d SET DEFAULT 6")
    run(one, "INSERT INTO t (id, a) VALUES (4, 40)")
    assert rows(one, "SELECT id, c, d FROM t ORDER BY id") == [(1, 1, 5), (2, 1, 5), (3, 2, 5), (4, 2, 6)]
    assert rows(one, "CHECK DATABASE") == []


# --- another primary key ---------------------------------------------------------------------------------------------


@pytest.fixture
def alike(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[Connection, Connection, Connection]:
    """Rows of one commit that have the same value of what is to be the key; jobs run in the statement's call."""
    hook_jobs(monkeypatch, lambda step: None)
    one = engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL, a int, b int)", "CREATE INDEX ta ON t (a)")
    one.execute("INSERT INTO t VALUES (1, 10, 0, 0), (2, 10, 0, 0), (3, 30, 0, 0)")
    return one, engine.connect(), engine.connect()


REKEY = "ALTER TABLE t ALTER PRIMARY KEY (k)"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET a = 111 WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET id = 5 WHERE id = 1",
        "UPDATE t SET k = NULL WHERE id = 1",
        "UPDATE t SET k = 30 WHERE id = 1",
    ],
)
def test_a_write_lands_on_no_other_row_that_has_the_new_key(
    alike: tuple[Connection, Connection, Connection], statement: str, level: str
) -> None:
    one, two, three = alike
    one.execute("ALTER TABLE t ALTER k DROP NOT NULL")
    run(two, f"BEGIN ISOLATION LEVEL {level}", statement)
    three.execute("UPDATE t SET k = 99 WHERE id = 1")
    one.execute(REKEY)
    with fails("40001"):
        two.execute("COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY k") == [(2, 10, 0, 0), (3, 30, 0, 0), (1, 99, 0, 0)]
    assert rows(one, "CHECK DATABASE") == []


def test_a_row_that_had_no_new_key_when_it_was_read(alike: tuple[Connection, Connection, Connection]) -> None:
    one, two, three = alike
    run(one, "ALTER TABLE t ALTER k DROP NOT NULL", "UPDATE t SET k = NULL WHERE id = 1")
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "UPDATE t SET a = 111 WHERE id = 1")
    three.execute("UPDATE t SET k = 99 WHERE id = 1")
    one.execute(REKEY)
    with fails("40001"):
        two.execute("COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY k") == [(2, 10, 0, 0), (3, 30, 0, 0), (1, 99, 0, 0)]


def test_a_row_without_a_key_is_told_by_all_of_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    hook_jobs(monkeypatch, lambda step: None)
    one, two, three = engine.connect(), engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (k int, a float)", "INSERT INTO t VALUES (10, 0), (10, 1), (3, 'NaN')")
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "UPDATE t SET a = 111 WHERE a = 0")
    run(three, "BEGIN", "UPDATE t SET a = 5 WHERE k = 3")
    one.execute("UPDATE t SET k = 99 WHERE a = 0")
    one.execute("ALTER TABLE t ADD PRIMARY KEY (k)")
    with fails("40001"):
        two.execute("COMMIT")
    three.execute("COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY k") == [(3, 5.0), (10, 1.0), (99, 0.0)]
    assert rows(one, "CHECK DATABASE") == []


UNDER_LOCKS = {
    "before the swap": (["UPDATE t SET k = 99 WHERE id = 1", "UPDATE t SET k = 10 WHERE id = 3"], [REKEY]),
    "and the old key after it": (
        ["UPDATE t SET k = 99 WHERE id = 1", "UPDATE t SET k = 10 WHERE id = 3"],
        [REKEY, "UPDATE t SET id = 1 WHERE k = 10"],
    ),
    "between two swaps": (
        ["UPDATE t SET k = 12 WHERE id = 1"],
        [
            REKEY,
            "UPDATE t SET id = 9 WHERE k = 12",
            "UPDATE t SET id = 1 WHERE k = 30",
            "ALTER TABLE t ALTER PRIMARY KEY (id)",
        ],
    ),
}


@pytest.mark.parametrize("when", UNDER_LOCKS)
def test_under_locks_another_row_that_got_the_key_is_not_the_one(
    alike: tuple[Connection, Connection, Connection], when: str
) -> None:
    one, two, _ = alike
    run(one, "ALTER TABLE t ADD LOCK la COVERS (a)", "UPDATE t SET k = 20 WHERE id = 2")
    run(two, "BEGIN", "UPDATE t SET a = 111 WHERE id = 1")
    before, after = UNDER_LOCKS[when]
    run(one, *before, *after)
    with fails("40001"):
        two.execute("COMMIT")
    assert rows(one, "SELECT count(*) FROM t WHERE a = 111") == [(0,)]
    assert rows(one, "CHECK DATABASE") == []


def test_under_locks_what_no_key_stands_on_is_merged_across_the_swap(
    alike: tuple[Connection, Connection, Connection],
) -> None:
    one, two, three = alike
    run(one, "ALTER TABLE t ADD LOCK la COVERS (a), ADD LOCK lb COVERS (b)", "UPDATE t SET k = 20 WHERE id = 2")
    run(two, "BEGIN", "UPDATE t SET a = 111 WHERE id = 1")
    three.execute("UPDATE t SET b = 7 WHERE id = 1")
    one.execute(REKEY)
    three.execute("UPDATE t SET b = 8 WHERE id = 1")
    two.execute("COMMIT")
    assert rows(one, "SELECT * FROM t WHERE id = 1") == [(1, 10, 111, 8)]
    assert rows(one, "CHECK DATABASE") == []


# --- what was changed meanwhile is not judged ------------------------------------------------------------------------


@pytest.mark.parametrize("constraint", ["ADD CONSTRAINT c CHECK (a > 10)", "ALTER b SET NOT NULL"])
def test_a_row_that_was_changed_meanwhile_is_a_conflict_and_no_violation(
    pair: tuple[Connection, Connection], constraint: str
) -> None:
    """The statement's row violates the new constraint; the one that stands there now does not."""
    one, two = pair
    one.execute("UPDATE t SET b = NULL WHERE id = 1")
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "UPDATE t SET id = id WHERE id = 1")
    one.execute("UPDATE t SET a = 11, b = 'z' WHERE id = 1")
    one.execute("DELETE FROM t WHERE a <= 10")
    one.execute(f"ALTER TABLE t {constraint}")
    with fails("40001"):
        two.execute("COMMIT")


# --- constraints that do not hold on the state that a commit meets ---------------------------------------------------


@pytest.fixture
def family(engine: Engine) -> Connection:
    made = engine.connect()
    run(
        made,
        "CREATE TABLE p (id int PRIMARY KEY, code text UNIQUE)",
        "CREATE TABLE c (id int PRIMARY KEY, parent int REFERENCES p, code text REFERENCES p (code))",
        "INSERT INTO p VALUES (1, 'x'), (2, 'y')",
    )
    return made


def test_a_child_of_a_row_that_another_has_deleted(engine: Engine, family: Connection) -> None:
    two = engine.connect()
    for column, found, told in (("parent", "1", "(parent)=(1)"), ("code", "'y'", "(code)=(y)")):
        run(family, "BEGIN ISOLATION LEVEL REPEATABLE READ", f"INSERT INTO c (id, {column}) VALUES (1, {found})")
        run(two, f"DELETE FROM p WHERE {'id' if column == 'parent' else 'code'} = {found}")
        with fails(errors.SERIALIZATION_FAILURE, f'Key {told} is not present in table "p".'):
            run(family, "COMMIT")


def test_a_row_that_another_has_made_a_parent(engine: Engine, family: Connection) -> None:
    two = engine.connect()
    run(family, "BEGIN ISOLATION LEVEL REPEATABLE READ", "DELETE FROM p WHERE id = 1")
    run(two, "INSERT INTO c (id, parent) VALUES (1, 1)")
    with fails(errors.SERIALIZATION_FAILURE, 'Key (id)=(1) is still referenced from table "c".'):
        run(family, "COMMIT")


def test_two_rows_of_one_key(engine: Engine, family: Connection) -> None:
    two = engine.connect()
    run(family, "BEGIN ISOLATION LEVEL REPEATABLE READ", "INSERT INTO p VALUES (3, 'z')")
    run(two, "INSERT INTO p VALUES (4, 'z')")
    with fails(errors.SERIALIZATION_FAILURE, '"p_code_key" of table "p"', "(code)=(z)"):
        run(family, "COMMIT")
