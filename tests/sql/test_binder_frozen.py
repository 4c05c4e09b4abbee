"""Expressions and queries in descriptors: frozen by ids, bound again, thawed under new names."""

from __future__ import annotations

import msgspec
import pytest

from instar import types
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Column, Table, View
from instar.errors import Error
from instar.sql.binder import (
    bind_check,
    bind_default,
    canonical_view,
    freeze_check,
    freeze_default,
    freeze_query,
    thaw_check,
    thaw_default,
    thaw_view,
)
from instar.sql.binder.context import Context
from instar.sql.binder.deparse import Deparser, quote_identifier
from instar.sql.binder.queries import QueryBinder
from instar.sql.parser import parse_expression, parse_one
from instar.sql.statements import Query
from instar.types import Kind, Type
from sql.binding import CATALOG, CUSTOMER, HEAP, ORDERS, VARCHAR5, bound, brief, catalog, corpus, show, view


def renamed(table: Table, name: str | None = None, **names: str) -> Table:
    columns = tuple(
        msgspec.structs.replace(column, name=names.get(column.name, column.name)) for column in table.columns
    )
    return msgspec.structs.replace(table, name=name or table.name, columns=columns)


def freeze(sql: str, known: CatalogSnapshot = CATALOG) -> View:
    statement = parse_one(sql)
    assert isinstance(statement, Query)
    count = 0
    while True:
        try:
            frozen = freeze_query(statement, [f"c{number}" for number in range(count)], known)
        except Error as error:
            if error.sqlstate != "42701":
                raise
            count += 1
            continue
        return View(id=50, name="v", version=1, query=frozen.text, columns=frozen.columns, depends_on=frozen.depends_on)


@pytest.mark.parametrize("sql", corpus("queries"))
def test_views_are_bound_again_into_the_same_tree(sql: str) -> None:
    frozen = freeze(sql)
    again = Deparser(CATALOG, by_ids=True).query(QueryBinder(Context(CATALOG)).view_query(frozen))
    assert again == frozen.query


def test_a_constant_that_is_sorted_by_is_no_position() -> None:
    frozen = freeze("SELECT a, count(*) OVER (ORDER BY -1) FROM heap ORDER BY 1 - 2, 2 - 1")
    assert frozen.query.endswith("ORDER BY (-1)::integer, 1::integer")
    assert freeze(thaw_view(frozen, CATALOG)).query == frozen.query


@pytest.mark.parametrize("sql", corpus("queries"))
def test_thawed_views_mean_the_same(sql: str) -> None:
    frozen = freeze(sql)
    thawed = thaw_view(frozen, CATALOG)
    assert "#" not in thawed.replace(" # ", "")
    assert freeze(thawed).query == frozen.query


def test_a_view_survives_renames() -> None:
    frozen = freeze("SELECT a, h.b AS x FROM heap h JOIN orders o ON o.id = h.a")
    assert frozen.query == ('SELECT h."#2" AS a, h."#3" AS x FROM "#12" AS h JOIN "#11" AS o ON (o."#1" = h."#2")')
    assert frozen.depends_on == ((11, (1,)), (12, (2, 3)))
    later = catalog(renamed(HEAP, name="pile", a="alpha"))
    assert thaw_view(frozen, later) == (
        "SELECT h.alpha AS a, h.b AS x FROM pile AS h JOIN orders AS o ON (o.id = h.alpha)"
    )


def test_using_and_stars_are_written_out() -> None:
    frozen = freeze("SELECT * FROM (SELECT id, total FROM orders) x FULL JOIN (SELECT id FROM customer) y USING (id)")
    assert [name for name, _ in frozen.columns] == ["id", "total"]
    assert "COALESCE" in frozen.query
    assert "USING" not in frozen.query


def test_aliases_are_used_once() -> None:
    frozen = freeze("SELECT (SELECT max(x.total) FROM orders x WHERE x.id = a) FROM heap x")
    assert 'FROM "#12" AS x' in frozen.query
    assert 'FROM "#11" AS x_1' in frozen.query


