"""Plans compiled to programs, and programs run: queries here, DML in executor_dml.py.

A program is compiled once per plan and may be run by several threads at once: all that an execution changes is in its
frame and its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from instar import errors
from instar.catalog.layouts import Layouts
from instar.sql.execution import UNLIMITED, BudgetSpent, ExecutionContext, Given, Result, Row
from instar.sql.expressions import FrameLayout
from instar.sql.inputs import DrivenInputs
from instar.sql.operators import NodeCompiler
from instar.sql.plan import DRIVEN_BUDGET, Node, QueryPlan, Subplan

RunAnalytic = Callable[[QueryPlan, ExecutionContext, Given], Result]

_NOTHING: Given = {}


class QueryProgram:
    """A query, compiled. `analytic` runs a plan in the analytic engine."""

    def __init__(self, plan: QueryPlan, parameters: int, layouts: Layouts, analytic: RunAnalytic) -> None:
        self.plan = plan
        self.columns = tuple(zip(plan.names, plan.types, strict=True))
        self._analytic = analytic
        self._budget = plan.effort.budget if plan.analytic else None
        self._rows = None if plan.root is None else compile_rows(plan.root, plan.subplans, parameters, layouts)
        self._driven = DrivenInputs(plan.driven, parameters, layouts) if plan.driven else None
        # A query that spent its budget once is expected to do so again; the next plan of its text tries anew.
        self._too_large = False

    def run(self, context: ExecutionContext) -> Result:
        """The whole result. The executor goes first, up to its budget, unless it never can."""
        if self._rows is None:
            return self._analytic(self.plan, context, self._given(context))
        if not self._too_large:
            if self._budget is not None:
                context.remaining = self._budget
            try:
                return self._executed(self._rows, context)
            except BudgetSpent:
                self._too_large = True
            finally:
                if self._budget is not None:  # which is not that of an INSERT that has its rows from here
                    context.remaining = UNLIMITED
        try:
            return self._analytic(self.plan, context, _NOTHING)
        except errors.NotSupportedError:
            # What DuckDB cannot say exactly, the executor can: slowly.
            return self._executed(self._rows, context)

    def _given(self, context: ExecutionContext) -> Given:
        """What is read by keys for the analytic engine, if it is little."""
        if self._driven is None or self._too_large:
            return _NOTHING
        context.remaining = DRIVEN_BUDGET
        try:
            return self._driven.read(context)
        except BudgetSpent:
            self._too_large = True
            return _NOTHING
        finally:
            context.remaining = UNLIMITED  # as above

    def _executed(self, run: Callable[[ExecutionContext], Iterator[Row]], context: ExecutionContext) -> Result:
        rows = list(run(context))
        return Result(self.columns, rows, len(rows))

    def rows(self, context: ExecutionContext) -> list[Row]:
        """The rows, for INSERT ... SELECT."""
        return self.run(context).values()


def compile_rows(
    root: Node, subplans: Mapping[int, Subplan], parameters: int, layouts: Layouts
) -> Callable[[ExecutionContext], Iterator[Row]]:
    """A plan's tree as a function from a context to rows."""
    layout = FrameLayout(parameters)
    source = NodeCompiler(layout, subplans, layouts).source(root)

    def run(context: ExecutionContext) -> Iterator[Row]:
        return source(layout.frame(context.parameters, context.functions, context))

    return run
