"""Keys: the order of the bytes is the order of the values; both ways; hostile bytes."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from instar import errors
from instar.encoding import keys
from instar.types import (
    BIGINT,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    Kind,
    Type,
)
from support.values import IN_KEYS

TYPES = list(IN_KEYS)


@st.composite
def rows(draw: Any, count: int = 2) -> tuple[list[Type], list[bool], list[list[Any]]]:
    """Some key columns with directions, and `count` rows of values, NULLs among them and often alike."""
    columns = draw(st.lists(st.tuples(st.sampled_from(TYPES), st.booleans()), min_size=1, max_size=4))
    out: list[list[Any]] = []
    for _ in range(count):
        row = []
        for i, (type_, _) in enumerate(columns):
            choices = [st.none(), IN_KEYS[type_], IN_KEYS[type_]]
            if out:
                choices.append(st.just(out[0][i]))
            row.append(draw(st.one_of(choices)))
        out.append(row)
    return [type_ for type_, _ in columns], [flag for _, flag in columns], out


def compare_values(a: Any, b: Any) -> int:
    """PostgreSQL's order of two values of one type: NaN greatest and equal to itself, text by code point."""
    if isinstance(a, float | Decimal):
        nan_a, nan_b = math.isnan(a), math.isnan(b)
        if nan_a or nan_b:
            return nan_a - nan_b
    if isinstance(a, str):
        a, b = [ord(c) for c in a], [ord(c) for c in b]
    return int(a > b) - int(a < b)


def compare_rows(a: list[Any], b: list[Any], descending: list[bool]) -> int:
    """NULLS LAST ascending, NULLS FIRST descending."""
    for x, y, flag in zip(a, b, descending, strict=True):
        order = (x is None) - (y is None) if x is None or y is None else compare_values(x, y)
        if order:
            return -order if flag else order
    return 0


def sqlstate_of(function: Any, *arguments: Any) -> str | None:
    """The SQLSTATE of the error that a call raises, None if it raises none; any other exception passes."""
    try:
        function(*arguments)
    except errors.Error as e:
        return e.sqlstate
    return None


def same(a: Any, b: Any) -> bool:
    return a is b or (a is not None and b is not None and type(a) is type(b) and compare_values(a, b) == 0)


@given(rows())
@settings(max_examples=400)
def test_order_of_keys_is_order_of_values(case: tuple[list[Type], list[bool], list[list[Any]]]) -> None:
    types, descending, (a, b) = case
    x, y = keys.encode_key(a, types, descending), keys.encode_key(b, types, descending)
    assert (x > y) - (x < y) == compare_rows(a, b, descending)
    assert x == y or not (x.startswith(y) or y.startswith(x))


@given(rows(count=1))
@settings(max_examples=200)
def test_round_trip(case: tuple[list[Type], list[bool], list[list[Any]]]) -> None:
    types, descending, (row,) = case
    data = keys.encode_key(row, types, descending)
    assert all(map(same, keys.decode_key(data), row))
    values, end = keys.compile_decoder(types, descending)(b"abc" + data + b"tail", 3)
    assert end == 3 + len(data)
    assert all(map(same, values, row))


@given(rows(count=1))
@settings(max_examples=200)
def test_compiled_encoder_agrees(case: tuple[list[Type], list[bool], list[list[Any]]]) -> None:
    types, descending, (row,) = case
    expected = keys.encode_key(row, types, descending)
    assert keys.compile_encoder(types, descending)(row) == expected
    assert keys.compile_encoder(types, descending, prefix=b"12345")(tuple(row)) == b"12345" + expected


@given(st.binary(max_size=60), st.lists(st.sampled_from(TYPES), min_size=1, max_size=3), st.booleans())
@settings(max_examples=300)
@example(b"\x20\x03\xff\xff\x0b\x00", [Type(Kind.NUMERIC, 10, 2)], False)
def test_hostile_bytes(data: bytes, types: list[Type], flag: bool) -> None:
    for decode in (keys.decode_key, lambda d: keys.compile_decoder(types, [flag] * len(types))(d, 0)):
        assert sqlstate_of(decode, data) in (None, errors.DATA_CORRUPTED)


