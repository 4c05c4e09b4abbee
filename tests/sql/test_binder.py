"""Names and types: the trees that the corpus binds to, PostgreSQL's errors, parameters, scoping."""

from __future__ import annotations

import os
import random
from decimal import Decimal
from pathlib import Path

import pytest

from instar import types
from instar.errors import Error
from instar.sql import tree
from instar.sql.binder import bind
from instar.sql.parser import parse
from instar.sql.statements import Dml, Query
from instar.types import BIGINT, DOUBLE, INTEGER, NUMERIC, TEXT, Type
from sql.binding import CATALOG, bound, brief, corpus, expression, select, show
from sql.test_parser import mutated

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["queries", "dml"])
def test_bound_trees(name: str) -> None:
    """What the corpus binds to. To accept a change: UPDATE_GOLDEN=1, and read the diff."""
    text = "\n\n".join(f"-- {sql}\n{show(bound(sql))}" for sql in corpus(name)) + "\n"
    golden = GOLDEN / f"bound_{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


BARRED = 'invalid reference to FROM-clause entry for table "{}"'
UPSERT = "INSERT INTO customer (name) VALUES ('') ON CONFLICT (name) DO UPDATE"
NOT_GROUPING = "arguments to GROUPING must be grouping expressions of the associated query level"
ERRORS = [
    # names
    ("SELECT nosuch FROM heap", "42703", 'column "nosuch" does not exist', 8),
    ("SELECT h.nosuch FROM heap h", "42703", "column h.nosuch does not exist", 8),
    ("SELECT x.a FROM heap", "42P01", 'missing FROM-clause entry for table "x"', 8),
    ("SELECT 1 FROM heap h RIGHT JOIN LATERAL (SELECT h.a) y ON true", "42P10", BARRED.format("h"), 49),
    ("SELECT 1 FROM heap h FULL JOIN LATERAL (SELECT b FROM customer) y ON true", "42P10", BARRED.format("h"), 48),
    ("SELECT 1 FROM heap h RIGHT JOIN LATERAL (SELECT h.*) y ON true", "42P10", BARRED.format("h"), 49),
    ("SELECT 1 FROM heap h RIGHT JOIN generate_series(1, h.a) g ON true", "42P10", BARRED.format("h"), 52),
    ("SELECT 1 FROM heap h RIGHT JOIN (heap i CROSS JOIN LATERAL (SELECT (SELECT h.a)) y) ON true", "42P10",
     BARRED.format("h"), 76),
    ("SELECT 1 FROM heap h FULL JOIN heap i USING (a) RIGHT JOIN LATERAL (SELECT a) y ON true", "42P10",
     BARRED.format("unnamed_join"), 76),
    ("SELECT heap.a FROM heap h", "42P01", 'missing FROM-clause entry for table "heap"', 8),
    ("SELECT x.* FROM heap", "42P01", 'missing FROM-clause entry for table "x"', 8),
    ("SELECT * FROM nosuch", "42P01", 'relation "nosuch" does not exist', 15),
    ("SELECT * FROM s.heap", "42P01", 'relation "s.heap" does not exist', 15),
    ("SELECT * FROM counter", "42809", '"counter" is not a table or view', 15),
    ("SELECT a FROM heap x, heap y", "42702", 'column reference "a" is ambiguous', 8),
    ("SELECT 1 FROM heap, heap", "42712", 'table name "heap" specified more than once', None),
    ("SELECT coming FROM customer", "42703", 'column "coming" does not exist', 8),
    ("SELECT rowid FROM heap", "42703", 'column "rowid" does not exist', 8),
    ("SELECT heap FROM heap", "0A000", "a whole-row reference is not supported", 8),
    ("SELECT *", "42601", "SELECT * with no tables specified is not valid", 8),
    ("SELECT 1 FROM heap h(x, y, z)", "42P10", 'table "h" has 2 columns available but 3 columns specified', None),
    ("SELECT 1 FROM (SELECT o.id) x, orders o", "42P01", 'missing FROM-clause entry for table "o"', 23),
    ("SELECT 1 FROM orders o JOIN heap ON c.id = 1, customer c", "42P01",
     'missing FROM-clause entry for table "c"', 37),
    ("SELECT 1 FROM heap JOIN orders USING (a)", "42703",
     'column "a" specified in USING clause does not exist in right table', 20),
    ("WITH x AS (SELECT 1), x AS (SELECT 2) SELECT 1", "42712", 'WITH query name "x" specified more than once', 23),
    # types
    ("SELECT a + name FROM heap, customer", "42883", "operator does not exist: integer + text", 10),
    ("SELECT nosuch(a) FROM heap", "42883", "function nosuch(integer) does not exist", 8),
    ("SELECT 'abc'::int", "22P02", 'invalid input syntax for type integer: "abc"', 8),
    ("SELECT a = 'x' FROM heap", "22P02", 'invalid input syntax for type integer: "x"', 12),
    ("SELECT coalesce(a, 'x') FROM heap", "22P02", 'invalid input syntax for type integer: "x"', 20),
    ("SELECT 1 UNION SELECT 'x'", "22P02", 'invalid input syntax for type integer: "x"', 23),
    ("SELECT born::int FROM customer", "42846", "cannot cast type date to integer", 12),
    ("SELECT 1 FROM heap WHERE a", "42804", "argument of WHERE must be type boolean, not type integer", 26),
    ("SELECT a AND true FROM heap", "42804", "argument of AND must be type boolean, not type integer", 8),
    ("SELECT CASE WHEN a THEN 1 END FROM heap", "42804",
     "argument of CASE/WHEN must be type boolean, not type integer", 18),
    ("SELECT coalesce(a, now()) FROM heap", "42804",
     "COALESCE types integer and timestamp with time zone cannot be matched", 8),
    ("SELECT 1 UNION SELECT true", "42804", "UNION types integer and boolean cannot be matched", 10),
    ("SELECT 1 UNION SELECT 1, 2", "42601", "each UNION query must have the same number of columns", 10),
    ("VALUES (1, 2), (3)", "42601", "VALUES lists must all be the same length", 1),
    ("SELECT (1, 2) = (1, 2, 3)", "42601", "unequal number of entries in row expressions", 15),
    ("SELECT 1 FROM heap LIMIT 'x'::text", "42804", "argument of LIMIT must be type bigint, not type text", 26),
    ("SELECT 1 FROM heap LIMIT a", "42P10", "argument of LIMIT must not contain variables", 26),
    ("SELECT (SELECT 1, 2)", "42601", "subquery must return only one column", 8),
    ("SELECT count(*) > ALL (SELECT 1) FROM heap", "0A000",
     "an aggregate, GROUPING or a window function as the left side of > ANY or ALL is not supported", 17),
    ("SELECT 1 IN (SELECT 1, 2)", "42601", "subquery has too many columns", 10),
    # grouping
    ("SELECT a, count(*) FROM heap", "42803",
     'column "heap.a" must appear in the GROUP BY clause or be used in an aggregate function', 8),
    ("SELECT name FROM customer GROUP BY code", "42803",
     'column "customer.name" must appear in the GROUP BY clause or be used in an aggregate function', 8),
    ("SELECT a + 1 FROM heap GROUP BY a + 2", "42803",
     'column "heap.a" must appear in the GROUP BY clause or be used in an aggregate function', 8),
    ("SELECT count(*) FROM heap h HAVING h.a > 1", "42803",
     'column "h.a" must appear in the GROUP BY clause or be used in an aggregate function', 36),
    ("SELECT (SELECT h.b) FROM heap h GROUP BY a", "42803",
     'subquery uses ungrouped column "h.b" from outer query', None),
    ("SELECT 1 FROM heap WHERE sum(a) > 1", "42803", "aggregate functions are not allowed in WHERE", 26),
    ("SELECT 1 FROM heap GROUP BY sum(a)", "42803", "aggregate functions are not allowed in GROUP BY", 29),
    ("SELECT sum(a) FROM heap GROUP BY 1", "42803", "aggregate functions are not allowed in GROUP BY", 34),
    ("SELECT sum(sum(a)) FROM heap", "42803", "aggregate function calls cannot be nested", 12),
    ("SELECT grouping(a) FROM heap", "42803", NOT_GROUPING, 17),
    ("SELECT grouping(b, a) FROM heap GROUP BY b", "42803", NOT_GROUPING, 20),
    ("SELECT grouping(a + 1) FROM heap GROUP BY a", "42803", NOT_GROUPING, None),
    ("SELECT 1 FROM customer GROUP BY id ORDER BY grouping(name)", "42803", NOT_GROUPING, 54),
    ("SELECT 1 FROM heap HAVING grouping(1) = 0", "42803", NOT_GROUPING, 36),
    (f"SELECT grouping({', '.join('a' * 32)}) FROM heap GROUP BY a", "54023",
     "GROUPING must have fewer than 32 arguments", 8),
    ("SELECT 1 FROM heap WHERE grouping(a) = 1 GROUP BY a", "42803",
     "grouping operations are not allowed in WHERE", 26),
    ("SELECT 1 FROM heap GROUP BY grouping(a)", "42803", "grouping operations are not allowed in GROUP BY", 29),
    ("SELECT grouping(a) FROM heap GROUP BY 1", "42803", "grouping operations are not allowed in GROUP BY", 39),
    ("SELECT sum(grouping(a)) FROM heap GROUP BY a", "42803", "aggregate function calls cannot be nested", 12),
    ("SELECT grouping(sum(a)) FROM heap GROUP BY a", "42803", "aggregate function calls cannot be nested", 17),
    ("SELECT grouping() FROM heap", "42601", 'syntax error at or near ")"', 17),
    ("SELECT grouping(a) OVER () FROM heap GROUP BY a", "42601", 'syntax error at or near "OVER"', 20),
    ('SELECT "grouping"(a) FROM heap GROUP BY a', "42883", "function grouping(integer) does not exist", 8),
    ("SELECT (SELECT grouping(h.a)) FROM heap h GROUP BY a", "0A000",
     "GROUPING of an outer query's columns is not supported", 16),
    ("WITH RECURSIVE r AS (SELECT 1 AS a UNION SELECT grouping(a) FROM r GROUP BY a) SELECT * FROM r", "42P19",
     "aggregate functions are not allowed in a recursive query's recursive term", None),
    ("SELECT rank() FROM heap", "42809", "window function rank requires an OVER clause", 8),
    ("SELECT b FROM heap h GROUP BY b HAVING EXISTS (SELECT 1 FROM heap WHERE count(h.a) > a)", "0A000",
     "an aggregate of an outer query's columns is not supported", 73),
    ("SELECT (SELECT 1 FROM heap WHERE sum(h.a + a) > 1) FROM heap h", "42803",
     "aggregate functions are not allowed in WHERE", 34),
    ("SELECT 1 FROM heap WHERE sum(nix) > 1", "42703", 'column "nix" does not exist', 30),
    ("SELECT 1 FROM heap WHERE rank() OVER () > 1", "42P20", "window functions are not allowed in WHERE", 26),
    ("SELECT upper('a') OVER ()", "42809",
     "OVER specified, but upper is neither a window function nor an aggregate function", 8),
    ("SELECT sum(a) OVER w FROM heap", "42704", 'window "w" does not exist', 8),
    ("SELECT sum(a) OVER (ROWS BETWEEN CURRENT ROW AND 1 PRECEDING) FROM heap", "42P20",
     "frame starting from current row cannot have preceding rows", 8),
    ("SELECT sum(a) OVER (w) FROM heap WINDOW w AS (ORDER BY a ROWS 1 PRECEDING)", "42P20",
     'cannot copy window "w" because it has a frame clause', 8),
    ("SELECT 1 FROM heap GROUP BY 5", "42P10", "GROUP BY position 5 is not in select list", 29),
    # order
    ("SELECT a FROM heap ORDER BY 3", "42P10", "ORDER BY position 3 is not in select list", 29),
    ("SELECT a FROM heap ORDER BY NULL", "42601", "non-integer constant in ORDER BY", None),
    ("SELECT a FROM heap GROUP BY true", "42601", "non-integer constant in GROUP BY", None),
    ("SELECT a FROM heap ORDER BY -1", "42P10", "ORDER BY position -1 is not in select list", 29),
    ("SELECT a FROM heap ORDER BY (-(1))", "42P10", "ORDER BY position -1 is not in select list", 30),
    ("SELECT a FROM heap ORDER BY -1.5", "42601", "non-integer constant in ORDER BY", 29),
    ("SELECT a FROM heap GROUP BY -2", "42P10", "GROUP BY position -2 is not in select list", 29),
    ("SELECT a FROM heap UNION SELECT 1 ORDER BY -1", "42P10", "ORDER BY position -1 is not in select list", 44),
    ("SELECT a FROM heap UNION SELECT 1 ORDER BY 'x'", "42601", "non-integer constant in ORDER BY", 44),
    ("SELECT substring('a1' from '1')", "0A000", "SUBSTRING with a regular expression is not supported", 8),
    ("SELECT substring(name, '1', '#') FROM customer", "0A000",
     "SUBSTRING with a regular expression is not supported", 8),
    ("SELECT substring(name from name) FROM customer", "0A000",
     "SUBSTRING with a regular expression is not supported", 8),
    ("SELECT substring(name) FROM customer", "42883", "function substring(text) does not exist", 8),
    ("SELECT current_time", "0A000", "function current_time is not supported", 8),
    ("SELECT localtime", "0A000", "function localtime is not supported", 8),
    ("SELECT array_agg(b ORDER BY b) FROM heap", "0A000", "function array_agg is not supported", 8),
    ("SELECT json_build_object('b', b) FROM heap", "0A000", "function json_build_object is not supported", 8),
    ("SELECT U&'d!0061' UESCAPE '!'", "0A000", "UESCAPE is not supported", 8),
    ("SELECT U&'d!0061' -- one\n/* another */ UESCAPE '!'", "0A000", "UESCAPE is not supported", 8),
    ("SELECT a FROM heap ORDER BY 'x'", "42601", "non-integer constant in ORDER BY", 29),
    ("SELECT a AS x, b AS x FROM heap ORDER BY x", "42702", 'ORDER BY "x" is ambiguous', 42),
    ("SELECT DISTINCT a FROM heap ORDER BY b", "42P10",
     "for SELECT DISTINCT, ORDER BY expressions must appear in select list", 38),
    ("SELECT DISTINCT ON (a) b FROM heap ORDER BY b", "42P10",
     "SELECT DISTINCT ON expressions must match initial ORDER BY expressions", 21),
    ("SELECT a FROM heap UNION SELECT 1 ORDER BY a + 1", "0A000",
     "an expression in ORDER BY of UNION is not supported", 46),
    # recursion
    ("WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT 2.5 FROM x) SELECT 1", "42804",
     'recursive query "x" column 1 has type integer in non-recursive term but type numeric overall', 31),
    ("WITH RECURSIVE x AS (SELECT 1 FROM x UNION SELECT 1) SELECT 1", "42P19",
     'recursive query "x" does not have the form non-recursive-term UNION [ALL] recursive-term', 38),
    ("WITH RECURSIVE heap AS (SELECT a FROM heap) SELECT 1", "42P19",
     'recursive query "heap" does not have the form non-recursive-term UNION [ALL] recursive-term', 32),
    ("WITH RECURSIVE x AS (WITH y AS (SELECT 1 FROM x), x AS (SELECT 1) SELECT 1 FROM x) SELECT 1", "42P19",
     'recursive query "x" does not have the form non-recursive-term UNION [ALL] recursive-term', 74),
    ("WITH RECURSIVE x(n) AS (SELECT 1 UNION SELECT 1 WHERE EXISTS (SELECT 1 FROM x)) SELECT 1", "42P19",
     'recursive reference to query "x" must not appear within a subquery', 34),
    ("WITH RECURSIVE a AS (SELECT 1 AS n UNION SELECT n FROM b), b AS (SELECT n FROM a) SELECT n FROM b", "0A000",
     'mutual recursion between WITH queries ("a", "b") is not supported', 16),
    ("WITH b AS (SELECT n FROM a), a(n) AS (SELECT 1) SELECT n FROM b", "42P01", 'relation "a" does not exist', 26),
    # data
    ("INSERT INTO nosuch VALUES (1)", "42P01", 'relation "nosuch" does not exist', 13),
    ("INSERT INTO heap (nosuch) VALUES (1)", "42703", 'column "nosuch" of relation "heap" does not exist', 19),
    ("INSERT INTO heap (a, a) VALUES (1, 2)", "42701", 'column "a" specified more than once', 22),
    ("INSERT INTO heap VALUES (1, 2, 3)", "42601", "INSERT has more expressions than target columns", 18),
    ("INSERT INTO heap (a, b) VALUES (1)", "42601", "INSERT has more target columns than expressions", 25),
    ("INSERT INTO heap (a) VALUES (true)", "42804",
     'column "a" is of type integer but expression is of type boolean', None),
    ("INSERT INTO heap (a) SELECT name FROM customer", "42804",
     'column "a" is of type integer but expression is of type text', None),
    ("INSERT INTO heap (a, b) SELECT '1', '2' AS x FROM customer ORDER BY x", "42804",
     'column "b" is of type smallint but expression is of type text', None),
    ("INSERT INTO heap (a) VALUES (a)", "42703", 'column "a" does not exist', 30),
    ("INSERT INTO customer VALUES (1)", "428C9", 'cannot insert a non-DEFAULT value into column "id"', 30),
    ("UPDATE customer SET id = 1", "428C9", 'column "id" can only be updated to DEFAULT', 26),
    ("INSERT INTO customer (code) VALUES ('too long')", "22001", "value too long for type character varying(5)", 37),
    ("INSERT INTO heap VALUES (1) ON CONFLICT (a) DO NOTHING", "42P10",
     "there is no unique or exclusion constraint matching the ON CONFLICT specification", 41),
    ("INSERT INTO customer (name) VALUES ('') ON CONFLICT ON CONSTRAINT x DO NOTHING", "42704",
     'constraint "x" for table "customer" does not exist', 53),
    ("INSERT INTO customer (name) VALUES ('') ON CONFLICT DO UPDATE SET name = ''", "42601",
     "ON CONFLICT DO UPDATE requires inference specification or constraint name", 53),
    (f"{UPSERT} SET code = code || 'x'", "42702", 'column reference "code" is ambiguous', 81),
    (f"{UPSERT} SET code = 'x' WHERE balance > 1", "42702", 'column reference "balance" is ambiguous', 91),
    (f"{UPSERT} SET code = (SELECT code FROM heap)", "42702", 'column reference "code" is ambiguous', 89),
    ("UPDATE heap SET a = 1, a = 2", "42601", 'multiple assignments to same column "a"', 24),
    ("UPDATE heap SET (a, b) = (1, 2, 3)", "42601", "number of columns does not match number of values", 17),
    ("UPDATE heap SET a = sum(b)", "42803", "aggregate functions are not allowed in UPDATE", 21),
    ("DELETE FROM rich", "0A000", 'writing to view "rich" is not supported', 13),
    ("DELETE FROM instar.jobs", "42809", 'cannot change relation "jobs": it is a system view', 13),
    ("SELECT DEFAULT", "42601", 'syntax error at or near "DEFAULT"', 8),
    ("VALUES (DEFAULT)", "42601", "DEFAULT is not allowed in this context", 9),
    ("SELECT setval(x.name, 1) FROM customer x", "0A000", "setval of what is not a literal name is not supported", 8),
    ("SELECT nextval('nosuch')", "42P01", 'relation "nosuch" does not exist', 8),
    ("SELECT generate_series(1, 2)", "0A000", "set-returning function generate_series in SELECT is not supported", 8),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2147483648", (2147483648, BIGINT)),
        ("1e30", (Decimal(10**30), NUMERIC)),
        ("1e300", (1e300, DOUBLE)),
        ("-5E-324", (-5e-324, DOUBLE)),
        ("1e300::double precision", (1e300, DOUBLE)),
    ],
)
def test_numeric_constants(text: str, expected: tuple[object, Type]) -> None:
    found = expression(text)
    assert isinstance(found, tree.Literal)
    assert (found.value, found.type) == expected


