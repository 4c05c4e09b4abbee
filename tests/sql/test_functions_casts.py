"""Casts both ways: the closure and DuckDB's text give one answer, errors included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from instar import errors
from instar.sql.functions import render_cast, sort_key, unify
from instar.types import DOUBLE, NUMERIC, REAL, TEXT, VARCHAR, Kind, Type
from instar.values import cast, cast_context, comparison_key
from sql.duckdb_oracle import CONTEXT, connect, outcome, read, same, table
from sql.test_functions_differential import fails
from support.values import SAMPLES

TARGETS = [
    *(type_ for type_ in SAMPLES if type_.precision is None),
    VARCHAR,
    Type(Kind.VARCHAR, length=3),
    Type(Kind.NUMERIC, 5, 1),
    Type(Kind.NUMERIC, 38, 10),
]
NUMBERS_AS_TEXT = [
    "1",
    " 42 ",
    "-7",
    "1.5",
    "1e3",
    "NaN",
    "0x1F",
    "1_000",
    "infinity",
    "99999999999",
    "1e400",
    "1e-40",
    "x",
    "",
]
DATES_AS_TEXT = ["2024-02-29", "2024-02-30", "Jan 8, 1999", "2024-03-31 02:30:00", "2024-10-27 02:30+02", "1/8/1999"]
OTHERS_AS_TEXT = ["t", "no", "\\x00ff", "\\x0", '{"b":1, "a": [2.50]}', "{}", "[1", "0" * 32, "abcd   ", "été"]


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with connect() as opened:
        yield opened


def samples(source: Type, target: Type) -> list[Any]:
    values = NUMBERS_AS_TEXT + DATES_AS_TEXT + OTHERS_AS_TEXT if source == TEXT else SAMPLES[source]
    if target.kind is Kind.NUMERIC and target.precision is not None:  # DECIMAL has no NaN: 0A000 in DuckDB
        return [value for value in values if value == value and str(value) != "NaN"]
    return values


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("source", list(SAMPLES), ids=str)
def test_both_engines_agree(source: Type, explicit: bool, connection: Any) -> None:
    for target in TARGETS:
        if cast_context(source, target) is None:
            continue
        logical = NUMERIC if source.kind is Kind.NUMERIC else source
        answers = [
            (v, outcome(cast, v, logical, target, explicit, CONTEXT.zone)) for v in [*samples(source, target), None]
        ]
        good = [(value, answer) for value, answer in answers if not fails(answer)]
        data, (column,) = table([(value,) for value, _ in good], [source])
        rendered = render_cast(column, target, explicit, CONTEXT)
        for (value, answer), other in zip(good, read(connection, rendered.text, rendered.type, data), strict=True):
            assert same(answer, other), (str(target), value, answer, other, rendered.text)
        for value, answer in [pair for pair in answers if fails(pair[1])][:4]:
            data, (column,) = table([(value,)], [source])
            rendered = render_cast(column, target, explicit, CONTEXT)
            found = outcome(read, connection, rendered.text, rendered.type, data)
            # NaN and infinity where a type has none are refused, if in other words.
            assert found == answer or (fails(found) and answer[1] == "0A000"), (str(target), value, found)


@pytest.mark.parametrize(
    ("source", "value"), [(DOUBLE, 1e-50), (DOUBLE, -1e-300), (REAL, 2.0**-140), (TEXT, "1e-40")], ids=str
)
def test_what_has_too_many_digits_for_a_numeric_may_round_to_one_with_a_scale(
    source: Type, value: Any, connection: Any
) -> None:
    target = Type(Kind.NUMERIC, 5, 1)
    assert str(cast(value, source, target, True, CONTEXT.zone)) == "0.0"
    with pytest.raises(errors.Error) as caught:
        cast(value, source, NUMERIC, True, CONTEXT.zone)
    assert caught.value.sqlstate == errors.NUMERIC_OUT_OF_RANGE
    data, (column,) = table([(value,)], [source])
    rendered = render_cast(column, target, True, CONTEXT)
    assert [str(found) for found in read(connection, rendered.text, rendered.type, data)] == ["0.0"]


@pytest.mark.parametrize("type_", list(SAMPLES), ids=str)
def test_sort_keys_order_as_ours(type_: Type, connection: Any) -> None:
    key: Any = comparison_key(type_)
    values = sorted(SAMPLES[type_], key=key)
    data, (column,) = table([(value,) for value in values], [type_])
    connection.register("ordered_", data)
    found = connection.execute(f"SELECT row_ FROM ordered_ ORDER BY {sort_key(column)}, row_").fetchall()
    assert [row for (row,) in found] == list(range(len(values)))


def test_numerics_of_different_scale_keep_it_in_one_column(connection: Any) -> None:
    two, five = (Type(Kind.NUMERIC, p, s) for p, s in ((5, 2), (10, 5)))
    data, columns = table([(SAMPLES[two][2], SAMPLES[five][1])], [two, five])
    first, second = unify(columns)
    assert first.type == second.type == Type(Kind.NUMERIC, None, 5)
    assert [str(read(connection, sql.text, NUMERIC, data)[0]) for sql in (first, second)] == ["-1.50", "1.50000"]
