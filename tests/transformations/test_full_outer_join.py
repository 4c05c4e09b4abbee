"""Rules 1 to 7 by named cases, and what each of their conditions is good for: switched off, it does damage."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from instar.transformations.commits import OneToMany, Rest, apply_commit
from instar.transformations.records import Change, Deleted, Inserted, Join, Joined, Part, Row, Source, Updated, joined
from instar.transformations.targets import has, outdated
from transformations.histories import JOIN, MakeRules, R, Reads, S, Sources, as_if_newer, damaged, gone, propagated, row
from transformations.model import JoinedTable, full_outer_join

# Old records, from before any change below, and the change's timestamp.
OLD, NOW = 1, 5


def r(*values: object, at: int = OLD) -> Part:
    return Part(values, at)


def s(*values: object, at: int = OLD) -> Part:
    return Part(values, at)


def after(change: Change, *before: Joined) -> set[Joined]:
    """T after one change, if it was like this before."""
    table = JoinedTable(JOIN, before)
    apply_commit(OneToMany(table, JOIN), [change])
    return table.records()


def inserted(source: Source, *values: object) -> Inserted:
    return Inserted(source, values[:1], values, NOW)


def deleted(source: Source, *values: object) -> Deleted:
    return Deleted(source, values[:1], values, NOW)


def updated(source: Source, before: Row, *values: object) -> Updated:
    return Updated(source, before[:1], before, values, NOW)


NEW_R = r(1, "x", 0, at=NOW)
NEW_S = s("a", "x", 0, at=NOW)


class TestRule1:
    """Insert r^y_x."""

    def test_takes_the_place_of_the_null_record(self):
        assert after(inserted(R, 1, "x", 0), Joined(None, s("a", "x"))) == {Joined(NEW_R, s("a", "x"))}

    def test_takes_the_s_part_of_another_record(self):
        other = Joined(r(2, "x"), s("a", "x"))
        assert after(inserted(R, 1, "x", 0), other) == {other, Joined(NEW_R, s("a", "x"))}

    @pytest.mark.parametrize("other", [Joined(r(2, "x"), None), Joined(None, s("a", "z"))], ids=str)
    def test_has_no_match(self, other: Joined):
        assert after(inserted(R, 1, "x", 0), other) == {other, Joined(NEW_R, None)}

    def test_is_ignored_if_the_key_exists(self):
        newer = Joined(r(1, "z", 7, at=9), None)
        assert after(inserted(R, 1, "x", 0), newer) == {newer}

    def test_null_matches_nothing(self):
        others = {Joined(None, s("a", None)), Joined(r(2, None), None)}
        assert after(inserted(R, 1, None), *others) == {*others, Joined(r(1, None, at=NOW), None)}


class TestRule2:
    """Insert s^x."""

    def test_joins_all_that_have_no_s_part(self):
        before = Joined(r(1, "x"), None), Joined(r(2, "x"), None), Joined(r(3, "z"), None)
        assert after(inserted(S, "a", "x", 0), *before) == {
            Joined(r(1, "x"), NEW_S), Joined(r(2, "x"), NEW_S), Joined(r(3, "z"), None)
        }  # fmt: skip

    def test_without_a_match_it_stands_alone(self):
        assert after(inserted(S, "a", "x", 0)) == {Joined(None, NEW_S)}

    @pytest.mark.parametrize("match", [None, r(1, "x")], ids=str)
    def test_does_not_go_over_another(self, match: Part | None):
        newer = Joined(match, s("b", "x", at=9))
        assert after(inserted(S, "a", "x", 0), newer) == {newer}

    def test_is_ignored_if_the_key_exists(self):
        newer = Joined(None, s("a", "z", at=9))
        assert after(inserted(S, "a", "x", 0), newer) == {newer}


class TestRule3:
    """Delete r^y."""

    def test_without_s_part_it_just_goes(self):
        assert after(deleted(R, 1, "x"), Joined(r(1, "x"), None)) == set()

    def test_keeps_an_s_part_that_is_nowhere_else(self):
        assert after(deleted(R, 1, "x"), Joined(r(1, "x"), s("a", "x"))) == {Joined(None, s("a", "x"))}

    def test_keeps_no_s_part_that_is_elsewhere(self):
        other = Joined(r(2, "x"), s("a", "x"))
        assert after(deleted(R, 1, "x"), Joined(r(1, "x"), s("a", "x")), other) == {other}

    def test_is_ignored_if_there_is_none_or_a_newer_one(self):
        newer = Joined(r(1, "x", at=NOW), None)
        assert after(deleted(R, 1, "x"), newer) == {newer}
        assert after(deleted(R, 1, "x")) == set()


class TestRule4:
    """Delete s^x."""

    def test_the_null_record_goes(self):
        assert after(deleted(S, "a", "x"), Joined(None, s("a", "x"))) == set()

    def test_all_r_parts_stay(self):
        before = Joined(r(1, "x"), s("a", "x")), Joined(r(2, "x"), s("a", "x"))
        assert after(deleted(S, "a", "x"), *before) == {Joined(r(1, "x"), None), Joined(r(2, "x"), None)}

    def test_is_ignored_for_a_newer_one_or_another(self):
        for newer in Joined(r(1, "x"), s("a", "x", at=NOW)), Joined(r(1, "x"), s("b", "x")):
            assert after(deleted(S, "a", "x"), newer) == {newer}

    def test_finds_a_row_without_join_value(self):
        assert after(deleted(S, "a", None), Joined(None, s("a", None))) == set()


class TestRule5:
    """Update the join value of r^y_x to z."""

    def test_leaves_the_s_part_and_takes_another(self):
        before = Joined(r(1, "x"), s("a", "x")), Joined(None, s("b", "z"))
        assert after(updated(R, (1, "x"), 1, "z"), *before) == {
            Joined(None, s("a", "x")), Joined(r(1, "z", at=NOW), s("b", "z"))
        }  # fmt: skip

    def test_the_old_record_goes(self):
        others = {Joined(r(2, "x"), s("a", "x")), Joined(r(3, "z"), s("b", "z"))}
        assert after(updated(R, (1, "x"), 1, "z"), Joined(r(1, "x"), s("a", "x")), *others) == {
            *others, Joined(r(1, "z", at=NOW), s("b", "z"))
        }  # fmt: skip

    def test_to_nothing_and_from_nothing(self):
        assert after(updated(R, (1, "x"), 1, None), Joined(r(1, "x"), s("a", "x"))) == {
            Joined(None, s("a", "x")), Joined(r(1, None, at=NOW), None)
        }  # fmt: skip
        assert after(updated(R, (1, None), 1, "x"), Joined(r(1, None), None), Joined(None, s("a", "x"))) == {
            Joined(r(1, "x", at=NOW), s("a", "x"))
        }

    def test_is_ignored_if_there_is_none_or_a_newer_one(self):
        newer = Joined(r(1, "x", at=9), None)
        assert after(updated(R, (1, "x"), 1, "z"), newer) == {newer}
        assert after(updated(R, (1, "x"), 1, "z")) == set()


class TestRule6:
    """Update the join value of s^x to z."""

    def test_leaves_its_matches_and_takes_others(self):
        before = Joined(r(1, "x"), s("a", "x")), Joined(r(2, "x"), s("a", "x")), Joined(r(3, "z"), None)
        assert after(updated(S, ("a", "x"), "a", "z"), *before) == {
            Joined(r(1, "x"), None), Joined(r(2, "x"), None), Joined(r(3, "z"), s("a", "z", at=NOW))
        }  # fmt: skip

    def test_without_matches_it_moves_alone(self):
        assert after(updated(S, ("a", "x"), "a", "z"), Joined(None, s("a", "x"))) == {Joined(None, s("a", "z", at=NOW))}

    def test_does_not_go_over_another(self):
        newer = Joined(r(3, "z"), s("b", "z", at=9))
        assert after(updated(S, ("a", "x"), "a", "z"), Joined(None, s("a", "x")), newer) == {newer}

    def test_is_ignored_for_a_newer_one(self):
        newer = Joined(r(1, "x"), s("a", "x", at=9))
        assert after(updated(S, ("a", "x"), "a", "z"), newer) == {newer}

    def test_takes_its_values_from_the_log(self):
        """The paper takes them from the record with the old join value, which is another's here."""
        newer = Joined(None, s("b", "x", "b's", at=9))
        assert after(updated(S, ("a", "x", "a's"), "a", "z", "a's"), newer) == {
            newer, Joined(None, s("a", "z", "a's", at=NOW))
        }  # fmt: skip


