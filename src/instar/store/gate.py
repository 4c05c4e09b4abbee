"""The gate: background work holds the atomic section briefly and then stays out of the way of foreground commits.

LMDB's writer mutex is not fair: a process that takes it again at once wins against one that has to be woken. Giving
way to announced waiters only is not enough either, since a client computes between two commits. So a background batch
stays out for PAUSE_FACTOR times what it held, fsync included, while any foreground commit is about; else not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from instar.clock import Clock
from instar.store.engine import Section
from instar.store.presence import Presence

HOLD_NS = 400_000
PAUSE_FACTOR = 5
_MOST_DRAWN = 4096

Step = Callable[[Section], None]


def run_gated(steps: Iterable[Step], run_batch: Callable[[deque[Step]], int], presence: Presence, clock: Clock) -> int:
    """Run all steps in gated batches; returns the number of batches.

    `run_batch` enters the atomic section, runs and removes steps from the left for about HOLD_NS, commits, and
    returns for how many nanoseconds it held the section. Steps are drawn before the section is entered, about as many
    as the last batch could run.
    """
    source = iter(steps)
    drawn: deque[Step] = deque()
    wanted, batches = 8, 0
    while True:
        drawn.extend(islice(source, max(0, wanted - len(drawn))))
        if not drawn:
            return batches
        before = len(drawn)
        held = run_batch(drawn)
        batches += 1
        wanted = min(2 * (before - len(drawn)), _MOST_DRAWN)
        if presence.foreground_about():
            clock.sleep(PAUSE_FACTOR * held / 1e9)
