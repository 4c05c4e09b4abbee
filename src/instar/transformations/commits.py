"""A commit is applied as a whole: all its removals and detachments before all its additions (rule 28 of the protocol).

The paper propagates one log record after the other. The records of a commit have no order that could be relied on, and
its states in between never were: when two rows of S swap their join values, either comes to where the other still is,
and rule 6 would leave one of them out. The same holds where a row takes over a key or a split value.

A row has one record per commit, its key unchanged. A change of key is a deletion and an insertion with one pair number;
the rules need not know which belong together. An update of a join or split value is a removal and an addition. All
other updates come in between, so that rows of the same commit meet S's record of a split as the commit leaves it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from instar.transformations import full_outer_join as one_to_many
from instar.transformations import many_to_many, split
from instar.transformations.records import Change, Deleted, Inserted, Join, Source, Split, Updated
from instar.transformations.targets import JoinTarget, SplitTarget


class Rest(enum.Enum):
    """What is left to do of a change when all removals of its commit are done."""

    NOTHING = enum.auto()
    OVERWRITE = enum.auto()
    ADD = enum.auto()


class Rules(Protocol):
    """The rules of one transformation, in the three steps of a commit."""

    def remove(self, change: Change, /) -> Rest:
        """Remove, or detach, what the change takes away."""
        ...

    def overwrite(self, changes: Sequence[Updated], /) -> None:
        """Update what stays where it is."""
        ...

    def add(self, change: Inserted | Updated, /) -> None:
        """Add, or attach, what the change brings."""
        ...


def apply_commit(rules: Rules, changes: Sequence[Change]) -> None:
    """Apply what one commit changed in the sources (rule 28). To apply it again is harmless if all after it follow."""
    assert len({change.timestamp for change in changes}) <= 1, "changes of several commits"
    left = [(change, rules.remove(change)) for change in changes]
    rules.overwrite([change for change, rest in left if rest is Rest.OVERWRITE and isinstance(change, Updated)])
    for change, rest in left:
        if rest is Rest.ADD and not isinstance(change, Deleted):
            rules.add(change)


class OneToMany:
    """Rules 1 to 7."""

    def __init__(self, target: JoinTarget, join: Join) -> None:
        self.target, self.join = target, join

    def remove(self, change: Change) -> Rest:
        of_r = change.source is Source.R
        match change:
            case Inserted():
                return Rest.ADD
            case Deleted() if of_r:
                one_to_many.delete_r(self.target, self.join, change)
                return Rest.NOTHING
            case Deleted():
                one_to_many.delete_s(self.target, change)
                return Rest.NOTHING
            case Updated() if not self.join.moves(change):
                return Rest.OVERWRITE
            case Updated() if of_r:
                return Rest.ADD if one_to_many.detach_r(self.target, self.join, change) else Rest.NOTHING
            case Updated():
                one_to_many.detach_s(self.target, change)
                return Rest.ADD

    def overwrite(self, changes: Sequence[Updated]) -> None:
        for change in changes:
            one_to_many.update_part(self.target, self.join, change)

    def add(self, change: Inserted | Updated) -> None:
        of_r = change.source is Source.R
        match change:
            case Inserted() if of_r:
                one_to_many.insert_r(self.target, self.join, change)
            case Inserted():
                one_to_many.insert_s(self.target, self.join, change)
            case Updated() if of_r:
                one_to_many.attach_r(self.target, self.join, change)
            case Updated():
                one_to_many.attach_s(self.target, self.join, change)


class ManyToMany:
    """The variants of rules 1 to 6, and rule 7."""

    def __init__(self, target: JoinTarget, join: Join) -> None:
        self.target, self.join = target, join

    def remove(self, change: Change) -> Rest:
        match change:
            case Inserted():
                return Rest.ADD
            case Deleted():
                many_to_many.delete_row(self.target, self.join, change)
                return Rest.NOTHING
            case Updated() if not self.join.moves(change):
                return Rest.OVERWRITE
            case Updated():
                return Rest.ADD if many_to_many.detach_row(self.target, self.join, change) else Rest.NOTHING

    def overwrite(self, changes: Sequence[Updated]) -> None:
        for change in changes:
            one_to_many.update_part(self.target, self.join, change)

    def add(self, change: Inserted | Updated) -> None:
        if isinstance(change, Inserted):
            many_to_many.insert_row(self.target, self.join, change)
        else:
            many_to_many.attach_row(self.target, self.join, change)


def joining(target: JoinTarget, join: Join) -> Rules:
    """The rules for a full outer join of this shape."""
    return OneToMany(target, join) if join.unique else ManyToMany(target, join)


class Splitting:
    """Rules 8 to 11."""

    def __init__(self, target: SplitTarget, shape: Split) -> None:
        self.target, self.shape = target, shape

    def remove(self, change: Change) -> Rest:
        match change:
            case Inserted():
                return Rest.ADD
            case Deleted():
                split.delete_t(self.target, self.shape, change)
                return Rest.NOTHING
            case Updated():
                return self._update(change)

    def _update(self, change: Updated) -> Rest:
        old = split.update_r(self.target, self.shape, change)
        if old is None:
            return Rest.NOTHING
        if self.shape.value_in_r(old) == self.shape.value(change.after):
            return Rest.OVERWRITE
        split.leave_s(self.target, self.shape, old, change)
        return Rest.ADD

    def overwrite(self, changes: Sequence[Updated]) -> None:
        for change in changes:
            split.update_s(self.target, self.shape, change)
        split.agree_s(self.target, self.shape, changes)

    def add(self, change: Inserted | Updated) -> None:
        if isinstance(change, Inserted):
            split.insert_t(self.target, self.shape, change)
        else:
            split.enter_s(self.target, self.shape, change)
