"""The shapes, and what can be no record."""

from __future__ import annotations

from decimal import Decimal

import pytest

from instar.transformations.records import Join, Joined, Part, Source, Split, Updated, joined, overwritten, same

JOIN = Join(r_key=(0, 1), r_on=(2,), s_key=(2,), s_on=(0, 1), unique=True)
SPLIT = Split(r=(0, 3), s=(3, 1, 2), on=(3,))


def test_a_record_of_neither_part_is_a_defect():
    with pytest.raises(AssertionError, match="neither part"):
        Joined(None, None)


def test_parts_by_source():
    r, s = Part(("r",), 1), Part(("s",), 2)
    assert joined(Source.R, r, s) == joined(Source.S, s, r) == Joined(r, s)
    assert [Joined(r, s).part(source) for source in (Source.R, Source.S)] == [r, s]
    assert [source.opposite for source in (Source.R, Source.S)] == [Source.S, Source.R]


def test_keys_and_join_values():
    assert JOIN.key(Source.R, (1, 2, 3)) == (1, 2)
    assert JOIN.key(Source.S, (1, 2, 3)) == (3,)
    assert JOIN.value(Source.R, (1, 2, 3)) == (3,)
    assert JOIN.value(Source.S, (1, 2, 3)) == (1, 2)


def test_a_value_with_a_null_in_it_matches_nothing():
    assert JOIN.value(Source.S, (1, None, 3)) is None
    assert SPLIT.value((1, 2, 3, None)) is None
    assert SPLIT.value_in_r(Part((1, None), 1)) is None


@pytest.mark.parametrize(
    ("after", "moves"), [((1, 2, 3), False), ((1, 9, 3), True), ((1, None, 3), True), ((1, 2, 9), False)]
)
def test_an_update_moves_what_gets_another_join_value(after: tuple[object, ...], moves: bool):
    assert JOIN.moves(Updated(Source.S, (3,), (1, 2, 3), after, 5)) == moves


def test_what_matches_nothing_before_and_after_moves_if_it_is_another():
    """Rule 7 leaves join columns alone, so that T would go on having the old ones."""
    assert JOIN.moves(Updated(Source.S, (3,), (1, None, 3), (None, 2, 3), 5))
    assert not JOIN.moves(Updated(Source.S, (3,), (1, None, 3), (1, None, 3), 5))


def test_an_equal_join_value_that_is_not_the_same_moves_its_row():
    before, after = (1, Decimal("1.0"), 3), (1, Decimal("1.00"), 3)
    assert JOIN.moves(Updated(Source.S, (3,), before, after, 5))


def test_the_parts_of_a_split_row():
    row = (1, "a", "b", "x")
    assert SPLIT.r_part(row) == (1, "x")
    assert SPLIT.s_part(row) == ("x", "a", "b")
    assert SPLIT.value(row) == SPLIT.value_in_r(Part(SPLIT.r_part(row), 1)) == ("x",)


def test_an_update_overwrites_all_but_what_it_leaves_alone():
    update = Updated(Source.S, (1,), (1, "x", Decimal("1.0")), (1, "x", Decimal("1.00")), 5)
    assert repr(overwritten((1, "y", Decimal("1.0")), update, (1,))) == repr((1, "y", Decimal("1.00")))


def test_what_is_equal_need_not_be_the_same():
    assert same((1, "a", None), (1, "a", None))
    assert not same((Decimal("1.0"),), (Decimal("1.00"),))
    assert not same((0.0,), (-0.0,))


@pytest.mark.parametrize(
    ("after", "renews"), [((1, "c", "d", "x"), True), ((9, "c", "b", "x"), False), ((9, "a", "b", "x"), False)]
)
def test_an_update_renews_s_if_it_changes_all_its_columns_but_the_key(after: tuple[object, ...], renews: bool):
    assert SPLIT.renews_s(Updated(Source.T, (1,), (1, "a", "b", "x"), after, 5)) == renews
