"""The syntax of a NOT NULL that stands by itself, as a constraint of a table."""

from __future__ import annotations

import msgspec


class NotNull(msgspec.Struct, frozen=True):
    """ADD [CONSTRAINT name] NOT NULL; CREATE TABLE has it with its column."""

    column: str
    name: str | None = None
    not_valid: bool = False
    yields: bool = False
