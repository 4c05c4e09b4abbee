"""What disturbs a measurement and is not the program: processor time that the hypervisor took, processors that did less
than they can, and a slow disk.

When the disk stood still altogether is looked at without adding to its work (`standstill`). Besides, five times a
second a thread reads how much time was stolen, sums up some numbers on each processor, and writes a page in place and
waits for the disk, as a commit does. In a phase with work of the database's own on the disk, the page waits for that
too: there a long wait may be the database's, while stolen time never is.

A virtual processor is often one of two that share a core, and does little more than half as much while a stranger
computes on the other one, for seconds or minutes at a time. No time is stolen then. The sum, in processor time, tells.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
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
# Phases are not to be compared where processors did less than this share in one of what they did in another.
SPEED = 0.9
_INTERVAL = 0.2
_PAGE = bytes(4096)
# What is summed up: some 0.1 ms, without memory, twice, so that caches and clock are warm.
_SUMMED = range(10_000)
_SUMS = 2
# /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in the first two.
_TIMES = 8


@dataclass(frozen=True)
class Noise:
    """Of a phase: the share of processor time that was stolen, of `count` waits for the disk the median and the
    longest (ms), and what processors did, as a share of the most that they were seen to do (`speed`)."""

    steal: float
    median: float
    slowest: float
    count: int
    speed: float

    def disturbs(self, *, tail: bool) -> bool:
        """Whether a verdict on this phase says little: one on medians and totals, or one on the slowest operations,
        which a single slow fsync makes."""
        return self.steal > STEAL or (tail and self.slowest > FSYNC_MS)

    def figure(self, phase: str) -> Figure:
        """A line of its own; processors and pages stand beside."""
        return Figure(
            f"CPU steal, {phase}", self.steal * 100, "%", None, "<=",
            f"processors did {self.speed:.2f} of their best",
            f"fsync median {self.median:.1f} ms, slowest of {self.count} {self.slowest:.1f} ms",
            disturbed=self.disturbs(tail=True),
        )  # fmt: skip


def disturbed(phases: Iterable[Noise], *, tail: bool) -> bool:
    """Whether a comparison of phases says little: one of them was disturbed, or processors did less in it."""
    known = list(phases)
    speeds = [phase.speed for phase in known] or [1.0]
    return any(phase.disturbs(tail=tail) for phase in known) or min(speeds) < SPEED * max(speeds)


@dataclass(frozen=True)
class _Sample:
    at: float
    stolen: int
    all: int
    took: float
    summed: float


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
        best = min(sample.summed for sample in samples)
        speed = statistics.fmean(best / sample.summed for sample in chosen)
        return Noise(stolen / passed if passed else 0.0, statistics.median(took), max(took), len(took), speed)

    def slowness(self, begin: float, end: float) -> float:
        """How many times as long as at best the processors took for the same in [begin, end); by the newest sample if
        that was too short for one."""
        samples = list(self._samples)
        chosen = [sample for sample in samples if begin <= sample.at < end] or samples[-1:]
        return statistics.fmean(sample.summed for sample in chosen) / min(sample.summed for sample in samples)

    def end(self) -> None:
        """Stop sampling."""
        self.disk.end()
        self._stop.set()
        self._pool.shutdown()
        self._sampling.result()

    def _sample(self, path: Path) -> None:
        processors = itertools.cycle(sorted(os.sched_getaffinity(0)))
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.write(file, _PAGE)
            os.fsync(file)
            while not self._stop.wait(_INTERVAL):
                os.sched_setaffinity(0, {next(processors)})  # of this thread alone
                summed = min(_sum_up() for _ in range(_SUMS))
                begin = time.monotonic()
                os.pwrite(file, _PAGE, 0)
                os.fdatasync(file)
                took = (time.monotonic() - begin) * 1e3
                self._samples.append(_Sample(begin, *processor_times(), took, summed))
        finally:
            os.close(file)
            path.unlink(missing_ok=True)


def _sum_up() -> float:
    """The processor time that it takes, in seconds."""
    begin = time.thread_time_ns()
    sum(_SUMMED)
    return (time.thread_time_ns() - begin) / 1e9


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
