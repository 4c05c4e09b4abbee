"""Shares of a job's way: by stages, by work, forward and back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from instar.schemachange.elements import Element, ElementKind
from instar.schemachange.progress import (
    Status,
    decode_status,
    encode_status,
    published_share,
    share_of_work,
    working_share,
)
from instar.schemachange.stages import Reorganization, Stage
from instar.schemachange.states import Work


def stage(rows: int = 0) -> Stage:
    element = Element(ElementKind.INDEX, 1, 1)
    return Stage(work=(Reorganization(Work.BACKFILL, element, rows),) if rows else ())


def test_a_stage_counts_as_much_as_a_row():
    stages = (stage(), stage(96), stage(), stage())
    assert published_share(stages, 0) == 0.0
    assert published_share(stages, 1) == 0.01
    assert published_share(stages, 2) == 0.02
    assert working_share(stages, 2, 0.5) == 0.5
    assert working_share(stages, 2, 1.0) == 0.98
    assert working_share(stages, 2, 7.0) == 0.98
    assert published_share(stages, 3) == 0.99
    assert published_share(stages, 4) == 1.0
    assert published_share((), 0) == 0.0


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_shares_never_fall(rows: list[int], one: float, other: float):
    stages = [stage(count) for count in rows]
    shares = [published_share(stages, 0)]
    for published in range(1, len(stages) + 1):
        shares.append(published_share(stages, published))
        shares += [working_share(stages, published, done) for done in sorted((one, other))]
    assert all(earlier <= later + 1e-12 for earlier, later in pairwise(shares))
    assert all(0 <= share <= 1 + 1e-12 for share in shares)


def test_log_that_is_to_be_followed_has_its_part_of_the_way():
    """Of an image of 300 rows, however few may be left to the switch; alone, it has what it may leave."""
    target = Element(ElementKind.TRANSFORMATION, 1, 1)
    image, follow = Reorganization(Work.IMAGE, target, 300), Reorganization(Work.FOLLOW, target, 10)
    assert [share_of_work((image, follow), 0, done) for done in (0.0, 0.5, 1.0)] == [0.0, 0.375, 0.75]
    assert [share_of_work((image, follow), 1, done) for done in (0.0, 0.5, 2.0)] == [0.75, 0.875, 1.0]
    assert working_share((Stage(), Stage(work=(image, follow)), Stage(work=(follow,))), 2, 1.0) == 402 / 413
    entries = [Reorganization(Work.ENTRIES, Element(ElementKind.INDEX, 2, number), 150) for number in (1, 2)]
    works = (image, *entries, follow)
    assert [share_of_work(works, place, 1.0) for place in (0, 1, 3)] == [0.375, 0.75, 1.0]
    assert share_of_work((follow,), 0, 0.5) == 0.5
    assert share_of_work((), 0, 1.0) == 0.0


def test_indexes_that_are_built_in_one_pass_count_together():
    indexes = [Reorganization(Work.BACKFILL, Element(ElementKind.INDEX, 1, number), 30) for number in (1, 2)]
    validation = Reorganization(Work.VALIDATE, Element(ElementKind.CHECK, 1, 3), 40)
    works = (indexes[0], validation, indexes[1])
    assert share_of_work(works, 0, 0.5) == 0.3
    assert share_of_work(works, 1, 0.5) == 0.8


def test_a_status_is_read_as_it_was_written():
    status = Status(True, 0.25, 0.01, 1e5, "waits for transaction 7", True, 1_700_000_000_000_000)
    assert decode_status(encode_status(status)) == status
