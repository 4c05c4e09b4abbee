"""Functions made from generated source: what keys.py and rows.py specialise to a list of types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def compile_function(name: str, lines: Sequence[str], scope: dict[str, Any]) -> Any:
    """The function `name` that the source `lines` define, with `scope` as its globals.

    The source is made from types and positions alone, never from names, data or SQL text.
    """
    exec(compile("\n".join(lines), f"<instar {name}>", "exec"), scope)
    return scope[name]
