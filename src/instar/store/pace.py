"""The pace of background work: a rate that it must not exceed, and a latency of foreground commits that it follows.

The controller is one factor, by which the gate's pauses are multiplied while any foreground commit is about. Twenty
times a second it grows by half where foreground commits take longer than the target, and shrinks by a tenth where they
take less than three quarters of it, down to a quarter: with room below the target, background work is faster than
without one. Growing faster than it shrinks keeps it from swinging; a pause never exceeds LONGEST_PAUSE_NS, so that the
work ends even where nothing that it does would bring the latency below the target.
"""

from __future__ import annotations

from collections.abc import Callable

ADJUST_NS = 50_000_000
LEAST_FACTOR = 0.25
MOST_FACTOR = 256.0
LONGEST_PAUSE_NS = 250_000_000
# What held the work back so lately holds it back.
LATELY_NS = 2_000_000_000
# A rate that has been waited for does that only where about so much of it is reached: else waiting longer for something
# else would do as well.
_REACHED = 0.8
# A rate is kept to in portions of what it allows in so long.
_PORTION_SECONDS = 0.1
# And what it allows in so long is done before that is put on record.
_RECORD_SECONDS = 0.25
# Longer waits are slept in parts, so that an interrupt is heard. Each time it wakes up, work finds the processor's
# caches full of what the foreground does, which costs both of them more than the look itself.
SLICE_NS = LONGEST_PAUSE_NS


class Pace:
    """How fast one piece of background work goes. Whoever owns it sets and changes `rows_per_second` and
    `latency_target_ns` at any time (None: no limit, no target), and counts `rows` as they are done.

    `urgency`: its pauses are so many times shorter; where that is above 1, for work that would never end otherwise, it
    does not wait until a queue of foreground commits is gone. A latency target comes first. `yields`: work that would
    be made urgent for that it does not keep up is not; who commits comes first.

    `interrupt` is called between two batches and during pauses, outside the atomic section, and may raise.
    """

    def __init__(self, interrupt: Callable[[], None] = lambda: None) -> None:
        self.interrupt = interrupt
        self.rows_per_second: float | None = None
        self.latency_target_ns: int | None = None
        self.rows = 0
        self.factor = 1.0
        self.urgency = 1.0
        self.yields = False
        self._latency = 0
        self._adjusted = 0
        self._due: int | None = None
        self._kept: float | None = None  # the rate by which that is due
        self._counted = 0
        self._asked = 0  # when it was asked last for how long to wait
        self._since: tuple[int, int] | None = None  # from when on it is counted what is done, and how much was by then
        self._reached: float | None = None  # rows per second, when that was last known
        self._lately: dict[str, int] = {}

    def follow(self, latency: int | None, now: int) -> float:
        """What the gate's pause is multiplied by. `latency`: what foreground commits took lately, in ns, if known."""
        target = self.latency_target_ns
        if target is None:
            self.factor = 1.0 / self.urgency
        elif now - self._adjusted >= ADJUST_NS:
            self._adjusted = now
            self._latency = latency or 0
            if self._latency > target:
                self.factor = min(max(self.factor, 1.0) * 1.5, MOST_FACTOR)
            elif self._latency < 0.75 * target:
                self.factor = max(self.factor * 0.9, LEAST_FACTOR)
        if self.factor > 1.0 and target is not None:
            self._lately["target"] = now
        return self.factor

    def queued(self, now: int) -> None:
        """Foreground commits queue, and are given way to."""
        self._lately["queue"] = now

    def owed(self, now: int) -> int:
        """For how many nanoseconds to wait, by the rate, after what has been done by now. What is waited for when the
        rate is set anew (ALTER JOB) takes as long as by that."""
        done, self._counted = self.rows - self._counted, self.rows
        rate, kept = self.rows_per_second, self._kept
        asked, self._asked, self._kept = self._asked, now, rate
        if rate != kept or done:
            self._measure(now, anew=rate != kept)
        if rate is None:
            self._due = None
            return 0
        left = 0.0
        if self._due is not None and kept is not None:
            left = (self._due - now) * kept / rate
            if left < 0:
                # What these rows have taken since the last wait counts. A longer time in which less was done than the
                # rate allows is not made up for.
                left = max(max(self._due, asked) - now, -_RECORD_SECONDS * 1e9)
        self._due = now + int(left + done * 1e9 / rate)
        if self._due > now:
            self._lately["rate"] = now
        return self._due - now

    def _measure(self, now: int, *, anew: bool) -> None:
        """Something has been done, or another rate holds from now on. Waits count with what comes after them."""
        if anew or self._since is None:
            self._since, self._reached = (now, self.rows), None
        elif now - self._since[0] >= LATELY_NS:
            begun, before = self._since
            self._since, self._reached = (now, self.rows), (self.rows - before) * 1e9 / (now - begun)

    @property
    def is_limited(self) -> bool:
        """Whether a rate or a latency target held the work back when it was last asked, or shortly before."""
        return any(self._asked - self._lately[what] < LATELY_NS for what in ("rate", "target") if what in self._lately)

    def most_steps(self, rows_per_step: float) -> int | None:
        """How many steps may be run in one batch by the rate; None: any number."""
        if self.rows_per_second is None or not rows_per_step:
            return None
        return max(1, int(self.rows_per_second * _PORTION_SECONDS / rows_per_step))

    def most_rows(self, most: int) -> int:
        """How many rows, `most` at the most, are done before that is put on record. At a rate few, that slow work is
        seen to go on, and little of it is lost when it is interrupted; and what is only read comes in no leaps."""
        if self.rows_per_second is None:
            return most
        return max(1, min(most, int(self.rows_per_second * _RECORD_SECONDS)))

    def held_back(self, now: int) -> str:
        """In words, what holds the work back; empty if nothing does."""
        lately = [what for what, at in self._lately.items() if now - at < LATELY_NS]
        rate, target = self.rows_per_second, self.latency_target_ns
        if "rate" in lately and rate is not None and (self._reached is None or self._reached >= _REACHED * rate):
            return f"held back by max_rows_per_second = {rate:g}"
        if "target" in lately and target is not None:
            return (
                f"held back by reorganize_latency_target = {target / 1e6:g} ms: "
                f"foreground commits take {self._latency / 1e6:.1f} ms, pauses are {self.factor:.1f} times as long"
            )
        return "gives way to foreground commits that queue" if "queue" in lately else ""
