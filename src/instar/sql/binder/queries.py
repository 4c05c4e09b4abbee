"""Queries: WITH, set operations, VALUES, and the small queries that the binder itself makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec.structs import replace
from sqlglot import exp

from instar import errors, types
from instar.catalog.descriptors import View
from instar.sql import tree
from instar.sql.binder import coercion, row_locks
from instar.sql.binder.context import Context
from instar.sql.binder.expressions import constant
from instar.sql.binder.frozen_texts import parsed_query, unplaced
from instar.sql.binder.scope import CteEntry, Scope
from instar.sql.binder.selects import SelectBinder, meant_ordinal
from instar.sql.functions import common_type
from instar.sql.grammar.constants import Constants, require_entries
from instar.sql.grammar.nodes import position_of
from instar.sql.traversal import walk, walk_level
from instar.sql.tree import CommonTable, Expr, Output, Query, SortKey
from instar.types import Kind, Type

SetKind = Literal["union", "intersect", "except"]
_SET_KINDS: dict[type[exp.Expr], SetKind] = {exp.Union: "union", exp.Intersect: "intersect", exp.Except: "except"}


class QueryBinder(SelectBinder):
    """Binds queries; one for a statement, and one with `by_ids` for each text out of a descriptor."""

    def __init__(self, context: Context, by_ids: bool = False) -> None:
        self.context = context
        self.by_ids = by_ids

    # --- queries ---

    def query(self, node: exp.Expr, parent: Scope | None, keep_unknown: bool = False) -> Query:
        """A query with its WITH, in the sight of `parent`. `keep_unknown`: as in `select`."""
        with_ = node.args.get("with_")
        if with_ is None:
            return self._body(node, parent, keep_unknown)
        scope = Scope(parent=parent)
        ctes = self.common_tables(with_, scope)
        return self.attach(self._body(node, scope, keep_unknown), ctes)

    def attach(self, query: Query, ctes: tuple[CommonTable, ...]) -> Query:
        """The query with these common tables before its own."""
        body = self._wrapped(query) if isinstance(query, tree.ValuesQuery) else query
        return replace(body, ctes=ctes + body.ctes)

    def subquery(self, node: exp.Expr, scope: Scope) -> Query:
        """A query inside an expression of `scope`, which may refer to its columns."""
        return self.query(node, scope)

    def _body(self, node: exp.Expr, parent: Scope | None, keep_unknown: bool) -> Query:
        while isinstance(node, exp.Subquery):
            node = node.this
            if node.args.get("with_") is not None:
                return self.query(node, parent, keep_unknown)
        if isinstance(node, exp.Select):
            return self.select(node, parent, keep_unknown)
        if isinstance(node, exp.Values):
            return self._values(node, parent)
        return self._set_operation(node, parent)

    def columns(self, query: Query) -> tuple[tuple[str, Type], ...]:
        """Names and types of a query's result."""
        if isinstance(query, tree.Select):
            return tuple((output.name, output.expr.type) for output in query.outputs)
        return query.columns if isinstance(query, tree.SetOperation) else query.values.columns

    # --- WITH ---

    def common_tables(self, with_: exp.Expr, scope: Scope) -> tuple[CommonTable, ...]:
        """The WITH list, each in sight of those before it, or, if RECURSIVE, of those that do not need it; `scope` gets
        their names."""
        found = []
        for node in _by_need(with_.expressions) if with_.args.get("recursive") else with_.expressions:
            alias = node.args["alias"]
            name = alias.name
            if name in scope.ctes:
                message = f'WITH query name "{name}" specified more than once'
                raise errors.error(errors.DUPLICATE_ALIAS, message, position=position_of(node))
            names = [identifier.name for identifier in alias.args.get("columns") or ()]
            entry = self._common_table(node, name, names, scope, bool(with_.args.get("recursive")))
            assert entry.query is not None
            scope.ctes[name] = entry
            recursive = any(
                isinstance(inner, tree.RecursiveRef) and inner.cte == entry.id for inner in walk(entry.query)
            )
            found.append(CommonTable(entry.id, name, entry.query, recursive, node.args.get("materialized")))
        return tuple(found)

    def _common_table(self, node: exp.Expr, name: str, names: list[str], scope: Scope, recursive: bool) -> CteEntry:
        body = node.this
        while isinstance(body, exp.Subquery) and body.args.get("with_") is None:
            body = body.this
        number = self.context.new_cte()
        if recursive and _mentions(body, name):
            query = self._recursive(body, number, name, names, scope)
        else:
            query = self.query(body, scope)
            query = _with_names(query, renamed(self.columns(query), names, name, position_of(node)))
        return CteEntry(number, name, self.columns(query), query)

    def _recursive(self, node: exp.Expr, number: int, name: str, names: list[str], scope: Scope) -> Query:
        """first UNION [ALL] second, where the second term refers to the query itself."""
        position = position_of(node)
        if not isinstance(node, exp.Union) or _mentions(node.this, name):
            message = f'recursive query "{name}" does not have the form non-recursive-term UNION [ALL] recursive-term'
            raise errors.error(errors.INVALID_RECURSION, message, position=position)
        for clause in ("order", "limit", "offset"):
            if node.args.get(clause) is not None:
                raise errors.unsupported(f"{clause.upper()} in a recursive query", position=position)
        inner = scope
        ctes: tuple[CommonTable, ...] = ()
        if node.args.get("with_") is not None:
            inner = Scope(parent=scope)
            ctes = self.common_tables(node.args["with_"], inner)
        first = self.query(node.this, inner)
        columns = renamed(self.columns(first), names, name, position)
        second = self.query(
            node.expression, Scope(parent=inner, ctes={name: CteEntry(number, name, columns, None)}), True
        )
        _check_recursive_term(second, number, name, position)
        second = self._recursive_types(first, second, name, position)
        return tree.SetOperation(
            self.context.new_relation(),
            "union",
            not node.args["distinct"],
            first,
            second,
            columns,
            (),
            None,
            None,
            ctes,
        )

    def _recursive_types(self, first: Query, second: Query, name: str, position: int | None) -> Query:
        wanted, given = self.columns(first), self.columns(second)
        if len(wanted) != len(given):
            message = "each UNION query must have the same number of columns"
            raise errors.error(errors.SYNTAX_ERROR, message, position=position)
        for number, ((_, a), (_, b)) in enumerate(zip(wanted, given, strict=True), 1):
            if (
                b.kind not in (Kind.UNKNOWN, a.kind)
                and common_type([a, b], "UNION", position=position).kind is not a.kind
            ):
                message = (
                    f'recursive query "{name}" column {number} has type {a} in non-recursive term but type {b} overall'
                )
                hint = "Cast the output of the non-recursive term to the correct type."
                raise errors.error(errors.DATATYPE_MISMATCH, message, hint=hint, position=position)
        return self.with_types(second, [type_ for _, type_ in wanted])

    # --- set operations and VALUES ---

    def _set_operation(self, node: exp.Expr, parent: Scope | None) -> tree.SetOperation:
        row_locks.refuse(node, "UNION/INTERSECT/EXCEPT")
        kind = _SET_KINDS[type(node)]
        left = self.query(node.this, parent, keep_unknown=True)
        right = self.query(node.expression, parent, keep_unknown=True)
        name, position = kind.upper(), position_of(node)
        pairs = list(zip(self.columns(left), self.columns(right), strict=False))
        if len(self.columns(left)) != len(self.columns(right)):
            message = f"each {name} query must have the same number of columns"
            raise errors.error(errors.SYNTAX_ERROR, message, position=position)
        targets = [common_type([a, b], name, position=position) for (_, a), (_, b) in pairs]
        left, right = self.with_types(left, targets, name), self.with_types(right, targets, name)
        columns = tuple((column, type_) for ((column, _), _), type_ in zip(pairs, targets, strict=True))
        relation = self.context.new_relation()
        order_by = self._output_order(node, relation, columns, f"{name} ")
        limit, offset = self.limits(node, Scope(parent=parent))
        return tree.SetOperation(
            relation, kind, not node.args["distinct"], left, right, columns, order_by, limit, offset
        )

    def _output_order(
        self, node: exp.Expr, relation: int, columns: tuple[tuple[str, Type], ...], what: str
    ) -> tuple[SortKey, ...]:
        """ORDER BY over a result that has no input any more: names and positions only, as in PostgreSQL."""
        order = node.args.get("order")
        keys = []
        for key in () if order is None else order.expressions:
            ordinal = self._output_ordinal(key.this, columns, what)
            name, type_ = columns[ordinal]
            ref = tree.ColumnRef(relation, ordinal, type_, name)
            keys.append(SortKey(ref, bool(key.args["desc"]), bool(key.args["nulls_first"])))
        return tuple(keys)

    def _output_ordinal(self, node: exp.Expr, columns: tuple[tuple[str, Type], ...], what: str) -> int:
        position = position_of(node)
        ordinal = meant_ordinal(node, len(columns), "ORDER BY")
        if ordinal is not None:
            return ordinal
        if not isinstance(node, exp.Column) or node.args.get("table"):
            raise errors.unsupported(f"an expression in ORDER BY of {what}".rstrip(), position=position)
        found = [ordinal for ordinal, (name, _) in enumerate(columns) if name == node.name]
        if not found:
            raise errors.error(errors.UNDEFINED_COLUMN, f'column "{node.name}" does not exist', position=position)
        if len(found) > 1:
            raise errors.error(errors.AMBIGUOUS_COLUMN, f'ORDER BY "{node.name}" is ambiguous', position=position)
        return found[0]

    def _values(self, node: exp.Values, parent: Scope | None) -> tree.ValuesQuery:
        row_locks.refuse(node, "VALUES")
        scope = Scope(parent=parent)
        binder = self.binder(scope, "VALUES")
        constants: Constants = node.args["constants"]
        rows = [self._constant_row(texts, constants.positions(start)) for start, texts in constants.rows()]
        rows += [[binder.bind(item) for item in row.expressions] for row in node.expressions]
        check_row_lengths(map(len, rows), node)
        unified = [
            coercion.unify(self.context, column, "VALUES", position_of(node)) for column in zip(*rows, strict=True)
        ]
        columns = tuple((f"column{number}", column[0].type) for number, column in enumerate(unified, 1))
        values = tree.ValuesList(self.context.new_relation(), tuple(zip(*unified, strict=True)), columns, "*values*")
        order_by = self._output_order(node, values.relation, columns, "VALUES")
        limit, offset = self.limits(node, scope)
        return tree.ValuesQuery(values, order_by, limit, offset)

    def _constant_row(self, texts: list[str], positions: list[int]) -> list[Expr]:
        row: list[Expr] = []
        for text, position in zip(texts, positions, strict=True):
            literal = constant(text)
            self.context.note(literal, text, position)
            row.append(literal)
        return row

    # --- queries made here ---

    def derived(self, query: Query) -> tree.Derived:
        number = self.context.new_relation()
        return tree.Derived(number, query, f"*subquery*{number}")

    def simple_select(
        self, from_: tree.FromItem, outputs: tuple[Output, ...], where: Expr | None = None
    ) -> tree.Select:
        return tree.Select(outputs, from_, where, (), None, None, False, False, (), (), None, None)

    def _wrapped(self, query: Query) -> tree.Select:
        """SELECT * FROM (query)."""
        item = self.derived(query)
        outputs = tuple(
            Output(name, tree.ColumnRef(item.relation, ordinal, type_, name))
            for ordinal, (name, type_) in enumerate(self.columns(query))
        )
        return self.simple_select(item, outputs)

    def with_types(self, query: Query, targets: list[Type], construct: str = "UNION") -> Query:
        """The query with its outputs as these types, cast implicitly where they differ."""

        return self.map_outputs(
            query, lambda number, expr: coercion.require(self.context, expr, targets[number], construct)
        )

    def map_outputs(self, query: Query, convert: Callable[[int, Expr], Expr]) -> Query:
        """The query with convert(i, expr) in the place of output i.

        A SELECT changes in place where that cannot change which rows it yields; else a SELECT is put around it.
        """
        select = query if isinstance(query, tree.Select) else self._wrapped(query)
        exprs = [output.expr for output in select.outputs]
        converted = [convert(number, expr) for number, expr in enumerate(exprs)]
        if all(a is b for a, b in zip(exprs, converted, strict=True)):
            return query
        settles_only = all(a is b or a.type.kind is Kind.UNKNOWN for a, b in zip(exprs, converted, strict=True))
        if (select.distinct or select.distinct_on) and not settles_only:
            select = self._wrapped(select)
            converted = [convert(number, output.expr) for number, output in enumerate(select.outputs)]
        outputs = tuple(Output(output.name, expr) for output, expr in zip(select.outputs, converted, strict=True))
        return replace(select, outputs=outputs)

    def view_query(self, view: View) -> Query:
        """A view's query, bound anew at this version of the catalog."""
        binder = QueryBinder(self.context, by_ids=True)
        return unplaced(lambda: binder.query(parsed_query(view.query).expression, None))


