"""What publishing a stage does to the descriptors: the next version of each table that it concerns.

A stage is published by one store commit, together with the job's record if a job does it (rule 9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from instar.schemachange.elements import ElementKind, Phase, name_of, phase_of, state_in
from instar.schemachange.key_elements import without_column
from instar.schemachange.next_layout import numbered
from instar.schemachange.online.foreign_keys import Carried, carried, is_kept, with_keys
from instar.schemachange.online.kept_views import kept_view, targets_of
from instar.schemachange.online.seeing import seen
from instar.schemachange.probed_indexes import handed_on, heirs, without_keys
from instar.schemachange.stages import Edit, Move, Publication, Published, Stage, Superseded

# So many steps of a table are listed: the descriptor is read and written with every change. Of those before them one is
# enough to judge who crosses them: see `listed`.
KEPT_STEPS = 16


def listed(table: Table, *steps: Step) -> dict[str, object]:
    """The fields of `table` for the validators, with these steps as well: the newest ones, and the last of the others
    that is incompatible with what was written before it. All the rest of the others can be crossed by anybody."""
    kept = (*table.steps, *steps)
    left = [step for step in kept[:-KEPT_STEPS] if step.kind in rules.INCOMPATIBLE]
    return {"steps": kept[-KEPT_STEPS:], "forgotten": left[-1] if left else table.forgotten}


def new_version(table: Table, steps: list[Step], **changes: object) -> Table:
    """`table` one version on."""
    return msgspec.structs.replace(table, version=table.version + 1, **listed(table, *steps), **changes)


class _Tables:
    """The tables that a stage concerns, by id: as they were before it, and as it leaves them."""

    def __init__(self, lookup: Callable[[int], Object | None], statement: str) -> None:
        self.before: dict[int, Table] = {}
        self.after: dict[int, Table] = {}
        self._lookup = lookup
        self._statement = statement

    def current(self, number: int) -> Table:
        """The table with what the stage has done to it so far."""
        if number not in self.after:
            found = self._lookup(number)
            if not isinstance(found, Table):
                raise Superseded(f"table {number} was dropped")
            self.before[number] = self.after[number] = found
        return self.after[number]

    def step(self, version: int, kind: StepKind, columns: tuple[int, ...] = ()) -> Step:
        """A step of this stage's statement."""
        return Step(version=version, kind=kind, columns=columns, statement=self._statement)

    def move(self, number: int, stage: Stage) -> None:
        """The stage's moves and edits of the table."""
        moves = [move for move in stage.moves if move.element.table == number]
        edits = [edit for edit in stage.edits if edit.table == number]
        self.after[number] = move_elements(self.current(number), moves, edits, self._statement)

    def change(self, number: int, **changes: object) -> None:
        """Change fields, in the version that the stage gives the table anyway or in one of its own."""
        now = self.current(number)
        if now.version == self.before[number].version:
            self.after[number] = new_version(now, [], **changes)
        else:
            self.after[number] = msgspec.structs.replace(now, **changes)

    def tell(self, number: int, **changes: object) -> None:
        """The same for a table that has to do with another one that changes, with the step that says so."""
        self.change(number, **changes)
        now = self.after[number]
        step = self.step(now.version, StepKind.ELEMENT_STATE)
        self.after[number] = msgspec.structs.replace(now, **listed(now, step))


