"""Rewrites of typed queries before they are planned for the executor."""

from __future__ import annotations

from dataclasses import replace

from instar.sql import tree
from instar.sql.traversal import conjuncts, is_volatile, substitute, walk_level
from instar.sql.tree import FromItem, Select


def pull_up(query: Select) -> Select:
    """`query` with plain subqueries and views in FROM dissolved into it, so that conditions reach the tables' keys.

    Only where rows of the subquery are rows of the join: not on the nullable side of an outer join.
    """
    while query.from_ is not None:
        found = _dissolvable(query.from_)
        if found is None:
            break
        inner = found.query
        if not isinstance(inner, Select) or inner.from_ is None:
            break
        columns = {(found.relation, ordinal): output.expr for ordinal, output in enumerate(inner.outputs)}
        conditions = (*conjuncts(query.where), *conjuncts(inner.where))
        where = None if not conditions else tree.And(conditions) if len(conditions) > 1 else conditions[0]
        dissolved = replace(query, from_=_replaced(query.from_, found, inner.from_), where=where)
        query = substitute(dissolved, columns)
    return query


def _dissolvable(item: FromItem) -> tree.Derived | None:
    if isinstance(item, tree.Derived):
        return item if _is_plain(item) else None
    if isinstance(item, tree.Join):
        sides = {"inner": (item.left, item.right), "cross": (item.left, item.right), "left": (item.left,)}
        for side in sides.get(item.kind, (item.right,) if item.kind == "right" else ()):
            found = _dissolvable(side)
            if found is not None:
                return found
    return None


def _is_plain(item: tree.Derived) -> bool:
    """Whether the subquery only joins, filters and computes; each of its rows then stands for itself."""
    query = item.query
    if item.cte is not None or item.lateral or not isinstance(query, Select) or query.from_ is None:
        return False
    if query.aggregated or query.group_exprs or query.having is not None or query.distinct or query.distinct_on:
        return False
    if query.order_by or query.limit is not None or query.offset is not None or query.ctes or query.locking:
        return False
    if any(isinstance(found, tree.WindowCall) for found in walk_level(query.outputs)):
        return False
    return not is_volatile(query.outputs)


def _replaced(item: FromItem, old: FromItem, new: FromItem) -> FromItem:
    if item is old:
        return new
    if isinstance(item, tree.Join):
        return replace(item, left=_replaced(item.left, old, new), right=_replaced(item.right, old, new))
    return item
