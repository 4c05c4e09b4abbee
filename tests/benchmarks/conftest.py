"""The benchmarks' processes come from the fork server, in milliseconds."""

import pytest

from benchmarks import starting, switch_worker
from support.victims import CONTEXT


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    monkeypatch.setattr(starting, "CONTEXT", CONTEXT)


@pytest.fixture(autouse=True)
def _does_not_stand_back(monkeypatch):
    """As the workers of all tests: it would starve beside them."""
    monkeypatch.setattr(switch_worker, "NICENESS", 0)
