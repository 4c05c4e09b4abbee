"""The planner: current descriptors and what one statement wants -> stages.

Planning is data: paths come from states.py, floors and order from rules.py. The actions of a statement are applied to
a draft; what can be done at once is the first publication; elements that have begun a path are scheduled into the
stages of a job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.catalog.naming import constraint_names
from instar.schemachange import (
    alteration,
    conversion,
    creation,
    ending,
    generation,
    locks,
    positions,
    primary_key,
    removal,
    rules,
    sequences,
    undrop,
    undrop_column,
)
from instar.schemachange import wanted as want
from instar.schemachange.compact import plan_compaction
from instar.schemachange.dependents import require_staying, require_unviewed
from instar.schemachange.draft import Draft, Facts, Ids, TableBusy
from instar.schemachange.elements import Element, Phase, moving
from instar.schemachange.leaving import set_out
from instar.schemachange.online import materialized
from instar.schemachange.online.planning_join import join_tables
from instar.schemachange.online.planning_split import split_table
from instar.schemachange.stages import Change, Move, Plan, Publication, Reorganization, Scheduled, Stage
from instar.schemachange.states import PATHS

# Actions that may take a job on a table with rows; together with one of them, those of _LATER wait for the end of it.
_ON_PATHS = (
    want.CreateIndex, want.AddConstraint, want.SetNotNull, want.ValidateConstraint, want.AddLock, want.AlterLock,
    want.DropLock,
)  # fmt: skip
_LATER = (
    want.SetDefault, want.DropNotNull, want.SetType, want.DropColumn, want.DropConstraint, want.DropExpression,
    want.AddIdentity, want.DropIdentity,
)  # fmt: skip

# What cannot wait for the end of a job.
_AT_ONCE = {
    want.MoveColumn: "moving a column",
    want.SetMigration: "setting when rows migrate",
    want.SetCompaction: "setting when a table is compacted",
}

_OWN_CHANGE = "This transaction has begun that itself, and its job starts at COMMIT: end the transaction first."
_OWN_ACTION = "Another action of the statement does that itself: make them statements of their own."


def plan(
    view: CatalogSnapshot,
    ids: Ids,
    facts: Facts,
    wanted: Sequence[want.Wanted],
    statement: str,
    earlier: Change | None = None,
) -> Plan:
    """Plan one statement; errors are those that PostgreSQL would report. Nothing is written.

    `earlier`: what the statements before it in its transaction have begun, for the end of which some of it waits.
    """
    try:
        made = _plan(view, ids, facts, wanted, statement, earlier)
        require_staying(view, made.first, facts.bound)
        if earlier is not None:
            require_unviewed(view, made.first, earlier)
        return made
    except TableBusy as found:
        before = ids.committed(found.table)
        if found.on_record or (isinstance(before, Table) and moving(before)):
            raise
        # No job is there to wait for: what it drops, the statement or one before it in its transaction has begun.
        own = () if earlier is None else earlier.scheduled
        begun = bool(moving(view.table(found.table))) or any(one.element == found.element for one in own)
        raise errors.error(errors.OBJECT_IN_USE, str(found), hint=_OWN_CHANGE if begun else _OWN_ACTION) from None


def _require_combinable(view: CatalogSnapshot, wanted: Sequence[want.Wanted]) -> None:
    """Error 0A000 if one of several actions can only be done alone."""
    together = "together with other actions in one statement"
    if any(isinstance(action, want.AlterPrimaryKey) for action in wanted):
        _require_constraints(view, wanted)
        raise errors.unsupported(f"changing a primary key {together}")
    if any(isinstance(action, want.UndropColumn) for action in wanted):
        raise errors.unsupported(f"UNDROP COLUMN {together}")
    if any(isinstance(action, want.ConvertColumns) for action in wanted):
        raise errors.unsupported(f"converting a column to another type {together}")


def _plan(
    view: CatalogSnapshot,
    ids: Ids,
    facts: Facts,
    wanted: Sequence[want.Wanted],
    statement: str,
    earlier: Change | None,
) -> Plan:
    if len(wanted) > 1:
        _require_combinable(view, wanted)
    wanted = _without_put_back(view, wanted)
    draft = Draft(view, ids, facts, statement)
    if earlier is not None:
        draft.begun = {found.element for found in earlier.scheduled}
    for action in wanted:
        if type(action) in _ALONE:
            return _alone(draft, action)
    paths = _share_stages(draft, wanted, earlier)
    ended = ending.tables(earlier)
    follows = {action for action in wanted if isinstance(action, _LATER) and _table_of(draft, action) in ended}
    waiting = [action for action in wanted if draft.staged and isinstance(action, _LATER) and action not in paths]
    later = [action for action in wanted if action in follows or action in waiting]
    now = [action for action in wanted if action not in later]
    if now and (ended or later):
        draft.unseen = ending.rehearse(draft, _act, now, later, earlier)
    for action in now:
        _act(draft, action)
    if draft.scheduled or ended:
        draft.scheduled += draft.resting
    if not draft.scheduled and not follows:
        draft.unseen = set(draft.own)
        for action in later:
            _act(draft, action)
        return Plan(statement, draft.publication(), (Stage(),), tuple(draft.notices))
    edits, dropped, notices = ending.at_the_end(draft, _act, later, earlier)
    change = Change(tuple(draft.scheduled), edits, (*draft.at_the_end, *dropped), tuple(draft.objects))
    if change == Change(()):
        return Plan(statement, draft.publication(), (Stage(),), (*draft.notices, *notices))
    stages = stages_of(change)
    leaving = {found.element for found in draft.scheduled if found.goal is Phase.ABSENT}
    set_out(draft, [move for move in stages[0].moves if move.element in leaving])
    return Plan(statement, draft.publication(), stages, (*draft.notices, *notices), change)


def _share_stages(draft: Draft, wanted: Sequence[want.Wanted], earlier: Change | None) -> list[want.Wanted]:
    """Have the actions share the stages of one job, if one of them takes a job. Returns the drops that begin it where
    nothing else does; others collapse at its end."""
    adds = any(isinstance(action, want.AddColumn) for action in wanted)
    together = len(wanted) > 1 or adds  # a column and its constraints are several too
    draft.by_paths = draft.facts.schema_lease > 0 and bool(_dropped_names(wanted) & _added_names(wanted))
    takes = together and any(_takes_job(draft, action) for action in wanted)
    paths = [action for action in wanted if together and not takes and _leaves_by_path(draft, action)]
    draft.staged = takes or bool(paths)
    if draft.staged:
        _require_deferrable(wanted)
    # A column that has the name of one which goes at the end is not to be shown before.
    draft.staged |= bool(_added_names(wanted) & ending.dropped_columns(draft.view, earlier))
    return [] if adds else paths


def _without_put_back(view: CatalogSnapshot, wanted: Sequence[want.Wanted]) -> list[want.Wanted]:
    """Without DROP NOT NULL of a column for which the statement has SET NOT NULL too: the drop is first in PostgreSQL,
    and rows that have had values all along need no look. Nor with a DROP CONSTRAINT of a NOT NULL. And without what
    is said twice. That of a primary key or an identity is not put back: it cannot be dropped."""
    gone = {_place(action) for action in wanted if isinstance(action, want.DropNotNull)}
    given = {_place(action) for action in wanted if isinstance(action, want.SetNotNull)}
    back = {place for place in gone & given if not _must_have_values(view, *place)}
    left = [
        replace(action, anew=True) if isinstance(action, want.SetNotNull) and _place(action) in back else action
        for action in wanted
        if not (isinstance(action, want.DropNotNull) and _place(action) in back)
    ]
    return [
        action for at, action in enumerate(left) if not (isinstance(action, want.SetNotNull) and action in left[:at])
    ]


def _must_have_values(view: CatalogSnapshot, table: str, column: str) -> bool:
    """Whether it is a column of the table's primary key, or an identity."""
    found = view.lookup("public", table)
    return isinstance(found, Table) and any(
        one.name == column and (one.id in found.primary_key or one.identity is not None)
        for one in found.columns
        if not one.hidden
    )


