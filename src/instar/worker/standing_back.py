"""What the worker computes beside clients it computes in a thread that yields to everybody (sched(7), SCHED_IDLE).

A low weight alone (nice) does not do: once it runs, whoever wakes up waits for the end of its slice, some milliseconds,
and a client wakes up for each operation. Beside two index builds of 150,000 rows the 99.9th percentile of clients'
writes was 88 ms and the longest 105 ms with a worker of low weight that computed by itself, and 6 and 13 ms with this.

The atomic section is entered by the worker's own thread, never by this one: others wait for who is inside, and this one
may be kept from the processor for long. Where it is, because others have work for all processors, the worker computes
by itself again for a while, with the share that its weight gives it: so its work ends, whatever else there is to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from instar.clock import Clock
from instar.gently import become_idle
from instar.store.engine import Store

T = TypeVar("T")

# Of what it was ready to run, the thread has waited for more than this share: it is starved.
_STARVED = 0.9
# So long it has been ready before that is asked, and so long the worker computes by itself after it was.
_WINDOW_NS = 300_000_000
_ALONE_NS = 30_000_000_000
# Who waits for the thread says so often that the worker goes on.
_BEAT_SECONDS = 1.0


class _Ended(NamedTuple):
    """How an action has ended."""

    result: Any
    error: BaseException | None


class StandingBack:
    """As `schemachange.computing.Computing`, for one thread that runs tasks: elsewhere while other processes commit."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._orders: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[_Ended | Callable[[], None]] = SimpleQueue()
        self._replies: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._alone_until = 0
        self._seen = 0, 0  # how long the thread had run and had been kept waiting when that was last looked at, in ns

    def run(self, action: Callable[[], T]) -> T:
        """As in `Computing`."""
        if not self._store.others_commit() or self._clock.monotonic_ns() < self._alone_until:
            return action()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="instar-standing-back", daemon=True)
            self._thread.start()
        self._orders.put(action)
        ended = self._answer()
        if ended.error is not None:
            raise ended.error
        return ended.result  # type: ignore[no-any-return]  # what the action gave

    def outside(self, action: Callable[[], None]) -> Callable[[], None]:
        """As in `Computing`."""

        def call() -> None:
            if threading.current_thread() is not self._thread:
                action()
                return
            self._answers.put(action)
            error = self._replies.get()
            if error is not None:
                raise error

        return call

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def _answer(self) -> _Ended:
        """How the action has ended; what it asks for meanwhile is done here."""
        while True:
            try:
                answer = self._answers.get(timeout=_BEAT_SECONDS)
            except Empty:
                self._store.worker_goes_on()
                continue
            if isinstance(answer, _Ended):
                return answer
            error: BaseException | None = None
            try:
                answer()
            except BaseException as caught:  # noqa: BLE001 - it is raised where it was called
                error = caught
            self._replies.put(error)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        become_idle()
        while (action := self._orders.get()) is not None:
            try:
                ended = _Ended(action(), None)
            except BaseException as caught:  # noqa: BLE001 - it is raised by who waits for it
                ended = _Ended(None, caught)
            self._look()
            self._answers.put(ended)
            del action, ended  # what they hold is not kept while nothing is ordered

    def _look(self) -> None:
        """Have the worker compute by itself if others leave this thread hardly anything of the processors."""
        ran, waited = _scheduled()
        before = self._seen
        ran_now, waited_now = ran - before[0], waited - before[1]
        if ran_now + waited_now < _WINDOW_NS:
            return
        self._seen = ran, waited
        if waited_now > _STARVED * (ran_now + waited_now):
            self._alone_until = self._clock.monotonic_ns() + _ALONE_NS


def _scheduled() -> tuple[int, int]:
    """For how long the calling thread has run, and has been ready and kept waiting, in ns (proc(5), schedstat)."""
    with open("/proc/thread-self/schedstat", "rb") as file:
        ran, waited, _slices = file.read().split()
    return int(ran), int(waited)
