"""What is evaluated for no row for which a condition keeps it from being, in either engine."""

from __future__ import annotations

from decimal import Decimal

import pytest

from instar import errors
from instar.sql.planner import Engines
from instar.types import INTEGER, TEXT
from sql.trees import fill, query
from support.world import World

BOTH: tuple[Engines, ...] = ("executor", "analytic")
NOTHING: list[tuple[object, ...]] = []


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    s = made.create_table("s", (("id", INTEGER), ("a", INTEGER), ("t", TEXT)))
    o = made.create_table("o", (("id", INTEGER), ("a", INTEGER)))
    fill(made, s, [(number, number % 5, "9" if number % 2 else "x") for number in range(1, 21)])
    fill(made, o, [(1, 1), (2, 2), (3, 6)])
    return made


# Answers as of PostgreSQL.
GUARDED = [
    ("select sum(12/a) filter (where a<>0) from s", [(100,)]),
    ("select sum(12/a order by 12/a) filter (where a<>0) from s", [(100,)]),
    ("select count(*) filter (where a<>0 and 12/a>5) from s", [(8,)]),
    ("select count(*) filter (where a=0 or 12/a>5) from s", [(12,)]),
    ("select max(chr(a)) filter (where a>0) from s", [("\x04",)]),
    ("select max(t::int) filter (where t like '9%') from s", [(9,)]),
    ("select bool_or(a<>0 and 12/a>5), bool_and(a=0 or 12/a>1) from s", [(True, True)]),
    ("select sum((a<>0 and 12/a>5)::int) from s", [(8,)]),
    ("select count(*) from s where not (a=0 or 12/a>5)", [(8,)]),
    ("select count(*) from s where not (a<>0 and not (12/a>5))", [(12,)]),
    ("select count(*) from s where not not (a=0 or 12/a>5)", [(12,)]),
    ("select count(case when not (a=0 or 12/a>5) then 1 end) from s", [(8,)]),
    ("select count(*) from s where (a<>0 and 12/a>5) is true", [(8,)]),
    ("select count(*) from s where (a<>0 and 12/a>5) is not true", [(12,)]),
    ("select count(*) from s where (a<>0 and 12/a>5 and nullif(a, 1) > 0) is null", [(4,)]),
    ("select count(*) from s where (a=0 or 12/a>5) = true", [(12,)]),
    ("select count(*) from s where (a=0 or 12/a>5) and (a=1 or 12/(a-1)>0)", [(8,)]),
    ("select (a=0 or 12/a>5) k, count(*) from s group by (a=0 or 12/a>5) order by 1", [(False, 8), (True, 12)]),
    ("select count(*) from s group by (a=0 or 12/a>5) having (a=0 or 12/a>5)", [(12,)]),
    ("select 1 from s group by (a=0 or 12/a>5) having not (a=0 or 12/a>5)", [(1,)]),
    ("select max(id) from s having count(*) = 0 or 12/min(a + 1) > 5", [(20,)]),
    ("select a is null or a=0 or 12/a>5 k, count(*) from s group by 1 order by 1", [(False, 8), (True, 12)]),
    ("select id from s order by (a=0 or 12/a>5), id limit 1", [(3,)]),
    ("select count(coalesce(id, nullif(1/a,7))) from s", [(20,)]),
    ("select count(coalesce(nullif(id, 5), nullif(1/(id - 4),7))) from s", [(20,)]),
    ("select count(coalesce(id::float8, power('10'::float8,id * 100) - least(id,a))) from s", [(20,)]),
    ("select sum(case when a<>0 then nullif(12/a, 7) end) from s", [(100,)]),
    ("select count(*) from s where case when a=0 then false when 12/a>5 then true end", [(8,)]),
    # A WHERE within comes before one outside.
    ("select count(*) from (select * from s where a<>0) v where 12/a>5", [(8,)]),
    ("select id from (select * from s where a<>0) v where id = 5 and 12/a > 5", NOTHING),
    ("select count(*) from (select * from (select * from s where a<>0) v where a<>3) w where 12/a/(a-3) > 0", [(4,)]),
    ("select count(*) from s x where exists (select 1 from (select * from s where a<>0) y where id=x.id and 12/a>5)",
     [(8,)]),
    ("select count(*) from s x join s y on y.id = x.id and y.a <> 0 where 12/y.a > 5", [(8,)]),
    # What ON says of one side alone comes before what it joins by.
    ("select count(*) from s x left join o y on x.a <> 0 and y.id = 12/x.a", [(20,)]),
    ("select count(*) from s x left join o y on x.a <> 0 and y.a = 12/x.a", [(20,)]),
    ("select count(*) from o y right join s x on x.a <> 0 and x.t <> 'x' and 12/x.a = y.a and y.id > 0", [(20,)]),
    ("select count(*) from s x full join o y on x.a <> 0 and y.id = 12/x.a", [(22,)]),
    ("select count(y.id) from s x left join o y on x.a <> 0 and y.id > 12/x.a - 1", [(4,)]),
    ("select count(y.id) from s x left join o y on x.a <> 0 and y.id in (12/x.a, x.a)", [(16,)]),
    ("select count(y.id) from s x left join o y on x.a <> 0 and (y.id = 12/x.a or y.id = 99)", [(4,)]),
    ("select count(y.id) from s x left join o y on (x.a <> 0 and y.id = 12/x.a or x.a <> 0 and y.id = 99)", [(4,)]),
]  # fmt: skip


