"""Which versions of a table a statement cannot tell apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from instar.catalog.descriptors import Column, Index, IndexColumn, State, Step, StepKind, Table
from instar.schemachange.publishing import KEPT_STEPS
from instar.sql.binder import bind
from instar.sql.holding import Holding
from instar.sql.parser import parse_one
from instar.sql.statements import Dml, Query
from instar.types import BIGINT, INTEGER, TEXT
from support.world import World


@pytest.fixture
def world() -> World:
    made = World()
    made.create_table("t", (("id", BIGINT), ("a", INTEGER), ("b", TEXT)), indexes=[("t_a", (2,), False)])
    made.create_table("u", (("id", BIGINT), ("x", INTEGER)))
    return made


def table_of(world: World, name: str = "t") -> Table:
    found = world.catalog().lookup(None, name)
    assert isinstance(found, Table)
    return found


def holding(world: World, sql: str) -> Holding:
    statement = parse_one(sql)
    assert isinstance(statement, Query | Dml)
    return Holding(bind(statement, world.catalog()), statement.expression)


def after(table: Table, kind: StepKind = StepKind.ADD_COLUMN, **fields: Any) -> Table:
    steps = (*table.steps, Step(version=table.version + 1, kind=kind))
    return msgspec.structs.replace(table, version=table.version + 1, steps=steps, **fields)


def with_column(table: Table, name: str) -> Table:
    return after(table, columns=(*table.columns, Column(id=9, name=name, type=INTEGER)))


@pytest.mark.parametrize(
    ("sql", "column", "cannot_tell"),
    [
        ("select a from t", "c", True),
        ("select a from t where id = 1", "c", True),
        ("select count(*) from t", "c", True),
        ("select * from t", "c", False),
        ("select t.* from t", "c", False),
        ("select x from t, u", "x", False),
        ("select x from t, u", "y", True),
        ("select a as c from t group by c", "c", False),
        ('select a as "C" from t order by "C"', "c", True),
        ("select id from u where exists (select 1 from t where x = a)", "x", False),
        ("select 1 from t natural join u", "c", False),
        ("select q from t as r (q)", "c", False),
        ("select 1 from t join u using (id)", "c", True),
        ("insert into t (id, a) values (1, 1)", "c", True),
        ("insert into t values (1, 1)", "c", False),
        ("update t set a = 1 where id = 1", "c", True),
        ("delete from t where id = 1", "c", True),
    ],
)
def test_a_column_that_comes(world: World, sql: str, column: str, cannot_tell: bool) -> None:
    table = table_of(world)
    for one, other in ((table, with_column(table, column)), (with_column(table, column), table)):
        assert holding(world, sql).cannot_tell(one, other) is cannot_tell


@pytest.mark.parametrize(
    ("sql", "ordinal", "cannot_tell"),
    [
        ("select a from t", 2, True),
        ("select id from t", 1, False),  # the index
        ("select b from t", 2, False),
        ("update t set b = 'x' where id = 1", 2, False),
        ("insert into t (b, id) values ('x', 1)", 2, False),
        ("select a from t where b is null", 2, False),
    ],
)
def test_a_column_that_changes(world: World, sql: str, ordinal: int, cannot_tell: bool) -> None:
    table = table_of(world)
    columns = list(table.columns)
    columns[ordinal] = msgspec.structs.replace(columns[ordinal], nullable=False)
    assert holding(world, sql).cannot_tell(table, after(table, columns=tuple(columns))) is cannot_tell


def test_what_stands_elsewhere_is_another(world: World) -> None:
    table = table_of(world)
    first, second, third = table.columns
    moved = after(table, columns=(first, Column(id=9, name="c", type=INTEGER), second, third))
    assert not holding(world, "select b from t").cannot_tell(table, moved)


def test_what_every_statement_looks_at(world: World) -> None:
    table, known = table_of(world), holding(world, "select id from t")
    index = Index(id=90, name="i", columns=(IndexColumn(3),), rowset=91, state=State.WRITE_ONLY)
    shown = msgspec.structs.replace(index, state=State.PUBLIC)
    assert known.cannot_tell(table, after(table, StepKind.ELEMENT_STATE, indexes=(*table.indexes, index)))
    assert not known.cannot_tell(table, after(table, StepKind.ELEMENT_STATE, indexes=(*table.indexes, shown)))
    assert not known.cannot_tell(table, after(table, rowset=99))
    assert not known.cannot_tell(table, after(table, name="other"))
    assert not known.cannot_tell(table, after(table, StepKind.SET_MIGRATION, migration="read"))


@pytest.mark.parametrize("kind", [StepKind.UNDROP_COLUMN, StepKind.CHANGE_TYPE, StepKind.COMPACT, StepKind.TRUNCATE])
def test_steps_that_may_change_other_columns(world: World, kind: StepKind) -> None:
    table = table_of(world)
    assert not holding(world, "select id from t").cannot_tell(table, after(table, kind))


def test_steps_that_are_forgotten(world: World) -> None:
    table, known = table_of(world), holding(world, "select id from t")
    newer = table
    for _ in range(KEPT_STEPS + 1):
        newer = after(newer)
        newer = msgspec.structs.replace(newer, steps=newer.steps[-KEPT_STEPS:])
    assert not known.cannot_tell(table, newer)
    assert not known.cannot_tell(newer, table)
    assert known.cannot_tell(after(table), newer) == (newer.steps[0].version <= after(table).version)
