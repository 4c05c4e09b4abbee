"""Columns that are derived of others: generated ones, and what a column that takes the place of another one, with
another type, has in rows that were written without it (thesis §3: rows are converted when they are read).

Expressions are SQL's business, which lies above. That a row needs one is seen when its bytes are read, in whichever
process reads them, a Spark task too. So the evaluator is looked up by name when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from instar import errors
from instar.catalog.descriptors import Derivation, Table

# The values of the sources, in their order, to the column's.
Compute = Callable[[Sequence[Any]], Any]
Image = tuple[object, ...]

_MODULE, _FUNCTION = "instar.sql.derivations", "compile_derivation"


@lru_cache(maxsize=1024)
def computation(derivation: Derivation, *, lenient: bool = False) -> Compute:
    """The function that computes a derived value; its errors are those of the conversion (22P02, 22003, ...).

    `lenient`: NULL in the place of an error.
    """
    compute: Compute = getattr(import_module(_MODULE), _FUNCTION)(derivation)
    if not lenient:
        return compute

    def forgiving(values: Sequence[Any]) -> Any:
        try:
            return compute(values)
        except errors.Error:
            return None

    return forgiving


class DerivedColumn(NamedTuple):
    """A column that is derived of each row as it is written: its place in the row, the function, and the places of what
    that takes."""

    ordinal: int
    compute: Compute
    sources: list[int]


def derived_columns(table: Table) -> list[DerivedColumn]:
    """Those of a table."""
    return _derived_columns(table)


def _derived_columns(table: Table, *, lenient: bool = False, generated: bool = False) -> list[DerivedColumn]:
    ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
    return [
        DerivedColumn(
            ordinal,
            computation(column.derived, lenient=lenient),
            [ordinals[source.id] for source in column.derived.sources],
        )
        for ordinal, column in enumerate(table.columns)
        if column.is_derived and column.derived is not None and (column.generated or not generated)
    ]


def deriver(table: Table, *, lenient: bool = False, generated: bool = False) -> Callable[[Image], Image] | None:
    """A function that gives a whole row its values of the columns that are derived of it; None if there are none.

    `lenient` as of `computation`. `generated`: of generated columns alone, which have the same value whenever it is
    asked for; a conversion may have another one each time.
    """
    steps = _derived_columns(table, lenient=lenient, generated=generated)
    if not steps:
        return None

    def derive(image: Image) -> Image:
        made = list(image)
        for ordinal, compute, places in steps:
            made[ordinal] = compute([image[place] for place in places])
        return tuple(made)

    return derive
