"""What the end of a job brings: direct steps and drops that wait for it, and the schema as they will leave it.

PostgreSQL takes what a statement drops away before it adds anything, and a statement sees what those before it in its
transaction did. Here drops and edits of whatever takes a job come last, all at once, so that a job that fails leaves
the schema as it was. So what comes is *rehearsed* on the schema as it will be without them: names that go are free
there, and columns that go cannot be used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Object, StepKind, Table
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft, Ids
from instar.schemachange.elements import Element, ElementKind, Phase, phase_of, phases
from instar.schemachange.publishing import advance
from instar.schemachange.stages import Change, Edit, Move, Stage, Superseded

# Does what one action says to a draft.
Act = Callable[[Draft, want.Wanted], None]

_DROPS = (want.DropColumn, want.DropConstraint, want.DropExpression)


def tables(change: Change | None) -> set[int]:
    """The ids of the tables that something waits for the end of the change to be done to."""
    if change is None:
        return set()
    return {edit.table for edit in change.edits} | {move.element.table for move in change.dropped}


def dropped_columns(view: CatalogSnapshot, change: Change | None) -> set[tuple[str, str | None]]:
    """The columns that the end of the change drops, as (table, name)."""
    gone = {move.element for move in change.dropped} if change is not None else set()
    found = (view.by_id(number) for number in {element.table for element in gone})
    return {
        (table.name, column.name)
        for table in found
        if isinstance(table, Table)
        for column in table.columns
        if Element(ElementKind.COLUMN, table.id, column.id) in gone
    }


def at_the_end(
    draft: Draft, act: Act, later: Sequence[want.Wanted], earlier: Change | None
) -> tuple[tuple[Edit, ...], tuple[Move, ...], list[str]]:
    """What the actions that wait for the end of the job come to: edits, and moves of what they drop; notices."""
    end = Draft(_after(draft.view, earlier, draft.statement), draft.ids, draft.facts, draft.statement)
    end.collapsing = True
    end.own = draft.own
    end.unseen = set(draft.own)
    drops = [action for action in later if isinstance(action, _DROPS)]
    for drop in drops:
        act(end, drop)
    end.unseen = set()
    for action in later:
        if action not in drops:
            act(end, action)
    publication = end.publication()
    edits, moves = [], []
    for published in publication.published:
        before, after = published.before, published.after
        if not (isinstance(before, Table) and isinstance(after, Table)):
            raise errors.unsupported(f'changing "{after.name}" in one statement with what takes a job')
        edits.append(_edit(before, after))
        left = phases(after)
        moves += [Move(found, phase, Phase.ABSENT) for found, phase in phases(before).items() if found not in left]
    if publication.dropped:
        names = ", ".join(f'"{found.name}"' for found in publication.dropped)
        raise errors.unsupported(f"dropping {names} in one statement with what takes a job")
    return tuple(found for found in edits if found.columns or found.steps), tuple(moves), end.notices


def _edit(before: Table, after: Table) -> Edit:
    left = {column.id: column for column in after.columns}
    columns = tuple((column, left[column.id]) for column in before.columns if left.get(column.id, column) is not column)
    steps = tuple(
        (step.kind, step.columns)
        for step in after.steps
        if step.version > before.version and step.kind not in (StepKind.ELEMENT_STATE, StepKind.DROP_COLUMN)
    )
    return Edit(before.id, columns, steps)


def rehearse(
    draft: Draft, act: Act, now: Sequence[want.Wanted], later: Sequence[want.Wanted], earlier: Change | None
) -> set[Element]:
    """Do the actions of `now` to a draft without what goes at the end, which raises PostgreSQL's errors if they cannot
    be done there. Returns what goes: it is still there when they are done in earnest, and not to be seen by them."""
    trial = Draft(_after(draft.view, earlier, draft.statement), _Unused(draft.ids), draft.facts, draft.statement)
    trial.staged = draft.staged
    trial.collapsing = True
    for drop in (action for action in later if isinstance(action, _DROPS)):
        act(trial, drop)
    changed = draft.view.own()[0] | trial.view.own()[0]
    gone = _elements(draft.view, changed) - _elements(trial.view, changed)
    for action in now:
        act(trial, action)
    return gone


def _after(view: CatalogSnapshot, change: Change | None, statement: str) -> CatalogSnapshot:
    """The schema with the edits of a change, and without what it drops."""
    if change is None:
        return view

    def table(number: int) -> Table | None:
        found = view.by_id(number)
        return found if isinstance(found, Table) else None

    leaving = tuple(
        Move(found.element, phase_of(table(found.element.table), found.element), Phase.ABSENT)
        for found in change.scheduled
        if found.goal is Phase.ABSENT
    )
    try:
        publication = advance(table, Stage(moves=(*leaving, *change.dropped), edits=change.edits), statement)
    except Superseded as why:
        raise errors.unsupported(f"changing what a job of the transaction is still to change ({why})") from None
    return view.changed([published.after for published in publication.published], [])


def _elements(view: CatalogSnapshot, objects: Iterable[int]) -> set[Element]:
    found = (view.by_id(number) for number in objects)
    return {element for table in found if isinstance(table, Table) for element in phases(table)}


class _Unused:
    """Ids for a draft that is thrown away; what is asked of those in use is asked of `ids`."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._numbers = itertools.count(1 << 62)

    def new_id(self) -> int:
        return next(self._numbers)

    def new_rowset(self, owner: int) -> int:
        return next(self._numbers)

    def is_new(self, object_id: int) -> bool:
        return self._ids.is_new(object_id)

    def committed(self, object_id: int) -> Object | None:
        return self._ids.committed(object_id)
