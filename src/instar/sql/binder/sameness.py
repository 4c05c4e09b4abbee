"""Equal subqueries of one SELECT made one, as GROUP BY, DISTINCT and ORDER BY need them.

Each is bound with relation numbers of its own, so that two that were written alike would not compare as equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from instar.sql import tree
from instar.sql.traversal import SUBQUERIES, child_fields, walk, walk_level
from instar.sql.tree import Expr

# What identifies a relation or a CTE, by the fields that hold it; and fields that no value depends on.
_NUMBERS = {"relation": "relation", "cte": "cte", "id": "cte"}
_NAMES = ("alias", "name")


class SharedSubqueries:
    """The distinct subqueries that the clauses of one SELECT have above its FROM and WHERE."""

    def __init__(self) -> None:
        self._known: list[tuple[object, Expr]] = []

    def shared(self, expr: Expr) -> Expr:
        """`expr`, with those in it that equal one met before replaced by that one."""
        if not any(isinstance(found, SUBQUERIES) for found in walk_level(expr)):
            return expr
        return self._shared(expr)  # type: ignore[no-any-return]  # an expression is replaced by an expression

    def _shared(self, found: Any) -> Any:
        if isinstance(found, tree.InSubquery):
            return self._one(_changed(found, ["operands"], self._shared))
        if isinstance(found, SUBQUERIES):
            return self._one(found)
        return _changed(found, child_fields(found), self._shared)

    def _one(self, expr: Expr) -> Expr:
        numbered = _numbered(expr)
        for known, one in self._known:
            if known == numbered:
                return one
        self._known.append((numbered, expr))
        return expr


def _changed(found: Any, names: Iterable[str], change: Any) -> Any:
    """A node, or a tuple of nodes, with the children in these fields changed; itself if none does change."""
    if isinstance(found, tuple):
        items = tuple([change(item) for item in found])
        return items if any(a is not b for a, b in zip(items, found, strict=True)) else found
    changes = {}
    for name in names:
        old = getattr(found, name)
        new = change(old)
        if new is not old:
            changes[name] = new
    return replace(found, **changes) if changes else found


def _numbered(expr: Expr) -> object:
    """`expr` with the relations and CTEs that are within it numbered -1, -2 ... as they come, and without names."""
    numbers: dict[tuple[str, object], int] = {}
    for found in walk(expr):
        if isinstance(found, tree.CommonTable):
            numbers.setdefault(("cte", found.id), -len(numbers) - 1)
        elif hasattr(found, "relation") and not isinstance(found, tree.ColumnRef):
            numbers.setdefault(("relation", found.relation), -len(numbers) - 1)

    def renumber(found: Any) -> Any:
        changed = _changed(found, child_fields(found), renumber)
        names = child_fields(found)
        own: dict[str, object] = {name: "" for name in _NAMES if name in names}
        for name, kind in _NUMBERS.items():
            number = numbers.get((kind, getattr(found, name))) if name in names else None
            if number is not None:
                own[name] = number
        return replace(changed, **own) if own else changed

    return renumber(expr)