class TestRule7:
    """Update other columns."""

    def test_of_r(self):
        assert after(updated(R, (1, "x", 0), 1, "x", 7), Joined(r(1, "x", 0), s("a", "x"))) == {
            Joined(r(1, "x", 7, at=NOW), s("a", "x"))
        }

    def test_of_s_in_all_its_records(self):
        before = Joined(r(1, "x"), s("a", "x", 0)), Joined(r(2, "x"), s("a", "x", 0))
        new = s("a", "x", 7, at=NOW)
        assert after(updated(S, ("a", "x", 0), "a", "x", 7), *before) == {
            Joined(r(1, "x"), new), Joined(r(2, "x"), new)
        }  # fmt: skip

    @pytest.mark.parametrize("newer", [Joined(r(1, "x", 9, at=9), None), Joined(r(2, "x", 9), None)], ids=str)
    def test_is_ignored_if_there_is_none_or_a_newer_one(self, newer: Joined):
        assert after(updated(R, (1, "x", 0), 1, "x", 7), newer) == {newer}


# --- conditions switched off ------------------------------------------------------------------------------------------


class InsertsTwice(OneToMany):
    """Rule 1 without a look whether the key exists."""

    def add(self, change: Inserted | Updated) -> None:
        if change.source is Source.R and has(self.target.of(R, change.key)):
            self.target.put(Joined(Part(change.after, change.timestamp), None))
        else:
            super().add(change)


