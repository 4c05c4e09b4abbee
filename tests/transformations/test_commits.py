"""A commit as a whole (rule 28), and what comes of applying its records one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from instar.transformations.commits import ManyToMany, OneToMany, Rest, Rules, Splitting, apply_commit, joining
from instar.transformations.records import Change, Deleted, Flag, Inserted, Updated
from transformations.histories import (
    JOIN,
    MANY,
    SPLIT,
    ApplyCommit,
    R,
    S,
    Sources,
    T,
    damaged,
    gone,
    one_at_a_time,
    propagated,
    row,
)
from transformations.model import JoinedTable, SplitTables, full_outer_join, split_of

JOINED = row(R, 1, "x", 0) | row(R, 2, "z", 0) | row(S, "a", "x", 0) | row(S, "b", "z", 0)


def additions_first(rules: Rules, changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, Inserted):
            rules.add(change)
    apply_commit(rules, [change for change in changes if not isinstance(change, Inserted)])


def joins(sources: Sources, apply: ApplyCommit = apply_commit) -> None:
    end = full_outer_join(JOIN, sources.read(R, sources.now), sources.read(S, sources.now))
    assert propagated(sources, JOIN, 1, apply=apply).records() == end


def splits(sources: Sources, apply: ApplyCommit = apply_commit) -> SplitTables:
    tables = SplitTables(SPLIT, sources.read(T, 1))
    for changes in sources.log[1:]:
        apply(Splitting(tables, SPLIT), changes)
    r, s = split_of(SPLIT, sources.read(T, sources.now))
    assert tables.r_records == r
    assert tables.values() == {value: record.values for value, record in s.items()}
    assert tables.counters() == {value: record.counter for value, record in s.items()}
    return tables


SWAPPED_VALUES = Sources(JOINED, row(S, "a", "z", 0) | row(S, "b", "x", 0))
# The key of S changes: a deletion and an insertion, and the log has the new key first if it is the lower one.
NEW_KEY = Sources(JOINED, row(S, "A", "x", 0) | gone(S, "a"))
VALUE_TAKEN_OVER = Sources(JOINED, row(S, "b", "x", 0) | row(S, "a", "y", 0))


@pytest.mark.parametrize("sources", [SWAPPED_VALUES, NEW_KEY, VALUE_TAKEN_OVER])
def test_a_join_value_changes_hands_in_one_commit(sources: Sources):
    joins(sources)
    assert damaged(lambda: joins(sources, one_at_a_time))


@pytest.mark.parametrize("of_r", [False, True])
def test_both_parts_of_a_record_go_in_one_commit(of_r: bool):
    writes = [gone(R, 1), gone(S, "a")]
    joins(Sources(JOINED, writes[of_r] | writes[not of_r]))


def test_the_order_of_the_log_within_a_commit_is_of_no_account():
    commit = row(R, 1, "z", 0) | gone(R, 2) | row(S, "a", "z", 0) | row(S, "b", "x", 7) | row(R, 3, "x", 0)
    for order in itertools.permutations(commit):
        joins(Sources(JOINED, {place: commit[place] for place in order}))


CITY = row(T, 1, 0, "x", "A", 0)


@pytest.mark.parametrize("writes", [
    row(T, 2, 0, "x", "B", 0) | gone(T, 1),
    row(T, 2, 0, "x", "B", 0) | row(T, 1, 0, "z", "A", 0),
])  # fmt: skip
def test_the_only_row_of_a_split_value_is_replaced_in_one_commit(writes):
    """Else s^x keeps the values of the row that goes, though T never contradicted itself."""
    assert splits(Sources(CITY, writes)).s_records["x",].flag is Flag.CONSISTENT
    assert damaged(lambda: splits(Sources(CITY, writes), one_at_a_time))


def test_additions_first_do_the_same_damage():
    sources = Sources(CITY, row(T, 2, 0, "x", "B", 0) | gone(T, 1))
    assert damaged(lambda: splits(sources, additions_first))


def test_updates_come_before_additions():
    """A row that comes meets s^x as the commit leaves it, and agrees with it."""
    sources = Sources(CITY, row(T, 2, 0, "x", "B", 0) | row(T, 1, 0, "x", "B", 0))
    assert splits(sources).s_records["x",].flag is Flag.CONSISTENT
    assert splits(sources, one_at_a_time).s_records["x",].flag is Flag.UNKNOWN


def test_changes_of_several_commits_are_refused():
    rules = Splitting(SplitTables(SPLIT, {}), SPLIT)
    changes = [Deleted(T, (key,), (key, 0, "x", "A", 0), key) for key in (1, 2)]
    with pytest.raises(AssertionError, match="several commits"):
        apply_commit(rules, changes)


def test_what_is_left_to_do_after_the_removals():
    rules = OneToMany(JoinedTable(JOIN), JOIN)
    assert rules.remove(Inserted(R, (1,), (1, "x"), 5)) is Rest.ADD
    assert rules.remove(Deleted(R, (1,), (1, "x"), 5)) is Rest.NOTHING
    assert rules.remove(Updated(R, (1,), (1, "x", 0), (1, "x", 7), 5)) is Rest.OVERWRITE


def test_the_shape_chooses_the_rules():
    assert isinstance(joining(JoinedTable(JOIN), JOIN), OneToMany)
    assert isinstance(joining(JoinedTable(MANY), MANY), ManyToMany)
