"""The benchmark of a change in the middle of a workload, small, beside PostgreSQL where it is installed."""

import math
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from benchmarks.harness import Options

from benchmarks import md_mvcc, postgres


def test_small(monkeypatch):
    monkeypatch.setattr(md_mvcc, "WORKLOADS", {"both": (1, 1)})
    with tempfile.TemporaryDirectory(prefix="instar-bench-test-") as name:  # which other users can reach
        options = Options(quick=True, directory=Path(name), rows=2000, seconds=0.6, output=Path(name) / "out")
        figures = list(md_mvcc.run(options))
        pictures = len(list((Path(name) / "out").glob("md-mvcc-both-*.svg")))
    try:
        postgres.programs()
    except postgres.Unavailable:
        sides = 2
    else:
        sides = 3
    assert pictures == sides
    assert len(figures) == len({figure.name for figure in figures}) == 5 * sides
    assert all(math.isfinite(figure.value) and figure.value >= 0 for figure in figures)


def test_a_change_waits_for_statements_and_they_for_it():
    """What the paper's databases did without versions of their metadata."""
    lock, order = md_mvcc.SchemaLock(2), []
    inside, leave = threading.Event(), threading.Event()

    def query():
        with lock.shared(0):
            inside.set()
            assert leave.wait(30)
            order.append("query")

    def change():
        with lock.exclusive():
            order.append("change")

    threads = [threading.Thread(target=query), threading.Thread(target=change)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(30)
    with lock.shared(1):
        order.append("later")
    assert order == ["query", "change", "later"]


@pytest.mark.parametrize(("after", "kept", "pause"), [(10, 1.0, 0.15), (5, 0.5, 0.2), (0, 0.0, 2.5)])
def test_what_is_kept(after, kept, pause):
    """Ten per second for five seconds, then others for as long."""
    before = np.arange(0, 5, 0.1) + 0.05
    later = 5 + (np.arange(0, 5, 1 / after) + 0.05 if after else np.empty(0))
    course = md_mvcc.Course(np.concatenate((before, later)), np.empty(0), 5.0, 5.1)
    assert md_mvcc._kept(course.short, course, 10.0) == pytest.approx(kept, abs=0.1)
    assert md_mvcc._pause(course.short, course, 10.0) == pytest.approx(pause, abs=0.06)
