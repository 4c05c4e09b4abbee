"""The harness: ratios are medians over neighbouring rounds, and a target knows which side is good."""

import itertools
import sqlite3

import pytest
from benchmarks.harness import Figure, Pair, paired, versus
from benchmarks.tables import fill_sqlite, tuples


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


def test_rows_are_the_same_however_they_are_cut():
    assert tuples(100_010)[100_000:] == tuples(10, 100_000)


def test_the_peer_has_the_rows():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    fill_sqlite(connection, 1000)
    assert connection.execute("SELECT count(*), min(id), max(id) FROM t").fetchone() == (1000, 0, 999)
