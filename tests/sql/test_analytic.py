"""The analytic engine: it answers as the executor does, and as SQLite does where the two mean the same."""

from __future__ import annotations

import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

from instar import errors
from instar.sql import analytic
from instar.sql.execution import UNLIMITED, BudgetSpent, ExecutionContext, Result, Row
from instar.sql.executor import QueryProgram
from instar.sql.plan import SCAN_BUDGET
from instar.sql.planner import Engines
from instar.transactions.buffer import Buffer
from instar.types import BIGINT, BOOLEAN, DATE, DOUBLE, INTEGER, JSONB, NUMERIC, TEXT, TIMESTAMP, UUID, Kind, Type
from sql.trees import compiled, context, fill, query, run
from support.world import World

BOTH: tuple[Engines, ...] = ("executor", "analytic")
COLUMNS = (("id", BIGINT), ("a", INTEGER), ("b", TEXT), ("d", DOUBLE), ("n", Type(Kind.NUMERIC, 10, 2)), ("m", NUMERIC))


def row(number: int, draw: random.Random) -> tuple[object, ...]:
    def some(make: Callable[[], object]) -> object:
        return None if draw.random() < 0.2 else make()

    return (
        number,
        some(lambda: draw.randint(-3, 3)),
        some(lambda: draw.choice(["", "a", "B", "ab", "b c", "é"])),
        some(lambda: draw.choice([-1.5, 0.0, 0.5, 2.0, 100.25])),
        some(lambda: Decimal(draw.randint(-300, 300)).scaleb(-2)),
        some(lambda: Decimal(draw.choice(["1.0", "1.00", "-2.5", "0", "0.10", "7"]))),
    )


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    draw = random.Random(7)
    indexes = (("t_a", (2,), False), ("t_ba", (3, 2), False))
    t = made.create_table("t", COLUMNS, indexes=indexes)
    u = made.create_table("u", COLUMNS, indexes=(("u_a", (2,), False),))
    fill(made, t, [row(number, draw) for number in range(40)])
    fill(made, u, [row(number, draw) for number in range(25)])
    return made


# --- generated queries -----------------------------------------------------------------------------------------------


class Generator:
    """Random queries over t and u. `portable`: only what SQLite means by it too."""

    def __init__(self, seed: int, *, portable: bool = False) -> None:
        self.draw = random.Random(seed)
        self.portable = portable

    def pick(self, *items: str) -> str:
        return self.draw.choice(items)

    def column(self, kind: str, tables: tuple[str, ...]) -> str:
        table = self.draw.choice(tables)
        numbers = ("id", "a") if self.portable else ("id", "a", "a")
        return (
            f"{table}."
            + {"int": self.draw.choice(numbers), "text": "b", "num": self.pick("n", "m"), "float": "d"}[kind]
        )

    def integer(self, tables: tuple[str, ...], depth: int = 2) -> str:
        choice = self.draw.random()
        if depth == 0 or choice < 0.5:
            return self.column("int", tables) if choice < 0.35 else str(self.draw.randint(-3, 5))
        a, b = self.integer(tables, depth - 1), self.integer(tables, depth - 1)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"coalesce({a}, {b})", f"nullif({a}, {b})",
            f"case when {self.condition(tables, depth - 1)} then {a} else {b} end", f"abs({a})",
            f"case when {b} <> 0 then {a} / {b} end" if not self.portable else f"(- {a})",
            f"length({self.text(tables)})",
        )  # fmt: skip

    def text(self, tables: tuple[str, ...]) -> str:
        column = self.column("text", tables)
        return self.pick(
            column, column, f"upper({column})" if not self.portable else column, f"({column} || 'x')", "'ab'"
        )

    def number(self, tables: tuple[str, ...]) -> str:
        a, b = self.column("num", tables), self.column("num", tables)
        return self.pick(a, f"({a} + {b})", f"({a} * {b})", f"round({a}, 1)", f"(- {a})", f"coalesce({a}, {b})")

    def value(self, tables: tuple[str, ...]) -> str:
        if self.portable:
            return self.draw.choice([self.integer, self.text])(tables)
        return self.draw.choice([self.integer, self.text, self.number, self.float])(tables)

    def float(self, tables: tuple[str, ...]) -> str:
        column = self.column("float", tables)
        return self.pick(column, f"({column} * 2)", f"({column} + {self.column('int', tables)})")

    def condition(self, tables: tuple[str, ...], depth: int = 2) -> str:
        choice = self.draw.random()
        if depth and choice < 0.3:
            parts = [self.condition(tables, depth - 1) for _ in range(2)]
            return f"({self.pick(' and ', ' or ').join(parts)})"
        if depth and choice < 0.38:
            return f"(not {self.condition(tables, depth - 1)})"
        if depth and choice < 0.46:
            return self.subquery_condition(tables)
        compare = self.pick("=", "<>", "<", "<=", ">", ">=")
        kind = self.draw.choice(["integer", "text"] if self.portable else ["integer", "text", "number", "float"])
        left, right = (getattr(self, kind)(tables, *([0] if kind == "integer" else [])) for _ in range(2))
        return self.pick(
            f"({left} {compare} {right})", f"({left} {compare} {right})", f"({left} is null)",
            f"({left} in ({right}, {left}, {right}))" if kind != "float" else f"({left} is not null)",
            f"({self.column('int', tables)} between -1 and {self.draw.randint(-1, 20)})",
            f"({self.column('int', tables)} = {self.draw.randint(-3, 3)})",
        )  # fmt: skip

    def subquery_condition(self, tables: tuple[str, ...]) -> str:
        outer = self.column("int", tables)
        inner = self.condition(("s",), 0)
        return self.pick(
            f"exists (select 1 from u s where s.a = {outer} and {inner})",
            f"({outer} {self.pick('', 'not ')}in (select s.a from u s where {inner}))",
            f"({outer} > (select min(s.id) from u s where s.a = {outer}))",
        )

    def from_(self) -> tuple[str, tuple[str, ...]]:
        kind = self.draw.random()
        if kind < 0.4:
            return "t", ("t",)
        both = ("t", "u")
        on = self.pick("t.a = u.a", "t.id = u.id", "t.id = u.a", f"(t.id = u.id and {self.condition(both, 0)})")
        if kind < 0.9:
            return f"t {self.pick('join', 'left join', 'right join', 'full join')} u on {on}", both
        return "t, u, lateral (select t.id + u.id as z) l", both

    def select(self) -> str:
        source, tables = self.from_()
        if self.portable and ("full" in source or "lateral" in source or "right" in source):
            source = "t left join u on t.id = u.id"
            tables = ("t", "u")
        where = f" where {self.condition(tables)}" if self.draw.random() < 0.7 else ""
        if self.draw.random() < 0.35:
            keys = [self.value(tables) for _ in range(self.draw.randint(0, 2))]
            # A constant is a position in GROUP BY.
            keys = [key if "." in key.replace("0.", "") else self.column("int", tables) for key in keys]
            calls = self.aggregates(tables)
            group = f" group by {', '.join(keys)}" if keys else ""
            having = f" having count(*) > {self.draw.randint(0, 2)}" if self.draw.random() < 0.3 else ""
            return f"select {', '.join([*keys, *calls])} from {source}{where}{group}{having}"
        outputs = ", ".join(self.value(tables) for _ in range(self.draw.randint(1, 3)))
        distinct = "distinct " if self.draw.random() < 0.2 else ""
        if not distinct and self.draw.random() < 0.3:
            keys = [f"{alias}.id" for alias in tables]
            page = f" limit {self.draw.randint(0, 8)} offset {self.draw.randint(0, 3)}"
            order = ", ".join([self.column("int", tables) + self.pick("", " desc"), *keys])
            return f"select {outputs} from {source}{where} order by {order}{page}"
        return f"select {distinct}{outputs} from {source}{where}"

    def aggregates(self, tables: tuple[str, ...]) -> list[str]:
        calls = [
            "count(*)",
            f"sum({self.integer(tables, 1)})",
            f"min({self.value(tables)})",
            f"max({self.value(tables)})",
        ]
        calls += [f"count(distinct {self.value(tables)})", f"count({self.value(tables)})"]
        if not self.portable:
            calls += [
                f"sum({self.number(tables)})",
                f"avg({self.integer(tables, 1)})",
                f"bool_or({self.condition(tables, 0)})",
            ]
            calls += [f"sum({self.integer(tables, 1)}) filter (where {self.condition(tables, 0)})"]
        return self.draw.sample(calls, 2)

    def query(self) -> str:
        if self.draw.random() < 0.15:
            kind = self.pick("union", "union all", "intersect", "except")
            sides = [f"select {self.integer((name,), 1)} from {name}" for name in ("t", "u")]
            return f" {kind} ".join(sides)
        return self.select()


