"""CHECK TABLE and CHECK DATABASE: a row per problem, none when all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instar.database.result import Result

if TYPE_CHECKING:
    from instar.database.session import Session


def check(session: Session, tables: tuple[str, ...] | None) -> Result:
    """Check the tables of those names, or everything."""
    raise NotImplementedError
