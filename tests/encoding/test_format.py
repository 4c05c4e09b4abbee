"""Bytes for humans: readable where sound, hex where damaged, never an error."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from instar.encoding.format import format_index_key, format_key, format_row
from instar.encoding.keys import MAX_INDEX_PART_BYTES, encode_key, limited_index_key
from instar.encoding.rows import compile_encoder, row_format
from instar.types import BIGINT, BOOLEAN, BYTEA, DATE, INTEGER, NUMERIC, TEXT, TIMESTAMP, UUID, Type
from support.values import TYPES


def test_keys() -> None:
    key = encode_key([5, "it's", None, 19000], [BIGINT, TEXT, UUID, DATE], [False, True, False, False])
    assert format_key(key) == "(5, 'it''s' desc, NULL, 2022-01-08)"
    assert format_key(key[:-1]) == "(5, 'it''s' desc, NULL, ? 3880004a)"
    assert format_key(b"") == "()"


def test_all_families() -> None:
    values = [True, Decimal("-1.50"), b"\x01", 0, bytes(16)]
    key = encode_key(values, [BOOLEAN, NUMERIC, BYTEA, TIMESTAMP, UUID])
    expected = "(t, -1.5, \\x01, 1970-01-01 00:00:00, 00000000-0000-0000-0000-000000000000)"
    assert format_key(key) == expected


def test_index_keys() -> None:
    primary = encode_key([7], [BIGINT])
    columns = encode_key(["abc"], [TEXT])
    assert format_index_key(columns + primary, len(columns)) == "('abc') -> (7)"
    cut = limited_index_key(encode_key([1, "x" * 300], [INTEGER, TEXT]))
    text = format_index_key(cut + primary, len(cut))
    assert text.startswith("(1, ? 28787878")
    assert text.endswith(f"cut, hash {cut[MAX_INDEX_PART_BYTES:].hex()} -> (7)")


def test_rows() -> None:
    types = (INTEGER, TEXT)
    body = compile_encoder(row_format(types))((1, None))
    assert format_row(body, types, ["a", "b"]) == "a=1, b=NULL"
    assert format_row(body, types) == "1, NULL"
    assert format_row(body[:3], types).startswith("damaged row")


@given(st.binary(max_size=60), st.lists(TYPES, max_size=4), st.integers(0, 60))
def test_hostile_bytes(data: bytes, types: list[Type], position: int) -> None:
    assert isinstance(format_key(data) + format_index_key(data, position), str)
    assert isinstance(format_row(data, types), str)