@pytest.mark.parametrize("text", ["1e400", "1e-400", "1" * 39])
def test_constants_that_nothing_holds(text: str) -> None:
    with pytest.raises(Error) as caught:
        bound(f"SELECT {text}")
    assert caught.value.sqlstate == "22003"


@pytest.mark.parametrize(("sql", "code", "message", "position"), ERRORS)
def test_errors_are_postgresqls(sql: str, code: str, message: str, position: int | None) -> None:
    with pytest.raises(Error) as caught:
        bound(sql)
    found = caught.value
    assert (found.sqlstate, found.message) == (code, message)
    if position is not None:
        assert found.position == position


# --- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "hints", "expected"),
    [
        ("SELECT 1 FROM customer WHERE id = $1", (), (BIGINT,)),
        ("SELECT 1 FROM customer WHERE id = $1", (TEXT,), (BIGINT,)),
        ("SELECT 1 FROM heap WHERE a = $1", (BIGINT,), (INTEGER,)),
        ("SELECT 1 FROM heap WHERE a < $1", (DOUBLE,), (DOUBLE,)),
        ("SELECT 1 FROM heap WHERE a IN ($1, $2)", (), (INTEGER, INTEGER)),
        ("SELECT $1", (), (TEXT,)),
        ("SELECT $1", (DOUBLE,), (DOUBLE,)),
        ("SELECT $1::int", (TEXT,), (INTEGER,)),
        ("SELECT $1 + $2", (BIGINT, DOUBLE), (DOUBLE, DOUBLE)),
        ("SELECT $2::int", (), (TEXT, INTEGER)),
        ("SELECT upper($1)", (), (TEXT,)),
        ("SELECT abs($1)", (NUMERIC,), (NUMERIC,)),
        ("SELECT substring(name, $1) FROM customer", (BIGINT,), (INTEGER,)),
        ("SELECT CASE WHEN $1 THEN a ELSE $2 END FROM heap", (), (types.BOOLEAN, INTEGER)),
        ("SELECT coalesce(born, $1) FROM customer", (), (types.DATE,)),
        ("SELECT coalesce($1, born), nullif($2, id) FROM customer", (TEXT, TEXT), (types.DATE, BIGINT)),
        ("SELECT CASE WHEN a = 1 THEN $1 ELSE 1.5 END FROM heap", (TEXT,), (NUMERIC,)),
        ("SELECT x FROM (VALUES ($1), (1)) AS t (x)", (TEXT,), (INTEGER,)),
        ("SELECT 1 IN (2.5, $1), 1::real IN (1::float8, $2)", (TEXT, TEXT), (NUMERIC, DOUBLE)),
        ("SELECT coalesce($1, $2), coalesce($3, $4)", (TEXT, INTEGER, TEXT, TEXT), (INTEGER, INTEGER, TEXT, TEXT)),
        ("SELECT $1 BETWEEN 1 AND 2.5, 3 BETWEEN SYMMETRIC $2 AND $2", (TEXT, TEXT), (INTEGER, INTEGER)),
        ("SELECT 1 LIMIT $1 OFFSET $2", (), (BIGINT, BIGINT)),
        ("SELECT a FROM heap UNION SELECT $1", (), (INTEGER,)),
        ("INSERT INTO customer (code, balance) VALUES ($1, $2)", (TEXT, DOUBLE), (types.VARCHAR, NUMERIC)),
        ("INSERT INTO heap (a) VALUES ($1)", (NUMERIC,), (NUMERIC,)),
        ("INSERT INTO heap (a) SELECT $1", (), (INTEGER,)),
        ("INSERT INTO heap (a) SELECT $1 FROM customer ORDER BY id", (), (INTEGER,)),
        ("INSERT INTO heap (a) (SELECT $1 FROM customer ORDER BY id LIMIT 1) UNION SELECT 2", (), (INTEGER,)),
        ("UPDATE heap SET a = $1 WHERE b = $2", (), (INTEGER, types.SMALLINT)),
    ],
)
def test_parameters_take_the_type_of_their_place(
    sql: str, hints: tuple[Type | None, ...], expected: tuple[Type, ...]
) -> None:
    assert bound(sql, hints).parameters == expected


