"""Walking and rewriting typed trees: what an expression refers to, and putting expressions in the place of columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from instar.sql import tree
from instar.sql.tree import Expr

T = TypeVar("T")

SUBQUERIES = (tree.ScalarSubquery, tree.Exists, tree.InSubquery)
_FROM_ITEMS = (tree.TableScan, tree.SystemScan, tree.Derived, tree.RecursiveRef, tree.ValuesList, tree.FunctionScan)


# The fields of each class of the tree; what the tree only points at (functions, descriptors, values) has none here.
_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(name for name in kind.__struct_fields__ if name not in ("type", "computed"))
    for kind in vars(tree).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == tree.__name__
}
_UNIONS = {"Expr", "FromItem", "Query", "Bound"}
_NAMES = {kind.__name__ for kind in _FIELDS} | _UNIONS


def _below(kind: Any) -> tuple[str, ...]:
    """The fields in which there may be nodes, by their annotations; the last first, as a stack takes them."""
    if kind is tree.ValuesList:
        return ("computed",)
    types: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        types |= vars(base).get("__annotations__", {})
    found = [name for name in kind.__struct_fields__ if _NAMES.intersection(re.findall(r"\w+", str(types[name])))]
    return tuple(reversed(found))


_BELOW = {kind: _below(kind) for kind in _FIELDS}


def walk(root: object) -> Iterator[object]:
    """`root` and every node of the tree below it, subqueries included; of VALUES no row of literals alone."""
    stack = [root]
    while stack:
        found = stack.pop()
        if isinstance(found, tuple):
            stack.extend(reversed(found))
            continue
        yield found
        stack.extend([getattr(found, name) for name in _BELOW.get(type(found), ())])


def children(found: object) -> Iterator[object]:
    """The nodes right below a node, as `walk` finds them."""
    stack = [getattr(found, name) for name in _BELOW.get(type(found), ())]
    while stack:
        child = stack.pop()
        if isinstance(child, tuple):
            stack.extend(reversed(child))
        elif type(child) in _FIELDS:
            yield child


def child_fields(found: object) -> tuple[str, ...]:
    """The names of the fields in which a node has others, or plain values; none for what is no node of the tree."""
    return _FIELDS.get(type(found), ())


def walk_level(root: object) -> Iterator[object]:
    """As `walk`, but not into subqueries: the expressions of one query level."""
    stack = [root]
    while stack:
        found = stack.pop()
        if isinstance(found, tuple):
            stack.extend(reversed(found))
            continue
        yield found
        if isinstance(found, tree.InSubquery):
            stack.append(found.operands)
        elif not isinstance(found, (tree.ScalarSubquery, tree.Exists)):
            stack.extend([getattr(found, name) for name in _BELOW.get(type(found), ())])


class References(NamedTuple):
    """The columns that a tree mentions, and the relations that are FROM items within it."""

    columns: frozenset[tuple[int, int]]
    defined: frozenset[int]

    @property
    def free(self) -> frozenset[tuple[int, int]]:
        """The columns of relations outside of the tree."""
        return frozenset(column for column in self.columns if column[0] not in self.defined)


def references(root: object) -> References:
    """What `root`, a node or a tuple of nodes, mentions and defines."""
    columns: set[tuple[int, int]] = set()
    defined: set[int] = set()
    for found in walk(root):
        if isinstance(found, tree.ColumnRef):
            columns.add((found.relation, found.ordinal))
        elif isinstance(found, (*_FROM_ITEMS, tree.SetOperation)):
            defined.add(found.relation)
    return References(frozenset(columns), frozenset(defined))


def free_relations(root: object) -> frozenset[int]:
    """The relations outside of `root` that it reads."""
    return frozenset(relation for relation, _ in references(root).free)


def is_volatile(root: object) -> bool:
    """Whether evaluating it twice may differ, or matters: volatile functions, those of sequences."""
    return any(
        isinstance(found, tree.OfSequence) or (isinstance(found, tree.Call) and found.function.volatility == "volatile")
        for found in walk(root)
    )


def locks_rows(root: object) -> bool:
    """Whether a query in it is one FOR UPDATE or the like."""
    return any(isinstance(found, tree.RowLock) for found in walk(root))


def conjuncts(expr: Expr | None) -> list[Expr]:
    """The arguments of nested ANDs, none for no condition at all."""
    if expr is None:
        return []
    if isinstance(expr, tree.And):
        return [found for arg in expr.args for found in conjuncts(arg)]
    return [expr]


def substitute(root: T, mapping: Mapping[tuple[int, int], Expr]) -> T:
    """`root` with the mapped columns replaced, in subqueries too. What does not change is the same object."""
    return _substituted(root, mapping)  # type: ignore[return-value]  # a node is replaced by one of its own kind


def _substituted(found: object, mapping: Mapping[tuple[int, int], Expr]) -> object:
    if isinstance(found, tuple):
        items = tuple([_substituted(item, mapping) for item in found])
        return items if any(a is not b for a, b in zip(items, found, strict=True)) else found
    if isinstance(found, tree.ColumnRef):
        return mapping.get((found.relation, found.ordinal), found)
    changes = {}
    for name in _FIELDS.get(type(found), ()):
        old = getattr(found, name)
        new = _substituted(old, mapping)
        if new is not old:
            changes[name] = new
    return replace(found, **changes) if changes else found  # type: ignore[type-var]  # only nodes have fields here
