"""A join, split or grouping that is under way: its sources, its targets, and the rules between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from instar.catalog.descriptors import MadeByGrouping, MadeByJoin, MadeBySplit, Table
from instar.schemachange.online.changes import SourceRows, Translator
from instar.schemachange.online.grouping_target import Counts, GroupTargets, StoredGroups
from instar.schemachange.online.join_target import StoredJoin
from instar.schemachange.online.overlay import Writable
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.target_rows import JoinTarget, SplitTargets
from instar.transformations.commits import Rules, Splitting, apply_commit, joining
from instar.transformations.grouping import GroupingRules
from instar.transformations.records import Change, Deleted, Source


class OnlineSplit(NamedTuple):
    """A split of `source` in R and S."""

    source: SourceRows
    targets: SplitTargets

    @property
    def made(self) -> MadeBySplit:
        """What the targets are made by."""
        return self.targets.made

    @property
    def sources(self) -> tuple[SourceRows, ...]:
        """The rows of the tables that the targets are made of."""
        return (self.source,)

    def target(self, store: Writable) -> StoredSplit:
        """R and S over something to write to."""
        return StoredSplit(self.targets, self.source.table, store)


class OnlineJoin(NamedTuple):
    """A join of R and S. `new_row_id` gives ids that no row of T has had."""

    r: SourceRows
    s: SourceRows
    joined: JoinTarget
    new_row_id: Callable[[], int]

    @property
    def made(self) -> MadeByJoin:
        """What the target is made by."""
        return self.joined.made

    @property
    def sources(self) -> tuple[SourceRows, ...]:
        """The rows of the tables that the target is made of."""
        return (self.r, self.s)

    def target(self, store: Writable) -> StoredJoin:
        """T over something to write to."""
        return StoredJoin(self.joined, (self.r.table, self.s.table), store, self.new_row_id)


class OnlineGrouping(NamedTuple):
    """A grouping of the rows of `source`."""

    source: SourceRows
    groups: GroupTargets

    @property
    def made(self) -> MadeByGrouping:
        """What the target is made by."""
        return self.groups.made

    @property
    def sources(self) -> tuple[SourceRows, ...]:
        """The rows of the tables that the target is made of."""
        return (self.source,)

    def target(self, store: Writable) -> StoredGroups:
        """The target over something to write to."""
        return StoredGroups(self.groups, store)


Transformation = OnlineSplit | OnlineJoin | OnlineGrouping
Stored = StoredSplit | StoredJoin | StoredGroups


def split_of(source: Table, r: Table, s: Table) -> OnlineSplit:
    """The split that these tables are of; R and S are unseen."""
    return OnlineSplit(SourceRows(Source.T, source), SplitTargets(source, r, s))


def join_of(r: Table, s: Table, target: Table, new_row_id: Callable[[], int]) -> OnlineJoin:
    """The join that these tables are of; the target is unseen."""
    return OnlineJoin(SourceRows(Source.R, r), SourceRows(Source.S, s), JoinTarget(r, s, target), new_row_id)


def grouping_of(source: Table, target: Table, counts: Counts) -> OnlineGrouping:
    """The grouping that these tables are of; the target is unseen."""
    return OnlineGrouping(SourceRows(Source.T, source), GroupTargets(source, target, counts))


def apply(transformation: Transformation, rules: Rules, changes: Sequence[Change]) -> None:
    """Apply a commit by the rules (rule 28). 23502 if a row would lose values by it."""
    if isinstance(transformation, OnlineSplit):
        for change in changes:
            if not isinstance(change, Deleted):
                transformation.targets.require_kept(change.after)
    apply_commit(rules, changes)


def rules_of(target: Stored) -> Rules:
    """The rules by which a stored target follows."""
    if isinstance(target, StoredSplit):
        return Splitting(target, target.targets.shape)
    if isinstance(target, StoredGroups):
        return GroupingRules(target, target.targets.shape)
    return joining(target, target.target.shape)


def translator_of(transformation: Transformation) -> Translator:
    """What makes changes of the log of the sources."""
    return Translator(transformation.sources)
