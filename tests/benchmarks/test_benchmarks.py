"""Every benchmark, at a tiny size: it ends, its figures are numbers, and what no noise can change is as it must be."""

import gc
import importlib
import math
import tempfile
from pathlib import Path

import demo.changes
import demo.run
import pytest
from benchmarks.__main__ import NAMES
from benchmarks.harness import Options, end_workers

from benchmarks import clients, curve, layouts, leases, metadata, servers, statements, tpc_like, update, versions

FIGURES = {
    "lookup": 1,
    "update": 4,
    "statements": 35,
    "bulk_insert": 3,
    "scan": 2,
    "ddl": 7,
    "versions": 4,
    "layouts": 33,
    "migration": 10,
    "metadata": 20,
    "tpc_like": 2,
    "curve": 10,
    "gating": 6,
    "writers": 3,
    "leases": 8,
    "servers": 4,
    "reorganization": 11,
    "stalls": 11,
}
# These hold on any machine; the others are its speed.
CERTAIN = ("problems found", "versions that a server was behind")


@pytest.fixture
def tiny(monkeypatch):
    """Options; the directory can be reached by other users, as PostgreSQL's server is one."""
    monkeypatch.setattr(clients, "_CALIBRATION_SECONDS", 0.2)
    monkeypatch.setattr(demo.run, "_CALIBRATION_WARM_UP", 0.2)
    monkeypatch.setattr(demo.run, "LEAST_SECONDS", 0.2)
    monkeypatch.setattr(demo.changes, "LEAST_SECONDS", 0.2)
    for module in (curve, versions):
        monkeypatch.setattr(module, "_COUNT", 200)
    monkeypatch.setattr(layouts, "COUNT", 50)
    monkeypatch.setattr(metadata, "TABLES", (3, 10))
    monkeypatch.setattr(metadata, "UNIONS", (1, 5))
    monkeypatch.setattr(metadata, "CONNECTIONS", 3)
    monkeypatch.setattr(metadata, "CHANGES", 2)
    monkeypatch.setattr(leases, "OPERATIONS", 20)
    monkeypatch.setattr(servers, "SERVERS", (2,))
    monkeypatch.setattr(tpc_like, "TRANSACTIONS", 5)
    monkeypatch.setattr(update, "COUNT", 100)
    monkeypatch.setattr(statements, "COUNT", 100)
    with tempfile.TemporaryDirectory(prefix="instar-bench-test-") as directory:
        gc.freeze()  # a round collects garbage first: not that of the tests before
        yield Options(quick=True, directory=Path(directory), rows=2000, seconds=0.3, repeated=1, output=Path(directory))
        end_workers(Path(directory))


def test_all_are_here():
    assert {*FIGURES, "backfill", "join_and_split", "md_mvcc"} == set(NAMES)


@pytest.mark.parametrize("name", FIGURES)
def test_benchmark(name, tiny):
    figures = list(importlib.import_module(f"benchmarks.{name}").run(tiny))
    assert len(figures) == FIGURES[name]
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(math.isfinite(figure.value) for figure in figures)
    assert [figure for figure in figures if figure.name.startswith(CERTAIN) and not figure.passes] == []
