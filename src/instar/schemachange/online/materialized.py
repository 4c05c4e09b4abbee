"""CREATE and DROP MATERIALIZED VIEW, and having one populated anew: a job of the same stages as a join's or split's.

A materialized view is a view on a table that nobody can name, which is made of the sources as the target of a join is:
unseen, from an image at a snapshot and the log from there on. The switch does not take the sources' place: it shows the
view, and from then on the worker goes on following the log (keeping.py). The sources stay logged whole for that.

The view's query is on the table: what a sum or an average is of what is stored, and which rows of the full outer join
the kind of join has.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from instar import errors
from instar.catalog.descriptors import (
    Column,
    Index,
    IndexColumn,
    Layout,
    MadeByGrouping,
    Materialized,
    Step,
    StepKind,
    Table,
    Transformed,
    Unseen,
    View,
)
from instar.catalog.descriptors import GroupedValue as StoredValue
from instar.catalog.naming import generated_name
from instar.schemachange import wanted as want
from instar.schemachange.creation import FIRST_LAYOUT
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.online.planning import filling, require_exact, require_source
from instar.schemachange.online.planning_join import joined_rows
from instar.schemachange.online.target_rows import R_PART, S_PART, made_by_join
from instar.schemachange.stages import Change, Move, Plan, Stage
from instar.types import BIGINT, BYTEA, INTEGERS, NUMERIC, TEXT, Kind

_SUMMED = INTEGERS | {Kind.NUMERIC}
# A view has caught up with the log when no more is left of it than comes to about so many rows.
_CATCH_UP = want.TransformationOptions(pause_rows=1_000)


def create_materialized_view(draft: Draft, wanted: want.CreateMaterializedView) -> Plan:
    """The plan of CREATE MATERIALIZED VIEW. Errors as of `require_source`; 42P07; 0A000 for types that sums or equality
    are not exact of."""
    draft.require_free(wanted.name)
    sources = [draft.find(Table, name) for name in wanted.tables]
    for source in sources:
        require_source(draft, source, "a materialized view of")
    if isinstance(wanted.made_by, want.Joined):
        storage, query = _joined(draft, wanted.name, wanted.made_by, sources)
    else:
        storage, query = _grouped(draft, wanted.name, wanted.made_by, sources[0])
    view = View(
        id=draft.ids.new_id(),
        name=wanted.name,
        version=1,
        query=query,
        columns=wanted.columns,
        depends_on=_depends(wanted.depends_on, storage),
        materialized=Materialized(storage=storage.id, definition=wanted.definition),
    )
    return _plan(draft, view, storage, sources)


def populate_anew(draft: Draft, wanted: want.PopulateAnew) -> Plan:
    """The plan of populating a materialized view anew beside, with the old rows there meanwhile. Errors as of
    `require_source`."""
    view = draft.find(View, wanted.name)
    if view.materialized is None:
        raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{wanted.name}" is not a materialized view')
    old = draft.table(view.materialized.storage)
    assert old.unseen is not None
    new_id = draft.ids.new_id()
    made = msgspec.structs.replace(old.unseen.made, target=new_id)
    indexes = [msgspec.structs.replace(index, rowset=draft.ids.new_rowset(new_id)) for index in old.indexes]
    storage = msgspec.structs.replace(
        old,
        id=new_id,
        name=view.name,
        version=1,
        rowset=draft.ids.new_rowset(new_id),
        indexes=tuple(indexes),
        steps=(Step(version=1, kind=StepKind.CREATE_TABLE, statement=draft.statement),),
        unseen=msgspec.structs.replace(old.unseen, made=made, nameless=True),
    )
    kept = tuple(one for one in view.depends_on if one[0] != old.id)
    anew = msgspec.structs.replace(
        view,
        version=view.version + 1,
        query=view.query.replace(f'"#{old.id}"', f'"#{new_id}"'),
        depends_on=_depends(kept, storage),
        materialized=msgspec.structs.replace(view.materialized, storage=new_id),
    )
    sources = [draft.table(number) for number in made.sources]
    for source in sources:
        require_source(draft, source, "a materialized view of")
    return _plan(draft, anew, storage, sources)


def _depends(
    depends_on: tuple[tuple[int, tuple[int, ...]], ...], storage: Table
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """What the definition reads, and the table that has the rows: a column of either that is used cannot go."""
    own = (storage.id, tuple(column.id for column in storage.columns if not column.hidden))
    return (*depends_on, own)


def _plan(draft: Draft, view: View, storage: Table, sources: Sequence[Table]) -> Plan:
    draft.create(storage)
    elements = []
    for source in sources:
        elements.append(Element(ElementKind.TRANSFORMATION, source.id, source.next_id))
        draft.edit(
            source.id,
            (StepKind.ELEMENT_STATE, (source.next_id,)),
            transformed=Transformed(id=source.next_id, targets=(storage.id,), kept=True),
            next_id=source.next_id + 1,
        )
    assert storage.unseen is not None
    rows = sum(draft.facts.estimated_rows(source) for source in sources)
    work = filling(elements[0], (storage,), rows, storage.unseen.made.pause_rows)
    first = Stage(moves=tuple(Move(found, Phase.ABSENT, Phase.WRITE_ONLY) for found in elements), revertible=True)
    filled = Stage(fences=tuple(source.id for source in sources), work=work, revertible=True)
    switch = Stage(moves=tuple(Move(found, Phase.WRITE_ONLY, Phase.PUBLIC) for found in elements), shows=(view,))
    return Plan(draft.statement, draft.publication(), (first, filled, switch), tuple(draft.notices), Change(()))


def drop_materialized(draft: Draft, view: View) -> None:
    """Take out a materialized view with its rows; the sources are logged whole for it no longer."""
    assert view.materialized is not None
    storage = draft.table(view.materialized.storage)
    assert storage.unseen is not None
    for number in storage.unseen.made.sources:
        source = draft.view.by_id(number)
        if isinstance(source, Table) and storage.id in source.followed_by:
            left = tuple(found for found in source.followed_by if found != storage.id)
            draft.edit(source.id, followed_by=left)
    draft.drop(view)
    draft.drop(storage)


def require_unfollowed(draft: Draft, table: Table, what: str) -> None:
    """2BP01 naming the materialized views on a table that is to get other rows altogether, which no log tells of."""
    views = [
        view.name
        for view in draft.view.views()
        if view.materialized is not None and view.materialized.storage in table.followed_by
    ]
    if views:
        raise errors.error(
            errors.DEPENDENT_OBJECTS,
            f"cannot {what} table {table.name} because other objects depend on it",
            detail="\n".join(f"materialized view {name} follows table {table.name}" for name in views),
            hint="Drop them first, and create them again.",
        )


# --- a grouping ------------------------------------------------------------------------------------------------------


def _grouped(draft: Draft, name: str, grouped: want.Grouped, source: Table) -> tuple[Table, str]:
    """The table that has the rows, and the view's query on it."""
    by_id = {column.id: column for column in source.columns}
    columns: list[Column] = []

    def add(name: str, type_: object, *, nullable: bool = False) -> int:
        columns.append(Column(id=len(columns) + 1, name=name, type=type_, nullable=nullable))  # type: ignore[arg-type] # a Type
        return len(columns)

    groups = []
    for number in grouped.groups:
        column = by_id[number]
        require_exact(column, "grouping by column")
        groups.append((number, add(column.name, column.type, nullable=True)))
    counter = add("count", BIGINT)
    values = []
    averaged = {output.place for output in grouped.outputs if output.what == "avg"}
    for place, (number, summed) in enumerate(grouped.values):
        column = by_id[number]
        count = add(f"{column.name} count", BIGINT)
        if not summed:
            values.append(StoredValue(number, count))
            continue
        if column.type.kind not in _SUMMED:
            raise errors.unsupported(
                f'a sum or average of column "{column.name}" of type {column.type} in a materialized view'
            )
        is_numeric = column.type.kind is Kind.NUMERIC
        total = add(f"{column.name} sum", TEXT if is_numeric else NUMERIC)
        nans = add(f"{column.name} NaN", BIGINT)
        scales = add(f"{column.name} scales", TEXT) if column.type == NUMERIC else None
        # The view's query could not divide the sum, which may have too many digits for a numeric.
        mean = add(f"{column.name} mean", NUMERIC, nullable=True) if is_numeric and place in averaged else None
        values.append(StoredValue(number, count, total, nans, scales, mean))
    made = MadeByGrouping(
        source=source.id,
        target=draft.ids.new_id(),
        groups=tuple(groups),
        values=tuple(values),
        counter=counter,
        condition=grouped.condition,
        reads=grouped.reads,
    )
    storage = _storage(draft, name, columns, made)
    return storage, _query_of_groups(made, grouped.outputs, {one.id: one for one in source.columns})


