"""Random workloads of half a minute; INSTAR_RANDOM_SECONDS makes it longer, INSTAR_RANDOM_SEED begins elsewhere."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.store import MemoryStore, open_store
from instar.store.engine import Store
from matrix.workload import RULES, Workload

SECONDS = float(os.environ.get("INSTAR_RANDOM_SECONDS", "30"))
SEED = int(os.environ.get("INSTAR_RANDOM_SEED", "0"))
STEPS = int(os.environ.get("INSTAR_RANDOM_STEPS", "300"))
# Shares of the time, each a test of its own, so that several processes have something to do.
SHARES = [(engine, first) for first in (0, 100_000) for engine in ("memory", "lmdb", "leased")]
LEASE_SECONDS = 1.0


@pytest.mark.timeout(2 * SECONDS + 480)  # it may get a small part of a processor
@pytest.mark.parametrize(("engine", "first"), SHARES)
def test_random_workload(engine: str, first: int, tmp_path: Path) -> None:
    """The processor time is counted, so that a busy machine does as much."""
    happened: Counter[str] = Counter()
    until = time.process_time() + SECONDS / len(SHARES)
    begun = seed = SEED + first
    while time.process_time() < until:
        clock = ManualClock()
        store: Store = MemoryStore(clock=clock, schema_lease=LEASE_SECONDS if engine == "leased" else 0.0)
        if engine == "lmdb":
            store = open_store(tmp_path / str(seed), synchronous="off", clock=clock)
        workload = Workload(seed, store, clock)
        workload.run(STEPS)
        happened += workload.happened
        store.close()
        seed += 1
    print(f"{seed - begun} histories of {STEPS} steps: {dict(happened)}")
    assert min(happened[kind] for kind in ("insert", "update", "index", "column", "succeeded")) > 0, happened


def test_every_rule_names_what_it_explains() -> None:
    assert all(rule.sentence and rule.kinds for rule in RULES)
