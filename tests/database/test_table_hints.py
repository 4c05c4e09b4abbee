"""Isolation hints of tables and the combinations that are not sound by themselves (MD-MVCC §3.5.2, table 2)."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from instar import errors
from instar.dbapi import Connection
from instar.store.engine import Store
from instar.store.lock_modes import Mode
from support.databases import Engine, fails, rows, run, value
from support.waiting import give_up, later, waiting

SESSIONS = {
    "SI": ["REPEATABLE READ", "SERIALIZABLE"],
    "RCSI": ["READ COMMITTED"],
    "other": ["READ COMMITTED LOCK", "READ UNCOMMITTED"],
}
HINTS = {
    "SI": ["SNAPSHOT"],
    "RCSI": ["READCOMMITTED"],
    "other": ["READCOMMITTEDLOCK", "READUNCOMMITTED", "NOLOCK"],
}
# As the paper has it: X is a problem.
TABLE_2 = """
         SI  RCSI  other
SI       -   X     X
RCSI     X   -     X
other    X   X     -
"""
CELLS = [
    (session, hint, level, name)
    for session, hint in product(SESSIONS, HINTS)
    for level, name in product(SESSIONS[session], HINTS[hint])
]
READ = "SELECT * FROM t WITH ({hint}) WHERE id = 1"


def is_problem(session: str, hint: str) -> bool:
    columns, *lines = [line.split() for line in TABLE_2.strip().splitlines()]
    cells = {line[0]: dict(zip(columns, line[1:], strict=True)) for line in lines}
    return cells[session][hint] == "X"


def begin(connection: Connection, level: str) -> None:
    connection.execute(f"BEGIN ISOLATION LEVEL {level}")


# What a hint does.


@pytest.mark.parametrize("level", [level for levels in SESSIONS.values() for level in levels])
def test_a_hint_has_its_table_read_at_its_level(sessions: list[Connection], level: str) -> None:
    """Of a value that another has changed twice since the transaction's first statement."""
    one, two, *_ = sessions
    begin(one, level)
    run(one, "SELECT * FROM t", "SELECT a FROM q WITH (SNAPSHOT)")
    run(two, "UPDATE t SET a = 5 WHERE id = 1")
    seen = {
        hint: value(one, f"SELECT a FROM t WITH ({hint}) WHERE id = 1") for hints in HINTS.values() for hint in hints
    }
    newest = {"READCOMMITTED": 5, "READCOMMITTEDLOCK": 5, "READUNCOMMITTED": 5, "NOLOCK": 5}
    assert seen == {"SNAPSHOT": 0, **newest}
    plain = 0 if level in SESSIONS["SI"] else 5
    assert value(one, "SELECT a FROM t WHERE id = 1") == plain
    assert rows(one, "SELECT x.a, y.a FROM t x JOIN t AS y WITH (SNAPSHOT) USING (id) WHERE id = 1") == [(plain, 0)]
    assert rows(one, "SELECT sum(x.a), sum(y.a) FROM t x, t y WITH (NOLOCK) WHERE x.id = y.id") == [(plain, 5)]
    run(one, "COMMIT")
    assert value(one, "SELECT a FROM t WITH (SNAPSHOT) WHERE id = 1") == 5


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "READ UNCOMMITTED"])
def test_own_writes_are_seen_under_every_hint(sessions: list[Connection], level: str) -> None:
    one, *_ = sessions
    begin(one, level)
    run(one, "UPDATE t SET a = 8 WHERE id = 1", "INSERT INTO t VALUES (9, 8, 9, 'x')")
    for hint in (name for names in HINTS.values() for name in names):
        assert rows(one, f"SELECT id FROM t WITH ({hint}) WHERE a = 8 ORDER BY id") == [(1,), (9,)]
    run(one, "ROLLBACK")


