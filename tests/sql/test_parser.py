"""The grammar: what it reads, what it refuses and where, and that nothing makes it crash or hang."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from instar import types
from instar.errors import Error
from instar.sql import statements as ast
from instar.sql.grammar.lexer import tokenize
from instar.sql.grammar.type_names import parse_type
from instar.sql.parser import parse, parse_expression, parse_one, split
from instar.types import Kind, Type
from sql.binding import EVERYTHING

NAME = ast.Name("t")


def shape(text: str) -> str:
    """An expression fully parenthesised, to show what binds to what."""

    def write(node: exp.Expr) -> str:
        if isinstance(node, exp.Operator):
            return f"({write(node.this)} {node.args['operator']} {write(node.expression)})"
        if isinstance(node, exp.And | exp.Or):
            return f"({write(node.this)} {node.key} {write(node.expression)})"
        if isinstance(node, exp.Not):
            return f"(not {write(node.this)})"
        if isinstance(node, exp.Is):
            return f"({write(node.this)} is{' not' if node.args.get('negate') else ''} {write(node.expression)})"
        if isinstance(node, exp.Between):
            return f"({write(node.this)} between {write(node.args['low'])} {write(node.args['high'])})"
        if isinstance(node, exp.In):
            return f"({write(node.this)} in {', '.join(map(write, node.expressions))})"
        if isinstance(node, exp.Cast):
            return f"{write(node.this)}::{node.args['to'].args['kind']}"
        if node.key == "prefixoperator":
            return f"({node.args['operator']}{write(node.this)})"
        if isinstance(node, exp.Paren):
            return write(node.this)
        if isinstance(node, exp.Anonymous):
            return f"{node.name}({', '.join(map(write, node.expressions))})"
        return node.name.lower() or node.key

    return write(parse_expression(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c - d", "((a + (b * c)) - d)"),
        ("-2 ^ 2", "((-2) ^ 2)"),
        ("2 ^ 3 ^ 2", "((2 ^ 3) ^ 2)"),
        ("-a::int", "(-a::integer)"),
        ("a || b + c", "(a || (b + c))"),
        ("a || b = c || d", "((a || b) = (c || d))"),
        ("NOT a = b AND c", "((not (a = b)) and c)"),
        ("a OR b AND c", "(a or (b and c))"),
        ("NOT a IS NULL", "(not (a is null))"),
        ("a = b IS NOT NULL", "((a = b) is not null)"),
        ("a IS NULL = b", "((a is null) = b)"),
        ("NOT a IS NULL IS NOT TRUE ISNULL", "(not ((not ((a is null) is boolean)) is null))"),
        ("a IN (1) NOT IN (2) LIKE b", "((not ((a in 1) in 2)) ~~ b)"),
        ("a NOT IN (1) BETWEEN b AND c", "((not (a in 1)) between b c)"),
        ("a BETWEEN 1 AND 2 AND c", "((a between 1 2) and c)"),
        ("a NOT IN (1, 2) OR b", "((not (a in 1, 2)) or b)"),
        ("a LIKE b || c", "(a ~~ (b || c))"),
        ("a NOT ILIKE b ESCAPE 'x'", "(a !~~* like_escape(b, x))"),
        ("a -> 'b' ->> 'c' = 'd'", "(((a -> b) ->> c) = d)"),
        ("a < b - -1", "(a < (b - (-1)))"),
        ("a<-1", "(a < (-1))"),
        ("a OPERATOR(pg_catalog.+) b * c", "(a + (b * c))"),
        ("~ a + 1", "(~(a + 1))"),
        ("a !=b", "(a <> b)"),
        ("trim(both from a)", "btrim(a)"),
        ("trim(trailing 'x' from a)", "rtrim(a, x)"),
        ("position('x' in a)", "position(a, x)"),
        ("substring(a for 2)", "substring(a, 1, 2)"),
        ("extract(YEAR from a)", "extract(year, a)"),
        ("left(a, 1)", "left(a, 1)"),
        ("current_date", "current_date()"),
    ],
)
def test_operators_bind_as_in_postgresql(text: str, expected: str) -> None:
    assert shape(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it''s'", "it's"),
        ("E'a\\n\\x41\\101\\u0041\\'b'", "a\nAAA'b"),
        ("E'\\U0001F600'", "\U0001f600"),
        ("E'\\uD83D\\uDE00'", "\U0001f600"),
        ("U&'d\\0061t\\+000061'", "data"),
        ("U&'\\D83D\\DE00'", "\U0001f600"),
        ("$$it's$$", "it's"),
        ("$q$a $$ b$q$", "a $$ b"),
        ("'a'\n  'b'", "ab"),
        ("N'x'", "x"),
        ("'a\\'", "a\\"),
    ],
)
def test_strings(text: str, value: str) -> None:
    assert parse_expression(text) == exp.Literal.string(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("E'\\uD83Dx'", "invalid Unicode surrogate pair"),
        ("E'\\uDE00'", "invalid Unicode surrogate pair"),
        ("U&'\\D83D'", "invalid Unicode surrogate pair"),
        ("E'\\u0000'", "invalid Unicode escape value"),
        ("U&'\\0000'", "invalid Unicode escape value"),
    ],
)
def test_escapes_that_are_no_character(text: str, message: str) -> None:
    with pytest.raises(Error, match=message) as caught:
        parse_expression(text)
    assert caught.value.sqlstate == "42601"


@pytest.mark.parametrize(
    ("text", "value"), [("1_000", "1000"), ("0xFF", "255"), ("0b11", "3"), (".5", ".5"), ("1.", "1."), ("1e-3", "1e-3")]
)
def test_numbers(text: str, value: str) -> None:
    assert parse_expression(text) == exp.Literal.number(value)


def test_names_are_folded_and_cut() -> None:
    tokens = tokenize('Ab "Ab" "a""b" ÄB ' + "x" * 70)
    assert [token.value for token in tokens[:-1]] == ["ab", "Ab", 'a"b', "Äb", "x" * 63]


def test_comments_nest() -> None:
    assert parse("/* a /* b */ c */ -- d\n ;; ") == []
    assert shape("1 /* + 2 */ + /* /* */ */ 3 -- 4") == "(1 + 3)"


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("SELECT a FROM t, WHERE b", 'syntax error at or near "WHERE"', 18),
        ("SELECT a, FROM t", 'syntax error at or near "FROM"', 11),
        ("SELECT a FROM t WHERE a BETWEEN 1 2", 'syntax error at or near "2"', 35),
        ("SELECT a b c FROM t", 'syntax error at or near "c"', 12),
        ("SELECT (1", "syntax error at end of input", 10),
        ("SELECT 1 +", "syntax error at end of input", 11),
        ("SELECT a < b < c", 'syntax error at or near "<"', 14),
        ("SELECT a LIKE b LIKE c", 'syntax error at or near "LIKE"', 17),
        ("SELECT a BETWEEN b AND c IN (d)", 'syntax error at or near "IN"', 26),
        ("SELECT a IS DISTINCT FROM b IS NULL", 'syntax error at or near "IS"', 29),
        ("SELECT a FROM t GROUP BY", "syntax error at end of input", 25),
        ("SELECT * FROM t JOIN u", "syntax error at end of input", 23),
        ("SELECT * FROM t CROSS JOIN u ON true", 'syntax error at or near "ON"', 30),
        ("UPDATE t SET", "syntax error at end of input", 13),
        ("DELETE t WHERE a", 'syntax error at or near "t"', 8),
        ("INSERT INTO t VALUES (1) (2)", 'syntax error at or near "("', 26),
        ("VALUES 1", 'syntax error at or near "1"', 8),
        ("SELECT 'abc", 'unterminated quoted string at or near "\'abc"', 8),
        ('SELECT "abc', 'unterminated quoted identifier at or near ""abc"', 8),
        ("SELECT 1 /* x", 'unterminated /* comment at or near "/* x"', 10),
        ("SELECT $a$ x", 'unterminated dollar-quoted string at or near "$a$ x"', 8),
        ("SELECT 1a", 'trailing junk after numeric literal at or near "1a"', 8),
        ('SELECT ""', 'zero-length delimited identifier at or near """"', 8),
        ("SELECT a FROM t LIMIT 1, 2", "LIMIT #,# syntax is not supported", 17),
        ("SELECT 1 LIMIT 1 LIMIT 2", "multiple LIMIT clauses not allowed", 18),
        ("SELECT ?, $1", "a statement's parameters are either all ? or all $n", 11),
        ("FROM t", 'syntax error at or near "FROM"', 1),
        ("CREATE TABLE t (a int NULL NOT NULL)", 'conflicting NULL/NOT NULL declarations for column "a"', 28),
        ("CREATE SEQUENCE s START 1 START 2", "conflicting or redundant options", 27),
        ("ALTER JOB 1 SET (priority = 1, priority = 2)", "conflicting or redundant options", 32),
        ("PAUSE JOB x", 'syntax error at or near "x"', 11),
        ("BEGIN ISOLATION LEVEL NONE", 'syntax error at or near "NONE"', 23),
        ("SELECT 1; SELEC 2", 'syntax error at or near "SELEC"', 11),
        ("SELECT 1 \x01", 'syntax error at or near "\x01"', 10),
    ],
)
def test_syntax_errors_have_their_position(text: str, message: str, position: int) -> None:
    with pytest.raises(Error) as caught:
        parse(text)
    assert (caught.value.sqlstate, caught.value.message, caught.value.position) == ("42601", message, position)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT * FROM t TABLESAMPLE SYSTEM (1)", "TABLESAMPLE"),
        ("SELECT 1 WHERE 1 IN (SELECT 1 AS OF SYSTEM TIME now())", "AS OF SYSTEM TIME for a part of a statement"),
        ("INSERT INTO t SELECT 1 AS OF SYSTEM TIME now()", "AS OF SYSTEM TIME in a statement that is no query"),
        ("SELECT a INTO b FROM t", "SELECT INTO"),
        ("SELECT a ?| b", "operator ?|"),
        ("SELECT a ?& b", "operator ?&"),
        ("SELECT a[1]", "a subscript"),
        ("SELECT ARRAY[1]", "ARRAY"),
        ("SELECT a = ANY(b)", "ANY over an array"),
        ("SELECT a SIMILAR TO b", "SIMILAR TO"),
        ("SELECT a COLLATE b", "COLLATE"),
        ("SELECT f(a => 1)", "named notation of arguments"),
        ("SELECT interval '1 day'", "type interval"),
        ("SELECT x'1f'", "type bit"),
        ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t", "WITHIN GROUP"),
        ("SELECT a FROM t FETCH FIRST 1 ROW WITH TIES", "FETCH WITH TIES"),
        ("WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", "a data-modifying statement in WITH"),
        ("CREATE TEMP TABLE t (a int)", "CREATE TEMP"),
        ("CREATE TABLE t (a int[])", "type integer[]"),
        ("CREATE TABLE t (a char(3))", "type character"),
        ("CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a) VIRTUAL)", "a virtual generated column"),
        ("CREATE TABLE t (a int) PARTITION BY HASH (a)", "PARTITION of CREATE TABLE"),
        ("CREATE TABLE t (a int REFERENCES u DEFERRABLE)", "DEFERRABLE of a constraint"),
        ("CREATE INDEX ON t (a) WHERE a > 1", "a partial index"),
        ("CREATE INDEX ON t (lower(a))", "an index on an expression"),
        ("CREATE INDEX ON t USING gin (a)", "an index of kind gin"),
        ("CREATE INDEX ON t (a NULLS FIRST)", "an index column ASC NULLS FIRST"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1", "a materialized view that does not follow the log"),
        ("CREATE FUNCTION f() RETURNS int", "CREATE FUNCTION"),
        ("ALTER TABLE t OWNER TO x", "ALTER TABLE ... OWNER"),
        ("COPY t FROM stdin", "COPY"),
        ("GRANT ALL ON t TO x", "GRANT"),
        ("VACUUM", "VACUUM"),
        ("MERGE INTO t USING u ON true", "MERGE"),
        ("EXPLAIN (FORMAT json) SELECT 1", "EXPLAIN option FORMAT"),
        ("SELECT * FROM a.b.c", "a reference to another database"),
    ],
)
def test_what_is_not_supported_is_named(text: str, what: str) -> None:
    with pytest.raises(Error) as caught:
        parse(text)
    assert (caught.value.sqlstate, caught.value.message) == ("0A000", f"{what} is not supported")
    assert caught.value.position is not None


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("int", types.INTEGER),
        ("INT4", types.INTEGER),
        ("int8", types.BIGINT),
        ("int2", types.SMALLINT),
        ("pg_catalog.int8", types.BIGINT),
        ("float", types.DOUBLE),
        ("float(24)", types.REAL),
        ("float8", types.DOUBLE),
        ("double precision", types.DOUBLE),
        ("dec(5)", Type(Kind.NUMERIC, precision=5, scale=0)),
        ("decimal", types.NUMERIC),
        ("numeric(10, 2)", Type(Kind.NUMERIC, precision=10, scale=2)),
        ("varchar", types.VARCHAR),
        ("character varying(3)", Type(Kind.VARCHAR, length=3)),
        ("bool", types.BOOLEAN),
        ("timestamptz", types.TIMESTAMPTZ),
        ("timestamp with time zone", types.TIMESTAMPTZ),
        ("timestamp(6) without time zone", types.TIMESTAMP),
        ('"date"', types.DATE),
    ],
)
def test_type_names(text: str, type_: Type) -> None:
    assert parse_type(text) == type_
    assert parse_type(str(type_)) == type_


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("nosuch", "42704"),
        ("money", "0A000"),
        ("time", "0A000"),
        ("json", "0A000"),
        ("numeric(39)", "0A000"),
        ("numeric(0)", "22023"),
        ("varchar(0)", "22023"),
        ("int(3)", "42601"),
        ("timestamp(3)", "0A000"),
    ],
)
def test_type_errors(text: str, code: str) -> None:
    with pytest.raises(Error) as caught:
        parse_type(text)
    assert caught.value.sqlstate == code


