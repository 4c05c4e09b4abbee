"""A store whose process dies at one of its writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from instar.store.engine import Commit, Store
from instar.store.pace import Pace


class Killed(BaseException):
    """The process is gone."""


class Mortal:
    """A store whose process dies before or after its n-th write; everything else is the store's."""

    def __init__(self, store: Store, lives: int, *, after: bool, fails: Callable[[], BaseException] = Killed) -> None:
        """`fails`: what the write raises, if it is not the process that dies."""
        self._store = store
        self.lives = lives
        self._after = after
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _count(self) -> bool:
        self.lives -= 1
        return self.lives == 0

    def commit(self, request: Commit) -> int:
        dying = self._count()
        if dying and not self._after:
            raise self._fails()
        timestamp = self._store.commit(request)
        if dying:
            raise self._fails()
        return timestamp

    def background(
        self, steps: Iterable[Any], *, claim: tuple[bytes, bytes] | None = None, pace: Pace | None = None
    ) -> int:
        done = 0
        for step in steps:
            dying = self._count()
            if dying and not self._after:
                raise self._fails()
            done += self._store.background([step], claim=claim, pace=pace)
            if dying:
                raise self._fails()
        return done
