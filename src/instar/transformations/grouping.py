"""A grouping: a row of T counts in the record of its group, and its values in the record's sums.

The rules are 8, 9 and 11 of a split restated for sums: an insert adds, a delete subtracts, an update does both, to one
record or to two; a record that counts no row any more goes. They need neither R nor timestamps, and no rule ever reads
what a row was before but in the log: so each commit must be applied exactly once, in order, which whoever calls them
sees to by recording the position with what is put. Sums are exact: of integers and numerics alone, where what was added
can be taken away again. A NaN cannot: such values are counted beside. Nor can a scale: a sum is written with as many
digits after the point as the value has that has the most, so it is counted how many values have which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Protocol

import msgspec

from instar.transformations.commits import Rest
from instar.transformations.records import Change, Deleted, Inserted, Row, Updated, chosen, same

# Wide enough for the exact sum of any number of values of 38 digits on either side of the point.
_EXACT = Context(prec=400)


class Sums(msgspec.Struct, frozen=True, array_like=True):
    """Of one column in one group: how many values are not NULL, the sum of those that are numbers, how many are NaN;
    and, where values of a column differ in scale, how many of those numbers have which scale (no count is 0)."""

    count: int = 0
    total: Decimal = Decimal(0)
    nans: int = 0
    scales: dict[int, int] | None = None

    def plus(self, value: object, sign: int, *, summed: bool) -> Sums:
        """With a value added (`sign` 1) or taken away (-1)."""
        if value is None:
            return self
        count = self.count + sign
        if not summed:
            return Sums(count)
        assert isinstance(value, int | Decimal)
        number = Decimal(value)
        if number.is_nan():
            return Sums(count, self.total, self.nans + sign, self.scales)
        total = _EXACT.add(self.total, number if sign > 0 else _EXACT.minus(number))
        if self.scales is None:
            return Sums(count, total, self.nans)
        scales = _counted(self.scales, _scale(number), sign)
        total = _EXACT.quantize(total, Decimal(1).scaleb(-max(scales, default=0)))  # exact: a sum of such numbers
        return Sums(count, total, self.nans, scales)


def _scale(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # a number
    return max(-exponent, 0)


def _counted(counts: dict[int, int], one: int, sign: int) -> dict[int, int]:
    """Counts in their order, of which none is 0, with one more or less."""
    count = counts.get(one, 0) + sign
    assert count >= 0, "a scale that no value has"
    if count:
        return dict(sorted({**counts, one: count}.items()))
    return {other: found for other, found in counts.items() if other != one}


class Group(msgspec.Struct, frozen=True):
    """The record of a group: the values that its rows share, of which NULL may be one, how many rows there are, and
    the sums of each column. It was changed last at `timestamp`."""

    values: Row
    counter: int
    sums: tuple[Sums, ...]
    timestamp: int = 0


class Grouping(msgspec.Struct, frozen=True):
    """The shape of a grouping: the places of the columns that it groups by, and of those that it counts or sums up, in
    rows of T. `summed`: which of the latter are summed up; `scaled`: and have values of more than one scale. `counts`:
    whether a row is in any group."""

    on: tuple[int, ...]
    values: tuple[int, ...]
    summed: tuple[bool, ...]
    scaled: tuple[bool, ...]
    counts: Callable[[Row], bool]

    def value(self, row: Row) -> Row:
        """The values that a row's group is known by."""
        return chosen(row, self.on)

    def empty(self, value: Row) -> Group:
        """A group without rows."""
        return Group(value, 0, tuple([Sums(scales={} if scaled else None) for scaled in self.scaled]))

    def plus(self, group: Group, row: Row, sign: int, timestamp: int) -> Group:
        """With a row added (`sign` 1) or taken away (-1)."""
        parts = zip(group.sums, self.values, self.summed, strict=True)
        sums = tuple([sums.plus(row[place], sign, summed=summed) for sums, place, summed in parts])
        return Group(group.values, group.counter + sign, sums, timestamp)

    def leaves(self, change: Updated) -> bool:
        """Whether an update changes nothing that a record has."""
        places = (*self.on, *self.values)
        kept = same(chosen(change.before, places), chosen(change.after, places))
        return kept and self.counts(change.before) == self.counts(change.after)


class GroupTarget(Protocol):
    """The records of a grouping, by the values that they share."""

    def group(self, value: Row, /) -> Group | None: ...

    def put(self, group: Group, /) -> None:
        """Add a record, or overwrite the one with the same values."""
        ...

    def remove(self, value: Row, /) -> None:
        """Take away a record that is there."""
        ...


class GroupingRules:
    """The rules as an object (`Rules`)."""

    def __init__(self, target: GroupTarget, shape: Grouping) -> None:
        self.target, self.shape = target, shape

    def remove(self, change: Change) -> Rest:
        """Subtract the row as it was."""
        if isinstance(change, Inserted):
            return Rest.ADD
        if isinstance(change, Deleted):
            self._count(change.before, -1, change.timestamp)
            return Rest.NOTHING
        if self.shape.leaves(change):
            return Rest.NOTHING
        self._count(change.before, -1, change.timestamp)
        return Rest.ADD

    def overwrite(self, changes: Sequence[Updated]) -> None:
        """Nothing stays where it is: an update subtracts and adds."""
        assert not changes, "an update of a grouping overwrites nothing"

    def add(self, change: Inserted | Updated) -> None:
        """Add the row as it is."""
        self._count(change.after, 1, change.timestamp)

    def _count(self, row: Row, sign: int, timestamp: int) -> None:
        shape = self.shape
        if not shape.counts(row):
            return
        value = shape.value(row)
        before = self.target.group(value)
        group = shape.plus(before or shape.empty(value), row, sign, timestamp)
        assert group.counter >= 0, "a group of less than no rows"
        if group.counter:
            self.target.put(group)
        else:
            self.target.remove(value)
