"""Stages: what a plan consists of, as frozen data, and what publishing one does to the descriptors.

One stage is one transaction. The first is published by the transaction of the statement itself; a job publishes the
others, each together with the job's record in one store commit (rule 9). A later stage says which elements move, not
what the descriptors become: a compatible step of another statement may have come in between, so a stage is applied to
the descriptors of the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from instar.catalog.descriptors import (
    Check,
    Column,
    ForeignKey,
    Index,
    Kept,
    MadeByGrouping,
    MadeByJoin,
    MadeBySplit,
    Object,
    Step,
    StepKind,
    Table,
    View,
)
from instar.schemachange import key_elements, lock_elements, replacements, rules
from instar.schemachange.elements import Element, ElementKind, Phase, name_of, phase_of, state_in
from instar.schemachange.key_elements import without_column
from instar.schemachange.next_layout import numbered
from instar.schemachange.online.foreign_keys import Carried, carried, is_kept, with_keys
from instar.schemachange.online.kept_views import kept_view, targets_of
from instar.schemachange.online.seeing import seen
from instar.schemachange.probed_indexes import handed_on, heirs, without_keys
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


def new_version(table: Table, steps: list[Step], **changes: object) -> Table:
    """`table` one version on. The newest steps are kept, for the validators."""
    kept = [*table.steps, *steps]
    if len(kept) > KEPT_STEPS:
        kept = kept[-KEPT_STEPS:]
    return msgspec.structs.replace(table, version=table.version + 1, steps=tuple(kept), **changes)


def advance(lookup: Callable[[int], Object | None], stage: Stage, statement: str) -> Publication:
    """What publishing `stage` does to the descriptors that `lookup` gives. Superseded if they no longer fit it."""
    before: dict[int, Table] = {}
    after: dict[int, Table] = {}

    def current(table_id: int) -> Table:
        if table_id not in after:
            found = lookup(table_id)
            if not isinstance(found, Table):
                raise Superseded(f"table {table_id} was dropped")
            before[table_id] = after[table_id] = found
        return after[table_id]

    for table_id in dict.fromkeys((*(move.element.table for move in stage.moves), *(one.table for one in stage.edits))):
        moves = [move for move in stage.moves if move.element.table == table_id]
        edits = [edit for edit in stage.edits if edit.table == table_id]
        after[table_id] = move_elements(current(table_id), moves, edits, statement)
    for move in stage.moves:
        if move.element.kind is ElementKind.FOREIGN_KEY:
            _tell_parent(move, before, after, current, statement)
        elif move.element.kind is ElementKind.PRIMARY_KEY and move.goal is Phase.PUBLIC:
            _tell_relatives(before[move.element.table], before, after, current, statement)
    for table_id in stage.closes:
        after[table_id] = _closed(current(table_id), statement)
    if stage.reveals:
        _reveal(stage, before, after, current, statement)
    shown = [_show(view, lookup(view.id), before, after, current) for view in stage.shows]
    drops = (*stage.drops, *(number for number, _ in shown if number is not None))
    for table_id in drops:
        _tell_parents(table_id, drops, lookup, before, after, current, statement)
    dropped = [found for number in drops if (found := lookup(number)) is not None]
    kept = {key: found for key, found in after.items() if key not in drops and found != before[key]}
    published = [publish(before[table_id], found) for table_id, found in kept.items()]
    published += [found for _, found in shown]
    published.extend(publish(None, view) for view in _kept_views(stage, before, after))
    freed = {rowset for key, found in kept.items() for rowset in rules.rowsets(before[key]) - rules.rowsets(found)}
    freed.update(rowset for found in dropped if isinstance(found, Table) for rowset in rules.rowsets(found))
    return Publication(tuple(published), dropped=tuple(dropped), freed=tuple(sorted(freed)))


def _closed(source: Table, statement: str) -> Table:
    """A source that closes: whoever commits to it from then on has seen that, or has written to it before."""
    if source.transformed is None:
        raise Superseded(f'table "{source.name}" is no longer being joined or split')
    step = Step(
        version=source.version + 1, kind=StepKind.ELEMENT_STATE, columns=(source.transformed.id,), statement=statement
    )
    return new_version(source, [step], transformed=msgspec.structs.replace(source.transformed, closing=True))


def _reveal(
    stage: Stage, before: dict[int, Table], after: dict[int, Table], current: Callable[[int], Table], statement: str
) -> None:
    """Targets of a join or split come to be seen, with the foreign keys that their sources have and that refer to
    these; the tables on the other sides hear of it. A source that becomes a target itself has lost its columns."""
    unseen = [current(number) for number in stage.reveals]
    assert unseen[0].unseen is not None
    made = unseen[0].unseen.made
    assert not isinstance(made, MadeByGrouping)  # its target stays unseen
    staying = _renamed(made, after, current, statement)
    sources = [current(number) for number in made.sources]
    kept = tuple(sources) if made.strategy == "commit" else ()
    shown = [msgspec.structs.replace(target, **seen(target, kept)) for target in unseen]
    keys = list(carried(made, [before[source.id] for source in sources], [*staying, *shown], current))
    if any(found.after is None for found in keys):
        raise Superseded("a foreign key has come that cannot be carried over")
    moved = [(found.table, found.after) for found in keys if not any(is_kept(found, table) for table in staying)]
    for target in shown:
        own = [key for table, key in moved if table == target.id and key is not None]
        children = [table for table, key in moved if table is not None and key is not None and key.parent == target.id]
        step = Step(version=target.version + 1, kind=StepKind.CREATE_TABLE, statement=statement)
        after[target.id] = new_version(target, [step], **with_keys(made, target, own, children))
    _tell_around(
        [found for found in keys if (found.table, found.after) in moved], shown, before, after, current, statement
    )


def _show(
    view: View,
    known: Object | None,
    before: dict[int, Table],
    after: dict[int, Table],
    current: Callable[[int], Table],
) -> tuple[int | None, Published]:
    """A materialized view comes to be there, or has its rows in another table: which one goes for that, and the view.
    The table has no name any more, since the view has it."""
    assert view.materialized is not None
    storage = current(view.materialized.storage)
    assert storage.unseen is not None
    nameless = msgspec.structs.replace(storage.unseen, nameless=True)
    after[storage.id] = _followed_up(before[storage.id], storage, unseen=nameless)
    if view.version == 1:
        return None, publish(None, view)
    if not isinstance(known, View) or known.materialized is None:
        raise Superseded(f'materialized view "{view.name}" was dropped')
    gone = known.materialized.storage
    for number in storage.unseen.made.sources:
        source = current(number)
        left = tuple(found for found in source.followed_by if found != gone)
        after[number] = _followed_up(before[number], source, followed_by=left)
    return gone, publish(known, msgspec.structs.replace(view, name=known.name, version=known.version + 1))


def _followed_up(before: Table, now: Table, **changes: object) -> Table:
    """`now`, in the version that this stage gives it anyway, or in one of its own."""
    if now.version == before.version:
        return new_version(now, [], **changes)
    return msgspec.structs.replace(now, **changes)


def _kept_views(stage: Stage, before: Mapping[int, Table], after: Mapping[int, Table]) -> Iterator[View]:
    """The views that the names of the sources stay as."""
    if not stage.keeps:
        return
    unseen = before[stage.reveals[0]].unseen
    assert unseen is not None  # it was revealed just now
    made = unseen.made
    assert not isinstance(made, MadeByGrouping)
    kept = Kept(made=made, sources=tuple(before[source] for source in made.sources))
    for number, source in stage.keeps:
        yield kept_view(number, before[source], kept, [after[target] for target in targets_of(made)])


def _renamed(
    made: MadeBySplit | MadeByJoin, after: dict[int, Table], current: Callable[[int], Table], statement: str
) -> list[Table]:
    """The source of a split in place, as it is called from now on; none of others."""
    if not isinstance(made, MadeBySplit) or made.becomes is None:
        return []
    source = current(made.source)
    if source.name != made.becomes:
        step = Step(version=source.version, kind=StepKind.RENAME_TABLE, statement=statement)
        steps = (*source.steps, step)[-KEPT_STEPS:]
        after[source.id] = source = msgspec.structs.replace(source, name=made.becomes, steps=steps)
    return [source]


def _tell_around(
    keys: Sequence[Carried],
    targets: Sequence[Table],
    before: dict[int, Table],
    after: dict[int, Table],
    current: Callable[[int], Table],
    statement: str,
) -> None:
    """The tables on the other sides of foreign keys that are others' now."""
    shown = {target.id for target in targets}
    around = {found.after.parent for found in keys if found.after is not None}
    around |= {found.table for found in keys if found.table is not None}
    for number in sorted(around - shown):
        other = current(number)
        mine = {found.key.id: found.after for found in keys if found.table == number and found.after is not None}
        changed = tuple(mine.get(key.id, key) for key in other.foreign_keys)
        referring = [found.table for found in keys if found.after is not None and found.after.parent == number]
        referred = (*other.referenced_by, *(table for table in referring if table in shown and table is not None))
        fields = {"foreign_keys": changed, "referenced_by": tuple(dict.fromkeys(referred))}
        after[number] = _told(before[number], other, statement, **fields)


