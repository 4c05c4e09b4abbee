"""Rules 8 to 11 with counters and flags by named cases; each condition switched off does damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from instar.transformations import split as rules
from instar.transformations.commits import Rest, Splitting, apply_commit
from instar.transformations.records import Change, Deleted, Flag, Inserted, Part, Row, Split, SRecord, Updated
from transformations.histories import SPLIT, Place, Reads, Sources, T, damaged, gone, row
from transformations.model import Parts, SplitTables, check_split, split_of

OLD, NOW, NEWER = 1, 5, 9
C, U = Flag.CONSISTENT, Flag.UNKNOWN
X, Z = ("x",), ("z",)
A, B = ("x", "A", 0), ("x", "B", 0)


def t(key: int, value: object, city: str = "A", other: int = 0, *, of_r: int = 0) -> Row:
    return (key, of_r, value, city, other)


def tables(*rows: Row, at: int = OLD, **s: SRecord) -> SplitTables:
    """R and S of these rows of T, and other records of S in place of those that the rows make."""
    made = SplitTables(SPLIT, {values[:1]: Part(values, at) for values in rows})
    made.s_records.update({(value,): record for value, record in s.items()})
    return made


def apply(target: SplitTables, *changes: Change) -> SplitTables:
    apply_commit(Splitting(target, SPLIT), changes)
    return target


def insert(values: Row) -> Inserted:
    return Inserted(T, values[:1], values, NOW)


def delete(values: Row) -> Deleted:
    return Deleted(T, values[:1], values, NOW)


def update(before: Row, after: Row, at: int = NOW) -> Updated:
    return Updated(T, before[:1], before, after, at)


class TestRule8:
    """Insert t^y_x."""

    def test_makes_a_record_of_each(self):
        target = apply(tables(), insert(t(1, "x")))
        assert target.r_records == {(1,): Part((1, 0, "x"), NOW)}
        assert target.s_records == {X: SRecord(A, 1, NOW, C)}

    @pytest.mark.parametrize(("at", "timestamp"), [(OLD, NOW), (NEWER, NEWER)])
    def test_counts_what_is_there_and_never_lowers_its_timestamp(self, at: int, timestamp: int):
        target = apply(tables(t(1, "x"), at=at), insert(t(2, "x")))
        assert target.s_records == {X: SRecord(A, 2, timestamp, C)}

    def test_leaves_s_alone_if_r_exists(self):
        target = tables(t(1, "z"), at=NEWER)
        apply(target, insert(t(1, "x")))
        assert target.r_records == {(1,): Part((1, 0, "z"), NEWER)}
        assert target.counters() == {Z: 1}

    @pytest.mark.parametrize(("was", "city", "flag"), [(C, "A", C), (C, "B", U), (U, "A", U), (U, "B", U)])
    def test_what_differs_makes_u(self, was: Flag, city: str, flag: Flag):
        target = apply(tables(t(1, "x"), x=SRecord(A, 1, OLD, was)), insert(t(2, "x", city)))
        assert target.s_records == {X: SRecord(A, 2, NOW, flag)}

    def test_null_belongs_to_no_record_of_s(self):
        target = apply(tables(), insert(t(1, None)))
        assert target.r_records == {(1,): Part((1, 0, None), NOW)}
        assert target.s_records == {}


class TestRule9:
    """Delete t^y."""

    @pytest.mark.parametrize("flag", [C, U])
    @pytest.mark.parametrize(("at", "timestamp"), [(OLD, NOW), (NEWER, NEWER)])
    def test_counts_down(self, flag: Flag, at: int, timestamp: int):
        target = tables(t(1, "x"), t(2, "x"), x=SRecord(A, 2, at, flag))
        apply(target, delete(t(1, "x")))
        assert list(target.r_records) == [(2,)]
        assert target.s_records == {X: SRecord(A, 1, timestamp, flag)}

    def test_at_zero_the_record_goes(self):
        target = apply(tables(t(1, "x")), delete(t(1, "x")))
        assert (target.r_records, target.s_records) == ({}, {})

    def test_counts_down_where_r_says(self):
        """The record says x, R says z: then R is right, since it is what was counted."""
        target = apply(tables(t(1, "z"), t(2, "x")), delete(t(1, "x")))
        assert target.counters() == {X: 1}

    @pytest.mark.parametrize("there", [tables(t(1, "x"), at=NOW), tables()])
    def test_is_ignored_if_there_is_none_or_a_newer_one(self, there: SplitTables):
        before = there.r_records.copy(), there.s_records.copy()
        apply(there, delete(t(1, "x")))
        assert (there.r_records, there.s_records) == before

    def test_null_belongs_to_no_record_of_s(self):
        target = apply(tables(t(1, None)), delete(t(1, None)))
        assert (target.r_records, target.s_records) == ({}, {})


class TestRule10:
    """Update the R-part of t^y."""

    def test_updates_r_and_leaves_s(self):
        target = apply(tables(t(1, "x")), update(t(1, "x"), t(1, "x", of_r=7)))
        assert target.r_records == {(1,): Part((1, 7, "x"), NOW)}
        assert target.s_records == {X: SRecord(A, 1, OLD, C)}

    def test_the_timestamp_moves_in_any_case(self):
        target = apply(tables(t(1, "x")), update(t(1, "x"), t(1, "x")))
        assert target.r_records == {(1,): Part((1, 0, "x"), NOW)}

    @pytest.mark.parametrize("there", [tables(t(1, "x"), at=NOW), tables(t(2, "x"))])
    @pytest.mark.parametrize("after", [t(1, "x", "B", of_r=7), t(1, "z", of_r=7)])
    def test_decides_whether_rule_11_runs(self, there: SplitTables, after: Row):
        before = there.r_records.copy(), there.s_records.copy()
        apply(there, update(t(1, "x"), after))
        assert (there.r_records, there.s_records) == before


class TestRule11:
    """Update the S-part of t^y_x."""

    @pytest.mark.parametrize("after", [("x", "B", 7), ("x", "B", 0)], ids=["all columns", "one column"])
    @pytest.mark.parametrize("at", [OLD, NOW])
    def test_new_values(self, after: Row, at: int):
        """From another row of the same commit, too."""
        target = apply(tables(t(1, "x"), x=SRecord(A, 1, at, C)), update(t(1, "x"), (1, 0, *after)))
        assert target.s_records == {X: SRecord(after, 1, NOW, C)}

    @pytest.mark.parametrize(
        ("counter", "was", "after", "flag"),
        [
            (1, C, ("x", "B", 7), C),
            (1, C, ("x", "B", 0), C),
            (1, U, ("x", "B", 7), C),
            (1, U, ("x", "B", 0), U),
            (1, U, ("x", "A", 7), U),
            (2, C, ("x", "B", 7), U),
            (2, C, ("x", "B", 0), U),
            (2, U, ("x", "B", 7), U),
        ],
    )
    def test_the_flag(self, counter: int, was: Flag, after: Row, flag: Flag):
        """C becomes U above counter 1; U becomes C at counter 1 if all non-key columns are updated, not if some are."""
        target = apply(tables(t(1, "x"), x=SRecord(A, counter, OLD, was)), update(t(1, "x"), (1, 0, *after)))
        assert target.s_records == {X: SRecord(after, counter, NOW, flag)}

    @pytest.mark.parametrize("was", [C, U])
    @pytest.mark.parametrize(
        ("counter", "cities", "flag"),
        [(2, "BB", C), (3, "BB", U), (2, "BD", U), (3, "BBB", C), (1, "B", None)],
        ids=["all", "not all", "all, differently", "all three", "the only one: as it was"],
    )
    def test_rows_that_a_commit_updates_together(self, counter: int, cities: str, flag: Flag | None, was: Flag):
        """C if they are all that contribute, and agree."""
        rows = [t(number, "x") for number in range(counter)]
        target = tables(*rows, x=SRecord(A, counter, OLD, was))
        changes = [update(rows[key], t(key, "x", city)) for key, city in enumerate(cities)]
        apply(target, *changes)
        assert target.s_records == {X: SRecord(("x", cities[-1], 0), counter, NOW, flag or was)}

    def test_a_row_that_says_what_it_said_before_is_not_among_them(self):
        """Others may have said so, too, and R alone does not tell."""
        target = tables(t(1, "x", "B"), t(2, "x"), x=SRecord(A, 2, OLD, U))
        apply(target, update(t(1, "x", "B"), t(1, "x", "B", of_r=7)), update(t(2, "x"), t(2, "x", "B")))
        assert target.s_records == {X: SRecord(("x", "B", 0), 2, NOW, U)}

    def test_rows_that_the_commit_takes_away_or_adds_are_counted_before_and_after(self):
        """Rule 28: what stays is updated in between."""
        target = tables(t(1, "x"), t(2, "x"), x=SRecord(A, 2, OLD, C))
        apply(target, delete(t(2, "x")), update(t(1, "x"), t(1, "x", "B")), insert(t(3, "x", "B")))
        assert target.s_records == {X: SRecord(("x", "B", 0), 2, NOW, C)}
        apply(
            target, update(t(1, "x", "B"), t(1, "x", "D"), at=NEWER), update(t(3, "x", "B"), t(3, "z", "D"), at=NEWER)
        )
        assert target.s_records == {
            X: SRecord(("x", "D", 0), 1, NEWER, C), Z: SRecord(("z", "D", 0), 1, NEWER, C)
        }  # fmt: skip

    def test_the_guard_covers_the_values_and_not_the_flag(self):
        target = tables(t(1, "x"), t(2, "x"), x=SRecord(A, 2, NEWER, C))
        apply(target, update(t(1, "x"), t(1, "x", "B")))
        assert target.s_records == {X: SRecord(A, 2, NEWER, U)}

    @pytest.mark.parametrize(("at", "timestamp"), [(OLD, NOW), (NEWER, NEWER)])
    def test_the_guard_does_not_cover_counters(self, at: int, timestamp: int):
        old = SRecord(A, 2, at, C), SRecord(("z", "A", 0), 1, at, C)
        target = tables(t(1, "x"), t(2, "x"), t(3, "z"), x=old[0], z=old[1])
        apply(target, update(t(1, "x"), t(1, "z")))
        assert target.s_records == {
            X: SRecord(A, 1, timestamp, C), Z: SRecord(("z", "A", 0), 2, timestamp, C)
        }  # fmt: skip

    @pytest.mark.parametrize(("city", "flag"), [("A", C), ("B", U)])
    def test_what_differs_at_the_new_value_makes_u(self, city: str, flag: Flag):
        target = apply(tables(t(1, "x"), t(2, "z")), update(t(1, "x"), t(1, "z", city)))
        assert target.s_records == {Z: SRecord(("z", "A", 0), 2, NOW, flag)}

    def test_to_a_new_value_and_to_none(self):
        target = apply(tables(t(1, "x")), update(t(1, "x"), t(1, "z")))
        assert target.s_records == {Z: SRecord(("z", "A", 0), 1, NOW, C)}
        target = apply(tables(t(1, "x")), update(t(1, "x"), t(1, None)))
        assert target.s_records == {}
        target = apply(tables(t(1, None)), update(t(1, None), t(1, "x")))
        assert target.s_records == {X: SRecord(A, 1, NOW, C)}
        target = apply(tables(t(1, None)), update(t(1, None), t(1, None, "B")))
        assert target.s_records == {}


# --- conditions switched off ------------------------------------------------------------------------------------------


class CountsWhatExists(Splitting):
    """Rule 8 that sees to S even if r exists."""

    def add(self, change: Inserted | Updated) -> None:
        existed = isinstance(change, Inserted) and self.target.r(change.key) is not None
        super().add(change)
        if existed:
            rules._count(self.target, self.shape, change)


class RunsRule11Anyway(Splitting):
    """Rule 11 whether rule 10 was ignored or not."""

    def remove(self, change: Change) -> Rest:
        old = self.target.r(change.key)
        rest = super().remove(change)
        if isinstance(change, Updated) and old is not None and rest is Rest.NOTHING:
            self.target.put_r(change.key, Part(self.shape.r_part(change.before), 0))
            rest = super().remove(change)
            self.target.put_r(change.key, old)
        return rest


class ReadsXTooLate(Splitting):
    """Rule 11 that reads x from R after rule 10 has written it."""

    def remove(self, change: Change) -> Rest:
        if not isinstance(change, Updated) or rules.update_r(self.target, self.shape, change) is None:
            return super().remove(change)
        now = self.target.r(change.key)
        assert now is not None
        if self.shape.value(change.before) == self.shape.value(change.after):
            return Rest.OVERWRITE
        rules.leave_s(self.target, self.shape, now, change)
        return Rest.ADD


class GuardsTheCounters(Splitting):
    """Rule 11 as its first sentence reads: nothing is propagated to a newer s^x, counters included."""

    def remove(self, change: Change) -> Rest:
        value = self.shape.value(change.before) if isinstance(change, Updated) else None
        old = None if value is None else self.target.s(value)
        rest = super().remove(change)
        if value is not None and old is not None and rest is Rest.ADD and old.timestamp > change.timestamp:
            self.target.put_s(value, old)
        return rest


class Guarded(Splitting):
    """Rule 11 for an unchanged split value with another guard, and what it does to a record that is guarded."""

    flag_when_guarded: Flag | None = Flag.UNKNOWN

    def guards(self, old: SRecord, change: Updated) -> bool:
        return old.timestamp > change.timestamp

    def overwrite(self, changes: Sequence[Updated]) -> None:
        for change in changes:
            self.update(change)

    def update(self, change: Updated) -> None:
        value, new = self.shape.value(change.after), self.shape.s_part(change.after)
        if value is None or new == self.shape.s_part(change.before):
            return
        old = self.target.s(value)
        assert old is not None
        if self.guards(old, change):
            flag = self.flag_when_guarded or old.flag
            self.target.put_s(value, SRecord(old.values, old.counter, old.timestamp, flag))
        else:
            known = old.counter == 1 and (old.flag is C or self.shape.renews_s(change))
            flag = C if known else U
            self.target.put_s(value, SRecord(new, old.counter, max(old.timestamp, change.timestamp), flag))


class NoGuard(Guarded):
    """Rule 11 that goes over newer values."""

    def guards(self, old: SRecord, change: Updated) -> bool:
        return False


class StrictGuard(Guarded):
    """Rule 11 as printed: only a lower timestamp of S lets the change pass."""

    def guards(self, old: SRecord, change: Updated) -> bool:
        return old.timestamp >= change.timestamp


class KeepsTheFlag(Guarded):
    """Rule 11 whose guard covers the flag, too."""

    flag_when_guarded = None


class InsertsLeaveTheFlag(Splitting):
    """Rule 8 without a look whether what it inserts is equal to what is there."""

    def add(self, change: Inserted | Updated) -> None:
        value = self.shape.value(change.after)
        old = None if value is None else self.target.s(value)
        super().add(change)
        if value is not None and old is not None:
            new = self.target.s(value)
            assert new is not None
            self.target.put_s(value, SRecord(new.values, new.counter, new.timestamp, old.flag))


class UpdatesMakeC(Splitting):
    """Rule 11 that takes what it writes for the truth, whatever the counter."""

    def overwrite(self, changes: Sequence[Updated]) -> None:
        super().overwrite(changes)
        for change in changes:
            value = self.shape.value(change.after)
            new = None if value is None else self.target.s(value)
            if value is not None and new is not None and new.timestamp == change.timestamp:
                self.target.put_s(value, SRecord(new.values, new.counter, new.timestamp, C))


class AgreesTooSoon(Splitting):
    """Rule 11 that takes the rows that a commit updates for all that contribute."""

    def overwrite(self, changes: Sequence[Updated]) -> None:
        super().overwrite(changes)
        for change in changes:
            said = {self.shape.s_part(other.after) for other in changes}
            value = self.shape.value(change.after)
            new = None if value is None else self.target.s(value)
            if value is not None and new is not None and said == {new.values}:
                self.target.put_s(value, SRecord(new.values, new.counter, new.timestamp, C))


class AgreesWithoutALook(Splitting):
    """Rule 11 that takes all rows that contribute, updated by one commit, to agree."""

    def overwrite(self, changes: Sequence[Updated]) -> None:
        super().overwrite(changes)
        for change in changes:
            value = self.shape.value(change.after)
            new = None if value is None else self.target.s(value)
            if value is not None and new is not None and new.counter == len(changes):
                self.target.put_s(value, SRecord(new.values, new.counter, new.timestamp, C))


MakeRules = Callable[[SplitTables, Split], Splitting]
Case = tuple[Sources, Reads | None]


def propagated(sources: Sources, reads: Reads | None, make: MakeRules = Splitting) -> SplitTables:
    """R and S at the end; their flags tell the truth, and R and the counters are as from scratch."""
    target = SplitTables(SPLIT, sources.read(T, 1, reads))
    for changes in sources.log[1:]:
        apply_commit(make(target, SPLIT), changes)
    check_split(target, sources.read(T, sources.now))
    return target


def correct(sources: Sources, reads: Reads | None, make: MakeRules = Splitting) -> None:
    """For sources that never contradict themselves: S is as from scratch, too."""
    target, (_r, s) = propagated(sources, reads, make), split_of(SPLIT, sources.read(T, sources.now))
    assert target.values() == {value: record.values for value, record in s.items()}


def place(key: int) -> Place:
    return (T, (key,))


def w(key: int, value: object, city: str = "A") -> dict[Place, Row | None]:
    return row(T, *t(key, value, city))


# t1 is read before it leaves x for z, t2 at x after that.
LATE_NEIGHBOUR = Sources(w(1, "x") | w(2, "z"), w(1, "z"), w(2, "x")), {place(1): 1, place(2): 3}
# All of x is updated, t1 leaves, and t2 comes to a vacated x: it is read then, and t1 in the beginning.
VACATED = Sources(w(1, "x"), w(1, "x", "B"), w(1, "z", "A"), w(2, "x", "D")), {place(1): 1, place(2): 4}
LEFT_IN_THE_SAME_COMMIT = Sources(w(1, "x") | w(2, "x"), w(1, "x", "B") | gone(T, 2)), None


@pytest.mark.parametrize(
    ("make", "case"),
    [
        (CountsWhatExists, (Sources({}, w(1, "x")), {place(1): 2})),
        (RunsRule11Anyway, (Sources(w(1, "x") | w(2, "x"), w(1, "z")), {place(1): 2})),
        (ReadsXTooLate, (Sources(w(1, "x") | w(2, "x"), w(1, "z")), None)),
        (GuardsTheCounters, LATE_NEIGHBOUR),
        (NoGuard, VACATED),
        (StrictGuard, LEFT_IN_THE_SAME_COMMIT),
    ],
)
def test_a_condition_switched_off_does_damage(make: MakeRules, case: Case):
    correct(*case)
    assert damaged(lambda: correct(*case, make))


# t2 says "A" again after t1 has come to say "B": read then, and t1 in the beginning, both say "A".
AGREED_WHEN_READ = Sources(w(1, "x"), w(1, "x", "B"), w(2, "x")), {place(1): 1, place(2): 3}
TWO_AT_X = w(1, "x") | w(2, "x")


@pytest.mark.parametrize(
    ("make", "case"),
    [
        (KeepsTheFlag, AGREED_WHEN_READ),
        (InsertsLeaveTheFlag, (Sources(w(1, "x"), w(2, "x", "B")), None)),
        (InsertsLeaveTheFlag, (Sources(w(1, "x") | w(2, "z"), w(2, "x", "B")), None)),
        (UpdatesMakeC, (Sources(TWO_AT_X, w(1, "x", "B")), None)),
        (AgreesTooSoon, (Sources(TWO_AT_X | w(3, "x"), w(1, "x", "B") | w(2, "x", "B")), None)),
        (AgreesWithoutALook, (Sources(TWO_AT_X, w(1, "x", "B") | w(2, "x", "D")), None)),
    ],
)
def test_a_flag_that_is_left_alone_lies(make: MakeRules, case: Case):
    propagated(*case)
    assert damaged(lambda: propagated(*case, make))


@pytest.mark.parametrize(("other", "flag"), [(7, C), (0, U)], ids=["all non-key columns", "one of them"])
def test_s_is_c_again_after_an_update_of_all_its_columns_at_counter_1(other: int, flag: Flag):
    sources = Sources(TWO_AT_X, w(1, "x", "B"), gone(T, 2), row(T, *t(1, "x", "D", other)))
    assert propagated(sources, None).s_records == {X: SRecord(("x", "D", other), 1, 4, flag)}


def test_the_image_of_parts_is_what_rules_find():
    reflected: Parts = {(1,): Part(t(1, "x"), OLD), (2,): Part(t(2, "x", "B"), NOW)}
    assert SplitTables(SPLIT, reflected).s_records == {X: SRecord(B, 2, NOW, U)}
