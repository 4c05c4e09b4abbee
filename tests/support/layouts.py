"""Chains of layouts as schema changes make them, rows in any of them, and what these are under a later one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from instar.catalog.descriptors import Layout
from instar.encoding.keys import WIDE
from instar.tables.layout import body_encoder, row_start
from instar.tables.resolver import Wanted
from instar.types import BIGINT, DOUBLE, INTEGER, NUMERIC, REAL, SMALLINT, TEXT, VARCHAR, Kind, Type
from support.values import TYPES, values


def numeric(precision: int, scale: int) -> Type:
    return Type(Kind.NUMERIC, precision, scale)


def varchar(length: int) -> Type:
    return Type(Kind.VARCHAR, length=length)


WIDER: dict[Type, list[Type]] = {
    SMALLINT: [INTEGER, BIGINT],
    INTEGER: [BIGINT],
    REAL: [DOUBLE],
    varchar(4): [varchar(20), TEXT, VARCHAR],
    varchar(20): [TEXT],
    numeric(5, 2): [numeric(8, 2), numeric(18, 4), numeric(30, 4), NUMERIC],
    numeric(19, 4): [numeric(38, 10), NUMERIC],
}


def stored(layout: Layout, row: tuple[Any, ...]) -> bytes:
    """A row value as the store has it."""
    return row_start(layout, 7) + body_encoder(layout)(row)


@st.composite
def chains(draw: Any) -> tuple[list[Layout], dict[int, Any]]:
    """Layouts that follow each other by adding, dropping and widening columns, and by other locks; each added column's
    missing value."""
    columns = [(i, draw(TYPES)) for i in range(draw(st.integers(1, 4)))]
    layouts, next_id = [Layout(0, tuple(columns))], len(columns)
    locks: tuple[int, ...] = ()
    missing: dict[int, Any] = {}
    for number in range(1, draw(st.integers(2, 6))):
        step = draw(st.sampled_from(["add", "drop", "widen", "lock"]))
        place = draw(st.integers(0, max(0, len(columns) - 1)))
        if step == "lock":
            locks = tuple(range(draw(st.sampled_from([0, 2, 3]))))
        elif step == "drop" and len(columns) > 1:
            del columns[place]
        elif step == "widen" and columns[place][1] in WIDER:
            column, wider = columns[place][0], draw(st.sampled_from(WIDER[columns[place][1]]))
            columns[place] = (column, wider)
            frozen = missing.get(column)
            # A frozen value is read as one of the column's type of now.
            if isinstance(frozen, Decimal) and wider.precision is not None:
                missing[column] = frozen.quantize(Decimal((0, (1,), -(wider.scale or 0))), context=WIDE)
        else:
            type_ = draw(TYPES)
            columns.insert(place, (next_id, type_))
            missing[next_id] = draw(st.none() | values(type_, nan=False))
            next_id += 1
        layouts.append(Layout(number, tuple(columns), locks))
    return layouts, missing


def drawn_row(data: st.DataObject, layout: Layout) -> tuple[Any, ...]:
    return tuple(data.draw(st.none() | values(type_, nan=False)) for _, type_ in layout.columns)


def wanted_of(layout: Layout, missing: dict[int, Any]) -> list[Wanted]:
    return [Wanted(column, type_, missing.get(column)) for column, type_ in layout.columns]


def model(written: Layout, row: tuple[Any, ...], wanted: list[Wanted]) -> tuple[Any, ...]:
    """The row as `wanted` must have it, when nothing was narrowed."""
    by_id = dict(zip([column for column, _ in written.columns], row, strict=True))
    out = []
    for column, type_, missing, _derived, _lenient in wanted:
        value = by_id.get(column, missing) if column in by_id else missing
        if column in by_id and isinstance(value, Decimal) and not value.is_nan() and type_.precision is not None:
            value = value.quantize(Decimal((0, (1,), -(type_.scale or 0))), context=WIDE)
        out.append(value)
    return tuple(out)
