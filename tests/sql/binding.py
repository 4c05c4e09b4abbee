"""What the binder's tests share: a small catalog of real descriptors, and bound trees as readable text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from instar import types
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Column, Index, IndexColumn, Layout, Sequence, State, Table, View
from instar.sql import tree
from instar.sql.binder import bind, freeze_query
from instar.sql.parser import parse_one
from instar.sql.statements import CreateView, Dml, Query
from instar.types import Kind, Type

VARCHAR5 = Type(Kind.VARCHAR, length=5)
MONEY = Type(Kind.NUMERIC, precision=10, scale=2)


class Systemview:
    schema = "instar"
    name = "jobs"
    columns = (("id", types.BIGINT), ("state", types.TEXT))


def table(number: int, name: str, columns: list[Column], primary_key: tuple[int, ...], **more: Any) -> Table:
    return Table(
        id=number,
        name=name,
        version=1,
        columns=tuple(columns),
        primary_key=primary_key,
        primary_key_name=f"{name}_pkey",
        rowset=number,
        layout=Layout(1, tuple((column.id, column.type) for column in columns)),
        oldest_layout=1,
        next_id=100,
        **more,
    )


CUSTOMER = table(
    10,
    "customer",
    [
        Column(id=1, name="id", type=types.BIGINT, nullable=False, identity="always", sequence=20),
        Column(id=2, name="name", type=types.TEXT, default="'nobody'::text"),
        Column(id=3, name="code", type=VARCHAR5),
        Column(id=4, name="balance", type=MONEY, default="0"),
        Column(id=5, name="born", type=types.DATE),
        Column(id=6, name="coming", type=types.TEXT, state=State.WRITE_ONLY),
    ],
    (1,),
    indexes=(
        Index(id=30, name="customer_name_key", columns=(IndexColumn(2),), unique=True, constraint=True, rowset=31),
        Index(id=32, name="customer_code", columns=(IndexColumn(3),), rowset=33),
    ),
)
ORDERS = table(
    11,
    "orders",
    [
        Column(id=1, name="id", type=types.INTEGER, nullable=False),
        Column(id=2, name="customer_id", type=types.BIGINT),
        Column(id=3, name="total", type=types.DOUBLE),
        Column(id=4, name="at", type=types.TIMESTAMPTZ),
        Column(id=5, name="note", type=types.JSONB),
        Column(id=6, name="paid", type=types.BOOLEAN),
    ],
    (1,),
)
HEAP = table(
    12,
    "heap",
    [
        Column(id=1, name="rowid", type=types.BIGINT, nullable=False, hidden=True, sequence=21),
        Column(id=2, name="a", type=types.INTEGER),
        Column(id=3, name="b", type=types.SMALLINT),
    ],
    (1,),
)
SEQUENCES = (
    Sequence(id=20, name="customer_id_seq", version=1, type=types.BIGINT),
    Sequence(id=22, name="counter", version=1, type=types.BIGINT),
)


def catalog(*more: Table | View) -> CatalogSnapshot:
    """customer, orders, heap (without a primary key), two sequences, the view `rich`, and instar.jobs."""
    objects = (CUSTOMER, ORDERS, HEAP, *SEQUENCES, *more)
    plain = CatalogSnapshot.of(objects, 1, {("instar", "jobs"): Systemview()})
    if any(found.id == 40 for found in objects):
        return plain
    return catalog(
        *more, view(40, "rich", "SELECT c.id, upper(name) AS who FROM customer c WHERE balance > 100", plain)
    )


def view(number: int, name: str, query: str, known: CatalogSnapshot) -> View:
    statement = parse_one(f"CREATE VIEW {name} AS {query}")
    assert isinstance(statement, CreateView)
    frozen = freeze_query(statement.query, (), known)
    return View(
        id=number, name=name, version=1, query=frozen.text, columns=frozen.columns, depends_on=frozen.depends_on
    )


CATALOG = catalog()


def bound(sql: str, hints: tuple[Type | None, ...] = (), known: CatalogSnapshot = CATALOG) -> tree.BoundStatement:
    statement = parse_one(sql)
    assert isinstance(statement, Query | Dml)
    return bind(statement, known, hints)


def select(sql: str, hints: tuple[Type | None, ...] = ()) -> tree.Select:
    statement = bound(sql, hints).statement
    assert isinstance(statement, tree.QueryStatement)
    assert isinstance(statement.query, tree.Select)
    return statement.query


def expression(text: str, hints: tuple[Type | None, ...] = ()) -> tree.Expr:
    """An expression over customer, orders and heap."""
    return select(f"SELECT {text} FROM customer c, orders o, heap h", hints).outputs[0].expr


def shown_fields(found: msgspec.Struct) -> list[str]:
    """Those that a node is made of."""
    return [name for name in found.__struct_fields__ if name != "computed"]


def show(found: Any, indent: str = "") -> str:
    """A bound tree: one line per query, FROM item or output; expressions in a line."""
    if isinstance(found, tree.BoundStatement):
        parameters = f"parameters: {', '.join(map(str, found.parameters))}\n" if found.parameters else ""
        return parameters + show(found.statement)
    if isinstance(found, tree.QueryStatement):
        return show(found.query)
    lines = [f"{indent}{type(found).__name__}"]
    for name in shown_fields(found):
        value = getattr(found, name)
        if value is None or value is False or value == ():
            continue
        if isinstance(value, tuple) and any(_is_block(item) for item in value):
            lines.append(f"{indent}  {name}:")
            lines.extend(show(item, indent + "    ") for item in value)
        elif _is_block(value):
            lines.append(f"{indent}  {name}:")
            lines.append(show(value, indent + "    "))
        else:
            lines.append(f"{indent}  {name}: {brief(value)}")
    return "\n".join(lines)


def _is_block(value: object) -> bool:
    kinds = (
        tree.Select, tree.SetOperation, tree.ValuesQuery, tree.TableScan, tree.SystemScan, tree.Derived,
        tree.RecursiveRef, tree.ValuesList, tree.FunctionScan, tree.Join, tree.CommonTable, tree.ConflictAction,
    )  # fmt: skip
    return isinstance(value, kinds)


def brief(value: Any) -> str:
    """An expression in one line: columns as relation.ordinal:name, casts as ::type, implicit ones as ::~type."""
    if isinstance(value, tuple):
        return "(" + ", ".join(brief(item) for item in value) + ")"
    if isinstance(value, Type | str | int | float | bool):
        return str(value)
    if isinstance(value, Table | View | Index):
        return value.name
    writer = _BRIEF.get(type(value))
    if writer is not None:
        return writer(value)
    name = getattr(value, "name", None)
    if isinstance(name, str) and not isinstance(value, msgspec.Struct):
        return name
    if type(value).__module__ != tree.__name__:
        return str(name or value)
    parts = [
        f"{name}={brief(getattr(value, name))}"
        for name in shown_fields(value)
        if name != "type" and _given(value, name)
    ]
    return f"{type(value).__name__}({', '.join(parts)})"


def _given(value: object, name: str) -> bool:
    found = getattr(value, name)
    return found is not None and found is not False and found != ()


_BRIEF: dict[type, Callable[[Any], str]] = {
    tree.Literal: lambda v: f"{v.value!r}:{v.type}",
    tree.Parameter: lambda v: f"${v.index + 1}:{v.type}",
    tree.ColumnRef: lambda v: f"{v.relation}.{v.ordinal}:{v.name}",
    tree.Cast: lambda v: f"{brief(v.operand)}::{'' if v.explicit else '~'}{v.type}",
    tree.Call: lambda v: f"{v.function.name}({', '.join(map(brief, v.args))})",
    tree.And: lambda v: "(" + " AND ".join(map(brief, v.args)) + ")",
    tree.Or: lambda v: "(" + " OR ".join(map(brief, v.args)) + ")",
    tree.Not: lambda v: f"NOT {brief(v.operand)}",
    tree.Output: lambda v: f"{v.name} = {brief(v.expr)} [{v.expr.type}]",
    tree.SortKey: lambda v: (
        f"{brief(v.expr)}{' desc' if v.descending else ''}{' nulls first' if v.nulls_first else ''}"
    ),
    tree.ScalarSubquery: lambda v: "{" + _inline(v.query) + "}",
    tree.Exists: lambda v: ("not " if v.negated else "") + "exists{" + _inline(v.query) + "}",
    tree.InSubquery: lambda v: f"{brief(v.operands)} {'not ' if v.negated else ''}in " + "{" + _inline(v.query) + "}",
}


def _inline(query: object) -> str:
    return " ".join(show(query).split())


GOLDEN = Path(__file__).parent / "golden"


def corpus(name: str) -> list[str]:
    """The statements of corpus/<name>.sql, one a line."""
    return (Path(__file__).parent / "corpus" / f"{name}.sql").read_text().splitlines()


EVERYTHING = corpus("queries") + corpus("dml") + corpus("others")
