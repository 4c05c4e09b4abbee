"""The gate: background work holds the atomic section briefly and then stays out of the way of foreground commits.

LMDB's writer mutex is not fair: a process that takes it again at once wins against one that has to be woken. Giving
way to announced waiters only is not enough either, since a client computes between two commits. So a background batch
stays out for several times what it held (its `Rhythm`) while any foreground commit is about; else not
at all, and batches grow. It stays out several times as long while foreground commits queue: that is how clients look
that are behind (the disk was slow for a moment, say), and what they have to catch up with is latency to each of them. A
pace (module `pace`) makes pauses longer or shorter, to keep to a latency target or a rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from instar.clock import Clock
from instar.store.engine import Section
from instar.store.pace import LONGEST_PAUSE_NS, SLICE_NS, Pace
from instar.store.presence import Presence

# While nobody else commits, batches grow to this, so that a load pays for few fsyncs. It is what the first foreground
# commit after a pause waits at most, once.
LONGEST_HOLD_NS = 8_000_000
# How many pauses in a row a queue may cost: background work still ends, whatever the foreground does. All but the first
# are as short as they are without a pace: where that makes them long, a queue is gone sooner.
MOST_PAUSES = 4
_MOST_DRAWN = 4096

Step = Callable[[Section], None]


def with_calls(steps: Iterable[Step], between: Callable[[], None]) -> Iterator[Step]:
    """The steps, with a call before each is made; never inside the atomic section."""
    for step in steps:
        between()
        yield step


def deletion(keys: Sequence[bytes]) -> Step:
    """A step that deletes keys."""

    def step(section: Section) -> None:
        for key in keys:
            section.delete(key)

    return step


class Rhythm(NamedTuple):
    """For how long a batch holds the section, and how many times as long it stays out while foreground commits are
    about. What its commit takes is deducted from `hold_ns`, but its steps have as long as that at least: a commit that
    waits long for the disk is worth a longer batch."""

    hold_ns: int
    pauses: int


UNSYNCED = Rhythm(400_000, 6)
# What a batch makes dirty is written to the disk that foreground commits wait for. One commit in sixteen meets a batch,
# which their 90th percentile does not show.
SYNCED = Rhythm(400_000, 16)


def run_gated(
    steps: Iterable[Step],
    run_batch: Callable[[deque[Step], int], tuple[int, int]],
    presence: Presence,
    clock: Clock,
    pace: Pace | None = None,
    rhythm: Rhythm = UNSYNCED,
) -> int:
    """Run all steps in gated batches; returns the number of batches.

    `run_batch` enters the atomic section, runs and removes steps from the left for about the given nanoseconds,
    commits, and returns how long the steps took and how long it held the section. Steps are drawn before the section
    is entered, about as many as the last batch could run. A `pace` slows batches down, or speeds them up. By a rate the
    first batch is one step: it tells how many rows a step does.
    """
    pace = pace or Pace()
    source = iter(steps)
    drawn: deque[Step] = deque()
    wanted = 8 if pace.rows_per_second is None else 1
    batches, budget, hold = 0, rhythm.hold_ns, rhythm.hold_ns
    while True:
        drawn.extend(islice(source, max(0, wanted - len(drawn))))
        if not drawn:
            return batches
        before, rows = len(drawn), pace.rows
        stepped, held = run_batch(drawn, budget)
        batches += 1
        presence.worker_goes_on()
        if presence.foreground_about():
            hold = rhythm.hold_ns
            factor = pace.follow(presence.foreground_latency(), clock.monotonic_ns())
            _stay_out(rhythm.pauses * held, factor, presence, clock, pace)
        else:
            hold = min(2 * hold, LONGEST_HOLD_NS)
        _keep_to_rate(clock, pace)
        pace.interrupt()
        committing = held - stepped
        budget = max(committing, hold - committing)
        ran = before - len(drawn)
        wanted = min(2 * ran, _MOST_DRAWN, pace.most_steps((pace.rows - rows) / ran) or _MOST_DRAWN)


def _stay_out(pause: int, factor: float, presence: Presence, clock: Clock, pace: Pace) -> None:
    """Sleep `factor` times as long as `pause`, in nanoseconds, and then for `pause` while foreground commits queue."""
    for number in range(MOST_PAUSES if pace.urgency <= 1.0 else 1):
        clock.sleep(min(pause if number else int(pause * factor), LONGEST_PAUSE_NS) / 1e9)
        if not presence.foreground_queues():
            return
        pace.queued(clock.monotonic_ns())
        pace.interrupt()


def _keep_to_rate(clock: Clock, pace: Pace) -> None:
    while (owed := pace.owed(clock.monotonic_ns())) > SLICE_NS:
        clock.sleep(SLICE_NS / 1e9)
        pace.interrupt()
    if owed > 0:
        clock.sleep(owed / 1e9)
