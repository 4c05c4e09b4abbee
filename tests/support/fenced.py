"""A store that counts how often its fence turns a commit back."""

from __future__ import annotations

from typing import Any

from instar.store.engine import Commit, LeaseExpired, StaleSchema, Store


class Fenced:
    """A store as one server has it; `refusals`: commits refused for the version or lease of their schema."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, request: Commit) -> int:
        try:
            return self._store.commit(request)
        except (StaleSchema, LeaseExpired):
            self.refusals += 1
            raise
