"""EXPLAIN: a plan as lines of text, in the names of the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from instar.catalog.descriptors import Table
from instar.sql import plan, tree
from instar.sql.plan import InsertPlan, ModifyPlan, Node, Plan, QueryPlan, Subplan
from instar.sql.traversal import conjuncts, walk
from instar.sql.tree import Expr, SortKey
from instar.transactions.transaction import Isolation
from instar.types import Kind
from instar.values import to_text


def explain(described: Plan) -> list[str]:
    """The lines of EXPLAIN: who runs the statement, and the executor's tree with the keys that drive it."""
    writer = _Explainer(_tables(_statement(described)))
    match described:
        case QueryPlan():
            return list(writer.query(described))
        case InsertPlan():
            lines = [f"Insert on {described.statement.target.table.name}", *_writes(described.statement.target)]
            return lines + _indented(writer.query(described.source))
        case ModifyPlan():
            kind = "Update" if isinstance(described.statement, tree.Update) else "Delete"
            lines = [f"{kind} on {described.statement.target.table.name}", *_writes(described.statement.target)]
            return lines + _indented(writer.node(described.root, described.subplans))


def _writes(target: tree.TableScan) -> list[str]:
    """Where what is written to a kept view goes."""
    if target.kept is None:
        return []
    written = dict.fromkeys(found.table.name for found in walk(target.kept) if isinstance(found, tree.TableScan))
    return [f"    Writes: {', '.join(written)}"]


def _statement(described: Plan) -> object:
    return described.query if isinstance(described, QueryPlan) else described.statement


def _indented(lines: Iterator[str]) -> list[str]:
    return ["  " + line for line in lines]


def _tables(root: object) -> dict[int, tuple[Table, str]]:
    """The tables by relation, with the names that expressions use for them."""
    return {found.relation: (found.table, found.alias) for found in walk(root) if isinstance(found, tree.TableScan)}


