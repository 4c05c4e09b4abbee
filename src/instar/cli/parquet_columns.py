"""Columns of Parquet files: what is wrong with one said with its file and row, which only the table finds out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from instar import errors
from instar.catalog.descriptors import Column
from instar.database.bulk import python_values
from instar.values import converter

# Said of columns whose type in the file is no such type as the table's.
_OF_TYPES = (errors.DATATYPE_MISMATCH, errors.FEATURE_NOT_SUPPORTED)


def require_values(
    path: Path, batch: pa.RecordBatch, columns: Iterable[Column], zone: str, before: int, found: errors.Error
) -> None:
    """The error that SQL has for a value of the batch that is none of the table's column, with its place; nothing if
    that is not what the import has `found`. `before` is how many rows the file has before these."""
    for column in columns:
        if column.name not in batch.schema.names:
            continue
        array: Any = batch.column(column.name)
        convert = converter(column.type, zone)
        for row, value in enumerate(python_values(getattr(array, "storage", array)), before + 1):
            try:
                if value is not None:
                    convert(value)
            except errors.Error as error:
                of_type = error.sqlstate == errors.DATATYPE_MISMATCH
                if of_type != (found.sqlstate in _OF_TYPES):
                    break  # a load takes it: something else is wrong
                if of_type:
                    what = f'column "{column.name}" is of type {column.type} but {path} has it as {array.type}'
                    raise errors.error(error.sqlstate, what) from None
                place = f'It is in row {row} of {path}, column "{column.name}".'
                error.detail = place if error.detail is None else f"{error.detail}\n{place}"
                raise
