"""The gate: background work holds the atomic section briefly and then stays out of the way of foreground commits.

LMDB's writer mutex is not fair: a process that takes it again at once wins against one that has to be woken. Giving
way to announced waiters only is not enough either, since a client computes between two commits. So a background batch
stays out for PAUSE_FACTOR times what it held, fsync included, while any foreground commit is about; else not at all,
and batches grow. It stays out several times as long while foreground commits queue: that is how clients look that are
behind (the disk was slow for a moment, say), and what they have to catch up with is latency to each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from instar.clock import Clock
from instar.store.engine import Section
from instar.store.presence import Presence

# For how long a batch holds the section. What its commit takes is deducted, but its steps have as long as that at
# least: a commit that waits long for the disk is worth a longer batch.
HOLD_NS = 400_000
# While nobody else commits, batches grow to this, so that a load pays for few fsyncs. It is what the first foreground
# commit after a pause waits at most, once.
LONGEST_HOLD_NS = 8_000_000
PAUSE_FACTOR = 6
# How many pauses in a row a queue may cost: background work still ends, whatever the foreground does.
MOST_PAUSES = 4
_MOST_DRAWN = 4096

Step = Callable[[Section], None]


def run_gated(
    steps: Iterable[Step], run_batch: Callable[[deque[Step], int], tuple[int, int]], presence: Presence, clock: Clock
) -> int:
    """Run all steps in gated batches; returns the number of batches.

    `run_batch` enters the atomic section, runs and removes steps from the left for about the given nanoseconds,
    commits, and returns how long the steps took and how long it held the section. Steps are drawn before the section
    is entered, about as many as the last batch could run.
    """
    source = iter(steps)
    drawn: deque[Step] = deque()
    wanted, batches, budget, hold = 8, 0, HOLD_NS, HOLD_NS
    while True:
        drawn.extend(islice(source, max(0, wanted - len(drawn))))
        if not drawn:
            return batches
        before = len(drawn)
        stepped, held = run_batch(drawn, budget)
        batches += 1
        if presence.foreground_about():
            hold = HOLD_NS
            _stay_out(PAUSE_FACTOR * held / 1e9, presence, clock)
        else:
            hold = min(2 * hold, LONGEST_HOLD_NS)
        committing = held - stepped
        budget = max(committing, hold - committing)
        wanted = min(2 * (before - len(drawn)), _MOST_DRAWN)


def _stay_out(pause: float, presence: Presence, clock: Clock) -> None:
    """Sleep for `pause` seconds, and again while foreground commits queue."""
    for _ in range(MOST_PAUSES):
        clock.sleep(pause)
        if not presence.foreground_queues():
            return
