"""What Instar's trees need beyond sqlglot's nodes, and the way back from a tree to text.

Every operator is an `exp.Operator` (this, operator, expression) or a `PrefixOperator`, by its symbol as in PostgreSQL's
catalog (LIKE is `~~`); every call is an `exp.Anonymous`; every type in a cast is a DataType that bears PostgreSQL's
name. So the tree says what was written and no more, and the text made from it is read back into the same tree.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.generators.postgres import PostgresGenerator

from instar.sql.grammar.keywords import BARE_FUNCTIONS
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
    found: int | None = node.meta.get("position")
    if found is None:
        for child in node.iter_expressions():
            found = position_of(child)
            if found is not None:
                break
    return found


def type_node(type_: Type) -> exp.DataType:
    """A DataType with PostgreSQL's full name of the type, which `type_names.parse_type` reads."""
    return exp.DataType(this=exp.DType.USERDEFINED, kind=str(type_))


def identifier(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)


class _Generator(PostgresGenerator):
    """Operators as their symbols and calls as written: sqlglot's own rendering translates between dialects."""

    TRANSFORMS: ClassVar[dict[type[exp.Expr], Any]] = {
        kind: transform for kind, transform in PostgresGenerator.TRANSFORMS.items() if kind is not exp.Select
    }

    def operator_sql(self, expression: exp.Operator) -> str:
        left, right = self.sql(expression, "this"), self.sql(expression, "expression")
        return f"{left} {expression.args['operator']} {right}"

    def prefixoperator_sql(self, expression: PrefixOperator) -> str:
        return f"{expression.args['operator']} {self.sql(expression, 'this')}"

    def anonymous_sql(self, expression: exp.Anonymous) -> str:
        name = expression.name
        if name in BARE_FUNCTIONS:
            return name.upper()
        if name == "extract":
            part, operand = expression.expressions
            return f"EXTRACT({part.name} FROM {self.sql(operand)})"
        return f"{name}({self.expressions(expression, flat=True)})"


def render(node: exp.Expr, pretty: bool = False) -> str:
    """The node's text, which the grammar reads back into an equal tree."""
    return _Generator(dialect=Postgres, pretty=pretty, normalize_functions=False, comments=False).generate(node)


_OPERATORS = (
    exp.Operator, PrefixOperator, exp.And, exp.Or, exp.Not, exp.In, exp.Between, exp.Is, exp.NullSafeEQ,
    exp.NullSafeNEQ, exp.AtTimeZone,
)  # fmt: skip


def parenthesise(node: exp.Expr) -> exp.Expr:
    """A copy of the node with every operator that stands inside another one in parentheses, as PostgreSQL stores it."""
    copy = node.copy()
    for operator in [found for found in copy.walk() if isinstance(found, _OPERATORS)]:
        if isinstance(operator.parent, (*_OPERATORS, exp.Cast)):
            operator.replace(exp.Paren(this=operator.copy()))
    return copy
