"""Rewrites of typed queries before they are planned for the executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from instar.sql import tree
from instar.sql.failing import may_fail
from instar.sql.joins import equated, relations_of
from instar.sql.traversal import SUBQUERIES, conjuncts, free_relations, is_volatile, substitute, walk_level
from instar.sql.tree import Expr, FromItem, Select
from instar.types import INTEGER


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
        if query.grouping_sets is not None and not _are_columns(inner.outputs):
            break
        columns = {(found.relation, ordinal): output.expr for ordinal, output in enumerate(inner.outputs)}
        # What is said within comes first: nothing outside of the subquery is evaluated for rows that it does not give.
        where = _all((*conjuncts(inner.where), *conjuncts(query.where)))
        dissolved = replace(query, from_=_replaced(query.from_, found, inner.from_), where=where)
        query = substitute(dissolved, columns)
    return _pushed_down(query)


def bare(query: tree.Query) -> tree.Query:
    """What EXISTS asks of a query: whether it has rows, and nothing of what these say. That is not computed then (it
    may fail), unless groups depend on it, or it does something. PostgreSQL computes aggregates all the same."""
    if not isinstance(query, Select) or query.grouping_sets is not None or query.having is not None:
        return query
    if (query.distinct or query.distinct_on) and (query.limit is not None or query.offset is not None):
        return query
    if query.locking or is_volatile(query.outputs):
        return query
    one = tree.Output("?column?", tree.Literal(1, INTEGER))
    return replace(query, outputs=(one,), distinct=False, distinct_on=(), order_by=())


def members_sought(query: tree.Query) -> tuple[Select, tuple[Expr, ...]] | None:
    """For EXISTS of a query that equals something of its own with something of the row around it, and says no more of
    that: the query for what it has of its own, and what is sought among it. So it is computed once."""
    if not isinstance(query, Select) or query.from_ is None or query.aggregated or query.group_exprs or query.having:
        return None
    if query.distinct_on or query.limit or query.offset or query.ctes or query.locking or is_volatile(query):
        return None
    own, outside = relations_of(query.from_), free_relations(query)
    pairs, rest = [], []
    for condition in conjuncts(query.where):
        sides = equated(condition, own, outside)
        if sides is None or may_fail(sides[0]):
            rest.append(condition)
        else:
            pairs.append(sides)
    outputs = tuple(tree.Output("?column?", inner) for inner, _ in pairs)
    members = replace(query, outputs=outputs, where=_all(rest), distinct=False, order_by=())
    if not pairs or free_relations(members):
        return None
    return members, tuple(outer for _, outer in pairs)


def _are_columns(outputs: Sequence[tree.Output]) -> bool:
    """Whether these are columns, none of them twice: only what a column is called is another below a subquery. Of
    other groups' expressions two may become one, or one the like of what is no group, and a grouping set leaves out
    the one and not the other."""
    found = [output.expr for output in outputs]
    return all(isinstance(expr, tree.ColumnRef) for expr in found) and len(set(found)) == len(found)


def _pushed_down(query: Select) -> Select:
    """`query` with what it says of a SELECT DISTINCT in FROM alone said within that, before its rows are compared."""
    items = [] if query.from_ is None else list(_preserved(query.from_))
    for item in items:
        inner = item.query
        if not isinstance(inner, Select) or not inner.distinct or not _is_plain(item, distinct=True):
            continue
        own = [found for found in conjuncts(query.where) if _is_about(found, item.relation)]
        if not own or query.from_ is None:
            continue
        columns = {(item.relation, ordinal): output.expr for ordinal, output in enumerate(inner.outputs)}
        within = (*conjuncts(inner.where), *(substitute(found, columns) for found in own))
        left = [found for found in conjuncts(query.where) if all(found is not moved for moved in own)]
        narrowed = replace(item, query=replace(inner, where=_all(within)))
        query = replace(query, from_=_replaced(query.from_, item, narrowed), where=_all(left))
    return query


def _preserved(item: FromItem) -> Iterator[tree.Derived]:
    """The subqueries in FROM of whose rows WHERE leaves out those that it does not hold for, and nothing else."""
    if isinstance(item, tree.Derived):
        yield item
    elif isinstance(item, tree.Join):
        if item.kind in ("inner", "cross", "left"):
            yield from _preserved(item.left)
        if item.kind in ("inner", "cross", "right"):
            yield from _preserved(item.right)


def _is_about(condition: Expr, relation: int) -> bool:
    """Whether a condition reads nothing but columns of this relation, and is the same whenever it is evaluated."""
    if is_volatile(condition) or any(isinstance(found, SUBQUERIES) for found in walk_level(condition)):
        return False
    return free_relations(condition) == {relation}


def _all(conditions: Sequence[Expr]) -> Expr | None:
    return None if not conditions else tree.And(tuple(conditions)) if len(conditions) > 1 else conditions[0]


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


def _is_plain(item: tree.Derived, *, distinct: bool = False) -> bool:
    """Whether the subquery only joins, filters and computes; each of its rows then stands for itself. `distinct`: one
    that has each row once is as good."""
    query = item.query
    if item.cte is not None or item.lateral or not isinstance(query, Select) or query.from_ is None:
        return False
    if query.aggregated or query.group_exprs or query.having is not None or query.distinct_on:
        return False
    if query.distinct and not distinct:
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