def test_create_table() -> None:
    statement = parse_one(
        "CREATE TABLE IF NOT EXISTS s.t (id bigint GENERATED BY DEFAULT AS IDENTITY (START 5) PRIMARY KEY,"
        " a varchar(3) NOT NULL DEFAULT 'x' CONSTRAINT q UNIQUE, b serial, c int CHECK (c > 0) REFERENCES p ON DELETE"
        " SET NULL, CONSTRAINT z CHECK (a <> ''), FOREIGN KEY (a, c) REFERENCES p (x, y) ON UPDATE CASCADE)"
    )
    assert isinstance(statement, ast.CreateTable)
    assert (statement.name, statement.if_not_exists) == (ast.Name("t", "s"), True)
    identity, a, b, c = statement.columns
    assert identity.identity == ast.Identity(False, ast.SequenceOptions(start=5))
    assert not identity.nullable
    assert (a.type, a.nullable, a.default) == (Type(Kind.VARCHAR, length=3), False, exp.Literal.string("x"))
    assert (b.type, b.serial, b.nullable) == (types.INTEGER, True, False)
    assert c.nullable
    primary, unique, check, foreign, named, table_foreign = statement.constraints
    assert primary == ast.PrimaryKey(("id",))
    assert unique == ast.Unique(("a",), "q")
    assert isinstance(check, ast.Check)
    assert (check.name, check.column) == (None, "c")
    assert foreign == ast.ForeignKey(("c",), ast.Name("p"), on_delete="set null")
    assert isinstance(named, ast.Check)
    assert (named.name, named.column) == ("z", None)
    assert table_foreign == ast.ForeignKey(("a", "c"), ast.Name("p"), ("x", "y"), on_update="cascade")


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("PAUSE JOB 3", ast.JobControl("pause", 3)),
        ("SHOW JOBS", ast.ShowJobs()),
        ("SHOW jobs_limit", ast.ShowVariable("jobs_limit")),
        ("CHECK TABLE t", ast.CheckTable(NAME)),
        ("CHECK DATABASE", ast.CheckDatabase()),
        ("COMPACT TABLE t", ast.CompactTable(NAME)),
        ("BEGIN", ast.Begin()),
        ("START TRANSACTION READ ONLY", ast.Begin(ast.TransactionModes(read_only=True))),
        ("END", ast.Commit()),
        ("ABORT WORK", ast.Rollback()),
        ("ROLLBACK TO a", ast.RollbackTo("a")),
        ("SAVEPOINT a", ast.Savepoint("a")),
        ("RELEASE a", ast.ReleaseSavepoint("a")),
        ("SET x.y TO 1, -2, on", ast.SetVariable("x.y", ("1", "-2", "on"))),
        ("SET LOCAL x = DEFAULT", ast.SetVariable("x", None, local=True)),
        ("SET TIME ZONE LOCAL", ast.SetVariable("timezone", None)),
        ("RESET ALL", ast.ResetVariable("all")),
        ("SHOW TIME ZONE", ast.ShowVariable("timezone")),
        ("DROP TABLE IF EXISTS t, s.u CASCADE", ast.DropTable((NAME, ast.Name("u", "s")), True, True)),
        ("DROP INDEX CONCURRENTLY t", ast.DropIndex((NAME,))),
        ("TRUNCATE t RESTART IDENTITY", ast.Truncate((NAME,), restart_identity=True)),
        (
            "CREATE INDEX ON t (a, b DESC)",
            ast.CreateIndex(None, NAME, (ast.IndexColumn("a"), ast.IndexColumn("b", True))),
        ),
        ("ALTER TABLE t RENAME a TO b", ast.AlterTable(NAME, (ast.RenameColumn("a", "b"),))),
        ("ALTER TABLE t RENAME TO u", ast.AlterTable(NAME, (ast.RenameTable("u"),))),
        (
            "ALTER TABLE t ALTER a DROP NOT NULL, ALTER COLUMN b SET DATA TYPE text",
            ast.AlterTable(NAME, (ast.DropNotNull("a"), ast.SetType("b", types.TEXT))),
        ),
        ("ALTER TABLE t DROP CONSTRAINT IF EXISTS c", ast.AlterTable(NAME, (ast.DropConstraint("c", True),))),
        ("ALTER SEQUENCE t RESTART", ast.AlterSequence(NAME, ast.SequenceOptions(restart="start"))),
        ("DROP VIEW t", ast.DropView((NAME,))),
        ("EXPLAIN (VERBOSE, FORMAT text, DDL off) TRUNCATE t", ast.Explain(ast.Truncate((NAME,)), 41, verbose=True)),
        ("EXPLAIN (DDL) DROP TABLE t", ast.Explain(ast.DropTable((NAME,)), 15, ddl=True)),
    ],
)
def test_statements(text: str, statement: ast.Statement) -> None:
    assert parse_one(text) == statement


