"""What clients lose of what a worker takes, by pairs: it is held, and let go, in turns of less than a second.

Phases of some seconds cannot be told apart by less than two or three hundredths where processors do half as much from
one moment to the next, at equal speed or not (module `equal_speed`). Neighbouring turns can: what differs between the
two of a pair is by and large the worker, and which of them comes first alternates. But a worker that is held has more
to do when it is let go. So it is not the loss of such turns that counts. What they tell is what clients lose of a
share of a processor, and that times the share that the worker took in a phase, beyond what it takes without a job, is
what they lost there. (That a share costs as much in other phases as in the one that was held is taken for granted.)
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from benchmarks.clients import Latencies
from benchmarks.equal_speed import UNKNOWN, Times

TURN_SECONDS = 0.7
# What follows a turn's beginning is left out: what the turn before has begun comes to its end.
_SETTLING_SECONDS = 0.1
# Of all pairs so many at either end count for no more than the next one: a burst in which the kernel writes pages back
# takes a fifth of a turn, and hits one of a pair, whichever that is.
_OUTERMOST = 0.1
# A turn with less than this share of the other's completions tells of a standstill.
_STANDSTILL = 0.3


class Held(Protocol):
    """A process that can be held."""

    def hold(self, held: bool) -> None:
        """Have it stand still where nobody waits for it, or go on."""
        ...

    def computed(self) -> float:
        """The processor time that it has taken, with its children, in seconds."""
        ...


class Turn(NamedTuple):
    """Seconds (monotonic) from when to when; the share of a processor that was taken; whether the worker was held."""

    begin: float
    end: float
    share: float
    held: bool


def turns(worker: Held, pairs: int) -> list[Turn]:
    """So many pairs of turns, which have come to an end, with the worker let go."""
    made = []
    for number in range(pairs):
        for held in (False, True) if number % 2 else (True, False):
            worker.hold(held)
            time.sleep(_SETTLING_SECONDS)
            begin, computed = time.monotonic(), worker.computed()
            time.sleep(TURN_SECONDS)
            end = time.monotonic()
            made.append(Turn(begin, end, (worker.computed() - computed) / (end - begin), held))
    worker.hold(False)
    return made


class Loss(NamedTuple):
    """Of pairs: the logarithm of what was measured with the worker to that without it, on average without the
    outermost; twice the standard error of that; and the share of a processor that the worker took."""

    change: float
    error: float
    share: float

    def at(self, share: float) -> Times:
        """As much as of a worker that takes another share."""
        if not self.share > 0:  # the worker had nothing to do, or too few turns tell
            return UNKNOWN
        part = share / self.share
        return Times(math.exp(self.change * part), self.error * abs(part))


def loss(turned: Sequence[tuple[Turn, Latencies]], measured: Callable[[Latencies, float, float], float]) -> Loss:
    """What pairs of turns tell, each with all that was seen in its round; of those without a standstill."""
    changes, shares = [], []
    for (one, seen), (other, _) in zip(turned[::2], turned[1::2], strict=True):
        with_it, without = (one, other) if other.held else (other, one)
        counts = [seen.completed(turn.begin, turn.end) for turn in (one, other)]
        if min(counts) > _STANDSTILL * max(counts):
            values = (measured(seen, turn.begin, turn.end) for turn in (with_it, without))
            changes.append(math.log(next(values) / next(values)))
            shares.append(with_it.share - without.share)
    if len(changes) < 2:
        return Loss(math.nan, math.inf, math.nan)
    return Loss(*_trimmed(changes), statistics.fmean(shares))


def _trimmed(values: Sequence[float]) -> tuple[float, float]:
    """The mean of what is not outermost, and twice its standard error (Tukey and McLaughlin's)."""
    cut = int(len(values) * _OUTERMOST)
    inner = sorted(values)[cut : len(values) - cut]
    drawn_in = [inner[0]] * cut + inner + [inner[-1]] * cut
    error = statistics.stdev(drawn_in) / (len(inner) / len(values) * math.sqrt(len(values)))
    return statistics.fmean(inner), 2 * error
