"""The schema of a catalog: descriptors, which name by id, as the model, which names by name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from instar import errors
from instar.catalog import descriptors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.naming import not_null_names
from instar.declarative import model
from instar.schemachange.alteration import widens
from instar.schemachange.elements import moving, name_of
from instar.sql.binder import canonical_view, thaw_check, thaw_default, thaw_generated, thaw_view
from instar.types import Type

_ID = re.compile(r"#(\d+)")


def read_schema(catalog: CatalogSnapshot, wanted: model.Schema | None = None) -> model.Schema:
    """The schema that queries see: an index or constraint that a job is still building is not there yet. Defaults of
    columns whose types are widened in `wanted` are as they will be then."""
    owned = {column.sequence for table in catalog.tables() for column in table.columns if column.identity is not None}
    aims = {} if wanted is None else wanted.tables
    tables = (_table(table, catalog, aims.get(table.name)) for table in catalog.tables())
    sequences = (_sequence(found, catalog) for found in catalog.sequences() if found.id not in owned)
    views = (_view(view, catalog) for view in catalog.views())
    return model.Schema(
        {found.name: found for found in sorted(tables, key=lambda found: found.name)},
        {found.name: found for found in sorted(sequences, key=lambda found: found.name)},
        {found.name: found for found in sorted(views, key=lambda found: found.name)},
    )


def require_settled(catalog: CatalogSnapshot) -> None:
    """55006 while a job changes a table: what the schema will be is not known before it has ended."""
    for table in sorted(catalog.tables(), key=lambda found: found.name):
        for element in moving(table):
            raise errors.error(
                errors.OBJECT_IN_USE,
                f'table "{table.name}" is being changed: {name_of(table, element)} is not complete',
                hint="Wait for the job, or cancel it (SHOW JOBS, CANCEL JOB).",
            )


# --- sequences -------------------------------------------------------------------------------------------------------


def _sequence(found: descriptors.Sequence, catalog: CatalogSnapshot, *, identity: bool = False) -> model.Sequence:
    owner = None
    if found.owned_by is not None and not identity:
        table = catalog.table(found.owned_by[0])
        owner = (table.name, _names(table)[found.owned_by[1]])
    return model.Sequence(
        name=found.name,
        type=found.type,
        start=found.start,
        increment=found.increment,
        minimum=found.minimum,
        maximum=found.maximum,
        cycle=found.cycle,
        cache=found.cache,
        owned_by=owner,
    )


def _find_sequence(number: int, catalog: CatalogSnapshot) -> descriptors.Sequence:
    found = catalog.by_id(number)
    if not isinstance(found, descriptors.Sequence):
        raise errors.error(errors.DATA_CORRUPTED, f"the catalog has no sequence of id {number}")
    return found


# --- tables ----------------------------------------------------------------------------------------------------------


def _names(table: descriptors.Table) -> dict[int, str]:
    return {column.id: column.name for column in table.columns}


def _table(table: descriptors.Table, catalog: CatalogSnapshot, wanted: model.Table | None) -> model.Table:
    aims = {} if wanted is None else {column.name: column.type for column in wanted.columns}
    names = not_null_names(table)
    columns = tuple(
        msgspec.structs.replace(
            _column(column, catalog, aims.get(column.name)),
            not_null=_not_null(column, names.get(column.id)),
            generated=thaw_generated(column, table, catalog),
        )
        for column in table.columns
        if column.visible
    )
    kinds = [_primary_keys(table), _indexes(table), _checks(table, catalog), _foreign_keys(table, catalog)]
    elements = [element for kind in kinds for element in sorted(kind, key=lambda found: found.name)]
    return model.Table(
        name=table.name,
        columns=columns,
        elements=tuple(elements),
        locks=_locks(table),
        migration=table.migration,
        compaction_share=table.compaction_share,
    )


def _locks(table: descriptors.Table) -> tuple[model.Lock, ...]:
    locks = (
        model.Lock(lock.name, tuple(column.name for column in table.columns if column.id in lock.columns))
        for lock in table.locks
        if lock.state is descriptors.State.PUBLIC
    )
    return tuple(sorted(locks, key=lambda lock: lock.name))


def _column(column: descriptors.Column, catalog: CatalogSnapshot, wanted: Type | None) -> model.Column:
    identity = default = None
    if column.identity is not None and column.sequence is not None:
        sequence = _sequence(_find_sequence(column.sequence, catalog), catalog, identity=True)
        identity = model.Identity(column.identity, sequence)
    else:
        widened = wanted is not None and widens(column.type, wanted)
        text = thaw_default(msgspec.structs.replace(column, type=wanted) if widened else column, catalog)
        default = None if text is None else model.Default(text, tuple(_sequences_of(column, catalog)))
    return model.Column(
        name=column.name, type=column.type, nullable=column.nullable, default=default, identity=identity
    )


def _not_null(column: descriptors.Column, name: str | None) -> model.NotNull | None:
    if name is None or (column.nullable and not column.not_null_not_valid):  # none, or one that is on its way
        return None
    return model.NotNull(name, given=column.not_null_name is not None, valid=not column.nullable)


def _sequences_of(column: descriptors.Column, catalog: CatalogSnapshot) -> Iterator[str]:
    """The sequences that a default takes values of: a text constant that looks like one's id does no harm."""
    numbers = [int(number) for number in _ID.findall(column.default or "")]
    for number in dict.fromkeys([*numbers, *([] if column.sequence is None else [column.sequence])]):
        found = catalog.by_id(number)
        if isinstance(found, descriptors.Sequence):
            yield found.name


