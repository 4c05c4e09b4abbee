"""Where statements end, and that nothing that hides a semicolon is mistaken for an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.cli.statements import Piece, lines_of, split, unfinished


def texts(text: str) -> list[str]:
    return [piece.text for piece in split(lines_of(text))]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "SELECT ';'",
        "SELECT 'it''s; so'",
        r"SELECT E'it\'s; so'",
        r"SELECT e'it''s \\'",
        r"SELECT 'a\'",
        'SELECT ";" FROM "a"";b"',
        "SELECT $$;$$",
        "SELECT $a$; $$ ; $b$ $a$",
        "SELECT a$b$c",
        "SELECT $1, $2",
        "SELECT 1 -- ; no end\n + 2",
        "SELECT /* ; /* nested; */ ; */ 1",
        "SELECT '\n;\n'",
        "SELECT $x$\n;\n$x$, 1",
        "SELECT E'\\\n;\\''",
        "SELECT 'e;' || E'e\\';'",
    ],
)
def test_one_statement(statement: str):
    assert texts(statement) == [statement]
    assert texts(statement + ";") == [statement]
    assert texts(f"SELECT 0;{statement};SELECT 2;") == ["SELECT 0", statement, "SELECT 2"]
    assert unfinished(statement) is not None
    assert unfinished(statement + ";") is None


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x1c", "\x1d", "\x1e", "\v", "\f"])
def test_nothing_but_a_newline_or_a_carriage_return_ends_a_comment(sign: str):
    statement = f"SELECT 1 -- a{sign}; SELECT 2;\n, 3"
    assert texts(statement + "; SELECT 4") == [statement, "SELECT 4"]
    assert unfinished(f"SELECT 1; -- a{sign}SELECT 2") is None
    assert texts(f"SELECT 1 -- {sign}a\r; SELECT 2") == [f"SELECT 1 -- {sign}a", "SELECT 2"]


def test_carriage_returns_are_kept_and_end_no_line():
    text = "SELECT 'a\rb\r\n';\r\n\\dt x\r\nSELECT\r\n2;\r\n"
    assert list(split(lines_of(text))) == [
        Piece("sql", "SELECT 'a\rb\r\n'", 1),
        Piece("command", "\\dt x", 3),
        Piece("sql", "SELECT\r\n2", 4),
    ]


@pytest.mark.parametrize("text", ["/* a", "/* a; /* b */\n", "/* a */ /*"])
def test_a_comment_that_goes_on_at_the_end_is_a_statement(text: str):
    assert texts(f"SELECT 1; {text}") == ["SELECT 1", text.strip()]


def test_nothing_but_space_and_comments_is_no_statement():
    assert texts(" ;; -- a\n /* b; */ ;\n") == []
    assert unfinished("") is None
    assert unfinished("-- only a comment") is None


def test_lines_are_those_where_the_text_begins():
    text = "\n\nSELECT 1;\n\\dt x\n  SELECT\n 2; SELECT 3;\n-- why\nSELECT 4"
    assert list(split(lines_of(text))) == [
        Piece("sql", "SELECT 1", 3),
        Piece("command", "\\dt x", 4),
        Piece("sql", "SELECT\n 2", 5),
        Piece("sql", "SELECT 3", 6),
        Piece("sql", "-- why\nSELECT 4", 7),
    ]


def test_a_backslash_inside_a_statement_is_no_command():
    assert texts("SELECT '\n\\dt\n';") == ["SELECT '\n\\dt\n'"]


@pytest.mark.parametrize(
    ("text", "inside"),
    [("SELECT", ""), ("SELECT '", "'"), ('SELECT "', '"'), ("SELECT $q$", "$"), ("/* a", "*"), ("SELECT /* a", "*")],
)
def test_the_prompt_learns_what_is_open(text: str, inside: str):
    splitter = unfinished(text)
    assert splitter is not None
    assert splitter.inside == inside


@given(st.lists(st.sampled_from(["'", '"', ";", "$$", "$a$", "--", "/*", "*/", "\n", "\\", "e", " ", "x", "''"])))
def test_the_pieces_are_the_text_and_each_is_one_statement(tokens: list[str]):
    text = "".join(tokens)
    pieces = [piece.text for piece in split(lines_of(text))]
    rest = text
    for piece in pieces:  # in order, and nothing is lost but space, comments and semicolons
        assert piece in rest
        rest = rest[rest.index(piece) + len(piece) :]
        if not piece.startswith("\\"):
            assert [again.text for again in split(lines_of(piece))] == [piece]
