"""From descriptors to the shapes that the rules know: positions are those of the sources' columns (`table.columns`).

The rules compare values with ==, indexes by their keys, and users as SQL has it. These agree but for NaN, which equals
itself as a key, and for jsonb, of which 1.0 and 1.00 are equal. So whoever hands values to the rules lets `comparable`
replace each NaN by one object, which a comparison of tuples takes for equal to itself, and each document by one that is
compared as SQL compares it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from instar.catalog.descriptors import Column, MadeByJoin, MadeBySplit, Table
from instar.transformations.records import Join, Row, Split
from instar.types import FLOATS, Kind
from instar.values import jsonb

_FLOAT_NAN = float("nan")
_NUMERIC_NAN = Decimal("NaN")


def column_places(table: Table) -> dict[int, int]:
    """Where each column of a table is in its rows, by the column's id."""
    return {column.id: place for place, column in enumerate(table.columns)}


def split_shape(source: Table, made: MadeBySplit, r: Table, s: Table) -> Split:
    """The shape of a split: R and S have their columns in the order of their descriptors, S without the hidden ones."""
    found = column_places(source)
    hidden = (made.counter, made.consistent)
    return Split(
        r=tuple([found[column.id] for column in r.columns]),
        s=tuple([found[column.id] for column in s.columns if column.id not in hidden]),
        on=tuple([found[column] for column in made.on]),
    )


def join_shape(r: Table, s: Table, made: MadeByJoin) -> Join:
    """The shape of a join."""
    in_r, in_s = column_places(r), column_places(s)
    return Join(
        r_key=tuple([in_r[column] for column in r.primary_key]),
        r_on=tuple([in_r[column] for column, _ in made.on]),
        s_key=tuple([in_s[column] for column in s.primary_key]),
        s_on=tuple([in_s[column] for _, column in made.on]),
        unique=made.unique,
    )


class _Document(str):
    """A jsonb document, equal to those that SQL takes for equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and (str.__eq__(self, other) or jsonb.sort_key(self) == jsonb.sort_key(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(jsonb.sort_key(self))


def comparable(columns: Sequence[Column]) -> Callable[[Iterable[object]], Row]:
    """A function from values of these columns to the same as the rules compare them."""
    kinds = [column.type.kind for column in columns]
    documents = [place for place, kind in enumerate(kinds) if kind is Kind.JSONB]
    if not documents and all(kind not in FLOATS and kind is not Kind.NUMERIC for kind in kinds):
        return tuple

    def compared(values: Iterable[object]) -> Row:
        row = [value if value == value else _nan(value) for value in values]
        for place in documents:
            document = row[place]
            row[place] = _Document(document) if isinstance(document, str) else document
        return tuple(row)

    return compared


def _nan(value: object) -> object:
    return _NUMERIC_NAN if isinstance(value, Decimal) else _FLOAT_NAN
