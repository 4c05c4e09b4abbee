"""The model checker (test_model.py, test_model_online.py) has a case for all that the planner can emit.

That is derived from the planner's own tables: what is added to those, and is no case there, fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import get_args

import pytest

from instar.catalog.descriptors import MadeByGrouping, MadeByJoin, MadeBySplit, Strategy
from instar.schemachange import planner, violations
from instar.schemachange import wanted as want
from instar.schemachange.elements import ElementKind, Phase, yielding
from instar.schemachange.stages import Stage
from instar.schemachange.states import PATHS, Work
from schemachange import test_model, test_model_online
from schemachange.test_model import CHECKS
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
    for how in test_model.FOREIGN_KEYS:
        world, key = test_model.foreign_key(how)
        yield world, (key,)
    for make, online, _operator, _pairs in test_model_online.CHANGES.values():
        yield make(), (online,)
    for view, _query, _shown, _pairs in test_model_online.VIEWS.values():
        world = test_model_online.built()
        yield world, (view(world),)
    yield test_model_online.viewed(), (test_model_online.ANEW,)


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


def test_every_action_that_may_take_a_job() -> None:
    wanted = {type(action) for _world, actions in cases() for action in actions}
    alone = {want.AddColumn, want.AlterPrimaryKey, want.ConvertColumns}
    assert wanted >= {*planner._ON_PATHS, *planner._ALONE, *alone}


def test_every_action_that_takes_one_step() -> None:
    """Beside those on paths. The rest is of no table with rows, or changes nothing that a write is derived by: views
    and sequences, and what makes or brings back a whole table."""
    wanted = {type(action) for _world, actions in cases() for action in actions}
    wanted |= {type(action) for actions in test_model.AT_ONCE.values() for action in actions}
    others = {
        want.CreateTable, want.UndropTables, want.CreateSequence, want.AlterSequence, want.DropSequences,
        want.CreateView, want.DropViews, want.DropIdentity,
    }  # fmt: skip
    assert wanted >= planner._ACTIONS.keys() - others


def test_every_constraint_that_yields(models: list[Model]) -> None:
    found = {
        element.kind
        for model in models
        for catalog in model.catalogs()
        for table in catalog.tables()
        for element in yielding(table)
    }
    assert found == violations._CONSTRAINTS


def test_every_strategy_of_joins_and_splits(models: list[Model]) -> None:
    targets = (
        catalog.table(number)
        for model in models
        for catalog in model.catalogs()
        for table in catalog.tables()
        if table.transformed is not None
        for number in table.transformed.targets
    )
    made = [target.unseen.made for target in targets if target.unseen is not None]
    found = {(type(one), one.strategy) for one in made if not isinstance(one, MadeByGrouping)}
    assert found == set(product((MadeBySplit, MadeByJoin), get_args(Strategy)))
