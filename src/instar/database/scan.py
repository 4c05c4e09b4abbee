"""Bulk output: the rows of a table at one snapshot, batch by batch, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from instar.catalog.descriptors import Table
from instar.catalog.system_tables import user_columns
from instar.database.bulk import sized
from instar.tables.layout import arrow_type
from instar.tables.rowset import TableReader
from instar.tables.view import View

if TYPE_CHECKING:
    from instar.database.session import Session


@contextmanager
def table_rows(session: Session, table: Table) -> Iterator[pa.RecordBatchReader]:
    """What `SELECT *` gives of a committed table, in batches of some ten thousand rows, as of the newest commit.

    The snapshot is announced, so that the collector heeds it for as long as it heeds any. Errors while the batches are
    read: 57014, and 72000 if the snapshot has become too old.
    """
    database = session.database
    columns = tuple(user_columns(table))
    positions = [ordinal for ordinal, column in enumerate(table.columns) if column in columns]
    reader = TableReader(table, positions, database.layouts)
    schema = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
    with database.store.read() as newest:
        snapshot = newest.timestamp
    token = database.store.register_snapshot(snapshot)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader.arrow(View(database.store, snapshot, None, database.layouts)):
            session.check_cancel()
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    try:
        yield pa.RecordBatchReader.from_batches(schema, sized(batches()))
    finally:
        database.store.release_snapshot(token)