def _storage(draft: Draft, name: str, columns: list[Column], made: MadeByGrouping) -> Table:
    """The table of a grouping: an index on what it groups by, since its key cannot be asked for."""
    key = Column(id=len(columns) + 1, name="group", type=BYTEA, nullable=False, hidden=True)
    parts = tuple(IndexColumn(column) for _, column in made.groups)
    indexes: tuple[Index, ...] = ()
    if parts:
        label = generated_name(name, [columns[part.column - 1].name for part in parts], "idx", draft.name_taken)
        rowset = draft.ids.new_rowset(made.target)
        indexes = (Index(id=key.id + 1, name=label, columns=parts, rowset=rowset),)
    everything = (*columns, key)
    return Table(
        id=made.target,
        name=name,
        version=1,
        columns=everything,
        primary_key=(key.id,),
        primary_key_name="",
        rowset=draft.ids.new_rowset(made.target),
        layout=Layout(FIRST_LAYOUT, tuple((column.id, column.type) for column in everything)),
        oldest_layout=FIRST_LAYOUT,
        indexes=indexes,
        steps=(Step(version=1, kind=StepKind.CREATE_TABLE, statement=draft.statement),),
        next_id=key.id + 2,
        unseen=Unseen(made=made, shown=tuple(column.id for column in everything)),
    )


