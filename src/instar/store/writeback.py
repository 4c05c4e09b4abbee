"""What a write map has made dirty is written to disk little by little, for no other reason than that the kernel would.

It does so with everything at once when the first page is half a minute old. Pages are locked on their way, and fault
when they are next written, so that the commits of that moment wait for a tenth of a second and more.

Who writes back slows down who makes dirty, by a third where both are at it all the time. That is in vain where pages
are dirty again before the file has been gone through, so that the kernel finds nearly all of them dirty in any case: so
there it goes more slowly.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from instar.store.data_file import meta_number, write_out

# Every page that is dirty is written about so often; the file is gone through in so many parts.
CYCLE_SECONDS = 5.0
PARTS = 80
# In vain: as many transactions, each of which makes one page dirty at least, would come meanwhile as the file has pages
# times the first; then it takes so many times as long.
_IN_VAIN, SLOWER = 2, 4
# While nothing is dirty, whether something is by now is looked at so often.
_IDLE_SECONDS = 1.0


class WriteBack:
    """Begins to write the pages of `file` to disk, part by part, while this process goes on making some dirty.

    `takes_turn` is asked before each part, and says no if another process is at it.
    """

    def __init__(self, file: int, page_bytes: int, takes_turn: Callable[[float], bool]) -> None:
        self.dirty = False
        self._file = file
        self._page_bytes = page_bytes
        self._takes_turn = takes_turn
        self._stopped = threading.Event()
        self._started = False
        self._own: int | None = None

    def begin(self) -> None:
        """This process writes."""
        self.dirty = True
        if not self._started:
            self._started = True
            with contextlib.suppress(OSError, RuntimeError):  # no descriptor or no thread is left: the kernel will do
                self._start()

    def _start(self) -> None:
        # With a descriptor of its own: it may be on its way when the file is closed.
        self._own = own = os.dup(self._file)
        try:
            threading.Thread(target=self._run, args=(own,), name="instar-writeback", daemon=True).start()
        except RuntimeError:
            self.forget()
            raise

    def stop(self) -> None:
        """Write no more."""
        self._own = None  # the thread closes it
        self._stopped.set()

    def forget(self) -> None:
        """There is no thread, in a forked child. (It may have held the lock of `_stopped` at the fork.)"""
        if self._own is not None:
            os.close(self._own)
            self._own = None

    def _run(self, file: int) -> None:
        try:
            part = parts_left = 0
            wait, number, now = _IDLE_SECONDS, self._transaction(file), time.monotonic()
            while not self._stopped.wait(wait):
                before, number, whole = number, self._transaction(file), os.fstat(file).st_size
                since, now = now, time.monotonic()
                step = cycle_seconds((number - before) / (now - since), whole // self._page_bytes) / PARTS
                if self.dirty:
                    self.dirty, parts_left = False, PARTS
                if parts_left and self._takes_turn(step):
                    parts_left -= 1
                    part = (part + 1) % PARTS
                    size = -(-whole // PARTS)
                    with contextlib.suppress(OSError):  # who relies on it is told
                        write_out(file, part * size, size)
                wait = step if parts_left else _IDLE_SECONDS
        finally:
            os.close(file)

    def _transaction(self, file: int) -> int:
        """The number of the newest transaction, of whatever process."""
        return max([meta_number(os.pread(file, self._page_bytes, page * self._page_bytes)) for page in (0, 1)])


def cycle_seconds(rate: float, pages: int) -> float:
    """How long going through a file of so many pages takes, where `rate` transactions come in a second."""
    return CYCLE_SECONDS * (SLOWER if rate * CYCLE_SECONDS >= _IN_VAIN * pages else 1)
