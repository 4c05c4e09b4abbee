"""Where a task computes what it then puts: everything outside of the atomic section that takes the processor for long.

Whoever runs tasks decides; the tasks themselves only say what there is to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Computing(Protocol):
    """Somewhere to compute. Nothing that is computed there enters the atomic section."""

    def run(self, action: Callable[[], T]) -> T:
        """What `action` returns or raises, once it has."""
        ...

    def outside(self, action: Callable[[], None]) -> Callable[[], None]:
        """A function that calls `action` where `run` was called, and may be called in the middle of what is run."""
        ...


class Here:
    """Computes in the calling thread."""

    def run(self, action: Callable[[], T]) -> T:
        """As in `Computing`."""
        return action()

    def outside(self, action: Callable[[], None]) -> Callable[[], None]:
        """As in `Computing`."""
        return action
