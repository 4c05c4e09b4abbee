"""The variants for many rows of S with one join value, by named cases; and why the rules of one-to-many do not do."""

from __future__ import annotations

import msgspec
import pytest

from instar.transformations import full_outer_join as one_to_many
from instar.transformations.commits import ManyToMany, OneToMany, Rest, apply_commit
from instar.transformations.records import Change, Deleted, Inserted, Join, Joined, Part, Row, Source, Updated, joined
from transformations.histories import MANY, MakeRules, R, S, Sources, damaged, gone, propagated, row
from transformations.model import JoinedTable, full_outer_join

OLD, NOW = 1, 5
BOTH = pytest.mark.parametrize("source", [R, S], ids=["R", "S"])


def part(*values: object, at: int = OLD) -> Part:
    return Part(values, at)


def after(change: Change, *before: Joined) -> set[Joined]:
    table = JoinedTable(MANY, before)
    apply_commit(ManyToMany(table, MANY), [change])
    return table.records()


def inserted(source: Source, *values: object) -> Inserted:
    return Inserted(source, values[:1], values, NOW)


def deleted(source: Source, *values: object) -> Deleted:
    return Deleted(source, values[:1], values, NOW)


def updated(source: Source, before: Row, *values: object) -> Updated:
    return Updated(source, before[:1], before, values, NOW)


@BOTH
class TestRules1And2:
    """Insert."""

    def test_a_record_for_each_match(self, source: Source):
        two, three, a = part(2, "x"), part(3, "x"), part("a", "x")
        before = joined(source, a, two), joined(source, a, three)
        new = part("b", "x", at=NOW)
        assert after(inserted(source, "b", "x"), *before) == {
            *before, joined(source, new, two), joined(source, new, three)
        }  # fmt: skip

    def test_a_match_is_alone_no_more(self, source: Source):
        alone = part(2, "x"), part(3, "x")
        before = [joined(source, None, other) for other in alone]
        new = part("b", "x", at=NOW)
        assert after(inserted(source, "b", "x"), *before) == {joined(source, new, other) for other in alone}

    @pytest.mark.parametrize("value", ["x", None])
    def test_without_a_match_it_stands_alone(self, source: Source, value: object):
        others = {joined(source, part("a", value), None), joined(source, None, part(2, None))}
        assert after(inserted(source, "b", value), *others) == {*others, joined(source, part("b", value, at=NOW), None)}

    def test_is_ignored_if_the_key_exists(self, source: Source):
        newer = joined(source, part("b", "z", at=9), None)
        assert after(inserted(source, "b", "x"), newer) == {newer}


@BOTH
class TestRules3And4:
    """Delete."""

    def test_keeps_the_matches_that_are_nowhere_else(self, source: Source):
        a, b, two, three = part("a", "x"), part("b", "x"), part(2, "x"), part(3, "x")
        assert after(deleted(source, "a", "x"), joined(source, a, two), joined(source, a, three)) == {
            joined(source, None, two), joined(source, None, three)
        }  # fmt: skip
        elsewhere = joined(source, b, two)
        assert after(deleted(source, "a", "x"), joined(source, a, two), elsewhere) == {elsewhere}

    def test_is_ignored_if_there_is_none_or_a_newer_one(self, source: Source):
        newer = joined(source, part("a", "x", at=9), part(2, "x"))
        assert after(deleted(source, "a", "x"), newer) == {newer}
        assert after(deleted(source, "a", "x")) == set()


@BOTH
class TestRules5And6:
    """Update the join value."""

    def test_leaves_its_matches_and_takes_others(self, source: Source):
        a, two, three = part("a", "x"), part(2, "x"), part(3, "z")
        before = joined(source, a, two), joined(source, None, three)
        assert after(updated(source, ("a", "x"), "a", "z"), *before) == {
            joined(source, None, two), joined(source, part("a", "z", at=NOW), three)
        }  # fmt: skip

    def test_is_ignored_if_there_is_none_or_a_newer_one(self, source: Source):
        newer = joined(source, part("a", "x", at=9), None)
        assert after(updated(source, ("a", "x"), "a", "z"), newer) == {newer}
        assert after(updated(source, ("a", "x"), "a", "z")) == set()


@BOTH
def test_rule_7_reaches_all_records_of_the_row(source: Source):
    two, three = part(2, "x"), part(3, "x")
    before = [joined(source, part("a", "x", 0), other) for other in (two, three)]
    new = part("a", "x", 7, at=NOW)
    assert after(updated(source, ("a", "x", 0), "a", "x", 7), *before) == {
        joined(source, new, other) for other in (two, three)
    }


def test_join_columns_change_although_they_match_nothing_before_and_after():
    """Of two join columns one is NULL, and stays so."""
    shape = Join(r_key=(0,), r_on=(1, 2), s_key=(0,), s_on=(1, 2), unique=False)
    for rules, unique in ((ManyToMany, False), (OneToMany, True)):
        table = JoinedTable(shape, [Joined(part("a", "x", None), None)])
        target = msgspec.structs.replace(shape, unique=unique)
        apply_commit(rules(table, target), [updated(R, ("a", "x", None), "a", "y", None)])
        assert table.records() == {Joined(part("a", "y", None, at=NOW), None)}


# --- the paper's rules for S, and conditions switched off -------------------------------------------------------------


class InsertsAsOneToMany(ManyToMany):
    """Rule 2 unmodified, as the paper says."""

    def add(self, change: Inserted | Updated) -> None:
        if change.source is Source.S:
            one_to_many.insert_s(self.target, self.join, change)
        else:
            super().add(change)


class DeletesAsOneToMany(ManyToMany):
    """Rule 4 unmodified, as the paper says."""

    def remove(self, change: Change) -> Rest:
        if change.source is Source.S and isinstance(change, Deleted):
            one_to_many.delete_s(self.target, change)
            return Rest.NOTHING
        return super().remove(change)


class ForgetsTheOtherPart(ManyToMany):
    """Rules 3 and 4 without care for a match that is nowhere else."""

    def remove(self, change: Change) -> Rest:
        rest = super().remove(change)
        if isinstance(change, Deleted):
            for record in list(self.target.matching(change.before[1:2])):
                if record.part(change.source) is None:
                    self.target.remove(record)
        return rest


PAIR = row(R, 1, "x", 0) | row(S, "a", "x", 0)


def correct(sources: Sources, rules: MakeRules = ManyToMany) -> None:
    end = full_outer_join(MANY, sources.read(R, sources.now), sources.read(S, sources.now))
    assert propagated(sources, MANY, 1, rules=rules).records() == end


@pytest.mark.parametrize(
    ("rules", "sources"),
    [
        (InsertsAsOneToMany, Sources(PAIR, row(S, "b", "x", 0))),
        (DeletesAsOneToMany, Sources(PAIR | row(S, "b", "x", 0), gone(S, "b"))),
        (ForgetsTheOtherPart, Sources(PAIR, gone(S, "a"))),
    ],
)
def test_the_rules_of_one_to_many_do_damage(rules, sources):
    correct(sources)
    assert damaged(lambda: correct(sources, rules))
