"""What adds: tables, columns, constraints and indexes, with PostgreSQL's checks and generated names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Listing

import msgspec
from msgspec.structs import replace

from instar import errors
from instar.catalog.descriptors import (
    Check,
    Column,
    Index,
    IndexColumn,
    Layout,
    State,
    Step,
    StepKind,
    Table,
    View,
)
from instar.catalog.naming import generated_name, has_not_null, not_null_named, not_null_names
from instar.encoding.keys import key_tag
from instar.schemachange import wanted as want
from instar.schemachange.alteration import rename_constraint
from instar.schemachange.draft import Draft, busy, unfinished
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.foreign_keys import add_foreign_key
from instar.schemachange.generation import generate
from instar.schemachange.positions import layout_of, place_of
from instar.schemachange.sequences import create_owned
from instar.schemachange.stages import Scheduled
from instar.schemachange.states import Work, first_state
from instar.types import BIGINT, INTEGERS

FIRST_LAYOUT = 1
MOST_COLUMNS = 1600  # as in PostgreSQL
ROW_ID = "rowid"  # name of the hidden column of a table without a primary key; never found by name


def create_table(draft: Draft, wanted: want.CreateTable) -> None:
    """CREATE TABLE: one direct step; its constraints are public from the start, since nobody can have rows in it."""
    draft.require_free(wanted.name)
    require_columns(len(wanted.columns))
    table_id = draft.ids.new_id()
    wanted = _without_repeats(wanted)
    columns = tuple(_column(draft, table_id, wanted.name, number, new) for number, new in enumerate(wanted.columns, 1))
    _require_distinct(wanted.name, columns)
    key_name = ""
    if wanted.primary_key is None:
        columns = (*columns, row_id(draft, len(columns) + 1))
        key: tuple[int, ...] = (columns[-1].id,)
    else:
        columns, key = _primary_key(wanted, columns)
        key_name = wanted.primary_key_name or draft.relation_name(wanted.name, (), "pkey")
        if wanted.primary_key_name is not None:
            draft.require_free(wanted.primary_key_name)
    draft.create(
        Table(
            id=table_id,
            name=wanted.name,
            version=1,
            columns=columns,
            primary_key=key,
            primary_key_name=key_name,
            rowset=draft.ids.new_rowset(table_id),
            layout=Layout(FIRST_LAYOUT, tuple((column.id, column.type) for column in columns)),
            oldest_layout=FIRST_LAYOUT,
            steps=(Step(version=1, kind=StepKind.CREATE_TABLE, statement=draft.statement),),
            next_id=len(columns) + 1,
        )
    )
    new = dict(enumerate(wanted.columns, 1))
    _freeze_defaults(draft, table_id, new)
    generate(draft, table_id, new)
    _require_own_names(draft, table_id)
    # Unique keys first: a foreign key of the table to itself may refer to one.
    for constraint in sorted(wanted.constraints, key=lambda found: isinstance(found, want.ForeignKey)):
        add_constraint(draft, table_id, constraint)


def _require_own_names(draft: Draft, table_id: int) -> None:
    """42710 if two constraints of a new table, which has no more than a key and NOT NULLs yet, were given one name."""
    table = draft.table(table_id)
    names = [table.primary_key_name, *(found.not_null_name for found in table.columns)]
    for name in names:
        if name and names.count(name) > 1:
            raise errors.error(
                errors.DUPLICATE_OBJECT, f'constraint "{name}" for relation "{table.name}" already exists'
            )


def _without_repeats(wanted: want.CreateTable) -> want.CreateTable:
    """One key of several on the same columns in the same order, of the first name that one of them was given."""
    names: dict[tuple[str, ...], str | None] = {}
    if wanted.primary_key is not None:
        names[wanted.primary_key] = wanted.primary_key_name
    uniques = [found for found in wanted.constraints if isinstance(found, want.Unique)]
    for unique in uniques:
        names[unique.columns] = names.get(unique.columns) or unique.name
    first = {unique.columns: unique for unique in reversed(uniques) if unique.columns != wanted.primary_key}
    kept = tuple(
        replace(found, name=names[found.columns]) if isinstance(found, want.Unique) else found
        for found in wanted.constraints
        if not isinstance(found, want.Unique) or first.get(found.columns) is found
    )
    key_name = None if wanted.primary_key is None else names[wanted.primary_key]
    return replace(wanted, primary_key_name=key_name, constraints=kept)


def require_columns(count: int) -> None:
    if count > MOST_COLUMNS:
        raise errors.error(errors.TOO_MANY_COLUMNS, f"tables can have at most {MOST_COLUMNS} columns")


def _column(draft: Draft, table_id: int, table_name: str, number: int, new: want.NewColumn) -> Column:
    if new.identity is not None and new.type.kind not in INTEGERS:
        raise errors.error(errors.INVALID_PARAMETER, "identity column type must be smallint, integer, or bigint")
    sequence = None
    if new.sequence is not None:
        sequence = create_owned(draft, table_id, table_name, number, new)
    return Column(
        id=number,
        name=new.name,
        type=new.type,
        nullable=new.nullable and new.identity is None,
        identity=new.identity,
        sequence=sequence,
        not_null_name=new.not_null_name,
        generated=new.generated is not None,
    )


def row_id(draft: Draft, number: int) -> Column:
    """The hidden key; its values come from a sequence that has an id but no name and no descriptor."""
    return Column(id=number, name=ROW_ID, type=BIGINT, nullable=False, sequence=draft.ids.new_id(), hidden=True)


def _require_distinct(table: str, columns: Listing[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            raise errors.error(errors.DUPLICATE_COLUMN, f'column "{column.name}" specified more than once')
        seen.add(column.name)


def _primary_key(wanted: want.CreateTable, columns: tuple[Column, ...]) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    """The columns with the key's made NOT NULL, and the key."""
    by_name = {column.name: column for column in columns}
    ids = key_columns(by_name, wanted.primary_key or (), "primary key constraint")
    made = tuple(msgspec.structs.replace(column, nullable=False) if column.id in ids else column for column in columns)
    return made, ids