@given(rows(count=1), st.data())
def test_damaged_keys(case: tuple[list[Type], list[bool], list[list[Any]]], data: st.DataObject) -> None:
    types, descending, (row,) = case
    key = bytearray(keys.encode_key(row, types, descending))
    key[data.draw(st.integers(0, len(key) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(key[: data.draw(st.integers(0, len(key)))])
    assert sqlstate_of(keys.compile_decoder(types, descending), cut, 0) in (None, errors.DATA_CORRUPTED)


def test_families_make_widening_free() -> None:
    for old, new in [(SMALLINT, BIGINT), (INTEGER, BIGINT)]:
        assert keys.encode_key([-7], [old]) == keys.encode_key([-7], [new])
        assert keys.same_key_family(old, new)
    real = struct.unpack("f", struct.pack("f", 0.1))[0]
    assert keys.encode_key([real], [REAL]) == keys.encode_key([real], [DOUBLE])
    assert keys.encode_key([Decimal("1.0")], [Type(Kind.NUMERIC, 5, 1)]) == keys.encode_key(
        [Decimal("1.00")], [NUMERIC]
    )
    assert keys.encode_key(["a"], [Type(Kind.VARCHAR, length=3)]) == keys.encode_key(["a"], [TEXT])
    assert not keys.same_key_family(INTEGER, NUMERIC)
    assert not keys.same_key_family(JSONB, JSONB)


def test_zero_and_nan() -> None:
    assert keys.encode_key([-0.0], [DOUBLE]) == keys.encode_key([0.0], [DOUBLE])
    strange = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    assert math.isnan(strange)
    assert keys.encode_key([strange], [DOUBLE]) == keys.encode_key([math.nan], [DOUBLE])
    assert keys.encode_key([Decimal("-0.00")], [NUMERIC]) == keys.encode_key([Decimal(0)], [NUMERIC])


def test_numeric_comes_back_with_its_scale() -> None:
    type_ = Type(Kind.NUMERIC, 10, 2)
    data = keys.encode_key([Decimal("100.00")], [type_])
    assert str(keys.compile_decoder([type_])(data, 0)[0][0]) == "100.00"
    assert str(keys.decode_key(data)[0]) == "100"


@pytest.mark.parametrize(
    ("value", "type_", "sqlstate"),
    [
        ("{}", JSONB, errors.FEATURE_NOT_SUPPORTED),
        (2**63, BIGINT, errors.NUMERIC_OUT_OF_RANGE),
        (2**31, DATE, errors.NUMERIC_OUT_OF_RANGE),
        ("\ud800", TEXT, errors.CHARACTER_NOT_IN_REPERTOIRE),
        (Decimal("Infinity"), NUMERIC, errors.FEATURE_NOT_SUPPORTED),
        (Decimal("1E+40000"), NUMERIC, errors.NUMERIC_OUT_OF_RANGE),
        (Decimal(int("1234567890" * 5 + "1")), NUMERIC, errors.NUMERIC_OUT_OF_RANGE),
    ],
)
def test_what_cannot_be_a_key(value: Any, type_: Type, sqlstate: str) -> None:
    with pytest.raises(errors.Error) as caught:
        keys.encode_key([value], [type_])
    assert caught.value.sqlstate == sqlstate
    with pytest.raises(errors.Error) as caught:
        keys.compile_encoder([type_])([value])
    assert caught.value.sqlstate == sqlstate


@given(rows(count=3), st.booleans(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=300)
def test_key_range(
    case: tuple[list[Type], list[bool], list[list[Any]]], low_open: bool, high_open: bool, low_in: bool, high_in: bool
) -> None:
    """A range holds exactly the keys between its bounds, and no NULL, in either direction."""
    types, descending, (row, low_row, high_row) = case
    n = len(types) - 1
    low, high = (None if low_open else low_row[n]), (None if high_open else high_row[n])
    prefix = b"\x10\x00\x00\x00\x07" + keys.encode_key(row[:n], types[:n], descending[:n])
    start, stop = keys.key_range(
        prefix, types[n], descending[n], low=low, low_inclusive=low_in, high=high, high_inclusive=high_in
    )
    value = row[n]
    key = prefix + keys.encode_key([value], [types[n]], [descending[n]]) + keys.encode_key([1], [BIGINT])
    inside = value is not None
    if inside and low is not None:
        inside = compare_values(value, low) >= (0 if low_in else 1)
    if inside and high is not None:
        inside = compare_values(value, high) <= (0 if high_in else -1)
    assert (start <= key < stop) == inside


@given(st.binary(max_size=5), st.binary(max_size=3))
def test_successor(prefix: bytes, rest: bytes) -> None:
    after = keys.successor(prefix)
    assert prefix + rest < after or prefix.strip(b"\xff") == b""
    assert not after.startswith(prefix) or prefix.strip(b"\xff") == b""


LONG_TEXT = st.builds(
    lambda head, size, tail: head * size + tail,
    st.sampled_from(["a", "b", "ab"]),
    st.integers(30, 120),
    st.text("ab", max_size=3),
)


@given(
    st.lists(st.tuples(LONG_TEXT | st.none(), LONG_TEXT | st.text("ab", max_size=2)), min_size=1, max_size=20),
    st.lists(st.booleans(), min_size=2, max_size=2),
    LONG_TEXT,
    LONG_TEXT,
)
@settings(max_examples=150)
def test_cut_keys_lose_no_row(values: list[tuple[Any, Any]], descending: list[bool], low: str, high: str) -> None:
    """Order down to the cut, equality of whole keys, and every range gives at least its rows."""
    types = [TEXT, TEXT]
    rowset = b"\x10\x00\x00\x00\x01"
    whole = [rowset + keys.encode_key(v, types, descending) for v in values]
    cut = [keys.limited_index_key(key, 5) for key in whole]
    size = 5 + keys.MAX_INDEX_PART_BYTES
    for a, x in zip(whole, cut, strict=True):
        assert len(x) <= size + keys.HASH_BYTES
        assert keys.is_cut(len(x)) == (a != x)
        for b, y in zip(whole, cut, strict=True):
            assert (a == b) == (x == y)
            if a[:size] != b[:size]:
                assert (a < b) == (x < y)
    bounds = keys.key_range(rowset, TEXT, descending[0], low=min(low, high), high=max(low, high), high_inclusive=False)
    start, stop = keys.limited_index_range(*bounds, 5)
    primary = keys.encode_key([2**63 - 1], [BIGINT])
    for a, x in zip(whole, cut, strict=True):
        if bounds[0] <= a < bounds[1]:
            assert start <= x + primary < stop
        elif x == a:
            assert not start <= x + primary < stop


def test_the_parts_of_an_index_key_fit_the_store() -> None:
    total = keys.ROWSET_PREFIX_BYTES + keys.MAX_INDEX_PART_BYTES + keys.HASH_BYTES + keys.MAX_PRIMARY_KEY_BYTES
    assert total <= 511
    key = bytes(keys.MAX_PRIMARY_KEY_BYTES)
    assert keys.limited_primary_key(b"12345" + key, 5) == b"12345" + key
    with pytest.raises(errors.Error) as caught:
        keys.limited_primary_key(key + b"x")
    assert caught.value.sqlstate == errors.LIMIT_EXCEEDED


def _compare_down_up(a: list[Any], b: list[Any]) -> int:
    return compare_rows(a, b, [True, False])


def test_a_sort_of_keys_is_a_sort_of_rows() -> None:
    rows_: list[list[Any]] = [[a, b] for a in (None, -1, 0, 5) for b in ("", "a", "a\x00", "a\x00\x01", "b", None)]
    by_key = sorted(rows_, key=lambda r: keys.encode_key(r, [INTEGER, TEXT], [True, False]))
    assert by_key == sorted(rows_, key=cmp_to_key(_compare_down_up))
