"""The syntax of what is done to a generated column, beside its definition."""

from __future__ import annotations

import msgspec


class DropExpression(msgspec.Struct, frozen=True):
    """ALTER COLUMN ... DROP EXPRESSION: the column stays, with its values, as one like any other."""

    column: str
    if_exists: bool = False
