"""What a system view is: a name, its columns, and a function from a `Source` to rows of internal values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Column, Table
from instar.store.engine import Store
from instar.types import Type

Row = tuple[object, ...]


class Source(NamedTuple):
    """What system views are made from: the catalog of the statement's snapshot, the store for latest states, and how
    SQL writes a column's default, a table's checks and what generated columns are made of with the names of that
    catalog, and a name."""

    catalog: CatalogSnapshot
    store: Store
    database: str
    default_of: Callable[[Column, CatalogSnapshot], str | None]
    check_of: Callable[[str, Table, CatalogSnapshot], str]
    quoted: Callable[[str], str]
    generation_of: Callable[[Column, Table, CatalogSnapshot], str | None]


class View(msgspec.Struct, frozen=True):
    """One system view."""

    schema: str
    name: str
    columns: tuple[tuple[str, Type], ...]
    rows: Callable[[Source], Iterable[Row]]


def view(schema: str, name: str, rows: Callable[[Source], Iterable[Row]], /, **columns: Type) -> View:
    """A system view with these columns."""
    return View(schema, name, tuple(columns.items()), rows)


def user_columns(table: Table) -> Iterator[Column]:
    """The columns that users see."""
    return (column for column in table.columns if column.visible)


def has_row_id(table: Table) -> bool:
    """Whether the table's key is a hidden row id."""
    return any(column.hidden and column.id in table.primary_key for column in table.columns)
