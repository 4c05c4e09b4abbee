"""Stages: what a plan consists of, as frozen data.

One stage is one transaction. The first is published by the transaction of the statement itself; a job publishes the
others. A later stage says which elements move, not what the descriptors become: a compatible step of another statement
may have come in between, so a stage is applied to the descriptors of the moment (publishing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from instar.catalog.descriptors import Column, Object, StepKind, Table, View
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.states import Work


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


class Edit(msgspec.Struct, frozen=True, array_like=True):
    """Direct steps that a job takes at its end: columns as the statement found and as it wants them, by id.

    Only the fields that differ are looked at and set, since elements move meanwhile. `steps` are for the validators.
    `compacted`: the rowset that has been walked, and the layout that is the oldest of its rows from then on.
    """

    table: int
    columns: tuple[tuple[Column, Column], ...]
    steps: tuple[tuple[StepKind, tuple[int, ...]], ...]
    compacted: tuple[int, int] | None = None


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """One transaction of a change and the work that follows it.

    `fences`: tables whose floor is raised to their current version, before `work` starts (rule 19). `revertible`: once
    this stage is published, the change can still be taken back by the reverse path. `drops`: tables, with all that they
    own, and views, by their ids, that go in one direct step; `reveals`: unseen tables that are seen from then on;
    `shows`: materialized views that are there from then on, or have their rows in another table. `closes`:
    sources of a join or split that only those write to from then on who have done so before. `grace`: so many
    microseconds it waits for transactions that it dooms (None: as the job says). `keeps`:
    (view, source): views, by the ids that they get, that take the names of tables which were joined or split.
    """

    moves: tuple[Move, ...] = ()
    fences: tuple[int, ...] = ()
    work: tuple[Reorganization, ...] = ()
    revertible: bool = False
    edits: tuple[Edit, ...] = ()
    drops: tuple[int, ...] = ()
    reveals: tuple[int, ...] = ()
    closes: tuple[int, ...] = ()
    grace: int | None = None
    shows: tuple[View, ...] = ()
    keeps: tuple[tuple[int, int], ...] = ()


def passes(works: Sequence[Reorganization]) -> Iterator[tuple[int, Sequence[Reorganization]]]:
    """The works of a stage, each with its place in it. The indexes of one table are built side by side, in one pass
    over its rows, at the place of the first of them."""
    for place, work in enumerate(works):
        if work.element.kind is not ElementKind.INDEX:
            yield place, [work]
            continue
        beside = [
            found
            for found in works
            if (found.element.kind, found.element.table) == (ElementKind.INDEX, work.element.table)
        ]
        if work is beside[0]:
            yield place, beside


class Published(msgspec.Struct, frozen=True):
    """One object as a publication leaves it. `floor`: what f becomes at least; "keep" leaves it alone. `dropped_at`:
    it comes back, and was dropped by the commit of this timestamp."""

    before: Object | None
    after: Object
    floor: Literal["keep"] | int
    checks_moved: bool = False
    dropped_at: int | None = None


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


class Scheduled(msgspec.Struct, frozen=True):
    """An element on its path: where it stood before the statement, and where it goes.

    `rows`: an estimate of the work, None if there is none to do on its way. `related`: other tables whose writers must
    know of it before that work begins (rule 19). `uses`: what must be public before the element is write-only. `reads`:
    columns that must have their values before that work begins. `work`: in the place of the one that its path names.
    """

    element: Element
    start: Phase
    goal: Phase
    rows: int | None
    related: tuple[int, ...] = ()
    uses: tuple[Element, ...] = ()
    reads: tuple[Element, ...] = ()
    work: Work | None = None


class Change(msgspec.Struct, frozen=True):
    """What one statement, or one transaction, has begun and a job is to finish: elements on their paths, direct steps
    for the end, and what the end drops: columns and constraints; `objects`, tables and views, by their ids."""

    scheduled: tuple[Scheduled, ...]
    edits: tuple[Edit, ...] = ()
    dropped: tuple[Move, ...] = ()
    objects: tuple[int, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """What becomes of one statement: the first publication, and the stages that a job goes through, if it needs one.

    `stages[0]` is part of `first`. `notices` are for the user (objects that CASCADE took). `priority`
    is the job's.
    """

    statement: str
    first: Publication
    stages: tuple[Stage, ...]
    notices: tuple[str, ...] = ()
    change: Change | None = None
    priority: int = 0

    @property
    def needs_job(self) -> bool:
        """Whether anything is left to do once the statement's own transaction has committed."""
        return self.change is not None


class Superseded(Exception):
    """A stage cannot be published: what it moves is gone or is not where the stage left it."""
