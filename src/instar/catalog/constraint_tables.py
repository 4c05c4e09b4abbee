"""The views of information_schema that show constraints, with PostgreSQL's columns.

As in PostgreSQL a NOT NULL is a CHECK there, and what is NOT VALID or on its way in is listed: `enforced` says whether
writes are held to it. What is of columns that nobody can name yet is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from instar.catalog.catalog import PUBLIC_SCHEMA
from instar.catalog.descriptors import Check, Column, ForeignKey, Index, State, Table
from instar.catalog.naming import not_null_names
from instar.catalog.system_views import Row, Source, View, has_row_id, user_columns, view
from instar.types import INTEGER, TEXT


class _Constraint(NamedTuple):
    """A constraint of a table; `kind` is that of table_constraints."""

    table: Table
    name: str
    kind: str
    columns: tuple[int, ...]
    enforced: bool = True
    key: ForeignKey | None = None
    check: Check | None = None
    not_null: Column | None = None


def _listed(source: Source) -> Iterator[_Constraint]:
    for table in source.catalog.tables():
        visible = {column.id for column in user_columns(table)}
        for found in (*_keys(table), *_checks(table)):
            if visible.issuperset(found.columns):
                yield found


def _keys(table: Table) -> Iterator[_Constraint]:
    if not has_row_id(table):
        yield _Constraint(table, table.primary_key_name, "PRIMARY KEY", table.primary_key)
    for index in table.indexes:
        if index.constraint:
            # Until it is public a write may repeat a row that the build has not come to.
            yield _Constraint(table, index.name, "UNIQUE", _of_index(index), index.state is State.PUBLIC)
    for key in table.foreign_keys:
        yield _Constraint(table, key.name, "FOREIGN KEY", key.columns, key.enforced, key=key)


def _of_index(index: Index) -> tuple[int, ...]:
    return tuple(part.column for part in index.columns)


def _checks(table: Table) -> Iterator[_Constraint]:
    for check in table.checks:
        yield _Constraint(table, check.name, "CHECK", check.columns, check.enforced, check=check)
    names = not_null_names(table)
    for column in table.columns:
        if column.id in names:
            yield _Constraint(table, names[column.id], "CHECK", (column.id,), column.refuses_null, not_null=column)


def _yes(value: bool) -> str:
    return "YES" if value else "NO"


def _table_constraints(source: Source) -> Iterator[Row]:
    place = (source.database, PUBLIC_SCHEMA)
    for found in _listed(source):
        distinct = "YES" if found.kind == "UNIQUE" else None
        yield (*place, found.name, *place, found.table.name, found.kind, "NO", "NO", _yes(found.enforced), distinct)


def _check_constraints(source: Source) -> Iterator[Row]:
    for found in _listed(source):
        if found.check is not None:
            clause = f"({source.check_of(found.check.expression, found.table, source.catalog)})"
        elif found.not_null is not None:
            clause = f"{found.not_null.name} IS NOT NULL"
        else:
            continue
        yield (source.database, PUBLIC_SCHEMA, found.name, clause)


def _proof(parent: Table, key: ForeignKey) -> tuple[str | None, tuple[int, ...]]:
    """The key that a foreign key refers to: its name, which an index that no constraint made has not, and columns."""
    index = next((index for index in parent.indexes if index.id == key.parent_index), None)
    if index is None:
        return parent.primary_key_name, parent.primary_key
    return index.name if index.constraint else None, _of_index(index)


def _key_columns(source: Source) -> Iterator[Row]:
    place = (source.database, PUBLIC_SCHEMA)
    for found in _listed(source):
        if found.kind == "CHECK":
            continue
        names = _names(found.table)
        there: list[int | None] = [None] * len(found.columns)
        if found.key is not None:
            _, proof = _proof(source.catalog.table(found.key.parent), found.key)
            there = [proof.index(column) + 1 for column in found.key.parent_columns]
        for position, (column, referred) in enumerate(zip(found.columns, there, strict=True), 1):
            yield (*place, found.name, *place, found.table.name, names[column], position, referred)


def _names(table: Table) -> dict[int, str]:
    return {column.id: column.name for column in table.columns}


def _references(source: Source) -> Iterator[Row]:
    place = (source.database, PUBLIC_SCHEMA)
    for found in _listed(source):
        key = found.key
        if key is not None:
            name, _ = _proof(source.catalog.table(key.parent), key)
            unique = (None, None, None) if name is None else (*place, name)
            yield (*place, found.name, *unique, "NONE", key.on_update.upper(), key.on_delete.upper())


def _columns_used(source: Source) -> Iterator[Row]:
    """A foreign key uses the columns that it refers to; a NOT NULL has no rows here, as in PostgreSQL."""
    place = (source.database, PUBLIC_SCHEMA)
    for found in _listed(source):
        if found.not_null is not None:
            continue
        table, columns = found.table, found.columns
        if found.key is not None:
            table, columns = source.catalog.table(found.key.parent), found.key.parent_columns
        names = _names(table)
        for column in columns:
            yield (*place, table.name, names[column], *place, found.name)


def _view(name: str, rows: Callable[[Source], Iterable[Row]], *columns: str) -> View:
    """All are text but positions."""
    types = {column: INTEGER if "position" in column else TEXT for column in columns}
    return view("information_schema", name, rows, **types)


_CONSTRAINT = ("constraint_catalog", "constraint_schema", "constraint_name")
_TABLE = ("table_catalog", "table_schema", "table_name")
_UNIQUE = ("unique_constraint_catalog", "unique_constraint_schema", "unique_constraint_name")

CONSTRAINT_VIEWS: tuple[View, ...] = (
    _view(
        "table_constraints", _table_constraints, *_CONSTRAINT, *_TABLE, "constraint_type", "is_deferrable",
        "initially_deferred", "enforced", "nulls_distinct",
    ),
    _view(
        "key_column_usage", _key_columns, *_CONSTRAINT, *_TABLE, "column_name", "ordinal_position",
        "position_in_unique_constraint",
    ),
    _view("referential_constraints", _references, *_CONSTRAINT, *_UNIQUE, "match_option", "update_rule", "delete_rule"),
    _view("constraint_column_usage", _columns_used, *_TABLE, "column_name", *_CONSTRAINT),
    _view("check_constraints", _check_constraints, *_CONSTRAINT, "check_clause"),
)  # fmt: skip
