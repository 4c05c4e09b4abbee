"""Another library's work in a thread of its own, so that signals reach this one's handlers meanwhile.

Python calls the handlers of signals in the main thread, between its own instructions. While that thread is inside
DuckDB, Ctrl-C would not be heard; and where DuckDB calls back, or its module is being loaded, what a handler raises
would come up inside it, which it does not survive. The main thread waits, and is all that a handler interrupts.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

# How long a signal may go unheard.
_HEED_SECONDS = 0.05

T = TypeVar("T")


def run_beside(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """The result of `work`, which runs in a thread of its own where this is the main one. What a handler raises is
    raised once `work` has ended; `stop`, called again and again until then, is to make it end soon."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    # Bare locks: a handler's exception in the middle of a Thread's or a Future's methods would leave their locks held.
    taken, done = threading.Lock(), threading.Lock()
    done.acquire()
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        if not taken.acquire(blocking=False):
            return
        try:
            results.append(work())
        except BaseException as failure:  # noqa: BLE001 - it is raised again where the result is asked for
            failures.append(failure)
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
        # Again and again: a signal that comes just before the wait does not cut it short.
        while not done.acquire(timeout=_HEED_SECONDS):
            pass
    except BaseException:  # what a handler raised
        if not taken.acquire(blocking=False):
            stop()
            # What interrupted the wait may have come when the lock had been taken: then the work has ended.
            while not results and not failures and not done.acquire(timeout=_HEED_SECONDS):
                stop()
        raise
    if failures:
        raise failures[0]
    return results[0]
