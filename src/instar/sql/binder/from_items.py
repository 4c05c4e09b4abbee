"""FROM: tables, views, subqueries, functions and joins, and the names that they bring into sight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from msgspec.structs import replace
from sqlglot import exp

from instar import errors, types
from instar.catalog.catalog import SystemView
from instar.catalog.descriptors import Sequence, Table, View
from instar.sql import tree
from instar.sql.binder import coercion
from instar.sql.binder.context import Context, Relation
from instar.sql.binder.expressions import ExpressionBinder
from instar.sql.binder.scope import CteEntry, Item, Namespace, Scope, ScopeColumn
from instar.sql.functions import Function, common_type
from instar.sql.grammar.lexer import QUOTED, WORD, tokenize
from instar.sql.grammar.nodes import position_of
from instar.sql.grammar.table_hints import hint_of
from instar.sql.tree import Expr, FromItem
from instar.transactions.transaction import Isolation
from instar.types import Type

JoinKind = Literal["inner", "left", "right", "full", "cross"]
_JOIN_KINDS: dict[str, JoinKind] = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}
Found = tuple[FromItem, Namespace]


class FromBinder(ABC):
    """The part of QueryBinder about FROM. With `by_ids`, tables and their columns are named `#id` (frozen texts)."""

    context: Context
    by_ids: bool

    @abstractmethod
    def query(self, node: exp.Expr, parent: Scope | None) -> tree.Query: ...

    @abstractmethod
    def columns(self, query: tree.Query) -> tuple[tuple[str, Type], ...]: ...

    @abstractmethod
    def view_query(self, view: View) -> tree.Query: ...

    def binder(self, scope: Scope, clause: str) -> ExpressionBinder:
        return ExpressionBinder(self, scope, clause)  # type: ignore[arg-type]  # every FromBinder is a QueryBinder

    def from_list(self, nodes: list[exp.Expr], scope: Scope, visible: Namespace | None = None) -> Found | None:
        """The items of a FROM list, cross-joined; LATERAL ones see those before them, and `visible`."""
        outer = visible or Namespace()
        found: Found | None = None
        for node in nodes:
            seen = outer if found is None else outer.joined(found[1])
            item, namespace = self._item(node, scope, seen)
            if found is None:
                found = item, namespace
            else:
                found = tree.Join("cross", found[0], item, None), found[1].joined(namespace)
        return found

    def _item(self, node: exp.Expr, scope: Scope, visible: Namespace) -> Found:
        found = self._single(node, scope, visible)
        for join in node.args.get("joins") or ():
            found = self._join(found, join, scope, visible)
        return found

    def _single(self, node: exp.Expr, scope: Scope, visible: Namespace) -> Found:
        if isinstance(node, exp.Paren):
            return self._item(node.this, scope, visible)
        if isinstance(node, exp.Lateral):
            inner = Scope(visible, scope.parent, scope.ctes)
            if isinstance(node.this, exp.Subquery):
                return self._subquery(node.this.this, node.args.get("alias"), inner, lateral=True)
            return self._function(node.this.this, node.args.get("alias"), inner)
        if isinstance(node, exp.Subquery):
            # Not lateral: it sees the outer query's columns, none of its siblings.
            inner = Scope(Namespace(), scope.parent, scope.ctes)
            return self._subquery(node.this, node.args.get("alias"), inner, lateral=False)
        if isinstance(node.this, exp.Identifier):
            return self._named(node, scope)
        return self._function(node.this, node.args.get("alias"), Scope(visible, scope.parent, scope.ctes))

    # --- names ---

    def _named(self, node: exp.Expr, scope: Scope) -> Found:
        name, schema = node.name, node.text("db") or None
        entry = scope.cte(name) if schema is None else None
        level = hint_of(node)
        if entry is not None:
            _require_no_hint(level, "a WITH query", node)
            return self._cte_reference(entry, node)
        found = self.relation(schema, name, node.meta.get("position"))
        if isinstance(found, Table):
            scan, namespace = self.table_scan(found, node.args.get("alias"), self.called(found, name))
            return (scan if level is None else replace(scan, level=level)), namespace
        _require_no_hint(level, "a view", node)
        alias = _alias_name(node.args.get("alias")) or self.called(found, name)
        number = self.context.new_relation()
        if isinstance(found, View):
            return self._view(found, number, alias, node)
        columns = tuple(found.columns)
        item = tree.SystemScan(number, f"{found.schema}.{found.name}", columns, alias)
        return item, Namespace.of(self._output_item(alias, number, columns, node.args.get("alias"), found.schema))

    def called(self, found: Table | View | SystemView, name: str) -> str:
        """What the statement that names a relation calls it: it may know it by a name that it had before."""
        return found.name if self.by_ids else name

    def relation(self, schema: str | None, name: str, position: int | None) -> Table | View | SystemView:
        """The relation of that name; 42P01 if there is none, 42809 for a sequence."""
        found: Relation | None
        if self.by_ids and schema is None and name.startswith("#"):
            found = self.context.catalog.by_id(int(name[1:]))
        else:
            found = self.context.catalog.lookup(schema, name)
        if found is None:
            shown = name if schema is None else f"{schema}.{name}"
            raise errors.error(errors.UNDEFINED_TABLE, f'relation "{shown}" does not exist', position=position)
        if isinstance(found, Sequence):
            raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a table or view', position=position)
        return found

    def by_name(self, text: str) -> Relation | None:
        """What a literal names, as nextval's argument does: folded, perhaps quoted or qualified."""
        if self.by_ids and text.startswith("#"):
            return self.context.catalog.by_id(int(text[1:]))
        parts = [token.value for token in tokenize(text) if token.kind in (WORD, QUOTED)]
        if not 1 <= len(parts) <= 2:
            raise errors.error(errors.INVALID_NAME, "invalid name syntax")
        return self.context.catalog.lookup(parts[0] if len(parts) == 2 else None, parts[-1])

    def table_scan(
        self, table: Table, alias: exp.Expr | None = None, called: str = ""
    ) -> tuple[tree.TableScan, Namespace]:
        """A base table: what is public and not hidden can be seen."""
        self.context.tables[table.id] = table
        number = self.context.new_relation()
        name = _alias_name(alias) or called or table.name
        columns = table_columns(table, number, self.by_ids)
        item = Item(name, number, _renamed(columns, alias, name), None if alias else "public", table)
        return tree.TableScan(number, table, name), Namespace.of(item)

    def kept_scan(
        self, view: View, source: Table, alias: exp.Expr | None, called: str
    ) -> tuple[tree.TableScan, Namespace]:
        """A kept view that is to be written to, as the table `source` that it stands for."""
        self.context.views[view.id] = view
        number = self.context.new_relation()
        name = _alias_name(alias) or called
        columns = table_columns(source, number, self.by_ids)
        item = Item(name, number, _renamed(columns, alias, name), None if alias else "public", source)
        kept = tree.Derived(number, self.view_query(view), name, view=view.id)
        return tree.TableScan(number, source, name, kept=kept), Namespace.of(item)

    def _view(self, view: View, number: int, alias: str, node: exp.Expr) -> Found:
        self.context.views[view.id] = view
        query = self.view_query(view)
        names = tuple(name for name, _ in view.columns)
        columns = tuple((name, type_) for name, (_, type_) in zip(names, self.columns(query), strict=True))
        item = self._output_item(alias, number, columns, node.args.get("alias"), "public")
        return tree.Derived(number, query, alias, view=view.id), Namespace.of(item)

    def _cte_reference(self, entry: CteEntry, node: exp.Expr) -> Found:
        entry.references += 1
        alias = _alias_name(node.args.get("alias")) or entry.name
        number = self.context.new_relation()
        namespace = Namespace.of(self._output_item(alias, number, entry.columns, node.args.get("alias")))
        if entry.query is None:
            return tree.RecursiveRef(number, entry.id, entry.columns, alias), namespace
        return tree.Derived(number, entry.query, alias, cte=entry.id), namespace

    # --- subqueries and functions ---

    def _subquery(self, node: exp.Expr, alias: exp.Expr | None, scope: Scope, lateral: bool) -> Found:
        query = self.query(node, scope)
        if isinstance(query, tree.ValuesQuery) and not (query.order_by or query.limit or query.offset):
            values = query.values
            name = _alias_name(alias) or f"*values*{values.relation}"
            item = tree.ValuesList(values.relation, values.rows, values.columns, name)
            return item, Namespace.of(self._output_item(name, values.relation, values.columns, alias))
        number = self.context.new_relation()
        name = _alias_name(alias) or f"*subquery*{number}"
        namespace = Namespace.of(self._output_item(name, number, self.columns(query), alias))
        return tree.Derived(number, query, name, lateral), namespace

    def _function(self, node: exp.Expr, alias: exp.Expr | None, scope: Scope) -> Found:
        position = position_of(node)
        if not isinstance(node, exp.Anonymous):
            raise errors.unsupported(f"{node.key} in FROM", position=position)
        binder = self.binder(scope, "functions in FROM")
        args = [binder.bind(arg) for arg in node.expressions]
        resolution = binder.resolve(node.name, args, position)
        entry = resolution.entry
        if not isinstance(entry, Function) or not entry.returns_set:
            raise errors.unsupported(f"function {node.name} in FROM", position=position)
        bound = binder.arguments(args, resolution.arguments, node.name, position)
        number = self.context.new_relation()
        name = _alias_name(alias) or node.name
        columns = ((entry.column or name, resolution.type),)
        namespace = Namespace.of(replace(self._output_item(name, number, columns, alias), scalar=True))
        return tree.FunctionScan(number, entry, bound, columns, name), namespace

    def _output_item(
        self,
        name: str,
        number: int,
        columns: tuple[tuple[str, Type], ...],
        alias: exp.Expr | None,
        schema: str | None = None,
    ) -> Item:
        visible = output_columns(number, columns)
        return Item(name, number, _renamed(visible, alias, name), None if alias else schema)

    # --- joins ---

    def _join(self, left: Found, node: exp.Join, scope: Scope, visible: Namespace) -> Found:
        kind = "cross" if node.args.get("kind") == "CROSS" else _JOIN_KINDS[node.text("side")]
        seen = left[1].barred() if kind in ("right", "full") else left[1]
        right = self._item(node.this, scope, visible.joined(seen))
        using = [identifier.name for identifier in node.args.get("using") or ()]
        natural = node.args.get("method") == "NATURAL"
        if natural:
            using = [column.name for column in left[1].columns if right[1].named(column.name)]
        if using or natural:
            return self._join_using(kind, left, right, using, node)
        both = left[1].joined(right[1])
        condition = None
        if kind != "cross":
            binder = self.binder(Scope(both, scope.parent, scope.ctes), "JOIN conditions")
            condition = binder.condition(node.args["on"], "JOIN/ON")
        return tree.Join(kind, left[0], right[0], condition), both

    def _join_using(self, kind: JoinKind, left: Found, right: Found, using: list[str], node: exp.Join) -> Found:
        position = position_of(node)
        binder = self.binder(Scope(), "JOIN/USING")
        tests: list[Expr] = []
        merged: list[ScopeColumn] = []
        for name in dict.fromkeys(using):
            if using.count(name) > 1:
                message = f'column name "{name}" appears more than once in USING clause'
                raise errors.error(errors.DUPLICATE_COLUMN, message, position=position)
            a, b = _common(left[1], name, "left", position), _common(right[1], name, "right", position)
            tests.append(binder.operator("=", [a.expr, b.expr], position))
            merged.append(ScopeColumn(name, self._merged(kind, a.expr, b.expr, position)))
        rest = tuple(column for side in (left, right) for column in side[1].columns if column.name not in using)
        condition: Expr = tree.Literal(True, types.BOOLEAN)
        if tests:
            condition = tests[0] if len(tests) == 1 else tree.And(tuple(tests))
        return tree.Join(kind, left[0], right[0], condition), left[1].joined(right[1], (*merged, *rest))

    def _merged(self, kind: JoinKind, left: Expr, right: Expr, position: int | None) -> Expr:
        """The one column that USING makes of two: the side that is there, or the first that is not NULL."""
        type_ = common_type([left.type, right.type], "JOIN/USING", position=position)
        a = coercion.require(self.context, left, type_, "JOIN/USING", position)
        b = coercion.require(self.context, right, type_, "JOIN/USING", position)
        if kind == "full":
            return tree.Coalesce((a, b), type_)
        if kind == "right":
            return b
        # Either side will do for an inner join: the one that needs no cast keeps its index useful.
        return b if kind == "inner" and a is not left and b is right else a


