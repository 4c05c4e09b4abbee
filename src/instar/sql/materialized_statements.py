"""CREATE, DROP, ALTER and REFRESH MATERIALIZED VIEW as frozen data, as the statements of statements.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from instar.sql.statements import Name, Query


@dataclass(frozen=True, slots=True)
class CreateMaterializedView:
    """CREATE MATERIALIZED VIEW ... WITH (refresh = 'log'); `column_names` empty: the query's own."""

    name: Name
    query: Query
    column_names: tuple[str, ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameMaterializedView:
    name: Name
    new: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropMaterializedView:
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class RefreshMaterializedView:
    name: Name
