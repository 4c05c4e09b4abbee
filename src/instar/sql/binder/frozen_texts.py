"""The texts of descriptors, read again: parsed once, and without positions in the errors of binding them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from instar import errors
from instar.sql.parser import parse_expression, parse_query

T = TypeVar("T")

# Descriptors' texts are bound again with every statement that needs them, and binding only reads their trees.
parsed_expression = lru_cache(maxsize=1024)(parse_expression)
parsed_query = lru_cache(maxsize=256)(parse_query)


def unplaced(read: Callable[[], T]) -> T:
    """What `read` gives. The errors that it raises have no position: one in a frozen text means nothing to the user."""
    try:
        return read()
    except errors.Error as error:
        error.position = None
        raise
