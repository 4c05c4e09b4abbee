"""ALTER TABLE ... SPLIT and JOIN: what is missing is said before anything starts, then the targets are made, unseen.

The statement's own transaction makes the targets and has the sources logged whole (rule 3). A job fills the targets,
follows the log, and takes the sources' place by them in one commit (switch.py). One change at a time: until then the
sources can be written to, but not altered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from instar import errors
from instar.catalog.descriptors import Column, MadeByJoin, MadeBySplit, StepKind, Table, Transformed
from instar.catalog.system import relation_names
from instar.encoding.keys import key_tag
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.online.crossing_join import marks
from instar.schemachange.online.foreign_keys import Carried, Made, carried
from instar.schemachange.online.torn_keys import torn
from instar.schemachange.stages import Change, Move, Plan, Reorganization, Stage
from instar.schemachange.states import Work
from instar.transformations.records import Source
from instar.types import Kind

_INEXACT = frozenset({Kind.REAL, Kind.DOUBLE})


def plan_transformation(
    draft: Draft,
    what: Made,
    sources: Iterable[Table],
    targets: Iterable[Table],
    *,
    keep_views: bool,
    switch: Stage | None = None,
) -> Plan:
    """The plan of a join or split whose targets are described, and whose foreign keys can be carried over. `switch`:
    its last stage, if that is not just to drop the sources and to show the targets. `keep_views`: it also leaves a view
    under the name of each source."""
    sources, targets = tuple(sources), tuple(targets)
    made = tuple(target.id for target in targets)
    for target in targets:
        draft.create(target)
    elements = []
    for source in sources:
        elements.append(Element(ElementKind.TRANSFORMATION, source.id, source.next_id))
        draft.edit(
            source.id,
            (StepKind.ELEMENT_STATE, (source.next_id,)),
            transformed=Transformed(id=source.next_id, targets=made),
            next_id=source.next_id + 1,
        )
    names = tuple(source.id for source in sources)
    rows = sum(draft.facts.estimated_rows(source) for source in sources)
    first = Stage(moves=tuple(Move(found, Phase.ABSENT, Phase.WRITE_ONLY) for found in elements), revertible=True)
    filled = Stage(fences=names, work=filling(elements[0], targets, rows, what.pause_rows), revertible=True)
    stages = [first, filled]
    switch = switch or Stage(drops=names, reveals=made)
    if keep_views:
        kept = tuple((draft.ids.new_id(), source.id) for source in sources)
        switch = msgspec.structs.replace(switch, keeps=kept)
    if what.strategy == "block":
        again = Reorganization(Work.FOLLOW, elements[0], what.pause_rows)
        stages.append(Stage(work=(again,), revertible=True, closes=names))
        switch = msgspec.structs.replace(switch, grace=what.grace)
    stages.append(switch)
    if what.strategy == "commit":
        _require_told(what, sources, targets)
        stages[-1] = msgspec.structs.replace(switch, grace=0)  # who would be refused then goes on
        ends = [Element(ElementKind.TRANSFORMATION, target.id, target.next_id) for target in targets]
        moves = tuple(Move(found, Phase.WRITE_ONLY, Phase.PUBLIC) for found in ends)
        stages.append(Stage(moves=moves, grace=what.grace))
    return Plan(draft.statement, draft.publication(), tuple(stages), tuple(draft.notices), Change(()))


def filling(source: Element, targets: Iterable[Table], rows: int, pause_rows: int) -> tuple[Reorganization, ...]:
    """The work of filling targets with about so many rows, up to what is left for the switch. The image has only rows:
    their index entries are put after it, in the order of each index, which is another than that of the rows."""
    indexes = [Element(ElementKind.INDEX, target.id, index.id) for target in targets for index in target.indexes]
    return (
        Reorganization(Work.IMAGE, source, rows),
        *(Reorganization(Work.ENTRIES, index, rows) for index in indexes),
        Reorganization(Work.FOLLOW, source, pause_rows),
    )


def _require_told(made: Made, sources: tuple[Table, ...], targets: tuple[Table, ...]) -> None:
    """0A000 if changes of the sources could not be made changes of the targets after the switch: what that takes has to
    be in the tables as they are seen."""
    if isinstance(made, MadeBySplit):
        if made.becomes is not None:
            raise errors.unsupported("SPLIT IN PLACE with the strategy 'commit'")
        needed = {column for target in targets for column in made.on}
    else:
        for source in (Source.R, Source.S):
            marks(made, sources, source)
        needed = {column.id for column in targets[0].columns if column.id not in (*targets[0].primary_key, made.parts)}
    for target in targets:
        for column in target.columns:
            if column.hidden and column.id in needed:
                raise errors.error(
                    errors.FEATURE_NOT_SUPPORTED,
                    f'the strategy \'commit\' is not supported without column "{column.name}" in table "{target.name}"',
                    hint="Have the columns in it by which rows are found: primary keys, join or split columns.",
                )


def require_source(draft: Draft, table: Table, wanted: str = "joining or splitting") -> None:
    """What a table must have, and must not, to be joined or split, or what else is `wanted` of it: 55000, 2BP01 naming
    what is in the way, 0A000."""
    draft.require_settled(table)
    if not table.primary_key_name:
        raise errors.error(
            errors.OBJECT_NOT_READY,
            f'table "{table.name}" has no primary key, by which its rows could be followed',
            hint="Add one first (ALTER TABLE ... ADD PRIMARY KEY).",
        )
    if draft.is_new(table) or draft.facts.has_buffered(table):
        raise errors.unsupported(f'{wanted} table "{table.name}", made or written by this transaction,')
    if table.locks:
        raise errors.unsupported(f'{wanted} table "{table.name}", which has optimistic locks,')


def require_ungenerated(table: Table) -> None:
    """0A000 naming a generated column: what it is made of may come to stand in another table."""
    for column in table.columns:
        if column.generated:
            raise errors.unsupported(
                f'joining or splitting table "{table.name}", which has generated column "{column.name}",'
            )


def require_no_views(draft: Draft, table: Table, gone: Iterable[int] | None = None) -> None:
    """2BP01 naming the views on the table, or on the columns of it that are `gone`."""
    columns = None if gone is None else frozenset(gone)
    views = [
        view
        for view in draft.view.views()
        for used, read in view.depends_on
        if used == table.id and (columns is None or not columns.isdisjoint(read))
    ]
    if views:
        raise errors.error(
            errors.DEPENDENT_OBJECTS,
            f"cannot join or split table {table.name} because other objects depend on it",
            detail="\n".join(f"{view.kind} {view.name} depends on table {table.name}" for view in views),
            hint="Drop them first, and make them anew on the new tables.",
        )


def require_carried(
    draft: Draft, made: Made, sources: Sequence[Table], shown: Sequence[Table], *, keep_views: bool
) -> None:
    """2BP01 naming the foreign keys that none of `shown`, the targets as they will be, can have, or that cannot refer
    to one, or that would not say there what they said; notices of those that go since their tables become one."""
    ids = {source.id for source in sources}
    keys = list(carried(made, sources, shown, draft.table))
    left = [_named(draft, found) for found in keys if found.after is None]
    left += [f"{_named(draft, found)}: {why}" for found, why in torn(made, sources, shown, keys, keep_views=keep_views)]
    if left:
        both = ", or have a column of each table instead of one of both" if isinstance(made, MadeByJoin) else ""
        raise errors.error(
            errors.DEPENDENT_OBJECTS,
            "foreign keys cannot be carried over to the new tables",
            detail="\n".join(left),
            hint=f"Drop them first{both}.",
        )
    for source in sources:
        for key in source.foreign_keys:
            if key.parent in ids and key.parent != source.id:
                draft.notices.append(f'constraint "{key.name}" goes: its tables become one')


def _named(draft: Draft, found: Carried) -> str:
    parent = draft.table(found.key.parent).name
    return f"constraint {found.key.name} on table {found.holder.name}, which refers to table {parent}"


def columns_of(table: Table, names: Iterable[str], what: str) -> tuple[Column, ...]:
    """The columns of these names; 42703 if one is not there, 42701 if one is named twice."""
    found: list[Column] = []
    for name in names:
        column = next((column for column in table.columns if column.name == name and not column.hidden), None)
        if column is None:
            raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" of relation "{table.name}" does not exist')
        if column in found:
            raise errors.error(errors.DUPLICATE_COLUMN, f'column "{name}" appears twice in {what}')
        found.append(column)
    return tuple(found)


def require_exact(column: Column, what: str) -> None:
    """0A000 for a type whose equal values may differ, or that can be no key."""
    key_tag(column.type.kind, column.name)
    if column.type.kind in _INEXACT:
        raise errors.unsupported(f'{what} "{column.name}" of type {column.type}')


def take_names(draft: Draft, target: Table, sources: Iterable[Table]) -> Table:
    """The target, with what it takes of its sources' names noted; 42P07 if another relation has a name of it."""
    assert target.unseen is not None  # the caller makes it so
    leaving = {name for source in sources for name in relation_names(source)}
    names = relation_names(target)
    for name in sorted(names - leaving):
        draft.require_free(name)
    taken = tuple(sorted(names & leaving))
    return msgspec.structs.replace(target, unseen=msgspec.structs.replace(target.unseen, takes=taken))
