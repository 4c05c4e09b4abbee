"""The benchmark of joins and splits, small, beside PostgreSQL where it is installed: its own worker has a job wait for
its switch, and tells what that takes."""

import math
import tempfile
import time
from pathlib import Path

import pytest
from benchmarks.harness import Options
from benchmarks.join_and_split_tables import Running, fill
from benchmarks.switch_worker import Mode, switch_worker
from benchmarks.tables import open_instar

from benchmarks import clients, join_and_split, postgres, remaking, switching

# More than a statement reorganizes within its own call: the worker is to do it.
ROWS = 6000


def test_small(monkeypatch):
    monkeypatch.setattr(clients, "_CALIBRATION_SECONDS", 0.2)
    monkeypatch.setattr(join_and_split, "TRANSFORMATIONS", ("split",))
    monkeypatch.setattr(join_and_split, "CLIENTS", 1)
    monkeypatch.setattr(join_and_split, "_PATIENCE", 2)
    # As if they were very many rows.
    fill_targets, turned = join_and_split._fill, []

    def filling(*given):
        turned.extend(fill_targets(*given))
        return turned

    monkeypatch.setattr(join_and_split, "_fill", filling)
    monkeypatch.setattr(join_and_split, "MANY_ROWS", ROWS)
    monkeypatch.setattr(join_and_split, "_FILLING_SECONDS", 0.0)
    monkeypatch.setattr(join_and_split, "FILLING_PAIRS", 2)
    for module in (join_and_split, remaking, switching):
        monkeypatch.setattr(module, "_SETTLING_SECONDS", 0.1)
    with tempfile.TemporaryDirectory(prefix="instar-bench-test-") as name:  # which other users can reach
        options = Options(quick=True, directory=Path(name), rows=ROWS, seconds=0.2)
        figures = list(join_and_split.run(options))
    assert len(figures) == len({figure.name for figure in figures}) == 6 + 6 + 3 + 8 + 3
    assert sum("consistency checking" in figure.name for figure in figures) == 4
    assert all(math.isfinite(figure.value) for figure in figures)
    assert len(turned) >= 4
    assert [turn.held for turn in turned[:4]] == [True, False, False, True]
    whole = next(figure for figure in figures if figure.name.endswith("joined and split again"))
    try:
        postgres.programs()
    except postgres.Unavailable:
        assert whole.peer.startswith("PostgreSQL is left out")
    else:
        assert whole.peer.startswith("PostgreSQL 1")


def test_a_worker_that_is_held(tmp_path):
    """It stands still with a job, and goes on with it."""
    path = tmp_path / "store"
    with open_instar(path) as connection, switch_worker(path) as worker:
        fill(connection, "t", ROWS)
        worker.order(Mode.TELL)
        worker.hold(True)
        job = Running(connection, "split")
        time.sleep(0.5)  # a turn that had begun comes to its end
        computed = worker.computed()
        assert not job.until(lambda state, _: state != "pending", 1)
        assert worker.computed() - computed < 0.1
        worker.hold(False)
        assert worker.seen(60) is not None
        assert worker.computed() > computed


@pytest.mark.parametrize("late", [0, 3])
def test_a_switch_is_held_back_and_told_of(tmp_path, late):
    path = tmp_path / "store"
    with open_instar(path) as connection, switch_worker(path) as worker:
        fill(connection, "t", ROWS)
        worker.order(Mode.TELL)
        job = Running(connection, "split")
        attempt = worker.seen(60)
        assert attempt is not None
        time.sleep(0.2)
        assert job.look()[0] == "running"
        worker.order(Mode.WITH_TAIL, "t", 30, late)
        switch = worker.seen(60)
        assert switch is not None
        assert attempt.begun < switch.begun <= switch.inside <= switch.ended
        assert switch.puts >= 30
        job.until_ended()
        assert connection.execute("SELECT count(*), sum(v), max(id) FILTER (WHERE v = 1) FROM r").fetchall() == [
            (ROWS, 30, 29)
        ]