def test_a_parameter_used_twice_keeps_its_first_type() -> None:
    assert brief(expression("(h.a = $1, h.a = $1) = (true, true)")) == (
        "(=(=(3.1:a, $1:integer), True:boolean) AND =(=(3.1:a, $1:integer), True:boolean))"
    )
    assert bound("SELECT a = $1, id = $1 FROM heap, customer").parameters == (INTEGER,)


# --- expressions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h.a = 1.5", "=(3.1:a::~numeric, Decimal('1.5'):numeric)"),
        ("o.total > h.a", ">(2.2:total, 3.1:a::~double precision)"),
        ("c.name || c.code", "||(1.1:name, 1.2:code)"),
        ("h.a IN (1, 2.5)", "InList(operand=3.1:a::~numeric, items=(Decimal('1'):numeric, Decimal('2.5'):numeric))"),
        ("c.born = '2020-01-02'", "=(1.4:born, 18263:date)"),
        ("o.at = '2020-01-02'", "=(2.3:at, '2020-01-02':text::timestamp with time zone)"),
        ("7 / 2", "3:integer"),
        ("1 / 0", "/(1:integer, 0:integer)"),
        ("upper('a') || 'b'", "'Ab':text"),
        ("NULL + 1", "None:integer"),
        ("-32768::smallint", "-(32768:integer::smallint)"),  # :: binds tighter: out of range when it is evaluated
        ("(-32768)::smallint", "-32768:smallint"),
        ("99999999999", "99999999999:bigint"),
        ("'abc'::varchar(2)", "'ab':character varying(2)"),
        ("c.name::varchar(2)", "1.1:name::character varying(2)"),
        ("NOT (o.paid IS TRUE)", "IsTruth(operand=2.5:paid, truth=True, negated=True)"),
        ("NOT h.a IS NULL", "IsNull(operand=3.1:a, negated=True)"),
        ("(h.a, h.b) IS NULL", "(IsNull(operand=3.1:a) AND IsNull(operand=3.2:b))"),
        ("nullif('2', h.a)", "Case(whens=((=(2:integer, 3.1:a), None:integer)), default=2:integer)"),
        ("nullif(h.a, 1)", "Case(whens=((=(3.1:a, 1:integer), None:integer)), default=3.1:a)"),
        ("nullif(h.a, 2.5)",
         "Case(whens=((=(3.1:a::~numeric, Decimal('2.5'):numeric), None:numeric)), default=3.1:a::~numeric)"),
        ("nullif(9::numeric, o.total)",
         "Case(whens=((=(9.0:double precision, 2.2:total), None:double precision)), default=9.0:double precision)"),
        ("nullif(c.code, '')", "Case(whens=((=(1.2:code::~text, '':text), None:text)), default=1.2:code::~text)"),
        ("CASE h.a WHEN 1 THEN 2.5 END",
         "Case(whens=((=(3.1:a, 1:integer), Decimal('2.5'):numeric)), default=None:numeric)"),
    ],
)  # fmt: skip
def test_expressions(text: str, expected: str) -> None:
    assert brief(expression(text)) == expected


