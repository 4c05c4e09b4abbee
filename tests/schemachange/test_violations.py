"""Violation flags: what a change that gives way looks at, whoever works on it and whenever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import instar
from instar.database.database import Database
from instar.dbapi import Connection
from instar.schemachange.job_records import JobState
from instar.store.engine import Commit, PreconditionFailed, Store
from instar.store.records import Latest, latest_key
from support.databases import Engine, fails, rows, run
from support.servers import Servers
from support.slow import Slow
from support.steps import hook_jobs

YIELDING = "WITH (violation = 'abort change')"
ADD_CHECK = f"ALTER TABLE t ADD CONSTRAINT small CHECK (a < 100) {YIELDING}"
VIOLATE = "UPDATE t SET a = 100 WHERE id = 2"


def test_a_flag_outlives_the_process_that_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Database, "run_job", lambda *_: None)
        patched.setattr(Database, "ensure_worker", lambda *_: None)
        first = Engine(str(tmp_path / "db"))
        connection = first.connect(schema_change_mode="async")
        run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
        run(connection, ADD_CHECK, VIOLATE)
        first.close()
    second = Engine(str(tmp_path / "db"))
    run(second.connect(), "UPDATE t SET a = 2 WHERE id = 2")  # which repairs it, but the change has lost already
    (job,) = second.database.jobs.all()
    second.database.run_job(job.id)
    (job,) = second.database.jobs.all()
    assert job.problem is not None
    assert (job.state, job.problem.sqlstate) == (JobState.FAILED, "23514")
    assert "(id)=(2)" in (job.problem.detail or "")
    assert rows(second.connect(), "CHECK DATABASE") == []
    with second.database.store.read() as reader:
        assert list(reader.scan(latest_key(Latest.VIOLATION), latest_key(Latest.VIOLATION, b"\xff"))) == []
    second.close()


def test_the_first_violation_is_the_one_that_is_named(slow: Slow) -> None:
    run(slow.connection, ADD_CHECK, VIOLATE, "UPDATE t SET a = 100 WHERE id = 3")
    (job,) = slow.finish()
    assert job.problem is not None
    assert job.problem.detail == (
        'Row (id)=(2) of table "t" was committed while check constraint "small" was pending, which aborts the change.'
    )


def test_what_fails_for_a_row_does_not_hold_for_it(slow: Slow) -> None:
    """As it would if the row were written once the constraint is there."""
    run(slow.connection, f"ALTER TABLE t ADD CONSTRAINT ratio CHECK (1 / (a - 50) < 9) {YIELDING}")
    run(slow.connection, "UPDATE t SET a = 50 WHERE id = 3")
    (job,) = slow.finish()
    assert job.problem is not None
    assert "(id)=(3)" in (job.problem.detail or "")


def test_one_violation_takes_all_of_a_statement_back(slow: Slow) -> None:
    run(
        slow.connection,
        f"ALTER TABLE t ADD COLUMN c int DEFAULT 7, ADD UNIQUE (a) {YIELDING}, ALTER b SET NOT NULL, "
        f"ADD FOREIGN KEY (a) REFERENCES p {YIELDING}",
    )
    with fails("23502"):  # this one was not asked to give way
        run(slow.connection, "UPDATE t SET b = NULL WHERE id = 1")
    run(slow.connection, "INSERT INTO t VALUES (4, 2, 4)")
    (job,) = slow.finish()
    assert job.problem is not None
    assert job.problem.sqlstate == "23505"
    assert rows(slow.connection, "SELECT * FROM t WHERE id = 4") == [(4, 2, 4, None)]


def test_rows_merged_of_two_changes_under_two_locks_are_judged_as_they_become(slow: Slow) -> None:
    """Neither change violates the constraint alone."""
    run(slow.connection, "ALTER TABLE t ADD LOCK l COVERS (b)")
    slow.finish()
    run(slow.connection, f"ALTER TABLE t ADD CONSTRAINT less CHECK (a + b < 20) {YIELDING}")
    one, two = slow.engine.connect(), slow.engine.connect()
    for connection in (one, two):
        run(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1 FROM t")
    run(one, "UPDATE t SET a = 15 WHERE id = 1", "COMMIT")
    run(two, "UPDATE t SET b = 15 WHERE id = 1", "COMMIT")
    assert rows(one, "SELECT a, b FROM t WHERE id = 1") == [(15, 15)]
    *_, job = slow.finish()
    assert job.problem is not None
    assert job.problem.sqlstate == "23514"


KINDS = {
    "check": ("ALTER TABLE t ADD CHECK (a < 100)", "UPDATE t SET a = 100 WHERE id = 2", "23514"),
    "unique": ("ALTER TABLE t ADD UNIQUE (a)", "UPDATE t SET a = 1 WHERE id = 2", "23505"),
    "foreign key": ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p", "DELETE FROM p WHERE id = 2", "23503"),
}


def outcome(connection: Connection, *statements: str) -> str:
    """The SQLSTATE that they fail with; empty: none."""
    try:
        run(connection, *statements)
    except instar.Error as failed:
        return failed.sqlstate
    return ""


@pytest.mark.parametrize("later", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_another_server_under_a_lease(monkeypatch: pytest.MonkeyPatch, kind: str, later: int) -> None:
    """A server with a schema of its own violates the constraint at each moment of the change, and commits so many
    moments `later`. Either it stands, and the change is taken back, or the change does, and it is refused."""
    change, violates, sqlstate = KINDS[kind]
    met = []
    for place in range(20):
        servers = Servers()
        one, other = servers.server(), servers.server()
        hook_jobs(monkeypatch, lambda step: None)
        run(one, "CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2)")
        run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
        run(other, "UPDATE t SET a = a", "UPDATE p SET id = id")
        seen: list[str] = []
        committed: list[str] = []

        def meanwhile(
            step: str,
            seen: list[str] = seen,
            committed: list[str] = committed,
            other: Connection = other,
            place: int = place,
        ) -> None:
            if len(seen) == place:
                run(other, "BEGIN", violates)
            if len(seen) == place + later:
                committed.append(outcome(other, "COMMIT"))
            seen.append(step)

        hook_jobs(monkeypatch, meanwhile)
        changed = outcome(one, f"{change} {YIELDING}")
        if len(seen) <= place:
            break
        if not committed:
            committed.append(outcome(other, "COMMIT"))
        met.append((changed, committed[0]))
        assert rows(one, "CHECK DATABASE") == []
    wins, loses = (sqlstate, ""), [("", sqlstate), ("", "40001")]
    assert met[0] == wins
    assert all(pair == wins or pair in loses for pair in met)
    assert all((pair == wins) == (place + later < len(met)) for place, pair in enumerate(met))


@pytest.mark.parametrize(
    ("add", "write", "repair"),
    [
        ("ADD FOREIGN KEY (a) REFERENCES p", "INSERT INTO t VALUES (9, 9)", "INSERT INTO p VALUES (9)"),
        ("ADD UNIQUE (a)", "INSERT INTO t VALUES (9, 2)", "DELETE FROM t WHERE id = 2"),
    ],
)
def test_what_others_repair_before_the_commit_stands_violates_nothing(
    monkeypatch: pytest.MonkeyPatch, add: str, write: str, repair: str
) -> None:
    """At each moment of the change a commit is refused, the state is repaired, and the commit is derived again."""
    met = 0
    for place in range(20):
        hook_jobs(monkeypatch, lambda step: None)
        engine = Engine(":memory:")
        one, other, third = engine.connect(), engine.connect(), engine.connect()
        run(one, "CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2)")
        run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
        store, commit = engine.database.store, engine.database.store.commit
        seen: list[str] = []
        refused: list[PreconditionFailed] = []

        def repaired(
            request: Commit,
            commit: Callable[[Commit], int] = commit,
            third: Connection = third,
            refused: list[PreconditionFailed] = refused,
        ) -> int:
            try:
                return commit(request)
            except PreconditionFailed as found:
                if not refused:
                    refused.append(found)
                    run(third, repair)
                raise

        def meanwhile(
            step: str, seen: list[str] = seen, other: Connection = other, place: int = place, store: Store = store
        ) -> None:
            seen.append(step)
            if len(seen) == place + 1:
                with monkeypatch.context() as patched:
                    patched.setattr(store, "commit", repaired)
                    outcome(other, write)

        hook_jobs(monkeypatch, meanwhile)
        failed = outcome(one, f"ALTER TABLE t {add} {YIELDING}")
        met += bool(refused)
        assert not (refused and failed), (place, seen)
        assert rows(one, "CHECK DATABASE") == []
        if place >= len(seen):
            break
    assert met
