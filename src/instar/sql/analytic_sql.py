"""Typed queries as DuckDB's SQL. Every name in it is generated; of the user's text only literals get there.

A relation is r<number>, its columns c0, c1, ..., a common table expression cte<number>, a table's input s<relation>.
Beside its text every expression carries its *physical* type (functions.Sql): numerics keep their display scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from instar import errors
from instar.sql import tree
from instar.sql.analytic_expressions import ExpressionWriter
from instar.sql.driving import Held, held_scans, read_columns
from instar.sql.failing import may_fail
from instar.sql.functions import Context, duckdb_type
from instar.sql.functions.model import Sql
from instar.sql.functions.rendering import as_text, sort_key, unify
from instar.sql.joins import equated, guarded_on, relations_of
from instar.sql.traversal import SUBQUERIES, conjuncts, references, walk_level
from instar.sql.tree import Expr, FromItem, Query, SortKey
from instar.types import INTEGER_RANGES, NUMERIC, Kind, Type

Columns = list[Sql]

_LOW, _HIGH = INTEGER_RANGES[Kind.BIGINT]


class Scans(msgspec.Struct):
    """What the text reads: inputs by name, to be registered before it is run."""

    tables: dict[str, tuple[Held, tuple[int, ...]]] = msgspec.field(default_factory=dict)
    """Per input the table, and the ordinals that are wanted."""
    systems: dict[str, tree.SystemScan] = msgspec.field(default_factory=dict)


class Written(msgspec.Struct, frozen=True):
    """A query's text, the physical types of its columns c0, c1, ..., and what it reads. `unsure`: what it fails by may
    be what a condition keeps from being evaluated."""

    text: str
    types: tuple[Type, ...]
    scans: Scans
    unsure: bool


def write_query(
    query: Query,
    parameters: Sequence[object],
    context: Context,
    value: Callable[[Expr, str], object],
    count: Callable[[Expr, str], int | None],
) -> Written:
    """The whole query. `parameters` are internal values; `value` evaluates what reads no row, for a clause of that
    name, and `count` LIMIT and OFFSET.

    Errors: 0A000 for what DuckDB would answer differently.
    """
    writer = QueryWriter(parameters, context, value, count, references(query).columns)
    text, types = writer.query(query)
    return Written(text, tuple(types), writer.scans, writer.unsure)


class QueryWriter:
    """Writes one statement's queries; `columns` are all columns that are in scope anywhere around what is written."""

    def __init__(
        self,
        parameters: Sequence[object],
        context: Context,
        value: Callable[[Expr, str], object],
        count: Callable[[Expr, str], int | None],
        needed: frozenset[tuple[int, int]],
    ) -> None:
        self.parameters = parameters
        self.context = context
        self.columns: dict[tuple[int, int], Sql] = {}
        self.guarded = False  # whether what is written is to be evaluated for some rows only
        self.unsure = False  # see `Written`
        self.scans = Scans()
        self.value = value
        self._count = count
        self._needed = needed
        self._common: dict[int, list[Type]] = {}  # physical types of CTEs' columns
        self._held: dict[int, Held] = {}  # the tables in scope, by relation

    # --- queries ------------------------------------------------------------------------------------------------------

    def query(self, query: Query) -> tuple[str, list[Type]]:
        """Text of a query whose columns are c0, c1, ..., and their physical types."""
        if isinstance(query, tree.Select):
            return self._select(query)
        if isinstance(query, tree.SetOperation):
            return self._set_operation(query)
        return self._values_query(query)

    def _with(self, ctes: Sequence[tree.CommonTable]) -> str:
        parts = []
        for common in ctes:
            if common.recursive:
                parts.append(self._recursive(common))
                continue
            text, types = self.query(common.query)
            self._common[common.id] = types
            hint = {None: "", True: "MATERIALIZED ", False: "NOT MATERIALIZED "}[common.materialized]
            parts.append(f"cte{common.id}({_names(types)}) AS {hint}({text})")
        if not parts:
            return ""
        recursive = "RECURSIVE " if any(common.recursive for common in ctes) else ""
        return f"WITH {recursive}{', '.join(parts)} "

    def _recursive(self, common: tree.CommonTable) -> str:
        """DuckDB takes the columns' types from the first side; numerics are text, so that every round has its scale."""
        query = common.query
        if not isinstance(query, tree.SetOperation) or query.kind != "union":
            raise errors.unsupported("this form of a recursive common table expression")
        if query.order_by or query.limit is not None or query.offset is not None or query.ctes:
            raise errors.unsupported("ORDER BY, LIMIT or WITH in a recursive common table expression")
        logical = [Type(Kind.NUMERIC) if type_.kind is Kind.NUMERIC else type_ for _, type_ in query.columns]
        if not query.all and any(type_.kind in (Kind.NUMERIC, Kind.JSONB) for type_ in logical):
            raise errors.unsupported("UNION of numeric or jsonb in a recursive common table expression")
        self._common[common.id] = logical
        left = self._conformed(query.left, logical)
        right = self._conformed(query.right, logical)
        every = "ALL " if query.all else ""
        return f"cte{common.id}({_names(logical)}) AS ({left} UNION {every}{right})"

    def _conformed(self, query: Query, types: Sequence[Type]) -> str:
        """The query with its numerics as text where `types` has them so."""
        text, given = self.query(query)
        outputs = [
            as_text(Sql(f"q.c{number}", found)) if wanted == NUMERIC else f"q.c{number}"
            for number, (found, wanted) in enumerate(zip(given, types, strict=True))
        ]
        return f"(SELECT {_listed(outputs)} FROM ({text}) AS q)"

    def _select(self, query: tree.Select) -> tuple[str, list[Type]]:
        head = self._with(query.ctes)
        self._held |= {held.scan.relation: held for held in held_scans(query.from_, conjuncts(query.where))}
        from_ = "" if query.from_ is None else f" FROM {self._from(query.from_)}"
        where = "" if query.where is None else f" WHERE {self._where(query.from_, query.where)}"
        own = frozenset() if query.from_ is None or not query.aggregated else relations_of(query.from_)
        grouped = ExpressionWriter(self, query.group_exprs, query.grouping_sets, own)
        outputs = [grouped.expr(output.expr) for output in query.outputs]
        group = grouped.group_by()
        having = "" if query.having is None else f" HAVING {grouped.truth(query.having)}"
        if query.aggregated and not query.group_exprs and query.grouping_sets is None and not having:
            having = self._one_group(query)
        types = [output.type for output in outputs]
        listed = _listed([f"{output.text} AS c{number}" for number, output in enumerate(outputs)])
        tail = f"{from_}{where}{group}{having}"
        page = self._page(query.limit, query.offset)
        if query.distinct:
            return head + self._distinct(query, outputs, f"SELECT {listed}{tail}") + page, types
        distinct = ""
        if query.distinct_on:
            keys = ", ".join(sort_key(grouped.expr(expr)) for expr in query.distinct_on)
            distinct = f"DISTINCT ON ({keys}) "
        order = self._order(grouped, query.order_by)
        return f"{head}SELECT {distinct}{listed}{tail}{order}{page}", types

    def _where(self, from_: FromItem | None, condition: Expr) -> str:
        """Above a FULL JOIN DuckDB takes conjuncts in an order of its own."""
        full = any(isinstance(found, tree.Join) and found.kind == "full" for found in walk_level(from_))
        return ExpressionWriter(self).condition([condition] if full else conjuncts(condition))

    def _one_group(self, query: tree.Select) -> str:
        """Without an aggregate in its outputs, `SELECT 1 FROM t HAVING true` would be no aggregation to DuckDB."""
        found = any(isinstance(output.expr, tree.AggregateCall) for output in query.outputs)
        return "" if found else " HAVING count(*) >= 0"

    def _distinct(self, query: tree.Select, outputs: Columns, text: str) -> str:
        columns = [Sql(f"d.c{number}", output.type) for number, output in enumerate(outputs)]
        keys = [sort_key(column) for column in columns]
        positions = {output.expr: number for number, output in reversed(list(enumerate(query.outputs)))}
        order = []
        for key in query.order_by:
            position = positions.get(key.expr)
            if position is None:
                raise errors.unsupported("this ORDER BY of SELECT DISTINCT")
            order.append(_ordered(keys[position], key))
        names = _listed([f"d.c{number} AS c{number}" for number in range(len(columns))])
        plain = all(key == column.text for key, column in zip(keys, columns, strict=True))
        distinct = "DISTINCT" if plain else f"DISTINCT ON ({', '.join(keys)})"
        inner = f"SELECT {distinct} {names} FROM ({text}) AS d"
        if not order:
            return inner
        return f"SELECT * FROM ({inner}) AS d ORDER BY {', '.join(order)}"

    def _order(self, writer: ExpressionWriter, keys: Sequence[SortKey]) -> str:
        if not keys:
            return ""
        return " ORDER BY " + ", ".join(_ordered(sort_key(writer.expr(key.expr)), key) for key in keys)

    def _page(self, limit: Expr | None, offset: Expr | None) -> str:
        text = ""
        for clause, expr in (("LIMIT", limit), ("OFFSET", offset)):
            if expr is not None:
                count = self._count(expr, clause)
                text += "" if count is None else f" {clause} {count}"
        return text

    def _values_query(self, query: tree.ValuesQuery) -> tuple[str, list[Type]]:
        values = query.values
        source = self._values(values)
        types = [self.columns[values.relation, number].type for number in range(len(values.columns))]
        order = self._order(ExpressionWriter(self), query.order_by)
        return f"SELECT * FROM {source}{order}{self._page(query.limit, query.offset)}", types

    def _set_operation(self, query: tree.SetOperation) -> tuple[str, list[Type]]:
        head = self._with(query.ctes)
        left, left_types = self.query(query.left)
        right, right_types = self.query(query.right)
        sides: tuple[list[str], list[str]] = ([], [])
        types = []
        for number, (a, b) in enumerate(zip(left_types, right_types, strict=True)):
            pair = unify([Sql(f"q.c{number}", a), Sql(f"q.c{number}", b)])
            for side, column in zip(sides, pair, strict=True):
                side.append(f"{column.text} AS c{number}")
            types.append(pair[0].type)
        texts = [f"(SELECT {_listed(s)} FROM ({t}) AS q)" for s, t in zip(sides, (left, right), strict=True)]
        columns = [Sql(f"r{query.relation}.c{number}", type_) for number, type_ in enumerate(types)]
        for number, column in enumerate(columns):
            self.columns[query.relation, number] = column
        keys = [sort_key(column) for column in columns]
        plain = all(key == column.text for key, column in zip(keys, columns, strict=True))
        operator = query.kind.upper()
        if plain or (query.all and query.kind == "union"):
            body = f"{texts[0]} {operator} {'ALL ' if query.all else ''}{texts[1]}"
            start = "SELECT *"
        elif query.kind == "union":
            body, start = f"{texts[0]} UNION ALL {texts[1]}", f"SELECT DISTINCT ON ({', '.join(keys)}) *"
        else:
            raise errors.unsupported(f"{operator} of jsonb or of numerics of several scales in an analytic query")
        text = f"{head}{start} FROM ({body}) AS r{query.relation}"
        if query.order_by and start != "SELECT *":
            text = f"SELECT * FROM ({text}) AS r{query.relation}"
        text += self._order(ExpressionWriter(self), query.order_by)
        return text + self._page(query.limit, query.offset), types

    # --- FROM ---------------------------------------------------------------------------------------------------------

    def _from(self, item: FromItem) -> str:
        match item:
            case tree.TableScan():
                return self._table(item)
            case tree.SystemScan():
                name = f"s{item.relation}"
                self.scans.systems[name] = item
                self._declare(item.relation, [type_ for _, type_ in item.columns])
                return f"{name} AS r{item.relation}"
            case tree.Derived():
                return self._derived(item)
            case tree.RecursiveRef():
                types = self._common[item.cte]
                self._declare(item.relation, types)
                return f"cte{item.cte} AS r{item.relation}"
            case tree.ValuesList():
                return self._values(item)
            case tree.FunctionScan():
                return self._function(item)
            case tree.Join():
                return self._join(item)

    def _function(self, item: tree.FunctionScan) -> str:
        args = [ExpressionWriter(self).expr(arg) for arg in item.args]
        call = item.function.render(args, self.context)
        self._declare(item.relation, [call.type])
        numbers = self._series(item)
        if numbers is not None:  # in DuckDB's own time: a list is there as a whole before its first row is
            first, stop, step = numbers.start, numbers.stop, numbers.step
            rows = f"SELECT CAST(range AS {duckdb_type(call.type)}) AS c0 FROM range({first}, {stop}, {step})"
            return f"({rows}) AS r{item.relation}"
        return f"LATERAL (SELECT unnest({call.text}) AS c0) AS r{item.relation}"

    def _series(self, item: tree.FunctionScan) -> range | None:
        """The numbers of a series whose bounds are literals or parameters; None for what DuckDB is to compute."""
        bounds = []
        for arg in item.args:
            if isinstance(arg, tree.Parameter):
                bounds.append(self.parameters[arg.index])
            elif isinstance(arg, tree.Literal):
                bounds.append(arg.value)
            else:
                return None
        if item.function.name != "generate_series" or None in bounds:
            return None
        made = item.function.python(*bounds)
        return made if isinstance(made, range) and _LOW <= made.stop <= _HIGH else None

    def _table(self, item: tree.TableScan) -> str:
        relation = item.relation
        ordinals = read_columns(self._needed, item)
        name = f"s{relation}"
        self.scans.tables[name] = self._held[relation], ordinals
        for position, ordinal in enumerate(ordinals):
            type_ = item.table.columns[ordinal].type
            self.columns[relation, ordinal] = Sql(f"r{relation}.c{position}", type_)
        return f"{name} AS r{relation}"

    def _derived(self, item: tree.Derived) -> str:
        if item.cte is not None:
            types = self._common[item.cte]
            self._declare(item.relation, types)
            return f"cte{item.cte} AS r{item.relation}"
        text, types = self.query(item.query)
        self._declare(item.relation, types)
        return f"{'LATERAL ' if item.lateral else ''}({text}) AS r{item.relation}"

    def _declare(self, relation: int, types: Sequence[Type]) -> None:
        for number, type_ in enumerate(types):
            self.columns[relation, number] = Sql(f"r{relation}.c{number}", type_)

    def _values(self, item: tree.ValuesList) -> str:
        writer = ExpressionWriter(self)
        rows = [[writer.expr(value) for value in row] for row in item.rows]
        columns = [unify([row[number] for row in rows]) for number in range(len(item.columns))]
        self._declare(item.relation, [_common_type(column) for column in columns])
        listed = ", ".join(
            "(" + ", ".join(column[number].text for column in columns) + ")" for number in range(len(rows))
        )
        return f"(VALUES {listed}) AS r{item.relation}({', '.join(f'c{number}' for number in range(len(columns)))})"

    def _join(self, item: tree.Join) -> str:
        left, right = self._from(item.left), self._from(item.right)
        if item.kind == "cross" or (item.kind == "inner" and item.condition is None):
            return f"({left} CROSS JOIN {right})"
        if any(_leaks(side) for side in (item.left, item.right)) and not _is_hashed(item):
            raise errors.unsupported("a subquery in the condition of an outer join that is joined by no equality")
        return f"({left} {item.kind.upper()} JOIN {right} ON {self._on(item)})"

    def _on(self, item: tree.Join) -> str:
        """What does not connect the two sides keeps the conjuncts behind it from failing; DuckDB does not."""
        if item.kind == "inner":
            return ExpressionWriter(self).condition(conjuncts(item.condition))
        sides = relations_of(item.left), relations_of(item.right)
        found: list[Expr] = []
        said: list[Expr] = []
        for condition in guarded_on(item):
            joins = equated(condition, *sides) is not None
            guarded = said and not joins and may_fail(condition)
            found.append(tree.And((*said, condition)) if guarded else condition)
            if not joins:
                said.append(condition)
        return ExpressionWriter(self).condition(found)


