"""Schema leases cost a statement nothing that can be counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.leases import works
from benchmarks.tables import fill_instar

import instar

ROWS = 100


@pytest.mark.parametrize("name", works(ROWS))
def test_no_more_functions_are_called_under_leases(tmp_path: Path, name: str) -> None:
    calls = []
    for lease in (0.0, 5.0):
        with instar.connect(tmp_path / f"{lease:g}", synchronous="off", schema_lease=lease, autocommit=True) as made:
            fill_instar(made, ROWS)
            calls.append(works(ROWS)[name].calls(made))
    assert 0 < calls[1] <= 1.01 * calls[0]
