"""What a transaction commits: its buffer and its catalog change, derived under the newest schema.

I to e: the steps between the schema that the statements meant and the newest one are put to the validators, and the
buffered images are brought to the newest version. e to c is the store's fence (transactions/commit.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table
from instar.schemachange.compatibility import Usage, first_veto
from instar.store.engine import Commit, Reader
from instar.tables.upgrade import upgraded
from instar.tables.writes import Derivation
from instar.transactions.buffer import TableBuffer
from instar.transactions.commit import Conflict
from instar.transactions.transaction import Transaction

if TYPE_CHECKING:
    from instar.database.database import Database

SessionTransaction = Transaction[CatalogSnapshot, CatalogChange, Table]


def veto(meant: Table, newest: Table | None) -> Conflict | None:
    """The conflict of a transaction that wrote under `meant` with what became of the table, or None."""
    if newest is None:
        return _doomed(meant.name, "was dropped")
    step = first_veto(meant, newest, Usage.WRITTEN)
    if step is None:
        return None
    return _doomed(meant.name, f"was changed by: {step.statement or step.kind.value}")


def _doomed(table: str, what: str) -> Conflict:
    return Conflict(
        errors.error(
            errors.SERIALIZATION_FAILURE,
            f'the transaction wrote to table "{table}", which {what}',
            detail="The schema change is incompatible with what was written before it.",
            hint="Retry the transaction.",
        )
    )


def current_buffer(buffer: TableBuffer, meant: Table, newest: Table | None) -> TableBuffer:
    """`buffer` with its images at `newest`'s version; raises Conflict on a validator's veto (rule 14)."""
    if newest is meant:
        return buffer
    refused = veto(meant, newest)
    if refused is not None or newest is None:
        raise refused or _doomed(meant.name, "was dropped")
    return upgraded(buffer, meant, newest)


class Committer:
    """Derives the store commit of one transaction, as often as the store asks."""

    def __init__(self, database: Database, transaction: SessionTransaction) -> None:
        self._database = database
        self._transaction = transaction

    def derive(self, reader: Reader) -> Commit | None:
        """The commit on the state that `reader` sees; None if there is nothing to write."""
        transaction = self._transaction
        catalog = self._database.catalog.at(reader)
        ddl = transaction.ddl
        request = Commit(catalog_version=reader.catalog_version)
        if ddl:
            ddl.rebase(catalog)
            catalog = ddl.view
            parts = ddl.parts(reader)
            request.tables.extend(parts.tables)
            request.raw.extend(parts.raw)
            request.preconditions.extend(parts.preconditions)
            request.bump_catalog = True
        if transaction.buffer:
            derivation = Derivation(reader)
            for buffer in transaction.buffer:
                newest = catalog.by_id(buffer.table)
                table = newest if isinstance(newest, Table) else None
                now = current_buffer(buffer, transaction.enlisted[buffer.table], table)
                if table is not None:
                    derivation.table(self._database.writers.get(table, catalog), now)
            request.tables.extend(derivation.tables)
            request.entries.extend(derivation.entries)
            request.preconditions.extend(derivation.preconditions)
        if not request.tables and not request.raw:
            return None
        return request