class _Explainer:
    def __init__(self, tables: Mapping[int, tuple[Table, str]]) -> None:
        self._tables = tables

    def query(self, described: QueryPlan) -> Iterator[str]:
        """A query: its engine or engines first."""
        if described.root is None:
            yield "Analytic"
            yield from _indented(self._inputs(described))
            return
        budget = described.effort.budget
        if described.analytic and budget is not None:
            yield f"Executor (analytic after {budget} rows)"
        else:
            yield "Executor"
        yield from _indented(self.node(described.root, described.subplans))

    def _inputs(self, described: QueryPlan) -> Iterator[str]:
        """What a query reads that runs in the analytic engine, what is driven by keys first."""
        query = described.query
        wanted: dict[int, set[str]] = {}
        for found in walk(query):
            if isinstance(found, tree.ColumnRef) and found.relation in self._tables:
                wanted.setdefault(found.relation, set()).add(found.name)
        for access in described.driven:
            yield f"{self._access(access)} ({', '.join(sorted(wanted.get(access.relation, ())))})"
            yield f"    Key: {self._key(access)}"
        driven = {access.relation for access in described.driven}
        for found in walk(query):
            if isinstance(found, tree.TableScan) and found.relation not in driven:
                columns = ", ".join(sorted(wanted.get(found.relation, ())))
                yield f"Scan {_named(found.table.name, found.alias)}{_level(found.level)} ({columns})"
            elif isinstance(found, tree.SystemScan):
                yield f"Scan {found.view}"

    # --- nodes --------------------------------------------------------------------------------------------------------

    def node(self, node: Node, subplans: Mapping[int, Subplan]) -> Iterator[str]:
        """A node and, further in, what it reads."""
        yield self._title(node)
        for line in self._details(node):
            yield f"    {line}"
        for expr in plan.expressions(node):
            for found in walk(expr):
                subplan = subplans.get(id(getattr(found, "query", None)))
                if subplan is not None and not isinstance(found, tree.Derived):
                    yield "  Subquery" + (" (once)" if not subplan.free and not subplan.volatile else "")
                    yield from ("    " + line for line in self.node(subplan.node, subplans))
        for child in plan.children(node):
            yield from _indented(self.node(child, subplans))

    def _title(self, node: Node) -> str:
        match node:
            case plan.Access():
                return self._access(node)
            case plan.SystemRows():
                return f"Scan {node.view}"
            case plan.Rows():
                return f"Values ({len(node.rows)} rows)" if len(node.rows) != 1 else "Result"
            case plan.FunctionRows():
                return f"Function {node.call.function.name}"
            case plan.Rename():
                return f"Subquery {node.alias}"
            case plan.CommonRows():
                return f"Common table {node.alias}"
            case plan.Recursive():
                return "Recursive union" + (" all" if node.all else "")
            case plan.WorkingRows():
                return f"Last round {node.alias}"
            case plan.NestedLoop():
                return f"Nested loop {node.kind} join"
            case plan.HashJoin():
                return f"Hash {node.kind} join"
            case plan.Aggregate():
                return "Group" if node.groups else "Aggregate"
            case plan.LockRows():
                locked = ", ".join(_named(found.table.name, found.alias) for found in node.tables)
                return f"Lock rows of {locked}"
            case plan.SetOperation():
                return node.kind.capitalize() + (" all" if node.all else "")
            case _:
                return type(node).__name__

    def _access(self, node: plan.Access) -> str:
        named, path = _named(node.table.name, node.alias) + _level(node.level), node.path
        primary = node.table.primary_key_name or "row id"
        key = " or ".join(primary if by.index is None else by.index.name for by in (path, *node.others))
        backward = " backward" if path.reverse else ""
        if not path.restricts:
            return f"Scan {named} by {key}{backward}"
        kind = "Lookup" if all(by.unique for by in (path, *node.others)) else "Range"
        return f"{kind} {named} by {key}{backward}"

    def _details(self, node: Node) -> Iterator[str]:
        match node:
            case plan.Access():
                key = self._key(node)
                if key:
                    yield f"Key: {key}"
                if node.filter:
                    yield f"Filter: {self._all(node.filter)}"
            case plan.Filter():
                yield f"Condition: {self._all(node.conjuncts)}"
            case plan.NestedLoop() if node.condition:
                yield f"Condition: {self._all(node.condition)}"
            case plan.HashJoin():
                pairs = zip(node.left_keys, node.right_keys, strict=True)
                equal = [f"{self._expr(a)} = {self._expr(b)}" for a, b in pairs]
                yield "Condition: " + " AND ".join(equal + [self._expr(expr) for expr in node.residual])
            case plan.Aggregate() if node.groups:
                yield f"Key: {', '.join(self._expr(expr) for expr in node.groups)}"
            case plan.Project():
                yield f"Output: {', '.join(self._expr(expr) for expr in node.outputs)}"
            case plan.Sort():
                yield f"Key: {', '.join(self._sort_key(key) for key in node.keys)}"
            case plan.Limit():
                if node.limit is not None:
                    yield f"Limit: {self._expr(node.limit)}"
                if node.offset is not None:
                    yield f"Offset: {self._expr(node.offset)}"

    def _key(self, node: plan.Access) -> str:
        found = [self._path(node.table, path) for path in (node.path, *node.others)]
        if len(found) > 1:
            return " OR ".join([f"({' AND '.join(parts)})" if len(parts) > 1 else parts[0] for parts in found])
        return " AND ".join(found[0])

    def _path(self, table: Table, path: plan.KeyPath) -> list[str]:
        names = [table.columns[ordinal].name for ordinal in path.columns]
        parts = []
        for name, values in zip(names, path.equal, strict=False):
            listed = ", ".join(self._expr(value) for value in values)
            if isinstance(values[0], tree.InSubquery):
                parts.append(f"{name} IN {listed}")
            else:
                parts.append(f"{name} = {listed}" if len(values) == 1 else f"{name} IN ({listed})")
        for bound, symbol in ((path.low, ">"), (path.high, "<")):
            if bound is not None:
                equal = "=" if bound.inclusive else ""
                parts.append(f"{names[len(path.equal)]} {symbol}{equal} {self._expr(bound.expr)}")
        if path.like is not None:
            parts.append(f"{names[len(path.equal)]} LIKE {self._expr(path.like)}")
        return parts

    # --- expressions --------------------------------------------------------------------------------------------------

    def _all(self, exprs: Sequence[Expr]) -> str:
        return " AND ".join(self._expr(part) for expr in exprs for part in conjuncts(expr))

    def _sort_key(self, key: SortKey) -> str:
        text = self._expr(key.expr) + (" DESC" if key.descending else "")
        if key.nulls_first != key.descending:
            text += " NULLS FIRST" if key.nulls_first else " NULLS LAST"
        return text

    def _expr(self, expr: Expr) -> str:
        match expr:
            case tree.Literal(value=None):
                return "NULL"
            case tree.Literal():
                text = to_text(expr.type, expr.value)
                plain = expr.type.kind in (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.NUMERIC)
                return text if plain else "'" + text.replace("'", "''") + "'"
            case tree.Parameter():
                return f"${expr.index + 1}"
            case tree.ColumnRef():
                found = self._tables.get(expr.relation)
                return expr.name if found is None or len(self._tables) == 1 else f"{found[1]}.{expr.name}"
            case tree.Call():
                return self._call(expr)
            case tree.Cast():
                return f"{self._expr(expr.operand)}::{expr.type}" if expr.explicit else self._expr(expr.operand)
            case tree.And() | tree.Or():
                word = " AND " if isinstance(expr, tree.And) else " OR "
                return "(" + word.join(self._expr(arg) for arg in expr.args) + ")"
            case tree.Not():
                return f"NOT {self._expr(expr.operand)}"
            case tree.IsNull():
                return f"{self._expr(expr.operand)} IS {'NOT ' if expr.negated else ''}NULL"
            case tree.InList():
                items = ", ".join(self._expr(item) for item in expr.items)
                return f"{self._expr(expr.operand)} {'NOT ' if expr.negated else ''}IN ({items})"
            case tree.AggregateCall():
                args = ", ".join(self._expr(arg) for arg in expr.args) or "*"
                return f"{expr.aggregate.name}({'DISTINCT ' if expr.distinct else ''}{args})"
            case tree.GroupingCall():
                return f"GROUPING({', '.join(self._expr(arg) for arg in expr.args)})"
            case tree.ScalarSubquery() | tree.Exists() | tree.InSubquery():
                return "(subquery)"
            case tree.Coalesce():
                return f"COALESCE({', '.join(self._expr(arg) for arg in expr.args)})"
            case _:
                return type(expr).__name__.upper()

    def _call(self, expr: tree.Call) -> str:
        args = [self._expr(arg) for arg in expr.args]
        if not expr.function.operator:
            return f"{expr.function.name}({', '.join(args)})"
        return f"{expr.function.name}{args[0]}" if len(args) == 1 else f"{args[0]} {expr.function.name} {args[1]}"


def _level(level: Isolation | None) -> str:
    """Where a hint has a table read at a level of its own."""
    return "" if level is None else f" ({level.value})"


def _named(name: str, alias: str) -> str:
    return name if alias == name else f"{name} {alias}"
