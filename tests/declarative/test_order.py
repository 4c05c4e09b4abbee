"""The phases: every change has its place, whatever it is a change of."""

from __future__ import annotations

from typing import get_args

from instar.declarative import changes as to
from instar.declarative import model
from instar.declarative.order import PHASES
from instar.declarative.rendering import _WRITERS


def test_every_change_has_one_phase_and_one_way_to_write_it() -> None:
    with_element = (to.AddElement, to.DropElement, to.ReplaceElement)
    kinds = [kind for kind in get_args(to.Change) if kind not in with_element]
    pairs = [(change, element) for change in with_element for element in get_args(model.Element)]
    placed = [kind for phase in PHASES for kind in phase.kinds]
    assert sorted(map(str, placed)) == sorted(map(str, [*kinds, *pairs]))
    assert set(_WRITERS) == set(get_args(to.Change))


def test_every_phase_says_why_it_stands_where_it_does() -> None:
    assert len({phase.sentence for phase in PHASES}) == len(PHASES)
    assert all(phase.sentence.endswith(".") for phase in PHASES)
