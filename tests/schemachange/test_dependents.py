"""Statements that come between the stages of a job: what they use stays, what they change is not half of a change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import instar
from instar.dbapi import Connection
from instar.schemachange.job_records import JobState
from support.databases import fails, rows, run
from support.servers import Servers
from support.slow import Slow
from support.steps import hook_jobs


@pytest.mark.parametrize(
    ("user", "left"),
    [
        ("CREATE INDEX t_b ON t (b)", "SELECT b FROM t WHERE b = 2"),
        ("CREATE VIEW v AS SELECT b FROM t", "SELECT b FROM v WHERE b = 2"),
        ("ALTER TABLE t ADD CONSTRAINT other CHECK (b > 0)", "SELECT b FROM t WHERE b = 2"),
        ("ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES p", "SELECT b FROM t WHERE b = 2"),
    ],
)
def test_a_column_that_is_used_by_now_is_not_dropped(slow: Slow, user: str, left: str) -> None:
    """Rule 25: else the index, the view or the constraint would be left without its column."""
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0), DROP COLUMN b", user)
    first, *others = slow.finish()
    assert (first.state, first.problem and first.problem.sqlstate) == (JobState.FAILED, "2BP01")
    assert all(job.state is JobState.SUCCEEDED for job in others)
    assert rows(slow.connection, left) == [(2,)]
    run(slow.connection, "INSERT INTO t VALUES (4, -4, 1, 'no check is left')")


def test_a_key_that_is_referred_to_by_now_is_not_dropped(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE p ADD CONSTRAINT k CHECK (u > 0), DROP CONSTRAINT p_u")
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p (u)")
    first, second = slow.finish()
    assert (first.problem and first.problem.sqlstate, second.state) == ("2BP01", JobState.SUCCEEDED)
    with fails("23503"):
        run(slow.connection, "INSERT INTO t VALUES (4, 77, 1, '')")


def test_a_column_that_a_view_shows_by_now_keeps_its_type(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0), ALTER COLUMN a TYPE bigint")
    run(slow.connection, "CREATE VIEW v AS SELECT a FROM t")
    (job,) = slow.finish()
    assert (job.state, job.problem and job.problem.sqlstate) == (JobState.FAILED, "0A000")
    with fails("22003"):
        run(slow.connection, "INSERT INTO t VALUES (4, 5000000000, 1, '')")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER COLUMN a TYPE text USING 'y' || a, ALTER COLUMN b TYPE text USING 'y' || b",
        "ADD CONSTRAINT k CHECK (a > 0), ALTER COLUMN a TYPE bigint",
        "ADD CONSTRAINT k CHECK (b > 0), DROP COLUMN a",
    ],
)
@pytest.mark.parametrize("view", ["VIEW v AS SELECT b, a FROM t", "OR REPLACE VIEW u AS SELECT a AS x FROM t"])
def test_a_view_of_what_its_own_transaction_is_to_change_is_refused(slow: Slow, change: str, view: str) -> None:
    """Else the job would fail at COMMIT, though nobody else is in its way."""
    run(slow.connection, "CREATE VIEW u AS SELECT 1 AS x FROM t", "BEGIN", f"ALTER TABLE t {change}", "SAVEPOINT s")
    with fails("55006", 'column "a" of table "t" is being dropped or changed by this transaction'):
        run(slow.connection, f"CREATE {view}")
    run(slow.connection, "ROLLBACK TO s", "CREATE VIEW v AS SELECT id, s FROM t", "COMMIT")
    (job,) = slow.finish()
    assert job.state is JobState.SUCCEEDED


def test_a_column_that_another_job_brings_is_waited_for(slow: Slow) -> None:
    """Else an index would stand on a column that is taken back."""
    run(slow.connection, "ALTER TABLE t ADD COLUMN x integer DEFAULT 1 UNIQUE", "CREATE INDEX t_x ON t (x)")
    first, second = slow.finish()
    assert first.problem is not None
    assert first.problem.sqlstate == "23505"
    assert second.problem is not None
    assert second.problem.sqlstate == "42703"


@pytest.mark.parametrize(
    "meanwhile",
    [
        "ALTER TABLE t ALTER COLUMN b SET DEFAULT 7",
        "ALTER TABLE t ALTER COLUMN b TYPE bigint",
        "ALTER TABLE t DROP COLUMN b",
    ],
)
def test_a_column_that_was_changed_meanwhile_fails_all_of_the_job(slow: Slow, meanwhile: str) -> None:
    """What the job had begun does not stay write-only without a job."""
    run(
        slow.connection,
        "ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0), ADD CONSTRAINT u UNIQUE (a), ALTER COLUMN b SET DEFAULT 5, "
        "ALTER COLUMN b TYPE bigint",
        meanwhile,
    )
    (job,) = slow.finish()
    assert (job.state, job.problem and job.problem.sqlstate) == (JobState.FAILED, "55000")
    run(slow.connection, "INSERT INTO t (id, a) VALUES (4, -1), (5, -1)", "DROP TABLE t")


@pytest.mark.parametrize(
    ("sql", "drop"),
    [
        ("ADD CONSTRAINT k CHECK (a > 0)", "ALTER TABLE t DROP CONSTRAINT k"),
        ("ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p", "ALTER TABLE t DROP CONSTRAINT f"),
        ("ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p NOT VALID", "ALTER TABLE t DROP CONSTRAINT f"),
        ("ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p", "DROP TABLE p CASCADE"),
        ("ALTER COLUMN a SET NOT NULL", "ALTER TABLE t ALTER COLUMN a DROP NOT NULL"),
        ("ALTER COLUMN a SET NOT NULL", "ALTER TABLE t DROP COLUMN a CASCADE"),
    ],
)
def test_what_is_being_added_is_dropped_when_it_is_there(slow: Slow, sql: str, drop: str) -> None:
    run(slow.connection, f"ALTER TABLE t {sql}, ADD CONSTRAINT other CHECK (b > 0)", drop)
    before, after = slow.engine.database.jobs.all()
    assert {before.after, after.after} == {None, min(before.id, after.id)}
    assert [job.state for job in slow.finish()] == [JobState.SUCCEEDED, JobState.SUCCEEDED]
    if "COLUMN a CASCADE" not in drop:
        run(slow.connection, "INSERT INTO t VALUES (4, NULL, 1, ''), (5, -5, 1, '')")
    with fails("23514", "other"):
        run(slow.connection, "INSERT INTO t (id, b) VALUES (6, -1)")


@pytest.mark.parametrize(("own", "hint"), [(False, "Wait for the job"), (True, "end the transaction first")])
def test_what_is_refused_for_a_change_under_way_is_told_what_helps(slow: Slow, own: bool, hint: str) -> None:
    """A change of the transaction itself has no job yet that could be waited for."""
    add = "ALTER TABLE t ADD CONSTRAINT k CHECK (b > 0)"
    run(slow.connection, *(["BEGIN", add] if own else [add, "BEGIN"]), "SAVEPOINT s")
    with fails("55006", '"k" is not complete') as failed:
        run(slow.connection, "ALTER TABLE t DROP COLUMN b")
    assert hint in str(failed.error.hint)
    assert ("job, or cancel it" in str(failed.error.hint)) is not own
    run(slow.connection, "ROLLBACK TO s", "COMMIT", "ALTER TABLE t DROP COLUMN b")
    assert [job.state for job in slow.finish()] == [JobState.SUCCEEDED] * 2


def test_drop_not_null_takes_back_what_a_job_has_validated(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    slow.finish()
    run(slow.connection, "ALTER TABLE t ALTER COLUMN a DROP NOT NULL", "INSERT INTO t VALUES (4, NULL, 1, '')")
    run(slow.connection, "ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    assert slow.finish()[-1].state is JobState.FAILED
    run(slow.connection, "DELETE FROM t WHERE id = 4", "ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    assert slow.finish()[-1].state is JobState.SUCCEEDED
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT k CHECK (b > 0), ALTER COLUMN a DROP NOT NULL")
    with fails("23502"):
        run(slow.connection, "INSERT INTO t VALUES (4, NULL, 1, '')")
    slow.finish()
    run(slow.connection, "INSERT INTO t VALUES (4, NULL, 1, '')")


def test_a_foreign_key_that_is_not_write_only_yet_cannot_be_validated(slow: Slow) -> None:
    """VALIDATE would say that it has done what nobody has done."""
    run(slow.connection, "INSERT INTO t VALUES (4, 77, 1, '')", "CREATE INDEX t_a ON t (a)")
    slow.finish()
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p NOT VALID")
    run(slow.connection, "ALTER TABLE t VALIDATE CONSTRAINT f")
    *_, added, validated = slow.finish()
    assert added.state is JobState.SUCCEEDED
    assert validated.problem is not None
    assert validated.problem.sqlstate == "23503"


def test_a_second_validation_does_not_take_the_first_one_back(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0) NOT VALID")
    run(slow.connection, *["ALTER TABLE t VALIDATE CONSTRAINT k"] * 2)
    first, second = slow.engine.database.jobs.all()
    assert second.after == first.id
    assert [job.state.value for job in slow.finish()] == ["succeeded", "succeeded"]
    run(slow.connection, "DROP TABLE t")


def test_a_second_validation_in_a_transaction_cannot_wait(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0) NOT VALID")
    run(slow.connection, "ALTER TABLE t VALIDATE CONSTRAINT k", "BEGIN")
    with fails("55006", "is being validated"):
        run(slow.connection, "ALTER TABLE t VALIDATE CONSTRAINT k")
    run(slow.connection, "ROLLBACK", "BEGIN", "ALTER TABLE t ADD CONSTRAINT j CHECK (b > 0) NOT VALID")
    run(slow.connection, *["ALTER TABLE t VALIDATE CONSTRAINT j"] * 2, "COMMIT")
    assert [job.state for job in slow.finish()] == [JobState.SUCCEEDED, JobState.SUCCEEDED]
    with fails("23514", "j"):
        run(slow.connection, "INSERT INTO t VALUES (4, 4, -4, '')")


def test_a_statement_that_has_waited_says_what_it_said(slow: Slow) -> None:
    """Its literals and comments are what they were."""
    run(slow.connection, "ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    run(slow.connection, "ALTER TABLE t ALTER COLUMN a SET NOT NULL, -- why\n ADD CONSTRAINT k CHECK (s <> 'p  q');")
    assert [job.state for job in slow.finish()] == [JobState.SUCCEEDED, JobState.SUCCEEDED]
    run(slow.connection, "INSERT INTO t VALUES (4, 4, 4, 'p q')")
    with fails("23514", "k"):
        run(slow.connection, "INSERT INTO t VALUES (5, 5, 5, 'p  q')")


USERS = [
    "CREATE VIEW v AS SELECT d FROM t",
    "CREATE INDEX other ON t (d)",
    "ALTER TABLE t ADD CHECK (d > 0)",
    "ALTER TABLE t ADD FOREIGN KEY (d) REFERENCES t",
    "CREATE TABLE c (d int REFERENCES t (u))",
    "ALTER TABLE w ALTER x SET DEFAULT nextval('t_d_seq')",
]


def drop_under_a_lease(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[str, Connection], None]) -> Connection:
    """ALTER TABLE t DROP COLUMN d, DROP COLUMN u, which takes three stages; the last two cannot be taken back."""
    servers = Servers()
    one, other = servers.server(), servers.server()
    hook_jobs(monkeypatch, lambda step: None)
    run(one, "CREATE TABLE t (id int PRIMARY KEY, d serial, u int UNIQUE)", "CREATE INDEX i ON t (d)")
    run(one, "CREATE TABLE w (x bigint)", "INSERT INTO t VALUES (1, 1, 1)")
    hook_jobs(monkeypatch, lambda step: meanwhile(step, other))
    run(one, "SET schema_change_mode = async", "ALTER TABLE t DROP COLUMN d, DROP COLUMN u")
    return one


@pytest.mark.parametrize("user", USERS)
def test_what_a_job_is_bound_to_drop_gets_no_new_user(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    """Else the job would fail, and be tried again, for ever."""
    refused = []

    def use(step: str, other: Connection) -> None:
        if step == "stage 3":
            with pytest.raises(instar.Error) as caught:
                run(other, user)
            refused.append(caught.value.sqlstate)

    one = drop_under_a_lease(monkeypatch, use)
    assert rows(one, "SELECT state, stage, stages FROM instar.jobs ORDER BY id DESC LIMIT 1") == [("succeeded", 3, 3)]
    assert refused in (["55006"], ["42830"])  # the unique index that a key would refer to is not public any more
    assert rows(one, "SELECT * FROM t") == [(1,)]


@pytest.mark.parametrize("user", [*USERS[:2], USERS[-1]])
def test_a_job_fails_before_it_is_bound_if_something_uses_what_it_drops(
    monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    users = [user]

    def use(step: str, other: Connection) -> None:
        if step == "stage 2" and users:  # of this job, not of the index's own
            run(other, "SET schema_change_mode = async", users.pop())

    one = drop_under_a_lease(monkeypatch, use)
    ((state, reason),) = rows(one, "SELECT state, reason FROM instar.jobs WHERE statement LIKE '%DROP COLUMN%'")
    assert state == "failed"
    assert ("depends on sequence t_d_seq" if "nextval" in user else "depends on column d of table t") in reason
    assert rows(one, "SELECT * FROM t") == [(1, 1, 1)]
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("user", [USERS[0], USERS[-1]])
def test_a_user_that_is_committed_after_the_job_was_bound(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    refused = []

    def use(step: str, other: Connection) -> None:
        if step == "stage 2":
            run(other, "BEGIN", user)
        elif step == "stage 3":
            with pytest.raises(instar.Error) as caught:
                run(other, "COMMIT")
            refused.append(caught.value.sqlstate)

    one = drop_under_a_lease(monkeypatch, use)
    assert refused == ["40001"]
    assert rows(one, "SELECT state FROM instar.jobs ORDER BY id DESC LIMIT 1") == [("succeeded",)]
