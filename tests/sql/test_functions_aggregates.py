"""Aggregates and window functions both ways: accumulators and DuckDB's text give one answer."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from instar import errors
from instar.sql.functions import ANY, COMMON, Aggregate, AggregateSql, Sql, Window, WindowFunction, duckdb_error
from instar.sql.functions.registry import FUNCTIONS
from instar.types import BIGINT, BYTEA, DOUBLE, INTEGER, NUMERIC, REAL, TEXT, Kind, Type
from instar.values import comparison_key
from sql.duckdb_oracle import connect, internal, outcome, same, table
from sql.test_functions_differential import fails
from support.values import SAMPLES, STATIC

D = Decimal
EXTRA = {
    DOUBLE: [
        [1.0, 2.5, -3.7],
        [1e308, 1e308],
        [float("inf"), 1.0],
        [float("nan"), 1.0],
        [5.0],
        [1.5, 1.797e308],
        [1e200, -1e200],
    ],
    REAL: [[1.0, 2.5], [5.0]],
    NUMERIC: [[D("1"), D("2.50"), D("2.5")], [D("NaN"), D("1")], [D("0.00")]],
    BIGINT: [[1, 2, 3], [2**63 - 1, 2**63 - 1], [5]],
    INTEGER: [[1, 2], [1, 2, 2], [1], [2147483647, 2147483647], [3, 3, 3]],
}


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with connect() as opened:
        yield opened


def entries(kind: type) -> list[Any]:
    return [
        pytest.param(entry, id=f"{name}({','.join(map(str, entry.arguments))})")
        for name, group in sorted(FUNCTIONS.items())
        for entry in group
        if isinstance(entry, kind)
    ]


def groups(type_: Any) -> list[list[Any]]:
    rng = random.Random(str(type_))
    pool = [value for value in SAMPLES[type_] if not (isinstance(value, float) and abs(value) > 1e30)]
    found = [rng.choices([*pool, None], k=7) for _ in range(6)]
    extra: Any = EXTRA.get(type_, [])
    return [*found, [], [None, None], *extra]


def accumulate(entry: Aggregate, types: tuple[Type, ...], rows: list[tuple[Any, ...]], distinct: bool) -> Any:
    accumulator = entry.accumulator([Type(t.kind) for t in types])()
    seen = set()
    for row in rows:
        if entry.strict and None in row:
            continue
        if distinct:
            keys = [comparison_key(type_) for type_ in types]
            key = tuple(v if v is None or k is None else k(v) for k, v in zip(keys, row, strict=True))
            if key in seen:
                continue
            seen.add(key)
        accumulator.add(*row)
    return accumulator.result()


def query(connection: Any, sql: Sql, source: Any, suffix: str = "") -> Any:
    text = f"CAST({sql.text} AS VARCHAR)" if sql.type.kind is Kind.UUID else sql.text
    connection.register("source_", source)
    try:
        result = connection.execute(f"SELECT {text} AS result FROM source_ {suffix}").to_arrow_table()
    except duckdb.Error as fault:
        raise duckdb_error(str(fault)) from fault
    return internal(result.column(0).combine_chunks(), sql.type)


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and a == a and b == b:
        return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    return same(a, b)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("entry", entries(Aggregate))
def test_aggregates_agree(entry: Any, distinct: bool, connection: Any) -> None:
    if not entry.arguments or (entry.ordered and distinct):
        return
    choices = STATIC if entry.arguments[0] == NUMERIC else [entry.arguments[0]]
    for first in [INTEGER, TEXT, DOUBLE, NUMERIC] if entry.arguments[0] is ANY else choices:
        types = (first, *(TEXT if argument is ANY else argument for argument in entry.arguments[1:]))
        delimiters = (b"-", None, b"") if first == BYTEA else ("-", None, "")
        for group in groups(first):
            rows = [(value, *(delimiters[i % 3] for _ in types[1:])) for i, value in enumerate(group)]
            answer = outcome(accumulate, entry, types, rows, distinct)
            source, columns = table(rows, types)
            modifiers = AggregateSql(distinct=distinct, order_by="" if distinct else "row_")
            rendered = entry.render(columns, modifiers)
            assert rendered.type.kind is entry.result_type([Type(t.kind) for t in types]).kind
            if fails(answer):
                with pytest.raises(errors.Error) as caught:
                    raise AssertionError((rows, answer, query(connection, rendered, source)))
                assert caught.value.sqlstate == answer[1]
            else:
                found = query(connection, rendered, source)[0]
                assert close(answer, found), (types, rows, answer, found, rendered.text)


@pytest.mark.parametrize("name", ["var_samp", "variance", "var_pop", "stddev_samp", "stddev", "stddev_pop"])
def test_squares_of_doubles_that_overflow(name: str) -> None:
    """Both executors fold the same way; an infinity among the values is none of its making."""
    entry: Any
    (entry,) = (e for e in FUNCTIONS[name] if e.arguments == (DOUBLE,))
    with pytest.raises(errors.Error) as refused:
        accumulate(entry, (DOUBLE,), [(1.5,), (1.797e308,)], False)
    assert refused.value.sqlstate == "22003"
    for value in (float("inf"), float("nan")):
        for rows in ([(1.5,), (value,)], [(value,), (1.5,)], [(value,), (-value,)]):
            assert math.isnan(accumulate(entry, (DOUBLE,), rows, False))


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize(
    ("type_", "values"),
    [(DOUBLE, [0.0, -0.0]), (DOUBLE, [-0.0, 0.0]), (REAL, [1.0, 0.0, -0.0, 1.0]), (NUMERIC, [D("1.0"), D("1.00")])],
    ids=str,
)
def test_one_of_equals_is_the_same_one(name: str, type_: Type, values: list[Any], connection: Any) -> None:
    entry: Any
    (entry,) = (e for e in FUNCTIONS[name] if e.arguments == (type_,))
    rows = [(value,) for value in values]
    source, columns = table(rows, [type_])
    (found,) = query(connection, entry.render(columns, AggregateSql()), source)
    assert str(accumulate(entry, (type_,), rows, False)) == str(found)


def test_count_of_rows(connection: Any) -> None:
    entry: Any
    (entry,) = (e for e in FUNCTIONS["count"] if not e.arguments)
    source, _ = table([(1,), (None,)], [INTEGER])
    assert query(connection, entry.render([], AggregateSql()), source) == [2]
    assert query(connection, entry.render([], AggregateSql(filter="c0 IS NULL")), source) == [1]
    assert accumulate(entry, (), [(), ()], False) == 2


@pytest.mark.parametrize("name", ["sum", "avg", "var_samp", "min", "max"])
@pytest.mark.parametrize("type_", [INTEGER, Type(Kind.NUMERIC, 5, 2), NUMERIC, DOUBLE], ids=str)
def test_running_aggregates_agree(name: str, type_: Type, connection: Any) -> None:
    entry: Any
    (entry,) = (e for e in FUNCTIONS[name] if e.arguments == (Type(type_.kind),))
    samples: dict[Type, list[Any]] = {INTEGER: [1, 2, None, 7], DOUBLE: [1.0, 2.5, None]}
    rows = [(value,) for value in samples.get(type_, [D("1.50"), None, D("2.25")])]
    accumulator, expected = entry.accumulator([Type(type_.kind)])(), []
    for (value,) in rows:
        if value is not None:
            accumulator.add(value)
        expected.append(accumulator.result())
    source, columns = table(rows, [type_])
    over = "ORDER BY row_ ROWS UNBOUNDED PRECEDING"
    found = query(connection, entry.render(columns, AggregateSql(over=over)), source, "ORDER BY row_")
    assert all(map(close, expected, found)), (expected, found)


VALUES = [(3, 1, 0), (1, 1, 0), (1, 2, 9), (None, 1, 0), (7, 3, 1), (7, 1, 1)]


@pytest.mark.parametrize("frame", ["RANGE UNBOUNDED PRECEDING", "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING"])
@pytest.mark.parametrize("entry", entries(WindowFunction))
def test_window_functions_agree(entry: Any, frame: str, connection: Any) -> None:
    types = tuple(INTEGER if argument in (ANY, COMMON) else argument for argument in entry.arguments)
    if entry.name == "ntile":
        rows: list[tuple[Any, ...]] = [(4,)] * len(VALUES)
    else:
        rows = [row[: len(types)] for row in sorted(VALUES, key=lambda row: (row[0] is None, row[0] or 0))]
    order = [row[0] for row in sorted(VALUES, key=lambda row: (row[0] is None, row[0] or 0))]
    peers = [sorted(set(order), key=lambda v: (v is None, v or 0)).index(value) for value in order]
    if frame.startswith("RANGE"):
        frames = [(0, max(i for i, peer in enumerate(peers) if peer == p) + 1) for p in peers]
    else:
        frames = [(max(i - 1, 0), min(i + 2, len(rows))) for i in range(len(rows))]
    expected = entry.python(Window(rows, peers, frames))
    source, columns = table(rows, types) if types else table([(i,) for i in range(len(rows))], [INTEGER])
    import pyarrow as pa

    source = source.append_column("peer_", pa.array(peers))
    order_by = "peer_" if entry.name in ("rank", "dense_rank", "percent_rank", "cume_dist") else "peer_, row_"
    if frame.startswith("RANGE") and entry.name in ("first_value", "last_value", "nth_value"):
        order_by = "peer_"
    rendered = entry.render(columns[: len(types)], AggregateSql(over=f"ORDER BY {order_by} {frame}"))
    found = query(connection, rendered, source, "ORDER BY row_")
    assert len(found) == len(expected)
    assert all(map(close, expected, found)), (expected, found)


def test_bad_arguments_of_window_functions(connection: Any) -> None:
    entry: Any
    for name, argument, sqlstate in (("ntile", 0, "22014"), ("nth_value", 0, "22016")):
        (entry,) = FUNCTIONS[name]
        types = (INTEGER,) * len(entry.arguments)
        rows = [(argument,) * len(types)]
        with pytest.raises(errors.Error) as ours:
            entry.python(Window(rows, [0], [(0, 1)]))
        source, columns = table(rows, types)
        with pytest.raises(errors.Error) as theirs:
            query(connection, entry.render(columns, AggregateSql(over="ORDER BY row_")), source)
        assert ours.value.sqlstate == theirs.value.sqlstate == sqlstate