def advance(lookup: Callable[[int], Object | None], stage: Stage, statement: str) -> Publication:
    """What publishing `stage` does to the descriptors that `lookup` gives. Superseded if they no longer fit it."""
    tables = _Tables(lookup, statement)
    for number in dict.fromkeys((*(move.element.table for move in stage.moves), *(one.table for one in stage.edits))):
        tables.move(number, stage)
    for move in stage.moves:
        if move.element.kind is ElementKind.FOREIGN_KEY:
            _tell_parent(move, tables)
        elif move.element.kind is ElementKind.PRIMARY_KEY and move.goal is Phase.PUBLIC:
            _tell_relatives(tables.before[move.element.table], tables)
    for number in stage.closes:
        _close(number, tables)
    if stage.reveals:
        _reveal(stage, tables)
    shown = [_show(view, lookup(view.id), tables) for view in stage.shows]
    drops = (*stage.drops, *(number for number, _ in shown if number is not None))
    for number in drops:
        _tell_parents(lookup(number), drops, tables)
    dropped = [found for number in drops if (found := lookup(number)) is not None]
    before = tables.before
    kept = {key: found for key, found in tables.after.items() if key not in drops and found != before[key]}
    published = [publish(before[number], found) for number, found in kept.items()]
    published += [found for _, found in shown]
    published.extend(publish(None, view) for view in _kept_views(stage, tables))
    freed = {rowset for key, found in kept.items() for rowset in rules.rowsets(before[key]) - rules.rowsets(found)}
    freed.update(rowset for found in dropped if isinstance(found, Table) for rowset in rules.rowsets(found))
    return Publication(tuple(published), dropped=tuple(dropped), freed=tuple(sorted(freed)))


def _close(number: int, tables: _Tables) -> None:
    """A source closes: whoever commits to it from then on has seen that, or has written to it before."""
    source = tables.current(number)
    if source.transformed is None:
        raise Superseded(f'table "{source.name}" is no longer being joined or split')
    step = tables.step(source.version + 1, StepKind.ELEMENT_STATE, (source.transformed.id,))
    closing = msgspec.structs.replace(source.transformed, closing=True)
    tables.after[number] = new_version(source, [step], transformed=closing)


def _reveal(stage: Stage, tables: _Tables) -> None:
    """Targets of a join or split come to be seen, with the foreign keys that their sources have and that refer to
    these; the tables on the other sides hear of it. A source that becomes a target itself has lost its columns."""
    unseen = [tables.current(number) for number in stage.reveals]
    assert unseen[0].unseen is not None
    made = unseen[0].unseen.made
    assert not isinstance(made, MadeByGrouping)  # its target stays unseen
    staying = _renamed(made, tables)
    sources = [tables.current(number) for number in made.sources]
    kept = tuple(sources) if made.strategy == "commit" else ()
    shown = [msgspec.structs.replace(target, **seen(target, kept)) for target in unseen]
    befores = [tables.before[source.id] for source in sources]
    keys = list(carried(made, befores, [*staying, *shown], tables.current))
    if any(found.after is None for found in keys):
        raise Superseded("a foreign key has come that cannot be carried over")
    moved = [(found.table, found.after) for found in keys if not any(is_kept(found, table) for table in staying)]
    for target in shown:
        own = [key for table, key in moved if table == target.id and key is not None]
        children = [table for table, key in moved if table is not None and key is not None and key.parent == target.id]
        step = tables.step(target.version + 1, StepKind.CREATE_TABLE)
        tables.after[target.id] = new_version(target, [step], **with_keys(made, target, own, children))
    _tell_around([found for found in keys if (found.table, found.after) in moved], shown, tables)


def _show(view: View, known: Object | None, tables: _Tables) -> tuple[int | None, Published]:
    """A materialized view comes to be there, or has its rows in another table: which one goes for that, and the view.
    The table has no name any more, since the view has it."""
    assert view.materialized is not None
    storage = tables.current(view.materialized.storage)
    assert storage.unseen is not None
    tables.change(storage.id, unseen=msgspec.structs.replace(storage.unseen, nameless=True))
    if view.version == 1:
        return None, publish(None, view)
    if not isinstance(known, View) or known.materialized is None:
        raise Superseded(f'materialized view "{view.name}" was dropped')
    gone = known.materialized.storage
    for number in storage.unseen.made.sources:
        left = tuple(found for found in tables.current(number).followed_by if found != gone)
        tables.change(number, followed_by=left)
    return gone, publish(known, msgspec.structs.replace(view, name=known.name, version=known.version + 1))


