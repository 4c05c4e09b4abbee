"""Applying: one transaction where SQL allows it, several where not, and nothing at all where something is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import instar
from instar import errors
from instar.database import Result, Session
from instar.declarative import applying, dump, load, make_plan

BEFORE = "CREATE TABLE t (id int PRIMARY KEY, a int, b int); INSERT INTO t VALUES (1, 1, 1), (2, 2, 1)"
T = "CREATE TABLE t (id int PRIMARY KEY, a int, b int);"


@pytest.fixture
def session() -> Iterator[Session]:
    with instar.connect(":memory:", autocommit=True) as connection:
        for statement in BEFORE.split(";"):
            connection.execute(statement)
        yield connection.session


def applied(session: Session, text: str, **options: bool) -> list[str]:
    told: list[str] = []
    applying.apply(session, make_plan(session, *load(text)), told.append, **options)
    return told


def test_all_is_one_transaction_where_that_is_allowed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    execute = Session.execute

    def noted(self: Session, text: str) -> Result:
        executed.append(text)
        return execute(self, text)

    monkeypatch.setattr(Session, "execute", noted)
    applied(session, T + "CREATE TABLE u (x int); CREATE VIEW v AS SELECT a FROM t; CREATE INDEX i ON t (a)")
    assert executed.count("BEGIN") == executed.count("COMMIT") == 1


def test_a_key_that_is_still_to_be_built_is_committed_before_who_refers_to_it(session: Session) -> None:
    text = "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, b int); CREATE TABLE u (a int REFERENCES t (a));"
    told = applied(session, text)
    assert told[2] == "committing the 2 statements so far, which cannot be in one transaction with what comes next:"
    assert make_plan(session, *load(text)).steps == ()


def test_a_key_of_a_table_under_another_primary_key_is_still_to_be_built(session: Session) -> None:
    """What is planned upon the swap of ALTER PRIMARY KEY finds the rows, though nobody has copied them."""
    session.execute("CREATE TABLE u (t int REFERENCES t)")
    t, u = "t (id int NOT NULL UNIQUE, a int PRIMARY KEY, b int)", "u (t int REFERENCES t (id))"
    text = f"CREATE TABLE {t}; CREATE TABLE {u};"
    plan = make_plan(session, *load(text))
    unique = next(step for step in plan.steps if "UNIQUE" in step.statement)
    assert unique.takes_job
    applying.apply(session, plan, lambda told: None)
    assert make_plan(session, *load(text)).steps == ()


@pytest.mark.parametrize("text", [T.replace(", b int", ""), "", T + "CREATE SEQUENCE s"])
def test_what_destroys_is_refused_unless_it_is_allowed(session: Session, text: str) -> None:
    session.execute("CREATE SEQUENCE q")
    before = dump(session)
    with pytest.raises(errors.Error) as caught:
        applied(session, text)
    assert caught.value.sqlstate == "2BP01"
    assert dump(session) == before
    applied(session, text, allow_destructive=True)
    assert make_plan(session, *load(text)).steps == ()


def test_what_is_not_supported_is_refused_before_anything_is_done(session: Session) -> None:
    before = dump(session)
    with pytest.raises(instar.NotSupportedError) as caught:
        applied(session, "CREATE TABLE t (id bigint, a int, b int)", allow_destructive=True)
    assert caught.value.message == 'dropping the primary key of table "t" is not supported (nothing has been changed)'
    assert caught.value.detail == "ALTER TABLE t DROP CONSTRAINT t_pkey"
    assert dump(session) == before


CONSTRAINED = "CREATE TABLE p (id int PRIMARY KEY);" + T.replace("b int);", "b int, CONSTRAINT k {});")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CHECK (a > 0)", "CHECK (a > 1)"),
        ("UNIQUE (a)", "UNIQUE (b)"),
        ("FOREIGN KEY (a) REFERENCES p", "FOREIGN KEY (b) REFERENCES p"),
    ],
)
def test_a_changed_constraint_that_rows_violate_leaves_the_old_one(session: Session, old: str, new: str) -> None:
    applied(session, CONSTRAINED.format("CHECK (b > 0)"))
    session.execute("INSERT INTO p VALUES (1), (2)")
    applied(session, CONSTRAINED.format(old))
    session.execute("UPDATE t SET b = 77")
    before = dump(session)
    plan = make_plan(session, *load(CONSTRAINED.format(new)))
    assert len(plan.steps) == 1
    with pytest.raises(errors.Error) as caught:
        applying.apply(session, plan, lambda line: None)
    assert caught.value.sqlstate == "XXS01"
    assert dump(session) == before
    session.execute("INSERT INTO p VALUES (3)")
    session.execute("UPDATE t SET a = id + 1, b = id")
    applied(session, CONSTRAINED.format(new))
    assert make_plan(session, *load(CONSTRAINED.format(new))).steps == ()


def test_another_primary_key_is_one_statement(session: Session) -> None:
    """And one whose old column goes with it, as soon as nothing is found by it."""
    session.execute("UPDATE t SET b = id + 10")
    keyed = "CREATE TABLE t ({} a int, b bigint, c int DEFAULT 7, CONSTRAINT chosen PRIMARY KEY (b, c));"
    for text in (keyed.format("id int,"), keyed.format("")):
        applied(session, text, allow_destructive=True)
        assert make_plan(session, *load(text)).steps == ()
    assert list(session.execute("SELECT * FROM t ORDER BY b").rows) == [(1, 11, 7), (2, 12, 7)]


def test_a_constraint_is_replaced_while_columns_come_and_go(session: Session) -> None:
    applied(session, T.replace("b int);", "b int, CONSTRAINT k CHECK (b > 0), CONSTRAINT u UNIQUE (b, id));"))
    text = T.replace("b int);", "c int DEFAULT 1, CONSTRAINT k CHECK (c > 0), CONSTRAINT u UNIQUE (c, id));")
    applied(session, text, allow_destructive=True)
    assert make_plan(session, *load(text)).steps == ()


def test_what_the_rows_forbid_is_known_beforehand(session: Session) -> None:
    with pytest.raises(instar.IntegrityError) as caught:
        applied(session, T.replace("b int", "b int, c int NOT NULL"))
    assert caught.value.sqlstate == "23502"


def test_a_job_that_fails_says_what_stands(session: Session) -> None:
    with pytest.raises(errors.Error) as caught:
        applied(session, T.replace("a int", "a bigint") + "CREATE UNIQUE INDEX i ON t (b)")
    assert caught.value.sqlstate == "XXS01"
    assert caught.value.detail is not None
    assert caught.value.detail.splitlines()[-2:] == [
        "1 of 2 statements had been committed before.",
        "It was reverted: CREATE UNIQUE INDEX i ON t (b)",
    ]
    assert make_plan(session, *load(T.replace("a int", "a bigint"))).steps == ()
    # The index was taken back; what else there was in the transaction stands.
    assert make_plan(session, *load(T.replace("a int", "a bigint"))).steps == ()


def test_an_error_leaves_no_transaction_open(session: Session) -> None:
    plan = make_plan(session, *load(T.replace("a int", "a bigint") + "CREATE TABLE u (x int)"))
    # Somebody takes the name between the plan and its execution.
    session.execute("CREATE VIEW u AS SELECT 1 AS one")
    with pytest.raises(errors.Error) as caught:
        applying.apply(session, plan, lambda line: None)
    assert caught.value.sqlstate == "42P07"
    assert not session.in_transaction
    assert "a bigint" not in dump(session)


def test_cancelled_between_two_statements_leaves_nothing(session: Session) -> None:
    before = dump(session)

    def tell(line: str) -> None:
        raise errors.error(errors.QUERY_CANCELED, "canceling statement due to user request")

    plan = make_plan(session, *load(T + "CREATE TABLE u (x int); CREATE TABLE w (x int);"))
    with pytest.raises(errors.Error) as caught:
        applying.apply(session, plan, tell)
    assert caught.value.sqlstate == "57014"
    assert dump(session) == before


def test_the_session_is_shown_the_jobs_that_it_waits_for(session: Session) -> None:
    seen: list[str] = []
    session.on_wait = lambda job: seen.append(job.statement)
    applied(session, T + "CREATE INDEX i ON t (a)")
    assert seen == ["CREATE INDEX i ON t (a)"]
