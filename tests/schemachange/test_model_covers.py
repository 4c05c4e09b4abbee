"""The model checker (test_model.py, test_model_online.py) has a case for all that the planner can emit.

That is derived from the planner's own tables: what is added to those, and is no case there, fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from instar.schemachange import wanted as want
from instar.schemachange.elements import ElementKind, Phase
from instar.schemachange.stages import Stage
from instar.schemachange.states import PATHS, Work
from schemachange import test_model, test_model_online
from schemachange.test_model import CHECKS, KEY, built
from support.changes import ChangingWorld
from support.model import Model, Node

Step = tuple[ElementKind, Phase, Phase]

# These do not leave by their paths once they are public. The next key is the table's own then, a source goes with what
# is made of it, another lock covers a column by another change of coverage; and a column, a NOT NULL and a lock that
# covers nothing any more go in one direct step.
_STAY = {
    ElementKind.PRIMARY_KEY, ElementKind.TRANSFORMATION, ElementKind.COVERAGE, ElementKind.COLUMN,
    ElementKind.NOT_NULL, ElementKind.LOCK,
}  # fmt: skip


def cases() -> Iterator[tuple[ChangingWorld, tuple[want.Wanted, ...]]]:
    """The changes that are enumerated."""
    for make, wanted, _pairs in test_model.CHANGES.values():
        yield make(), wanted
    for drops in (False, True):
        world = built(*((KEY,) if drops else ()), lease=float(drops), rows=((1, 1, 1),))
        yield world, (want.DropConstraint("t", "f"),) if drops else (KEY,)
    for make, online, _operator, _pairs in test_model_online.CHANGES.values():
        yield make(), (online,)
    for view, _query, _shown, _pairs in test_model_online.VIEWS.values():
        world = test_model_online.built()
        yield world, (view(world),)


@pytest.fixture(scope="module")
def models() -> list[Model]:
    """Each change alone, to its end and back from wherever it can be taken back."""

    def nothing(model: Model, node: Node) -> None:
        """What comes of it is judged where others are beside it."""

    made = [Model(world, wanted, (), CHECKS, cancels=True) for world, wanted in cases()]
    for model in made:
        model.run(nothing)
    return made


def test_every_step_of_every_path(models: list[Model]) -> None:
    moves = [move for model in models for stage in model.stages() for move in stage.moves]
    taken = {(move.element.kind, move.start, move.goal) for move in moves}
    possible = {
        (kind, *step)
        for kind, path in PATHS.items()
        for one, other in pairwise(path.phases)
        for step in ((one, other), (other, one))
        if kind not in _STAY or step[0] is not Phase.PUBLIC
    }
    assert possible <= taken, f"no case of the model checker takes {possible - taken}"
    assert not [found for found in taken if found[0] in _STAY and found[1:] == (Phase.PUBLIC, Phase.WRITE_ONLY)]


def test_every_work(models: list[Model]) -> None:
    done = {work.work for model in models for stage in model.stages() for work in stage.work}
    assert done == set(Work)


def test_every_part_of_a_stage(models: list[Model]) -> None:
    used = {
        field
        for model in models
        for stage in model.stages()
        for field in Stage.__struct_fields__
        if getattr(stage, field) != getattr(Stage(), field)
    }
    assert used == set(Stage.__struct_fields__)
