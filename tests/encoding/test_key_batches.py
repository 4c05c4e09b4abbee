"""Key batches: the bytes of keys.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.encoding.key_batches import compile_key_batch_encoder
from instar.encoding.keys import encode_key
from instar.encoding.row_batches import arrow_type
from instar.encoding.rows import numeric_text
from instar.types import BIGINT, JSONB, NUMERIC, Kind, Type
from support.values import SIMPLE, rows

KEY_TYPES = st.sampled_from([*(type_ for type_ in SIMPLE if type_ != JSONB), Type(Kind.NUMERIC, 9, 3)])


def to_arrow(values: list[Any], type_: Type) -> pa.Array:
    if type_ == NUMERIC:
        values = [None if value is None else numeric_text(value).decode() for value in values]
    return pa.array(values, arrow_type(type_))


@given(st.lists(st.tuples(KEY_TYPES, st.booleans()), min_size=1, max_size=4), st.booleans(), st.data())
@settings(max_examples=150)
def test_a_batch_is_its_keys(columns: list[tuple[Type, bool]], nulls: bool, data: st.DataObject) -> None:
    types, descending = [type_ for type_, _ in columns], [flag for _, flag in columns]
    content = data.draw(rows(types, nan=False))
    if not nulls:
        content = [row for row in content if None not in row]
    arrays = [to_arrow([row[i] for row in content], type_) for i, type_ in enumerate(types)]
    expected = [encode_key(row, types, descending) for row in content]
    assert compile_key_batch_encoder(types, descending)(arrays) == expected
    with_prefix = compile_key_batch_encoder(types, descending, prefix=b"\x10\x00\x00\x00\x00")
    assert with_prefix([array.slice(1) for array in arrays]) == [b"\x10\x00\x00\x00\x00" + key for key in expected[1:]]


def test_narrower_arrow_integers() -> None:
    assert compile_key_batch_encoder([BIGINT])([pa.array([-3], pa.int16())]) == [encode_key([-3], [BIGINT])]