@pytest.mark.parametrize("level", [None, "READ COMMITTED", "SERIALIZABLE", "READ UNCOMMITTED"])
def test_readcommittedlock_waits_for_writers_and_nolock_does_not(
    sessions: list[Connection], threads: ThreadPoolExecutor, level: str | None
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id = 1")
    first = [f"BEGIN ISOLATION LEVEL {level}"] if level else []
    give_up(two, *first, READ.format(hint="READCOMMITTEDLOCK"))
    run(two, *first)
    assert rows(two, READ.format(hint="NOLOCK")) == [(1, 0, 1, "x")]
    waits = later(threads, two, READ.format(hint="READCOMMITTEDLOCK"))
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == [(1, 5, 1, "x")]
    run(two, "COMMIT")


def test_a_locking_hint_takes_sch_s_for_the_statement(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    held = (
        "SELECT DISTINCT table_name, mode FROM instar.transaction_locks, t WITH (NOLOCK), "
        "q WITH (SNAPSHOT) RIGHT JOIN c ON true WHERE mode LIKE 'SCH%'"
    )
    run(one, "INSERT INTO c VALUES (1, 1)")
    begin(one, "READ COMMITTED")
    assert rows(one, held) == [("t", "SCH-S")]
    assert rows(two, "SELECT * FROM instar.transaction_locks") == []
    run(one, "INSERT INTO q SELECT a FROM t WITH (NOLOCK)")
    assert rows(two, "SELECT * FROM instar.transaction_locks WHERE mode LIKE 'SCH%'") == []
    run(one, "ROLLBACK")
    begin(one, "READ UNCOMMITTED")
    assert sorted(rows(one, held)) == [("c", "SCH-S"), ("t", "SCH-S")]
    run(one, "COMMIT")
    run(two, "BEGIN ISOLATION LEVEL READ UNCOMMITTED", "ALTER TABLE t ADD COLUMN n int")
    give_up(one, READ.format(hint="NOLOCK"))
    assert rows(one, READ.format(hint="SNAPSHOT")) == [(1, 0, 1, "x")]
    run(two, "COMMIT")


def test_hints_are_for_subqueries_and_dml_too(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    begin(one, "REPEATABLE READ")
    run(one, "SELECT * FROM q")
    run(two, "UPDATE t SET a = 5 WHERE id = 1")
    assert value(one, "SELECT (SELECT max(a) FROM t WITH (NOLOCK))") == 5
    run(one, "INSERT INTO q SELECT a FROM t WITH (READCOMMITTED) WHERE id = 1")
    run(one, "UPDATE q SET a = q.a + t.a FROM t WITH (READUNCOMMITTED) WHERE t.id = 1", "COMMIT")
    assert rows(two, "SELECT * FROM q") == [(10,)]


def test_plans_show_hints(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    (first, *_), *_ = rows(connection, "EXPLAIN SELECT * FROM t AS x WITH (NOLOCK) WHERE id = 1")
    plan = "\n".join(line for (line,) in rows(connection, "EXPLAIN SELECT * FROM t AS x WITH (NOLOCK) WHERE id = 1"))
    assert "Lookup t x (read uncommitted) by" in plan, first


# Where there is none.


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT * FROM t WITH (TABLOCK)", "the table hint TABLOCK"),
        ("SELECT * FROM t WITH (HOLDLOCK)", "the table hint HOLDLOCK"),
        ("SELECT * FROM t WITH (NOLOCK, READPAST)", "more than one table hint is not supported"),
        ("SELECT * FROM (SELECT 1) AS s WITH (NOLOCK)", "what is not a table"),
        ("SELECT * FROM generate_series(1, 2) AS s WITH (NOLOCK)", "what is not a table"),
        ("SELECT * FROM w WITH (NOLOCK)", "a view"),
        ("SELECT * FROM instar.jobs WITH (NOLOCK)", "a view"),
        ("WITH s AS (SELECT 1) SELECT * FROM s WITH (NOLOCK)", "a WITH query"),
        ("UPDATE t WITH (NOLOCK) SET a = 1", "what is written to"),
        ("DELETE FROM t WITH (NOLOCK)", "what is written to"),
        ("CREATE VIEW x AS SELECT * FROM t WITH (NOLOCK)", "in a view"),
        ("CREATE TABLE x AS SELECT * FROM t WITH (NOLOCK)", "a table hint in CREATE TABLE AS"),
        ("CREATE TABLE x AS SELECT * FROM t FOR UPDATE", "a row lock in CREATE TABLE AS"),
        ("SELECT * FROM t WITH (NOLOCK) FOR UPDATE", "FOR UPDATE"),
        ("SELECT * FROM t WITH (NOLOCK) AS OF SYSTEM TIME '-1 us'", "AS OF SYSTEM TIME"),
    ],
)
def test_what_is_not_supported(engine: Engine, statement: str, words: str) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE VIEW w AS SELECT * FROM t")
    with fails(errors.FEATURE_NOT_SUPPORTED, words):
        run(connection, statement)


@pytest.mark.parametrize(
    "statement", ["SELECT * FROM t WITH ()", "SELECT * FROM t WITH (NOLOCK", "SELECT * FROM t WITH NOLOCK"]
)
def test_what_is_no_hint(engine: Engine, statement: str) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    with fails(errors.SYNTAX_ERROR):
        run(connection, statement)


def test_a_hint_is_not_for_a_table_that_the_transaction_has_changed(sessions: list[Connection]) -> None:
    one, *_ = sessions
    run(one, "BEGIN", "ALTER TABLE t ADD COLUMN n int")
    with fails(errors.FEATURE_NOT_SUPPORTED, 'table "t"'):
        run(one, "SELECT * FROM t WITH (NOLOCK)")
    run(one, "ROLLBACK")


# Table 2.


@pytest.mark.parametrize(("session", "hint", "level", "name"), CELLS)
def test_table_2_after_a_change(sessions: list[Connection], session: str, hint: str, level: str, name: str) -> None:
    """The table is changed after the transaction has its snapshots. Only a snapshot that is kept can be of another
    version then: each statement takes the others anew, when it is compiled."""
    one, two, *_ = sessions
    begin(one, level)
    run(one, "SELECT * FROM q", "SELECT * FROM q WITH (SNAPSHOT)")
    run(two, "ALTER TABLE t ADD COLUMN n int DEFAULT 3")
    if "SI" in (session, hint) and is_problem(session, hint):
        change = "The change was: ALTER TABLE t ADD COLUMN n int DEFAULT 3"
        with fails(errors.SERIALIZATION_FAILURE, '"t" was changed by a concurrent add column', change) as failed:
            run(one, READ.format(hint=name))
        older, newer = map(int, re.findall(r"version (\d+)", failed.error.detail or ""))
        assert newer == older + 1
        run(one, "ROLLBACK")
        begin(one, level)  # which is the way out
        assert rows(one, READ.format(hint=name)) == [(1, 0, 1, "x", 3)]
    else:
        old = session == "SI"
        assert rows(one, READ.format(hint=name)) == [(1, 0, 1, "x") if old else (1, 0, 1, "x", 3)]
    run(one, "COMMIT")


@pytest.mark.parametrize(("session", "hint", "level", "name"), CELLS)
def test_table_2_without_a_change(sessions: list[Connection], session: str, hint: str, level: str, name: str) -> None:
    """A change of another table, and of rows, is no problem."""
    one, two, *_ = sessions
    begin(one, level)
    run(one, "SELECT * FROM q", "SELECT * FROM q WITH (SNAPSHOT)")
    run(two, "ALTER TABLE c ADD COLUMN n int", "UPDATE t SET a = 5 WHERE id = 1")
    expected = 0 if hint == "SI" else 5
    assert rows(one, READ.format(hint=name)) == [(1, expected, 1, "x")]
    run(one, "COMMIT")


@pytest.mark.parametrize(
    ("level", "hint"),
    [
        ("READ COMMITTED", "WITH (NOLOCK)"),
        ("READ COMMITTED", "WITH (READCOMMITTEDLOCK)"),
        ("READ UNCOMMITTED", ""),
        ("READ COMMITTED LOCK", ""),
        ("READ UNCOMMITTED", "WITH (READCOMMITTEDLOCK)"),
    ],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_a_statement_with_a_snapshot_of_its_own_is_compiled_again(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch, level: str, hint: str, explicit: bool
) -> None:
    """The change falls between the statement's snapshot and its SCH-S: nobody sees anything of it."""
    one, two, *_ = sessions
    run(one, f"SET default_transaction_isolation = '{level}'")
    engine = type(one.database.store)
    real = engine.lock
    changes = ["ALTER TABLE t ADD COLUMN n int DEFAULT 3"]

    def lock(store: Store, owner: bytes, wanted: list[tuple[bytes, Mode]]) -> None:
        while changes:
            run(two, changes.pop())
        real(store, owner, wanted)

    monkeypatch.setattr(engine, "lock", lock)
    run(one, "BEGIN") if explicit else None
    assert rows(one, f"SELECT * FROM t {hint} WHERE id = 1") == [(1, 0, 1, "x", 3)]
    assert changes == []
    run(one, "COMMIT") if explicit else None


def test_under_a_kept_snapshot_the_same_is_an_error(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, *_ = sessions
    engine = type(one.database.store)
    real = engine.lock
    changes = ["ALTER TABLE t DROP COLUMN a"]

    def lock(store: Store, owner: bytes, wanted: list[tuple[bytes, Mode]]) -> None:
        while changes:
            run(two, changes.pop())
        real(store, owner, wanted)

    monkeypatch.setattr(engine, "lock", lock)
    begin(one, "REPEATABLE READ")
    with fails(errors.SERIALIZATION_FAILURE, '"t"', "drop column"):
        run(one, READ.format(hint="NOLOCK"))
    run(one, "ROLLBACK")
    assert rows(two, "SELECT * FROM instar.transaction_locks") == []


def test_a_stage_of_a_job_is_a_change_too(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    begin(one, "REPEATABLE READ")
    run(one, "SELECT * FROM q")
    run(two, "CREATE INDEX i ON t (a)")
    with fails(
        errors.SERIALIZATION_FAILURE, '"t" was changed by a concurrent schema change', "CREATE INDEX i ON t (a)"
    ):
        run(one, READ.format(hint="NOLOCK"))
    run(one, "ROLLBACK")


@pytest.mark.parametrize("name", ["NOLOCK", "READCOMMITTEDLOCK", "READCOMMITTED"])
def test_a_table_that_is_gone(sessions: list[Connection], name: str) -> None:
    one, two, *_ = sessions
    begin(one, "SERIALIZABLE")
    run(one, "SELECT * FROM t")
    run(two, "DROP TABLE c")
    with fails(errors.SERIALIZATION_FAILURE, '"c" was changed by a concurrent drop'):
        run(one, f"SELECT * FROM c WITH ({name})")
    run(one, "ROLLBACK")
