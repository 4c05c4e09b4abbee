"""Every job is left to workers that the tests start, and goes in small batches."""

import pytest

from instar.database import Database
from instar.schemachange import breath, reorganize, validate

pytest.register_assert_rewrite(
    "matrix.arena", "matrix.disturbances", "matrix.one_row", "matrix.traffic", "support.leftovers"
)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reorganize, "BATCH_ROWS", 5)
    monkeypatch.setattr(reorganize, "SORTED_ENTRIES", 5)
    monkeypatch.setattr(reorganize, "STEP_ROWS", 2)
    for rows in ("FIRST_ROWS", "LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(breath, rows, 2)
    monkeypatch.setattr(reorganize, "STEP_ENTRIES", 2)
    monkeypatch.setattr(validate, "BATCH_ROWS", 5)


@pytest.fixture(autouse=True)
def _workers_of_the_test_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "run_job", lambda *_: None)
    for name in ("ensure_worker", "look_after"):
        monkeypatch.setattr(Database, name, lambda database: None)