def outcome(world: World, sql: str, engines: Engines) -> object:
    """The rows, sorted where their order is not promised; of an error its SQLSTATE."""
    try:
        rows = query(world, sql, engines=engines)
    except errors.Error as error:
        return error.sqlstate
    if any(word in sql for word in ("group by", "distinct", "min(", "max(")):
        rows = [plain(found) for found in rows]
    return rows if "order by" in sql else sorted(rows, key=repr)


def plain(row: tuple[object, ...]) -> tuple[object, ...]:
    """Without the scale of numerics: which of several equal values stands for a group is nobody's promise."""
    return tuple(item.normalize() if isinstance(item, Decimal) else item for item in row)


@pytest.mark.parametrize("batch", range(6))
def test_both_engines_give_the_same(world: World, batch: int) -> None:
    for number in range(40):
        sql = Generator(1000 * batch + number).query()
        executor, analytic = outcome(world, sql, "executor"), outcome(world, sql, "analytic")
        assert repr(executor) == repr(analytic), sql
        assert repr(executor) == repr(outcome(world, sql, "driven")), sql
        assert executor not in (errors.INTERNAL_ERROR, errors.SYNTAX_ERROR), sql


@pytest.fixture(scope="module")
def sqlite(world: World) -> sqlite3.Connection:
    peer = sqlite3.connect(":memory:")
    for name in ("t", "u"):
        peer.execute(f"create table {name} (id integer primary key, a integer, b text)")
        rows = query(world, f"select id, a, b from {name}", engines="executor")
        peer.executemany(f"insert into {name} values (?, ?, ?)", rows)
    return peer


@pytest.mark.parametrize("batch", range(4))
def test_as_sqlite_where_the_two_agree(world: World, sqlite: sqlite3.Connection, batch: int) -> None:
    for number in range(40):
        sql = Generator(1000 * batch + number, portable=True).query()
        if "order by" in sql:
            continue  # SQLite puts NULLs elsewhere, and a page of another order is another page
        expected = sorted(sqlite.execute(sql).fetchall(), key=repr)
        # The sum of a bigint is a numeric.
        rows = [
            tuple(int(item) if isinstance(item, Decimal) else item for item in found) for found in query(world, sql)
        ]
        assert repr(sorted(rows, key=repr)) == repr(expected), sql


# --- what only this engine runs --------------------------------------------------------------------------------------