def key_columns(by_name: dict[str, Column], names: Listing[str], what: str) -> tuple[int, ...]:
    """The ids of a key's columns: they exist (42703), none twice (42701), all of types that can be keys (0A000)."""
    ids: list[int] = []
    for name in names:
        column = by_name.get(name)
        if column is None or column.hidden:
            raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" named in key does not exist')
        if column.id in ids:
            raise errors.error(errors.DUPLICATE_COLUMN, f'column "{name}" appears twice in {what}')
        key_tag(column.type.kind, name)
        ids.append(column.id)
    return tuple(ids)


def _freeze_defaults(draft: Draft, table_id: int, new: Mapping[int, want.NewColumn]) -> None:
    """Give those of these columns of the table that have a default its text. By their ids: a column that the statement
    drops may bear the name of one, and is there until the end."""
    table = draft.table(table_id)
    defaults = {id_: draft.freeze_default(table, one.default.freeze) for id_, one in new.items() if one.default}
    if defaults:
        made = tuple(
            msgspec.structs.replace(column, default=defaults[column.id]) if column.id in defaults else column
            for column in table.columns
        )
        draft.edit(table_id, columns=made)


# --- columns ---------------------------------------------------------------------------------------------------------


def add_column(draft: Draft, wanted: want.AddColumn) -> None:
    """ADD COLUMN: one direct step. Rows that are there have the default's value of now, frozen (thesis §3.1). Where
    each has a value of its own, a job gives it to them, and the column is write-only until it has. What is generated is
    computed when they are read; a job sees that it can be."""
    table = draft.find(Table, wanted.table)
    new = wanted.column
    if any(column.name == new.name and not column.hidden for column in draft.seen_columns(table)):
        raise errors.error(errors.DUPLICATE_COLUMN, f'column "{new.name}" of relation "{table.name}" already exists')
    require_columns(sum(not column.hidden for column in draft.seen_columns(table)) + 1)
    per_row = new.is_per_row and not draft.has_no_rows(table)
    if per_row:
        _require_alone(draft, table)
    missing = new.default.value if new.default is not None and not new.is_per_row else None
    computed = new.generated is not None and not draft.has_no_rows(table)
    required = not new.nullable or new.identity is not None
    if required and missing is None and not (per_row or computed) and not draft.has_no_rows(table):
        raise errors.error(
            errors.NOT_NULL_VIOLATION, f'column "{new.name}" of relation "{table.name}" contains null values'
        )
    if new.not_null_name is not None:
        draft.require_free_constraint(table, new.not_null_name)
    number = table.next_id
    column = msgspec.structs.replace(
        _column(draft, table.id, table.name, number, new), missing=missing, per_row=per_row
    )
    at_once = new.is_per_row or (required and missing is None)
    kind = StepKind.ADD_REQUIRED_COLUMN if at_once else StepKind.ADD_COLUMN
    if draft.staged or per_row or computed:
        kind, column = StepKind.ELEMENT_STATE, msgspec.structs.replace(column, state=first_state(ElementKind.COLUMN))
        element = Element(ElementKind.COLUMN, table.id, number)
        rows = draft.facts.estimated_rows(table) if per_row or computed else None
        work = Work.VALIDATE if computed else None
        draft.schedule(Scheduled(element, Phase.ABSENT, Phase.PUBLIC, rows, work=work))
    at = place_of(draft, table, table.columns, wanted.place)
    columns = (*table.columns[:at], column, *table.columns[at:])
    layout = layout_of(table, columns, [(number, new.type)], populated=per_row)
    table = draft.edit(table.id, (kind, (number,)), columns=columns, layout=layout, next_id=number + 1)
    _freeze_defaults(draft, table.id, {number: new})
    generate(draft, table.id, {number: new})
    for constraint in wanted.constraints:
        add_constraint(draft, table.id, constraint)


