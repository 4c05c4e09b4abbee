"""The rules of a grouping: against the grouping recomputed from scratch, after every commit of random histories."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from instar.transformations.commits import apply_commit
from instar.transformations.grouping import Group, Grouping, GroupingRules, Sums
from instar.transformations.records import Change, Deleted, Inserted, Row, Source, Updated

NAN = Decimal("NaN")
# Columns: key, group, what is summed up, what is counted.
SHAPE = Grouping(on=(1,), values=(2, 3), summed=(True, False), scaled=(True, False), counts=lambda row: row[2] != 7)
# Of sums, all digits count.
Known = tuple[int, str, int, int, int]


class Memory:
    """A target in memory."""

    def __init__(self) -> None:
        self.groups: dict[Row, Group] = {}

    def group(self, value: Row) -> Group | None:
        return self.groups.get(value)

    def put(self, group: Group) -> None:
        self.groups[group.values] = group

    def remove(self, value: Row) -> None:
        del self.groups[value]


def recomputed(rows: dict[int, Row]) -> dict[Row, Known]:
    """What is known of each group: rows, sum, values that are not NULL, NaN, and of the other column not NULL."""
    found: dict[Row, list[Row]] = {}
    for row in rows.values():
        if row[2] != 7:
            found.setdefault((row[1],), []).append(row)
    made = {}
    for value, group in found.items():
        numbers = [row[2] for row in group if isinstance(row[2], Decimal) and not row[2].is_nan()]
        counted = sum(row[2] is not None for row in group)
        strange = counted - len(numbers)
        total = str(sum(numbers, Decimal(0)))
        made[value] = (len(group), total, counted, strange, sum(row[3] is not None for row in group))
    return made


def told(target: Memory) -> dict[Row, Known]:
    return {
        value: (group.counter, str(group.sums[0].total), group.sums[0].count, group.sums[0].nans, group.sums[1].count)
        for value, group in target.groups.items()
    }


rows = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, NAN, Decimal("0.10"), Decimal(7), Decimal(-(10**20)), Decimal("3.000")]),
    st.sampled_from([None, "x"]),
)
operations = st.tuples(st.integers(1, 4), st.none() | rows)


@given(st.lists(st.lists(operations, min_size=1, max_size=4), max_size=12))
def test_it_is_the_grouping_after_every_commit(commits: list[list[tuple[int, tuple[object, ...] | None]]]) -> None:
    source: dict[int, Row] = {}
    target = Memory()
    for timestamp, commit in enumerate(commits, 1):
        after = dict(source)
        for key, values in commit:
            if values is None:
                after.pop(key, None)
            else:
                after[key] = (key, *values)
        changes: list[Change] = []
        for key in sorted(source.keys() | after.keys()):
            old, new = source.get(key), after.get(key)
            if old is None and new is not None:
                changes.append(Inserted(Source.T, (key,), new, timestamp))
            elif new is None and old is not None:
                changes.append(Deleted(Source.T, (key,), old, timestamp))
            elif old is not None and new is not None and old is not new:
                changes.append(Updated(Source.T, (key,), old, new, timestamp))
        apply_commit(GroupingRules(target, SHAPE), changes)
        source = after
        assert told(target) == recomputed(source)


def test_a_group_goes_with_its_last_row() -> None:
    target = Memory()
    rules = GroupingRules(target, SHAPE)
    row = (1, "a", Decimal(1), None)
    apply_commit(rules, [Inserted(Source.T, (1,), row, 1)])
    assert target.groups == {("a",): Group(("a",), 1, (Sums(1, Decimal(1), scales={0: 1}), Sums()), 1)}
    apply_commit(rules, [Deleted(Source.T, (1,), row, 2)])
    assert target.groups == {}


def test_an_update_of_other_columns_is_none() -> None:
    target = Memory()
    rules = GroupingRules(target, SHAPE)
    row = (1, "a", Decimal(1), None)
    apply_commit(rules, [Inserted(Source.T, (1,), row, 1)])
    apply_commit(rules, [Updated(Source.T, (1,), row, (9, "a", Decimal(1), None), 2)])
    assert target.groups["a",].timestamp == 1


def test_a_value_that_looks_otherwise_is_another() -> None:
    """1.0 and 1.00 are equal, but a sum of them is not written alike."""
    target = Memory()
    rules = GroupingRules(target, SHAPE)
    before, after = (1, "a", Decimal("1.0"), None), (1, "a", Decimal("1.00"), None)
    apply_commit(rules, [Inserted(Source.T, (1,), before, 1)])
    apply_commit(rules, [Updated(Source.T, (1,), before, after, 2)])
    assert str(target.groups["a",].sums[0].total) == "1.00"


def test_a_sum_has_the_scale_of_the_values_that_are_there() -> None:
    target = Memory()
    rules = GroupingRules(target, SHAPE)
    rows = [(key, "a", Decimal(value), None) for key, value in enumerate(("1.5", "2.25", "-2.25", "1E+3"))]
    totals = []
    for timestamp, row in enumerate(rows, 1):
        apply_commit(rules, [Inserted(Source.T, (row[0],), row, timestamp)])
        totals.append(str(target.groups["a",].sums[0].total))
    for timestamp, row in enumerate(rows[:3], 5):
        apply_commit(rules, [Deleted(Source.T, (row[0],), row, timestamp)])
        totals.append(str(target.groups["a",].sums[0].total))
    assert totals == ["1.5", "3.75", "1.50", "1001.50", "1000.00", "997.75", "1000"]


def test_where_all_values_have_one_scale_none_is_counted() -> None:
    target = Memory()
    rules = GroupingRules(target, Grouping(on=(1,), values=(2,), summed=(True,), scaled=(False,), counts=bool))
    apply_commit(rules, [Inserted(Source.T, (1,), (1, "a", Decimal("1.50")), 1)])
    apply_commit(rules, [Inserted(Source.T, (2,), (2, "a", Decimal("2.50")), 2)])
    assert target.groups["a",].sums == (Sums(2, Decimal("4.00")),)


def test_a_row_comes_to_meet_the_condition() -> None:
    target = Memory()
    rules = GroupingRules(target, SHAPE)
    before, after = (1, "a", Decimal(7), None), (1, "a", Decimal(8), None)
    apply_commit(rules, [Inserted(Source.T, (1,), before, 1)])
    assert target.groups == {}
    apply_commit(rules, [Updated(Source.T, (1,), before, after, 2)])
    assert target.groups["a",].counter == 1
    apply_commit(rules, [Updated(Source.T, (1,), after, before, 3)])
    assert target.groups == {}
