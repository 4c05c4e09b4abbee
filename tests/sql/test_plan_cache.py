"""The plan cache: valid by identity of descriptors, one form per classes of parameters, bounded; and the lean forms."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from instar import errors
from instar.catalog.descriptors import Index, IndexColumn, State, Table
from instar.sql.analytic import Analytic
from instar.sql.binder import bind
from instar.sql.functions import Context
from instar.sql.integrity import Rules
from instar.sql.parser import parse_one
from instar.sql.plan_cache import PlanCache, Prepared, hints_of
from instar.sql.point import FALLBACK
from instar.sql.statements import Dml, Query
from instar.types import BIGINT, DATE, INTEGER, NUMERIC, TEXT, Kind, Type
from sql.trees import context, fill, write
from support.world import World

LOOKUP = "select b, d, id from t where id = $1"


@pytest.fixture
def world() -> World:
    made = World()
    table = made.create_table("t", (("id", BIGINT), ("a", INTEGER), ("b", TEXT), ("d", DATE)))
    fill(made, table, [(number, number, f"b{number}", number or None) for number in range(10)])
    made.create_table("other")
    return made


def prepare(world: World, sql: str, *parameters: object) -> Prepared:
    statement = parse_one(sql)
    assert isinstance(statement, Query | Dml)
    catalog = world.catalog()
    bound = bind(statement, catalog, hints_of(parameters))
    return Prepared(statement, bound, catalog, world.layouts, Rules(catalog, world.layouts), Analytic().run)


def table_of(world: World, name: str = "t") -> Table:
    found = world.catalog().lookup(None, name)
    assert isinstance(found, Table)
    return found


def test_a_plan_holds_as_long_as_its_descriptors_do(world: World) -> None:
    cache = PlanCache()
    prepared = prepare(world, LOOKUP, 1)
    cache.add(LOOKUP, (1,), world.catalog(), prepared)
    assert cache.find(LOOKUP, (5,), world.catalog()) is prepared
    world.alter(table_of(world, "other"), name="elsewhere")
    assert cache.find(LOOKUP, (5,), world.catalog()) is prepared
    world.alter(table_of(world), name="renamed")
    assert cache.find(LOOKUP, (5,), world.catalog()) is None


def test_what_only_reads_holds_while_readers_cannot_tell_the_versions_apart(world: World) -> None:
    sql = "select id from t where a = $1"
    change = "update t set b = 'x' where id = $1"
    cache = PlanCache()
    reads, writes = prepare(world, sql, 1), prepare(world, change, 1)
    cache.add(sql, (1,), world.catalog(), reads)
    cache.add(change, (1,), world.catalog(), writes)
    before = world.catalog()
    a = table_of(world).columns[1].id
    index = Index(id=90, name="i", columns=(IndexColumn(a),), rowset=91, state=State.DELETE_ONLY)
    world.alter(table_of(world), indexes=(index,))
    assert cache.find(sql, (5,), world.catalog()) is reads
    assert cache.find(change, (5,), world.catalog()) is None
    world.alter(table_of(world), indexes=(msgspec.structs.replace(index, state=State.WRITE_ONLY),))
    assert cache.find(sql, (5,), world.catalog()) is reads
    assert cache.find(sql, (5,), before) is reads  # for an older snapshot too
    world.alter(table_of(world), indexes=(msgspec.structs.replace(index, state=State.PUBLIC),))
    assert cache.find(sql, (5,), world.catalog()) is None
    again = prepare(world, sql, 1)
    cache.add(sql, (1,), world.catalog(), again)
    world.alter(table_of(world), columns=table_of(world).columns[:2])
    assert cache.find(sql, (5,), world.catalog()) is again
    world.alter(table_of(world), columns=table_of(world).columns[:1])
    assert cache.find(sql, (5,), world.catalog()) is None
    assert cache.statement(sql) == parse_one(sql)  # it is not parsed again


def test_forms_by_class_of_parameter(world: World) -> None:
    cache, sql = PlanCache(), "select $1"
    as_int, as_text = prepare(world, sql, 1), prepare(world, sql, "x")
    cache.add(sql, (1,), world.catalog(), as_int)
    assert cache.find(sql, ("x",), world.catalog()) is None
    cache.add(sql, ("x",), world.catalog(), as_text)
    assert cache.find(sql, (2,), world.catalog()) is as_int
    assert cache.find(sql, ("y",), world.catalog()) is as_text
    assert cache.find(sql, (None,), world.catalog()) is None
    assert cache.find(sql, (2**70,), world.catalog()) is None
    assert (as_int.columns[0][1], as_text.columns[0][1]) == (BIGINT, TEXT)
    assert hints_of((2**70, None, Decimal(1))) == (NUMERIC, None, NUMERIC)


def test_null_is_of_the_type_that_its_place_decides_and_of_no_other_values(world: World) -> None:
    catalog, cache = world.catalog(), PlanCache()
    for text, value, served in (
        ("select id from t where b = $1", "x", True),
        ("insert into t (id, a) values (1, $1), (2, $1)", 1, True),
        ("update t set a = $1 where id = 1", 1, True),
        ("select coalesce(a, $1) from t", 1, False),
        ("select $1", 1, False),
        ("select a + $1 from t", 1.5, False),
        ("select abs($1)", 1, False),
    ):
        cache.add(text, [value], catalog, prepare(world, text, value))
        assert (cache.find(text, [None], catalog) is not None) is served, text
        assert cache.find(text, [value], catalog) is not None


def test_it_is_bounded_and_keeps_what_is_used(world: World) -> None:
    cache = PlanCache(capacity=3)
    prepared = prepare(world, "select 1")
    for number in range(3):
        cache.add(f"q{number}", (), world.catalog(), prepared)
    for number in range(3, 20):
        cache.find("q0", (), world.catalog())
        cache.add(f"q{number}", (), world.catalog(), prepared)
        assert len(cache) == 3
    assert cache.find("q0", (), world.catalog()) is prepared


def looked_up(cache: PlanCache, world: World, parameters: tuple[object, ...]) -> Any:
    """The columns and rows that the lean form of LOOKUP gives, or FALLBACK."""
    entry = cache.entry(LOOKUP)
    if entry is None or entry.fast is None:
        return FALLBACK
    look_up, columns, _ = entry.fast
    rows = look_up(world.store, parameters, None)
    return FALLBACK if rows is FALLBACK else (columns, rows)


def test_the_fast_lookup_gives_python_objects(world: World) -> None:
    import datetime

    cache = PlanCache()
    assert looked_up(cache, world, (1,)) is FALLBACK
    prepared = prepare(world, LOOKUP, 1)
    cache.add(LOOKUP, (1,), world.catalog(), prepared)
    assert looked_up(cache, world, (3,)) == (prepared.columns, [("b3", datetime.date(1970, 1, 4), 3)])
    assert looked_up(cache, world, (0,))[1] == [("b0", None, 0)]
    assert looked_up(cache, world, (99,))[1] == []
    for odd in ((True,), ("3",), (None,), (2**63,), (), (1, 2)):
        assert looked_up(cache, world, odd) is FALLBACK


def test_the_fast_lookup_falls_back_where_it_must(world: World) -> None:
    cache = PlanCache()
    prepared = prepare(world, LOOKUP, 1)
    cache.add(LOOKUP, (1,), world.catalog(), prepared)
    write(world, "delete from t where id = 3")
    assert looked_up(cache, world, (3,)) in (FALLBACK, (prepared.columns, []))
    world.alter(table_of(world, "other"), name="elsewhere")
    assert looked_up(cache, world, (4,)) is FALLBACK  # another catalog version
    assert cache.find(LOOKUP, (4,), world.catalog()) is not None  # which leaves the plan as it is
    assert looked_up(cache, world, (4,))[1][0][0] == "b4"


@pytest.mark.parametrize(
    ("sql", "lean"),
    [
        ("select b from t where id = 1", True),
        ("select b from t where id = $1 + 1", False),
        ("select b || 'x' from t where id = $1", False),
        ("select b from t where id = $1 and a = 1", False),
        ("select b from t where id in ($1, 2)", False),
    ],
)
def test_what_is_a_point_lookup(world: World, sql: str, lean: bool) -> None:
    assert (prepare(world, sql, *((1,) if "$1" in sql else ())).lookup is not None) is lean


def test_point_writes(world: World) -> None:
    functions = Context(now=0)
    update = prepare(world, "update t set a = a + $2 where id = $1", 1, 1).write
    assert update is not None
    assert (update.operation, update.changed) == ("update", frozenset({1}))
    frame = update.frame((4, 10), functions, context(world))
    assert update.image((4, 4, "b4", None), frame) == (4, 14, "b4", None)
    assert update.key(frame) is not None
    assert update.key(update.frame((None, 1), functions, context(world))) is None
    insert = prepare(world, "insert into t values ($1, 1, 'x')", 1).write
    assert insert is not None
    image = insert.image(None, insert.frame((77,), functions, context(world)))
    assert image == (77, 1, "x", None)
    assert insert.duplicate(image).detail == "Key (id)=(77) already exists."
    with pytest.raises(errors.IntegrityError):
        insert.image(None, insert.frame((None,), functions, context(world)))
    delete = prepare(world, "delete from t where id = $1", 1).write
    assert delete is not None
    assert delete.image((1, 1, "b", None), delete.frame((1,), functions, context(world))) is None


def test_what_is_no_point_write(world: World) -> None:
    for sql in (
        "update t set id = 5 where id = 1",
        "update t set a = 5 where a = 1",
        "insert into t values (1), (2)",
        "insert into t values (1) on conflict (id) do update set id = 5",
        "delete from t",
    ):
        assert prepare(world, sql).write is None


def test_parameters_are_converted_and_counted(world: World) -> None:
    prepared = prepare(world, "insert into t values ($1, $2, $3, $4)", 1, 1, "x", "2024-01-01")
    assert prepared.convert((1, 2, "x", "1970-01-03"), "UTC") == (1, 2, "x", 2)
    with pytest.raises(errors.Error) as caught:
        prepared.convert((1,), "UTC")
    assert caught.value.sqlstate == "08P01"
    assert prepared.bound.parameters[1] == Type(Kind.INTEGER)
