"""When the disk itself stood still: requests waited in it, and it completed none.

A disk that others use too, a virtual machine's most of all, completes nothing for a tenth of a second now and then, and
every commit of that moment waits, whatever the program. The system counts what a disk completes and what is on its way
in it, so such moments are seen without a request of one's own, and told apart from a program's own stalls: while a disk
is busy, however slow, it completes something.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# A pause between two completions that is shorter is the disk's ordinary pace.
LEAST_NS = 8_000_000
_INTERVAL = 0.002
# In a disk's `stat`: completed reads, writes, discards and flushes; requests on their way.
_COMPLETED, _ON_THEIR_WAY = (0, 4, 11, 15), 8


def counters_of(directory: Path) -> Path:
    """Where the system tells of the disk that a directory is on, if it is on one."""
    device = directory.stat().st_dev
    return Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")


class Disk:
    """The disk that a directory is on, looked at from the moment at which this is made, by a thread. Of a file system
    that is on no disk nothing is found."""

    def __init__(self, directory: Path) -> None:
        self._counters = counters_of(directory)
        self._found: list[tuple[int, int]] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._watching = self._pool.submit(self._watch) if self._counters.exists() else None

    def standstills(self, begin: float, end: float) -> list[tuple[float, float]]:
        """When it stood still within [begin, end), in seconds, monotonic: beginnings and ends."""
        found = [(since / 1e9, until / 1e9) for since, until in list(self._found)]
        return [(since, until) for since, until in found if until > begin and since < end]

    def end(self) -> None:
        """Look no more."""
        self._stop.set()
        self._pool.shutdown()
        if self._watching is not None:
            self._watching.result()

    def _watch(self) -> None:
        file = os.open(self._counters, os.O_RDONLY)
        try:
            watch = Watch()
            while not self._stop.wait(_INTERVAL):
                fields = [int(field) for field in os.pread(file, 512, 0).split()]
                completed = sum(fields[place] for place in _COMPLETED if place < len(fields))
                stood = watch.look(time.monotonic_ns(), completed, fields[_ON_THEIR_WAY])
                if stood is not None:
                    self._found.append(stood)
        finally:
            os.close(file)


class Watch:
    """Finds standstills in a series of looks at the counters. What it finds is certain, and may be too short: a look
    that comes late, the processors being busy, says nothing of when the disk went on."""

    def __init__(self) -> None:
        self._completed = -1
        # The first and the last look with this count at which requests waited.
        self._looks: tuple[int, int] | None = None

    def look(self, now_ns: int, completed: int, on_their_way: int) -> tuple[int, int] | None:
        """So many requests were completed by now, and so many are on their way; the standstill that has ended, if one
        has."""
        before = self._looks
        self._looks = (now_ns, now_ns) if on_their_way else None
        if completed == self._completed and on_their_way:
            if before is not None:
                self._looks = (before[0], now_ns)
            return None
        self._completed = completed
        return before if before is not None and before[1] - before[0] >= LEAST_NS else None