def test_windows(world: World) -> None:
    rows = query(world, "select id, row_number() over (partition by a order by id), sum(id) over (order by id rows "
                        "between 1 preceding and current row) from t where id < 4 order by id")  # fmt: skip
    assert [(found[0], found[2]) for found in rows] == [(0, 0), (1, 1), (2, 3), (3, 5)]


@pytest.mark.parametrize("key", ["g + g", "g - g", "g * 1.5", "g / 2", "r + r", "sum(g)", "avg(r)"])
def test_floats_that_may_overflow_are_keys_of_windows(world: World, key: str) -> None:
    values = "(VALUES (3::float8, 3::real), (1, 1)) AS v(g, r) GROUP BY g, r ORDER BY 1"
    assert query(world, f"SELECT rank() OVER (PARTITION BY {key}) FROM {values}", engines="analytic") == [(1,), (1,)]
    ranks = [(1,), (1,)] if key == "g - g" else [(1,), (2,)]
    assert query(world, f"SELECT rank() OVER (ORDER BY {key}) FROM {values}", engines="analytic") == ranks
    with pytest.raises(errors.Error) as caught:
        query(world, "SELECT rank() OVER (ORDER BY g * 10) FROM (VALUES (1e308::float8)) v(g)", engines="analytic")
    assert caught.value.sqlstate == errors.NUMERIC_OUT_OF_RANGE


def test_what_with_recursive_lists_may_be_used_before_it(world: World) -> None:
    sql = "with recursive b as (select x + 1 as y from a), a(x) as (select 1 union select x + 1 from a where x < 3) "
    assert sorted(query(world, sql + "select * from b")) == [(2,), (3,), (4,)]


DOUBLED = "with d as (select i from c) select x.i * 2 from d x join d y on x.i = y.i where x.i < 20"
THREE = "select 1 union all select i + 1 from c where i < 3"
TENS = "select i + 10 from e where i < 10"


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("with recursive c(x, y) as (select 1, 1.5 union all select x + 1, y * 1.5 from c where x < 3) select * from c",
         [(1, Decimal("1.5")), (2, Decimal("2.25")), (3, Decimal("3.375"))]),
        # Rows that were there before end it, in whichever round.
        ("with recursive c(x) as (values (1), (1), (2) union select x % 3 + 1 from c) select x from c order by x",
         [(1,), (2,), (3,)]),
        ("with recursive c(x) as (select null::int union select x from c) select * from c", [(None,)]),
        ("with recursive c(x) as (select 1 where false union all select x + 1 from c) select * from c", []),
        ("with recursive c(x) as (select 1 union all select x + 1 from c) select x from c limit 3", [(1,), (2,), (3,)]),
        ("with recursive c(i) as (select 3::int8 union all select id from c join t on id = i * 2) select i from c",
         [(3,), (6,), (12,), (24,)]),
        (f"with recursive c(i) as (select 3 union all ({DOUBLED})) select i from c join c b using (i) order by 1",
         [(3,), (6,), (12,), (24,)]),
        (f"with recursive c(i) as ({THREE}), e as (select i from c where i > 1 union all {TENS}) select sum(i) from e",
         [(30,)]),
    ],
)  # fmt: skip
def test_recursive_common_table_expressions(
    world: World, engines: Engines, sql: str, expected: list[tuple[object, ...]]
) -> None:
    assert query(world, sql, engines=engines) == expected


def test_recursion_around_a_row(world: World) -> None:
    up = "with recursive c(i) as (select t.id union all select i / 2 from c where i > 1) select count(*) from c"
    sql = f"select id, ({up}) from t where id in (1, 5, 20) order by id"
    assert query(world, sql, engines="executor") == [(1, 1), (5, 3), (20, 5)]


def test_recursion_of_what_only_the_executor_can(world: World) -> None:
    sql = "with recursive c(w) as (select 1.0 union select round(w * 2, 1) from c where w < 5) select * from c"
    assert query(world, sql) == [(Decimal(text),) for text in ("1.0", "2.0", "4.0", "8.0")]
    with pytest.raises(errors.NotSupportedError):
        query(world, sql, engines="analytic")


def test_endless_recursion_spends_its_budget_and_can_be_cancelled(world: World) -> None:
    sql = "with recursive c(x) as (select 1 union all select 3 - x from c) select max(x) from c"
    asked = context(world)
    asked.remaining = 100
    program = compiled(world, sql, engines="executor")
    assert isinstance(program, QueryProgram)
    assert program._rows is not None
    with pytest.raises(BudgetSpent):
        list(program._rows(asked))
    asked, rounds = context(world), iter(range(50))

    def check_cancel() -> None:
        if next(rounds, None) is None:
            raise errors.error(errors.QUERY_CANCELED, "canceling")

    asked.check_cancel = check_cancel
    with pytest.raises(errors.Error, match="canceling"):
        program.run(asked)


