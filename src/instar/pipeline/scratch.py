"""Directories for what Spark and its tasks write on the way: in memory where it fits, else with the temporary files.

Spark in the background runs only when nobody else wants the processor. Whoever is kept from it in the middle of a write
to a journalling file system keeps the journal from being committed, and with it every commit of the database that waits
for the disk. Nobody waits for a file in memory.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Begins the names of the directories; the number of their process follows.
_PREFIX = "instar-spark-"

MEMORY = Path("/dev/shm")
_MEMORY_INFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Of the memory that is there, so many times what is needed is to be free.
_MARGIN = 2


def new_scratch(need: int | None = None) -> Path:
    """A directory for at most `need` bytes (None: nobody knows how many), removed when this process ends; those that
    killed processes left are removed."""
    for root in (Path(tempfile.gettempdir()), MEMORY):
        for left in root.glob(f"{_PREFIX}*-*"):
            owner = left.name.removeprefix(_PREFIX).partition("-")[0]
            if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
                shutil.rmtree(left, ignore_errors=True)  # another user's stays
    place = MEMORY if need is not None and fits_in_memory(need) else None
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def fits_in_memory(need: int) -> bool:
    """Whether so many bytes can lie in memory and nobody miss them."""
    return os.access(MEMORY, os.W_OK) and need * _MARGIN <= min(_free())


def _free() -> Iterator[int]:
    """What bounds the files in memory, each in bytes."""
    status = os.statvfs(MEMORY)
    yield status.f_bavail * status.f_frsize
    for line in _MEMORY_INFO.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) << 10
    try:
        limit, used = ((_CGROUP / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        yield int(limit) - int(used)
    except (OSError, ValueError):  # no group of its own, or "max"
        pass
