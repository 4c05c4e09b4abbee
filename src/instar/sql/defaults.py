"""Defaults evaluated outside of statements: for rows that came before their column, and for SET DEFAULT."""

from __future__ import annotations

from collections.abc import Callable

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Column, Sequence
from instar.schemachange.populate import Numbers
from instar.sql import tree
from instar.sql.binder import bind_default
from instar.sql.expressions import Compiler, FrameLayout, Scope
from instar.sql.functions import Context
from instar.sql.traversal import walk

# Nodes all of whose arguments are evaluated for every row.
_UNCONDITIONAL = (
    tree.Literal,
    tree.NextValue,
    tree.Call,
    tree.Cast,
    tree.Not,
    tree.IsNull,
    tree.IsTruth,
    tree.IsDistinct,
)


class Execution:
    """What expressions without a statement may ask of the execution: values of sequences. A session's has more
    (database/numbers.py): what it has drawn, and setval."""

    __slots__ = ("functions", "next_value")

    def __init__(self, next_value: Callable[[int], int], functions: Context) -> None:
        self.next_value = next_value
        self.functions = functions


def compile_default(
    column: Column, catalog: CatalogSnapshot, functions: Context, next_value: Callable[[int], int]
) -> Callable[[], object]:
    """A function that evaluates what a row gets which says nothing of `column`; `functions` is what stable functions
    read."""
    layout = FrameLayout(0)
    evaluate = Compiler(Scope({}), layout).value(bind_default(column, catalog))
    frame = layout.frame((), functions, Execution(next_value, functions))
    return lambda: evaluate((), frame)


class Defaults:
    """The defaults of columns that are given to rows by jobs: a `CompileDefault` (schemachange/populate.py)."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def __call__(self, column: Column, catalog: CatalogSnapshot, now: int, zone: str) -> Callable[[], object]:
        """The default of `column` as of `catalog`."""

        def next_value(number: int) -> int:
            found = catalog.by_id(number)
            assert isinstance(found, Sequence)  # DROP SEQUENCE asks who uses it
            return self._numbers.next_value(found)

        return compile_default(column, catalog, Context(now=now, zone=zone), next_value)

    def draws(self, column: Column, catalog: CatalogSnapshot) -> tuple[int, ...] | None:
        """As in `CompileDefault`."""
        nodes = list(walk(bind_default(column, catalog)))
        taken = tuple(node.sequence for node in nodes if isinstance(node, tree.NextValue))
        if taken and not all(isinstance(node, _UNCONDITIONAL) for node in nodes):
            return None
        return taken
