"""Window functions that are no aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from instar import errors
from instar.sql.functions.model import ANY, COMMON, AggregateSql, Argument, Sql, Window, WindowFunction
from instar.sql.functions.rendering import fail, unify
from instar.types import BIGINT, DOUBLE, INTEGER, Type

_NTILE = "argument of ntile must be greater than zero"
_NTH = "argument of nth_value must be greater than zero"


def _row_number(window: Window) -> list[object]:
    return list(range(1, len(window.rows) + 1))


def _first_of_peers(window: Window) -> list[int]:
    """For each row, the position of the first row of its peer group."""
    starts: list[int] = []
    for position, group in enumerate(window.peers):
        starts.append(starts[-1] if position and window.peers[position - 1] == group else position)
    return starts


def _rank(window: Window) -> list[object]:
    return [start + 1 for start in _first_of_peers(window)]


def _dense_rank(window: Window) -> list[object]:
    first = window.peers[0] if window.peers else 0
    return [group - first + 1 for group in window.peers]


def _percent_rank(window: Window) -> list[object]:
    rows = len(window.rows)
    return [start / (rows - 1) if rows > 1 else 0.0 for start in _first_of_peers(window)]


def _cume_dist(window: Window) -> list[object]:
    last = {group: position for position, group in enumerate(window.peers)}
    return [(last[group] + 1) / len(window.rows) for group in window.peers]


def _ntile(window: Window) -> list[object]:
    buckets: Any = window.rows[0][0] if window.rows else None
    if buckets is None:
        return [None] * len(window.rows)
    if buckets <= 0:
        raise errors.error(errors.INVALID_NTILE_ARGUMENT, _NTILE)
    size, larger = divmod(len(window.rows), buckets)
    found: list[object] = []
    for bucket in range(1, buckets + 1):
        found += [bucket] * (size + (bucket <= larger))
        if len(found) >= len(window.rows):
            break
    return found


def _shifted(direction: int) -> Callable[[Window], list[object]]:
    def apply(window: Window) -> list[object]:
        found: list[object] = []
        for position, args in enumerate(window.rows):
            offset: Any = args[1] if len(args) > 1 else 1
            if offset is None:
                found.append(None)
                continue
            source = position + direction * offset
            if 0 <= source < len(window.rows):
                found.append(window.rows[source][0])
            else:
                found.append(args[2] if len(args) > 2 else None)
        return found

    return apply


def _first_value(window: Window) -> list[object]:
    return [window.rows[start][0] if start < end else None for start, end in window.frames]


def _last_value(window: Window) -> list[object]:
    return [window.rows[end - 1][0] if start < end else None for start, end in window.frames]


def _nth_value(window: Window) -> list[object]:
    found: list[object] = []
    for (start, end), args in zip(window.frames, window.rows, strict=True):
        number: Any = args[1]
        if number is not None and number <= 0:
            raise errors.error(errors.INVALID_NTH_VALUE_ARGUMENT, _NTH)
        inside = number is not None and start + number - 1 < end
        found.append(window.rows[start + number - 1][0] if inside else None)
    return found


# --- DuckDB ----------------------------------------------------------------------------------------------------------


def _native(name: str, result: Type) -> Callable[[AggregateSql, Sequence[Sql]], Sql]:
    return lambda modifiers, args: Sql(modifiers.call(name, *(arg.text for arg in args)), result)


def _of_value(name: str) -> Callable[[AggregateSql, Sequence[Sql]], Sql]:
    return lambda modifiers, args: Sql(modifiers.call(name, args[0].text), args[0].type)


def _render_ntile(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    return Sql(f"CAST({modifiers.call('ntile', args[0].text)} AS INTEGER)", INTEGER)


def _render_shifted(name: str) -> Callable[[AggregateSql, Sequence[Sql]], Sql]:
    def render(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
        if len(args) < 3:
            return Sql(modifiers.call(name, *(arg.text for arg in args)), args[0].type)
        value, default = unify([args[0], args[2]])
        return Sql(modifiers.call(name, value.text, args[1].text, default.text), value.type)

    return render


def _render_nth(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    number = f"(CASE WHEN {args[1].text} <= 0 THEN {fail('22016', _NTH)} ELSE {args[1].text} END)"
    return Sql(modifiers.call("nth_value", args[0].text, number), args[0].type)


def _first(types: tuple[Type, ...]) -> Type:
    return types[0]


def _shift_functions(name: str, direction: int) -> list[WindowFunction]:
    python, render = _shifted(direction), _render_shifted(name)
    signatures: tuple[tuple[Argument, ...], ...] = ((ANY,), (ANY, INTEGER), (COMMON, INTEGER, COMMON))
    return [WindowFunction(name, arguments, _first, python, render) for arguments in signatures]


ENTRIES = (
    WindowFunction("row_number", (), BIGINT, _row_number, _native("row_number", BIGINT)),
    WindowFunction("rank", (), BIGINT, _rank, _native("rank", BIGINT)),
    WindowFunction("dense_rank", (), BIGINT, _dense_rank, _native("dense_rank", BIGINT)),
    WindowFunction("percent_rank", (), DOUBLE, _percent_rank, _native("percent_rank", DOUBLE)),
    WindowFunction("cume_dist", (), DOUBLE, _cume_dist, _native("cume_dist", DOUBLE)),
    WindowFunction("ntile", (INTEGER,), INTEGER, _ntile, _render_ntile),
    *_shift_functions("lag", -1),
    *_shift_functions("lead", 1),
    WindowFunction("first_value", (ANY,), _first, _first_value, _of_value("first_value")),
    WindowFunction("last_value", (ANY,), _first, _last_value, _of_value("last_value")),
    WindowFunction("nth_value", (ANY, INTEGER), _first, _nth_value, _render_nth),
)
