"""Thousands of histories of concurrent transactions with schema changes in between: what each transaction was told is
what its isolation level promises, schema changes counted as transactions.

`INSTAR_HISTORY_SEED=17` replays one history of `test_interleaved_histories` and prints it; `INSTAR_HISTORIES=100000` is
for a night. Histories of several processes cannot be replayed, but a failure shows all of what happened.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from instar.catalog.catalog import CatalogSnapshot
from instar.clock import ManualClock, SystemClock
from instar.database import Session, commit, session
from instar.store import apply, open_store
from instar.transactions.transaction import Transaction
from support.databases import general_commits
from support.histories import LEVELS, History
from support.interleaved import Interleaved
from support.invariants import broken
from support.isolation import anomalies
from support.locking import InterleavedLocking
from support.racing import Racing

HISTORIES = int(os.environ.get("INSTAR_HISTORIES", "2000"))
SEED = os.environ.get("INSTAR_HISTORY_SEED")
SHARES = 4
STEPS = 16
LOCKING = 12
LOCKING_STEPS = 40
PER_STORE = 25
MET = 150  # what is rare is met a few times in so many
CHECKED = 5  # CHECK DATABASE after each so many
PROCESSES = 3
RACES = 24
RACE_STEPS = 60


def judge(history: History, problems: list[str]) -> None:
    """Fail with the history, readably, if there is anything wrong with it."""
    if problems:
        lines = "\n".join(problems)
        pytest.fail(f"{lines}\n\nof this history (INSTAR_HISTORY_SEED={history.seed}):\n{history}", pytrace=False)


def interleave(
    path: Path, seeds: range, *, lease: float | None = None, kind: type[Interleaved] = Interleaved, steps: int = STEPS
) -> list[History]:
    """Histories of these seeds on one store, one after the other. On every second store the log is cut meanwhile."""
    collected = seeds[0] // PER_STORE % 2 == 1
    clock = None if lease is None else ManualClock()
    store = open_store(path, synchronous="off", schema_lease=lease, clock=clock or SystemClock())
    world = kind(store, collected=collected, clock=clock)
    histories = []
    for seed in seeds:
        with world.store.read() as reader:
            begun = reader.timestamp
        history = world.history(seed, steps)
        judge(history, anomalies(history))
        if not collected:
            judge(history, broken(world.store, world.store.floors, begun))
        if seed % CHECKED == 0 or seed == seeds[-1]:
            assert world.check() == [], seed
        world.forget()
        histories.append(history)
    world.close()
    return histories


@pytest.mark.parametrize("share", range(SHARES))
def test_interleaved_histories(tmp_path: Path, share: int) -> None:
    if SEED is not None:
        for history in interleave(tmp_path / "db", range(int(SEED), int(SEED) + 1)):
            print(history)
        return
    met: Counter[str] = Counter()
    for first in range(share * PER_STORE, HISTORIES, SHARES * PER_STORE):
        for history in interleave(tmp_path / str(first), range(first, first + PER_STORE)):
            met += happened(history)
    if HISTORIES >= SHARES * MET:  # what they are about
        assert min(met[level] for level in LEVELS) > 20
        assert min(met["changes"], met["40001"], met["crossed a change"], met["in two schemas"]) > 1, met


@pytest.mark.parametrize("share", range(2))
def test_histories_of_leased_servers(tmp_path: Path, share: int) -> None:
    """Each of the two servers may use a schema that is one version behind, for ten seconds."""
    interleave(tmp_path / "db", range(share * PER_STORE, (share + 1) * PER_STORE), lease=10.0)


@pytest.mark.parametrize(("first", "lease"), [(0, None), (0, 10.0), (PER_STORE, None)])
def test_histories_of_row_locks(tmp_path: Path, first: int, lease: float | None) -> None:
    """Nobody changes a row that another has selected FOR UPDATE and acted upon, whatever becomes of its key, and of the
    log."""
    seeds = range(first, first + LOCKING)
    interleave(tmp_path / "db", seeds, lease=lease, kind=InterleavedLocking, steps=LOCKING_STEPS)


def happened(history: History) -> Counter[str]:
    met: Counter[str] = Counter()
    changes = [
        transaction.ended.asked
        for transaction in history.transactions
        if transaction.committed and transaction.changes and transaction.ended is not None
    ]
    for transaction in history.transactions:
        met["40001"] += transaction.error == "40001"
        if transaction.committed and transaction.ended is not None:
            met[transaction.level] += 1
            met["changes"] += len(transaction.changes)
            first, last = transaction.statements[0].span.asked if transaction.statements else 0, transaction.ended.told
            met["crossed a change"] += bool(transaction.writes) and any(first < at < last for at in changes)
            seen = {(table.table, table.change) for found in transaction.statements for table in found.seen}
            met["in two schemas"] += len(seen) > len({table for table, _ in seen})
    return met


def test_histories_of_several_processes(tmp_path: Path) -> None:
    racing = Racing(tmp_path / "db", PROCESSES)
    try:
        for seed in range(RACES):
            history = racing.history(seed, RACE_STEPS)
            judge(history, anomalies(history))
            assert racing.check() == [], f"seed {seed}"
            racing.forget()
    finally:
        racing.close()


# --- what the checker finds where a rule is switched off -------------------------------------------------------------


def unjudged(*_: object) -> None:
    """What is to be judged stands."""


def newest_schema(of: Session) -> CatalogSnapshot:
    """The schema of the moment, whatever the snapshot."""
    open_ = of.open_transaction()
    with of.database.store.read() as reader:
        return open_.ddl.view if open_.ddl else of.database.catalog.at(reader)


# What is put in whose place, and what the checker says of it.
DAMAGES: dict[str, tuple[object, str, object, str]] = {
    "rows are not compared with what they were derived from (rule 10)": (
        apply, "_judge_rows", unjudged, "lost update|own writes|was written in layout",
    ),
    "nothing is fenced (rule 12)": (apply, "_judge_fence", unjudged, "below the floor"),
    "what SERIALIZABLE has read is not validated": (session, "ReadSet", lambda: None, "write skew|phantom"),
    "every statement has a snapshot of its own": (Transaction, "keeps_snapshot", False, "read skew|phantom"),
    "a snapshot has the newest schema": (Session, "catalog", newest_schema, "schema read skew"),
    "transactions cross every change": (commit, "require_compatible", unjudged, "below the floor|phantom"),
}  # fmt: skip
LOOKED_AT = 100


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    where, what, instead, said = DAMAGES[name]
    monkeypatch.setattr(where, what, instead)
    general_commits(monkeypatch)
    found = (problem for seed in range(LOOKED_AT) for problem in problems(tmp_path / str(seed), seed))
    assert any(re.search(said, problem) for problem in found), "no history has met the damage"


def test_rows_whose_locks_have_gone_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_is_locked", lambda *_: True)
    found = (
        problem for seed in range(LOOKED_AT) for problem in problems(tmp_path / str(seed), seed, InterleavedLocking)
    )
    assert any("commits -rw->" in problem for problem in found), "no history has met the damage"


def problems(path: Path, seed: int, kind: type[Interleaved] = Interleaved) -> list[str]:
    """What is found in a history of that seed."""
    world = kind(open_store(path, synchronous="off"))
    try:
        history = world.history(seed, LOCKING_STEPS if kind is InterleavedLocking else 2 * STEPS)
        return anomalies(history) + broken(world.store, world.store.floors)
    except Exception as problem:  # noqa: BLE001 - some damage shows otherwise too
        return [repr(problem)]
    finally:
        world.close()
