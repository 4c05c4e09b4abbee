"""Names that tables had when a transaction began, and what has become of those that are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Object
from instar.catalog.history import versions
from instar.store.schema_version import history

if TYPE_CHECKING:
    from instar.database.session import Session
    from instar.store.engine import Store

Made = TypeVar("Made")


def by_former_names(session: Session, failed: errors.Error, make: Callable[[CatalogSnapshot], Made]) -> Made:
    """What is made of a statement that has `failed` by the schema with the names that tables had when the transaction
    began. READ COMMITTED takes the schema of each statement's snapshot, where such a name is gone (IEP-110, the alias
    for older transactions); who changes the schema itself goes by the names of now. Raises what `failed` if the names
    are not to blame; 42P01 for a table that is gone tells of the change that has taken it."""
    open_ = session.open_transaction()
    by_now = failed.sqlstate != errors.UNDEFINED_TABLE or open_.keeps_snapshot or bool(open_.ddl)
    if open_.began_under is None or by_now:
        raise failed
    names = session.catalog().remembering(open_.began_under)
    try:
        return make(names)
    except errors.Error as again:
        if again.sqlstate == errors.UNDEFINED_TABLE and names.gone is not None:
            again.detail = _taken(session.database.store, names.gone)
        raise


def _taken(store: Store, gone: Object) -> str:
    """What there is to say of an object that is gone."""
    told = f'"{gone.name}" was there when the transaction began.'
    with store.read() as reader:
        timestamp, _ = next(versions(reader, gone.id), (0, None))
        found = (published.change for _, published in history(reader) if published.timestamp == timestamp)
        change = next(found, "")
    return f"{told} The change was: {change}" if change else told
