"""The consistency checker of a split (§5.3): how a record of S whose flag is U becomes C.

The checker commits "begin CC on v", reads the rows of T that contribute to s^v, which is the caller's part, and commits
"v is ok" with their image. The propagator applies that when it comes by in the log, if s^v has not changed in between.

What differs from the paper: the propagator keeps no list of what is being checked. "v is ok" names the timestamp of its
"begin", and every change of s^v raises the timestamp of S's record, so that the record itself tells. A propagator that
was killed and begins again further back in the log meets both marks once more: S's record is newer by then if there was
a change after the check, and the old image does not go over it. What the paper leaves open, a rule of repair, is a
function of the rows that contradict each other; the sources keep their contradiction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from instar.transformations.records import Flag, Row, SRecord
from instar.transformations.targets import SplitTarget


class Contribution(msgspec.Struct, frozen=True):
    """A row of T with the split value that is checked: its key, what S has of it, when it was changed last."""

    key: Row
    values: Row
    timestamp: int


class CheckBegun(msgspec.Struct, frozen=True):
    """The mark "begin CC on v": what is read after its commit may be told by the `CheckPassed` of it."""

    value: Row
    timestamp: int


class CheckPassed(msgspec.Struct, frozen=True):
    """The mark "v is ok" with the image of s^v; it holds if s^v has not changed since `begun`."""

    value: Row
    image: Row
    begun: int


# The image that is taken where the rows contradict each other.
Repair = Callable[[Sequence[Contribution]], Row]


def conclude(begun: CheckBegun, contributions: Sequence[Contribution], repair: Repair) -> CheckPassed | None:
    """What a check comes to; None if nothing contributes any more: the log has s^v's end."""
    if not contributions:
        return None
    said = opinions(contributions)
    image = said[0][0] if len(said) == 1 else repair(contributions)
    return CheckPassed(begun.value, image, begun.timestamp)


def changed_since(record: SRecord, begun: int) -> bool:
    """Whether S's record was changed after the check had begun: its counter, its values or, by rows that the guard of
    rule 11 kept from them, its flag.
    """
    return record.timestamp > begun


def pass_check(target: SplitTarget, passed: CheckPassed) -> bool:
    """Apply "v is ok" (§5.3); says whether it holds. The timestamp stays: it is that of S's last change in T."""
    old = target.s(passed.value)
    if old is None or changed_since(old, passed.begun):
        return False
    target.put_s(passed.value, SRecord(passed.image, old.counter, old.timestamp, Flag.CONSISTENT))
    return True


def opinions(contributions: Sequence[Contribution]) -> list[tuple[Row, list[Contribution]]]:
    """The different images, each with the rows that have it: what is listed as a contradiction if there are several."""
    found: dict[Row, list[Contribution]] = {}
    for contribution in contributions:
        found.setdefault(contribution.values, []).append(contribution)
    return list(found.items())


def most_frequent(contributions: Sequence[Contribution]) -> Row:
    """Repair: what most rows say; of several, what was said last."""
    return max(opinions(contributions), key=lambda said: (len(said[1]), max(row.timestamp for row in said[1])))[0]


def newest(contributions: Sequence[Contribution]) -> Row:
    """Repair: what the row says that was changed last; of several in one commit, what comes first in T."""
    return max(contributions, key=lambda row: row.timestamp).values
