"""Phases of a measurement compared as if the processors had done as much in each of them.

They often do not (module `noise`), and what is looked for, some hundredths, is far less than by how much they differ.
So each phase is cut into windows, and of the logarithm of what was measured in a window three things are told apart, by
least squares: the round it belongs to, how slow the processors were in it, and whether a change was beside it. How
slowness tells is learnt from the windows themselves. The standard error of a growth of the response time is 0.6 to 0.8
of what it is without. Windows of one phase count as if they had nothing to do with one another, so that it is rather
more than is said. What a change does to the processors themselves (where two of them share a core) is taken out, too:
the figure as it was is to be shown beside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

WINDOW_SECONDS = 1.0
# The phase that others are compared with.
QUIET = ""


class Window(NamedTuple):
    """What was measured in a window, above 0, and how many times as long as at best processors took for the same."""

    round: int
    phase: str
    measured: float
    slowness: float


class Times(NamedTuple):
    """How many times as much as in the quiet phase, and twice the standard error of that; infinite if there are too few
    windows to tell."""

    value: float
    error: float


# Of a phase without a window in which something was measured.
UNKNOWN = Times(math.nan, math.inf)


def windows_of(begin: float, end: float) -> list[tuple[float, float]]:
    """A phase's windows: all of it, cut evenly."""
    count = max(int((end - begin) / WINDOW_SECONDS), 1)
    cuts = [begin + place * (end - begin) / count for place in range(count)]
    return list(pairwise([*cuts, end]))


def at_equal_speed(windows: Sequence[Window]) -> dict[str, Times]:
    """Each phase but the quiet one, beside that; none if there is no quiet one. Means are those of logarithms: what is
    rare and long counts for less than in a mean."""
    if not any(window.phase == QUIET for window in windows):
        return {}
    phases = sorted({window.phase for window in windows} - {QUIET})
    rounds = sorted({window.round for window in windows})
    told = np.array(
        [
            [window.round == number for number in rounds]
            + [window.phase == phase for phase in phases]
            + [math.log(window.slowness)]
            for window in windows
        ],
        dtype=float,
    )
    measured = np.log([window.measured for window in windows])
    found = np.linalg.pinv(told) @ measured
    free = len(windows) - told.shape[1]
    errors = np.full(told.shape[1], math.inf)
    if free > 0:
        spread = ((measured - told @ found) ** 2).sum() / free
        errors = 2 * np.sqrt(np.diag(np.linalg.pinv(told.T @ told)) * spread)
    return {
        phase: Times(math.exp(found[place]), float(errors[place])) for place, phase in enumerate(phases, len(rounds))
    }
