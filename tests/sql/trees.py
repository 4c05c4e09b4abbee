"""Typed trees by hand, and a world to run them in: what the tests of planner, executor and analytic engine stand on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from instar.catalog.descriptors import Table
from instar.sql import tree
from instar.sql.analytic import Analytic
from instar.sql.binder import bind
from instar.sql.execution import ExecutionContext, Result, Row
from instar.sql.executor import QueryProgram
from instar.sql.executor_dml import InsertProgram, ModifyProgram
from instar.sql.functions import Context, resolve_function, resolve_operator
from instar.sql.functions.model import Aggregate, Function
from instar.sql.integrity import Rules
from instar.sql.kept_views import KeptModifyProgram
from instar.sql.parser import parse_one
from instar.sql.plan_cache import compile_program, hints_of
from instar.sql.planner import Engines, plan_statement
from instar.sql.statements import Dml, Query
from instar.sql.tree import Expr
from instar.transactions.buffer import Buffer
from instar.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, NUMERIC, TEXT, Type
from support.world import World

Program = QueryProgram | InsertProgram | ModifyProgram | KeptModifyProgram

_TYPES: dict[type, Type] = {bool: BOOLEAN, int: INTEGER, float: DOUBLE, str: TEXT}


def lit(value: object, type_: Type | None = None) -> Expr:
    """A literal; its type by the Python class if not given."""
    return tree.Literal(value, type_ or _TYPES.get(type(value), NUMERIC))


NULL = tree.Literal(None, INTEGER)


def _as_expr(value: object) -> Expr:
    return value if type(value).__module__ == tree.__name__ else lit(value)  # type: ignore[return-value]


def param(index: int, type_: Type = INTEGER) -> Expr:
    return tree.Parameter(index, type_)


def op(symbol: str, *args: object) -> Expr:
    """An operator with the casts that its resolution asks for."""
    return _call(resolve_operator(symbol, [_as_expr(arg).type for arg in args]), args)


def call(name: str, *args: object) -> Expr:
    """A function call."""
    return _call(resolve_function(name, [_as_expr(arg).type for arg in args]), args)


def _call(resolution: object, args: Sequence[object]) -> Expr:
    entry = resolution.entry  # type: ignore[attr-defined]
    cast = [
        expr if expr.type == type_ else tree.Cast(expr, type_, False)
        for expr, type_ in zip(map(_as_expr, args), resolution.arguments, strict=True)  # type: ignore[attr-defined]
    ]
    if isinstance(entry, Aggregate):
        return tree.AggregateCall(entry, tuple(cast), False, None, (), resolution.type)  # type: ignore[attr-defined]
    assert isinstance(entry, Function)
    return tree.Call(entry, tuple(cast), resolution.type)  # type: ignore[attr-defined]


def all_of(*args: Expr) -> Expr:
    return tree.And(args)


def any_of(*args: Expr) -> Expr:
    return tree.Or(args)


def scan(table: Table, relation: int = 1) -> tree.TableScan:
    return tree.TableScan(relation, table, table.name)


def col(source: tree.TableScan, name: str) -> tree.ColumnRef:
    """A column of a scanned table by name."""
    for ordinal, column in enumerate(source.table.columns):
        if column.name == name:
            return tree.ColumnRef(source.relation, ordinal, column.type, name)
    raise KeyError(name)


def key(expr: Expr, descending: bool = False) -> tree.SortKey:
    return tree.SortKey(expr, descending, descending)


def select(
    outputs: Iterable[Expr],
    from_: tree.FromItem | None = None,
    where: Expr | None = None,
    *,
    group_by: Sequence[Expr] = (),
    having: Expr | None = None,
    distinct: bool = False,
    order_by: Sequence[tree.SortKey] = (),
    limit: int | None = None,
    offset: int | None = None,
    aggregated: bool = False,
) -> tree.Select:
    return tree.Select(
        tuple(tree.Output(f"x{number}", expr) for number, expr in enumerate(outputs)),
        from_,
        where,
        tuple(group_by),
        None,
        having,
        aggregated or bool(group_by),
        distinct,
        (),
        tuple(order_by),
        None if limit is None else lit(limit, BIGINT),
        None if offset is None else lit(offset, BIGINT),
    )


def bound(statement: tree.Query | tree.Bound, *parameters: Type) -> tree.BoundStatement:
    if isinstance(statement, (tree.Select, tree.SetOperation, tree.ValuesQuery)):
        statement = tree.QueryStatement(statement)
    return tree.BoundStatement(statement, parameters, (), ())


def context(world: World, parameters: Sequence[object] = (), buffer: Buffer | None = None) -> ExecutionContext:
    """A context at the newest snapshot; sequences count from 1 for each context."""
    counters: dict[int, int] = {}

    def next_value(sequence: int) -> int:
        counters[sequence] = counters.get(sequence, 0) + 1
        return counters[sequence]

    return ExecutionContext(
        view=world.view(buffer=buffer),
        catalog=world.catalog(),
        buffer=Buffer() if buffer is None else buffer,
        parameters=parameters,
        functions=Context(now=0),
        next_value=next_value,
        system_rows=lambda _view: [],
    )


def fill(world: World, table: Table, rows: Iterable[Row]) -> None:
    """Commit rows to a table."""
    from instar.tables.rowset import key_encoder

    buffer = Buffer()
    encode = key_encoder(table)
    by_id = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
    for row in rows:
        buffer.insert(table.id, table.version, encode([row[by_id[column]] for column in table.primary_key]), row)
    world.commit(buffer)


def compiled(world: World, sql: str, parameters: Sequence[object] = (), engines: Engines = "both") -> Program:
    """A statement planned for these engines and compiled."""
    statement = parse_one(sql)
    assert isinstance(statement, Query | Dml)
    catalog = world.catalog()
    bound_ = bind(statement, catalog, hints_of(parameters))
    plan = plan_statement(bound_, engines)
    rules = Rules(catalog, world.layouts)
    return compile_program(plan, len(bound_.parameters), world.layouts, rules, Analytic().run)


def run(
    world: World,
    sql: str,
    parameters: Sequence[object] = (),
    *,
    engines: Engines = "both",
    buffer: Buffer | None = None,
) -> Result:
    """Execute a statement at the newest snapshot; what it writes goes to `buffer`."""
    return compiled(world, sql, parameters, engines).run(context(world, parameters, buffer))


def query(world: World, sql: str, *parameters: object, engines: Engines = "both") -> list[Row]:
    """The rows of a query."""
    return run(world, sql, parameters, engines=engines).values()


def write(world: World, sql: str, *parameters: object) -> Result:
    """Execute DML and commit it."""
    buffer = Buffer()
    result = run(world, sql, parameters, buffer=buffer)
    world.commit(buffer)
    return result