def renamed(
    columns: tuple[tuple[str, Type], ...], names: list[str], what: str, position: int | None
) -> tuple[tuple[str, Type], ...]:
    """The columns under the names of a column list, which may be shorter."""
    if len(names) > len(columns):
        message = f'WITH query "{what}" has {len(columns)} columns available but {len(names)} columns specified'
        raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position)
    given = tuple((name, column[1]) for name, column in zip(names, columns, strict=False))
    return tuple(
        (name, type_ if type_.kind is not Kind.UNKNOWN else types.TEXT) for name, type_ in given + columns[len(names) :]
    )


def _with_names(query: Query, columns: tuple[tuple[str, Type], ...]) -> Query:
    """The query with its result columns under these names."""
    if isinstance(query, tree.Select):
        pairs = zip(columns, query.outputs, strict=True)
        return replace(query, outputs=tuple(Output(name, output.expr) for (name, _), output in pairs))
    if isinstance(query, tree.SetOperation):
        return replace(query, columns=columns)
    return replace(query, values=replace(query.values, columns=columns))


def check_row_lengths(lengths: Iterable[int], node: exp.Values) -> None:
    """42601 if they differ; 54011 if there are too many entries in each."""
    different = set(lengths)
    require_entries(max(different))
    if len(different) > 1:
        message = "VALUES lists must all be the same length"
        raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(node))


