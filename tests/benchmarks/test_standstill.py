"""The disk's standstills: requests waited in it for a while and it completed none; whatever else is none."""

import os
import time
from pathlib import Path

import pytest
from benchmarks.standstill import LEAST_NS, Disk, Watch

from benchmarks import standstill

MS = 1_000_000


def looked(*looks):
    """What is found in looks at (ms, completed, on their way), in milliseconds."""
    watch = Watch()
    found = [watch.look(at * MS, completed, on_their_way) for at, completed, on_their_way in looks]
    return [(since // MS, until // MS) for since, until in filter(None, found)]


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([(0, 5, 1), (100, 5, 1), (110, 6, 0)], [(0, 100)]),
        ([(0, 5, 0), (100, 5, 0), (110, 5, 1), (150, 5, 2), (160, 7, 1), (163, 8, 0)], [(110, 150)]),
        ([(0, 5, 1), (100, 5, 3), (110, 6, 2), (210, 6, 2), (220, 8, 0)], [(0, 100), (110, 210)]),
        ([(0, 5, 0), (1000, 5, 0), (1002, 6, 0)], []),  # nothing waited
        ([(0, 5, 1), (1000, 9, 1), (2000, 12, 1)], []),  # slow to look, not to complete
        ([(0, 5, 1), (7, 5, 1), (9, 6, 0)], []),  # too short
        ([(0, 5, 1), (500, 5, 1)], []),  # not at its end yet
    ],
)
def test_looks(looks, found):
    assert LEAST_NS == 8 * MS
    assert looked(*looks) == found


def test_a_disk_that_completes_nothing_is_seen(tmp_path, monkeypatch):
    """The counters are a file of the test's: five requests completed and one on its way, for a while."""
    counters = tmp_path / "stat"
    counters.write_text("1 0 0 0 2 0 0 0 1 0 0 1 0 0 0 1 0")
    monkeypatch.setattr(standstill, "counters_of", lambda directory: counters)
    begin = time.monotonic()
    disk = Disk(tmp_path)
    time.sleep(0.2)
    with counters.open("r+") as file:  # the same file, which the thread has open
        file.write("1 0 0 0 3 0 0 0 0 0 0 1 0 0 0 1 0")
    deadline = time.monotonic() + 60
    while not disk.standstills(begin, deadline):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    disk.end()
    ((since, until),) = disk.standstills(begin, deadline)
    assert begin <= since < until
    assert until - since > 0.05


def test_the_counters_are_those_of_the_disk(tmp_path):
    """Writing is counted there; of what is on no disk there are none."""
    counters = standstill.counters_of(Path("/proc"))
    assert not counters.exists()
    Disk(Path("/proc")).end()
    counters = standstill.counters_of(tmp_path)
    if counters.exists():
        before = int(counters.read_text().split()[4])
        with (tmp_path / "f").open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        assert int(counters.read_text().split()[4]) > before


def test_spans_that_touch_the_phase(tmp_path):
    disk = Disk(tmp_path)
    disk.end()
    disk._found[:] = [(1_000_000_000, 1_500_000_000), (3_000_000_000, 3_250_000_000)]
    assert disk.standstills(1.25, 2.0) == [(1.0, 1.5)]
    assert disk.standstills(0.0, 4.0) == [(1.0, 1.5), (3.0, 3.25)]
    assert disk.standstills(1.5, 3.0) == []
