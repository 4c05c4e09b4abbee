"""Windows: named ones put together with what OVER adds, and frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from sqlglot import exp

from instar import errors
from instar.sql.binder import coercion
from instar.sql.grammar.nodes import position_of
from instar.sql.traversal import references
from instar.sql.tree import Expr, Frame, SortKey
from instar.types import BIGINT, INTEGERS, Kind

if TYPE_CHECKING:
    from instar.sql.binder.calls import CallBinder

_START = ("unbounded preceding", "preceding", "current row", "following", "unbounded following")
Side = Literal["unbounded preceding", "preceding", "current row", "following", "unbounded following"]


class WindowDefinition(msgspec.Struct, frozen=True):
    """A window with nothing left to look up; expressions are still trees."""

    partition_by: tuple[exp.Expr, ...] = ()
    order_by: tuple[exp.Expr, ...] = ()
    frame: exp.WindowSpec | None = None


def combined_window(window: exp.Window, named: Mapping[str, exp.Window]) -> WindowDefinition:
    """OVER w, OVER (w), OVER (w ORDER BY ...): what the named window says and what is added, by PostgreSQL's rules."""
    own = WindowDefinition(
        tuple(window.args.get("partition_by") or ()),
        tuple(window.args["order"].expressions) if window.args.get("order") else (),
        window.args.get("spec"),
    )
    base_name = window.text("alias")
    if not base_name:
        return own
    found = named.get(base_name)
    if found is None:
        raise errors.error(
            errors.UNDEFINED_OBJECT, f'window "{base_name}" does not exist', position=position_of(window)
        )
    base = combined_window(found, {name: other for name, other in named.items() if name != base_name})
    if window.args.get("over"):
        return base
    for what, clash in (
        ("override PARTITION BY clause of", bool(own.partition_by)),
        ("override ORDER BY clause of", bool(own.order_by and base.order_by)),
        ("copy", base.frame is not None),
    ):
        if clash:
            tail = " because it has a frame clause" if what == "copy" else ""
            message = f'cannot {what} window "{base_name}"{tail}'
            raise errors.error(errors.WINDOWING_ERROR, message, position=position_of(window))
    return WindowDefinition(base.partition_by, own.order_by or base.order_by, own.frame)


def bind_frame(
    binder: CallBinder, spec: exp.WindowSpec | None, keys: tuple[SortKey, ...], position: int | None
) -> Frame | None:
    """The frame, its offsets as bigint (ROWS, GROUPS, RANGE over integers) or of the sort key's type (RANGE)."""
    if spec is None:
        return None
    unit: Literal["rows", "range", "groups"] = spec.args["kind"].lower()
    start, start_offset = _side(spec, "start")
    end, end_offset = _side(spec, "end")
    if start == "unbounded following":
        raise _error("frame start cannot be UNBOUNDED FOLLOWING", position)
    if end == "unbounded preceding":
        raise _error("frame end cannot be UNBOUNDED PRECEDING", position)
    if _START.index(start) > _START.index(end):
        names = {"current row": "current row", "following": "following row", "preceding": "preceding rows"}
        message = f"frame starting from {names[start]} cannot have {names.get(end, end)}"
        raise _error(message if start == "current row" else message.replace("rows", "row"), position)
    if unit == "groups" and not keys:
        raise _error("GROUPS mode requires an ORDER BY clause", position)
    if unit == "range" and (start_offset is not None or end_offset is not None):
        _check_range(keys, position)
    return Frame(
        unit,
        (start, _offset(binder, start_offset, unit, keys)),
        (end, _offset(binder, end_offset, unit, keys)),
    )


def _side(spec: exp.WindowSpec, which: str) -> tuple[Side, exp.Expr | None]:
    value, side = spec.args.get(which), spec.args.get(f"{which}_side")
    if value == "CURRENT ROW":
        return "current row", None
    if value == "UNBOUNDED":
        return ("unbounded preceding", None) if side == "PRECEDING" else ("unbounded following", None)
    return ("preceding", value) if side == "PRECEDING" else ("following", value)


def _check_range(keys: tuple[SortKey, ...], position: int | None) -> None:
    if len(keys) != 1:
        message = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column"
        raise _error(message, position)
    if keys[0].expr.type.kind not in INTEGERS | {Kind.NUMERIC, Kind.DOUBLE}:
        raise errors.unsupported(f"RANGE with an offset over {keys[0].expr.type}", position=position)


def _offset(binder: CallBinder, node: exp.Expr | None, unit: str, keys: tuple[SortKey, ...]) -> Expr | None:
    if node is None:
        return None
    if unit != "range":
        offset = binder.bigint(node, unit.upper())
    else:
        key = keys[0].expr.type
        wanted = BIGINT if key.kind in INTEGERS else key
        offset = coercion.require(binder.context, binder.bind(node), wanted, "RANGE", position_of(node))
    if references(offset).columns:
        message = f"argument of {unit.upper()} must not contain variables"
        raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position_of(node))
    return offset


def _error(message: str, position: int | None) -> errors.Error:
    return errors.error(errors.WINDOWING_ERROR, message, position=position)
