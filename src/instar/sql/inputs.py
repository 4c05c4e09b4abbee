"""Tables that keys drive, read by the executor for a query that runs in the analytic engine (see driving.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby, product
from operator import itemgetter
from typing import NamedTuple

from instar.catalog.layouts import Layouts
from instar.sql.accesses import Source, access_source
from instar.sql.execution import ExecutionContext, Row
from instar.sql.expressions import ColumnKey, Frame, FrameLayout
from instar.sql.plan import Access, node_references
from instar.sql.sorting import hashable


class _Step(NamedTuple):
    """One table: its rows for a frame, in which `slots` hold the `outer` columns of tables read before, by table."""

    relation: int
    source: Source
    outer: list[tuple[int, list[ColumnKey]]]
    slots: list[int]


class DrivenInputs:
    """The rows of the tables of `accesses`, in their order. Compiled once, may be run by several threads at once."""

    def __init__(self, accesses: Sequence[Access], parameters: int, layouts: Layouts) -> None:
        self._layout = FrameLayout(parameters)
        self._accesses = {access.relation: access for access in accesses}
        self._steps = [self._step(access, layouts) for access in accesses]

    def _step(self, access: Access, layouts: Layouts) -> _Step:
        source = access_source(access, self._layout, None, layouts)
        columns = sorted(node_references(access))
        outer = [(relation, list(found)) for relation, found in groupby(columns, itemgetter(0))]
        return _Step(access.relation, source, outer, [self._layout.outer(column) for column in columns])

    def read(self, context: ExecutionContext) -> dict[int, list[Row]]:
        """The rows by relation. Each counts against the budget: BudgetSpent."""
        frame = self._layout.frame(context.parameters, context.functions, context)
        found: dict[int, list[Row]] = {}
        for step in self._steps:
            found[step.relation] = self._rows(step, frame, found, context)
        return found

    def _rows(self, step: _Step, frame: Frame, found: Mapping[int, list[Row]], context: ExecutionContext) -> list[Row]:
        """An index nested loop over the distinct values of the columns that the path compares with."""
        rows: list[Row] = []
        for values in product(*[self._distinct(found[relation], columns) for relation, columns in step.outer]):
            context.touch(1)
            for slot, value in zip(step.slots, chain(*values), strict=True):
                frame[slot] = value
            rows += step.source(frame)
        return rows

    def _distinct(self, rows: list[Row], columns: list[ColumnKey]) -> list[Row]:
        access = self._accesses[columns[0][0]]
        positions = [access.scope.columns[column] for column in columns]
        normal = hashable([access.table.columns[ordinal].type for _relation, ordinal in columns])
        tuples = [tuple([row[position] for position in positions]) for row in rows]
        return list({normal(values): values for values in tuples}.values())