def _tell_parents(
    dropped: int,
    gone: Sequence[int],
    lookup: Callable[[int], Object | None],
    before: dict[int, Table],
    after: dict[int, Table],
    current: Callable[[int], Table],
    statement: str,
) -> None:
    """The tables that a table which goes refers to hear of it."""
    child = lookup(dropped)
    keys = child.foreign_keys if isinstance(child, Table) else ()
    for number in sorted({key.parent for key in keys}.difference(gone)):
        parent = current(number)
        left = tuple(found for found in parent.referenced_by if found != dropped)
        after[number] = _told(before[number], parent, statement, referenced_by=left)


def _tell_parent(
    move: Move, before: dict[int, Table], after: dict[int, Table], current: Callable[[int], Table], statement: str
) -> None:
    """A foreign key belongs to both tables: a step of it gives the parent a version of its own too (rule 27)."""
    child = after[move.element.table]
    key = next(found for found in before[child.id].foreign_keys if found.id == move.element.id)
    if move.goal is Phase.PUBLIC and not key.yields:
        return  # writers of both sides have enforced it before
    parent = current(key.parent)
    refers = any(found.parent == parent.id for found in child.foreign_keys)
    changes = {"referenced_by": tuple(found for found in parent.referenced_by if refers or found != child.id)}
    after[parent.id] = _told(before[parent.id], parent, statement, **changes)


