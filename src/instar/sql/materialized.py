"""CREATE MATERIALIZED VIEW: whether its query is one that can follow the log, and what it is made of.

The query is looked at as it is bound: names and stars are resolved, and casts written out. What is neither a join of
two tables by equal columns nor a grouping of one by its columns, with counts, sums and averages of its columns, is
0A000, which names what is in the way.
"""

from __future__ import annotations

from collections.abc import Iterable

from instar import errors, values
from instar.catalog.descriptors import Column, Table
from instar.schemachange import wanted as want
from instar.sql import statements, tree
from instar.sql.binder.context import CatalogReader, Context
from instar.sql.binder.deparse import Deparser
from instar.sql.binder.frozen import freeze_query
from instar.sql.binder.queries import QueryBinder
from instar.sql.traversal import children, conjuncts, walk
from instar.sql.tree import Expr
from instar.types import NUMBERS, STRINGS, Kind, Type

_PLACE = "in a materialized view"
_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})


def materialized_view(
    name: str, query: statements.Query, column_names: tuple[str, ...], catalog: CatalogReader, zone: str
) -> want.CreateMaterializedView:
    """What a materialized view wants; `zone`: the session's. Errors as of CREATE VIEW; 0A000 naming what cannot follow
    the log."""
    frozen = freeze_query(query, column_names, catalog, "a materialized view", zone)
    bound = QueryBinder(Context(catalog, zone=zone)).query(query.expression, None)
    tables: tuple[Table, ...]
    made_by: want.Grouped | want.Joined
    if not isinstance(bound, tree.Select):
        raise _unsupported("UNION, INTERSECT, EXCEPT or VALUES")
    _require_plain(bound)
    if isinstance(bound.from_, tree.Join):
        tables, made_by = _joined(bound, bound.from_)
    elif isinstance(bound.from_, tree.TableScan):
        if not bound.aggregated:
            raise _unsupported("a query of one table without GROUP BY")
        tables = (bound.from_.table,)
        made_by = _Grouping(bound, bound.from_.table, catalog).wanted()
    else:
        raise _unsupported(_from_item(bound.from_))
    names = tuple(table.name for table in tables)
    return want.CreateMaterializedView(name, names, frozen.text, frozen.columns, frozen.depends_on, made_by)


def _unsupported(what: str) -> errors.Error:
    return errors.unsupported(f"{what} {_PLACE}")


def _from_item(item: tree.FromItem | None) -> str:
    match item:
        case None:
            return "a query without FROM"
        case tree.Join():
            return "a join of more than two tables"
        case tree.Derived(view=int()):
            return "a view"
        case tree.Derived():
            return "a subquery in FROM"
        case tree.SystemScan():
            return "a system view"
        case _:
            return "FROM without a table"


def _require_plain(query: tree.Select) -> None:
    """0A000 for clauses that no rule keeps up."""
    clauses: tuple[tuple[object, str], ...] = (
        (query.ctes, "WITH"),
        (query.distinct or query.distinct_on, "DISTINCT"),
        (query.having, "HAVING"),
        (query.order_by, "ORDER BY"),
        (query.limit, "LIMIT"),
        (query.offset, "OFFSET"),
        (query.grouping_sets is not None and len(query.grouping_sets) != 1, "GROUPING SETS"),
    )
    for there, what in clauses:
        if there:
            raise _unsupported(what)
    for found in walk(query):
        if isinstance(found, tree.ScalarSubquery | tree.Exists | tree.InSubquery):
            raise _unsupported("a subquery")
        if isinstance(found, tree.WindowCall):
            raise _unsupported("a window function")
        if isinstance(found, tree.Parameter):
            raise errors.error(errors.UNDEFINED_PARAMETER, "materialized views may not be defined using parameters")


def _joined(query: tree.Select, join: tree.Join) -> tuple[tuple[Table, Table], want.Joined]:
    """A join of two tables by equal columns."""
    if query.aggregated:
        raise _unsupported("a grouping of a join")
    if query.where is not None:
        raise _unsupported("WHERE of a join")
    scans = []
    for item in (join.left, join.right):
        if not isinstance(item, tree.TableScan):
            raise _unsupported(_from_item(item))
        scans.append(item)
    left, right = scans
    if left.table.id == right.table.id:
        raise _unsupported(f'a join of table "{left.table.name}" with itself')
    if join.kind == "cross":
        raise _unsupported("CROSS JOIN")
    columns = {left.relation: (0, left.table), right.relation: (1, right.table)}

    def place(expr: Expr, what: str) -> tuple[int, Column]:
        if not isinstance(expr, tree.ColumnRef):
            raise _unsupported(what)
        side, table = columns[expr.relation]
        return side, table.columns[expr.ordinal]

    on = []
    for test in conjuncts(join.condition):
        what = "a join condition that is no equality of columns of both tables"
        if not isinstance(test, tree.Call) or test.function.name != "=" or not test.function.operator:
            raise _unsupported(what)
        for arg in test.args:
            if isinstance(arg, tree.Cast) and isinstance(arg.operand, tree.ColumnRef):
                raise _unsupported(f"a join by columns of different types, {arg.operand.type} and {arg.type},")
        (one, first), (other, second) = (place(arg, what) for arg in test.args)
        if one == other:
            raise _unsupported(what)
        on.append((first.name, second.name) if one < other else (second.name, first.name))
    outputs = []
    for output in query.outputs:
        parts = output.expr.args if isinstance(output.expr, tree.Coalesce) else (output.expr,)
        found = (place(part, "an expression that is no column of either table") for part in parts)
        outputs.append(tuple((side, column.id) for side, column in found))
    joined = want.Joined(join.kind, tuple(dict.fromkeys(on)), tuple(outputs))
    return (left.table, right.table), joined


