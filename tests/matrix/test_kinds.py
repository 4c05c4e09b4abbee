"""The matrix: every kind of change meets every disturbance."""

from __future__ import annotations

import pytest

from instar import errors
from matrix.arena import Arena, refusal
from matrix.disturbances import DISTURBANCES, LEASE, WITH_LEASES
from matrix.kinds import NAMES, load


@pytest.mark.parametrize("disturbance", DISTURBANCES)
@pytest.mark.parametrize("name", NAMES)
def test_the_change_is_whole_and_nothing_is_lost(name: str, disturbance: str) -> None:
    DISTURBANCES[disturbance](load(name))


@pytest.mark.parametrize("disturbance", WITH_LEASES)
@pytest.mark.parametrize("name", [name for name in NAMES if load(name).leasable])
def test_the_change_is_whole_under_schema_leases_too(name: str, disturbance: str) -> None:
    WITH_LEASES[disturbance](load(name), LEASE)


@pytest.mark.parametrize("name", [name for name in NAMES if not load(name).leasable])
def test_what_is_not_supported_under_a_lease_is_refused(name: str) -> None:
    arena = Arena(load(name), lease=LEASE)
    refused = refusal(arena.change)
    assert refused is not None
    assert refused.sqlstate == errors.FEATURE_NOT_SUPPORTED
    arena.settle(None)