def table_columns(table: Table, relation: int, by_ids: bool = False) -> tuple[ScopeColumn, ...]:
    """The columns of a table that a statement may name; by id, an expression of the table's own may name more."""
    return tuple(
        ScopeColumn(
            f"#{column.id}" if by_ids else column.name,
            tree.ColumnRef(relation, ordinal, column.type, column.name),
        )
        for ordinal, column in enumerate(table.columns)
        if column.visible or (by_ids and not column.hidden)
    )


def output_columns(relation: int, columns: tuple[tuple[str, Type], ...]) -> tuple[ScopeColumn, ...]:
    return tuple(
        ScopeColumn(name, tree.ColumnRef(relation, ordinal, type_, name))
        for ordinal, (name, type_) in enumerate(columns)
    )


def _require_no_hint(level: Isolation | None, what: str, node: exp.Expr) -> None:
    if level is not None:
        raise errors.unsupported(f"a table hint of {what}", position=position_of(node))


def _alias_name(alias: exp.Expr | None) -> str:
    return alias.name if alias is not None else ""


def _renamed(columns: tuple[ScopeColumn, ...], alias: exp.Expr | None, name: str) -> tuple[ScopeColumn, ...]:
    """AS name (a, b): the first columns get these names."""
    names = [] if alias is None else [identifier.name for identifier in alias.args.get("columns") or ()]
    if len(names) > len(columns):
        message = f'table "{name}" has {len(columns)} columns available but {len(names)} columns specified'
        raise errors.error(errors.INVALID_COLUMN_REFERENCE, message)
    renamed = tuple(ScopeColumn(new, column.expr) for new, column in zip(names, columns, strict=False))
    return renamed + columns[len(names) :]


def _common(namespace: Namespace, name: str, side: str, position: int | None) -> ScopeColumn:
    found = namespace.named(name)
    if not found:
        message = f'column "{name}" specified in USING clause does not exist in {side} table'
        raise errors.error(errors.UNDEFINED_COLUMN, message, position=position)
    if len(found) > 1:
        message = f'common column name "{name}" appears more than once in {side} table'
        raise errors.error(errors.AMBIGUOUS_COLUMN, message, position=position)
    return found[0]
