"""The consistency checker: a record of S becomes C if nothing has changed it since the check began."""

from __future__ import annotations

import pytest

from instar.transformations.checker import (
    CheckBegun,
    CheckPassed,
    Contribution,
    conclude,
    most_frequent,
    newest,
    opinions,
    pass_check,
)
from instar.transformations.commits import Splitting, apply_commit
from instar.transformations.records import Flag, Row, SRecord
from transformations.histories import SPLIT, Place, Sources, T, Writes, damaged, gone, row
from transformations.model import Contradicted, SplitTables, check_split, fail

C, U = Flag.CONSISTENT, Flag.UNKNOWN
X = ("7050",)
RIGHT, WRONG = ("7050", "Trondheim"), ("7050", "Trnodheim")


def contribution(key: int, values: tuple[object, ...], timestamp: int = 1) -> Contribution:
    return Contribution((key,), values, timestamp)


PETER, ANN, JEN = contribution(1, RIGHT), contribution(2, RIGHT, 2), contribution(134, WRONG, 3)


def test_rows_that_agree_pass_with_their_image():
    assert conclude(CheckBegun(X, 5), [PETER, ANN], fail) == CheckPassed(X, RIGHT, 5)


def test_nothing_is_said_of_a_value_that_is_gone():
    assert conclude(CheckBegun(X, 5), [], fail) is None


def test_what_contradicts_is_listed():
    assert opinions([PETER, JEN, ANN]) == [(RIGHT, [PETER, ANN]), (WRONG, [JEN])]


def test_only_contradictions_are_repaired():
    with pytest.raises(Contradicted):
        conclude(CheckBegun(X, 5), [PETER, JEN, ANN], fail)


def test_repair_by_the_most_frequent():
    assert conclude(CheckBegun(X, 5), [PETER, JEN, ANN], most_frequent) == CheckPassed(X, RIGHT, 5)


def test_of_equally_frequent_ones_the_newest():
    assert most_frequent([PETER, JEN]) == most_frequent([JEN, PETER]) == WRONG


def test_repair_by_the_newest():
    assert conclude(CheckBegun(X, 5), [PETER, JEN, ANN], newest) == CheckPassed(X, WRONG, 5)


def test_of_equally_new_ones_the_first():
    assert newest([PETER, contribution(3, WRONG, 1)]) == RIGHT


# --- "v is ok" at the propagator --------------------------------------------------------------------------------------

A, B = ("x", "A", 0), ("x", "B", 0)
BEGUN = 2


def t(key: int, value: object, city: str, of_r: int = 0) -> dict[Place, Row | None]:
    return row(T, key, of_r, value, city, 0)


def doubtful(counter: int = 2, timestamp: int = 1) -> SplitTables:
    target = SplitTables(SPLIT, {})
    target.s_records["x",] = SRecord(B, counter, timestamp, U)
    return target


def test_an_unchanged_record_gets_the_image():
    target = doubtful()
    assert pass_check(target, CheckPassed(("x",), A, BEGUN))
    assert target.s_records == {("x",): SRecord(A, 2, 1, C)}


@pytest.mark.parametrize("target", [doubtful(timestamp=3), SplitTables(SPLIT, {})], ids=["changed", "gone"])
def test_a_changed_record_stays_as_it_is(target: SplitTables):
    before = target.s_records.copy()
    assert not pass_check(target, CheckPassed(("x",), A, BEGUN))
    assert target.s_records == before


START = {**t(1, "x", "A"), **t(2, "x", "A"), **t(3, "z", "A")}


def checked(changed: Writes, *later: Writes, passes: bool = True, again: bool = False) -> tuple[Sources, SplitTables]:
    """A history with a check: commit 2 is "begin", 3 lies in the check, which has read before it, 4 is "v is ok"."""
    sources = Sources(START, {}, changed, {}, *later)
    target = SplitTables(SPLIT, sources.read(T, 1))
    target.s_records["x",] = SRecord(B, 2, 1, U)
    for _ in range(2 if again else 1):
        for time, changes in enumerate(sources.log[1:], start=2):
            apply_commit(Splitting(target, SPLIT), changes)
            if time == 4:
                passed = pass_check(target, CheckPassed(("x",), A, 2))
                assert passed == passes or again
    return sources, target


def test_a_check_that_nothing_disturbs():
    sources, target = checked(t(3, "z", "B"))
    assert target.s_records["x",] == SRecord(A, 2, 1, C)
    check_split(target, sources.read(T, sources.now))


@pytest.mark.parametrize(
    "changed",
    [t(1, "x", "B"), t(4, "x", "B"), t(3, "x", "B"), t(1, "z", "A"), gone(T, 1), t(1, "x", "B") | t(2, "x", "D")],
    ids=["updated", "inserted", "moved here", "moved away", "deleted", "all updated"],
)
def test_what_counts_as_a_change_in_between(changed: Writes):
    sources, target = checked(changed, passes=False)
    assert target.s_records["x",].flag is U
    check_split(target, sources.read(T, sources.now))


def test_all_rows_updated_alike_need_no_check():
    sources, target = checked(t(1, "x", "D") | t(2, "x", "D"), passes=False)
    assert target.s_records["x",] == SRecord(("x", "D", 0), 2, 3, C)
    check_split(target, sources.read(T, sources.now))


def test_an_update_of_other_columns_is_none():
    sources, target = checked(t(1, "x", "A", of_r=7))
    assert target.s_records["x",] == SRecord(A, 2, 1, C)
    check_split(target, sources.read(T, sources.now))


def test_marks_that_are_met_again_do_not_go_over_what_came_later():
    later = t(1, "x", "B") | t(2, "x", "B")
    sources, target = checked({}, later, again=True)
    assert target.s_records["x",] == SRecord(B, 2, 5, C)
    check_split(target, sources.read(T, sources.now))


def test_without_a_look_for_changes_c_would_lie(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("instar.transformations.checker.changed_since", lambda record, begun: False)

    def run(changed: Writes, *later: Writes, again: bool) -> None:
        sources, target = checked(changed, *later, again=again)
        check_split(target, sources.read(T, sources.now))

    assert damaged(lambda: run(t(1, "x", "B"), again=False))
    assert damaged(lambda: run({}, t(1, "x", "B"), again=True))
