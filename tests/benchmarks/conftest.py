"""The benchmarks' processes come from the fork server, in milliseconds."""

import pytest

from benchmarks import starting
from support.victims import CONTEXT


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    monkeypatch.setattr(starting, "CONTEXT", CONTEXT)
