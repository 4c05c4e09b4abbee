"""Fixtures of the tests of schema changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.engines import engine  # noqa: F401 - pytest finds the fixture by its name here
from support.slow import Slow


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Tables t and p, and jobs that stand after their first stage."""
    made = Slow(monkeypatch)
    yield made
    made.engine.close()
