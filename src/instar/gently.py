"""Loading modules beside others' work: in short pieces, with a rest after each, and then out of the collector's way.

A thousand modules are loaded when a worker or Spark starts, in one to two seconds of computing. Others notice a process
that computes for so long, even if it stands back (scheduling.py): see pipeline/turns.py. So whoever is in no
hurry loads a module, and rests for half as long again as that took.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Rests for so many times as long as was computed.
REST = 1.5
# What a thread did for longer between two modules was not loading.
_MOST_SECONDS = 0.1
# The option by which a worker loads itself gently.
OPTION = "--gently"


class _Rests:
    """Asked by Python's import for each module that is not loaded yet; finds none, and rests."""

    def __init__(self, others_work: Callable[[], bool]) -> None:
        self._others_work = others_work
        self._seen = threading.local()

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        """As the import system calls it (importlib.abc.MetaPathFinder)."""
        worked = time.thread_time() - getattr(self._seen, "worked", time.thread_time())
        if worked > 0 and self._others_work():
            time.sleep(min(worked, _MOST_SECONDS) * REST)
        self._seen.worked = time.thread_time()


def set_aside() -> None:
    """Have Python's collector of cycles not look any more at what there is by now, which stays as long as the process.

    What a worker and Spark have loaded are some 300,000 objects. To look at all of them takes 55 to 130 ms at a
    stretch, twice a minute, in which no other thread of the process gets on: the one that writes checkpoints, or the
    one that is in the atomic section.
    """
    gc.collect()  # what is in nobody's use would stay, too
    gc.freeze()


@contextmanager
def loading_gently(others_work: Callable[[], bool]) -> Iterator[None]:
    """Within it, whoever loads modules in this process rests in between while `others_work()`."""
    rests: Any = _Rests(others_work)
    sys.meta_path.insert(0, rests)
    try:
        yield
    finally:
        sys.meta_path.remove(rests)
