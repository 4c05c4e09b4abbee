"""Values that are computed when they are first asked for.

Python 3.11's `functools.cached_property` takes a lock of the whole process for each class while it computes. A child
that is forked while another thread of its parent computes has that lock for ever, and waits for it with its first
statement. Here nothing is locked, as in Python 3.12: two threads that ask at once compute the same value twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class computed_once(Generic[T]):  # noqa: N801 - a decorator, as `property` is
    """A method without arguments as an attribute, which keeps what the method gave. An error is kept by nobody."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | Self:
        if instance is None:
            return self
        # From now on the attribute is the instance's own, and nobody comes here for it again.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
