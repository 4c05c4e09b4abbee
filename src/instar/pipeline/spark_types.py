"""SQL types as Spark has them, and Instar's Arrow columns as Spark's Arrow reader takes them.

Every type maps to one that holds all its values: a numeric without modifiers, a uuid and jsonb travel as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from instar import errors
from instar.catalog.descriptors import Column
from instar.types import Kind, Type

# A pyarrow.Array; its stubs are generic in scalar types that are known at run time only.
Array = Any

_SIMPLE: dict[Kind, tuple[spark.DataType, pa.DataType]] = {
    Kind.BOOLEAN: (spark.BooleanType(), pa.bool_()),
    Kind.SMALLINT: (spark.ShortType(), pa.int16()),
    Kind.INTEGER: (spark.IntegerType(), pa.int32()),
    Kind.BIGINT: (spark.LongType(), pa.int64()),
    Kind.REAL: (spark.FloatType(), pa.float32()),
    Kind.DOUBLE: (spark.DoubleType(), pa.float64()),
    Kind.NUMERIC: (spark.StringType(), pa.string()),
    Kind.TEXT: (spark.StringType(), pa.string()),
    Kind.VARCHAR: (spark.StringType(), pa.string()),
    Kind.BYTEA: (spark.BinaryType(), pa.binary()),
    Kind.DATE: (spark.DateType(), pa.date32()),
    Kind.TIMESTAMP: (spark.TimestampNTZType(), pa.timestamp("us")),
    Kind.TIMESTAMPTZ: (spark.TimestampType(), pa.timestamp("us", "UTC")),
    Kind.UUID: (spark.StringType(), pa.string()),
    Kind.JSONB: (spark.StringType(), pa.string()),
}


def _both(type_: Type) -> tuple[spark.DataType, pa.DataType]:
    if type_.kind is Kind.NUMERIC and type_.precision is not None:
        scale = type_.scale or 0
        # A scale outside 0..precision is PostgreSQL's alone.
        if 0 <= scale <= type_.precision:
            return spark.DecimalType(type_.precision, scale), pa.decimal128(type_.precision, scale)
    try:
        return _SIMPLE[type_.kind]
    except KeyError:
        raise errors.unsupported(f"a Spark column of type {type_.kind.value}") from None


def spark_type(type_: Type) -> spark.DataType:
    """Spark's type for a column of this type; 0A000 for what no column has."""
    return _both(type_)[0]


def spark_schema(columns: Sequence[Column]) -> spark.StructType:
    """The schema of a DataFrame of these columns."""
    return spark.StructType([spark.StructField(column.name, spark_type(column.type)) for column in columns])


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema in which Spark takes batches of these columns."""
    return pa.schema([pa.field(column.name, _both(column.type)[1]) for column in columns])


def converter(columns: Sequence[Column]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from a `TableReader.arrow` batch of these columns to a batch of `arrow_schema`."""
    schema = arrow_schema(columns)
    kinds = [column.type.kind for column in columns]
    names = [field.type for field in schema]

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for array, kind, wanted in zip(batch.columns, kinds, names, strict=True):
            if kind is Kind.UUID:
                array = uuid_text(array)
            elif array.type != wanted:
                array = array.cast(wanted)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return convert


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)
_DIGITS = np.array([position for position in range(36) if position not in _DASHES])


def _buffer(data: Any) -> pa.Buffer:
    return pa.py_buffer(data)


def uuid_text(array: Array) -> Array:
    """An array of 16-byte values as PostgreSQL's text of uuids (36 characters), NULLs kept."""
    count = len(array)
    if array.null_count == count:
        return pa.nulls(count, pa.string())
    dense = array.fill_null(bytes(16)) if array.null_count else array
    # A fixed-size binary array is one buffer of 16 bytes per value, from its offset on.
    raw = np.frombuffer(dense.buffers()[1], np.uint8)[16 * dense.offset : 16 * (dense.offset + count)].reshape(
        count, 16
    )
    text = np.full((count, 36), ord("-"), np.uint8)
    digits = np.empty((count, 32), np.uint8)
    digits[:, 0::2] = _HEX[raw >> 4]
    digits[:, 1::2] = _HEX[raw & 15]
    text[:, _DIGITS] = digits
    offsets = np.arange(0, 36 * (count + 1), 36, dtype=np.int32)
    made: Array = pa.StringArray.from_buffers(count, _buffer(offsets), _buffer(text))
    return pa.compute.if_else(array.is_valid(), made, None) if array.null_count else made