def _by_need(nodes: list[exp.Expr]) -> list[exp.Expr]:
    """The WITH queries, each after those that it reads; 0A000 for queries that read each other."""
    left = list(nodes)
    placed: list[exp.Expr] = []
    while left:
        ready = [
            node
            for node in left
            if not any(_mentions(node.this, other.args["alias"].name) for other in left if other is not node)
        ]
        if not ready:
            names = ", ".join(f'"{node.args["alias"].name}"' for node in left)
            raise errors.unsupported(f"mutual recursion between WITH queries ({names})", position=position_of(left[0]))
        placed.append(ready[0])
        left.remove(ready[0])
    return placed


def _mentions(node: exp.Expr, name: str) -> bool:
    """Whether the query reads what has this name where the query stands."""
    return any(
        table.name == name and not table.args.get("db") and not _is_hidden(table, node, name)
        for table in node.find_all(exp.Table)
    )


def _is_hidden(table: exp.Expr, query: exp.Expr, name: str) -> bool:
    """Whether a WITH between the two gives the name a meaning of its own."""
    inner = table
    while inner is not query:
        outer = inner.parent
        assert outer is not None
        if isinstance(outer, exp.With):
            # In sight of a WITH query are those before it, and all of them if they may be recursive.
            seen = outer.expressions if outer.args.get("recursive") else outer.expressions[: inner.index]
        else:
            with_ = outer.args.get("with_")
            seen = [] if with_ is None or with_ is inner else with_.expressions
        if any(found.args["alias"].name == name for found in seen):
            return True
        inner = outer
    return False


