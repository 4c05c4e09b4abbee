from __future__ import annotations

from itertools import pairwise

import pytest

from instar.schemachange.elements import ElementKind, Phase
from instar.schemachange.states import PATHS, Work


def test_an_index_is_built_by_f1s_path_and_taken_down_by_its_reverse() -> None:
    path = PATHS[ElementKind.INDEX]
    assert path.between(Phase.ABSENT, Phase.PUBLIC) == (Phase.DELETE_ONLY, Phase.WRITE_ONLY, Phase.PUBLIC)
    assert path.between(Phase.PUBLIC, Phase.ABSENT) == (Phase.WRITE_ONLY, Phase.DELETE_ONLY, Phase.ABSENT)
    assert path.work == {Phase.WRITE_ONLY: Work.BACKFILL}


def test_constraints_are_pending_before_they_hold() -> None:
    for kind in (ElementKind.CHECK, ElementKind.NOT_NULL):
        assert PATHS[kind].between(Phase.ABSENT, Phase.PUBLIC) == (Phase.WRITE_ONLY, Phase.PUBLIC)


@pytest.mark.parametrize("kind", list(PATHS))
def test_every_path_leads_both_ways_through_the_same_states(kind: ElementKind) -> None:
    path = PATHS[kind]
    there = (Phase.ABSENT, *path.between(Phase.ABSENT, Phase.PUBLIC))
    back = (Phase.PUBLIC, *path.between(Phase.PUBLIC, Phase.ABSENT))
    assert there == path.phases == tuple(reversed(back))
    assert path.between(Phase.PUBLIC, Phase.PUBLIC) == ()
    assert all(path.distance(one, other) == 1 for one, other in pairwise(there))
    # What a phase's work makes possible is the step towards public, so there is none at either end.
    assert not {Phase.ABSENT, Phase.PUBLIC} & set(path.work)