def _place(action: want.DropNotNull | want.SetNotNull) -> tuple[str, str]:
    return action.table, action.column


def _alone(draft: Draft, action: want.Wanted) -> Plan:
    made = _ALONE[type(action)](draft, action)
    if isinstance(action, want.SplitTable | want.JoinTables):
        return msgspec.structs.replace(made, priority=action.options.priority)
    return made


def _require_constraints(view: CatalogSnapshot, wanted: Sequence[want.Wanted]) -> None:
    """42704 where a constraint is dropped that is not there."""
    for action in wanted:
        if isinstance(action, want.DropConstraint):
            table = view.lookup("public", action.table)
            if isinstance(table, Table) and action.name not in constraint_names(table):
                raise removal.no_constraint(table, action.name)


def _act(draft: Draft, action: want.Wanted) -> None:
    _ACTIONS[type(action)](draft, action)


def _table_of(draft: Draft, action: want.Wanted) -> int | None:
    """The id of the table that an action of ALTER TABLE names, if there is one."""
    table = draft.view.lookup("public", action.table)  # type: ignore[union-attr] # all of those that are asked for have it
    return table.id if isinstance(table, Table) else None


def _dropped_names(wanted: Sequence[want.Wanted]) -> set[tuple[str, str | None]]:
    """The constraints and columns that actions drop, as (table, name)."""
    constraints = {(action.table, action.name) for action in wanted if isinstance(action, want.DropConstraint)}
    return constraints | {(action.table, action.column) for action in wanted if isinstance(action, want.DropColumn)}


