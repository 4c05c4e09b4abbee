"""ALTER TABLE ... SPLIT and ALTER TABLE ... JOIN as frozen data: statements of their own, as those of statements.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from instar.catalog.descriptors import Repair, Strategy

if TYPE_CHECKING:
    from instar.sql.statements import Name


class TransformationOptions(msgspec.Struct, frozen=True):
    """WITH (option = value, ...); None: not given."""

    repair: Repair | None = None
    pause_rows: int | None = None
    strategy: Strategy | None = None
    grace: int | None = None  # microseconds
    keep_views: bool = False
    priority: int = 0


class Target(msgspec.Struct, frozen=True):
    """A table that a split makes, and the columns that it takes along."""

    name: Name
    columns: tuple[str, ...]


class SplitTable(msgspec.Struct, frozen=True):
    """ALTER TABLE name SPLIT [IN PLACE] INTO r (...), s (...) ON (...)."""

    name: Name
    r: Target
    s: Target
    on: tuple[str, ...]
    options: TransformationOptions = TransformationOptions()
    in_place: bool = False


class Source(msgspec.Struct, frozen=True):
    """A table that is joined: name [[AS] alias]."""

    name: Name
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A column of one of the tables that are joined; `table` is what qualifies it."""

    name: str
    table: Name | None = None
    position: int | None = field(default=None, compare=False)


class TargetColumn(msgspec.Struct, frozen=True):
    """A column of the table that a join makes: reference [AS name]."""

    column: Reference
    name: str | None = None


class JoinTables(msgspec.Struct, frozen=True):
    """ALTER TABLE r JOIN s {ON a.x = b.y [AND ...] | USING (x, ...)} INTO t (...): `on`, or `using`."""

    r: Source
    s: Source
    into: Name
    columns: tuple[TargetColumn, ...]
    on: tuple[tuple[Reference, Reference], ...] = ()
    using: tuple[str, ...] = ()
    options: TransformationOptions = TransformationOptions()
