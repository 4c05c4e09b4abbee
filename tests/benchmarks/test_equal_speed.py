"""Comparison at equal speed: what a change costs is told apart from what the processors did meanwhile."""

import math
import random

import pytest
from benchmarks.equal_speed import QUIET, Window, at_equal_speed, windows_of


def _windows(rounds, cost, sensitive, noise):
    """Windows of response times on processors that get slower, most of all while the change goes on."""
    draw = random.Random(5)
    for number in range(rounds):
        for place in range(40):
            phase = "change" if place >= 20 else QUIET
            slowness = 1.0 + draw.random() * (0.9 if phase else 0.5)
            measured = (1 + number) * slowness**sensitive * (cost if phase else 1.0) * math.exp(draw.gauss(0, noise))
            yield Window(number, phase, measured, slowness)


@pytest.mark.parametrize("cost", [1.0, 1.05, 0.9])
@pytest.mark.parametrize("sensitive", [0.0, 0.7, 1.0])
def test_what_a_change_costs_is_found(cost, sensitive):
    exact = at_equal_speed(list(_windows(3, cost, sensitive, 0.0)))
    assert set(exact) == {"change"}
    assert exact["change"].value == pytest.approx(cost)
    assert exact["change"].error < 1e-9
    noisy = at_equal_speed(list(_windows(3, cost, sensitive, 0.05)))["change"]
    assert 0.0 < noisy.error < 0.03
    assert abs(noisy.value - cost) < 1.5 * noisy.error


def test_without_a_quiet_phase_there_is_nothing_to_tell():
    assert at_equal_speed([]) == {}
    assert at_equal_speed([Window(0, "change", 1.2, 1.0), Window(1, "change", 1.0, 1.5)]) == {}


def test_too_few_windows_tell_nothing_for_sure():
    found = at_equal_speed([Window(0, QUIET, 1.0, 1.0), Window(0, "change", 1.2, 1.0)])
    assert found["change"].value == pytest.approx(1.2)
    assert found["change"].error == math.inf


@pytest.mark.parametrize(("end", "count"), [(10.2, 1), (11.0, 1), (12.9, 2), (18.0, 8)])
def test_a_phase_is_cut_evenly(end, count):
    found = windows_of(10.0, end)
    assert (len(found), found[0][0], found[-1][1]) == (count, 10.0, end)
    assert all(until - since == pytest.approx((end - 10.0) / count) for since, until in found)
    assert [until for _, until in found[:-1]] == [since for since, _ in found[1:]]