class ForgetsTheSPart(OneToMany):
    """Rules 3 and 5 without care for an S-part that is nowhere else."""

    def remove(self, change: Change) -> Rest:
        found = outdated(self.target, change) if change.source is Source.R else []
        rest = super().remove(change)
        for record in found:
            if record.s is not None and Joined(None, record.s) in self.target.matching(record.s.values[1:2]):
                self.target.remove(Joined(None, record.s))
        return rest


class KeepsTheOldRecord(OneToMany):
    """Rule 5 as printed: the new record is inserted, the old one is not deleted."""

    def remove(self, change: Change) -> Rest:
        if change.source is Source.R and isinstance(change, Updated) and self.join.moves(change):
            return Rest.ADD if outdated(self.target, change) else Rest.NOTHING
        return super().remove(change)

    def add(self, change: Inserted | Updated) -> None:
        if change.source is Source.R and isinstance(change, Updated):
            match = next(iter(self.target.matching(change.after[1:2])), None)
            self.target.put(Joined(Part(change.after, change.timestamp), None if match is None else match.s))
        else:
            super().add(change)


class IgnoresWhatIsFound(OneToMany):
    """Rule 5 as printed: ignored if the record has the old join value."""

    def remove(self, change: Change) -> Rest:
        if change.source is Source.R and isinstance(change, Updated) and self.join.moves(change):
            for record in self.target.of(R, change.key):
                if record.r is not None and self.join.value(R, record.r.values) == self.join.value(R, change.before):
                    return Rest.NOTHING
        return super().remove(change)


class ForgetsTheRPart(OneToMany):
    """Rules 4 and 6 that remove what they should detach."""

    def remove(self, change: Change) -> Rest:
        found = outdated(self.target, change) if change.source is Source.S else []
        rest = super().remove(change)
        for record in found:
            if rest is Rest.OVERWRITE:
                break
            if record.r is not None:
                self.target.remove(Joined(record.r, None))
        return rest


class MovesOnlyWhatItFinds(OneToMany):
    """Rule 6 as printed: ignored if T does not have s."""

    def remove(self, change: Change) -> Rest:
        found = bool(outdated(self.target, change))
        rest = super().remove(change)
        moves = change.source is Source.S and isinstance(change, Updated) and rest is Rest.ADD
        return Rest.NOTHING if moves and not found else rest


class FindsByJoinValue(OneToMany):
    """Rules 4 and 6 as printed: records of s are those with its join value."""

    def remove(self, change: Change) -> Rest:
        if change.source is Source.R or isinstance(change, Inserted):
            return super().remove(change)
        if isinstance(change, Updated) and not self.join.moves(change):
            return Rest.OVERWRITE
        value = self.join.value(S, change.before)
        for record in list(self.target.matching(value)) if value is not None else []:
            if record.s is not None:
                self.target.remove(record)
                if record.r is not None:
                    self.target.put(Joined(record.r, None))
        return Rest.ADD if isinstance(change, Updated) else Rest.NOTHING


