"""A join, split or grouping that is under way: its sources, its targets, and the rules between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from instar.catalog.descriptors import MadeByGrouping, MadeByJoin, MadeBySplit, Table
from instar.schemachange.online.changes import SourceRows, Translator
from instar.schemachange.online.grouping_target import Counts, GroupTargets, StoredGroups
from instar.schemachange.online.join_target import StoredJoin
from instar.schemachange.online.overlay import Readable, Writable
from instar.schemachange.online.plain_join import PlainJoin
from instar.schemachange.online.plain_split import PlainSplit
from instar.schemachange.online.plain_updates import Batch, RulesAlone
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.target_rows import JoinTarget, SplitTargets
from instar.store.engine import LogRecord
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
    def sources(self) -> tuple[SourceRows, SourceRows]:
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


# Commits whose rows have so many bytes are enough to be applied at once: all of it is in memory.
_BYTES_TOGETHER = 1 << 20

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


class Applied(NamedTuple):
    """Commits that were applied: the timestamp of the last of them, how many, and with how many changes of sources."""

    timestamp: int
    commits: int
    changes: int


class Propagator:
    """What brings the log of the sources to a target: by the rules, and plain updates on bytes."""

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation
        self._translator = Translator(transformation.sources)
        self.tables = self._translator.tables  # the sources' ids
        self._split = self._join = None
        if isinstance(transformation, OnlineSplit):
            self._split = PlainSplit(transformation.source, transformation.targets)
        elif isinstance(transformation, OnlineJoin):
            self._join = PlainJoin(transformation.sources, transformation.joined)

    def apply(
        self, target: Stored, records: Iterable[LogRecord], view: Readable, together: int = 1
    ) -> Iterator[Applied]:
        """Apply the records of sources, some commits at once: as many as have, or come to, `together` changes or rows.
        Stops whenever some are applied. `view` has the layouts. Errors as of `Translator.changes` and `apply`."""
        rules = rules_of(target)

        def by_rules(commit: list[LogRecord]) -> None:
            apply(self._transformation, rules, self._translator.changes(commit, view))

        batch = self._batch(target, view)
        timestamp = commits = changes = size = 0
        for timestamp, commit in self._translator.commits(records):
            batch.add(commit)
            commits += 1
            changes += len(commit)
            size += sum([len(record.before or b"") + len(record.after or b"") for record in commit])
            if batch.weight >= together or batch.is_closed or size >= _BYTES_TOGETHER:
                batch.apply(by_rules)
                yield Applied(timestamp, commits, changes)
                batch = self._batch(target, view)
                commits = changes = size = 0
        if commits:
            batch.apply(by_rules)
            yield Applied(timestamp, commits, changes)

    def _batch(self, target: Stored, view: Readable) -> Batch:
        """An empty batch of commits."""
        if self._split is not None:
            assert isinstance(target, StoredSplit)
            return self._split.batch(target, view)
        if self._join is not None:
            assert isinstance(target, StoredJoin)
            return self._join.batch(target, view)
        return RulesAlone()
