"""The executor: look-ups and joins by keys, DML with constraints judged at the statement's end, foreign keys."""

from __future__ import annotations

from decimal import Decimal

import pytest
from msgspec.structs import replace

import instar
from instar import errors
from instar.catalog.descriptors import Action, Check, ForeignKey, Table
from instar.sql.binder import freeze_check
from instar.sql.execution import ExecutionContext
from instar.sql.parser import parse_expression
from instar.transactions.buffer import Buffer
from instar.types import BIGINT, INTEGER, NUMERIC, TEXT
from sql.trees import compiled, context, fill, query, run, write
from support.world import World, describe_table


@pytest.fixture
def world() -> World:
    made = World()
    indexes = (("t_a", (2,), False), ("t_b_key", (3,), True))
    table = made.create_table("t", (("id", BIGINT), ("a", INTEGER), ("b", TEXT)), indexes=indexes)
    fill(made, table, [(number, number % 5 if number % 7 else None, f"b{number}") for number in range(50)])
    return made


ROOT = "select id from t where id = 3"


def touched(world: World, sql: str, *parameters: object) -> tuple[int, list[tuple[object, ...]]]:
    """How many rows a query touches in the executor, and its rows."""
    spent: ExecutionContext = context(world, parameters)
    before = spent.remaining
    rows = compiled(world, sql, parameters, "executor").run(spent).values()
    return before - spent.remaining, rows


@pytest.mark.parametrize(
    ("sql", "parameters", "rows"),
    [
        ("select b from t where id = $1", (7,), 1),
        ("select b from t where id = $1", (777,), 1),
        ("select b from t where id = $1", (None,), 0),
        ("select b from t where id in (3, 1, 3, null)", (), 2),
        ("select id from t where b = 'b9'", (), 1),
        ("select id from t where id between 10 and 12", (), 3),
        ("select id from t where id > 46", (), 3),
        ("select id from t where a = 3 and id < 10", (), 9),
        ("select id from t order by id limit 4", (), 4),
        ("select id from t order by id desc limit 4", (), 4),
        ("select id from t order by a, id limit 2", (), 2),
        ("select max(id) from t", (), 1),
        ("select min(a) from t", (), 1),
        ("select x.b from t x join t y on x.id = y.a where y.id = 8", (), 2),
        ("select id from t where id in (select y.a from t y where y.id in (8, 9, 10))", (), 6),
        ("select count(*) from (select * from t where id < 3) s join t on t.id = s.id", (), 6),
        ("select id from t where id = $1 or b = 'b9' or id = 9", (7,), 2),
        ("select id from t where id = $1 or b = 'b9' or b = null", (None,), 1),
        ("select id from t where (a = 3 and id < 5 or id in (1, 2)) and b <> ''", (), 11),
        ("select x.id, y.id from t x join t y on y.id = x.id or y.b = 'b9' where x.id = 8 or x.id = 9", (), 5),
        ("select id from t where b like 'b4%'", (), 11),
        ("select id from t where b like $1 and id > 3", ("b4_",), 11),
        ("select id from t where b like 'b4\\_%'", (), 0),
        ("select id from t where b like $1", (None,), 0),
        ("select id from t where b like '%4'", (), 50),
        ("select t.id from t join (values (3), (4), (99)) v(id) on v.id = t.id", (), 3),
        ("select t.id from t, generate_series(3, 5) n where n = t.id", (), 6),
        ("with few as (select a from t where id in (8, 9)) select t.id from t join few on few.a = t.id", (), 4),
        # Five rounds, and one that finds nothing; each counts what it gives, too.
        (f"with recursive c(i) as ({ROOT} union all select id from c join t on id = i * 2) select i from c", (), 11),
    ],
)
def test_it_touches_only_what_the_keys_name(world: World, sql: str, parameters: tuple[object, ...], rows: int) -> None:
    assert touched(world, sql, *parameters)[0] == rows


LONG = "x" * 111
TEXTS = ["", "a", "ab", "aB", "a%", "a_b", "a\\b", "b", "é", "ée", "e\u0301", "\U0010ffff", "\U0010ffffz", None]
TEXTS += [LONG + end for end in ("", "y", "yy", "yz", "z" * 30, "é")]
PATTERNS = ["", "%", "a", "a%", "a_", "a\\%%", "a\\_%", "a\\\\%", "é%", "e%", "\U0010ffff%", "x%", LONG + "%", None]
PATTERNS += [LONG + "y%", LONG + "yz", "_", "%b", "b%%", "a%b"]