def _added_names(wanted: Sequence[want.Wanted]) -> set[tuple[str, str | None]]:
    """The constraints and columns that actions add, as (table, name); None: a generated name."""
    constraints = {
        (action.table, action.constraint.name) for action in wanted if isinstance(action, want.AddConstraint)
    }
    return constraints | {(action.table, action.column.name) for action in wanted if isinstance(action, want.AddColumn)}


def _takes_job(draft: Draft, action: want.Wanted) -> bool:
    """Whether the action, on a table with rows, takes more than one step."""
    on_path = isinstance(action, _ON_PATHS) or (
        isinstance(action, want.AddColumn)
        and (bool(action.constraints) or action.column.is_per_row or action.column.generated is not None)
    )
    table = draft.view.lookup("public", action.table) if on_path else None  # type: ignore[union-attr] # all of them have
    return isinstance(table, Table) and not draft.has_no_rows(table)


def _leaves_by_path(draft: Draft, action: want.Wanted) -> bool:
    """Whether the action drops what leaves a table stage by stage, which is a job of its own."""
    if not isinstance(action, want.DropColumn | want.DropConstraint):
        return False
    table = draft.view.lookup("public", action.table)
    return isinstance(table, Table) and removal.leaves_by_path(draft, table, action)


def _require_deferrable(wanted: Sequence[want.Wanted]) -> None:
    """0A000 for what would be there before the end of the job, and stay if that failed."""
    for action in wanted:
        if type(action) in _AT_ONCE:
            raise errors.unsupported(f"{_AT_ONCE[type(action)]} in one statement with what takes a job")


def combine(plans: Sequence[Plan]) -> Plan:
    """One plan of the statements of a transaction that take a job: they share its stages (F1 figure 3)."""
    changes = [made.change for made in plans if made.change is not None]
    change = Change(
        tuple(dict.fromkeys(found for one in changes for found in one.scheduled)),
        tuple(found for one in changes for found in one.edits),
        tuple(found for one in changes for found in one.dropped),
        tuple(dict.fromkeys(found for one in changes for found in one.objects)),
    )
    return Plan("; ".join(made.statement for made in plans), Publication(), stages_of(change), (), change)


def stages_of(change: Change) -> tuple[Stage, ...]:
    """The stages of what one statement, or one transaction, has begun."""
    stages = schedule(change.scheduled)
    if change.edits or change.dropped or change.objects:
        if len(stages) == 1:  # the statement's own transaction publishes the first
            stages = (*stages, Stage())
        last = stages[-1]
        moves = (*last.moves, *change.dropped)
        last = msgspec.structs.replace(last, moves=moves, edits=change.edits, drops=change.objects, revertible=False)
        stages = (*stages[:-1], last)
    return stages


def reverse(standing: Iterable[Standing], made: tuple[int, ...] = ()) -> tuple[Stage, ...]:
    """The way back for elements on their way: the same states the other way round, with nothing to do in between.
    `made`: tables that nobody has seen, and that go with the last of it.

    What an index had is freed with its rowset, below the watermark (rule 22).
    """
    elements = [
        Scheduled(found.element, found.phase, found.origin, None, uses=found.uses)
        for found in standing
        if found.phase is not found.origin
    ]
    back = [msgspec.structs.replace(stage, revertible=False) for stage in schedule(elements)] if elements else []
    if made:
        last = back.pop() if back else Stage()
        back.append(msgspec.structs.replace(last, drops=made))
    return tuple(back)


class Standing(NamedTuple):
    """Where an element of a job stands, where it stood before the job, and what it uses."""

    element: Element
    phase: Phase
    origin: Phase
    uses: tuple[Element, ...] = ()


class _Node(NamedTuple):
    """A move of an element, or the work between two moves (`move` is then the one that it makes possible)."""

    move: Move
    work: Reorganization | None
    tables: tuple[int, ...] = ()
    reads: tuple[Element, ...] = ()


def schedule(elements: Sequence[Scheduled]) -> tuple[Stage, ...]:
    """Moves and work of all elements in the fewest stages that the order rules allow; the first is without work, since
    it is published by the statement's own transaction."""
    nodes = [node for element in elements for node in _nodes(element)]
    uses = {(element.element, used) for element in elements for used in element.uses}
    stage_of = _stages_of_nodes(nodes, uses)
    count = max(stage_of.values(), default=0) + 1
    used = {found for _user, found in uses}
    final = min(
        (stage_of[i] for i, node in enumerate(nodes) if node.work is None and is_final_of(node.move, used)),
        default=count,
    )
    return tuple(
        _stage([nodes[i] for i in stage_of if stage_of[i] == number], number < final) for number in range(count)
    )