def _tell_relatives(
    swapped: Table, before: dict[int, Table], after: dict[int, Table], current: Callable[[int], Table], statement: str
) -> None:
    """Writers around a table probe its rowsets: when those are replaced, they are told; and so are its foreign keys'
    other sides which key they refer to from now on."""
    assert swapped.next_key is not None  # it was moved just now
    for related in key_elements.relatives(swapped):
        other = current(related)
        keys = key_elements.foreign_keys_after(other, swapped, swapped.next_key)
        after[related] = _told(before[related], other, statement, foreign_keys=keys)


def _told(before: Table, now: Table, statement: str, **changes: object) -> Table:
    """`now`, a table that has to do with another one that changes, with the step that says so: of the version that this
    stage gives it anyway, or of one of its own."""
    if now.version == before.version:
        step = Step(version=now.version + 1, kind=StepKind.ELEMENT_STATE, statement=statement)
        return new_version(now, [step], **changes)
    step = Step(version=now.version, kind=StepKind.ELEMENT_STATE, statement=statement)
    return msgspec.structs.replace(now, steps=(*now.steps, step)[-KEPT_STEPS:], **changes)


def publish(before: Object | None, after: Object) -> Published:
    """`after` with the floor that the rules demand of the step from `before`; only tables have one."""
    if not (isinstance(before, Table) and isinstance(after, Table)):
        return Published(before, after, "keep")
    return Published(before, after, rules.floor(before, after), rules.check_list(before) != rules.check_list(after))


def revived(after: Object, dropped_at: int) -> Published:
    """An object that comes back: of a table f = c, for whoever wrote to it has seen that it was gone."""
    floor: Literal["keep"] | int = after.version if isinstance(after, Table) else "keep"
    return Published(None, after, floor, dropped_at=dropped_at)


def move_elements(table: Table, moves: Sequence[Move], edits: Sequence[Edit], statement: str) -> Table:
    """`table` one version on, with its elements moved and edited. Elements are added by the planner, never here."""
    for move in moves:
        if phase_of(table, move.element) is not move.start:
            raise Superseded(f'{name_of(table, move.element)} of table "{table.name}" is no longer {move.start.value}')
    version = table.version + 1
    on_paths = tuple(move.element.id for move in moves if not _drops_column(move))
    steps = [(StepKind.ELEMENT_STATE, on_paths)] if on_paths else []
    moved = table
    for edit in edits:
        moved = _edited(moved, edit)
        steps.extend(edit.steps)
    for move in moves:
        if _drops_column(move):
            steps.append((StepKind.DROP_COLUMN, (move.element.id,)))
        replaced = replacements.taken_place(moved, move.element, move.goal)
        if replaced is not None:
            steps.append((StepKind.CHANGE_TYPE, (replaced,)))
        moved = msgspec.structs.replace(moved, **_moved(moved, move))
    if moved.layout != table.layout:  # however many steps, one layout
        moved = msgspec.structs.replace(moved, layout=numbered(moved.layout, table.layout))
    made = [Step(version=version, kind=kind, columns=ids, statement=statement) for kind, ids in steps]
    return new_version(moved, made)


