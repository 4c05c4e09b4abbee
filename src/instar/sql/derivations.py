"""Values of columns that are derived of others: what tables/derivations.py looks up by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Derivation, Layout, State, Table
from instar.sql.binder import bind_conversion
from instar.sql.expressions import Compiler, FrameLayout, Scope
from instar.sql.functions import Context


def compile_derivation(derivation: Derivation) -> Callable[[Sequence[Any]], Any]:
    """A function from the values of the sources to the derived one; what it reads of time and zone is pinned."""
    # It names columns of its own table only, by id, and needs nothing else of the catalog.
    table = _table(derivation)
    alone = CatalogSnapshot.of([table])
    layout = FrameLayout(0)
    scope = Scope({(0, ordinal): ordinal for ordinal in range(len(table.columns))})
    evaluate = Compiler(scope, layout).value(bind_conversion(derivation, table, alone))
    functions = Context(now=derivation.now, zone=derivation.zone)
    return lambda values: evaluate(tuple(values), layout.frame((), functions, None))


def _table(derivation: Derivation) -> Table:
    """A table that has the sources, and nothing else."""
    columns = tuple(msgspec.structs.replace(source, state=State.PUBLIC) for source in derivation.sources)
    return Table(
        id=1,
        name="sources",
        version=1,
        columns=columns,
        primary_key=(),
        primary_key_name="",
        rowset=0,
        layout=Layout(1, ()),
        oldest_layout=1,
        next_id=0,
    )
