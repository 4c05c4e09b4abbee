"""Row batches: the same as row by row, in both directions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoding.strategies import scattered
from instar import errors
from instar.encoding.joined import join_values
from instar.encoding.row_batches import arrow_type, compile_batch_encoder, decode_columns
from instar.encoding.rows import BODY_OFFSET, compile_decoder, compile_encoder, numeric_text, row_format
from instar.types import BIGINT, BOOLEAN, INTEGER, NUMERIC, SMALLINT, TEXT, UNKNOWN, VARCHAR, Kind, Type
from support.values import TYPES, rows

HEADER = bytes(range(BODY_OFFSET))
TYPE_LISTS = st.lists(TYPES, min_size=1, max_size=8)


def to_arrow(values: list[Any], type_: Type) -> pa.Array:
    """Internal values as the Arrow array that a batch of them has."""
    if type_.kind is Kind.NUMERIC and type_.precision is None:
        values = [None if value is None else numeric_text(value).decode() for value in values]
    return pa.array(values, arrow_type(type_))


def alike(a: pa.Array, b: pa.Array) -> bool:
    return a.type == b.type and (a.equals(b) or a.to_pylist().__repr__() == b.to_pylist().__repr__())


@given(TYPE_LISTS, st.data())
@settings(max_examples=200)
def test_a_batch_is_its_rows(types: list[Type], data: st.DataObject) -> None:
    """Whether or not lock timestamps stand between header and body."""
    locks = data.draw(st.integers(0, 3))
    stamps = b"timestmp" * locks
    form = row_format(tuple(types), locks)
    content = data.draw(rows(types, nan=False))
    encode = compile_encoder(form)
    values = [HEADER + stamps + encode(row) for row in content]
    positions = data.draw(st.lists(st.integers(0, len(types) - 1), max_size=5))
    for joined in (join_values(values), data.draw(scattered(values))):
        for position, array in zip(positions, decode_columns(joined, form, positions), strict=True):
            array.validate(full=True)
            assert alike(array, to_arrow([row[position] for row in content], types[position]))


@given(TYPE_LISTS, st.data())
@settings(max_examples=200)
def test_encoding_a_batch_is_encoding_its_rows(types: list[Type], data: st.DataObject) -> None:
    form = row_format(tuple(types))
    content = data.draw(rows(types, nan=False))
    columns = [to_arrow([row[i] for row in content], type_) for i, type_ in enumerate(types)]
    batch = pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(types))])
    encode = compile_encoder(form)
    expected = [encode(row) for row in content]
    assert compile_batch_encoder(form)(batch) == expected
    assert compile_batch_encoder(form)(batch, HEADER) == [HEADER + body for body in expected]
    sliced = batch.slice(1)  # offsets into the buffers, bits within a byte
    assert compile_batch_encoder(form)(sliced) == expected[1:]


@given(TYPE_LISTS, st.data())
@settings(max_examples=200)
def test_hostile_batches(types: list[Type], data: st.DataObject) -> None:
    form = row_format(tuple(types))
    encode = compile_encoder(form)
    values = [bytearray(HEADER + encode(row)) for row in data.draw(rows(types, size=2, nan=False))]
    victim = data.draw(st.sampled_from(values))
    victim[data.draw(st.integers(0, len(victim) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = [bytes(value) for value in values]
    if data.draw(st.booleans()):
        damaged[0] = damaged[0][: data.draw(st.integers(0, len(damaged[0])))]
    try:
        for array in decode_columns(join_values(damaged), form, range(len(types))):
            array.validate(full=True)
    except errors.Error as e:
        # NaN is a bit pattern of a numeric(p,s).
        sqlstate = e.sqlstate
        assert sqlstate in (errors.DATA_CORRUPTED, errors.FEATURE_NOT_SUPPORTED)
    except pa.ArrowInvalid as e:
        assert "Decimal" in str(e) or "precision" in str(e)  # noqa: PT017 - a flipped bit made a number too long


def test_an_empty_batch() -> None:
    form = row_format((INTEGER, TEXT))
    assert [a.type for a in decode_columns(join_values([]), form, [1, 0])] == [pa.string(), pa.int32()]
    batch = pa.RecordBatch.from_arrays([pa.array([], pa.int32()), pa.array([], pa.string())], ["a", "b"])
    assert compile_batch_encoder(form)(batch) == []


def test_columns_are_cast() -> None:
    form = row_format((BIGINT, TEXT))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, None], pa.int16()), pa.array(["a", "b"], pa.large_string())], ["a", "b"]
    )
    bodies = compile_batch_encoder(form)(batch, HEADER)
    assert [compile_decoder(form)(body) for body in bodies] == [(1, "a"), (None, "b")]


@pytest.mark.parametrize(
    ("array", "type_", "sqlstate"),
    [
        (pa.array([2**20]), SMALLINT, errors.NUMERIC_OUT_OF_RANGE),
        (pa.array(["a\x00"]), TEXT, errors.CHARACTER_NOT_IN_REPERTOIRE),
        (pa.array(["éééé"]), Type(Kind.VARCHAR, length=3), errors.STRING_TOO_LONG),
        (pa.array(["1e5"]), NUMERIC, errors.INVALID_TEXT),
        (pa.array([Decimal("1.25")]), Type(Kind.NUMERIC, 5, 1), errors.NUMERIC_OUT_OF_RANGE),
        (pa.array([[1]]), INTEGER, errors.FEATURE_NOT_SUPPORTED),
    ],
)
def test_what_does_not_fit(array: pa.Array, type_: Type, sqlstate: str) -> None:
    batch = pa.RecordBatch.from_arrays([array], ["a"])
    with pytest.raises(errors.Error) as caught:
        compile_batch_encoder(row_format((type_,)))(batch)
    assert caught.value.sqlstate == sqlstate


def test_nul_is_looked_for_in_values_only() -> None:
    encode = compile_batch_encoder(row_format((TEXT,)))
    bad = pa.array(["x", "a\x00b", "", "y", None])
    # A NULL with bytes under it, as other writers of Arrow may leave them.
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), pa.array(["\x00", "z"]).buffers()[1],
                                                    pa.py_buffer(b"\x00z")])  # fmt: skip
    for good in (pa.nulls(3, pa.string()), bad.slice(0, 1), bad.slice(2), bad.slice(3), bad.slice(5), hidden):
        decode = compile_decoder(row_format((TEXT,)))
        bodies = encode(pa.RecordBatch.from_arrays([good], ["a"]), HEADER)
        assert [decode(body)[0] for body in bodies] == good.to_pylist()
    for array in (bad, bad.slice(1, 1), bad.slice(1)):
        with pytest.raises(errors.DataError):
            encode(pa.RecordBatch.from_arrays([array], ["a"]))


@pytest.mark.parametrize("type_", [Type(Kind.NUMERIC, 9, 2), Type(Kind.NUMERIC, 30, 2)])
def test_nan_has_no_arrow_decimal(type_: Type) -> None:
    form = row_format((type_, BOOLEAN, VARCHAR))
    values = [HEADER + compile_encoder(form)((Decimal("NaN"), True, "x"))]
    with pytest.raises(errors.NotSupportedError):
        decode_columns(join_values(values), form, [0])
    assert decode_columns(join_values(values), form, [1])[0].to_pylist() == [True]


def test_arrow_types() -> None:
    assert arrow_type(Type(Kind.NUMERIC, 12, 2)) == pa.decimal128(12, 2)
    assert arrow_type(NUMERIC) == pa.string()
    with pytest.raises(errors.NotSupportedError):
        arrow_type(UNKNOWN)


@pytest.mark.parametrize("type_", [Type(Kind.NUMERIC, 10, 2), Type(Kind.NUMERIC, 38, 2)])
def test_nan_of_a_decimal_is_text_where_that_is_asked_for(type_: Type) -> None:
    form = row_format((type_, INTEGER))
    columns = [[Decimal("NaN"), Decimal("1.50"), None, Decimal("-0.07")], [1, 2, 3, 4]]
    values = [HEADER + compile_encoder(form)(row) for row in zip(*columns, strict=True)]
    texts, numbers = decode_columns(join_values(values), form, [0, 1], {0})
    assert texts.to_pylist() == ["NaN", "1.50", None, "-0.07"]
    assert numbers.to_pylist() == [1, 2, 3, 4]
    assert decode_columns(join_values(values[1:]), form, [0], {0})[0].type == arrow_type(type_)