def test_grouping_sets_in_both_engines(world: World) -> None:
    sql = "select a, b, count(*) from t group by grouping sets ((a), (b), ())"
    assert sorted(map(repr, query(world, sql, engines="executor"))) == sorted(
        map(repr, query(world, sql, engines="analytic"))
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "select grouping(a, b), grouping(b, a), a, b, sum(x) from v group by cube (a, b) order by 1, 3, 4",
            [(0, 0, 1, "p", 1), (0, 0, 1, "q", 2), (0, 0, 2, "p", 4), (0, 0, None, "p", 8), (1, 2, 1, None, 3),
             (1, 2, 2, None, 4), (1, 2, None, None, 8), (2, 1, None, "p", 13), (2, 1, None, "q", 2),
             (3, 3, None, None, 15)],
        ),
        ("select a, sum(x) from v group by rollup (a) having grouping(a) = 0 order by grouping(a), a",
         [(1, 3), (2, 4), (None, 8)]),
        ("select coalesce(sum(x), 0), grouping(a) from v where x > 99 group by rollup (a)", [(0, 1)]),
        ("select a, grouping(a) from v group by a order by a", [(1, 0), (2, 0), (None, 0)]),
        ("select distinct on (grouping(a)) grouping(a), a from v group by rollup (a) order by grouping(a), a",
         [(0, 1), (1, None)]),
        ("select case when grouping(a) = 1 then 'all' else a::text end, sum(x) from v group by rollup (a) order by 1",
         [("1", 3), ("2", 4), ("all", 15), (None, 8)]),
        # Of one column, or one constant, that has two names a set may leave out one.
        ("select p, q, grouping(p, q) from (select a p, a q from v) w group by rollup (p, q) having p = 1 order by 3",
         [(1, 1, 0), (1, None, 1)]),
        ("select p, 1, grouping(p) from (select 1 as p from v) w group by rollup (p) order by 3",
         [(1, 1, 0), (None, 1, 1)]),
        ("select p, q + 1 from (select a+1 p, a q from v) w where q=1 group by grouping sets ((p, q), (q)) order by p",
         [(2, 2), (None, 2)]),
    ],
)  # fmt: skip
def test_grouping(world: World, sql: str, expected: list[tuple[object, ...]]) -> None:
    rows = "select a, t.b, x from (values (1, 'p', 1), (1, 'q', 2), (2, 'p', 4), (null, 'p', 8)) as t(a, b, x)"
    for engines in BOTH:
        assert query(world, f"with v as materialized ({rows}) {sql}", engines=engines) == expected
        assert query(world, sql.replace("from v", f"from ({rows}) v"), engines=engines) == expected


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("(select t.a from u where u.id < 3 group by t.a)", "t.a"),
        ("(select sum(u.id) + t.a from u where u.id < 3 group by t.a)", "3 + t.a"),
        ("(select t.a + 1 from u group by t.a)", "t.a + 1"),
        ("exists (select 1 from u group by t.a having t.a = 1)", "coalesce(t.a = 1, false)"),
        ("(select x.a from lateral (select t.a, count(*) from u group by t.a) x)", "t.a"),
    ],
)
def test_grouping_by_a_column_of_an_outer_query(world: World, sql: str, wanted: str) -> None:
    for engines in BOTH:
        expected = query(world, f"select t.id, {wanted} from t order by 1", engines="executor")
        assert query(world, f"select t.id, {sql} from t order by 1", engines=engines) == expected


@pytest.mark.parametrize("condition", ["t.a in (select id from u)", "exists (select 1 from u z where z.id = t.a)"])
@pytest.mark.parametrize("kind", ["left", "right", "full"])
@pytest.mark.parametrize(
    "more",
    [
        "join t x on x.id < t.id",
        "join t x on x.id < t.id and x.a = 1",
        "left join t x on x.id <> t.id",
        "cross join t y join t x on x.id < y.a",
    ],
)
def test_a_subquery_in_an_outer_join_beside_inequalities(world: World, condition: str, kind: str, more: str) -> None:
    """DuckDB has wrong answers for it, or an internal error, unless an equality comes between."""
    sql = f"select t.id, u.id, x.id from t {kind} join u on {condition} {more}"
    with pytest.raises(errors.NotSupportedError, match="subquery in the condition of an outer join"):
        query(world, sql, engines="analytic")
    expected = query(world, sql, engines="executor")
    assert len(expected) > 100
    assert sorted(query(world, sql), key=repr) == sorted(expected, key=repr)
    joined = f"select t.id, u.id, x.id from t {kind} join u on {condition} join t x on x.id = t.id and x.a < u.a"
    found = (query(world, joined, engines=engines) for engines in BOTH)
    assert [sorted(rows, key=repr) for rows in found] == [sorted(query(world, joined), key=repr)] * 2


def test_windows_over_grouping(world: World) -> None:
    sql = (
        "select a, grouping(a), rank() over (partition by grouping(a) order by a), sum(grouping(a)) over () "
        "from (values (1), (2)) as v(a) group by rollup (a) order by 2, 1"
    )
    assert query(world, sql) == [(1, 0, 1, 1), (2, 0, 2, 1), (None, 1, 1, 1)]


GROUPED_BY_ROW = (
    "select q.a, q.n, t.id, count(*) over () from t join lateral (select u.a, count(*) as n from u where u.id <= t.id "
    "group by rollup (u.a) having count(*) > 1) q on true"
)


def test_windows_over_grouping_sets_of_each_row(world: World) -> None:
    found = query(world, GROUPED_BY_ROW, engines="analytic")
    expected = 0
    for number in range(40):
        sql = "select a, count(*) from u where id <= $1 group by rollup (a) having count(*) > 1"
        for row_ in query(world, sql, number, engines="executor"):
            assert any(row[:3] == (*row_, number) for row in found)
            expected += 1
    assert [row[3] for row in found] == [expected] * expected


def test_duckdb_begins_anew_after_an_internal_error(world: World) -> None:
    engine = analytic._current()
    # With this optimizer DuckDB fails inside, for good.
    engine.connection().execute("SET disabled_optimizers = 'outer_join_simplification,projection_pullup'")
    with pytest.raises(errors.Error, match=r"INTERNAL Error: [^\n]+$") as caught:
        query(world, GROUPED_BY_ROW, engines="analytic")
    assert caught.value.sqlstate == errors.INTERNAL_ERROR
    assert analytic._current() is not engine
    assert query(world, "select count(*) over () from t limit 1", engines="analytic") == [(40,)]


