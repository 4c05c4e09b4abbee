"""The typed tree written back as SQL of Instar's own dialect, for descriptors (by ids) and for people (by names).

The text is read back by the grammar and bound into an equal tree: operators are parenthesised, constants bear their
types, columns their relation's alias, and every alias is used once in a statement, so that no name can be captured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from instar import errors
from instar.catalog.descriptors import Object, Table
from instar.sql import tree
from instar.sql.binder.context import CatalogReader
from instar.sql.grammar.keywords import BARE_FUNCTIONS, COLUMN_ONLY, FUNCTION_OR_TYPE, RESERVED
from instar.sql.tree import Expr
from instar.types import INTEGERS, Kind, Type
from instar.values import to_text

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z", re.ASCII)
_BARE = (Kind.INTEGER, Kind.BOOLEAN)  # constants that are written without their type
_KEYWORDS = RESERVED | FUNCTION_OR_TYPE | COLUMN_ONLY
_OF_TWO_WIDTHS = frozenset({"=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%"})  # of integers, as PostgreSQL's


def quote_identifier(name: str) -> str:
    """The name as SQL must write it: quoted only where it would be folded or taken for a key word."""
    if _PLAIN.match(name) and name not in _KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Deparser:
    """Writes one statement. `tables` are in sight without a FROM (CHECK); `qualified` False: bare column names.

    `numbered`: aliases are r0, r1, ... whatever they were called, so that queries can be compared.
    """

    def __init__(
        self,
        catalog: CatalogReader,
        by_ids: bool = False,
        tables: Mapping[int, Table] | None = None,
        qualified: bool = True,
        numbered: bool = False,
    ) -> None:
        self._catalog = catalog
        self._numbered = numbered
        self._by_ids = by_ids
        self._qualified = qualified
        self._aliases: dict[int, str] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._ctes: dict[int, str] = {}
        self._used: set[str] = set()
        for relation, table in (tables or {}).items():
            self._declare(relation, table.name, self._table_names(table))

    # --- names ---

    def _table_names(self, table: Table) -> tuple[str, ...]:
        return tuple(f"#{column.id}" if self._by_ids else column.name for column in table.columns)

    def _object(self, found: Object | None, number: int) -> str:
        if self._by_ids:
            return f'"#{number}"'
        if found is None:
            raise errors.error(errors.DATA_CORRUPTED, f"there is no object of id {number}")
        return quote_identifier(found.name)

    def _unique(self, name: str) -> str:
        if self._numbered:
            name = f"r{len(self._used)}"
        # Invented aliases hold characters that no one writes; they become plain ones.
        base = name if name and "*" not in name else name.strip("*0123456789") or "subquery"
        found, number = base, 0
        while found in self._used:
            number += 1
            found = f"{base}_{number}"
        self._used.add(found)
        return found

    def _declare(self, relation: int, name: str, columns: tuple[str, ...]) -> str:
        self._aliases[relation] = self._unique(name)
        self._names[relation] = columns
        return quote_identifier(self._aliases[relation])

    def _declare_output(self, relation: int, name: str, columns: tuple[tuple[str, Type], ...]) -> str:
        """alias(columns): named again, so that two outputs of one name can be told apart."""
        names = _distinct_names(columns)
        return self._declare(relation, name, names) + _column_list(names)

    # --- expressions ---

    def expression(self, expr: Expr) -> str:
        writer = _WRITERS.get(type(expr))
        if writer is None:
            raise errors.unsupported(f"a stored expression with {type(expr).__name__}")
        return writer(self, expr)

    def _list(self, exprs: tuple[Expr, ...]) -> str:
        return ", ".join(map(self.expression, exprs))

    def _literal(self, expr: tree.Literal) -> str:
        type_, value = expr.type, expr.value
        if value is None:
            return f"NULL::{type_}"
        if type_.kind is Kind.BOOLEAN:
            return "true" if value else "false"
        if type_.kind is Kind.INTEGER:
            return str(value) if isinstance(value, int) and value >= 0 else f"({value})"
        return f"{quote_literal(to_text(type_, value))}::{type_}"

    def _column(self, expr: tree.ColumnRef) -> str:
        alias = self._aliases.get(expr.relation)
        if alias is None:
            raise errors.error(errors.INTERNAL_ERROR, f"relation {expr.relation} is not in sight")
        name = self._names[expr.relation][expr.ordinal]
        if not self._qualified:
            return quote_identifier(name)
        return f"{quote_identifier(alias)}.{quote_identifier(name)}"

    def _call(self, expr: tree.Call) -> str:
        function, args = expr.function, expr.args
        if function.operator:
            if function.name in _OF_TWO_WIDTHS:
                args = _as_given(args)
            written = [self.expression(arg) for arg in args]
            if len(written) == 1:
                return f"({function.name} {written[0]})"
            return f"({written[0]} {function.name} {written[1]})"
        if function.name in BARE_FUNCTIONS and not args:
            return function.name.upper()
        if function.name == "extract" and isinstance(args[0], tree.Literal):
            return f"EXTRACT({quote_literal(str(args[0].value))} FROM {self.expression(args[1])})"
        if function.name == "position":
            return f"POSITION({self.expression(args[1])} IN {self.expression(args[0])})"
        return f"{quote_function(function.name)}({self._list(args)})"

    def _cast(self, expr: tree.Cast) -> str:
        return f"({self.expression(expr.operand)})::{expr.type}"

    def _connective(self, expr: tree.And | tree.Or) -> str:
        word = " AND " if isinstance(expr, tree.And) else " OR "
        return f"({word.join(map(self.expression, expr.args))})"

    def _not(self, expr: tree.Not) -> str:
        return f"(NOT {self.expression(expr.operand)})"

    def _is_null(self, expr: tree.IsNull) -> str:
        return f"({self.expression(expr.operand)} IS {'NOT ' if expr.negated else ''}NULL)"

    def _is_truth(self, expr: tree.IsTruth) -> str:
        word = "UNKNOWN" if expr.truth is None else str(expr.truth).upper()
        return f"({self.expression(expr.operand)} IS {'NOT ' if expr.negated else ''}{word})"

    def _is_distinct(self, expr: tree.IsDistinct) -> str:
        word = "IS NOT DISTINCT FROM" if expr.negated else "IS DISTINCT FROM"
        return f"({self.expression(expr.left)} {word} {self.expression(expr.right)})"

    def _in_list(self, expr: tree.InList) -> str:
        operand = _as_given((expr.operand, *expr.items[:1]))[0]
        return f"({self.expression(operand)} {'NOT ' if expr.negated else ''}IN ({self._list(expr.items)}))"

    def _case(self, expr: tree.Case) -> str:
        first = expr.whens[0][0]
        operand = first.args[0] if isinstance(first, tree.Call) and first.args else first
        while isinstance(operand, tree.Cast):
            operand = operand.operand
        if isinstance(operand, tree.Keep):
            return self._case_of(operand, expr)
        whens = " ".join(f"WHEN {self.expression(a)} THEN {self.expression(b)}" for a, b in expr.whens)
        return f"CASE {whens} ELSE {self.expression(expr.default)} END"

    def _case_of(self, kept: tree.Keep, expr: tree.Case) -> str:
        """NULLIF, or CASE with an operand: that is written once, as it is evaluated once."""
        operand = self.expression(kept.operand)
        calls = (condition for condition, _ in expr.whens if isinstance(condition, tree.Call))
        compared = [self.expression(call.args[1]) for call in calls]
        if isinstance(expr.default, tree.Kept) and expr.default.number == kept.number:
            return f"NULLIF({operand}, {compared[0]})"
        results = (self.expression(result) for _, result in expr.whens)
        whens = " ".join(f"WHEN {one} THEN {other}" for one, other in zip(compared, results, strict=True))
        return f"CASE {operand} {whens} ELSE {self.expression(expr.default)} END"

    def _coalesce(self, expr: tree.Coalesce) -> str:
        return f"COALESCE({self._list(expr.args)})"

    def _next_value(self, expr: tree.NextValue) -> str:
        found = self._catalog.by_id(expr.sequence)
        name = f"#{expr.sequence}" if self._by_ids else self._object(found, expr.sequence)
        return f"nextval({quote_literal(name)})"

    def _of_session(self, expr: tree.CurrentValue | tree.SetValue) -> str:
        raise errors.unsupported("setval, currval or lastval in a default or a view")

    def _aggregate(self, expr: tree.AggregateCall) -> str:
        inner = self._list(expr.args) if expr.args else "*"
        if expr.distinct:
            inner = f"DISTINCT {inner}"
        if expr.order_by:
            inner += f" ORDER BY {self._sort_keys(expr.order_by)}"
        return f"{quote_function(expr.aggregate.name)}({inner}){self._filter(expr.filter)}"

    def _grouping(self, expr: tree.GroupingCall) -> str:
        return f"GROUPING({self._list(expr.args)})"

    def _filter(self, expr: Expr | None) -> str:
        return "" if expr is None else f" FILTER (WHERE {self.expression(expr)})"

    def _window(self, expr: tree.WindowCall) -> str:
        name = expr.function.name
        inner = "*" if not expr.args and name == "count" else self._list(expr.args)
        parts = []
        if expr.partition_by:
            parts.append(f"PARTITION BY {self._list(expr.partition_by)}")
        if expr.order_by:
            parts.append(f"ORDER BY {self._sort_keys(expr.order_by)}")
        if expr.frame is not None:
            start, end = self._bound(expr.frame.start), self._bound(expr.frame.end)
            parts.append(f"{expr.frame.unit.upper()} BETWEEN {start} AND {end}")
        return f"{quote_function(name)}({inner}){self._filter(expr.filter)} OVER ({' '.join(parts)})"

    def _bound(self, bound: tuple[str, Expr | None]) -> str:
        side, offset = bound
        return side.upper() if offset is None else f"{self.expression(offset)} {side.upper()}"

    def _scalar_subquery(self, expr: tree.ScalarSubquery) -> str:
        return f"({self.query(expr.query)})"

    def _exists(self, expr: tree.Exists) -> str:
        found = f"EXISTS ({self.query(expr.query)})"
        return f"(NOT {found})" if expr.negated else found

    def _in_subquery(self, expr: tree.InSubquery) -> str:
        operands = self._list(expr.operands)
        left = operands if len(expr.operands) == 1 else f"({operands})"
        return f"({left} {'NOT ' if expr.negated else ''}IN ({self.query(expr.query)}))"

    def _sort_keys(self, keys: tuple[tree.SortKey, ...]) -> str:
        return ", ".join(
            f"{self._key(key.expr)}{' DESC' if key.descending else ''}"
            f"{'' if key.nulls_first == key.descending else ' NULLS FIRST' if key.nulls_first else ' NULLS LAST'}"
            for key in keys
        )

    def _key(self, expr: Expr) -> str:
        """An expression where a bare constant would be read as a position, or refused for being none."""
        written = self.expression(expr)
        bare = isinstance(expr, tree.Literal) and expr.value is not None and expr.type.kind in _BARE
        return f"{written}::{expr.type}" if bare else written

    # --- FROM ---

    def _from(self, item: tree.FromItem) -> str:
        if isinstance(item, tree.TableScan):
            name = self._object(item.table, item.table.id)
            alias = self._declare(item.relation, item.alias, self._table_names(item.table))
            return name if alias == name else f"{name} AS {alias}"
        if isinstance(item, tree.Join):
            left = self._from(item.left)
            right = self._from(item.right)
            if isinstance(item.right, tree.Join):
                right = f"({right})"
            if item.kind == "cross" or item.condition is None:
                return f"{left} CROSS JOIN {right}"
            word = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}[item.kind]
            return f"{left} {word} {right} ON {self.expression(item.condition)}"
        if isinstance(item, tree.Derived):
            return self._derived(item)
        if isinstance(item, tree.FunctionScan):
            call = f"{quote_function(item.function.name)}({self._list(item.args)})"
            return f"{call} AS {self._declare_output(item.relation, item.alias, item.columns)}"
        if isinstance(item, tree.ValuesList):
            rows = self._rows(item)
            return f"(VALUES {rows}) AS {self._declare_output(item.relation, item.alias, item.columns)}"
        if isinstance(item, tree.RecursiveRef):
            alias = self._declare_output(item.relation, item.alias, item.columns)
            return f"{quote_identifier(self._ctes[item.cte])} AS {alias}"
        schema, _, name = item.view.partition(".")
        alias = self._declare(item.relation, item.alias, tuple(column for column, _ in item.columns))
        return f"{quote_identifier(schema)}.{quote_identifier(name)} AS {alias}"

    def _derived(self, item: tree.Derived) -> str:
        columns = _outputs(item.query)
        if item.view is not None:
            name = self._object(self._catalog.by_id(item.view), item.view)
            return f"{name} AS {self._declare_output(item.relation, item.alias, columns)}"
        if item.cte is not None:
            cte = quote_identifier(self._ctes[item.cte])
            return f"{cte} AS {self._declare_output(item.relation, item.alias, columns)}"
        query = self.query(item.query)
        lateral = "LATERAL " if item.lateral else ""
        return f"{lateral}({query}) AS {self._declare_output(item.relation, item.alias, columns)}"

    def _rows(self, values: tree.ValuesList) -> str:
        return ", ".join(f"({self._list(row)})" for row in values.rows)

    # --- queries ---

    def query(self, query: tree.Query) -> str:
        with_ = "" if isinstance(query, tree.ValuesQuery) else self._with(query.ctes)
        if isinstance(query, tree.Select):
            body = self._select(query)
        elif isinstance(query, tree.SetOperation):
            word = query.kind.upper() + (" ALL" if query.all else "")
            body = f"({self.query(query.left)}) {word} ({self.query(query.right)})"
        else:
            body = f"VALUES {self._rows(query.values)}"
        return with_ + body + self._tail(query)

    def _with(self, ctes: tuple[tree.CommonTable, ...]) -> str:
        if not ctes:
            return ""
        written = []
        for cte in ctes:
            self._ctes[cte.id] = self._unique(cte.name)
            how = {None: "", True: "MATERIALIZED ", False: "NOT MATERIALIZED "}[cte.materialized]
            name = quote_identifier(self._ctes[cte.id]) + _column_list(_distinct_names(_outputs(cte.query)))
            written.append(f"{name} AS {how}({self.query(cte.query)})")
        recursive = "RECURSIVE " if any(cte.recursive for cte in ctes) else ""
        return f"WITH {recursive}{', '.join(written)} "

    def _select(self, query: tree.Select) -> str:
        # FROM comes first: it names the relations that the outputs refer to.
        from_ = "" if query.from_ is None else f" FROM {self._from(query.from_)}"
        distinct = "DISTINCT " if query.distinct else ""
        if query.distinct_on:
            distinct = f"DISTINCT ON ({', '.join(map(self._key, query.distinct_on))}) "
        outputs = ", ".join(
            f"{self.expression(output.expr)} AS {quote_identifier(output.name)}" for output in query.outputs
        )
        text = f"SELECT {distinct}{outputs}{from_}"
        if query.where is not None:
            text += f" WHERE {self.expression(query.where)}"
        text += self._group_by(query)
        if query.having is not None:
            text += f" HAVING {self.expression(query.having)}"
        return text

    def _group_by(self, query: tree.Select) -> str:
        keys = [self._key(expr) for expr in query.group_exprs]
        if query.grouping_sets is not None:
            sets = ", ".join(f"({', '.join(keys[number] for number in found)})" for found in query.grouping_sets)
            return f" GROUP BY GROUPING SETS ({sets})"
        return f" GROUP BY {', '.join(keys)}" if keys else ""

    def _tail(self, query: tree.Query) -> str:
        text = ""
        if query.order_by:
            if isinstance(query, tree.Select):
                keys = self._sort_keys(query.order_by)
            else:
                keys = ", ".join(_output_key(key) for key in query.order_by)
            text += f" ORDER BY {keys}"
        if query.limit is not None:
            text += f" LIMIT {self.expression(query.limit)}"
        if query.offset is not None:
            text += f" OFFSET {self.expression(query.offset)}"
        return text


def quote_function(name: str) -> str:
    return name if _PLAIN.match(name) else quote_identifier(name)


def _as_given(operands: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The operands without the cast by which one integer gets the other's width. It is made again when the text is
    bound; written, it would round the values of a column that is numeric by then."""
    if len({found.type for found in operands}) > 1:
        return operands
    given = tuple(map(_unwidened, operands))
    return given if any(a is b for a, b in zip(operands, given, strict=True)) else operands


