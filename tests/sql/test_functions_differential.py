"""Every entry of the table, both ways: our closure and DuckDB's text give one answer, errors included."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from instar.sql.functions import ANY, COMMON, Function, render_literal
from instar.sql.functions.registry import FUNCTIONS, OPERATORS
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Kind,
    Type,
)  # fmt: skip
from instar.values import from_text
from instar.values.numbers import single
from sql.duckdb_oracle import CONTEXT, connect, outcome, read, same, table

N52, N105, N22, N3810 = (Type(Kind.NUMERIC, p, s) for p, s in ((5, 2), (10, 5), (2, 2), (38, 10)))
D = Decimal

SAMPLES: dict[Type, list[Any]] = {
    BOOLEAN: [True, False],
    SMALLINT: [0, 1, -1, 7, -7, 2, 32767, -32768],
    INTEGER: [0, 1, -1, 7, -2, 3, 5, 33, 100, 2147483647, -2147483648],
    BIGINT: [0, 1, -1, 12, -18, 10**12, 2**63 - 1, -(2**63)],
    REAL: [single(x) for x in (0.0, 1.5, -2.5, 0.1, 3e38, 1e-30, 1e15)] + [math.nan, math.inf, -math.inf],
    DOUBLE: [0.0, -0.0, 1.0, 0.5, -0.5, 2.5, -3.7, 0.1, 1e15, 1e300, -1e300, 1e-300, 123456.789, math.nan, math.inf,
             -math.inf],
    NUMERIC: [D("0"), D("1"), D("-1.50"), D("2.5"), D("0.00"), D("100.0"), D("1E-10").quantize(D("1E-12")), D("NaN"),
              D("99999999999999999999999999999999999999"), D("-12345678901234567890.123456789"), D("1.005")],
    N52: [D("0.00"), D("1.00"), D("-1.50"), D("2.55"), D("999.99"), D("-999.99"), D("0.01")],
    N105: [D("0.00000"), D("1.50000"), D("-99999.99999"), D("0.00001"), D("3.14159")],
    N22: [D("0.00"), D("0.50"), D("-0.99"), D("0.05")],
    N3810: [D("0E-10"), D("9999999999999999999999999999.9999999999"), D("-1.5000000000"), D("3.3333333333")],
    TEXT: ["", "a", "abc", "ABC", "hello world", "a%b_c\\", "é", "ßĲ", "日本語", "x,y,,z", "  pad ", "%b%", "a_", "\\",
           "'quote'", "month", "1", "{a,1}", "ab\ncd"],
    BYTEA: [b"", b"\x00\xff", b"abc", b"\\x", bytes(range(80))],
    DATE: [from_text(DATE, t) for t in ("1970-01-01", "2000-02-29", "1999-12-31", "0001-01-01", "0044-03-15 BC",
                                        "9999-12-31", "2024-12-30", "1900-03-01", "20000-06-05", "4000-01-01 BC")],
    TIMESTAMP: [from_text(TIMESTAMP, t) for t in (
        "1970-01-01", "2024-03-31 02:30:00", "2024-10-27 02:30:00.5", "1969-12-31 23:59:59.999999", "0001-01-01",
        "0044-03-15 12:00:00 BC", "12345-06-07 08:09:10", "2001-01-01 00:00:00", "1850-01-01 00:00:00")],
    UUID: [bytes(16), b"\xff" * 16, bytes(range(16))],
    JSONB: [from_text(JSONB, t) for t in ('{"a": [1, 2, {"b": null}], "c": "x"}', "[1, 2.50, true]", "[]", "null",
                                          '"text"', "1.0", "1.00", "-5", "true", "{}", '{"a": 1}', '{"b": 1}', '[[]]')],
}  # fmt: skip
SAMPLES[TIMESTAMPTZ] = SAMPLES[TIMESTAMP]
STATIC = [NUMERIC, N52, N105, N22, N3810]


def variants(arguments: tuple[Any, ...]) -> Iterator[tuple[Type, ...]]:
    """Physical types for a signature: numerics in all forms, polymorphic arguments in a few types."""
    if COMMON in arguments:
        for type_ in (INTEGER, TEXT, DOUBLE, NUMERIC, N52, JSONB):
            yield tuple(type_ if argument is COMMON else argument for argument in arguments)
        return
    choices: list[list[Type]] = []
    for argument in arguments:
        if argument is ANY:
            choices.append([INTEGER, TEXT, BOOLEAN, DOUBLE, N52, TIMESTAMPTZ, UUID, JSONB, BYTEA, DATE, REAL])
        else:
            choices.append(STATIC if argument == NUMERIC else [argument])
    yield from itertools.product(*choices)


def entries() -> list[Any]:
    found = []
    for operators, functions in ((True, OPERATORS), (False, FUNCTIONS)):
        for name, group in sorted(functions.items()):
            for entry in group:
                if isinstance(entry, Function) and entry.volatility != "volatile" and not entry.returns_set:
                    arguments = ",".join(str(argument) for argument in entry.arguments)
                    found.append(pytest.param(entry, id=f"{name}({arguments}){'op' if operators else ''}"))
    return found


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with connect() as opened:
        yield opened


def evaluate(entry: Function, types: tuple[Type, ...], row: tuple[Any, ...]) -> Any:
    if entry.strict and None in row:
        return None
    closure = entry.closure([Type(t.kind) for t in types])
    return outcome(closure, CONTEXT, *row) if entry.context else outcome(closure, *row)


def rows_for(types: tuple[Type, ...], seed: str) -> list[tuple[Any, ...]]:
    rng = random.Random(seed)
    pools = [SAMPLES[type_] for type_ in types]
    everything = list(itertools.product(*pools)) if math.prod(map(len, pools)) <= 150 else None
    rows = everything or [tuple(rng.choice(pool) for pool in pools) for _ in range(80)]
    return rows + [tuple(None if i == hole else pool[0] for i, pool in enumerate(pools)) for hole in range(len(pools))]


def fails(value: Any) -> bool:
    return isinstance(value, tuple) and value[:1] == ("error",)


@pytest.mark.parametrize("entry", entries())
def test_both_engines_agree(entry: Function, connection: Any) -> None:
    for types in variants(entry.arguments):
        if entry.variadic:
            types = types + types[-1:]
        rows = rows_for(types, entry.name) if types else [()]
        answers = [evaluate(entry, types, row) for row in rows]
        good = [(row, answer) for row, answer in zip(rows, answers, strict=True) if not fails(answer)]
        source, columns = table([row for row, _ in good], types)
        rendered = entry.render(columns, CONTEXT)
        assert rendered.type.kind is entry.result_type(types).kind
        if good:
            found = read(connection, rendered.text, rendered.type, source)
            for (row, answer), other in zip(good, found, strict=True):
                assert same(answer, other), (types, row, answer, other, rendered.text)
        bad = [(row, answer) for row, answer in zip(rows, answers, strict=True) if fails(answer)]
        for row, answer in random.Random(1).sample(bad, min(3, len(bad))):
            source, columns = table([row], types)
            found = outcome(read, connection, entry.render(columns, CONTEXT).text, rendered.type, source)
            assert found == answer, (types, row)


@pytest.mark.parametrize("args", [(1, 5), (5, 1), (1, 10, 3), (10, 1, -4), (2, 2), (1, 2, 0)])
@pytest.mark.parametrize("type_", [INTEGER, BIGINT], ids=str)
def test_series_agree(type_: Type, args: tuple[int, ...], connection: Any) -> None:
    entry: Any
    (entry,) = (e for e in FUNCTIONS["generate_series"] if e.arguments == (type_,) * len(args))
    literals = [render_literal(arg, type_) for arg in args]
    ours = outcome(lambda: list(entry.closure([type_] * len(args))(*args)))
    theirs = outcome(read, connection, f"unnest({entry.render(literals, CONTEXT).text})", type_)
    assert ours == theirs


def test_random_values_differ_from_row_to_row(connection: Any) -> None:
    entry: Any
    for name in ("random", "gen_random_uuid"):
        (entry,) = FUNCTIONS[name]
        data, _ = table([(1,), (2,), (3,)], [INTEGER])
        assert len(set(read(connection, entry.render([], CONTEXT).text, entry.result, data))) == 3
        assert entry.closure([])() != entry.closure([])()


@pytest.mark.parametrize("type_", list(SAMPLES), ids=str)
def test_literals(type_: Type, connection: Any) -> None:
    logical = NUMERIC if type_.kind is Kind.NUMERIC else type_
    for value in [*SAMPLES[type_], None]:
        literal = render_literal(value, logical)
        assert same(read(connection, literal.text, literal.type)[0], value) or value is None
