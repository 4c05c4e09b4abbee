"""The benchmark of index backfill, small, beside PostgreSQL where it is installed; what is left when it is ended."""

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from benchmarks.harness import Options

from benchmarks import backfill, clients, postgres

ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory():
    """Which other users can reach: PostgreSQL's server does not run as root."""
    with tempfile.TemporaryDirectory(prefix="instar-bench-test-") as name:
        yield Path(name)


def run(directory, monkeypatch):
    monkeypatch.setattr(clients, "_CALIBRATION_SECONDS", 0.2)
    return list(backfill.run(Options(quick=True, directory=directory, rows=6000, seconds=0.5)))


def test_beside_the_peer(directory, monkeypatch):
    rate, kept, *latencies = run(directory, monkeypatch)
    assert re.fullmatch(r"index backfill, 6,000 rows, [0-9,]+/s arrive", rate.name)
    assert re.fullmatch(r"6,000 rows in [0-9.]+ s", rate.ours)
    assert all(math.isfinite(figure.value) and figure.value >= 0 for figure in (rate, kept, *latencies))
    try:
        postgres.programs()
    except postgres.Unavailable:
        assert rate.peer.startswith("PostgreSQL is left out: no initdb")
        assert len(latencies) == 4 + 2
    else:
        assert re.fullmatch(r"PostgreSQL [0-9.]+ [0-9,]+ rows/s, [0-9.]+ s", rate.peer)
        assert len(latencies) == 4 + 4
    assert list(directory.iterdir()) == []


def test_without_the_peer(directory, monkeypatch):
    monkeypatch.setattr(postgres, "_INSTALLED", str(directory))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(postgres.Unavailable, match=f"no initdb on PATH, nor in {directory}"):
        postgres.programs()


def test_a_log_that_was_cut_off(tmp_path):
    log = tmp_path / "operations.1"
    log.write_text("0 1 500 0 1700000000 1000 20\n1 1 700 1 1700000000 2000 30\n0 2 40")
    found = postgres.read_logs([log], offset=-1.7e9)
    assert found.took.tolist() == [0.5, 0.7]
    assert found.query.tolist() == [True, False]
    assert found.arrived.tolist() == pytest.approx([0.0005, 0.0013], abs=1e-6)


def test_what_was_completed_when():
    seen = clients.Latencies(*map(clients.np.array, ([0.0, 1.0, 1.5], [10.0, 1500.0, 100.0], [True, False, True])))
    assert seen.within(0.5, 2.0).took.tolist() == [1500.0, 100.0]
    assert seen.completed(0.0, 2.0) == 1.0  # the second took until 2.5
    assert seen.percentile(50, queries=True) == 55.0


def test_interrupted(directory, tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rows", "200000", "backfill"]
    command += ["--directory", str(directory), "--output", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert "loading" in process.stderr.readline()
        time.sleep(2.0)  # by then there are clients; where the machine is fast, a worker too
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in output
    assert "Traceback" not in errors
    assert list(directory.iterdir()) == []
    assert [found for found in psutil.process_iter(["cmdline"]) if str(directory) in str(found.info["cmdline"])] == []
    assert (tmp_path / "results.json").exists()