def _unwidened(expr: Expr) -> Expr:
    if not isinstance(expr, tree.Cast) or expr.explicit or not {expr.type.kind, expr.operand.type.kind} <= INTEGERS:
        return expr
    return expr.operand


def _distinct_names(columns: tuple[tuple[str, Type], ...]) -> tuple[str, ...]:
    names: list[str] = []
    for column, _ in columns:
        unique, number = column, 0
        while unique in names:
            number += 1
            unique = f"{column}_{number}"
        names.append(unique)
    return tuple(names)


def _column_list(names: tuple[str, ...]) -> str:
    return f"({', '.join(map(quote_identifier, names))})" if names else ""


def _outputs(query: tree.Query) -> tuple[tuple[str, Type], ...]:
    if isinstance(query, tree.Select):
        return tuple((output.name, output.expr.type) for output in query.outputs)
    return query.columns if isinstance(query, tree.SetOperation) else query.values.columns


def _output_key(key: tree.SortKey) -> str:
    assert isinstance(key.expr, tree.ColumnRef)
    direction = " DESC" if key.descending else ""
    nulls = "" if key.nulls_first == key.descending else " NULLS FIRST" if key.nulls_first else " NULLS LAST"
    return f"{key.expr.ordinal + 1}{direction}{nulls}"


_WRITERS: dict[type, Callable[[Deparser, Any], str]] = {
    tree.Literal: Deparser._literal,
    tree.ColumnRef: Deparser._column,
    tree.Call: Deparser._call,
    tree.Cast: Deparser._cast,
    tree.And: Deparser._connective,
    tree.Or: Deparser._connective,
    tree.Not: Deparser._not,
    tree.IsNull: Deparser._is_null,
    tree.IsTruth: Deparser._is_truth,
    tree.IsDistinct: Deparser._is_distinct,
    tree.InList: Deparser._in_list,
    tree.Case: Deparser._case,
    tree.Coalesce: Deparser._coalesce,
    tree.NextValue: Deparser._next_value,
    tree.CurrentValue: Deparser._of_session,
    tree.SetValue: Deparser._of_session,
    tree.AggregateCall: Deparser._aggregate,
    tree.GroupingCall: Deparser._grouping,
    tree.WindowCall: Deparser._window,
    tree.ScalarSubquery: Deparser._scalar_subquery,
    tree.Exists: Deparser._exists,
    tree.InSubquery: Deparser._in_subquery,
}
