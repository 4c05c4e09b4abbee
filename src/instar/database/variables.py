"""SET, SHOW and RESET. They are part of a transaction, and read nothing: one that began with them has no snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from instar.database.result import Result, rows_of
from instar.database.settings import SETTINGS, find
from instar.sql import statements as ast
from instar.types import TEXT

if TYPE_CHECKING:
    from instar.database.session import Session


def _set(session: Session, statement: ast.SetVariable) -> Result:
    _begin(session)
    value = None if statement.values is None else ", ".join(statement.values)
    session.settings.set(statement.name, value, local=statement.local)
    if statement.local and session.transaction is None:
        session.notice("SET LOCAL can only be used in transaction blocks", "WARNING")
        session.settings.end_local()
    session.settings_changed()
    return Result("SET")


def _show(session: Session, statement: ast.ShowVariable) -> Result:
    _begin(session)
    if statement.name.lower() == "all":
        shown = [(name, _shown(session, name)) for name in sorted(SETTINGS)]
        return rows_of("SHOW", (("name", TEXT), ("setting", TEXT)), shown)
    name = find(statement.name)
    return rows_of("SHOW", ((name, TEXT),), [(_shown(session, name),)])


def _shown(session: Session, name: str) -> str:
    if name == "transaction_isolation":
        return (session.transaction or session.settings).isolation.value
    return session.settings.get(name)


def _reset(session: Session, statement: ast.ResetVariable) -> Result:
    _begin(session)
    if statement.name.lower() == "all":
        session.settings.reset_all()
    else:
        session.settings.set(statement.name, None)
    session.settings_changed()
    return Result("RESET")


def _begin(session: Session) -> None:
    if session.transaction is None and not session.autocommit:
        session.open(explicit=False)


VARIABLES: dict[type, Callable[..., Result]] = {
    ast.SetVariable: _set,
    ast.ShowVariable: _show,
    ast.ResetVariable: _reset,
}