def test_output_names() -> None:
    sql = (
        "SELECT a, a + 1, upper('x'), a::text, '1'::int, CASE WHEN true THEN 1 END, coalesce(a, 1), (SELECT b FROM heap"
        " LIMIT 1), EXISTS (SELECT 1), count(*) OVER (), position('a' in 'b'), extract(year from now()), a AS z"
        " FROM heap"
    )
    assert [output.name for output in select(sql).outputs] == [
        "a", "?column?", "upper", "a", "int4", "case", "coalesce", "b", "exists", "count", "position", "extract", "z",
    ]  # fmt: skip


def test_names_are_found_level_by_level() -> None:
    inner = select("SELECT (SELECT a FROM orders LIMIT 1) FROM heap").outputs[0].expr
    assert isinstance(inner, tree.ScalarSubquery)
    assert isinstance(inner.query, tree.Select)
    assert brief(inner.query.outputs[0].expr) == "1.1:a"


@pytest.mark.parametrize(
    "query",
    [
        "(WITH x(n) AS (SELECT 2) SELECT n FROM x)",
        "(WITH y AS (SELECT 2 AS n), x AS (SELECT n FROM y) SELECT n FROM x)",
        "(WITH RECURSIVE x(n) AS (SELECT 1 UNION SELECT n + 1 FROM x) SELECT n FROM x)",
        "(SELECT (WITH x(n) AS (SELECT 2) SELECT n FROM x) AS n)",
        "((SELECT 1 AS n UNION SELECT n + 1 FROM x))",
    ],
)
def test_what_a_recursive_name_means_is_said_by_the_innermost_with(query: str) -> None:
    assert bound(f"WITH RECURSIVE x AS {query} SELECT n FROM x")