class TakesValuesFromT(FindsByJoinValue):
    """Rule 6 as printed: what moves is the S-part that is found at the old join value."""

    def remove(self, change: Change) -> Rest:
        self.found: Part | None = None
        if change.source is Source.S and isinstance(change, Updated):
            records = list(self.target.matching(change.before[1:2]))
            self.found = records[0].s if records else None
        return super().remove(change)

    def add(self, change: Inserted | Updated) -> None:
        if change.source is Source.S and isinstance(change, Updated) and self.found is not None:
            key = self.join.key(S, self.found.values)
            change = Updated(S, key, self.found.values, (*key, *change.after[1:]), change.timestamp)
        super().add(change)


class WritesTheWholeRow(OneToMany):
    """Rule 7 that puts the columns, too, that did not change."""

    def overwrite(self, changes: Sequence[Updated]) -> None:
        for change in changes:
            for record in outdated(self.target, change):
                new = Part(change.after, change.timestamp)
                self.target.put(joined(change.source, new, record.part(change.source.opposite)))


MOVED_R = Sources(row(R, 1, "x", 0) | row(S, "a", "x", 0) | row(S, "b", "z", 0), row(R, 1, "z", 0))
INSERTED_R = Sources(row(S, "b", "z", 0), row(R, 1, "x", 0), row(R, 1, "z", 0))
# Read early at x, where "b" is read late: the image has room for one of them.
SAME_VALUE = Sources(row(S, "a", "x", 0), row(S, "a", "z", 0), row(S, "b", "x", 0))
BOTH_AT_X = {(S, ("a",)): 1, (S, ("b",)): 3}


def correct(sources: Sources, rules: MakeRules = OneToMany, reads: dict[tuple[Source, Row], int] | None = None) -> None:
    """T is the join at the end, whether its image was exact or read as given."""
    end = full_outer_join(JOIN, sources.read(R, sources.now), sources.read(S, sources.now))
    assert propagated(sources, JOIN, 1, reads, rules=rules).records() == end


@pytest.mark.parametrize(
    ("rules", "sources", "reads"),
    [
        (InsertsTwice, INSERTED_R, {(R, (1,)): 3}),
        (ForgetsTheSPart, MOVED_R, None),
        (KeepsTheOldRecord, MOVED_R, None),
        (IgnoresWhatIsFound, MOVED_R, None),
        (ForgetsTheRPart, Sources(row(R, 1, "x", 0) | row(S, "a", "x", 0), gone(S, "a")), None),
        (MovesOnlyWhatItFinds, SAME_VALUE, BOTH_AT_X),
        (FindsByJoinValue, Sources(row(S, "a", None, 0), gone(S, "a")), None),
        (TakesValuesFromT, SAME_VALUE, BOTH_AT_X),
    ],
)
def test_a_condition_switched_off_does_damage(rules, sources, reads):
    correct(sources, reads=reads)
    assert damaged(lambda: correct(sources, rules, reads))


def test_without_timestamps_the_whole_row_would_do_damage():
    """r has moved to z when it is read. Back at x by old log, but joined with what is at z, it hides x from "b"."""
    before = row(R, 1, "x", 0) | row(S, "a", "z", 0)
    sources = Sources(before, row(R, 1, "x", 7), row(S, "b", "x", 0), row(R, 1, "z", 7))
    reads: Reads = {(R, (1,)): 4, (S, ("a",)): 1, (S, ("b",)): 1}

    def keys(rules: MakeRules) -> set[Row]:
        return set(propagated(sources, JOIN, 1, reads, rules=rules, apply=as_if_newer).parts(S))

    assert keys(OneToMany) == {("a",), ("b",)}
    assert keys(WritesTheWholeRow) == {("a",)}


def test_null_that_matched_null_would_do_damage(monkeypatch: pytest.MonkeyPatch):
    sources = Sources(row(R, 1, None, 0), row(S, "a", None, 0))
    correct(sources)
    end = full_outer_join(JOIN, sources.read(R, 2), sources.read(S, 2))
    monkeypatch.setattr(Join, "value", lambda self, source, values: values[1:2])
    assert propagated(sources, JOIN, 1).records() != end