def test_a_query_that_another_ones_internal_error_hits_is_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = analytic._current()
    connection = engine.connection()
    connection.execute("SET disabled_optimizers = 'outer_join_simplification,projection_pullup'")
    with pytest.raises(errors.Error):
        query(world, GROUPED_BY_ROW, engines="analytic")
    # As for a thread that has got the engine just before it was retired.
    monkeypatch.setattr(analytic, "_engine", engine)
    assert query(world, "select count(*) over () from t limit 1", engines="analytic") == [(40,)]
    assert analytic._current() is not engine


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("select 1 / (a - a) from t", errors.DIVISION_BY_ZERO),
        ("select a + 2147483647 from t where a > 0", errors.NUMERIC_OUT_OF_RANGE),
        ("select (select id from u) from t", errors.CARDINALITY_VIOLATION),
        ("select b::integer from t", errors.INVALID_TEXT),
        ("select (date '5874897-12-31' - a * 0)::timestamp from t where a > 0", errors.DATETIME_OVERFLOW),
        ("select id from t limit -1", "2201W"),
    ],
)
@pytest.mark.parametrize("engines", BOTH)
def test_errors_have_postgresqls_sqlstate(world: World, sql: str, sqlstate: str, engines: Engines) -> None:
    with pytest.raises(errors.Error) as caught:
        query(world, sql, engines=engines)
    assert caught.value.sqlstate == sqlstate


def test_what_duckdb_refuses_of_a_join_with_lateral_the_executor_does(world: World) -> None:
    sql = """select count(*) from t join lateral (select id from u where u.id = t.id) x
             on x.id in (select id from t where id > 2)"""
    with pytest.raises(errors.NotSupportedError, match="the condition of a join with LATERAL"):
        query(world, sql, engines="analytic")
    wanted = "select count(*) from t join u on u.id = t.id where t.id > 2"
    assert query(world, sql, engines="executor") == query(world, wanted, engines="executor") != [(0,)]


def test_literals_cannot_leave_their_quotes(world: World) -> None:
    nasty = "'); drop table r1; --\"\\"
    for engines in BOTH:
        assert query(world, "select $1, b || $1 from t where id = 0", nasty, engines=engines)[0][0] == nasty


def test_every_type_travels() -> None:
    world = World()
    columns = (
        ("id", BIGINT),
        ("f", BOOLEAN),
        ("u", UUID),
        ("d", DATE),
        ("s", TIMESTAMP),
        ("j", JSONB),
        ("x", Type(Kind.BYTEA)),
    )
    table = world.create_table("v", columns)
    rows = [
        (1, True, bytes(range(16)), -1, -1, '{"a": 1}', b"\x00\xff"),
        (2, None, None, None, None, None, None),
        (3, False, bytes(16), 20000, 10**15, "[1, 2]", b""),
    ]
    fill(world, table, rows)
    for engines in BOTH:
        result = run(world, "select * from v order by id", engines=engines)
        assert result.values() == rows
        assert result.arrow().schema.types == [
            pa.int64(), pa.bool_(), pa.binary(16), pa.date32(), pa.timestamp("us"), pa.string(), pa.binary(),
        ]  # fmt: skip
        assert query(world, "select id from v where u = $1", bytes(16), engines=engines) == [(3,)]


def test_the_executor_hands_over_when_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    table = world.create_table("big", (("id", BIGINT), ("a", INTEGER)))
    fill(world, table, [(number, number % 7) for number in range(3000)])
    program = compiled(world, "select sum(a), count(*) from big")
    assert isinstance(program, QueryProgram)
    tried: list[int] = []
    executed = program._executed

    def counted(run: Callable[[ExecutionContext], Iterator[Row]], given: ExecutionContext) -> Result:
        tried.append(given.remaining)
        return executed(run, given)

    monkeypatch.setattr(program, "_executed", counted)
    first = context(world)
    assert program.run(first).values() == [(sum(number % 7 for number in range(3000)), 3000)]
    assert program.run(context(world)).values() == [(sum(number % 7 for number in range(3000)), 3000)]
    assert tried == [SCAN_BUDGET]  # the second time it goes straight to the analytic engine
    assert first.remaining == UNLIMITED


@pytest.mark.parametrize("engines", ["executor", "analytic"])
@pytest.mark.parametrize(
    ("subquery", "ids"),
    [
        ("select 1 / 0 from t x where x.id = t.id", [1, 2, 3]),
        ("select distinct 1 / (x.id - x.id) from t x where x.id = t.id - 1 order by 1", [2, 3]),
        ("select 1 / (x.id - x.id) from t x where x.id < t.id order by 1 / (x.id - x.id) limit 1", [2, 3]),
        ("select 1 / 0 from t x where x.id < t.id offset 1", [3]),
        ("select sum(1 / (x.id - x.id)) over () from t x where x.id < t.id", [2, 3]),
        ("select count(*) from t x where x.id < t.id", [1, 2, 3]),
        ("select sum(1 / (x.id - x.id)) from t x where x.id < t.id", [1, 2, 3]),
        ("select distinct x.a % 1 from t x where x.id < t.id offset 1", []),
        ("select 1 from t x where x.id < t.id having count(*) > 1", [3]),
        ("select x.a from t x where x.id < t.id group by x.a having count(*) > 1", []),
    ],
)
def test_exists_asks_for_rows_alone(engines: Engines, subquery: str, ids: list[int]) -> None:
    """As in PostgreSQL what they say is not computed, unless it matters for their number."""
    world = World()
    fill(world, world.create_table("t", (("id", BIGINT), ("a", INTEGER))), [(1, 1), (2, 2), (3, 3)])
    found = query(world, f"select id from t where exists ({subquery}) order by id", engines=engines)
    assert [number for (number,) in found] == ids


