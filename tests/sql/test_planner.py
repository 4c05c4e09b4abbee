"""Plans as EXPLAIN prints them, in golden/plans.txt; INSTAR_GOLDEN=write writes it anew, to be read and committed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from instar import errors
from instar.sql.explain import explain
from instar.types import BIGINT, DATE, INTEGER, NUMERIC, TEXT
from sql.trees import compiled
from support.world import World

GOLDEN = Path(__file__).parent / "golden" / "plans.txt"

QUERIES = (
    "select total from orders where id = $1",
    "select id from orders where id in (1, 2, 3) and total > 10",
    "select id from orders where customer = 5",
    "select id from orders where customer = 5 and day >= '2024-01-01' order by day desc limit 3",
    "select id from orders where id > 10 and id <= 20 and note like 'a%'",
    "select id from orders order by id desc limit 5",
    "select sum(total) from orders",
    "select max(day) from orders where customer = 7",
    "select max(id) from orders",
    "select note, count(*) from orders where customer = 1 group by note having count(*) > 1 order by 2 desc",
    "select note from orders where customer = 1 group by rollup (note) having grouping(note) = 0",
    "select c.name, o.total from customers c join orders o on o.customer = c.id where c.id = 3",
    "select c.name, o.total from orders o left join customers c on o.customer = c.id where o.id = 3",
    "select c.name, o.id from orders o join customers c on o.note = c.name",
    "select o.id from orders o where exists (select 1 from customers c where c.id = o.customer) and o.id = 9",
    "select id from orders where customer = (select id from customers where id = 4)",
    "select v.id from (select * from orders where total > 1) v where v.id = 2",
    "with x as (select id from orders where customer = 1) select * from x a join x b on a.id = b.id",
    "select id from orders where customer = 1 union all select id from customers where id = 1",
    "select distinct customer from orders where id < 10",
    "select id from customers where name like 'ab%' and name like '%c' order by name limit 3",
    "select id from customers where name like $1 or id = 3",
    "select id from orders where (customer, day) > (5, '2024-01-01') order by customer, day limit 3",
    "select id from orders where (id, total) <= ($1, 7) or (id = $1 and note = 'x') order by id desc limit 1",
    "delete from customers c where not exists (select 1 from orders o where o.note = c.name and o.total > 5)",
    "select id from orders where customer > 5 or id = 3 order by id limit 2",
    "delete from orders using orders b where orders.total = b.total and orders.id > b.id",
    "select id from customers where name like '%b' or name ilike 'b%' or name not like 'c%'",
    "select note from orders where (id = 3 or customer = 5 and day > '2024-01-01') and total > 1 order by id",
    "select c.name from orders o join customers c on c.id = o.customer or c.name = o.note where o.id = 1 or o.id = 2",
    "select rank() over () from orders where id = $1 or customer in (2, 3) or customer = 4",
    "select rank() over (order by total) from orders",
    "select o.id, rank() over (order by o.day) from customers c join orders o on o.customer = c.id where c.id = $1",
    "select * from (select *, row_number() over () n from orders where customer in (1, 2) and id > 5) x where n < 3",
    "select lag(o.id) over () from customers c left join orders o on o.id = c.id and o.total > 1 where name = 'x'",
    "with recursive r(n) as (select 1 union all select n + 1 from r where n < 3) select n from r",
    "with recursive x(i) as (select $1 union select o.customer from x join orders o on o.id = i) select i from x",
    "select o.total from orders o join (values (1), (2)) v(id) on o.id = v.id",
    "select o.total from orders o, generate_series(1, 3) n where o.id = n",
    "with few as (select id from customers where name = 'x') select o.id from orders o, few where o.customer = few.id",
    "select * from generate_series(1, 3)",
    "select random() from orders",
    "values (1), (2)",
    "insert into customers values (1, 'x')",
    "insert into customers select id, note from orders where id = 1",
    "update orders set total = total + 1 where id = $1",
    "update orders o set note = c.name from customers c where c.id = o.customer and o.id = 5",
    "delete from orders where total < 0",
    "delete from orders where id in (select c.id from customers c where c.name = 'x')",
    "delete from orders using customers c where orders.customer = c.id and c.id = 8",
)


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    columns = (("id", BIGINT), ("customer", BIGINT), ("day", DATE), ("total", NUMERIC), ("note", TEXT))
    made.create_table("orders", columns, indexes=(("orders_customer_day", (2, 3), False),))
    made.create_table("customers", (("id", BIGINT), ("name", TEXT)), indexes=(("customers_name_key", (2,), True),))
    made.create_table("pairs", (("a", INTEGER), ("b", INTEGER), ("c", INTEGER)), primary_key=(1, 2))
    return made


def test_plans_are_as_agreed(world: World) -> None:
    parts = []
    for sql in QUERIES:
        parameters = (1,) if "$1" in sql else ()
        parts.append("\n".join([sql, *("    " + line for line in explain(compiled(world, sql, parameters).plan))]))
    text = "\n\n".join(parts) + "\n"
    if os.environ.get("INSTAR_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("condition", "title"),
    [
        ("a = 1 and b = 2", "Lookup pairs by pairs_pkey"),
        ("b = 2 and a = 1 and c = 3", "Lookup pairs by pairs_pkey"),
        ("a = 1", "Range pairs by pairs_pkey"),
        ("a = 1 and b > 5", "Range pairs by pairs_pkey"),
        ("a + 0 = 1", "Scan pairs by pairs_pkey"),
        ("b = 1", "Scan pairs by pairs_pkey"),
        ("a = b", "Scan pairs by pairs_pkey"),
        ("a = 1.5", "Scan pairs by pairs_pkey"),
        ("a = 3000000000", "Range pairs by pairs_pkey"),
        ("1 = a or a = 2", "Range pairs by pairs_pkey"),
        ("(a = 1 and b = 2) or (a = 2 and b = 3)", "Lookup pairs by pairs_pkey or pairs_pkey"),
        ("(a = 1 or a = 2) and c > 1 and b = 3", "Lookup pairs by pairs_pkey or pairs_pkey"),
        ("(a = 1 or a = 2) and b > 3", "Range pairs by pairs_pkey or pairs_pkey"),
        ("a = 1 or b = 2", "Scan pairs by pairs_pkey"),
        ("a = 1 or a > 5 or a = c", "Scan pairs by pairs_pkey"),
        (" or ".join(f"(a = {n} and b = {n})" for n in range(17)), "Scan pairs by pairs_pkey"),
        (" or ".join(f"a = {n}" for n in range(17)), "Range pairs by pairs_pkey"),
        ("a in (1, 2) and b in (3, 4)", "Lookup pairs by pairs_pkey"),
    ],
)
def test_conditions_that_drive_a_key(world: World, condition: str, title: str) -> None:
    lines = explain(compiled(world, f"select c from pairs where {condition}").plan)
    assert title in [line.strip() for line in lines]


@pytest.mark.parametrize(
    "text",
    [
        "with x as (select id, rank() over (order by id) as r from orders) update pairs set c = 1 from x",
        "with x as (select id, rank() over (order by id) as r from orders) delete from pairs using x where a = r",
        "delete from pairs using (select id, rank() over (order by id) as r from orders) x where a = r",
    ],
)
def test_what_the_executor_does_not_run_is_refused_in_dml(world: World, text: str) -> None:
    with pytest.raises(errors.NotSupportedError, match="in UPDATE or DELETE is not supported"):
        compiled(world, text)


def test_what_neither_engine_runs_is_refused(world: World) -> None:
    with pytest.raises(errors.NotSupportedError) as caught:
        compiled(world, "select random(), rank() over (order by id) from orders")
    assert caught.value.sqlstate == errors.FEATURE_NOT_SUPPORTED