def _query_of_groups(made: MadeByGrouping, outputs: Sequence[want.GroupedOutput], source: dict[int, Column]) -> str:
    """The view's query: SQL text by ids."""
    return f'SELECT {", ".join(_output(made, one, source) for one in outputs)} FROM "#{made.target}" AS "v"'


def _output(made: MadeByGrouping, output: want.GroupedOutput, source: dict[int, Column]) -> str:
    if output.what == "group":
        return f'"v"."#{made.groups[output.place][1]}"'
    if output.what == "rows":
        return f'"v"."#{made.counter}"'
    value = made.values[output.place]
    count, total, nans = (f'"v"."#{column}"' for column in (value.count, value.total, value.nans))
    if output.what == "count":
        return count
    kind = source[value.column].type.kind
    number = f"CAST({total} AS numeric)" if kind is Kind.NUMERIC else total
    if output.what == "avg":
        number = f"{number} / CAST({count} AS numeric)" if value.mean is None else f'"v"."#{value.mean}"'
    elif kind in INTEGERS and kind is not Kind.BIGINT:
        number = f"CAST({number} AS bigint)"
    if kind is not Kind.NUMERIC:
        return f"CASE WHEN {count} > 0 THEN {number} END"
    return f"CASE WHEN {nans} > 0 THEN CAST('NaN' AS numeric) WHEN {count} > 0 THEN {number} END"


# --- a join ----------------------------------------------------------------------------------------------------------


def _joined(draft: Draft, name: str, joined: want.Joined, sources: Sequence[Table]) -> tuple[Table, str]:
    """As `_grouped`: the full outer join of both, of which the query has what the kind of join has."""
    columns: list[want.JoinedColumn] = []
    for side, number in dict.fromkeys(found for output in joined.outputs for found in output):
        column = next(column for column in sources[side].columns if column.id == number)
        label = column.name
        if any(found.name == label for found in columns):
            label = generated_name(label, (), str(side), lambda taken: any(found.name == taken for found in columns))
        columns.append(want.JoinedColumn(label, **{"rs"[side]: column.name}))
    storage = joined_rows(
        draft, want.JoinTables(sources[0].name, sources[1].name, joined.on, name, tuple(columns), _CATCH_UP)
    )
    made = made_by_join(storage)
    parts = (R_PART, S_PART) if made.r == sources[0].id else (S_PART, R_PART)
    in_target = [dict(made.r_columns if made.r == source.id else made.s_columns) for source in sources]
    outputs = []
    for output in joined.outputs:
        found = [f'"v"."#{in_target[side][number]}"' for side, number in output]
        outputs.append(found[0] if len(found) == 1 else f"COALESCE({', '.join(found)})")
    both = R_PART | S_PART
    shown = {"inner": {both}, "left": {both, parts[0]}, "right": {both, parts[1]}, "full": {R_PART, S_PART, both}}
    listed = ", ".join(map(str, sorted(shown[joined.kind])))
    where = "" if joined.kind == "full" else f' WHERE "v"."#{made.parts}" IN ({listed})'
    return storage, f'SELECT {", ".join(outputs)} FROM "#{storage.id}" AS "v"{where}'