def test_it_reads_the_snapshot_and_the_buffer(world: World) -> None:
    buffer = Buffer()
    before = query(world, "select count(*), sum(id) from t", engines="analytic")
    run(world, "delete from t where id < 10", buffer=buffer)
    run(world, "insert into t (id, a) values (1000, 1)", buffer=buffer)
    inside = run(world, "select count(*), sum(id) from t", engines="analytic", buffer=buffer).values()
    assert inside == [(31, sum(range(10, 40)) + 1000)]
    assert query(world, "select count(*), sum(id) from t", engines="analytic") == before


def test_key_ranges_are_pushed_into_the_scan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from instar.tables.rowset import TableReader

    ranges: list[tuple[bytes, bytes]] = []
    arrow = TableReader.arrow

    def recorded(self: TableReader, view: object, start: bytes = b"", stop: bytes = b"\xff") -> object:
        ranges.append((start, stop))
        return arrow(self, view, start, stop)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(TableReader, "arrow", recorded)
    query(world, "select sum(a) from t where id >= 5 and id < 7", engines="analytic")
    assert [stop < b"\xff" and start > b"" for start, stop in ranges] == [True]


def test_what_duckdb_cannot_say_the_executor_runs_to_the_end() -> None:
    world = World()
    table = world.create_table("big", (("id", BIGINT), ("m", NUMERIC)))
    fill(world, table, [(number, Decimal(number % 3).scaleb(-(number % 2))) for number in range(1500)])
    sql = "select m from big intersect select m from big"
    with pytest.raises(errors.NotSupportedError):
        query(world, sql, engines="analytic")
    assert len(query(world, sql)) == 5


def test_constants_are_keys_of_any_type(world: World) -> None:
    expected = query(world, "select id, sum(a) over (order by id) from t order by id")
    for constant in ("1.5", "'x'", "null", "7"):
        sql = f"select id, sum(a) over (order by {constant}::text, id), {constant} as c from t order by c, id"
        assert [row[:2] for row in query(world, sql, engines="analytic")] == expected


@pytest.mark.parametrize("offset", ["-1", "null", "$1"])
@pytest.mark.parametrize("unit", ["rows", "groups", "range"])
def test_offsets_of_frames(world: World, unit: str, offset: str) -> None:
    sql = f"select sum(a) over (order by id {unit} between {offset} preceding and current row) from t"
    with pytest.raises(errors.Error) as caught:
        query(world, sql, *([None] if offset == "$1" else []), engines="analytic")
    assert caught.value.sqlstate == ("22004" if unit == "range" and offset != "-1" else "22013")


@pytest.mark.parametrize(
    ("key", "frame", "counts"),
    [
        ("i", "1 preceding and current row", [1, 1, 2, 1]),
        ("i desc", "2147483647 preceding and 1 following", [1, 2, 2, 1]),
        ("b", "1 preceding and 9223372036854775807 following", [1, 2, 1, 1]),
        ("s", "1::bigint preceding and current row", [1, 2, 2, 1]),
        ("s", "unbounded preceding and $1 preceding", [1, 2, 3, 4]),
        ("d", "unbounded preceding and 0 preceding", [1, 3, 3, 4]),
        ("d", "1 preceding and 0.5 following", [1, 3, 3, 1]),
    ],
)
def test_frames_by_value(world: World, key: str, frame: str, counts: list[int]) -> None:
    """Offsets may be beyond the type of the key, and nothing."""
    low, high = (
        "-2147483648, 1::smallint, -9223372036854775808, 1.5::float8",
        "2, 3::smallint, 9223372036854775807, 2.5",
    )
    rows = f"(values ({low}), (1, 2::smallint, 1, 2.5), ({high}), (null, null, null, null))"
    sql = f"select i, count(*) over (order by {key} range between {frame}) from {rows} v (i, s, b, d) order by i"
    for _ in range(100):  # DuckDB's frames that end with the row's peers are now these rows, now those
        assert [row[1] for row in query(world, sql, *([0] if "$1" in frame else []))] == counts


@pytest.mark.parametrize("frame", ["1 following and 0 following", "0 preceding and $1 preceding"])
def test_frames_by_value_without_rows(world: World, frame: str) -> None:
    with pytest.raises(errors.NotSupportedError, match="a RANGE frame without rows"):
        query(world, f"select count(*) over (order by a range between {frame}) from t", *([1] if "$1" in frame else []))
    assert query(world, "select count(*) over (order by a range between 0 preceding and 0 preceding) from t limit 1")


def test_a_float_that_an_offset_does_not_move(world: World) -> None:
    rows = "(values ('infinity'::float8), ('infinity'), (1)) v (d)"
    with pytest.raises(errors.NotSupportedError, match="whose offset does not change a value"):
        query(world, f"select count(*) over (order by d range between unbounded preceding and 1 preceding) from {rows}")
    for frame in ("'inf' preceding and current row", "current row and 'inf' following"):
        for direction in ("", "desc"):
            with pytest.raises(errors.NotSupportedError, match="whose offset does not change a value"):
                query(world, f"select count(*) over (order by d {direction} range between {frame}) from {rows}")
    sql = f"select count(*) over (order by d range between unbounded preceding and current row) from {rows}"
    assert query(world, sql) == [(1,), (3,), (3,)]


