"""Keys by the batch, for bulk loads and backfills: Arrow columns to a list of keys, equal to keys.py's byte for byte.

Neighbouring columns of fixed size without NULLs are written into one structured NumPy array and cut into bytes at
once; the others give their components one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from instar.encoding.keys import (
    NULL_ASCENDING,
    NULL_DESCENDING,
    TAG_BOOLEAN,
    TAG_DATE,
    TAG_FLOAT,
    TAG_INTEGER,
    TAG_NUMERIC,
    TAG_TIMESTAMP,
    TAG_UUID,
    encode_component,
    key_tag,
)
from instar.types import Type

Array = npt.NDArray[Any]
KeyBatchEncoder = Callable[[Sequence[Any]], list[bytes]]

_FLIP_64 = np.uint64(1 << 63)
_FLIP_32 = np.uint32(1 << 31)
_NAN_BITS = np.uint64(0xFFF8_0000_0000_0000)
_VECTORISED = frozenset({TAG_BOOLEAN, TAG_INTEGER, TAG_FLOAT, TAG_DATE, TAG_TIMESTAMP, TAG_UUID})


def _numbers(column: Any, dtype: str) -> Array:
    """The values of a column of numbers, dates or timestamps without NULLs as integers or floats of `dtype`."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    numbers: Array = column.to_numpy(zero_copy_only=False).astype(dtype)
    return numbers


def _payload(column: Any, family: int, descending: bool) -> Array:
    """The payloads of one component, as an array of the size that they have in the key."""
    if family == TAG_UUID:
        raw = np.frombuffer(column.buffers()[1], np.uint8, 16 * len(column), 16 * column.offset)
        return (~raw if descending else raw.copy()).view("V16")
    if family == TAG_BOOLEAN:
        bits: Array = column.to_numpy(zero_copy_only=False).astype(np.uint8)
        return ~bits if descending else bits
    if family == TAG_DATE:
        days = _numbers(column, "<i4").view(np.uint32) ^ _FLIP_32
        return (~days if descending else days).astype(">u4")
    if family == TAG_FLOAT:
        floats = _numbers(column, "<f8") + 0.0
        bits = floats.view(np.uint64)
        bits = np.where(bits >= _FLIP_64, ~bits, bits | _FLIP_64)
        bits = np.where(np.isnan(floats), _NAN_BITS, bits)
    else:
        bits = _numbers(column, "<i8").view(np.uint64) ^ _FLIP_64
    return (~bits if descending else bits).astype(">u8")


def _fixed_part(columns: Sequence[tuple[Any, int, bool]], prefix: bytes) -> list[bytes]:
    """`prefix` and the components of neighbouring columns (Arrow column, family, descending) without NULLs."""
    fields: list[tuple[str, Any]] = [("prefix", f"V{len(prefix)}")] if prefix else []
    payloads = [_payload(*column) for column in columns]
    for i, payload in enumerate(payloads):
        fields += [(f"t{i}", np.uint8), (f"p{i}", payload.dtype)]
    keys = np.empty(len(columns[0][0]), np.dtype(fields))
    if prefix:
        keys["prefix"] = np.frombuffer(prefix, f"V{len(prefix)}")[0]
    for i, (payload, (_, family, descending)) in enumerate(zip(payloads, columns, strict=True)):
        keys[f"t{i}"] = family ^ 0xFF if descending else family
        keys[f"p{i}"] = payload
    parts: list[bytes] = keys.view(f"V{keys.dtype.itemsize}").tolist()
    return parts


def _components(column: Any, type_: Type, descending: bool) -> list[bytes]:
    """The components of a column one by one, or of its values by the batch and NULLs put between them."""
    family = key_tag(type_.kind)
    if family in _VECTORISED:
        null = NULL_DESCENDING if descending else NULL_ASCENDING
        parts = iter(_fixed_part([(column.drop_null(), family, descending)], b""))
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return [next(parts) if present else null for present in valid.tolist()]
    values = column.to_pylist()
    if family == TAG_NUMERIC:
        values = [_decimal(value) for value in values]
    kind = type_.kind
    return [encode_component(value, kind, descending) for value in values]


def _decimal(value: Any) -> Any:
    """A numeric without modifiers travels as text."""
    return Decimal(value) if isinstance(value, str) else value


def compile_key_batch_encoder(
    types: Sequence[Type], descending: Sequence[bool] = (), *, prefix: bytes = b""
) -> KeyBatchEncoder:
    """A function from Arrow columns of equal length (types of `arrow_type`) to `prefix` + key of each row.

    Errors as `encode_component`. Long keys are not cut: see `limited_index_key` and `limited_primary_key`.
    """
    families = [key_tag(type_.kind) for type_ in types]
    flags = tuple(descending) or (False,) * len(types)

    def encode(columns: Sequence[Any]) -> list[bytes]:
        parts: list[list[bytes]] = []
        run: list[tuple[Any, int, bool]] = []
        ahead = prefix
        for column, type_, family, flag in zip(columns, types, families, flags, strict=True):
            if family in _VECTORISED and column.null_count == 0:
                run.append((column, family, flag))
                continue
            if run:
                parts.append(_fixed_part(run, ahead))
                run, ahead = [], b""
            parts.append(_components(column, type_, flag))
            if ahead:
                parts[-1] = [ahead + part for part in parts[-1]]
                ahead = b""
        if run:
            parts.append(_fixed_part(run, ahead))
        keys = parts[0]
        for part in parts[1:]:
            keys = list(map(add, keys, part))
        return keys

    return encode
