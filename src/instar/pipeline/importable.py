"""Functions that Spark's tasks are handed by name: they import them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """`module:function`, for a function of a module."""
    return f"{function.__module__}:{function.__qualname__}"


def imported(name: str) -> Callable[..., Any]:
    """The function of that name."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