GUARDED += [
    # Keys are looked for before there are rows: guards come before that, too.
    ("select count(*) from s where id=1 or (0<>0 and id=1/0)", [(1,)]),
    ("select count(*) from s where 0<>0 and id=1/0", [(0,)]),
    ("select count(*) from s where 0<>0 and id between 1/0 and 5", [(0,)]),
    ("select count(*) from (values (0)) v(z), s where id=1 or (coalesce(v.z,0)<>0 and id=1/v.z)", [(1,)]),
    ("select count(*) from s x where exists (select 1 from o where x.a<>0 and (o.id=12/x.a or o.a=6))", [(16,)]),
    ("select sum((select count(*) from o where (x.a=0 and id=1) or (x.a<>0 and id=12/x.a))) from s x", [(8,)]),
    ("select sum((select count(*) from o where x.a<>0 and o.id=12/x.a)) from s x", [(4,)]),
    ("select sum((select count(*) from o where x.a<>0 and o.id>12/x.a)) from s x", [(0,)]),
    ("select count(*) from s x left join lateral (select * from o where x.a<>0 and id=12/x.a) o on true", [(20,)]),
    ("select count(*) from s x left join o on (x.a<>0 and o.id=12/x.a) or o.id=x.a", [(20,)]),
    ("select count(*) from s x full join o on x.id=o.id where x.a<>0 and 12/x.a > o.a and o.a>0", [(2,)]),
    ("select count(*) from s x full join o on x.id=o.id where x.a<>0 and o.a % x.a in (3,null,1)", [(0,)]),
]


@pytest.mark.parametrize(("sql", "expected"), GUARDED)
@pytest.mark.parametrize("engines", [*BOTH, "driven"])
def test_a_condition_keeps_what_comes_later_from_failing(
    world: World, engines: Engines, sql: str, expected: list[tuple[object, ...]]
) -> None:
    found = query(world, sql, engines=engines)
    assert [tuple(int(item) if isinstance(item, Decimal) else item for item in row) for row in found] == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select distinct sum(12/(id-1)) filter (where id>1) over () from s where id < 8", [(29,)]),
        ("select distinct max(id) over (partition by (a=0 or 12/a>5)) from s order by 1", [(19,), (20,)]),
        ("select id from (select row_number() over (order by (a=0 or 12/a>5), id) r, id from s) v where r = 1", [(3,)]),
        ("select count(*) filter (where a=0 or 12/a>5) over () from s limit 1", [(12,)]),
    ],
)
def test_a_condition_keeps_what_windows_read_from_failing(
    world: World, sql: str, expected: list[tuple[object, ...]]
) -> None:
    assert query(world, sql) == expected


GUARDED_SUBQUERIES = [
    ("select count(*) from s where a=0 or 12/a in (select id from o)", [(8,)]),
    ("select count(*) from s x where a=0 or exists (select 1 from o where id=12/x.a)", [(8,)]),
    ("select count(case when a<>0 then (select max(o.id/s.a) from o) end) from s", [(16,)]),
    ("select count(coalesce(nullif(a, 0), (select max(o.id/(s.id-1)) from o))) from s where a <> 0 or id > 1", [(20,)]),
]


@pytest.mark.parametrize(("sql", "expected"), GUARDED_SUBQUERIES)
def test_guarded_subqueries_that_fail_are_for_the_executor(
    world: World, sql: str, expected: list[tuple[object, ...]]
) -> None:
    assert query(world, sql, engines="executor") == expected
    with pytest.raises(errors.NotSupportedError, match="which failed for some row"):
        query(world, sql, engines="analytic")


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from s where a=0 or id in (select id from o)",
        "select count(*) from s x where a=0 or exists (select 1 from o where id=x.a)",
        "select count(case when a<>0 then (select max(o.id/2) from o) end) from s",
        "select count(case when a<>0 then (select max(o.id) from o where o.a = s.a) end) from s",
        "select count(coalesce(nullif(a, 0), (select max(o.id/(s.a+1)) from o))) from s",
    ],
)
def test_guarded_subqueries_that_do_not_fail_are_for_both(world: World, sql: str) -> None:
    assert query(world, sql, engines="executor") == query(world, sql, engines="analytic")


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(
    "sql",
    [
        "select sum(12/a) filter (where id > 0) from s",
        "select count(*) filter (where 12/a>5 or a=0) from s",
        "select count(coalesce(nullif(a, 0), 12/a)) from s",
    ],
)
def test_what_no_condition_keeps_from_failing_fails(world: World, engines: Engines, sql: str) -> None:
    with pytest.raises(errors.Error) as caught:
        query(world, sql, engines=engines)
    assert caught.value.sqlstate == errors.DIVISION_BY_ZERO
