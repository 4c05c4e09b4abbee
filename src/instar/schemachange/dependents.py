"""What a stage takes from a table that something has come to use since the stage was planned.

A job drops columns and keys, and widens types, in its last stage, as its statement wanted it when it was planned. So
that stage looks again at what it finds. A job that can be taken back fails then; another one waits until nothing is in
the way.
"""

from __future__ import annotations

from collections.abc import Iterator

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table, View
from instar.schemachange.elements import Element, ElementKind, name_of, used_columns
from instar.schemachange.stages import Publication


def require_unused(catalog: CatalogSnapshot, publication: Publication) -> None:
    """2BP01 if something in `catalog` would be left without a column or a key that it uses; 0A000 for a view on a
    column whose type changes."""
    after = {one.after.id: one.after for one in publication.published if isinstance(one.after, Table)}
    for one in publication.published:
        if isinstance(one.before, Table) and isinstance(one.after, Table):
            for user, used in _left_without(catalog, after, one.before, one.after):
                raise errors.error(
                    errors.DEPENDENT_OBJECTS, f"cannot drop {used} because other objects depend on it", detail=user
                )
            _require_types(catalog, one.before, one.after)


def _left_without(
    catalog: CatalogSnapshot, published: dict[int, Table], before: Table, table: Table
) -> Iterator[tuple[str, str]]:
    """(what uses it, what goes), in words."""
    left = {column.id for column in table.columns}
    gone = {column.id: column.name for column in before.columns if column.id not in left}
    kinds = ((ElementKind.INDEX, table.indexes), (ElementKind.CHECK, table.checks))
    elements = [Element(kind, table.id, found.id) for kind, listed in kinds for found in listed]
    elements += [Element(ElementKind.FOREIGN_KEY, table.id, key.id) for key in table.foreign_keys]
    for element in elements if gone else ():
        for used in used_columns(table, element):
            if used.id in gone:
                what = f"column {gone[used.id]} of table {table.name}"
                yield f"{name_of(table, element)} depends on {what}", what
    for view in catalog.views() if gone else ():
        for column in sorted(_columns_of(view, table) & gone.keys()):
            what = f"column {gone[column]} of table {table.name}"
            yield f"view {view.name} depends on {what}", what
    yield from _keys_without(catalog, published, before, table)


def _keys_without(
    catalog: CatalogSnapshot, published: dict[int, Table], before: Table, table: Table
) -> Iterator[tuple[str, str]]:
    """Foreign keys that refer to the table by an index which goes, or find children by one."""
    left = {index.id for index in table.indexes}
    gone = {index.id: index.name for index in before.indexes if index.id not in left}
    if not gone:
        return
    for key in table.foreign_keys:
        if key.child_index in gone:
            yield f"constraint {key.name} on table {table.name} depends on it", f"index {gone[key.child_index]}"
    for child_id in table.referenced_by:
        child = published.get(child_id) or catalog.table(child_id)
        for key in child.foreign_keys:
            if key.parent == table.id and key.parent_index in gone:
                yield f"constraint {key.name} on table {child.name} depends on it", f"index {gone[key.parent_index]}"


def _require_types(catalog: CatalogSnapshot, before: Table, after: Table) -> None:
    old = {column.id: column.type for column in before.columns}
    changed = {column.id: column.name for column in after.columns if old.get(column.id, column.type) != column.type}
    for view in catalog.views() if changed else ():
        for column in sorted(_columns_of(view, after) & changed.keys()):
            raise errors.error(
                errors.FEATURE_NOT_SUPPORTED,
                "cannot alter type of a column used by a view or rule",
                detail=f'view {view.name} depends on column "{changed[column]}"',
            )


def _columns_of(view: View, table: Table) -> set[int]:
    return {column for used, columns in view.depends_on if used == table.id for column in columns}
