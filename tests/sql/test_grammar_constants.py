"""Rows of constants after VALUES mean what they mean as expressions, as which a comment before them has them read."""

from __future__ import annotations

import random

import pytest

from instar.errors import TOO_MANY_COLUMNS, Error
from instar.sql.grammar.constants import MOST_ENTRIES
from instar.sql.grammar.lexer import ROWS, tokenize
from instar.sql.parser import split
from sql.binding import bound, show
from support.databases import Engine, rows, value

SLOW = "VALUES/**/"

CONSTANTS = (
    "1", "-1", "+7", "0.5", ".5", "5.", "1e3", "-1.5E-3", "1e300", "2147483648", "-2147483648", "9" * 39, "null",
    "NULL", "true",
    "False", "'a'", "''", "'it''s, (1)'", "'2020-02-30'", "'12'", "'{\"a\": 1}'", "'é\n;'", "'-- x'", "'/*'",
)  # fmt: skip
OTHERS = ("1 + 1", "- 5", "now()", "'a' 'b'", "'a'\n'b'", "E'a'", "1::int", "default", "(1)", "1_000", "0x1f", "1/**/")
PREFIXES = (
    "INSERT INTO orders (id, note) ",
    "INSERT INTO heap ",
    "SELECT * FROM (",
    "INSERT INTO customer (name, born) ",
    "",
)


def outcome(sql: str) -> tuple[str, ...]:
    """The bound tree; of an error what it is, and where."""
    try:
        return (show(bound(sql)),)
    except Error as error:
        position = error.position or 0
        if SLOW in sql and position > sql.find(SLOW) + 1:
            position -= len(SLOW) - len("VALUES")
        return error.sqlstate, error.message, str(position)


def text_of(draw: random.Random) -> str:
    def space() -> str:
        return draw.choice(("", "", " ", "\n\t"))

    def row() -> str:
        kinds = CONSTANTS if draw.random() < 0.9 else CONSTANTS + OTHERS
        cells = [space() + draw.choice(kinds) + space() for _ in range(2 if draw.random() < 0.97 else 3)]
        return f"({','.join(cells)})"

    prefix = draw.choice(PREFIXES)
    listed = f"{space()},{space()}".join(row() for _ in range(draw.randint(1, 4)))
    tail = ") x" if prefix.endswith("(") else draw.choice(("", "", " x", ";", ",", ")")) + space()
    return f"{prefix}VALUES {listed}{tail}"


@pytest.mark.parametrize("batch", range(4))
def test_as_expressions(batch: int) -> None:
    draw = random.Random(batch)
    plain = 0
    for _ in range(500):
        sql = text_of(draw)
        plain += any(token.kind == ROWS for token in tokenize(sql))
        found, wanted = outcome(sql), outcome(sql.replace("VALUES", SLOW, 1))
        # Nodes of NULL, TRUE and FALSE do not know where they stand.
        assert found == wanted or (found[:2] == wanted[:2] and wanted[2] == "0"), sql
    assert plain > 300


@pytest.mark.parametrize(
    ("sql", "message", "position"),
    [
        ("SELECT values (1, 2)", 'syntax error at or near "("', 15),
        ("CREATE TABLE t (a int) values (1)", 'syntax error at or near "values"', 24),
        ("INSERT INTO heap VALUES (1, 2) (3, 4)", 'syntax error at or near "("', 32),
        ("INSERT INTO heap VALUES (1, 2), (3, 'x)", 'unterminated quoted string at or near "\'x)"', 37),
    ],
)
def test_errors_are_where_they_were(sql: str, message: str, position: int) -> None:
    with pytest.raises(Error) as refused:
        bound(sql)
    assert (refused.value.message, refused.value.position) == (message, position)


def test_a_script_is_cut_behind_them() -> None:
    assert [found.text for found in split("values (1, ';'), (2, 'b'); values ('a')")] == [
        "values (1, ';'), (2, 'b')",
        "values ('a')",
    ]


def test_a_great_many_rows_in_one_statement() -> None:
    engine = Engine(":memory:")
    connection = engine.connect()
    connection.execute("create table t (id int primary key, v text, n numeric(10, 2))")
    listed = ", ".join(f"({number}, 'it''s {number}', {number}.255)" for number in range(20_000))
    connection.execute(f"insert into t values {listed}, (-1, upper('x'), default)")
    assert value(connection, "select count(*) from t") == 20_001
    assert rows(connection, "select v, n::text from t where id in (-1, 7) order by id") == [
        ("X", None),
        ("it's 7", "7.26"),
    ]
    assert value(connection, f"select sum(column1) from (values {listed}) x") == sum(range(20_000))
    engine.close()


@pytest.mark.parametrize("before", ["", "(1), ", "(now()), "])
def test_rows_of_too_many_constants(before: str) -> None:
    """They are refused before there is a token of each; behind an expression tokens are what there is."""
    widest, wider = (f"VALUES {before}({', '.join(['1'] * count)})" for count in (MOST_ENTRIES, MOST_ENTRIES + 1))
    assert len(tokenize(widest)) > 0
    if "now" in before:
        assert len(tokenize(wider)) > MOST_ENTRIES
        return
    with pytest.raises(Error) as caught:
        tokenize(wider)
    assert (caught.value.sqlstate, caught.value.position) == (TOO_MANY_COLUMNS, 8 + len(before))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("VALUES /**/ ({wide})", None),
        ("VALUES (1+1, {wide})", None),
        ("SELECT {wide}", None),
        ("INSERT INTO t VALUES (1), (2), ({wide})", 32),
        ("SELECT t.*, {narrow}, t.* FROM t", None),
        ("INSERT INTO t VALUES (1) RETURNING {wide}", None),
    ],
)
def test_no_list_has_more_entries(text: str, position: int | None) -> None:
    """As of PostgreSQL's target lists, however an entry is written."""
    engine = Engine(":memory:")
    connection = engine.connect()
    connection.execute("CREATE TABLE t (a int)")
    wide, narrow = ", ".join(["1"] * (MOST_ENTRIES + 1)), ", ".join(["1"] * (MOST_ENTRIES - 1))
    with pytest.raises(Error) as caught:
        connection.execute(text.format(wide=wide, narrow=narrow))
    assert (caught.value.sqlstate, caught.value.position) == (TOO_MANY_COLUMNS, position)
    widest = ", ".join(["1"] * MOST_ENTRIES)
    for fitting in (f"SELECT {widest}", f"VALUES (1+0{widest[1:]})"):
        assert connection.execute(fitting).fetchall() == [(1,) * MOST_ENTRIES]
    engine.close()


def test_rows_without_a_comma_between_are_no_syntax() -> None:
    with pytest.raises(Error) as caught:
        Engine(":memory:").connect().execute(f"VALUES (1) ({', '.join(['1'] * (MOST_ENTRIES + 1))})")
    assert caught.value.sqlstate == "42601"
