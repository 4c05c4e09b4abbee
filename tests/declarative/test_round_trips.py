"""Dumps make what they were made of; applying one schema to a database of another, with rows, gives that schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import instar
from declarative.strategies import Spec, schemas, successors
from instar import errors
from instar.database import Session
from instar.declarative import applying, dump, load, make_plan
from instar.declarative.file import SchemaFile

# An example makes several databases, so there are fewer of them than in other tests. One that fails is shown as it was
# drawn, unless time is no matter: to make it small takes minutes, and the time limit would end the run with nothing.
THOROUGH = settings.get_current_profile_name() == "thorough"
bounded = settings(
    max_examples=settings().max_examples // (1 if THOROUGH else 2),
    phases=tuple(Phase) if THOROUGH else (Phase.explicit, Phase.reuse, Phase.generate),
)


@contextmanager
def database(statements: list[str]) -> Iterator[Session]:
    with instar.connect(":memory:", autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection.session


def made(spec: Spec) -> list[str]:
    """Statements that make the specification, if it can be made: names that one table generates may be another's."""
    try:
        load(";\n".join(spec.script()))
    except errors.Error as error:
        assume(error.sqlstate != "42P07")
        raise
    return spec.script()


def applied(session: Session, file: SchemaFile) -> list[str]:
    """The statements that were executed."""
    told: list[str] = []
    applying.apply(session, make_plan(session, *file), told.append, allow_destructive=True)
    return told


@pytest.mark.slow
@bounded
@given(schemas())
def test_a_dump_makes_what_it_was_made_of(spec: Spec) -> None:
    with database(made(spec)) as session:
        text = dump(session)
        file = load(text)
        assert make_plan(session, *file).steps == ()
        with database([]) as other:
            applied(other, file)
            assert dump(other) == text
            assert make_plan(other, *load(";\n".join(spec.script()))).steps == ()


@pytest.mark.slow
@bounded
@given(schemas(), st.data())
def test_a_database_with_rows_gets_another_schema(before: Spec, data: st.DataObject) -> None:
    after = data.draw(successors(before))
    with database(made(after)) as other:
        text = dump(other)
    with database([*made(before), *before.rows(5)]) as session:
        file = load(text)
        plan = make_plan(session, *file)
        assert [step for step in plan.steps if step.problem is not None] == []
        applied(session, file)
        assert dump(session) == text
        assert applied(session, file) == []
        assert list(session.execute("CHECK DATABASE").rows) == []
