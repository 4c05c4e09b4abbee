"""CREATE, DROP, ALTER and REFRESH MATERIALIZED VIEW as frozen data, as the statements of statements.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from instar.sql.statements import Name, Query


class CreateMaterializedView(msgspec.Struct, frozen=True):
    """CREATE MATERIALIZED VIEW ... WITH (refresh = 'log'); `column_names` empty: the query's own."""

    name: Name
    query: Query
    column_names: tuple[str, ...] = ()
    if_not_exists: bool = False


class RenameMaterializedView(msgspec.Struct, frozen=True):
    name: Name
    new: str
    if_exists: bool = False


class DropMaterializedView(msgspec.Struct, frozen=True):
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


class RefreshMaterializedView(msgspec.Struct, frozen=True):
    name: Name
