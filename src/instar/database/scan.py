"""Bulk output: the rows of a table at one snapshot, batch by batch, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from instar.catalog.descriptors import Table
from instar.catalog.system_views import user_columns
from instar.database.bulk import sized
from instar.encoding.arrow_values import arrow_array
from instar.tables.layout import arrow_type
from instar.tables.rowset import TableReader
from instar.tables.view import END, View
from instar.types import NUMERIC, Kind, Type

if TYPE_CHECKING:
    from instar.database.session import Session


_ROWS = 8192  # that are read one by one, in a batch


@contextmanager
def table_rows(session: Session, table: Table, *, numerics_as_text: bool = False) -> Iterator[pa.RecordBatchReader]:
    """What `SELECT *` gives of a committed table, in batches of some ten thousand rows, as of the newest commit.

    `numerics_as_text`: columns of numeric(p,s), of which NaN is 0A000 else, are text; rows are read one by one then.

    The snapshot is announced, so that the collector heeds it for as long as it heeds any. Errors while the batches are
    read: 57014, and 72000 if the snapshot has become too old.
    """
    database = session.database
    columns = tuple(user_columns(table))
    positions = [ordinal for ordinal, column in enumerate(table.columns) if column in columns]
    reader = TableReader(table, positions, database.layouts)
    types = [_as_text(column.type) if numerics_as_text else column.type for column in columns]
    schema = pa.schema([pa.field(column.name, arrow_type(type_)) for column, type_ in zip(columns, types, strict=True)])
    with database.store.read() as newest:
        snapshot = newest.timestamp
    token = database.store.register_snapshot(snapshot)

    def batches() -> Iterator[pa.RecordBatch]:
        view = View(database.store, snapshot, None, database.layouts)
        for batch in _by_row(reader, view, types) if numerics_as_text else reader.arrow(view):
            session.check_cancel()
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    try:
        yield pa.RecordBatchReader.from_batches(schema, sized(batches()))
    finally:
        database.store.release_snapshot(token)


def _as_text(type_: Type) -> Type:
    """The type as one that travels as text, if it is a numeric."""
    return NUMERIC if type_.kind is Kind.NUMERIC else type_


def _by_row(reader: TableReader, view: View, types: list[Type]) -> Iterator[pa.RecordBatch]:
    rows = reader.scan(view, b"", END)
    while block := list(islice(rows, _ROWS)):
        columns = [arrow_array(type_, column) for type_, column in zip(types, zip(*block, strict=True), strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=[str(place) for place in range(len(columns))])
