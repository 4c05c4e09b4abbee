"""Stores of both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.store import MemoryStore, open_store
from instar.store.engine import Store

ENGINES = ("lmdb", "memory")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_store(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[[str], Store]]:
    """Makes a fresh store of the named engine under the manual clock."""
    made: list[Store] = []

    def make(engine: str) -> Store:
        if engine == "memory":
            made.append(MemoryStore(clock=clock))
        else:
            made.append(open_store(tmp_path / f"store{len(made)}", synchronous="off", clock=clock))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, make_store: Callable[[str], Store]) -> Store:
    """A fresh store, once of each engine."""
    return make_store(request.param)