def _drops_column(move: Move) -> bool:
    """Whether the move is the direct step that takes a column from users."""
    return move.element.kind is ElementKind.COLUMN and move.start is Phase.PUBLIC


def _edited(table: Table, edit: Edit) -> Table:
    columns = list(table.columns)
    for before, after in edit.columns:
        place = next((place for place, column in enumerate(columns) if column.id == before.id), None)
        wanted = {
            field: getattr(after, field)
            for field in Column.__struct_fields__
            if getattr(before, field) != getattr(after, field)
        }
        if place is None or any(getattr(columns[place], field) != getattr(before, field) for field in wanted):
            raise Superseded(f'column "{before.name}" of table "{table.name}" was changed')
        columns[place] = msgspec.structs.replace(columns[place], **wanted)
    types = {column.id: column.type for column in columns}
    stored = tuple((column, types.get(column, type_)) for column, type_ in table.layout.columns)
    layout = msgspec.structs.replace(table.layout, columns=stored)
    edited = msgspec.structs.replace(table, columns=tuple(columns), layout=layout)
    return edited if edit.compacted is None else _compacted(edited, *edit.compacted)


def _compacted(table: Table, rowset: int, layout: int) -> Table:
    """Rows may have come from elsewhere since they were walked, or be about to: from another rowset, as copies under
    another key. Then nothing is known of their layouts."""
    if table.rowset != rowset or table.next_key is not None:
        raise Superseded(f'table "{table.name}" has changed meanwhile')
    return msgspec.structs.replace(table, oldest_layout=max(layout, table.oldest_layout))


def _moved(table: Table, move: Move) -> dict[str, object]:
    """The fields of the table that the move changes."""
    if move.element.kind is ElementKind.COLUMN:
        if move.goal is Phase.ABSENT:
            return without_column(table, move.element.id)
        if replacements.taken_place(table, move.element, move.goal) is not None:
            return replacements.swapped(table, move.element.id)
        return {"columns": _in_phase(table.columns, move)}
    if move.element.kind is ElementKind.NOT_NULL:
        return {"columns": tuple(_required(found, move) for found in table.columns)}
    if move.element.kind is ElementKind.TRANSFORMATION:
        made = table.transformed
        kept = made.targets if made is not None and made.kept and move.goal is Phase.PUBLIC else ()
        return {"transformed": None, "crossing": None, "followed_by": (*table.followed_by, *kept)}
    if move.element.kind in lock_elements.KINDS:
        return lock_elements.moved(table, move.element, move.goal)
    if move.element.kind is ElementKind.PRIMARY_KEY:
        return key_elements.moved(table, move.goal)
    if move.element.kind is ElementKind.FOREIGN_KEY and move.goal is Phase.ABSENT:
        return _without_key(table, move)
    field = _FIELDS[move.element.kind]
    return {field: _in_phase(getattr(table, field), move)}


def _without_key(table: Table, move: Move) -> dict[str, object]:
    """Without a foreign key: the index that it owns is another one's now, or goes with it if it goes in one step."""
    if move.start is Phase.PUBLIC:
        return without_keys(table, {move.element.id})
    kept = (key for key in table.foreign_keys if key.id != move.element.id)
    return {"foreign_keys": tuple(heirs(kept, handed_on(table, {move.element.id})))}


def _required(column: Column, move: Move) -> Column:
    if column.id != move.element.id:
        return column
    if move.goal is Phase.ABSENT:
        return msgspec.structs.replace(column, not_null=None, not_null_yields=False)
    public = move.goal is Phase.PUBLIC
    yields = column.not_null_yields and not public
    return msgspec.structs.replace(column, not_null=state_in(move.goal), nullable=not public, not_null_yields=yields)


_FIELDS = {ElementKind.INDEX: "indexes", ElementKind.CHECK: "checks", ElementKind.FOREIGN_KEY: "foreign_keys"}


def _in_phase(listed: tuple[msgspec.Struct, ...], move: Move) -> tuple[msgspec.Struct, ...]:
    if move.goal is Phase.ABSENT:
        return tuple(found for found in listed if found.id != move.element.id)  # type: ignore[attr-defined] # elements have ids
    return tuple(
        _with_state(found, move.goal) if found.id == move.element.id else found  # type: ignore[attr-defined] # as above
        for found in listed
    )


def _with_state(element: msgspec.Struct, phase: Phase) -> msgspec.Struct:
    changes: dict[str, object] = {"state": state_in(phase)}
    if phase is Phase.PUBLIC and isinstance(element, Index | Check | ForeignKey):
        changes["yields"] = False
        if not isinstance(element, Index):
            changes["not_valid"] = False
    return msgspec.structs.replace(element, **changes)
