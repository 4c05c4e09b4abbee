"""The short ways of statements, seen from outside: what goes the general way is counted."""

from __future__ import annotations

import pytest

from instar.database.queries import Queries


class Ways:
    """Counts what goes the general way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.general = 0
        execute = Queries.execute

        def counted(queries: Queries, *given: object) -> object:
            self.general += 1
            return execute(queries, *given)  # type: ignore[arg-type]  # as they were given

        monkeypatch.setattr(Queries, "execute", counted)

    def taken(self) -> int:
        """How many since this was asked last."""
        found, self.general = self.general, 0
        return found


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)
