"""What a result column is called when the statement does not say (PostgreSQL's FigureColname)."""

from __future__ import annotations

from sqlglot import exp

from instar.sql.grammar.type_names import parse_type
from instar.types import Kind

UNNAMED = "?column?"
_TYPE_LABELS = {
    Kind.BOOLEAN: "bool",
    Kind.SMALLINT: "int2",
    Kind.INTEGER: "int4",
    Kind.BIGINT: "int8",
    Kind.REAL: "float4",
    Kind.DOUBLE: "float8",
    Kind.VARCHAR: "varchar",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
}


def output_name(node: exp.Expr) -> str:
    """The name of a select item without AS."""
    return _figure(node)[0] or UNNAMED


def _figure(node: exp.Expr) -> tuple[str, int]:
    """The name and how good it is: 0 none, 1 of a type or construct, 2 of a column or function."""
    if isinstance(node, exp.Column):
        return node.name, 2
    if isinstance(node, exp.Anonymous):
        label: str = node.meta.get("label") or node.name
        return label, 2
    if isinstance(node, exp.Window | exp.Filter | exp.Paren):
        return _figure(node.this)
    if isinstance(node, exp.AtTimeZone):
        return "timezone", 2
    if isinstance(node, exp.Grouping):
        return "grouping", 2
    if isinstance(node, exp.Coalesce):
        return "coalesce", 2
    if isinstance(node, exp.Nullif):
        return "nullif", 2
    if isinstance(node, exp.Exists):
        return "exists", 2
    if isinstance(node, exp.Tuple):
        return "row", 2
    if isinstance(node, exp.Cast):
        inner = _figure(node.this)
        kind = parse_type(node.args["to"].args["kind"]).kind
        return inner if inner[1] == 2 else (_TYPE_LABELS.get(kind, kind.value), 1)
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        inner = ("", 0) if default is None else _figure(default)
        return inner if inner[1] == 2 else ("case", 1)
    if isinstance(node, exp.Subquery):
        return _subquery_name(node.this)
    return "", 0


def _subquery_name(query: exp.Expr) -> tuple[str, int]:
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    if isinstance(query, exp.Values):
        return "column1", 2
    items = query.expressions
    if not items:
        return "", 0
    return (items[0].alias, 2) if isinstance(items[0], exp.Alias) else _figure(items[0])