def _require_alone(draft: Draft, table: Table) -> None:
    """55006 while a job of another transaction gives the rows values of a column: who puts a row into the newest layout
    has to know a value of every column in it, and could fail for another's default."""
    before = draft.ids.committed(table.id)
    for column in before.columns if isinstance(before, Table) else ():
        if column.per_row and column.state is not State.PUBLIC:
            draft.require_settled(table)


# --- constraints and indexes -----------------------------------------------------------------------------------------


def alter_add_constraint(draft: Draft, wanted: want.AddConstraint) -> None:
    """ALTER TABLE ... ADD CONSTRAINT."""
    add_constraint(draft, draft.find(Table, wanted.table).id, wanted.constraint)


def add_constraint(draft: Draft, table_id: int, constraint: want.Constraint) -> None:
    """A constraint of a table. UNIQUE is built like any index; the others collapse, or are not supported yet."""
    if isinstance(constraint, want.Unique):
        columns = [(name, False) for name in constraint.columns]
        add_index(draft, table_id, columns, constraint.name, unique=True, constraint=True, yields=constraint.yields)
    elif isinstance(constraint, want.Check):
        _add_check(draft, table_id, constraint)
    else:
        add_foreign_key(draft, table_id, constraint)


def create_index(draft: Draft, wanted: want.CreateIndex) -> None:
    """CREATE INDEX: by its path, or collapsed where nobody can have rows."""
    view = draft.view.lookup("public", wanted.table)
    if isinstance(view, View) and view.materialized is not None:
        raise errors.unsupported(f'an index on materialized view "{view.name}"')
    table = draft.find(Table, wanted.table)
    add_index(
        draft, table.id, wanted.columns, wanted.name, unique=wanted.unique, constraint=False, yields=wanted.yields
    )


def add_index(
    draft: Draft,
    table_id: int,
    columns: Listing[tuple[str, bool]],
    name: str | None,
    *,
    unique: bool,
    constraint: bool,
    yields: bool = False,
) -> Index:
    """A new index in the state that its path begins with; `columns` are (name, descending)."""
    table = draft.table(table_id)
    by_name = {column.name: column for column in draft.seen_columns(table)}
    what = "unique constraint" if constraint else "index"
    ids = key_columns(by_name, [column for column, _ in columns], what)
    if name is None:
        taken = draft.constraint_names(table) if constraint else set()
        label = "key" if constraint else "idx"
        name = generated_name(
            table.name, [column for column, _ in columns], label, lambda name: name in taken or draft.name_taken(name)
        )
    else:
        draft.require_free_index(table, name)
        if constraint:
            draft.require_free_constraint(table, name)
    state = draft.new_state(table)
    index = Index(
        id=table.next_id,
        name=name,
        columns=tuple(IndexColumn(column, way[1]) for column, way in zip(ids, columns, strict=True)),
        unique=unique,
        constraint=constraint,
        rowset=draft.ids.new_rowset(table.id),
        state=state,
        yields=yields and state is not State.PUBLIC,
    )
    put_index(draft, table, index)
    return index


