"""Text -> statements: the entry to the grammar.

The grammar (grammar/) is strict: every statement is understood as a whole or refused with 42601 and the position of
the offending token, or with 0A000 naming what Instar lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from sqlglot import exp

from instar import errors
from instar.sql.grammar.lexer import END, OPERATOR, Unterminated, scan, tokenize
from instar.sql.grammar.utility import StatementGrammar
from instar.sql.statements import Query, Statement

T = TypeVar("T")


class Fragment(msgspec.Struct, frozen=True):
    """One statement of a script: characters [start, end), without its ";". `terminated`: the ";" was there."""

    text: str
    start: int
    end: int
    terminated: bool


def parse(text: str) -> list[Statement]:
    """The statements of `text`, separated by ";"; none for white space and comments alone.

    Positions in errors and trees are 1-based characters of `text`. Errors: 42601 syntax, 0A000 unsupported, 42P02
    parameters where none may be, 54000 and 54001 too long or too deeply nested, 22021 characters that are none.
    """
    return _guarded(text, _statements)


def parse_one(text: str) -> Statement:
    """The one statement of `text`; 42601 if there are more or none."""
    found = parse(text)
    if not found:
        raise errors.error(errors.SYNTAX_ERROR, "there is no statement", position=1)
    if len(found) > 1:
        second = split(text)[1].start + 1
        raise errors.error(errors.SYNTAX_ERROR, "cannot execute multiple statements at once", position=second)
    return found[0]


def parse_query(text: str) -> Query:
    """The query that `text` is: a view's stored text."""
    return _guarded(text, _whole_query)


def parse_expression(text: str) -> exp.Expr:
    """The expression that `text` is: a stored default or check."""
    return _guarded(text, _whole_expression)


def split(script: str) -> list[Fragment]:
    """Cut a script at its ";", minding quotes, dollar quotes and comments.

    The last fragment may be unfinished, ending inside a quote or comment: a shell reads on. Fragments of white space
    and comments alone are left out. Raises only for characters that no statement can hold.
    """
    try:
        tokens = scan(script)
        unfinished = None
    except Unterminated as error:
        tokens = scan(script[: error.start])
        unfinished = error.start
    fragments = []
    first: int | None = None
    for token in tokens:
        if token.kind == END:
            if first is not None or unfinished is not None:
                start = unfinished if first is None or (unfinished is not None and unfinished < first) else first
                assert start is not None
                end = len(script) if unfinished is not None else len(script.rstrip())
                fragments.append(Fragment(script[start:end], start, end, False))
        elif token.kind == OPERATOR and token.value == ";":
            if first is not None:
                fragments.append(Fragment(script[first : token.start], first, token.start, True))
            first = None
        elif first is None:
            first = token.start
    return fragments


def _guarded(text: str, read: Callable[[StatementGrammar], T]) -> T:
    try:
        return read(StatementGrammar(text, tokenize(text)))
    except RecursionError:
        message = "statement is too deeply nested"
        raise errors.error(errors.STATEMENT_TOO_COMPLEX, message) from None


def _statements(grammar: StatementGrammar) -> list[Statement]:
    found = []
    while grammar.token.kind != END:
        if not grammar.try_operator(";"):
            found.append(grammar.statement())
    return found


def _whole_query(grammar: StatementGrammar) -> Query:
    query = grammar.wrapped_query()
    if grammar.token.kind != END:
        grammar.fail()
    return query


def _whole_expression(grammar: StatementGrammar) -> exp.Expr:
    expression = grammar.expression()
    if grammar.token.kind != END:
        grammar.fail()
    return expression
