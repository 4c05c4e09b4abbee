"""Stages: what a plan consists of, as frozen data, and what publishing one does to the descriptors.

One stage is one transaction. The first is published by the transaction of the statement itself; a job publishes the
others, each together with the job's record in one store commit (rule 9). A later stage says which elements move, not
what the descriptors become: a compatible step of another statement may have come in between, so a stage is applied to
the descriptors of the moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from instar import errors
from instar.catalog.descriptors import Layout, Object, Step, StepKind, Table
from instar.schemachange import rules
from instar.schemachange.elements import Element, ElementKind, Phase, name_of, phase_of, state_in
from instar.schemachange.states import Work

# A transaction that was enlisted further back than this many steps cannot be judged any more, and gets 40001.
KEPT_STEPS = 64


class Move(msgspec.Struct, frozen=True, array_like=True):
    """An element goes from one phase to another; more than one state apart where the path is collapsed."""

    element: Element
    start: Phase
    goal: Phase


class Reorganization(msgspec.Struct, frozen=True, array_like=True):
    """Work on the data, between the stage that it belongs to and the next. `rows`: an estimate."""

    work: Work
    element: Element
    rows: int


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """One transaction of a change and the work that follows it.

    `fences`: tables whose floor is raised to their current version, before `work` starts (rule 19). `revertible`: once
    this stage is published, the change can still be taken back by the reverse path.
    """

    moves: tuple[Move, ...] = ()
    fences: tuple[int, ...] = ()
    work: tuple[Reorganization, ...] = ()
    revertible: bool = False


class Published(msgspec.Struct, frozen=True):
    """One object as a publication leaves it. `floor`: what f becomes at least; "keep" leaves it alone."""

    before: Object | None
    after: Object
    floor: Literal["keep"] | int
    checks_moved: bool = False


class Publication(msgspec.Struct, frozen=True):
    """Everything that one transaction publishes.

    `still_empty`: tables that were found empty, and must be so still at the commit.
    """

    published: tuple[Published, ...] = ()
    dropped: tuple[Object, ...] = ()
    freed: tuple[int, ...] = ()
    still_empty: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.published or self.dropped)

    @property
    def emptied(self) -> tuple[int, ...]:
        """The ids of tables that are dropped or truncated: what the transaction had buffered of them is void."""
        truncated = (
            published.after.id
            for published in self.published
            if isinstance(published.before, Table)
            and isinstance(published.after, Table)
            and published.before.rowset != published.after.rowset
        )
        return (*(dropped.id for dropped in self.dropped if isinstance(dropped, Table)), *truncated)


class Plan(msgspec.Struct, frozen=True):
    """What becomes of one statement: the first publication, and the stages that a job goes through, if it needs one.

    `stages[0]` is part of `first`. `notices` are for the user (objects that CASCADE took).
    """

    statement: str
    first: Publication
    stages: tuple[Stage, ...]
    notices: tuple[str, ...] = ()

    @property
    def needs_job(self) -> bool:
        """Whether anything is left to do once the statement's own transaction has committed."""
        return len(self.stages) > 1


class Superseded(Exception):
    """A stage cannot be published: what it moves is gone or is not where the stage left it."""


def new_version(table: Table, steps: list[Step], **changes: object) -> Table:
    """`table` one version on. The newest steps are kept, for the validators."""
    kept = [*table.steps, *steps]
    if len(kept) > KEPT_STEPS:
        kept = kept[-KEPT_STEPS:]
    return msgspec.structs.replace(table, version=table.version + 1, steps=tuple(kept), **changes)


def without_column(table: Table, column: int) -> dict[str, object]:
    """The fields that change when a column goes: rows are written without it from now on."""
    layout = Layout(table.layout.id + 1, tuple(part for part in table.layout.columns if part[0] != column))
    return {"columns": tuple(found for found in table.columns if found.id != column), "layout": layout}


def advance(lookup: Callable[[int], Table | None], stage: Stage, statement: str) -> Publication:
    """What publishing `stage` does to the descriptors that `lookup` gives. Superseded if they no longer fit it."""
    published: list[Published] = []
    freed: list[int] = []
    for table_id in dict.fromkeys(move.element.table for move in stage.moves):
        before = lookup(table_id)
        if before is None:
            raise Superseded(f"table {table_id} was dropped")
        after = move_elements(before, [move for move in stage.moves if move.element.table == table_id], statement)
        freed.extend(rules.rowsets(before) - rules.rowsets(after))
        published.append(publish(before, after))
    return Publication(tuple(published), freed=tuple(freed))


def publish(before: Object | None, after: Object) -> Published:
    """`after` with the floor that the rules demand of the step from `before`; only tables have one."""
    if not (isinstance(before, Table) and isinstance(after, Table)):
        return Published(before, after, "keep")
    return Published(before, after, rules.floor(before, after), rules.check_list(before) != rules.check_list(after))


def move_elements(table: Table, moves: list[Move], statement: str) -> Table:
    """`table` one version on, with its elements moved. Elements are added by the planner, never here."""
    for move in moves:
        if phase_of(table, move.element) is not move.start:
            raise Superseded(f'{name_of(table, move.element)} of table "{table.name}" is no longer {move.start.value}')
    fields: dict[str, object] = {}
    steps: list[Step] = []
    version = table.version + 1
    on_paths = tuple(move.element.id for move in moves if move.element.kind is not ElementKind.COLUMN)
    if on_paths:
        steps.append(Step(version=version, kind=StepKind.ELEMENT_STATE, columns=on_paths, statement=statement))
    for move in moves:
        if move.element.kind is ElementKind.COLUMN:
            current = msgspec.structs.replace(table, **fields)
            fields |= without_column(current, move.element.id)
            steps.append(
                Step(version=version, kind=StepKind.DROP_COLUMN, columns=(move.element.id,), statement=statement)
            )
            continue
        field = _FIELDS[move.element.kind]
        fields[field] = _in_phase(fields.get(field, getattr(table, field)), move)
    return new_version(table, steps, **fields)


_FIELDS = {ElementKind.INDEX: "indexes", ElementKind.CHECK: "checks", ElementKind.FOREIGN_KEY: "foreign_keys"}


def _in_phase(listed: object, move: Move) -> tuple[msgspec.Struct, ...]:
    if not isinstance(listed, tuple):
        raise errors.error(errors.INTERNAL_ERROR, f"no list of elements for {move}")
    if move.goal is Phase.ABSENT:
        return tuple(found for found in listed if found.id != move.element.id)
    return tuple(
        msgspec.structs.replace(found, state=state_in(move.goal)) if found.id == move.element.id else found
        for found in listed
    )