def test_parameters_are_counted_per_statement() -> None:
    first, second, third = parse("SELECT ?, ?; DELETE FROM t WHERE a = ?; SELECT $3")
    assert isinstance(first, ast.Query)
    assert isinstance(second, ast.Dml)
    assert isinstance(third, ast.Query)
    assert (first.parameters, second.parameters, third.parameters) == (2, 1, 3)


@pytest.mark.parametrize("text", ["CREATE TABLE t AS SELECT $1", "CREATE VIEW v AS SELECT ?", "SELECT $0"])
def test_parameters_where_none_may_be(text: str) -> None:
    with pytest.raises(Error) as caught:
        parse(text)
    assert caught.value.sqlstate == "42P02"


def test_there_are_at_most_65535_parameters() -> None:
    text = "SELECT " + ", ".join("?" * 65_535)
    (found,) = parse(text)
    assert isinstance(found, ast.Query)
    assert found.parameters == 65_535
    for last, sqlstate in (("?", "54000"), ("$65536", "42P02")):
        whole = f"{text}, {last}" if last == "?" else f"SELECT {last}"
        with pytest.raises(Error) as caught:
            parse(whole)
        assert (caught.value.sqlstate, caught.value.position) == (sqlstate, len(whole) - len(last) + 1)


def test_parse_one_wants_one() -> None:
    for text in ("", "SELECT 1; SELECT 2"):
        with pytest.raises(Error, match="statement"):
            parse_one(text)