def test_views_of_views() -> None:
    frozen = freeze("SELECT who FROM rich")
    assert frozen.depends_on == ((40, ()),)
    assert '"#40"' in frozen.query
    known = catalog(frozen)
    statement = bound("SELECT * FROM v", known=known)
    assert [table.name for table in statement.tables] == ["customer"]
    assert {found.name for found in statement.views} == {"v", "rich"}
    # What the inner view is replaced by is what the outer one sees.
    again = catalog(frozen, view(40, "rich", "SELECT id, name AS who FROM customer", CATALOG))
    assert "upper" in show(statement.statement)
    assert "upper" not in show(bound("SELECT * FROM v", known=again).statement)


def test_view_columns() -> None:
    statement = parse_one("SELECT 1 AS a, 2 AS b")
    assert isinstance(statement, Query)
    assert freeze_query(statement, ["x"], CATALOG).columns == (("x", types.INTEGER), ("b", types.INTEGER))
    for names, code in ((["b"], "42701"), (["a", "b", "c"], "42601")):
        with pytest.raises(Error) as caught:
            freeze_query(statement, names, CATALOG)
        assert caught.value.sqlstate == code


# --- CHECK -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "text", "columns", "thawed"),
    [
        ("a > 0", '("#2" > 0)', (2,), "(alpha > 0)"),
        ("a > b AND b <> 7", '(("#2" > "#3") AND ("#3" <> 7))', (2, 3), "((alpha > b) AND (b <> 7))"),
        ("b IN (1, 2) AND b + a < b::int", '(("#3" IN (1, 2)) AND (("#3" + "#2") < ("#3")::integer))', (2, 3),
         "((b IN (1, 2)) AND ((b + alpha) < (b)::integer))"),
        ("heap.a IN (1, -2) OR b IS NULL", '(("#2" IN (1, (-2))) OR ("#3" IS NULL))', (2, 3),
         "((alpha IN (1, (-2))) OR (b IS NULL))"),
        ("a::text LIKE 'x%'", "((\"#2\")::text ~~ 'x%'::text)", (2,), "((alpha)::text ~~ 'x%'::text)"),
    ],
)  # fmt: skip
def test_checks(check: str, text: str, columns: tuple[int, ...], thawed: str) -> None:
    assert freeze_check(parse_expression(check), HEAP, CATALOG) == (text, columns)
    # The table's own name is part of no check, however that was written: else renaming the table would break it.
    later = renamed(HEAP, "stack", a="alpha")
    assert thaw_check(text, later, CATALOG) == thawed
    assert brief(bind_check(text, later, 5, CATALOG)).count("5.1:alpha") == text.count('"#2"')
    assert freeze_check(parse_expression(thawed), later, CATALOG) == (text, columns)


@pytest.mark.parametrize(
    ("check", "code"),
    [
        ("nosuch > 0", "42703"),
        ("a", "42804"),
        ("a > (SELECT 1)", "0A000"),
        ("EXISTS (SELECT 1)", "0A000"),
        ("sum(a) > 1", "42803"),
        ("random() > 1", "42P17"),
        ("rowid > 1", "42703"),
    ],
)
def test_check_errors(check: str, code: str) -> None:
    with pytest.raises(Error) as caught:
        freeze_check(parse_expression(check), HEAP, CATALOG)
    assert caught.value.sqlstate == code