def put_index(draft: Draft, table: Table, index: Index) -> None:
    """Add an index whose id is the table's next one; if it is not public at once, a job takes it there."""
    draft.edit(table.id, (StepKind.ELEMENT_STATE, (index.id,)), indexes=(*table.indexes, index), next_id=index.id + 1)
    draft.own.add(Element(ElementKind.INDEX, table.id, index.id))
    if index.state is not State.PUBLIC:
        element = Element(ElementKind.INDEX, table.id, index.id)
        rows = draft.facts.estimated_rows(table)
        reads = draft.read(table, (part.column for part in index.columns))
        draft.schedule(Scheduled(element, Phase.ABSENT, Phase.PUBLIC, rows, reads=reads))


def _add_check(draft: Draft, table_id: int, wanted: want.Check) -> None:
    table = draft.table(table_id)
    frozen = wanted.freeze(draft.shown(table))
    names = [column.name for column in table.columns if column.id in frozen.columns]
    name = wanted.name
    if name is None:
        # As in PostgreSQL, the name says the column only where there is just one.
        name = draft.constraint_name(table, names if len(names) == 1 else (), "check")
    else:
        draft.require_free_constraint(table, name)
    check = Check(id=table.next_id, name=name, expression=frozen.text, columns=frozen.columns)
    draft.own.add(Element(ElementKind.CHECK, table.id, check.id))
    if not draft.has_no_rows(table):
        check = msgspec.structs.replace(
            check, state=first_state(ElementKind.CHECK), not_valid=wanted.not_valid, yields=wanted.yields
        )
        element = Element(ElementKind.CHECK, table.id, check.id)
        if wanted.not_valid:
            draft.resting.append(Scheduled(element, Phase.ABSENT, Phase.WRITE_ONLY, None))
        else:
            rows = draft.facts.estimated_rows(table)
            reads = draft.read(table, check.columns)
            draft.schedule(Scheduled(element, Phase.ABSENT, Phase.PUBLIC, rows, reads=reads))
    draft.edit(table_id, (StepKind.ELEMENT_STATE, (check.id,)), checks=(*table.checks, check), next_id=check.id + 1)


