"""The planner: current descriptors and what one statement wants -> stages.

Planning is data: paths come from states.py, floors and order from rules.py. The actions of a statement are applied to
a draft; what can be done at once is the first publication; elements that have begun a path are scheduled into the
stages of a job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.schemachange import alteration, creation, removal, rules, sequences
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft, Facts, Ids, Scheduled
from instar.schemachange.elements import Element, Phase
from instar.schemachange.stages import Move, Plan, Reorganization, Stage
from instar.schemachange.states import PATHS

# The only actions that may begin a path: whatever else a statement did could not be taken back if its job failed.
_ON_PATHS = (want.CreateIndex, want.AddConstraint)


def plan(view: CatalogSnapshot, ids: Ids, facts: Facts, wanted: Sequence[want.Wanted], statement: str) -> Plan:
    """Plan one statement; errors are those that PostgreSQL would report. Nothing is written."""
    draft = Draft(view, ids, facts, statement)
    for action in wanted:
        _ACTIONS[type(action)](draft, action)
    if draft.scheduled and not (len(wanted) == 1 and isinstance(wanted[0], _ON_PATHS)):
        raise errors.unsupported("building an index on a table with rows together with other changes in one statement")
    begun = [Scheduled(found.element, Phase.ABSENT, Phase.PUBLIC, found.rows) for found in draft.scheduled]
    return Plan(statement, draft.publication(), schedule(begun), tuple(draft.notices))


def reverse(elements: Iterable[tuple[Element, Phase]]) -> tuple[Stage, ...]:
    """The way back from where these elements stand: the same states the other way round, with nothing to validate.

    What an index had is freed with its rowset, below the watermark (rule 22).
    """
    return schedule([Scheduled(element, phase, Phase.ABSENT, 0) for element, phase in elements])


class _Node(NamedTuple):
    """A move of an element, or the work between two moves (`move` is then the one that it makes possible)."""

    move: Move
    work: Reorganization | None


def schedule(elements: Sequence[Scheduled], uses: Set[tuple[Element, Element]] = frozenset()) -> tuple[Stage, ...]:
    """Moves and work of all elements in the fewest stages that the order rules allow; `uses` are (user, used)."""
    nodes = [node for element in elements for node in _nodes(element)]
    stage_of = dict.fromkeys(range(len(nodes)), 0)
    moved = True
    while moved:
        moved = False
        for later, earlier in itertools.permutations(range(len(nodes)), 2):
            earliest = _earliest(nodes[later], nodes[earlier], stage_of[earlier], uses)
            if stage_of[later] < earliest:
                stage_of[later] = earliest
                moved = True
    count = max(stage_of.values(), default=0) + 1
    building = all(element.goal is Phase.PUBLIC for element in elements)
    return tuple(
        _stage([nodes[i] for i in stage_of if stage_of[i] == number], building and number < count - 1)
        for number in range(count)
    )


def _nodes(scheduled: Scheduled) -> Iterator[_Node]:
    """The steps of one element in order. Work is done on the way in only: the way out frees whole rowsets."""
    path = PATHS[scheduled.element.kind]
    building = path.phases.index(scheduled.goal) > path.phases.index(scheduled.start)
    phase = scheduled.start
    for following in path.between(scheduled.start, scheduled.goal):
        move = Move(scheduled.element, phase, following)
        work = path.work.get(phase)
        if building and work is not None:
            yield _Node(move, Reorganization(work, scheduled.element, scheduled.rows))
        yield _Node(move, None)
        phase = following


def _earliest(later: _Node, earlier: _Node, stage: int, uses: Set[tuple[Element, Element]]) -> int:
    """The first stage that `later` may be in, if `earlier` is in `stage`; 0 if no rule orders the two."""
    for rule in rules.ORDER_RULES:
        if rule.applies(later, earlier, uses):
            return stage if rule.together else stage + 1
    return 0


def _stage(nodes: list[_Node], revertible: bool) -> Stage:
    work = tuple(node.work for node in nodes if node.work is not None)
    return Stage(
        moves=tuple(node.move for node in nodes if node.work is None),
        fences=tuple(dict.fromkeys(found.element.table for found in work)),
        work=work,
        revertible=revertible,
    )


_ACTIONS: dict[type, Callable[..., None]] = {
    want.CreateTable: creation.create_table,
    want.AddColumn: creation.add_column,
    want.CreateIndex: creation.create_index,
    want.AddConstraint: creation.alter_add_constraint,
    want.DropTables: removal.drop_tables,
    want.DropColumn: removal.drop_column,
    want.DropIndexes: removal.drop_indexes,
    want.DropConstraint: removal.drop_constraint,
    want.DropSequences: removal.drop_sequences,
    want.DropViews: removal.drop_views,
    want.DropIdentity: removal.drop_identity,
    want.Truncate: removal.truncate,
    want.RenameColumn: alteration.rename_column,
    want.RenameObject: alteration.rename_object,
    want.RenameIndex: alteration.rename_index,
    want.RenameConstraint: alteration.rename_constraint,
    want.SetDefault: alteration.set_default,
    want.DropNotNull: alteration.drop_not_null,
    want.SetType: alteration.set_type,
    want.CreateView: alteration.create_view,
    want.CreateSequence: sequences.create_sequence,
    want.AlterSequence: sequences.alter_sequence,
}