def _check_recursive_term(second: Query, number: int, name: str, position: int | None) -> None:
    """PostgreSQL's rules: one reference to itself, not in a subquery expression, an outer join or an aggregate."""

    def mine(found: object) -> bool:
        return isinstance(found, tree.RecursiveRef) and found.cte == number

    # A WITH query within it is met wherever it is used, and written once.
    everywhere = len({id(found) for found in walk(second) if mine(found)})
    nodes = list(walk_level(second))
    where = None
    if everywhere > 1:
        where = "more than once"
    elif len({id(found) for found in nodes if mine(found)}) < everywhere:
        where = "within a subquery"
    else:
        for found in nodes:
            if isinstance(found, tree.Join):
                optional = {"left": (found.right,), "right": (found.left,), "full": (found.left, found.right)}
                sides = optional.get(found.kind, ())
                if any(mine(inner) for side in sides for inner in walk(side)):
                    where = "within an outer join"
            elif isinstance(found, tree.SetOperation) and found.kind == "except":
                where = "within EXCEPT" if any(mine(inner) for inner in walk(found.right)) else where
            elif isinstance(found, tree.AggregateCall | tree.GroupingCall):
                message = "aggregate functions are not allowed in a recursive query's recursive term"
                raise errors.error(errors.INVALID_RECURSION, message, position=position)
    if where is not None:
        message = f'recursive reference to query "{name}" must not appear {where}'
        raise errors.error(errors.INVALID_RECURSION, message, position=position)