# --- DEFAULT ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "type_", "text", "value"),
    [
        ("'x'", types.TEXT, "'x'::text", "'x':text"),
        ("1", types.BIGINT, "'1'::bigint", "1:bigint"),
        ("1 + 1", types.NUMERIC, "'2'::numeric", "Decimal('2'):numeric"),
        ("NULL", types.DATE, "NULL::date", "None:date"),
        ("true", types.BOOLEAN, "true", "True:boolean"),
        ("'too long'", VARCHAR5, "'too long'::character varying",
         "'too long':character varying::~character varying(5)"),
        ("'123456789'", Type(Kind.NUMERIC, 4, 2), "'123456789'::numeric",
         "Decimal('123456789'):numeric::~numeric(4,2)"),
        ("'2024-07-01 00:00'", types.TIMESTAMPTZ, "'2024-07-01 04:00:00+00'::timestamp with time zone",
         "1719806400000000:timestamp with time zone"),
        ("now()", types.TIMESTAMPTZ, "now()", "now()"),
        ("current_date", types.DATE, "CURRENT_DATE", "current_date()"),
        ("nextval('counter')", types.BIGINT, "nextval('#22')", "NextValue(sequence=22)"),
        ("nextval('counter') * 2", types.INTEGER, "(nextval('#22') * '2'::bigint)",
         "*(NextValue(sequence=22), 2:bigint)::~integer"),
    ],
)  # fmt: skip
def test_defaults(default: str, type_: types.Type, text: str, value: str) -> None:
    frozen, expr = freeze_default(parse_expression(default), "x", type_, CATALOG, "America/New_York")
    assert frozen == text
    assert brief(expr) == value
    column = Column(id=1, name="x", type=type_, default=frozen)
    assert brief(bind_default(column, CATALOG)) == value
    thawed = thaw_default(column, CATALOG)
    if value == f"None:{type_}":
        assert thawed is None
    else:
        assert frozen == freeze_default(parse_expression(thawed or ""), "x", type_, CATALOG)[0]


def test_a_constant_default_is_bound_once_per_type() -> None:
    """Each change of a table has its INSERTs ask for its columns' defaults again."""
    column = Column(id=1, name="x", type=types.BIGINT, default="'1'::bigint")
    bound = bind_default(column, CATALOG)
    assert bind_default(msgspec.structs.replace(column, id=2, name="y"), catalog(CUSTOMER)) is bound
    other = bind_default(msgspec.structs.replace(column, type=types.NUMERIC), CATALOG)
    assert (brief(bound), brief(other)) == ("1:bigint", "Decimal('1'):numeric")


def test_defaults_of_sequences_and_of_none() -> None:
    assert brief(bind_default(CUSTOMER.columns[0], CATALOG)) == "NextValue(sequence=20)"
    assert brief(bind_default(ORDERS.columns[2], CATALOG)) == "None:double precision"
    assert thaw_default(CUSTOMER.columns[0], CATALOG) == "nextval('customer_id_seq')"
    assert thaw_default(ORDERS.columns[2], CATALOG) is None
    column = Column(id=1, name="x", type=types.BIGINT, default="nextval('#22')")
    assert thaw_default(column, CATALOG) == "nextval('counter')"


def test_a_default_follows_its_column_s_type() -> None:
    frozen, _ = freeze_default(parse_expression("5"), "x", types.SMALLINT, CATALOG)
    widened = Column(id=1, name="x", type=types.BIGINT, default=frozen)
    assert thaw_default(widened, CATALOG) == freeze_default(parse_expression("5"), "x", types.BIGINT, CATALOG)[0]


def test_queries_that_differ_in_aliases_only_are_the_same() -> None:
    one, other, third = (
        canonical_view(freeze(f"WITH {w} AS (SELECT a FROM heap {t}) SELECT * FROM {w} {x} WHERE {x}.a > {n}"), CATALOG)
        for w, t, x, n in (("w", "t", "x", 1), ("v", "heap", "y", 1), ("w", "t", "x", 2))
    )
    assert one == other != third


@pytest.mark.parametrize(
    ("default", "type_", "code"),
    [
        ("a", types.INTEGER, "0A000"),
        ("(SELECT 1)", types.INTEGER, "0A000"),
        ("true", types.INTEGER, "42804"),
        ("'x'", types.INTEGER, "22P02"),
        ("count(*)", types.INTEGER, "42803"),
        ("nosuch()", types.INTEGER, "42883"),
    ],
)
def test_default_errors(default: str, type_: types.Type, code: str) -> None:
    with pytest.raises(Error) as caught:
        freeze_default(parse_expression(default), "x", type_, CATALOG, "America/New_York")
    assert caught.value.sqlstate == code


@pytest.mark.parametrize(
    ("name", "quoted"), [("abc", "abc"), ("Abc", '"Abc"'), ('a"b', '"a""b"'), ("select", '"select"'), ("#1", '"#1"')]
)
def test_quoting(name: str, quoted: str) -> None:
    assert quote_identifier(name) == quoted
