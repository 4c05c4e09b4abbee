"""Two servers, five sessions, schema changes and workers that die, in random schedules that a seed replays."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from instar import errors
from instar.database import schema
from instar.schemachange import breath, reorganize
from instar.store import apply
from instar.store.section import WriteSection
from support.chaos import Chaos

SEEDS = int(os.environ.get("INSTAR_SEEDS", "8"))
STEPS = 250


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every build is a job for the worker, in many batches."""
    monkeypatch.setattr(schema, "SMALL_ROWS", -1)
    monkeypatch.setattr(reorganize, "BATCH_ROWS", 3)
    monkeypatch.setattr(reorganize, "SORTED_ENTRIES", 3)
    monkeypatch.setattr(reorganize, "STEP_ROWS", 1)
    for rows in ("FIRST_ROWS", "LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(breath, rows, 2)
    monkeypatch.setattr(reorganize, "STEP_ENTRIES", 1)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schedules_keep_every_promise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Chaos(seed, monkeypatch).run(STEPS)


def test_the_schedules_meet_what_they_are_about() -> None:
    happened: Counter[str] = Counter()
    for seed in range(8):
        with pytest.MonkeyPatch.context() as patch:
            chaos = Chaos(seed, patch)
            chaos.run(STEPS)
            happened += chaos.happened
    assert min(happened[errors.SERIALIZATION_FAILURE], happened[errors.UNDEFINED_COLUMN], happened["killed"]) > 3


def test_without_rule_10_some_schedule_loses_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_no_rows(section: WriteSection, written: object) -> None:
        """The stored bytes may be others by now."""

    monkeypatch.setattr(apply, "_judge_rows", judge_no_rows)
    for seed in range(40):
        with pytest.MonkeyPatch.context() as patch:
            try:
                Chaos(seed, patch).run(STEPS)
            except AssertionError:
                return
    pytest.fail("no schedule has met the damage")
