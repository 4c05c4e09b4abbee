"""The resolver against a naive model: any chain of layouts, read under any of its schemas, by row and by batch."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar import errors
from instar.catalog.descriptors import Layout
from instar.catalog.layouts import outline_of
from instar.encoding.row_batches import arrow_type
from instar.encoding.rows import numeric_text
from instar.tables.layout import row_start
from instar.tables.resolver import Wanted, Wants, is_widening, mixed_batch_reader, resolver, rewriter
from instar.types import (
    BIGINT,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Type,
)
from support.layouts import WIDER, chains, drawn_row, model, numeric, stored, varchar, wanted_of
from support.values import same


def arrow_value(value: Any, type_: Type) -> Any:
    if isinstance(value, Decimal) and type_.precision is None:
        return numeric_text(value).decode()
    return value


@given(chains(), st.data())
@settings(max_examples=150)
def test_older_rows_under_the_newest_schema(chain: tuple[list[Layout], dict[int, Any]], data: st.DataObject) -> None:
    layouts, missing = chain
    target = layouts[-1]
    wanted = wanted_of(target, missing)
    content = [
        (layout, drawn_row(data, layout)) for layout in data.draw(st.lists(st.sampled_from(layouts), max_size=8))
    ]
    rows = [stored(layout, row) for layout, row in content]
    expected = [model(layout, row, wanted) for layout, row in content]
    for (layout, _), value, row in zip(content, rows, expected, strict=True):
        assert all(map(same, resolver(layout, wanted)(value), row))
        body = rewriter(layout, target, missing)(value)
        assert all(map(same, resolver(target, wanted)(row_start(target, 7) + body), row))
    arrays = mixed_batch_reader(lambda layout: layouts[layout], wanted)(rows)
    for i, (_, type_, *_) in enumerate(wanted):
        arrays[i].validate(full=True)
        assert arrays[i].type == arrow_type(type_)
        if arrays[i].type in (arrow_type(DATE), arrow_type(TIMESTAMP), arrow_type(TIMESTAMPTZ)):
            numbers = arrays[i].cast("int32" if type_ == DATE else "int64").to_pylist()
        else:
            numbers = arrays[i].to_pylist()
        assert all(same(a, arrow_value(row[i], type_)) for a, row in zip(numbers, expected, strict=True))


@given(chains(), st.data())
@settings(max_examples=100)
def test_newer_rows_under_the_oldest_schema(chain: tuple[list[Layout], dict[int, Any]], data: st.DataObject) -> None:
    """A column that widened reads as it was where the value fits, else 40001; the batch decides the same."""
    layouts, missing = chain
    written, oldest = layouts[-1], layouts[0]
    wanted = wanted_of(oldest, missing)
    row = drawn_row(data, written)
    value = stored(written, row)
    types = dict(written.columns)
    found = attempt(resolver(written, wanted), value)
    batch = attempt(mixed_batch_reader(lambda _: written, wanted), [value])
    if isinstance(found, str) or isinstance(batch, str):
        assert found == batch == errors.SERIALIZATION_FAILURE
        assert any(types.get(c, t) != t for c, t, *_ in wanted)
        return
    by_id = dict(zip(types, row, strict=True))
    for (column, type_, absent, *_), value_, array in zip(wanted, found, batch, strict=True):
        original = by_id.get(column, absent) if column in types else absent
        assert value_ == original or (value_ != value_ and original != original)
        if array.type not in (arrow_type(DATE), arrow_type(TIMESTAMP), arrow_type(TIMESTAMPTZ)):
            assert same(array[0].as_py(), arrow_value(value_, type_))


def attempt(function: Any, argument: Any) -> Any:
    """What the function gives, or the SQLSTATE of its error."""
    try:
        return function(argument)
    except errors.Error as e:
        return e.sqlstate


NARROWED = [
    (INTEGER, SMALLINT, 2**15, False),
    (INTEGER, SMALLINT, -(2**15), True),
    (DOUBLE, REAL, 0.1, False),
    (DOUBLE, REAL, 1e300, False),
    (DOUBLE, REAL, 0.5, True),
    (DOUBLE, REAL, float("nan"), True),
    (DOUBLE, REAL, float("inf"), True),
    (TEXT, varchar(3), "éééé", False),
    (TEXT, varchar(3), "ééé", True),
    (numeric(8, 2), numeric(5, 2), Decimal("1000.00"), False),
    (numeric(8, 2), numeric(5, 2), Decimal("999.99"), True),
    (numeric(8, 4), numeric(8, 2), Decimal("1.2300"), True),
    (numeric(8, 4), numeric(8, 2), Decimal("1.2345"), False),
    (numeric(38, 0), numeric(8, 2), Decimal(10) ** 30, False),
    (NUMERIC, numeric(5, 2), Decimal("1.5"), True),
    (NUMERIC, numeric(5, 2), Decimal("1.555"), False),
    (NUMERIC, numeric(5, 2), Decimal("1E+37"), False),
]


@pytest.mark.parametrize(("written", "wanted", "value", "fits"), NARROWED)
def test_narrowing(written: Type, wanted: Type, value: Any, fits: bool) -> None:
    layout = Layout(5, ((1, written),))
    row = stored(layout, (value,))
    one = attempt(resolver(layout, [Wanted(1, wanted)]), row)
    many = attempt(mixed_batch_reader(lambda _: layout, [Wanted(1, wanted)]), [row, row])
    if not fits:
        assert one == many == errors.SERIALIZATION_FAILURE
        return
    assert same(one[0], value) or one[0] == value
    assert many[0].type == arrow_type(wanted)
    assert [repr(v) for v in many[0].to_pylist()] == [repr(one[0])] * 2


@pytest.mark.parametrize(("old", "new"), [(INTEGER, TEXT), (INTEGER, NUMERIC), (TIMESTAMP, TIMESTAMPTZ), (TEXT, BYTEA)])
def test_unrelated_types(old: Type, new: Type) -> None:
    layout = Layout(1, ((1, old),))
    assert not is_widening(old, new)
    with pytest.raises(errors.Error) as caught:
        resolver(layout, [Wanted(1, new)])
    assert caught.value.sqlstate == errors.SERIALIZATION_FAILURE
    read = mixed_batch_reader(lambda _: layout, [Wanted(1, new)])
    assert attempt(read, [stored(layout, (None,))]) == errors.SERIALIZATION_FAILURE


def test_is_widening() -> None:
    for old, wider in WIDER.items():
        assert is_widening(old, old)
        for new in wider:
            assert is_widening(old, new)
            assert not is_widening(new, old)
    assert is_widening(TEXT, VARCHAR)
    assert is_widening(VARCHAR, TEXT)
    assert not is_widening(numeric(5, 2), numeric(6, 4))
    assert not is_widening(NUMERIC, numeric(38, 0))


def test_missing_values_that_are_equal_are_not_confused() -> None:
    layout = Layout(1, ((1, INTEGER),))
    row = stored(layout, (1,))
    for missing in (Decimal("1.0"), Decimal("1.00"), 0.0, -0.0):
        type_ = DOUBLE if isinstance(missing, float) else NUMERIC
        assert repr(resolver(layout, [Wanted(2, type_, missing)])(row)[0]) == repr(missing)
    assert resolver(layout, [Wanted(2, NUMERIC, Decimal(1))]) is resolver(layout, [Wanted(2, NUMERIC, Decimal(1))])


def test_order_of_a_mixed_batch() -> None:
    layouts = {
        1: Layout(1, ((1, INTEGER),)),
        4: Layout(4, ((1, BIGINT), (2, TEXT))),
        1000000: Layout(1000000, ((1, BIGINT),)),
    }
    ids = [4, 1, 1000000, 4, 1, 1, 4]
    rows = [stored(layouts[id_], (i, f"text {i}")[: len(layouts[id_].columns)]) for i, id_ in enumerate(ids)]
    asked: list[int] = []

    def find(id_: int) -> Layout:
        asked.append(id_)
        return layouts[id_]

    read = mixed_batch_reader(find, [Wanted(2, TEXT, "none"), Wanted(1, BIGINT)])
    texts, numbers = read(rows)
    assert numbers.to_pylist() == list(range(7))
    assert texts.to_pylist() == ["text 0", "none", "none", "text 3", "none", "none", "text 6"]
    assert sorted(asked) == [1, 4, 1000000]
    assert [array.type for array in read([])] == [arrow_type(TEXT), arrow_type(BIGINT)]


def test_damaged_batches() -> None:
    layout = Layout(1, ((1, INTEGER), (2, TEXT)))
    read = mixed_batch_reader(lambda _: layout, [Wanted(2, TEXT), Wanted(1, INTEGER)])
    good = stored(layout, (1, "abc"))
    for bad in (b"", good[:15], good[:20], good[:-1], good[:-1] + b"\xff"):
        assert attempt(read, [good, bad]) == errors.DATA_CORRUPTED


def test_nan_in_a_missing_value() -> None:
    layout = Layout(1, ((1, INTEGER),))
    wanted = [Wanted(2, numeric(5, 2), Decimal("NaN"))]
    assert resolver(layout, wanted)(stored(layout, (1,)))[0].is_nan()
    with pytest.raises(errors.NotSupportedError):
        mixed_batch_reader(lambda _: layout, wanted)([stored(layout, (1,))])


def test_columns_that_nobody_wants_are_all_alike() -> None:
    """A column that comes and goes for ever makes two readers, and not one for each of its layouts."""
    wanted = [Wanted(2, TEXT, "none"), Wanted(1, BIGINT)]
    found = set()
    for number in range(20):
        columns: tuple[tuple[int, Type], ...] = ((1, BIGINT), (2, TEXT))
        if number % 2:
            columns = (*columns, (10 + number, BIGINT))
        layout = Layout(number, columns)
        found.add(resolver(layout, wanted))
        assert resolver(layout, wanted)(stored(layout, (5, "b", 7)[: len(columns)])) == ("b", 5)
    assert len(found) == 2
    assert resolver(LAYOUT_OF_THREE, wanted)(stored(LAYOUT_OF_THREE, (5, "c"))) == ("none", 5)


LAYOUT_OF_THREE = Layout(1, ((1, BIGINT), (3, TEXT)))


def test_a_column_that_is_wanted_twice() -> None:
    assert resolver(LAYOUT_OF_THREE, [Wanted(3, TEXT), Wanted(1, BIGINT), Wanted(3, TEXT)])(
        stored(LAYOUT_OF_THREE, (5, "c"))
    ) == ("c", 5, "c")


def test_layouts_alike_are_the_same_to_readers() -> None:
    """The same object, which is found in caches without a look at what it is made of."""
    wants = Wants([Wanted(1, BIGINT), Wanted(2, TEXT)])
    one = Layout(4, ((1, BIGINT), (2, TEXT), (7, BIGINT)))
    other = Layout(9, ((1, BIGINT), (2, TEXT), (12, BIGINT)))
    assert wants.written(one) is wants.written(other)
    assert wants.written(one) is wants.outlined(outline_of(other))
    assert wants.written(one).columns == ((1, BIGINT), (2, TEXT), (0, BIGINT))
    assert wants.written(Layout(9, ((1, BIGINT), (12, TEXT), (2, TEXT)))).columns == ((1, BIGINT), (0, TEXT), (2, TEXT))
    assert wants.written(Layout(9, one.columns, (3,))) is not wants.written(one)
