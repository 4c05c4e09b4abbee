"""The fixture `engine`: a database in memory, and one in LMDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.databases import Engine


@pytest.fixture(params=["memory", "lmdb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A fresh database on either engine, closed after the test."""
    made = Engine(":memory:" if request.param == "memory" else str(tmp_path / "db"))
    yield made
    made.close()
