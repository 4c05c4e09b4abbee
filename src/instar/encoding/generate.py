"""Functions made from generated source: what keys.py and rows.py specialise to a list of types."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any


@lru_cache(maxsize=4096)
def compile_source(source: str, name: str) -> CodeType:
    """The code of a module of generated source. A new version of a table mostly needs what the last one had.
    RecursionError where it nests too deeply."""
    try:
        return compile(source, f"<instar {name}>", "exec")
    except MemoryError:  # as Python's parser has it, from some depth on
        raise RecursionError("generated source nests too deeply") from None


def compile_function(name: str, lines: Sequence[str], scope: dict[str, Any]) -> Any:
    """The function `name` that the source `lines` define, with `scope` as its globals.

    The source is made from types and positions alone, never from names, data or SQL text.
    """
    exec(compile_source("\n".join(lines), name), scope)
    return scope.pop(name)  # a function that is among its own globals is freed by the garbage collector only


def concatenation(parts: Sequence[str]) -> str:
    """Of expressions of bytes, as source: a chain of sums, which is faster for a few, would nest as deeply as many."""
    return " + ".join(parts) if len(parts) < 4 else f"b''.join(({', '.join(parts)}))"
