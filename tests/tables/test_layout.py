"""Layouts: encoders by layout, one per format."""

from __future__ import annotations

import pyarrow as pa

from instar.catalog.descriptors import Layout
from instar.encoding.rows import BODY_OFFSET
from instar.tables.layout import arrow_schema, arrow_type, batch_encoder, body_encoder, layout_format
from instar.tables.resolver import Wanted, resolver
from instar.types import BIGINT, TEXT, TIMESTAMPTZ, UUID

LAYOUT = Layout(3, ((1, BIGINT), (7, TEXT), (4, UUID)))


def test_encoders_agree() -> None:
    rows = [(1, "a", bytes(16)), (None, "b", None)]
    bodies = [body_encoder(LAYOUT)(row) for row in rows]
    columns = [
        pa.array(column, arrow_type(type_))
        for column, (_, type_) in zip(zip(*rows, strict=True), LAYOUT.columns, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(LAYOUT))
    assert batch_encoder(LAYOUT)(batch) == bodies
    read = resolver(LAYOUT, [Wanted(column, type_) for column, type_ in LAYOUT.columns])
    assert [read(bytes(BODY_OFFSET) + body) for body in bodies] == rows


def test_formats_depend_on_types_alone() -> None:
    other = Layout(9, tuple((column + 100, type_) for column, type_ in LAYOUT.columns))
    assert layout_format(LAYOUT) == layout_format(other)
    assert body_encoder(LAYOUT) is body_encoder(other)


def test_arrow_schema() -> None:
    schema = arrow_schema(Layout(1, ((1, BIGINT), (2, TIMESTAMPTZ))))
    assert schema == pa.schema([("1", pa.int64()), ("2", pa.timestamp("us", "UTC"))])
