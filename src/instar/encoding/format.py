"""Bytes for humans: keys and row bodies as readable text. Nothing here raises: what is damaged is shown as hex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instar.encoding.keys import (
    HASH_BYTES,
    MAX_INDEX_PART_BYTES,
    TAG_BOOLEAN,
    TAG_BYTEA,
    TAG_DATE,
    TAG_FLOAT,
    TAG_INTEGER,
    TAG_NUMERIC,
    TAG_TEXT,
    TAG_TIMESTAMP,
    TAG_UUID,
    decode_component,
)
from instar.encoding.rows import compile_decoder, row_format
from instar.errors import Error
from instar.types import BIGINT, BOOLEAN, BYTEA, DATE, DOUBLE, NUMERIC, STRINGS, TEXT, TIMESTAMP, UUID, Type
from instar.values import to_text

_FAMILY_TYPES: dict[int, Type] = {
    TAG_BOOLEAN: BOOLEAN,
    TAG_INTEGER: BIGINT,
    TAG_FLOAT: DOUBLE,
    TAG_NUMERIC: NUMERIC,
    TAG_TEXT: TEXT,
    TAG_BYTEA: BYTEA,
    TAG_DATE: DATE,
    TAG_TIMESTAMP: TIMESTAMP,
    TAG_UUID: UUID,
}


def format_value(value: Any, type_: Type) -> str:
    """An internal value in its type's output syntax, strings quoted; NULL."""
    if value is None:
        return "NULL"
    text = _text(value, type_)
    return f"'{text.replace(chr(39), chr(39) * 2)}'" if type_.kind in STRINGS else text


def _text(value: Any, type_: Type) -> str:
    try:
        return to_text(type_, value)
    except (Error, ValueError, OverflowError):  # a damaged date may lie outside the calendar
        return repr(value)


def format_key(key: bytes) -> str:
    """The components of an encoded key (after its rowset prefix): `(5, 'abc' desc, NULL)`."""
    parts = []
    position = 0
    while position < len(key):
        try:
            value, tag, descending, position = decode_component(key, position)
        except Error:
            parts.append(f"? {key[position:].hex()}")
            break
        text = "NULL" if value is None else format_value(value, _FAMILY_TYPES[tag])
        parts.append(f"{text} desc" if descending else text)
    return f"({', '.join(parts)})"


def format_index_key(key: bytes, primary: int) -> str:
    """An index entry's key (after its rowset prefix) whose primary key begins at byte `primary` of it."""
    columns, row = key[:primary], key[primary:]
    if primary > MAX_INDEX_PART_BYTES:
        kept, digest = columns[:MAX_INDEX_PART_BYTES], columns[MAX_INDEX_PART_BYTES:]
        if len(digest) == HASH_BYTES:
            return f"{format_key(kept)} cut, hash {digest.hex()} -> {format_key(row)}"
    return f"{format_key(columns)} -> {format_key(row)}"


def format_row(body: bytes, types: Sequence[Type], names: Sequence[str] = ()) -> str:
    """A row body in the format of `types`: `name=value` (or the values alone) separated by commas."""
    try:
        values = compile_decoder(row_format(tuple(types)), 0)(body)
    except Error as problem:
        return problem.message
    texts = [format_value(value, type_) for value, type_ in zip(values, types, strict=True)]
    if names:
        texts = [f"{name}={text}" for name, text in zip(names, texts, strict=True)]
    return ", ".join(texts)
