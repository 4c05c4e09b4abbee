"""The harness: ratios are medians over neighbouring rounds, and a target knows which side is good."""

import itertools
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from benchmarks.harness import Figure, Options, Pair, _works_in, end_workers, paired, versus
from benchmarks.tables import fill_sqlite, tuples

import instar


def test_rounds_alternate_and_the_ratio_is_that_of_neighbours():
    order = []
    # The machine gets slower as it goes: rates halve with every round, the ratio does not.
    speeds = itertools.chain.from_iterable((2.0**-number,) * 2 for number in itertools.count())

    def side(name, factor):
        def run():
            order.append(name)
            return next(speeds) * factor

        return run

    pair = paired(side("ours", 3.0), side("peer", 1.0), rounds=5)
    assert pair.ratio == 3.0
    assert order == ["ours", "peer", "ours", "peer", "peer", "ours", "ours", "peer", "peer", "ours", "ours", "peer"]


@pytest.mark.parametrize(
    ("value", "wanted", "passes"), [(1.2, ">=", True), (1.19, ">=", False), (1.2, "<=", True), (1.21, "<=", False)]
)
def test_targets(value, wanted, passes):
    assert Figure("f", value, "x", 1.2, wanted).passes is passes


def test_without_target_nothing_passes_or_fails():
    assert versus("f", Pair(2.0, 10.0, 5.0), None).passes is None


def test_the_error_of_a_ratio_is_that_of_its_median():
    # Ratios 0.8 to 1.2 in steps of 0.1: quartiles 0.9 and 1.1.
    ratios = iter([1.0, 1.2, 1.0, 0.8, 1.1, 0.9])  # the first is thrown away
    pair = paired(lambda: next(ratios), lambda: 1.0, rounds=5)
    assert pair.ratio == 1.0
    assert pair.error == pytest.approx(1.253 * (0.2 / 1.349) / 5**0.5)
    assert paired(lambda: 2.0, lambda: 1.0, rounds=1).error == 0.0


def test_sizes():
    quick, full = Options(quick=True, directory=Path()), Options(quick=False, directory=Path())
    assert [(options.size(9, 5), options.lasting(9.0, 5.0), options.rounds) for options in (quick, full)] == [
        (5, 5.0, 3),
        (9, 9.0, 9),
    ]
    own = Options(quick=False, directory=Path(), rows=1, seconds=2.0, repeated=4)
    assert (own.size(9, 5), own.lasting(9.0, 5.0), own.rounds) == (1, 2.0, 4)


def test_workers_are_ended_by_directory(tmp_path):
    workers = []
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
        store = tmp_path / name / "store"
        instar.connect(store, synchronous="off").close()
        workers.append(subprocess.Popen([sys.executable, "-m", "instar.worker", str(store)]))
    ours, other = workers
    try:
        deadline = time.monotonic() + 60
        # Before its program has started, a process has still the command line of ours.
        while not _works_in(psutil.Process(ours.pid).as_dict(["cmdline"]), tmp_path / "ours"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        end_workers(tmp_path / "ours")
        assert ours.wait(timeout=30) is not None
        assert other.poll() is None
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_rows_are_the_same_however_they_are_cut():
    assert tuples(100_010)[100_000:] == tuples(10, 100_000)


def test_the_peer_has_the_rows():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    fill_sqlite(connection, 1000)
    assert connection.execute("SELECT count(*), min(id), max(id) FROM t").fetchone() == (1000, 0, 999)
