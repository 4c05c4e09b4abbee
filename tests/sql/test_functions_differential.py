"""Every entry of the table, both ways: our closure and DuckDB's text give one answer, errors included."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
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
    TEXT,
    TIMESTAMPTZ,
    UUID,
    Kind,
    Type,
)  # fmt: skip
from sql.duckdb_oracle import CONTEXT, connect, outcome, read, same, table
from support.values import N52, SAMPLES, STATIC


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
