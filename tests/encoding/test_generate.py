"""Functions made from generated source."""

from __future__ import annotations

import gc
import weakref

from instar.encoding.generate import compile_function


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
