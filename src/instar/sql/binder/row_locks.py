"""FOR UPDATE and its like: which tables of a SELECT they lock, and where PostgreSQL does not allow them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from sqlglot import exp

from instar import errors
from instar.sql import tree
from instar.sql.binder.scope import Namespace
from instar.sql.grammar.nodes import position_of
from instar.sql.traversal import walk_level
from instar.sql.tree import FromItem, RowLock

_Leaf = tree.TableScan | tree.SystemScan | tree.Derived | tree.RecursiveRef | tree.ValuesList | tree.FunctionScan

# Where several clauses name a table: the one who waits least has it.
_PATIENCE = ("wait", "skip", "nowait")


def locked(query: tree.Select, namespace: Namespace, nodes: Sequence[exp.Expr]) -> tree.Select:
    """The query with its locking clauses. Errors: 0A000, 42P01."""
    found: dict[int, RowLock] = {}
    items = {} if query.from_ is None else {item.relation: (item, null) for item, null in _items(query.from_)}
    for node in nodes:
        mode, wait = node.meta["row_lock"]
        clause = f"FOR {mode.shown}"
        _require_plain(query, clause, node)
        for relation in _named(node, clause, namespace) or _all(items):
            _require_table(*items[relation], clause, node)
            before = found.get(relation, RowLock(relation, mode, wait))
            found[relation] = RowLock(relation, max(mode, before.mode), max(wait, before.wait, key=_PATIENCE.index))
    return replace(query, locking=tuple(found.values()))


def refuse(node: exp.Expr, what: str) -> None:
    """0A000 if a query that is no SELECT has a locking clause."""
    for lock in node.args.get("row_locks") or ():
        mode, _wait = lock.meta["row_lock"]
        raise _not_allowed(f"FOR {mode.shown}", what, lock)


def _not_allowed(clause: str, what: str, node: exp.Expr) -> errors.Error:
    message = f"{clause} is not allowed with {what}"
    return errors.error(errors.FEATURE_NOT_SUPPORTED, message, position=position_of(node))


def _require_plain(query: tree.Select, clause: str, node: exp.Expr) -> None:
    """Every row of the result is to be a row of each table."""
    if query.distinct or query.distinct_on:
        raise _not_allowed(clause, "DISTINCT clause", node)
    if query.group_exprs or query.grouping_sets is not None:
        raise _not_allowed(clause, "GROUP BY clause", node)
    if query.having is not None:
        raise _not_allowed(clause, "HAVING clause", node)
    if query.aggregated:
        raise _not_allowed(clause, "aggregate functions", node)
    if any(isinstance(found, tree.WindowCall) for found in walk_level((query.outputs, query.order_by))):
        raise _not_allowed(clause, "window functions", node)


def _named(node: exp.Expr, clause: str, namespace: Namespace) -> list[int]:
    relations = []
    for name in node.expressions:
        item = namespace.items.get(name.name)
        if item is None:
            message = f'relation "{name.name}" in {clause} clause not found in FROM clause'
            raise errors.error(errors.UNDEFINED_TABLE, message, position=position_of(node))
        relations.append(item.relation)
    return relations


def _all(items: dict[int, tuple[_Leaf, bool]]) -> list[int]:
    """Without OF: the tables. What rows are made of elsewhere is left alone: VALUES, functions, WITH queries."""
    passed = (tree.ValuesList, tree.FunctionScan, tree.RecursiveRef)
    return [
        relation
        for relation, (item, _nullable) in items.items()
        if not isinstance(item, passed) and not (isinstance(item, tree.Derived) and item.cte is not None)
    ]


def _require_table(item: _Leaf, nullable: bool, clause: str, node: exp.Expr) -> None:
    position = position_of(node)
    if not isinstance(item, tree.TableScan):
        is_query = isinstance(item, tree.Derived) and item.cte is not None
        what = "a WITH query" if is_query else "a view, a subquery, a function or VALUES"
        raise errors.error(errors.FEATURE_NOT_SUPPORTED, f"{clause} cannot be applied to {what}", position=position)
    if item.level is not None:
        message = f"{clause} cannot be applied to a table with an isolation hint"
        raise errors.error(errors.FEATURE_NOT_SUPPORTED, message, position=position)
    if nullable:
        message = f"{clause} cannot be applied to the nullable side of an outer join"
        raise errors.error(errors.FEATURE_NOT_SUPPORTED, message, position=position)


def _items(item: FromItem, nullable: bool = False) -> Iterator[tuple[_Leaf, bool]]:
    """The items of FROM, and whether an outer join may make their rows NULL."""
    if isinstance(item, tree.Join):
        yield from _items(item.left, nullable or item.kind in ("right", "full"))
        yield from _items(item.right, nullable or item.kind in ("left", "full"))
    else:
        yield item, nullable
