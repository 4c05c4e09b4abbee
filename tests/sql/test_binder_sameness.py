"""Subqueries that are written alike are one expression to GROUP BY, DISTINCT and ORDER BY, as in PostgreSQL."""

from __future__ import annotations

import pytest

from instar import errors
from instar.sql.planner import Engines
from instar.types import BIGINT, INTEGER
from sql.trees import fill, query
from support.databases import Engine, fails, rows, run
from support.world import World

ENGINES: tuple[Engines, ...] = ("executor", "analytic")

SUBQUERIES = (
    "(select max(x) from u where u.k = t.k)",
    "coalesce((select max(x) from u where u.k = t.k), (select min(id) from u))",
    "(select max(x) from (select x from u where k = t.k union all select t.k) y (x))",
    "exists (select 1 from u where u.k = t.k)",
    "(not exists (select 1 from u join t s on s.id = u.id where u.k = t.k))",
    "(t.k in (select u.k from u where u.x > t.k))",
    "(t.k not in (with w as (select u.k from u where u.x > 5) select k from w))",
    "(t.k > all (select x from u where u.k = t.k))",
    "(select v from (values (1, t.k), (2, 0)) l (v, w) where w = t.k)",
)


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    t = made.create_table("t", (("id", BIGINT), ("k", INTEGER)))
    u = made.create_table("u", (("id", BIGINT), ("k", INTEGER), ("x", INTEGER)))
    fill(made, t, [(1, 1), (2, 1), (3, 2), (4, 3), (5, None), (6, 2)])
    fill(made, u, [(1, 1, 10), (2, 1, 20), (3, 2, 5), (4, 4, 1)])
    return made


@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("key", SUBQUERIES)
def test_a_grouped_subquery_may_stand_wherever_its_group_may(world: World, key: str, engines: Engines) -> None:
    grouped = f"select {key}, count(*), ({key} is null) or true from t group by {key} having {key} is not null or true"
    wanted = f"select g, count(*), true from (select {key} as g, id from t) t group by g"
    found = query(world, grouped, engines=engines)
    assert sorted(found, key=repr) == sorted(query(world, wanted, engines=engines), key=repr)
    assert len(found) > 1
    both = f"select {key} from t group by {key}, t.k, {key} order by {key}"
    assert len(query(world, both, engines=engines)) == 4


@pytest.mark.parametrize("engines", ENGINES)
def test_distinct_and_order_by_know_them_too(world: World, engines: Engines) -> None:
    key = SUBQUERIES[0]
    assert query(world, f"select distinct {key} from t order by {key}", engines=engines) == [(5,), (20,), (None,)]
    last = f"select distinct on ({key}) id from t order by {key}, id desc"
    assert query(world, last, engines=engines) == [(6,), (2,), (5,)]


@pytest.mark.parametrize(
    "other",
    [
        "(select min(x) from u where u.k = t.k)",
        "(select max(x) from u where u.k <> t.k)",
        "(select max(k) from u where u.k = t.k)",
        "(select max(x) from u where u.k = t.k limit 1)",
    ],
)
def test_another_subquery_is_another_expression(world: World, other: str) -> None:
    with fails(errors.GROUPING_ERROR, 'subquery uses ungrouped column "t.k" from outer query'):
        query(world, f"select {SUBQUERIES[0]} from t group by {other}")


@pytest.mark.parametrize("engines", ENGINES)
def test_constants_are_the_same_if_they_are_written_alike(world: World, engines: Engines) -> None:
    """1.5 and 1.50 are equal and yet two; NaN is not equal to itself, and yet one."""
    few = "from t where id < 3"
    sums = f"select sum(id * 1.5)::text, sum(id * 1.50)::text {few}"
    assert query(world, sums, engines=engines) == [("4.5", "4.50")]
    groups = f"select (id * 1.0)::text, (id * 1.00)::text {few} group by id * 1.0, id * 1.00"
    assert sorted(query(world, groups, engines=engines)) == [("1.0", "1.00"), ("2.0", "2.00")]
    nan = "id + 'NaN'::numeric::double precision"
    assert query(world, f"select ({nan})::text from t group by {nan}", engines=engines) == [("NaN",)]
    with fails(errors.GROUPING_ERROR, 'column "t.id" must appear in the GROUP BY clause'):
        query(world, "select id * 1.50 from t group by id * 1.5", engines=engines)


def test_a_view_keeps_them_the_same() -> None:
    engine = Engine(":memory:")
    connection = engine.connect()
    key = SUBQUERIES[0]
    run(
        connection,
        "create table t (id int primary key, k int)",
        "create table u (id int primary key, k int, x int)",
        "insert into t values (1, 1), (2, 1), (3, 2)",
        "insert into u values (1, 1, 10), (2, 1, 20), (3, 2, 5)",
        f"create view v as select {key} as best, count(*) as n from t group by {key}",
        "alter table u rename to w",
    )
    assert rows(connection, "select best, n from v order by best") == [(5, 1), (20, 2)]
    engine.close()
