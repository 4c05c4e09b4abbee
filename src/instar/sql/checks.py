"""CHECK constraints as predicates on rows: what walks over whole tables are given (schemachange/validate.py)."""

from __future__ import annotations

import time

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Check, Table
from instar.schemachange.validate import Predicate
from instar.sql.binder import bind_check
from instar.sql.expressions import Compiler, FrameLayout, Scope
from instar.sql.functions import Context


def compile_check(table: Table, check: Check) -> Predicate:
    """A CHECK constraint as a closure over rows that have `table`'s columns, in their order. What reads a clock is
    given the present, and what reads a time zone UTC: whoever walks the table is no session."""
    # A frozen check names columns of its own table only, by id: it needs no catalog.
    alone = CatalogSnapshot.of([table])
    layout = FrameLayout(0)
    scope = Scope({(0, ordinal): ordinal for ordinal in range(len(table.columns))})
    frame = layout.frame((), Context(now=time.time_ns() // 1000), None)
    holds = Compiler(scope, layout).value(bind_check(check.expression, table, 0, alone))
    return lambda image: holds(image, frame)
