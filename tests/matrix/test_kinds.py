"""The matrix: every kind of change meets every disturbance."""

from __future__ import annotations

import pytest

from matrix.disturbances import DISTURBANCES, LEASE, WITH_LEASES
from matrix.kinds import NAMES, load


@pytest.mark.parametrize("disturbance", DISTURBANCES)
@pytest.mark.parametrize("name", NAMES)
def test_the_change_is_whole_and_nothing_is_lost(name: str, disturbance: str) -> None:
    DISTURBANCES[disturbance](load(name))


@pytest.mark.parametrize("disturbance", WITH_LEASES)
@pytest.mark.parametrize("name", NAMES)
def test_the_change_is_whole_under_schema_leases_too(name: str, disturbance: str) -> None:
    WITH_LEASES[disturbance](load(name), LEASE)
