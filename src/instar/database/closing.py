"""Tables that close: those that are joined or split with the strategy `block`, shortly before the switch.

Who has written to one of the sources goes on, and is waited for. Who has not, and writes to one now, waits until the
change is over, or given up: the statement is taken back, and runs again then. Readers wait for nothing. Nor does who
is at a locking level: the change waits for them anyway, as for all who have locked its tables' schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table, Transformed

if TYPE_CHECKING:
    from instar.database.commit import SessionTransaction
    from instar.database.database import Database


class Closed(Exception):
    """The statement has written to the table of this id, which is closed to the transaction."""

    def __init__(self, table: int) -> None:
        super().__init__(table)
        self.table = table


def require_open(database: Database, transaction: SessionTransaction, new: Iterable[int]) -> None:
    """Closed if one of the `new` tables, which the transaction has just come to write to, closes, and it has written to
    no source of the same change before."""
    if transaction.isolation.is_locking or transaction.snapshot is None:
        return
    newest = transaction.snapshot.catalog  # the statement's own, but of those who keep theirs
    if transaction.keeps_snapshot:
        with database.store.read() as reader:
            newest = database.catalog.at(reader)
    for table in new:
        found = _closing(newest, table)
        if found is not None and not any(_closing(newest, known) == found for known in transaction.enlisted):
            raise Closed(table)


def is_closing(database: Database, table: int) -> bool:
    """Whether the table closes by now."""
    with database.store.read() as reader:
        return _closing(database.catalog.at(reader), table) is not None


def _closing(catalog: CatalogSnapshot, table: int) -> tuple[int, ...] | None:
    """What is made of a table that closes; None of others."""
    found = catalog.by_id(table)
    transformed: Transformed | None = found.transformed if isinstance(found, Table) else None
    return None if transformed is None or not transformed.closing else transformed.targets
