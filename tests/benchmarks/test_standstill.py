"""The disk's standstills: requests waited in it for a while and it completed none; whatever else is none."""

import os
import time

import pytest
from benchmarks.standstill import LEAST_NS, Disk, Watch

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


def test_a_disk_that_works_is_watched(tmp_path):
    disk = Disk(tmp_path)
    begin = time.monotonic()
    file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    for _ in range(20):
        os.pwrite(file, bytes(4096), 0)
        os.fdatasync(file)
    os.close(file)
    disk.end()
    end = time.monotonic()
    assert all(begin <= since < until <= end for since, until in disk.standstills(begin, end))
    assert disk.standstills(end, end + 1.0) == []


def test_spans_that_touch_the_phase(tmp_path):
    disk = Disk(tmp_path)
    disk.end()
    disk._found[:] = [(1_000_000_000, 1_500_000_000), (3_000_000_000, 3_250_000_000)]
    assert disk.standstills(1.25, 2.0) == [(1.0, 1.5)]
    assert disk.standstills(0.0, 4.0) == [(1.0, 1.5), (3.0, 3.25)]
    assert disk.standstills(1.5, 3.0) == []