@pytest.mark.parametrize("index", ["(b)", "(b DESC)", "(a, b)", "(a DESC, b DESC)"])
def test_the_beginning_of_a_pattern_drives_an_index(index: str) -> None:
    with instar.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(200))")
        connection.execute(f"CREATE INDEX t_b ON t {index}")
        rows = [(number, number % 2, text) for number, text in enumerate(TEXTS)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        ask = "SELECT id FROM t WHERE a{0} IN (0, 1) AND b{1} LIKE ? ORDER BY id"
        assert "t_b" in str(connection.execute("EXPLAIN " + ask.format("", "").replace("?", "'a%'")).fetchall())
        for pattern in PATTERNS:
            expected = connection.execute(ask.format(" + 0", " || ''"), [pattern]).fetchall()
            assert connection.execute(ask.format("", ""), [pattern]).fetchall() == expected, pattern


@pytest.mark.parametrize("negated", ["", "not "])
@pytest.mark.parametrize(
    ("condition", "once"),
    [
        ("s.c = u.x", True),
        ("u.y = s.d and s.c = u.x", True),
        ("s.c > 1 and u.x * 2 = s.c and s.d is not null", True),
        # It says something else of the row, or might fail where it need not be computed.
        ("s.c = u.x and u.y is not null", False),
        ("s.c = u.x and (s.d = u.y or s.d is null)", False),
        ("s.c <> 0 and 12 / s.c = u.x", False),
    ],
)
def test_exists_is_computed_once_where_it_says_nothing_else_of_the_row(
    condition: str, negated: str, once: bool
) -> None:
    made = World()
    u = made.create_table("u", (("id", BIGINT), ("x", INTEGER), ("y", NUMERIC)))
    s = made.create_table("s", (("id", BIGINT), ("c", INTEGER), ("d", NUMERIC)))
    tens = [None, Decimal("1"), Decimal("1.0"), Decimal("2.50"), Decimal("NaN"), Decimal("NaN")]
    fill(made, u, [(number, number % 5 or None, tens[number % 6]) for number in range(30)])
    fill(made, s, [(number, number % 4, tens[number % 6]) for number in range(12)])
    sql = f"select id from u where {negated}exists (select s.id from s where {condition}) order by id"
    rows = query(made, sql, engines="analytic")
    count, found = touched(made, sql)
    assert found == rows
    assert (count == 30 + 12) == once


def test_an_or_gives_each_row_once(world: World) -> None:
    assert query(world, "select id from t where id = 9 or b = 'b9' or id > 46 and id < 99 or id = 47 order by id") == [
        (9,), (47,), (48,), (49,)
    ]  # fmt: skip
    members = "(select id from t where id = {0}) or id in (select id from t where id = {1})"
    assert query(world, f"select id from t where id in {members.format(3, 4)}") == [(3,), (4,)]
    rows = query(world, "select x.id, y.id from t x join t y on y.id = x.id or y.b = 'b9' where x.id = 8 or x.id = 9")
    assert sorted(rows) == [(8, 8), (8, 9), (9, 9)]


def test_what_a_transaction_wrote_is_found_by_an_or(world: World) -> None:
    buffer = Buffer()
    run(world, "insert into t values (900, 1, 'new')", buffer=buffer)
    run(world, "update t set b = b || '!' where id = 5 or b = 'b6'", buffer=buffer)
    run(world, "delete from t where id = 7 or b = 'b8'", buffer=buffer)
    for where in ("id = 900 or b = 'b5!' or b = 'b6!'", "b = 'new' or id in (5, 6, 7, 8)"):
        found = run(world, f"select id, b from t where {where} order by id", buffer=buffer).values()
        assert found == [(5, "b5!"), (6, "b6!"), (900, "new")]
    assert run(world, "select id from t where b = 'b5' or b = 'b7' or id = 8", buffer=buffer).values() == []


def test_order_of_keys_is_used_in_both_directions(world: World) -> None:
    assert touched(world, "select id from t where id in (5, 2, 9) order by id desc")[1] == [(9,), (5,), (2,)]
    assert touched(world, "select a, id from t order by a desc, id desc limit 2")[1] == [(None, 49), (None, 42)]
    assert touched(world, "select a, id from t order by a, id limit 1")[1] == [(0, 5)]


def test_update_of_keys_is_judged_at_the_end(world: World) -> None:
    assert write(world, "update t set id = id + 1").rowcount == 50
    assert query(world, "select min(id), max(id), count(*) from t") == [(1, 50, 50)]
    with pytest.raises(errors.IntegrityError) as caught:
        write(world, "update t set id = id + 1 where id = 10")
    assert caught.value.sqlstate == errors.UNIQUE_VIOLATION
    assert caught.value.message == 'duplicate key value violates unique constraint "t_pkey"'
    assert caught.value.detail == "Key (id)=(11) already exists."


def test_unique_indexes_are_judged_at_the_end(world: World) -> None:
    swapped = "update t set b = case id when 1 then 'b2' else 'b1' end where id in (1, 2)"
    assert write(world, swapped).rowcount == 2
    assert query(world, "select id from t where b = 'b1'") == [(2,)]
    with pytest.raises(errors.IntegrityError) as caught:
        write(world, "insert into t values (100, 1, 'b9')")
    assert caught.value.message == 'duplicate key value violates unique constraint "t_b_key"'
    assert caught.value.detail == "Key (b)=(b9) already exists."
    write(world, "insert into t values (100, 1, null), (101, 1, null)")


def test_a_failed_statement_restores_the_buffer(world: World) -> None:
    buffer = Buffer()
    run(world, "insert into t values (200, 1, 'x')", buffer=buffer)
    with pytest.raises(errors.IntegrityError):
        run(world, "insert into t values (201, 1, 'y'), (200, 1, 'z')", buffer=buffer)
    assert buffer.rows == 1


def test_returning_and_row_counts(world: World) -> None:
    buffer = Buffer()
    inserted = run(
        world, "insert into t (id, b) values (300, 'p'), (301, 'q') returning id, a, upper(b)", buffer=buffer
    )
    assert inserted.values() == [(300, None, "P"), (301, None, "Q")]
    updated = run(world, "update t set a = 9 where id >= 300 returning id, a", buffer=buffer)
    assert updated.values() == [(300, 9), (301, 9)]
    before = "(select count(*) from t where id >= 300)"
    more = run(world, f"insert into t (id) values (302), (303) returning {before}", buffer=buffer)
    assert more.values() == [(2,), (2,)]
    deleted = run(world, "delete from t where id = 300 returning b", buffer=buffer)
    assert (deleted.values(), deleted.rowcount) == ([("p",)], 1)


def test_aggregates_are_looked_for_among_the_rows_of_a_subquery(world: World) -> None:
    few = "(select id from t where id < 9)"
    assert query(world, f"select a from t group by a having count(*) in {few} order by a") == [
        (0,),
        (2,),
        (4,),
        (None,),
    ]
    assert query(world, f"select a, count(b) + 1 <> all {few} from t where a > 2 group by a order by a") == [
        (3, True),
        (4, True),
    ]
    both = "select (a, sum(id) - 190) in (select a, id from t) from t where a in (1, 3) group by a order by a"
    assert query(world, both) == [(False,), (False,)]
    assert query(world, "select count(*) in (select t.id from t) from t") == [(False,)]
    # The column in an aggregate of the operand is no group.
    assert query(world, "select count(a) = any (select 42) from t") == [(True,)]


def test_update_from_changes_each_row_once(world: World) -> None:
    write(world, "update t set a = y.id from t y where y.a = t.a and t.id = 3")
    assert query(world, "select a from t where id = 3") in ([(3,)], [(8,)], [(13,)], [(18,)])
    assert write(world, "delete from t using t y where t.a = y.a and t.id < 3").rowcount == 2


def test_insert_from_the_table_itself(world: World) -> None:
    assert write(world, "insert into t select id + 1000, a, null from t").rowcount == 50
    assert query(world, "select count(*) from t") == [(100,)]


@pytest.mark.parametrize("budget", [60, 40])  # enough for the source alone; not even for that
def test_the_budget_of_a_source_is_not_that_of_its_insert(
    world: World, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr("instar.sql.plan.SCAN_BUDGET", budget)
    many = "(select count(*) from t x where x.a is not distinct from t.a or x.a > 100)"
    query = "select id + 100 * (id % 2), a, 'x' || id from t where b <> ''"
    sql = f"insert into t {query} on conflict (id) do update set a = {many} where {many} > 0 returning id, a, {many}"
    assert run(world, sql).rowcount == 50


def test_on_conflict(world: World) -> None:
    skipped = "insert into t values (1, 0, 'n'), (400, 0, 'm') on conflict do nothing"
    assert write(world, skipped).rowcount == 1
    merged = "insert into t values (1, 7, 'z'), (401, 7, 'w') on conflict (id) do update set a = excluded.a + t.id"
    assert write(world, merged).rowcount == 2
    assert query(world, "select a, b from t where id in (1, 401) order by id") == [(8, "b1"), (7, "w")]
    guarded = "insert into t values (1, 0, 'z') on conflict (id) do update set a = 0 where t.a > 100"
    assert write(world, guarded).rowcount == 0
    twice = "insert into t values (500, 0, 'r'), (500, 1, 's') on conflict (id) do update set a = 1"
    with pytest.raises(errors.ProgrammingError) as caught:
        write(world, twice)
    assert caught.value.sqlstate == errors.CARDINALITY_VIOLATION
    by_index = "insert into t values (600, 3, 'b5') on conflict (b) do update set a = 77 returning id"
    assert run(world, by_index, buffer=Buffer()).values() == [(5,)]


def test_not_null_and_check(world: World) -> None:
    table = world.catalog().lookup(None, "t")
    assert isinstance(table, Table)
    text, columns = freeze_check(parse_expression("a < 100"), table, world.catalog())
    world.alter(table, checks=(Check(id=300, name="t_a_check", expression=text, columns=columns),))
    for sql, sqlstate, message in (
        ("insert into t (a) values (1)", errors.NOT_NULL_VIOLATION,
         'null value in column "id" of relation "t" violates not-null constraint'),
        ("insert into t values (900, 100, null)", errors.CHECK_VIOLATION,
         'new row for relation "t" violates check constraint "t_a_check"'),
        ("update t set a = 100 where id = 1", errors.CHECK_VIOLATION,
         'new row for relation "t" violates check constraint "t_a_check"'),
    ):  # fmt: skip
        with pytest.raises(errors.IntegrityError) as caught:
            write(world, sql)
        assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)
    write(world, "insert into t values (900, null, null)")  # unknown is no violation


def test_limits_as_large_as_they_come(world: World) -> None:
    largest = 2**63 - 1
    for ordered in ("from t where id < 4 order by id", "from (values (0), (1), (2), (3)) t (id)"):
        assert query(world, f"select id {ordered} limit {largest} offset 2") == [(2,), (3,)]
        assert query(world, f"select id {ordered} limit $1 offset $1", largest) == []


def test_executemany_is_one_statement(world: World) -> None:
    program = compiled(world, "insert into t values ($1, $2, $3)", (1, 1, "x"))
    buffer = Buffer()
    rows = [(number, 1, f"n{number}") for number in range(700, 720)]
    assert program.run_many(context(world, buffer=buffer), rows).rowcount == 20  # type: ignore[union-attr]  # an INSERT
    world.commit(buffer)
    assert query(world, "select count(*) from t where id >= 700") == [(20,)]


# --- foreign keys ----------------------------------------------------------------------------------------------------


def family(on_delete: Action = "no action", on_update: Action = "no action") -> World:
    """p(id, x) and c(id, p -> p.id) with an index on c.p."""
    world = World()
    change = world.change()
    parent = describe_table(change, "p", (("id", BIGINT), ("x", INTEGER)), (1,))
    child = describe_table(change, "c", (("id", BIGINT), ("p", BIGINT)), (1,), (("c_p", (2,), False),))
    key = ForeignKey(
        id=150, name="c_p_fkey", columns=(2,), parent=parent.id, parent_columns=(1,),
        child_index=child.indexes[0].id, on_delete=on_delete, on_update=on_update,
    )  # fmt: skip
    change.create(replace(parent, referenced_by=(child.id,)))
    change.create(replace(child, foreign_keys=(key,)))
    world.commit(change=change)
    write(world, "insert into p values (1, 0), (2, 0), (3, 0)")
    write(world, "insert into c values (10, 1), (11, 1), (12, 2), (13, null)")
    return world


def test_a_child_needs_its_parent() -> None:
    world = family()
    with pytest.raises(errors.IntegrityError) as caught:
        write(world, "insert into c values (20, 9)")
    assert caught.value.sqlstate == errors.FOREIGN_KEY_VIOLATION
    assert caught.value.detail == 'Key (p)=(9) is not present in table "p".'
    with pytest.raises(errors.IntegrityError) as caught:
        write(world, "delete from p where id = 1")
    assert caught.value.detail == 'Key (id)=(1) is still referenced from table "c".'
    write(world, "delete from p where id = 3")


def test_no_action_waits_for_the_end_and_restrict_does_not() -> None:
    moved = "update p set id = 5 - id where id in (1, 2, 3, 4)"  # 1->4, 2->3, 3->2: 2 is there again, 1 is not
    world = family()
    write(world, "delete from c where p = 1")
    write(world, moved)
    assert query(world, "select id from p order by id") == [(2,), (3,), (4,)]
    world = family(on_update="restrict")
    write(world, "delete from c where p = 1")
    with pytest.raises(errors.IntegrityError):
        write(world, moved)


def test_cascades() -> None:
    world = family("cascade", "cascade")
    assert write(world, "delete from p where id = 1").rowcount == 1
    assert query(world, "select id, p from c order by id") == [(12, 2), (13, None)]
    write(world, "update p set id = id + 1")
    assert query(world, "select id, p from c order by id") == [(12, 3), (13, None)]


def test_set_null_and_set_default() -> None:
    world = family("set null", "set default")
    write(world, "delete from p where id = 2")
    assert query(world, "select p from c where id = 12") == [(None,)]
    write(world, "update p set id = 7 where id = 1")
    assert query(world, "select count(*) from c where p is null") == [(4,)]


def test_volatile_queries_stay_in_the_executor(world: World) -> None:
    program = compiled(world, "select random() < 2, id from t")
    assert not program.plan.analytic  # type: ignore[union-attr]  # a query
    assert len(program.run(replace(context(world))).values()) == 50