def test_a_plan_may_read_one_table_several_times(world: World) -> None:
    sql = (
        "select t.a, bool_and(t.id > 0), count(*) from t "
        "where nullif(t.n < any (select s.n from u s where t.a > 0), t.m > t.m) "
        "group by grouping sets ((t.a), (t.a), ()) order by 1, 3"
    )
    assert query(world, sql, engines="analytic") == query(world, sql, engines="executor")


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("select from t where id < 3", 3),
        ("select from t order by id limit 2", 2),
        ("select from t group by id", 40),
        ("select from t union select from u", 1),
        ("select from t union all select from u", 65),
        ("select from t except all select from u", 15),
        ("with c as materialized (select from t where id < 2) select from c, c as d", 4),
        ("with recursive r as (select union all select from r where false) select from r", 1),
        ("select x.* from (select from t where id < 2) x, lateral (select from u where id < 2) y", 4),
    ],
)
def test_rows_without_columns(world: World, sql: str, count: int) -> None:
    assert query(world, sql, engines="analytic") == [()] * count
    assert query(world, f"select count(*) from ({sql}) q", engines="analytic") == [(count,)]


@pytest.mark.parametrize("negated", ["", "not "])
def test_a_row_is_looked_for_in_what_depends_on_another(world: World, negated: str) -> None:
    rows = "select u.a, u.b from u where u.id between t.id and t.id + 9"
    sql = f"select t.id, (t.a, t.b) {negated}in ({rows}) from t order by id"
    assert query(world, sql, engines="analytic") == query(world, sql, engines="executor")
    assert len({found for _, found in query(world, sql, engines="executor")}) == 3
    with pytest.raises(errors.NotSupportedError, match="a row of aggregates IN a correlated subquery"):
        query(world, f"select (a, count(*)) {negated}in (select id, a from u where a = t.a) from t group by a",
              engines="analytic")  # fmt: skip