def _kept_views(stage: Stage, tables: _Tables) -> Iterator[View]:
    """The views that the names of the sources stay as."""
    if not stage.keeps:
        return
    before, after = tables.before, tables.after
    unseen = before[stage.reveals[0]].unseen
    assert unseen is not None  # it was revealed just now
    made = unseen.made
    assert not isinstance(made, MadeByGrouping)
    kept = Kept(made=made, sources=tuple(before[source] for source in made.sources))
    for number, source in stage.keeps:
        yield kept_view(number, before[source], kept, [after[target] for target in targets_of(made)])


def _renamed(made: MadeBySplit | MadeByJoin, tables: _Tables) -> list[Table]:
    """The source of a split in place, as it is called from now on; none of others."""
    if not isinstance(made, MadeBySplit) or made.becomes is None:
        return []
    source = tables.current(made.source)
    if source.name != made.becomes:
        steps = listed(source, tables.step(source.version, StepKind.RENAME_TABLE))
        tables.after[source.id] = source = msgspec.structs.replace(source, name=made.becomes, **steps)
    return [source]


def _tell_around(keys: Sequence[Carried], targets: Sequence[Table], tables: _Tables) -> None:
    """The tables on the other sides of foreign keys that are others' now."""
    shown = {target.id for target in targets}
    around = {found.after.parent for found in keys if found.after is not None}
    around |= {found.table for found in keys if found.table is not None}
    for number in sorted(around - shown):
        other = tables.current(number)
        mine = {found.key.id: found.after for found in keys if found.table == number and found.after is not None}
        changed = tuple(mine.get(key.id, key) for key in other.foreign_keys)
        referring = [found.table for found in keys if found.after is not None and found.after.parent == number]
        referred = (*other.referenced_by, *(table for table in referring if table in shown and table is not None))
        tables.tell(number, foreign_keys=changed, referenced_by=tuple(dict.fromkeys(referred)))


def _tell_parents(child: Object | None, gone: Sequence[int], tables: _Tables) -> None:
    """The tables that a table which goes refers to hear of it."""
    if not isinstance(child, Table):
        return
    for number in sorted({key.parent for key in child.foreign_keys}.difference(gone)):
        left = tuple(found for found in tables.current(number).referenced_by if found != child.id)
        tables.tell(number, referenced_by=left)


def _tell_parent(move: Move, tables: _Tables) -> None:
    """A foreign key belongs to both tables: a step of it gives the parent a version of its own too (rule 27)."""
    child = tables.after[move.element.table]
    key = next(found for found in tables.before[child.id].foreign_keys if found.id == move.element.id)
    if move.goal is Phase.PUBLIC and not key.yields:
        return  # writers of both sides have enforced it before
    parent = tables.current(key.parent)
    refers = any(found.parent == parent.id for found in child.foreign_keys)
    left = tuple(found for found in parent.referenced_by if refers or found != child.id)
    tables.tell(parent.id, referenced_by=left)


def _tell_relatives(swapped: Table, tables: _Tables) -> None:
    """Writers around a table probe its rowsets: when those are replaced, they are told; and so are its foreign keys'
    other sides which key they refer to from now on."""
    assert swapped.next_key is not None  # it was moved just now
    for related in key_elements.relatives(swapped):
        keys = key_elements.foreign_keys_after(tables.current(related), swapped, swapped.next_key)
        tables.tell(related, foreign_keys=keys)


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
        moved = msgspec.structs.replace(moved, layout=numbered(moved.layout, table))
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
        return without_not_null(column)
    public = move.goal is Phase.PUBLIC
    return msgspec.structs.replace(
        column,
        not_null=state_in(move.goal),
        nullable=not public,
        not_null_yields=column.not_null_yields and not public,
        not_null_not_valid=column.not_null_not_valid and not public,
    )


def without_not_null(column: Column) -> Column:
    """The column as one that may be NULL."""
    return msgspec.structs.replace(
        column, nullable=True, not_null=None, not_null_yields=False, not_null_not_valid=False, not_null_name=None
    )


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
