"""Statements that another thread cancels."""

from __future__ import annotations

import time
from collections.abc import Callable

from instar import errors

_LOOK_SECONDS = 0.02  # between two looks, in a pause, whether the statement was cancelled


class Cancellable:
    """What runs one statement at a time, which ends with 57014 at its next check once it is cancelled."""

    def __init__(self) -> None:
        # No threading.Event: that is Python, and an interrupt within it may leave it locked for good.
        self._cancelled = False
        self._stop: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Make the running statement fail with 57014 at its next check; called from another thread."""
        self._cancelled = True
        stop = self._stop
        if stop is not None:
            stop()

    def forget_cancel(self) -> None:
        """A call begins: whatever was to be cancelled has ended."""
        self._cancelled = False

    def interruptible(self, stop: Callable[[], None] | None) -> None:
        """What runs now in another engine can be stopped by `stop`; None: it is over."""
        self._stop = stop
        if stop is not None:
            self.check_cancel()

    def is_cancelled(self) -> bool:
        """Whether the next `check_cancel` will raise."""
        return self._cancelled

    def check_cancel(self) -> None:
        """57014 if the statement was cancelled."""
        if self._cancelled:
            self._cancelled = False
            raise errors.error(errors.QUERY_CANCELED, "canceling statement due to user request")

    def pause(self, seconds: float) -> None:
        """Wait so long, in the middle of a statement. 57014 if it was cancelled."""
        until = time.monotonic() + seconds
        while not self._cancelled and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        self.check_cancel()