def test_a_signal_is_heard_while_duckdb_runs(world: World) -> None:
    sql = "select max(md5(g::text)) from generate_series(1, 1000000000) g"
    timer = threading.Timer(0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    # A shell has what it starts in the background ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            query(world, sql, engines="analytic")
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert query(world, "select 1", engines="analytic") == [(1,)]


@pytest.mark.parametrize("bounds", ["1, 9", "9, 1", "9, 1, -2", "1, null", "2147483640, 2147483647", "$1, 3", "-1, $1"])
def test_a_series_of_known_bounds_is_duckdbs_own(world: World, bounds: str) -> None:
    sql = f"select g, pg_typeof(g) from generate_series({bounds}) g order by g"
    parameters = [1] if "$1" in bounds else []
    assert query(world, sql, *parameters, engines="analytic") == query(world, sql, *parameters, engines="executor")


@pytest.mark.parametrize("engines", BOTH)
def test_distinct_values_are_put_together_in_order(world: World, engines: Engines) -> None:
    series = "FROM generate_series(1, 7) id"
    found = query(
        world,
        "SELECT string_agg(DISTINCT (-id % 3)::text, ','), string_agg(DISTINCT (id % 2)::text, (id % 3)::text), "
        f"string_agg(DISTINCT (id % 2)::text, ',' ORDER BY (id % 2)::text DESC) {series}",
        engines=engines,
    )
    assert found == [("-1,-2,0", "01020011121", "1,0")]


# --- tables that keys drive ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop() -> World:
    made = World()
    customer = made.create_table("customer", (("id", BIGINT), ("name", TEXT)))
    orders = made.create_table(
        "orders", (("id", BIGINT), ("customer", BIGINT), ("total", INTEGER)), indexes=(("by_customer", (2,), False),)
    )
    fill(made, customer, [(number, f"name {number}") for number in range(500)])
    fill(made, orders, [(number, number % 500, number % 7) for number in range(12_000)])
    return made


WINDOW = "row_number() over (order by o.total, o.id)"
NEWEST = "(select max(o.id) from orders o where o.customer = c.id)"
OWN = "from orders o where o.customer = c.id"


@pytest.mark.parametrize(
    ("sql", "touched"),
    [
        (f"select o.id, {WINDOW} from orders o where o.customer = 7", 24),
        (f"select o.id, {WINDOW} from orders o where o.customer in (7, 7, 9)", 48),
        (f"select o.id, c.name, {WINDOW} from customer c join orders o on o.customer = c.id where c.id = 7", 26),
        (f"select o.id, c.name, {WINDOW} from customer c, orders o where o.customer = c.id and c.id in (7, 9)", 53),
        # The nullable side is driven by its ON, the other one by WHERE alone.
        (f"select c.id, o.id, {WINDOW} from customer c left join orders o on o.customer = 7 where c.id = 7", 26),
        (f"select c.id, o.id, {WINDOW} from orders o right join customer c on o.customer = c.id where c.id = 7", 26),
        (f"select * from (select o.*, {WINDOW} as place from orders o where o.customer = 8) x where place <= 2", 24),
        (f"select l.* from customer c, lateral (select {WINDOW} {OWN}) l where c.id = 8", 26),
        (f"select {NEWEST}, rank() over (order by c.name) from customer c where c.id in (3, 4)", 53),
        (f"with recent as (select * from orders o where o.customer = 5) select {WINDOW}, o.id from recent o", 24),
        (f"select o.id, {WINDOW} from orders o where o.customer = null", 0),
        (f"select o.id, {WINDOW} from orders o where o.id between 3 and 5 or o.id > 11990 and o.id < 11995", 7),
        # What is compared but not equal, or in an OR, would be found for several rows.
        (f"select {WINDOW} from customer c, orders o where o.customer < c.id and customer = 0 and c.id in (2, 3)", 28),
    ],
)  # fmt: skip
def test_keys_drive_what_windows_read(shop: World, sql: str, touched: int) -> None:
    program = compiled(shop, sql)
    assert isinstance(program, QueryProgram)
    assert program._driven is not None
    asked = context(shop)
    asked.remaining = 20_000
    given = program._driven.read(asked)
    assert 20_000 - asked.remaining <= touched + len(given)
    assert sorted(run(shop, sql).values()) == sorted(run(shop, sql, engines="analytic").values())


@pytest.mark.parametrize(
    "sql",
    [
        # What ON says of the side that stays whatever it says; no equality; nothing that is known; a key of the table.
        f"select c.id, o.id, {WINDOW} from orders o left join customer c on o.customer = 7 and c.id < 3",
        f"select c.id, o.id, {WINDOW} from customer c full join orders o on o.customer = c.id and o.customer = 7",
        f"select o.id, {WINDOW} from customer c join orders o on o.customer < c.id and c.id + 0 < 2",
        f"select o.id, {WINDOW} from orders o where o.id between 5 and 9",
        f"select o.id, {WINDOW} from orders o where o.customer = 7 or o.total = 3",
        f"select o.id, {WINDOW} from orders o where o.customer = (select min(id) from customer)",
    ],
)
def test_what_keys_do_not_drive_is_read_whole(shop: World, sql: str) -> None:
    program = compiled(shop, sql)
    assert isinstance(program, QueryProgram)
    assert program._driven is None
    assert sorted(run(shop, sql).values(), key=repr) == sorted(run(shop, sql, engines="analytic").values(), key=repr)


@pytest.mark.parametrize(
    "on", ["o.customer < c.id", "o.customer = 7 or o.customer = c.id", "o.id > c.id", "o.id in (7, c.id, c.id + 0)"]
)
def test_rows_that_several_values_would_drive_are_read_once(shop: World, on: str) -> None:
    sql = (
        f"select c.id, count(o.id) over (partition by c.id) from customer c join orders o on {on} where c.id in (3, 7)"
    )
    assert sorted(run(shop, sql).values()) == sorted(run(shop, sql, engines="analytic").values())


def test_in_with_columns_of_other_tables_is_driven_by_none_of_them(shop: World) -> None:
    for items in ("o.id, 3", "o.id, o.total", "o.id, o.customer", "o.customer, o.id, o.customer"):
        sql = f"select c.id, count(*) over () from orders o join customer c on c.id in ({items}) where o.customer = 7"
        assert sorted(run(shop, sql).values()) == sorted(run(shop, sql, engines="analytic").values())


def test_what_keys_drive_and_is_much_is_read_whole_from_then_on(shop: World) -> None:
    sql = f"select o.id, {WINDOW} from orders o where o.customer >= $1"
    program = compiled(shop, sql, [0])
    assert isinstance(program, QueryProgram)
    assert program._driven is not None
    few = program.run(context(shop, [499]))
    assert (few.rowcount, program._too_large) == (24, False)
    assert (program.run(context(shop, [0])).rowcount, program._too_large) == (12_000, True)
    asked = context(shop, [499])
    assert sorted(program.run(asked).values()) == sorted(few.values())
    assert asked.remaining == UNLIMITED


def test_equal_values_drive_once() -> None:
    made = World()
    a = made.create_table("a", (("id", BIGINT), ("x", NUMERIC), ("f", DOUBLE)))
    b = made.create_table(
        "b",
        (("id", BIGINT), ("x", NUMERIC), ("f", DOUBLE)),
        indexes=(("b_x", (2,), False), ("b_f", (3,), False)),
    )
    nan, tens = float("nan"), [Decimal("10"), Decimal("10.0"), Decimal("NaN"), Decimal("NaN"), None]
    rows = [(number, value, 0.0 if number else nan) for number, value in enumerate(tens)]
    fill(made, a, rows)
    fill(made, b, [*rows, (9, None, -0.0), (10, None, nan)])
    for column in ("x", "f"):
        sql = f"select a.id, b.id, count(*) over () from a join b on b.{column} = a.{column} where a.id in (0,1,2,3,4)"
        assert compiled(made, sql, engines="driven").plan.driven[1].relation  # type: ignore[union-attr]
        assert sorted(query(made, sql)) == sorted(query(made, sql, engines="analytic"))


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select count(*) from v group by a > 1 having a > 1", [(2,)]),
        ("select count(*) from v group by a > 1 having not (a > 1)", [(3,)]),
        ("select count(*) from v group by not b having not b", [(2,)]),
        ("select count(*) from v group by not b having not (not b)", [(3,)]),
        ("select count(*) from v group by (a > 1 and b) having (a > 1 and b)", [(1,)]),
        ("select count(*) from v group by (a > 1 or b) having not (a > 1 or b)", [(1,)]),
        ("select count(*) from v group by (a > 1 and b) having ((a > 1 and b)) and count(*) > 0", [(1,)]),
        ("select case when a > 1 then 'x' end from v group by a > 1 order by 1", [("x",), (None,)]),
        # NULL in the row of all, whatever its rows say.
        ("select count(*) from v group by rollup (not b) having not b", [(2,)]),
        ("select count(*) from v group by rollup (a < 9 or b) having (a < 9 or b)", [(5,)]),
        ("select count(*) from v group by rollup (a < 9 or 1/a > 0) having (a < 9 or 1/a > 0)", [(5,)]),
        ("select count(*) from v group by rollup (a > 9 or 1/a > 7) having not (a > 9 or 1/a > 7)", [(5,)]),
    ],
)
def test_conditions_that_are_grouped_by(
    world: World, engines: Engines, sql: str, expected: list[tuple[object, ...]]
) -> None:
    rows = "(values (1, true), (1, true), (1, false), (2, true), (3, false)) as v(a, b)"
    assert query(world, sql.replace("from v", f"from {rows}"), engines=engines) == expected