def set_not_null(draft: Draft, wanted: want.SetNotNull) -> None:
    """ALTER COLUMN ... SET NOT NULL and ADD ... NOT NULL: by the path of a constraint, or at once where nobody can have
    rows."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    if column.nullable and column.not_null is not None and not column.not_null_not_valid:
        draft.require_settled(table)
    if has_not_null(column):
        _meet_not_null(draft, table, column, wanted)
        return
    if wanted.name is not None:
        draft.require_free_constraint(table, wanted.name)
    leaving = Element(ElementKind.COLUMN, table.id, column.id)
    if draft.facts.is_moved(leaving):  # one that comes is not found
        what = f'column "{column.name}" of relation "{table.name}" is being dropped'
        raise busy(table, what, leaving, on_record=True)
    require_values(draft, table.id, column.id, yields=wanted.yields, name=wanted.name, not_valid=wanted.not_valid)


def _meet_not_null(draft: Draft, table: Table, column: Column, wanted: want.SetNotNull) -> None:
    """The column has a NOT NULL: 55000 unless that is the one wanted. SET NOT NULL validates it."""
    name = not_null_names(table)[column.id]
    if wanted.not_valid and wanted.anew and not column.not_null_not_valid:
        raise errors.unsupported("putting a constraint that is NOT VALID in the place of a valid one")
    if column.not_null_not_valid and wanted.adds and not (wanted.not_valid or wanted.anew):
        raise errors.error(
            errors.OBJECT_NOT_READY,
            f'incompatible NOT VALID constraint "{name}" on relation "{table.name}"',
            hint="You might need to validate it using ALTER TABLE ... VALIDATE CONSTRAINT.",
        )
    if wanted.name not in (None, name):
        if not wanted.anew:
            raise errors.error(
                errors.OBJECT_NOT_READY,
                f'cannot create not-null constraint "{wanted.name}" on column "{column.name}" of table "{table.name}"',
                detail=f'A not-null constraint named "{name}" already exists for this column.',
            )
        rename_constraint(draft, want.RenameConstraint(wanted.table, name, wanted.name))
    if not wanted.not_valid:
        validate_constraint(draft, want.ValidateConstraint(wanted.table, wanted.name or name))


def require_values(
    draft: Draft,
    table_id: int,
    column_id: int,
    *,
    yields: bool = False,
    name: str | None = None,
    not_valid: bool = False,
) -> None:
    """NOT NULL for a column that may have been without."""
    table = draft.table(table_id)
    column = next(found for found in table.columns if found.id == column_id)
    if not column.nullable:
        return
    changed = msgspec.structs.replace(column, not_null_name=name)
    if draft.has_no_rows(table):
        changed = msgspec.structs.replace(changed, nullable=False)
    else:
        state = first_state(ElementKind.NOT_NULL)
        changed = msgspec.structs.replace(changed, not_null=state, not_null_yields=yields, not_null_not_valid=not_valid)
        element = Element(ElementKind.NOT_NULL, table.id, column.id)
        if not_valid:
            draft.resting.append(Scheduled(element, Phase.ABSENT, Phase.WRITE_ONLY, None))
        else:
            rows, reads = draft.facts.estimated_rows(table), draft.read(table, [column.id])
            draft.schedule(Scheduled(element, Phase.ABSENT, Phase.PUBLIC, rows, reads=reads))
    columns = tuple(changed if found.id == column.id else found for found in table.columns)
    draft.edit(table.id, (StepKind.ELEMENT_STATE, (column.id,)), columns=columns)


def validate_constraint(draft: Draft, wanted: want.ValidateConstraint) -> None:
    """VALIDATE CONSTRAINT: the rest of the path of one that was added NOT VALID; nothing for one that is valid."""
    table = draft.find(Table, wanted.table)
    rows = draft.facts.estimated_rows(table)
    for check in table.checks:
        if check.name == wanted.name and draft.sees(ElementKind.CHECK, table, check.id):
            if check.not_valid:
                element = Element(ElementKind.CHECK, table.id, check.id)
                _validate(draft, table, Scheduled(element, Phase.WRITE_ONLY, Phase.PUBLIC, rows), check.columns)
            return
    for key in table.foreign_keys:
        if key.name == wanted.name and draft.sees(ElementKind.FOREIGN_KEY, table, key.id):
            if key.not_valid and key.state is State.WRITE_ONLY:
                element = Element(ElementKind.FOREIGN_KEY, table.id, key.id)
                _validate(draft, table, Scheduled(element, Phase.WRITE_ONLY, Phase.PUBLIC, rows, related=(key.parent,)))
            elif key.not_valid:
                draft.require_settled(table)
            return
    if wanted.name not in draft.constraint_names(table):
        raise errors.error(
            errors.UNDEFINED_OBJECT, f'constraint "{wanted.name}" of relation "{table.name}" does not exist'
        )
    column = not_null_named(table, wanted.name)
    if column is None:
        raise errors.error(
            errors.WRONG_OBJECT_TYPE,
            f'constraint "{wanted.name}" of relation "{table.name}" is not a foreign key, check, or not-null '
            "constraint",
        )
    if column.not_null_not_valid:
        element = Element(ElementKind.NOT_NULL, table.id, column.id)
        reads = draft.read(table, [column.id])
        scheduled = Scheduled(element, Phase.WRITE_ONLY, Phase.PUBLIC, rows, reads=reads)
        _validate(draft, table, scheduled, (column.id,))


def _validate(draft: Draft, table: Table, scheduled: Scheduled, columns: Collection[int] = ()) -> None:
    """The rest of the path, one job at a time. The table gets a version, which two statements at once cannot both.
    `columns`: those that it is a constraint of, none of which may be about to go with it for another one."""
    element = scheduled.element
    for column in table.columns:
        if column.state is not State.PUBLIC and column.replaces in columns:
            raise unfinished(table, Element(ElementKind.COLUMN, table.id, column.id))
    if element not in draft.begun:
        draft.require_unvalidated(table, element)
    if scheduled not in draft.scheduled:
        draft.edit(table.id, (StepKind.ELEMENT_STATE, (element.id,)))
        draft.schedule(scheduled)
