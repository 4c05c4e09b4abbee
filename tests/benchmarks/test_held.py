"""What pairs of turns tell of a worker that is held, and not."""

import math
from itertools import pairwise

import numpy as np
import pytest
from benchmarks.clients import Latencies
from benchmarks.held import Turn, loss, turns
from benchmarks.join_and_split import _completed, _mean

from benchmarks import held


def seen_in(made, rates, took=1.0):
    """Evenly so many completions a second in each turn."""
    ended = np.concatenate([np.arange(turn.begin, turn.end, 1 / rate) for turn, rate in zip(made, rates, strict=True)])
    return Latencies(ended - took / 1e3, np.full(len(ended), took), np.zeros(len(ended), dtype=bool))


def turn(number, share, held):
    return Turn(float(number), number + 0.5, share, held)


def test_what_is_lost_goes_by_the_share_that_is_taken():
    made = [turn(0, 0.01, True), turn(1, 0.11, False), turn(2, 0.11, False), turn(3, 0.01, True)]
    seen = seen_in(made, [1000, 960, 480, 500])  # the machine has become slower, and with it both of a pair
    found = loss([(one, seen) for one in made], _completed)
    assert found.share == pytest.approx(0.1)
    assert math.exp(found.change) == pytest.approx(0.96)
    assert found.error == pytest.approx(0, abs=1e-9)
    kept, error = found.at(0.05)
    assert kept == pytest.approx(math.sqrt(0.96))
    assert error == pytest.approx(0, abs=1e-9)
    assert found.at(0)[0] == 1
    assert math.isnan(found._replace(share=-0.01).at(0.05).value)


def test_the_error_is_that_of_what_is_told():
    made = [turn(number, 0.2 * (number % 2), number % 2 == 0) for number in range(6)]
    seen = seen_in(made, [1000, 900, 1000, 950, 1000, 1000])
    found = loss([(one, seen) for one in made], _completed)
    logs = np.log([0.9, 0.95, 1.0])
    assert found.change == pytest.approx(logs.mean())
    assert found.error == pytest.approx(2 * logs.std(ddof=1) / math.sqrt(3))
    assert found.at(0.1).error == pytest.approx(found.error / 2)


def test_what_is_outermost_tells_nothing():
    """Bursts that hit one turn of a pair, whichever that is."""
    rates = [1000, 950] * 18 + [700, 950] + [1000, 700]
    made = [turn(number, 0.2 * (number % 2), number % 2 == 0) for number in range(len(rates))]
    found = loss([(one, seen_in(made, rates)) for one in made], _completed)
    assert math.exp(found.change) == pytest.approx(0.95)
    assert found.error == pytest.approx(0, abs=1e-9)


def test_the_error_without_the_outermost():
    """They are drawn in to the next one, and count for less than all."""
    rates = [rate for lost in range(10) for rate in (1000, 1000 - lost * 10)]
    made = [turn(number, 0.2 * (number % 2), number % 2 == 0) for number in range(len(rates))]
    logs = np.log(1 - np.arange(10) / 100)
    drawn_in = np.clip(logs, logs[8], logs[1])
    found = loss([(one, seen_in(made, rates)) for one in made], _completed)
    assert found.change == pytest.approx(logs[1:9].mean())
    assert found.error == pytest.approx(2 * drawn_in.std(ddof=1) / (0.8 * math.sqrt(10)))


def test_a_standstill_and_too_few_pairs_tell_nothing():
    made = [turn(number, 0.2 * (number % 2), number % 2 == 0) for number in range(6)]
    seen = seen_in(made, [1000, 900, 1000, 10, 1000, 900])
    assert math.exp(loss([(one, seen) for one in made], _completed).change) == pytest.approx(0.9)
    few = loss([(one, seen) for one in made[:4]], _completed)
    assert math.isnan(few.change)
    assert math.isnan(few.at(0.1).value)
    assert math.isinf(few.at(0.1).error)


def test_the_response_time():
    made = [turn(0, 0.0, True), turn(1, 0.1, False), turn(2, 0.0, True), turn(3, 0.1, False)]
    parts = [seen_in([one], [100], took) for one, took in zip(made, (1.0, 1.05, 2.0, 2.1), strict=True)]
    seen = Latencies(*(np.concatenate([part[field] for part in map(tuple_of, parts)]) for field in range(3)))
    assert math.exp(loss([(one, seen) for one in made], _mean).change) == pytest.approx(1.05)


def tuple_of(seen):
    return seen.arrived, seen.took, seen.query


def test_turns_alternate_and_end_with_the_worker_let_go(monkeypatch):
    monkeypatch.setattr(held, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(held, "_SETTLING_SECONDS", 0.01)

    class Worker:
        held = False
        took = 0.0

        def hold(self, held):
            self.held = held

        def computed(self):
            self.took += 0.0 if self.held else 0.001
            return self.took

    worker = Worker()
    made = turns(worker, 2)
    assert [one.held for one in made] == [True, False, False, True]
    assert not worker.held
    assert all((one.share > 0) is not one.held for one in made)
    assert all(one.end <= other.begin for one, other in pairwise(made))