@pytest.mark.parametrize(("text", "position"), [("", 1), (" -- nothing", 1), ("SELECT ';' ; ;\n /* ; */ SELECT 2", 25)])
def test_parse_one_says_where_the_second_begins(text: str, position: int) -> None:
    with pytest.raises(Error) as caught:
        parse_one(text)
    assert (caught.value.sqlstate, caught.value.position) == ("42601", position)


def test_split_minds_quotes_and_comments() -> None:
    script = "select ';' ; /* ; */ $$;$$ -- ;\n; create table \"a;b\" (x int)"
    found = split(script)
    assert [fragment.terminated for fragment in found] == [True, True, False]
    assert [script[f.start : f.end] for f in found] == [f.text for f in found]
    assert [f.text.strip() for f in found] == ["select ';'", "$$;$$ -- ;", 'create table "a;b" (x int)']


@pytest.mark.parametrize("rest", ["select 'a;", 'select "a;', "select /* a;", "select $x$ a;", "'", "/*"])
def test_split_leaves_the_unfinished(rest: str) -> None:
    first, last = split("select 1; " + rest)
    assert (first.text, first.terminated) == ("select 1", True)
    assert (last.text, last.terminated) == (rest, False)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 3000 + "1" + ")" * 3000,
        "SELECT " + "NOT " * 5000 + "true",
        "SELECT " + "case when true then " * 2000 + "1" + " end" * 2000,
        "SELECT * FROM " + "(" * 2000 + "t" + ")" * 2000,
        " UNION ".join(["(SELECT 1"] * 2000) + ")" * 2000,
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(Error) as caught:
        parse(text)
    assert caught.value.sqlstate in ("54001", "42601")