def _stages_of_nodes(nodes: Sequence[_Node], uses: Set[tuple[Element, Element]]) -> dict[int, int]:
    """The earliest stage of each node, by its place; XX000 if the rules order nodes in a circle."""
    stage_of = {number: int(node.work is not None) for number, node in enumerate(nodes)}
    moved = True
    while moved:
        moved = False
        for later, earlier in itertools.permutations(range(len(nodes)), 2):
            earliest = _earliest(nodes[later], nodes[earlier], stage_of[earlier], uses)
            if stage_of[later] < earliest:
                stage_of[later] = earliest
                moved = True
                if earliest > len(nodes):  # each stage but an empty first one has a node that put off the next
                    raise errors.error(errors.INTERNAL_ERROR, "the order rules of stages contradict one another")
    return stage_of


def is_final_of(move: Move, used: Set[Element]) -> bool:
    """Whether the change cannot be taken back any more once the move is published."""
    return rules.is_final(move) and move.element not in used


def _nodes(scheduled: Scheduled) -> Iterator[_Node]:
    """The steps of one element in order."""
    path = PATHS[scheduled.element.kind]
    building = path.phases.index(scheduled.goal) > path.phases.index(scheduled.start)
    phase = scheduled.start
    for following in path.between(scheduled.start, scheduled.goal):
        move = Move(scheduled.element, phase, following)
        work = path.work.get(phase) and (scheduled.work or path.work[phase])
        if building and work is not None and scheduled.rows is not None:
            tables = (scheduled.element.table, *scheduled.related)
            yield _Node(move, Reorganization(work, scheduled.element, scheduled.rows), tables, scheduled.reads)
        yield _Node(move, None)
        phase = following


def _earliest(later: _Node, earlier: _Node, stage: int, uses: Set[tuple[Element, Element]]) -> int:
    """The first stage that `later` may be in, if `earlier` is in `stage`; 0 if no rule orders the two."""
    return max(
        (stage + (not rule.together) for rule in rules.ORDER_RULES if rule.applies(later, earlier, uses)), default=0
    )


def _stage(nodes: list[_Node], revertible: bool) -> Stage:
    work = tuple(node.work for node in nodes if node.work is not None)
    return Stage(
        moves=tuple(node.move for node in nodes if node.work is None),
        fences=tuple(dict.fromkeys(table for node in nodes for table in node.tables)),
        work=work,
        revertible=revertible,
    )


# Statements of their own, never with other actions.
_ALONE: dict[type, Callable[..., Plan]] = {
    want.CompactTable: plan_compaction,
    want.SplitTable: split_table,
    want.JoinTables: join_tables,
    want.CreateMaterializedView: materialized.create_materialized_view,
    want.PopulateAnew: materialized.populate_anew,
}
_ACTIONS: dict[type, Callable[..., None]] = {
    want.CreateTable: creation.create_table,
    want.AddColumn: creation.add_column,
    want.CreateIndex: creation.create_index,
    want.AddConstraint: creation.alter_add_constraint,
    want.DropTables: removal.drop_tables,
    want.UndropTables: undrop.undrop_tables,
    want.UndropColumn: undrop_column.undrop_column,
    want.DropColumn: removal.drop_column,
    want.DropIndexes: removal.drop_indexes,
    want.DropConstraint: removal.drop_constraint,
    want.DropSequences: removal.drop_sequences,
    want.DropViews: removal.drop_views,
    want.AddIdentity: alteration.add_identity,
    want.DropIdentity: removal.drop_identity,
    want.Truncate: removal.truncate,
    want.MoveColumn: positions.move_column,
    want.RenameColumn: alteration.rename_column,
    want.RenameObject: alteration.rename_object,
    want.RenameIndex: alteration.rename_index,
    want.RenameConstraint: alteration.rename_constraint,
    want.SetDefault: alteration.set_default,
    want.DropNotNull: alteration.drop_not_null,
    want.DropExpression: generation.drop_expression,
    want.SetNotNull: creation.set_not_null,
    want.ValidateConstraint: creation.validate_constraint,
    want.SetType: alteration.set_type,
    want.ConvertColumns: conversion.convert_columns,
    want.CreateView: alteration.create_view,
    want.CreateSequence: sequences.create_sequence,
    want.AlterSequence: sequences.alter_sequence,
    want.AddLock: locks.add_lock,
    want.AlterLock: locks.alter_lock,
    want.DropLock: locks.drop_lock,
    want.SetMigration: alteration.set_migration,
    want.SetCompaction: alteration.set_compaction,
    want.AlterPrimaryKey: primary_key.alter_primary_key,
}
