"""The physical side of one layout: a descriptor's `Layout` to row formats, encoders and Arrow types, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa

from instar.catalog.descriptors import Layout
from instar.encoding.row_batches import arrow_type, compile_batch_encoder
from instar.encoding.rows import (
    LOCK_BYTES,
    RowEncoder,
    RowFormat,
    compile_encoder,
    row_format,
)
from instar.store.engine import NO_RECORD, ROW_HEADER

__all__ = ["arrow_schema", "arrow_type", "batch_encoder", "body_encoder", "layout_format", "row_start"]


def layout_format(layout: Layout) -> RowFormat:
    """Where the columns of a layout lie in a stored row."""
    return row_format(tuple(type_ for _, type_ in layout.columns), len(layout.locks))


def row_start(layout: Layout, timestamp: int) -> bytes:
    """What comes before the body of a new row: the header, and its lock timestamps where it has several."""
    locks = timestamp.to_bytes(LOCK_BYTES, "little") * len(layout.locks)
    return ROW_HEADER.pack(timestamp, NO_RECORD, layout.id << 8) + locks


@lru_cache(maxsize=1024)
def _body_encoder(form: RowFormat) -> RowEncoder:
    return compile_encoder(form)


def body_encoder(layout: Layout) -> RowEncoder:
    """Internal values of all columns, in layout order, to a row body (docs/formats/rows.md)."""
    return _body_encoder(layout_format(layout))


def arrow_schema(layout: Layout) -> pa.Schema:
    """The Arrow schema that `batch_encoder` takes: a field per column, named by the column's id."""
    return pa.schema([pa.field(str(column), arrow_type(type_)) for column, type_ in layout.columns])


def batch_encoder(layout: Layout) -> Callable[..., list[bytes]]:
    """(record batch in layout order, header=b"") -> header + body of each row: the bulk path of `body_encoder`."""
    return compile_batch_encoder(layout_format(layout))
