"""What disturbs a measurement and is not the program: processor time that the hypervisor took, and a slow disk.

When the disk stood still altogether is looked at without adding to its work (`standstill`). Besides, five times a
second a thread reads how much time was stolen, and writes a page in place and waits for the disk, as a commit does. In
a phase with work of the database's own on the disk, the page waits for that too: there a long wait may be the
database's, while stolen time never is.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Figure
from benchmarks.standstill import Disk

# Beyond either a phase counts as disturbed; beyond the second only for what is said of its slowest operations. A commit
# waits for the disk twice, so two such waits are a stall of 20 ms.
STEAL = 0.05
FSYNC_MS = 10.0
_INTERVAL = 0.2
_PAGE = bytes(4096)
# /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in the first two.
_TIMES = 8


@dataclass(frozen=True)
class Noise:
    """Of a phase: the share of processor time that was stolen, and of `count` waits for the disk the median and the
    longest (ms)."""

    steal: float
    median: float
    slowest: float
    count: int

    def disturbs(self, *, tail: bool) -> bool:
        """Whether a verdict on this phase says little: one on medians and totals, or one on the slowest operations,
        which a single slow fsync makes."""
        return self.steal > STEAL or (tail and self.slowest > FSYNC_MS)

    def figure(self, phase: str) -> Figure:
        """A line of its own; the slowest page stands beside."""
        return Figure(
            f"CPU steal, {phase}", self.steal * 100, "%", None, "<=",
            f"fsync median {self.median:.1f} ms", f"slowest of {self.count} {self.slowest:.1f} ms",
            disturbed=self.disturbs(tail=True),
        )  # fmt: skip


@dataclass(frozen=True)
class _Sample:
    at: float
    stolen: int
    all: int
    took: float


class Machine:
    """The machine's noise from the moment at which it is made, sampled by a thread."""

    def __init__(self, directory: Path) -> None:
        self.disk = Disk(directory)
        self._samples: list[_Sample] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._sampling = self._pool.submit(self._sample, directory / "noise")

    def within(self, begin: float, end: float) -> Noise:
        """Of the phase [begin, end) in seconds, monotonic; of the newest sample if it was too short for one."""
        samples = list(self._samples)
        chosen = [sample for sample in samples if begin <= sample.at < end] or samples[-1:]
        passed = chosen[-1].all - chosen[0].all
        stolen = chosen[-1].stolen - chosen[0].stolen
        took = [sample.took for sample in chosen]
        return Noise(stolen / passed if passed else 0.0, statistics.median(took), max(took), len(took))

    def end(self) -> None:
        """Stop sampling."""
        self.disk.end()
        self._stop.set()
        self._pool.shutdown()
        self._sampling.result()

    def _sample(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.write(file, _PAGE)
            os.fsync(file)
            while not self._stop.wait(_INTERVAL):
                begin = time.monotonic()
                os.pwrite(file, _PAGE, 0)
                os.fdatasync(file)
                took = (time.monotonic() - begin) * 1e3
                self._samples.append(_Sample(begin, *processor_times(), took))
        finally:
            os.close(file)
            path.unlink(missing_ok=True)


def processor_times() -> tuple[int, int]:
    """Ticks of all processors that were stolen, and all ticks, since the machine was started."""
    times = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : 1 + _TIMES]]
    return times[-1], sum(times)


@contextmanager
def watched(directory: Path) -> Iterator[Machine]:
    """The noise on the disk of a directory, sampled as long as the block runs."""
    machine = Machine(directory)
    try:
        yield machine
    finally:
        machine.end()