def test_a_group_by_name_is_first_a_column_and_an_order_by_name_first_an_output() -> None:
    grouped = select("SELECT -a AS b FROM heap GROUP BY a, b ORDER BY b")
    assert brief(grouped.group_exprs) == "(1.1:a, 1.2:b)"
    assert brief(grouped.order_by) == "(-(1.1:a))"


def test_dependencies() -> None:
    statement = bound("SELECT * FROM rich, orders, rich r2")
    assert {table.name for table in statement.tables} == {"customer", "orders"}
    assert [view.name for view in statement.views] == ["rich"]


def test_binding_is_deterministic() -> None:
    sql = (
        "SELECT * FROM rich r JOIN LATERAL (SELECT max(total) FROM orders o WHERE o.id = r.id) x ON true WHERE who = $1"
    )
    assert show(bound(sql)) == show(bound(sql))


def test_deep_trees_are_refused() -> None:
    for sql in ("SELECT " + "abs(" * 150 + "1" + ")" * 150, " UNION ALL ".join(["SELECT 1"] * 3000)):
        try:
            bound(sql)
        except Error as error:
            if error.sqlstate != "54001":
                raise


@pytest.mark.parametrize("joint", [" + a", " || 'x'", " OR a = 1", " AND a = 2"])
def test_long_chains_are_bound(joint: str) -> None:
    first = "'x'" if "|" in joint else "a = 3" if "=" in joint else "a"
    select(f"SELECT {first}{joint * 5000} FROM heap")


def test_mutations_of_the_corpus_bind_or_fail_cleanly() -> None:
    draw = random.Random(1)
    bindable = 0
    for _ in range(3000):
        text = mutated(draw.randrange(10**9))
        try:
            for statement in parse(text):
                if isinstance(statement, Query | Dml):
                    bindable += 1
                    bind(statement, CATALOG)
        except Error as error:
            if error.sqlstate[:2] not in ("42", "0A", "22", "54"):
                raise
    assert bindable > 50