class _Grouping:
    """A grouping of one table, as it is bound."""

    def __init__(self, query: tree.Select, table: Table, catalog: CatalogReader) -> None:
        self._query = query
        self._table = table
        self._catalog = catalog
        self._values: dict[int, bool] = {}  # whether a column that is counted is summed up, too

    def wanted(self) -> want.Grouped:
        groups = tuple(self._column(found, "GROUP BY an expression") for found in self._query.group_exprs)
        if len(set(groups)) < len(groups):
            raise _unsupported("GROUP BY a column twice")
        if not groups:
            raise _unsupported("an aggregate without GROUP BY")
        for output in self._query.outputs:
            if isinstance(output.expr, tree.AggregateCall):
                self._note(output.expr)
        places = {column: place for place, column in enumerate(self._values)}
        outputs = tuple(self._output(output.expr, groups, places) for output in self._query.outputs)
        condition, reads = self._condition()
        return want.Grouped(groups, tuple(self._values.items()), outputs, condition, reads)

    def _column(self, expr: Expr, what: str) -> int:
        if not isinstance(expr, tree.ColumnRef):
            raise _unsupported(what)
        column = self._table.columns[expr.ordinal]
        if column.hidden:
            raise _unsupported("a hidden column")
        return column.id

    def _note(self, call: tree.AggregateCall) -> None:
        name = call.aggregate.name
        if name not in ("count", "sum", "avg"):
            raise _unsupported(f"aggregate {name}")
        for there, what in ((call.distinct, "DISTINCT"), (call.filter, "FILTER"), (call.order_by, "ORDER BY")):
            if there:
                raise _unsupported(f"{what} of aggregate {name}")
        if call.args:
            column = self._argument(call)
            self._values[column] = self._values.get(column, False) or name != "count"

    def _argument(self, call: tree.AggregateCall) -> int:
        (argument,) = call.args
        return self._column(argument, f"aggregate {call.aggregate.name} of an expression, which is no column,")

    def _output(self, expr: Expr, groups: tuple[int, ...], places: dict[int, int]) -> want.GroupedOutput:
        if isinstance(expr, tree.AggregateCall):
            match expr.aggregate.name:
                case "count" if not expr.args:
                    return want.GroupedOutput("rows")
                case "count":
                    return want.GroupedOutput("count", places[self._argument(expr)])
                case "sum":
                    return want.GroupedOutput("sum", places[self._argument(expr)])
                case _:
                    return want.GroupedOutput("avg", places[self._argument(expr)])
        column = self._column(expr, "an expression that is neither a column nor an aggregate")
        return want.GroupedOutput("group", groups.index(column))

    def _condition(self) -> tuple[str | None, tuple[int, ...]]:
        """WHERE as a check, and the columns that it reads."""
        where = self._query.where
        if where is None:
            return None, ()
        _require_simple(where)
        scan = self._query.from_
        assert isinstance(scan, tree.TableScan)
        text = Deparser(self._catalog, by_ids=True, tables={scan.relation: self._table}, qualified=False)
        refs = [found for found in walk(where) if isinstance(found, tree.ColumnRef)]
        return text.expression(where), tuple(sorted({self._column(found, "a condition") for found in refs}))


def _require_simple(where: Expr) -> None:
    """0A000 for a condition that may say something else tomorrow, or fail for a row: nobody could be told."""
    waiting: list[Expr] = [where]
    while waiting:
        found = waiting.pop()
        match found:
            case tree.ColumnRef() | tree.Literal():
                continue
            case tree.Call(function=function) if function.operator and function.name in _COMPARISONS:
                pass
            case tree.Cast(operand=operand, type=type_) if _is_widening(operand.type, type_):
                pass
            case (
                tree.And() | tree.Or() | tree.Not() | tree.IsNull() | tree.IsTruth() | tree.IsDistinct()
                | tree.InList() | tree.Coalesce()
            ):  # fmt: skip
                pass
            case tree.Call(function=function):
                raise _unsupported(f"{'operator' if function.operator else 'function'} {function.name} in WHERE")
            case tree.Cast(operand=operand, type=type_):
                raise _unsupported(f"a cast from {operand.type} to {type_} in WHERE")
            case tree.Case():
                raise _unsupported("CASE in WHERE")
            case _:
                raise _unsupported("such an expression in WHERE")
        waiting.extend(_operands(found))


def _is_widening(source: Type, target: Type) -> bool:
    """Whether each value of one type is one of the other, whatever the session."""
    if target.precision is not None:
        return False
    if source.kind in NUMBERS and target.kind in NUMBERS:
        return source.kind is not target.kind and values.cast_context(source, target) == "implicit"
    return source.kind in STRINGS and target.kind is Kind.TEXT


def _operands(expr: Expr) -> Iterable[Expr]:
    return (found for found in children(expr) if isinstance(found, tree.Expr))
