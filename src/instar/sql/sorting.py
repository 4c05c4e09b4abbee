"""Order and equality of rows as SQL has them: sort passes with NULLs placed, and keys to hash rows by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar.sql.execution import Row
from instar.sql.expressions import Compiler, Frame
from instar.sql.tree import SortKey
from instar.types import Type
from instar.values import comparison_key

SortPass = tuple[Callable[[Row, Frame], tuple[int, object]], bool]


def sort_passes(compiler: Callable[[], Compiler], keys: Sequence[SortKey]) -> list[SortPass]:
    """One pass per key, the last key's first: sorting is stable, backwards too."""
    return [_sort_pass(compiler(), key) for key in reversed(keys)]


def _sort_pass(compiler: Compiler, key: SortKey) -> SortPass:
    value = compiler.value(key.expr)
    normal = comparison_key(key.expr.type)
    null = (1 if key.nulls_first == key.descending else -1, None)

    def sort_key(row: Row, p: Frame) -> tuple[int, object]:
        found = value(row, p)
        if found is None:
            return null
        return 0, found if normal is None else normal(found)

    return sort_key, key.descending


def sort_rows(rows: list[Row], passes: Sequence[SortPass], p: Frame) -> None:
    """Sort in place."""
    for key, descending in passes:
        rows.sort(key=lambda row: key(row, p), reverse=descending)


def hashable(types: Sequence[Type]) -> Callable[[Row], object]:
    """What to hash in place of a row whose values have these types, so that equal means SQL's IS NOT DISTINCT FROM."""
    keyed = [(position, key) for position, type_ in enumerate(types) if (key := comparison_key(type_)) is not None]
    if not keyed:
        return lambda row: row

    def normal(row: Row) -> object:
        values = list(row)
        for position, key in keyed:
            if values[position] is not None:
                values[position] = key(values[position])
        return tuple(values)

    return normal