@pytest.mark.parametrize("joint", [" + 1", " AND true", " || 'a'", ", 1", " OR a = 1"])
def test_long_chains_are_read(joint: str) -> None:
    assert len(parse("SELECT 1" + joint * 20_000)) == 1


@pytest.mark.parametrize("text", EVERYTHING)
def test_corpus_is_read(text: str) -> None:
    assert len(parse(text)) == 1


WORDS = sorted({word for text in EVERYTHING for word in re.findall(r"'[^']*'|\w+|\S", text)})


def mutated(seed: int) -> str:
    """A statement of the corpus with a few words left out, put in, or taken from another statement."""
    draw = random.Random(seed)
    words = re.findall(r"'[^']*'|\w+|\S", draw.choice(EVERYTHING))
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(words) + 1)
        what = draw.random()
        if what < 0.3:
            words[at : at + draw.randint(1, 3)] = []
        elif what < 0.7:
            words.insert(at, draw.choice(WORDS))
        else:
            other = re.findall(r"'[^']*'|\w+|\S", draw.choice(EVERYTHING))
            start = draw.randrange(len(other))
            words[at:at] = other[start : start + draw.randint(1, 8)]
    return " ".join(words)


def error_of(text: str) -> Error | None:
    """The error that parsing raises; a failure if it is one that blames Instar."""
    try:
        parse(text)
    except Error as error:
        if error.sqlstate[:2] not in ("42", "0A", "22", "54"):
            raise
        return error
    return None


def test_mutations_of_the_corpus_yield_a_tree_or_an_error() -> None:
    for seed in range(3000):
        text = mutated(seed)
        began = time.thread_time()
        error = error_of(text)
        assert time.thread_time() - began < 5, text  # what takes exponential time takes longer than that
        assert error is None or error.position is None or 1 <= error.position <= len(text) + 1, text


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_text_yields_a_tree_or_an_error(text: str) -> None:
    for candidate in (text, "SELECT " + text, "SELECT '" + text, 'CREATE TABLE t (a int DEFAULT E"' + text):
        error_of(candidate)


@given(st.text(alphabet="'\"$/*-;\\ax\n ", max_size=60))
def test_split_loses_nothing_but_separators(script: str) -> None:
    try:
        fragments = split(script)
    except Error:
        return
    ends = [0]
    for fragment in fragments:
        assert fragment.text == script[fragment.start : fragment.end]
        assert fragment.start >= ends[-1]
        ends.append(fragment.end)
    assert all(fragment.terminated for fragment in fragments[:-1])
