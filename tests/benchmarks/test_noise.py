"""The machine's noise: what was sampled in a phase counts for it, and limits on both kinds are limits."""

import io
import os
import time

import psutil
import pytest
from benchmarks.harness import Figure, show
from benchmarks.noise import FSYNC_MS, SPEED, STEAL, Machine, Noise, _Sample, disturbed
from rich.console import Console

from benchmarks import noise


@pytest.mark.parametrize(
    ("steal", "slowest", "disturbs", "tail"),
    [
        (0.0, 0.1, False, False),
        (STEAL, FSYNC_MS, False, False),
        (STEAL + 0.001, 0.1, True, True),
        (0.0, FSYNC_MS + 0.1, False, True),
    ],
)
def test_limits(steal, slowest, disturbs, tail):
    found = Noise(steal, 0.1, slowest, 10, 1.0)
    assert (found.disturbs(tail=False), found.disturbs(tail=True)) == (disturbs, tail)
    assert found.figure("quiet").disturbed is tail


@pytest.mark.parametrize(
    ("speeds", "differ"),
    [([], False), ([0.5], False), ([0.5, SPEED * 0.5], False), ([1.0, SPEED - 0.01], True), ([0.7, 1.0, 1.0], True)],
)
def test_phases_in_which_processors_did_as_much_are_compared(speeds, differ):
    assert disturbed((Noise(0.0, 0.1, 0.1, 10, speed) for speed in speeds), tail=True) is differ


@pytest.mark.parametrize("tail", [False, True])
def test_a_disturbed_phase_disturbs_a_comparison(tail):
    quiet, slow = Noise(0.0, 0.1, 0.1, 10, 1.0), Noise(0.0, 0.1, FSYNC_MS + 0.1, 10, 1.0)
    assert disturbed([quiet, slow], tail=tail) is tail


def test_a_phase_has_its_own_samples(tmp_path):
    machine = Machine(tmp_path)
    machine.end()
    # Ticks that were stolen and all: 50 of 100 between the third sample and the fourth.
    machine._samples[:] = [
        _Sample(1.0, 0, 1000, 0.5, 1.0),
        _Sample(2.0, 1, 1100, 20.0, 2.0),
        _Sample(3.0, 1, 1200, 0.75, 4.0),
        _Sample(4.0, 51, 1300, 0.5, 4.0),
    ]
    assert machine.within(0.0, 2.5) == Noise(0.01, 10.25, 20.0, 2, 0.75)
    assert machine.within(2.5, 9.0) == Noise(0.5, 0.625, 0.75, 2, 0.25)
    assert machine.within(2.1, 2.2) == Noise(0.0, 0.5, 0.5, 1, 0.25)  # too short: the newest there is
    assert [machine.slowness(0.0, 2.5), machine.slowness(2.5, 9.0), machine.slowness(2.1, 2.2)] == [1.5, 4.0, 4.0]


def test_what_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "_INTERVAL", 0.01)
    begin = time.monotonic()
    with noise.watched(tmp_path) as machine:
        deadline = begin + 60
        while len(machine._samples) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    found = machine.within(begin, time.monotonic())
    assert found.count == len(machine._samples)
    assert found.slowest > 0.0
    assert 0.0 <= found.steal <= 1.0
    assert 0.0 < found.speed <= 1.0
    assert list(tmp_path.iterdir()) == []


def test_times_are_those_of_the_system():
    stolen, passed = noise.processor_times()
    known = psutil.cpu_times()
    ticks = os.sysconf("SC_CLK_TCK")
    assert stolen == pytest.approx(known.steal * ticks, abs=10 * ticks)
    everything = sum(known) - known.guest - known.guest_nice
    assert passed == pytest.approx(everything * ticks, abs=100 * ticks)


def test_the_verdict_says_so():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(show("t", [Figure("f", 1.0, "x", 2.0, ">=", disturbed=True), Figure("g", 1.0, "x", disturbed=True)]))
    lines = console.export_text().splitlines()
    assert [("missed, disturbed" in line, "disturbed" in line) for line in lines if " f " in line or " g " in line] == [
        (True, True),
        (False, True),
    ]
