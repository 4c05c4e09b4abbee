"""Generated columns in schema files: what is dumped makes them again, and what cannot be changed is said beforehand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import instar
from instar.database import Session
from instar.declarative import dump, load, make_plan
from instar.declarative.applying import apply

MADE = """CREATE TABLE t (
    g bigint GENERATED ALWAYS AS (("End"::bigint * '2'::bigint)) STORED NOT NULL,
    "End" integer,
    d text GENERATED ALWAYS AS ('x'::text) STORED
);
"""


@pytest.fixture
def session() -> Iterator[Session]:
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute(MADE)
        connection.execute('INSERT INTO t ("End") VALUES (1), (2)')
        yield connection.session


def steps(session: Session, text: str) -> list[str]:
    return [step.statement for step in make_plan(session, *load(text)).steps]


def applied(session: Session, text: str) -> None:
    apply(session, make_plan(session, *load(text)), lambda _: None, allow_destructive=True)
    assert steps(session, text) == []
    assert list(session.execute("CHECK DATABASE").rows) == []


def test_a_dump_makes_it_again(session: Session) -> None:
    text = dump(session)
    assert "GENERATED ALWAYS AS (" in text
    assert steps(session, text) == []
    with instar.connect(":memory:", autocommit=True) as other:
        applied(other.session, text)
        assert dump(other.session) == text
        other.execute('INSERT INTO t ("End") VALUES (3)')
        assert other.execute("SELECT g, d FROM t").fetchall() == [(6, "x")]


def test_it_may_be_written_otherwise(session: Session) -> None:
    assert steps(session, MADE.replace("""("End"::bigint * '2'::bigint)""", '"End"::int8 * 2')) == []


def test_it_comes_with_what_it_reads_and_goes_before_it(session: Session) -> None:
    more = MADE.replace('"End" integer', '"End" integer, h int GENERATED ALWAYS AS (n + "End") STORED, n int')
    assert steps(session, more) == [
        "ALTER TABLE t ADD COLUMN n integer",
        'ALTER TABLE t ADD COLUMN h integer GENERATED ALWAYS AS ((n + "End")) STORED',
    ]
    applied(session, more)
    assert steps(session, MADE) == ["ALTER TABLE t DROP COLUMN h", "ALTER TABLE t DROP COLUMN n"]
    applied(session, MADE)


def test_it_becomes_a_plain_column_with_a_default(session: Session) -> None:
    plain = MADE.replace("GENERATED ALWAYS AS ('x'::text) STORED", "DEFAULT 'y'")
    assert steps(session, plain) == [
        "ALTER TABLE t ALTER COLUMN d DROP EXPRESSION",
        "ALTER TABLE t ALTER COLUMN d SET DEFAULT 'y'::text",
    ]
    applied(session, plain)
    assert list(session.execute("SELECT d FROM t").rows) == [("x",), ("x",)]


@pytest.mark.parametrize(
    ("old", "new"),
    [("'x'::text", "'z'"), ('"End" integer', '"End" integer GENERATED ALWAYS AS (3) STORED')],
)
def test_another_expression_is_no_change_that_can_be_made(session: Session, old: str, new: str) -> None:
    text = MADE.replace(old, new)
    if '"End" integer' in old:
        text = text.replace("""("End"::bigint * '2'::bigint)""", "2")
    plan = make_plan(session, *load(text))
    problems = [step.problem.sqlstate for step in plan.problems if step.problem is not None]
    assert set(problems) == {"0A000"}
    before = dump(session)
    with pytest.raises(instar.NotSupportedError, match="SET EXPRESSION"):
        apply(session, plan, lambda _: None)
    assert dump(session) == before
