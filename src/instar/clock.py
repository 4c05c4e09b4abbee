"""Time as the engine sees it: injected, so that tests decide what o'clock it is.

The engine core reads no clock of its own (DESIGN of the store: interleavings are replayed from a seed).
"""

from __future__ import annotations

import functools
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and the identity of the boot that the monotonic time belongs to."""

    @property
    def boot(self) -> bytes:
        """16 bytes, the same for all processes until the host is started again."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch; may jump either way."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary point of this boot, the same for all processes of the host; never falls."""
        ...

    def computed_ns(self) -> int:
        """For how many nanoseconds the calling thread has had a processor; never falls."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The host's clocks. CLOCK_BOOTTIME and the boot id are shared by all processes of a Linux host."""

    def __init__(self) -> None:
        try:
            with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                self.boot = bytes.fromhex(file.read().strip().replace(b"-", b"").decode())
        except OSError:
            # Without a boot id the plausibility check of the wall clock (rule 8) is off, nothing else.
            self.boot = bytes(16)

    # The very functions, without a layer of ours between: every commit asks.
    wall_ns = staticmethod(time.time_ns)

    # It goes on while the host is suspended: else a laptop's wall clock would seem to have jumped when it wakes.
    monotonic_ns = staticmethod(functools.partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME))

    computed_ns = staticmethod(time.thread_time_ns)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is told to move; for tests and replayed interleavings."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self.wall = wall_ns
        self.monotonic = 1_000_000_000
        self.computed = 0
        self.boot = b"\x01" * 16

    def wall_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.monotonic

    def computed_ns(self) -> int:
        return self.computed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        step = int(seconds * 1e9)
        self.wall += step
        self.monotonic += step