def _primary_keys(table: descriptors.Table) -> list[model.Element]:
    names = _names(table)
    if not table.primary_key_name:
        return []
    return [model.PrimaryKey(table.primary_key_name, tuple(names[column] for column in table.primary_key))]


def _indexes(table: descriptors.Table) -> list[model.Element]:
    """The indexes, but for those that foreign keys own, and make for themselves."""
    names = _names(table)
    owned = {key.child_index for key in table.foreign_keys if key.owns_index}
    return [
        model.Index(
            name=index.name,
            columns=tuple((names[part.column], part.descending) for part in index.columns),
            unique=index.unique,
            constraint=index.constraint,
        )
        for index in table.indexes
        if index.id not in owned and index.state is descriptors.State.PUBLIC
    ]


def _checks(table: descriptors.Table, catalog: CatalogSnapshot) -> list[model.Element]:
    return [
        model.Check(check.name, thaw_check(check.expression, table, catalog), not check.not_valid)
        for check in table.checks
        if _is_there(check)
    ]


def _foreign_keys(table: descriptors.Table, catalog: CatalogSnapshot) -> list[model.Element]:
    return [_foreign_key(key, table, catalog.table(key.parent)) for key in table.foreign_keys if _is_there(key)]


def _is_there(constraint: descriptors.Check | descriptors.ForeignKey) -> bool:
    """Whether it has come to where it was to come: NOT VALID is not on its way to being valid."""
    return constraint.state is descriptors.State.PUBLIC or (constraint.not_valid and constraint.enforced)


def _foreign_key(key: descriptors.ForeignKey, table: descriptors.Table, parent: descriptors.Table) -> model.ForeignKey:
    names, parent_names = _names(table), _names(parent)
    needs = []
    if key.parent_index is None:
        needs.append((parent.name, parent.primary_key_name))
    needs += [(parent.name, index.name) for index in parent.indexes if index.id == key.parent_index]
    if not key.owns_index:
        needs += [(table.name, index.name) for index in table.indexes if index.id == key.child_index]
        if key.child_index is None:
            needs.append((table.name, table.primary_key_name))
    return model.ForeignKey(
        name=key.name,
        columns=tuple(names[column] for column in key.columns),
        parent=parent.name,
        parent_columns=tuple(parent_names[column] for column in key.parent_columns),
        on_delete=key.on_delete,
        on_update=key.on_update,
        valid=not key.not_valid,
        needs=tuple(needs),
    )


# --- views -----------------------------------------------------------------------------------------------------------


def _view(view: descriptors.View, catalog: CatalogSnapshot) -> model.View:
    """A view; 0A000 for a materialized one, which no schema file has."""
    if view.materialized is not None:
        raise errors.unsupported(f'a schema file of a database with materialized view "{view.name}"')
    reads = []
    for used, columns in view.depends_on:
        found = catalog.by_id(used)
        if found is None:
            raise errors.error(errors.DATA_CORRUPTED, f'view "{view.name}" reads object {used}, which is not there')
        names = _names(found) if isinstance(found, descriptors.Table) else {}
        reads.append((found.name, tuple(names[column] for column in columns if column in names)))
    return model.View(
        name=view.name,
        columns=view.columns,
        query=thaw_view(view, catalog),
        meaning=canonical_view(view, catalog),
        reads=tuple(sorted(reads)),
        kept=view.kept is not None,
    )
