"""INSERT, UPDATE, DELETE: targets, assignments, defaults, ON CONFLICT and RETURNING."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from instar import errors
from instar.catalog.descriptors import Column, Index, State, Table, View
from instar.sql import tree
from instar.sql.binder import coercion
from instar.sql.binder.context import Context
from instar.sql.binder.expressions import constant
from instar.sql.binder.from_items import table_columns
from instar.sql.binder.frozen import bind_default_of, defaults_of
from instar.sql.binder.queries import QueryBinder, check_row_lengths
from instar.sql.binder.scope import Item, Namespace, Scope
from instar.sql.grammar.constants import Constants
from instar.sql.grammar.nodes import position_of
from instar.sql.statements import Dml
from instar.sql.tree import Expr, Output


class DmlBinder:
    """Binds one INSERT, UPDATE or DELETE."""

    def __init__(self, context: Context, statement: Dml) -> None:
        self.context = context
        self.statement = statement
        self.queries = QueryBinder(context)

    def bind(self) -> tree.Bound:
        node = self.statement.expression
        if isinstance(node, exp.Insert):
            return self._insert(node)
        return self._update(node) if isinstance(node, exp.Update) else self._delete(node)

    # --- targets ---

    def _target(self, node: exp.Expr) -> tuple[tree.TableScan, Namespace]:
        table = node.this if isinstance(node, exp.Schema) else node
        position = table.meta.get("position")
        found = self.queries.relation(table.text("db") or None, table.name, position)
        if isinstance(found, View) and found.materialized is not None:
            message = f'cannot change materialized view "{table.name}"'
            raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=position)
        if isinstance(found, View):
            source = found.stands_for
            if source is None:
                raise errors.unsupported(f'writing to view "{table.name}"', position=position)
            return self.queries.kept_scan(found, source, table.args.get("alias"), table.name)
        if not isinstance(found, Table):
            message = f'cannot change relation "{table.name}": it is a system view'
            raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=position)
        return self.queries.table_scan(found, table.args.get("alias"), self.queries.called(found, table.name))

    def _ordinal(self, table: Table, node: exp.Expr) -> int:
        for ordinal, column in enumerate(table.columns):
            if column.name == node.name and column.visible:
                return ordinal
        message = f'column "{node.name}" of relation "{table.name}" does not exist'
        raise errors.error(errors.UNDEFINED_COLUMN, message, position=position_of(node))

    def _default(self, column: Column) -> Expr:
        return bind_default_of(self.context, column)

    def _assigned(self, column: Column, expr: Expr, position: int | None) -> Expr:
        return coercion.assign(self.context, expr, column.type, column.name, position)

    # --- INSERT ---

    def _insert(self, node: exp.Insert) -> tree.Insert:
        scope = Scope()
        ctes = self.queries.common_tables(node.args["with_"], scope) if node.args.get("with_") else ()
        target, namespace = self._target(node.this)
        table = target.table
        columns = self._insert_columns(table, node)
        source, columns = self._source(node, scope, table, columns, explicit=isinstance(node.this, exp.Schema))
        if ctes:
            source = self.queries.attach(source, ctes)
        defaults = defaults_of(self.context, table, columns)
        conflict = node.args.get("conflict")
        on_conflict = None if conflict is None else self._on_conflict(conflict, target, namespace, scope)
        return tree.Insert(
            target, tuple(columns), source, defaults, on_conflict, self._returning(node, namespace, scope)
        )

    def _insert_columns(self, table: Table, node: exp.Insert) -> list[int]:
        if not isinstance(node.this, exp.Schema):
            return [ordinal for ordinal, column in enumerate(table.columns) if column.visible]
        columns: list[int] = []
        for name in node.this.expressions:
            ordinal = self._ordinal(table, name)
            if ordinal in columns:
                message = f'column "{name.name}" specified more than once'
                raise errors.error(errors.DUPLICATE_COLUMN, message, position=position_of(name))
            columns.append(ordinal)
        return columns

    def _source(
        self, node: exp.Insert, scope: Scope, table: Table, columns: list[int], explicit: bool
    ) -> tuple[tree.Query, list[int]]:
        """The rows to insert, as the columns' types, and which columns they are for."""
        source = node.args.get("expression")
        if source is None:  # DEFAULT VALUES: a row without columns
            values = tree.ValuesList(self.context.new_relation(), ((),), (), "*values*")
            return tree.ValuesQuery(values, (), None, None), []
        if isinstance(source, exp.Values) and not any(
            source.args.get(clause) for clause in ("order", "limit", "offset", "with_")
        ):
            return self._values(source, scope, table, columns, explicit)
        query = self.queries.query(source, scope, keep_unknown=True)
        columns = self._fitting(table, columns, len(self.queries.columns(query)), explicit, source)
        for ordinal in columns:
            self._refuse_generated(table.columns[ordinal], position_of(source), "insert")
        if self.statement.overriding == "user" and any(table.columns[ordinal].identity for ordinal in columns):
            raise errors.unsupported("OVERRIDING USER VALUE with a query", position=position_of(source))
        return self.queries.map_outputs(
            query, lambda number, expr: self._assigned(table.columns[columns[number]], expr, None)
        ), columns

    def _fitting(self, table: Table, columns: list[int], given: int, explicit: bool, node: exp.Expr) -> list[int]:
        """Fewer values than columns are for the first ones, where no columns were named."""
        if given > len(columns):
            message = "INSERT has more expressions than target columns"
            raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(node))
        if given < len(columns) and explicit:
            message = "INSERT has more target columns than expressions"
            raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(node))
        return columns[:given]

    def _values(
        self, node: exp.Values, scope: Scope, table: Table, columns: list[int], explicit: bool
    ) -> tuple[tree.Query, list[int]]:
        """Each value becomes its column's type by itself: the rows need no common type."""
        constants: Constants = node.args["constants"]
        texts = list(constants.rows())
        lengths = [*(len(row) for _, row in texts), *(len(row.expressions) for row in node.expressions)]
        check_row_lengths(lengths, node)
        columns = self._fitting(table, columns, lengths[0], explicit, node)
        targets = [table.columns[ordinal] for ordinal in columns]
        rows = self._constant_rows(targets, constants, texts)
        binder = self.queries.binder(Scope(parent=scope), "VALUES")
        for row in node.expressions:
            cells = []
            for column, item in zip(targets, row.expressions, strict=True):
                if is_default(item) or (self.statement.overriding == "user" and column.identity):
                    cells.append(self._default(column))
                    continue
                position = position_of(item)
                self._refuse_generated(column, position, "insert")
                cells.append(self._assigned(column, binder.bind(item), position))
            rows.append(tuple(cells))
        outputs = tuple((column.name, column.type) for column in targets)
        values = tree.ValuesList(self.context.new_relation(), tuple(rows), outputs, "*values*")
        return tree.ValuesQuery(values, (), None, None), columns

    def _constant_rows(
        self, targets: list[Column], constants: Constants, rows: list[tuple[int, list[str]]]
    ) -> list[tuple[Expr, ...]]:
        def cell(column: Column, text: str) -> Expr:
            if self.statement.overriding == "user" and column.identity:
                return self._default(column)
            self._refuse_generated(column, None, "insert")
            return self._assigned(column, constant(text), None)

        made = []
        for start, texts in rows:
            number = 0
            cells = []
            try:
                for number, text in enumerate(texts):
                    cells.append(cell(targets[number], text))
            except errors.Error as error:
                error.position = error.position or constants.positions(start)[number]
                raise
            made.append(tuple(cells))
        return made

    def _refuse_generated(self, column: Column, position: int | None, verb: str) -> None:
        overridden = column.generated_always and verb == "insert" and self.statement.overriding is not None
        if overridden or not (column.generated_always or column.generated):
            return
        detail, hint = f'Column "{column.name}" is a generated column.', None
        if column.generated_always:
            detail = f'Column "{column.name}" is an identity column defined as GENERATED ALWAYS.'
            hint = "Use OVERRIDING SYSTEM VALUE to override."
        if verb == "insert":
            message = f'cannot insert a non-DEFAULT value into column "{column.name}"'
            raise errors.error(errors.GENERATED_ALWAYS, message, detail=detail, hint=hint, position=position)
        message = f'column "{column.name}" can only be updated to DEFAULT'
        raise errors.error(errors.GENERATED_ALWAYS, message, detail=detail, position=position)

    # --- ON CONFLICT ---

    def _on_conflict(
        self, node: exp.OnConflict, target: tree.TableScan, namespace: Namespace, outer: Scope
    ) -> tree.ConflictAction:
        table = target.table
        position = position_of(node)
        if target.kept is not None:
            raise errors.unsupported(f'ON CONFLICT on view "{table.name}"', position=position)
        number = self.context.new_relation()
        update = bool(node.expressions)
        keys, constraint = node.args.get("conflict_keys"), node.args.get("constraint")
        any_target = keys is None and constraint is None
        if any_target and update:
            message = "ON CONFLICT DO UPDATE requires inference specification or constraint name"
            hint = "For example, ON CONFLICT (column_name)."
            raise errors.error(errors.SYNTAX_ERROR, message, hint=hint, position=position)
        index: Index | None = None
        if keys is not None:
            index = _inferred(table, {table.columns[self._ordinal(table, key)].id for key in keys}, position)
        elif constraint is not None:
            index = _constraint(table, constraint.name, position)
        if not update:
            return tree.ConflictAction(any_target, index, False, number, (), None)
        excluded = Namespace.of(Item("excluded", number, table_columns(table, number), None, table))
        scope = Scope(namespace.joined(excluded), outer)
        assignments = self._assignments(node.expressions, target, scope)
        where = node.args.get("where")
        condition = None if where is None else self.queries.binder(scope, "WHERE").condition(where.this, "WHERE")
        return tree.ConflictAction(any_target, index, True, number, assignments, condition)

    # --- UPDATE and DELETE ---

    def _update(self, node: exp.Update) -> tree.Update:
        outer = Scope()
        ctes = self.queries.common_tables(node.args["with_"], outer) if node.args.get("with_") else ()
        target, namespace = self._target(node.this)
        scope = Scope(namespace, outer)
        from_ = node.args.get("from_")
        nodes = [] if from_ is None else [from_.this, *(join.this for join in node.args.get("joins") or ())]
        found = self.queries.from_list(nodes, scope)
        if found is not None:
            scope.namespace = namespace.joined(found[1])
        assignments = self._assignments(node.expressions, target, scope)
        where = self.queries.where(node, scope)
        returning = self._returning(node, scope.namespace, outer)
        return tree.Update(target, assignments, None if found is None else found[0], where, returning, ctes)

    def _delete(self, node: exp.Delete) -> tree.Delete:
        outer = Scope()
        ctes = self.queries.common_tables(node.args["with_"], outer) if node.args.get("with_") else ()
        target, namespace = self._target(node.this)
        scope = Scope(namespace, outer)
        found = self.queries.from_list(node.args.get("using") or [], scope)
        if found is not None:
            scope.namespace = namespace.joined(found[1])
        where = self.queries.where(node, scope)
        returning = self._returning(node, scope.namespace, outer)
        return tree.Delete(target, None if found is None else found[0], where, returning, ctes)

    def _returning(self, node: exp.Expr, namespace: Namespace, outer: Scope) -> tuple[Output, ...]:
        returning = node.args.get("returning")
        if returning is None:
            return ()
        binder = self.queries.binder(Scope(namespace, outer), "RETURNING")
        return self.queries.outputs(returning.expressions, binder)

    def _assignments(
        self, nodes: Sequence[exp.Expr], target: tree.TableScan, scope: Scope
    ) -> tuple[tuple[int, Expr], ...]:
        table = target.table
        found: dict[int, Expr] = {}
        for node in nodes:
            for name, ordinal, expr in self._assignment(node, table, scope):
                if ordinal in found:
                    message = f'multiple assignments to same column "{name.name}"'
                    raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(name))
                found[ordinal] = expr
        for ordinal, column in enumerate(table.columns):
            if column.is_being_given:
                # A row that the job has not come to is given its value by whoever writes it.
                has = tree.ColumnRef(target.relation, ordinal, column.type, column.name)
                found[ordinal] = tree.Coalesce((has, self._default(column)), column.type)
        return tuple(found.items())

    def _assignment(self, node: exp.Expr, table: Table, scope: Scope) -> list[tuple[exp.Expr, int, Expr]]:
        names = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
        ordinals = [self._ordinal(table, name) for name in names]
        columns = [table.columns[ordinal] for ordinal in ordinals]
        value = node.expression
        binder = self.queries.binder(scope, "UPDATE")
        if isinstance(node.this, exp.Tuple) and isinstance(value, exp.Subquery):
            bound = self._row_of_query(value, len(names), scope, node)
            pairs = zip(columns, bound, strict=True)
            exprs = [self._checked(column, expr, value) for column, expr in pairs]
        else:
            items = value.expressions if isinstance(node.this, exp.Tuple) else [value]
            if len(items) != len(names):
                message = "number of columns does not match number of values"
                raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(node))
            exprs = [
                self._default(column) if is_default(item) else self._checked(column, binder.bind(item), item)
                for column, item in zip(columns, items, strict=True)
            ]
        return list(zip(names, ordinals, exprs, strict=True))

    def _checked(self, column: Column, expr: Expr, node: exp.Expr) -> Expr:
        position = position_of(node)
        self._refuse_generated(column, position, "update")
        return self._assigned(column, expr, position)

    def _row_of_query(self, node: exp.Subquery, count: int, scope: Scope, at: exp.Expr) -> list[Expr]:
        """(a, b) = (SELECT x, y ...): one scalar subquery for each column, on the same snapshot."""
        found: list[Expr] = []
        for number in range(count):
            query = self.queries.subquery(node.this, scope)
            columns = self.queries.columns(query)
            if len(columns) != count:
                message = "number of columns does not match number of values"
                raise errors.error(errors.SYNTAX_ERROR, message, position=position_of(at))
            item = self.queries.derived(query)
            name, type_ = columns[number]
            output = Output(name, tree.ColumnRef(item.relation, number, type_, name))
            found.append(tree.ScalarSubquery(self.queries.simple_select(item, (output,)), type_))
        return found


def is_default(node: exp.Expr) -> bool:
    return isinstance(node, exp.Var)


def _inferred(table: Table, columns: set[int], position: int | None) -> Index | None:
    """The primary key (None) or the unique index on exactly these columns; 42P10 if there is none."""
    if columns == set(table.primary_key):
        return None
    for index in table.indexes:
        if index.unique and index.state is State.PUBLIC and {key.column for key in index.columns} == columns:
            return index
    message = "there is no unique or exclusion constraint matching the ON CONFLICT specification"
    raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position)


def _constraint(table: Table, name: str, position: int | None) -> Index | None:
    if name == table.primary_key_name:
        return None
    for index in table.indexes:
        if index.name == name and index.unique and index.constraint and index.state is State.PUBLIC:
            return index
    message = f'constraint "{name}" for table "{table.name}" does not exist'
    raise errors.error(errors.UNDEFINED_OBJECT, message, position=position)
