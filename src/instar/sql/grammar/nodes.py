"""What Instar's syntax trees need beyond sqlglot's nodes, and where in the text a node stands.

Every operator is an `exp.Operator` (this, operator, expression) or a `PrefixOperator`, by its symbol as in PostgreSQL's
catalog (LIKE is `~~`); every call is an `exp.Anonymous`; every type in a cast is a DataType that bears PostgreSQL's
name. So the tree says what was written and no more.
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp

from instar.types import Type


class PrefixOperator(exp.Expression):
    """`operator` this."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "operator": True}


def place(node: exp.Expr, position: int) -> exp.Expr:
    """Note where in the text (1-based) an error about this node points to."""
    node.meta["position"] = position
    return node


def position_of(node: exp.Expr) -> int | None:
    """The node's position, or the first one below it."""
    if isinstance(node, exp.Cast):
        # The :: stands behind what it casts, a type's name before it: the first of both.
        inner = position_of(node.this)
        own: int | None = node.meta.get("position")
        return min(own, inner) if own is not None and inner is not None else inner or own
    stack: list[exp.Expr] = [node]
    while stack:
        current = stack.pop()
        found: int | None = current.meta.get("position")
        if found is not None:
            return found
        stack.extend(current.iter_expressions(reverse=True))
    return None


def type_node(type_: Type) -> exp.DataType:
    """A DataType with PostgreSQL's full name of the type, which `type_names.parse_type` reads."""
    return exp.DataType(this=exp.DType.USERDEFINED, kind=str(type_))


def identifier(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)
