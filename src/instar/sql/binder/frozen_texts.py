"""The texts of descriptors, read again: parsed once, and without positions in the errors of binding them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from sqlglot import exp

from instar import errors
from instar.sql.parser import parse_expression, parse_query

T = TypeVar("T")

# Descriptors' texts are bound again with every statement that needs them, and binding only reads their trees.
parsed_expression = lru_cache(maxsize=1024)(parse_expression)
parsed_query = lru_cache(maxsize=256)(parse_query)


# So many levels deeper may be in Python's stack who binds a text than who made it.
_MARGIN = 12


def lasting(text: str, bind: Callable[[exp.Expr], object]) -> str:
    """An expression's text, if it can be bound again: it has parentheses where the statement needed none. 54001 now,
    and not for whoever writes a row."""
    unplaced(lambda: bind(parse_expression("(" * _MARGIN + text + ")" * _MARGIN)))
    return text


def unplaced(read: Callable[[], T]) -> T:
    """What `read` gives. The errors that it raises have no position: one in a frozen text means nothing to the user."""
    try:
        return read()
    except errors.Error as error:
        error.position = None
        raise