def _leaks(item: FromItem) -> bool:
    """Whether rows of a FROM item have more columns in DuckDB than they should: those of an outer join keep what its
    subqueries came to, which a join by inequalities (2.0) then takes for columns of the tables. Others drop it."""
    if not isinstance(item, tree.Join) or item.condition is None:
        return isinstance(item, tree.Join) and (_leaks(item.left) or _leaks(item.right))
    if item.kind != "inner" and any(isinstance(found, SUBQUERIES) for found in walk_level(item.condition)):
        return True
    return not _is_hashed(item) and (_leaks(item.left) or _leaks(item.right))


def _is_hashed(item: tree.Join) -> bool:
    """Whether one of the conditions of a join is an equality between its sides."""
    sides = relations_of(item.left), relations_of(item.right)
    return any(equated(condition, *sides) is not None for condition in conjuncts(item.condition))


def _listed(outputs: Sequence[str]) -> str:
    """A select list. What has no columns has one in DuckDB, that nobody reads."""
    return ", ".join(outputs) or "1 AS c0"


def _names(types: Sequence[Type]) -> str:
    return ", ".join(f"c{number}" for number in range(len(types) or 1))


def _common_type(column: Sequence[Sql]) -> Type:
    return column[0].type


def _ordered(text: str, key: SortKey) -> str:
    return f"{text} {'DESC' if key.descending else 'ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
