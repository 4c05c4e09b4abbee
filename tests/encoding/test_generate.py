"""Functions made from generated source."""

from __future__ import annotations

import gc
import weakref

import pytest

from instar.encoding.generate import compile_function, compile_source


def test_a_function_is_freed_with_its_last_user() -> None:
    """Not by the garbage collector, as it would be if it were among its own globals."""
    gc.disable()
    try:
        made = compile_function("double", ["def double(value):", "    return value * factor"], {"factor": 2})
        assert made(3) == 6
        found = weakref.ref(made)
        del made
        assert found() is None
    finally:
        gc.enable()


def test_what_nests_too_deeply_for_pythons_parser_is_told_as_that() -> None:
    """It says MemoryError from some depth on, which would be no error of the statement."""
    with pytest.raises(RecursionError):
        compile_source("value = " + "a if b else " * 100_000 + "a", "deep")
