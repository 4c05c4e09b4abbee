"""INSERT, UPDATE and DELETE: read everything, stage the changes, then let the end of the statement judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from instar import errors
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.sql import tree
from instar.sql.execution import ExecutionContext, Result, Row
from instar.sql.executor import QueryProgram, RunAnalytic
from instar.sql.expressions import Compiler, Frame, FrameLayout, Scope
from instar.sql.integrity import KeyLookup, Rules, Staged, StatementEnd, TableRules
from instar.sql.on_conflict import OnConflict
from instar.sql.operators import NodeCompiler
from instar.sql.plan import BASE_ORDINAL, KEY_ORDINAL, InsertPlan, ModifyPlan
from instar.sql.traversal import walk
from instar.sql.tree import Expr, Output
from instar.tables.view import RowVersion
from instar.types import Type

_SOURCE = -1  # the relation of an INSERT's source rows in the scope of its image

Columns = tuple[tuple[str, Type], ...]


def returned_columns(returning: Sequence[Output]) -> Columns:
    """Names and types of RETURNING."""
    return tuple((output.name, output.expr.type) for output in returning)


def finish(context: ExecutionContext, rules: Rules, changes: list[Staged]) -> None:
    """The end of the statement. An error leaves the buffer as it was before."""
    mark = context.buffer.mark()
    try:
        StatementEnd(context, rules).run(changes)
    except BaseException:
        context.buffer.rollback(mark)
        raise


class InsertProgram:
    """INSERT, compiled."""

    def __init__(
        self, plan: InsertPlan, parameters: int, layouts: Layouts, rules: Rules, analytic: RunAnalytic
    ) -> None:
        statement = plan.statement
        self.plan = plan
        self.columns = returned_columns(statement.returning)
        self._source = QueryProgram(plan.source, parameters, layouts, analytic)
        self._rules = rules
        self._target = self._rules_of(statement.target)
        self._layout = FrameLayout(parameters)
        nodes = NodeCompiler(self._layout, plan.subplans, layouts)
        self._image = nodes.compiler(_source_scope(statement)).row(insert_image(statement, _source_row(statement)))
        values = single_row(statement)
        self._direct = None if values is None else nodes.compiler(Scope({})).row(insert_image(statement, values))
        relation = statement.target.relation
        scope = Scope({(relation, ordinal): ordinal for ordinal in range(len(statement.target.table.columns))})
        self._returning = nodes.compiler(scope).row([output.expr for output in statement.returning])
        self._conflict = None
        if statement.on_conflict is not None:
            self._conflict = _Conflict(statement, statement.on_conflict, self._target, nodes, layouts)

    def _rules_of(self, target: tree.TableScan) -> TableRules:
        return self._rules.of(target.table)

    def run(self, context: ExecutionContext) -> Result:
        """Insert the rows of the source."""
        frame = self._frame(context)
        image = self._image
        return self._insert(context, frame, (image(row, frame) for row in self._source.rows(context)))

    @property
    def takes_many(self) -> bool:
        """Whether one statement of many rows does what as many statements do: if each says all of its row itself, and
        none changes what another has inserted."""
        conflict = self.plan.statement.on_conflict
        return self._direct is not None and (conflict is None or not conflict.update)

    def run_many(self, context: ExecutionContext, parameters: Iterable[Sequence[object]]) -> Result:
        """As one statement: a row for each of the parameter tuples (executemany), where it `takes_many`."""
        direct = self._direct
        assert direct is not None  # see `takes_many`
        count = self._layout.parameters
        context.parameters = [None] * count  # until the first set comes
        frame = self._frame(context)

        def images() -> Iterator[Row]:
            for given in parameters:
                frame[:count] = given
                yield direct((), frame)

        return self._insert(context, frame, images())

    def _frame(self, context: ExecutionContext) -> Frame:
        return self._layout.frame(context.parameters, context.functions, context)

    def _insert(self, context: ExecutionContext, frame: Frame, images: Iterable[Row]) -> Result:
        target = self._target
        changes: list[Staged] = []
        if self._conflict is not None:
            changes = self._conflict.stage(context, frame, images)
        else:
            for proposed in images:
                image = target.checked(proposed, context)
                key = target.key(image)
                changes.append(Staged(target, key, None, None, image, key))
        count = len(changes)
        if not self.columns:
            finish(context, self._rules, changes)
            return Result((), None, count)
        # Before anything is buffered: its subqueries do not see the rows of the statement either.
        rows = [self._returning(staged.new, frame) for staged in changes if staged.new is not None]
        finish(context, self._rules, changes)
        return Result(self.columns, rows, count)


def _source_scope(statement: tree.Insert) -> Scope:
    return Scope({(_SOURCE, position): position for position in range(len(statement.columns))})


def insert_image(statement: tree.Insert, row: Sequence[Expr]) -> list[Expr]:
    """One expression per column of the table; `row` are those of the columns that the statement gives."""
    table = statement.target.table
    given: dict[int, Expr] = dict(statement.defaults)
    given |= zip(statement.columns, row, strict=True)
    for ordinal, column in enumerate(table.columns):
        if ordinal in given:
            continue
        if column.hidden and column.sequence is not None:
            given[ordinal] = tree.NextValue(column.sequence, column.type)
        else:
            given[ordinal] = tree.Literal(None, column.type)
    return [given[ordinal] for ordinal in range(len(table.columns))]


def single_row(statement: tree.Insert) -> tuple[Expr, ...] | None:
    """The expressions of VALUES with one row and nothing else around it; None for any other source."""
    source = statement.source
    if not isinstance(source, tree.ValuesQuery) or len(source.values.rows) != 1 or source.limit or source.offset:
        return None
    row = source.values.rows[0]
    if any(isinstance(found, tree.ScalarSubquery | tree.Exists | tree.InSubquery) for found in walk(row)):
        return None
    return row


def _source_row(statement: tree.Insert) -> list[Expr]:
    """The columns of the source, as `_source_scope` has them."""
    columns = [statement.target.table.columns[ordinal] for ordinal in statement.columns]
    return [tree.ColumnRef(_SOURCE, position, column.type, column.name) for position, column in enumerate(columns)]


class _Conflict:
    """ON CONFLICT: rows that stand in the way are left alone or updated, once per statement."""

    def __init__(
        self,
        statement: tree.Insert,
        action: tree.ConflictAction,
        target: TableRules,
        nodes: NodeCompiler,
        layouts: Layouts,
    ) -> None:
        table = target.table
        self._target = target
        self._action = action
        primary = KeyLookup(table, table.primary_key, None, layouts)
        if action.any_target:
            self._arbiters = [primary, *(lookup for _, lookup in target.unique)]
        elif action.index is None:
            self._arbiters = [primary]
        else:
            self._arbiters = [
                KeyLookup(table, [part.column for part in action.index.columns], action.index, layouts)
            ]  # fmt: skip
        self._on_conflict = OnConflict(statement, action, nodes.compiler)

    def stage(self, context: ExecutionContext, frame: Frame, images: Iterable[Row]) -> list[Staged]:
        """The changes that the proposed rows make."""
        changes: list[Staged] = []
        made = _Made()
        for given in images:
            image = self._target.checked(given, context)
            found = self._standing(context, image, made)
            if found is None:
                key = self._target.key(image)
                changes.append(Staged(self._target, key, None, None, image, key))
                made.add(self._arbiters, key, image)
                continue
            staged = self._update(context, frame, found, image)
            if staged is not None and staged.new is not None:
                made.add(self._arbiters, found.key, staged.new)
                changes.append(staged)
        return changes

    def _standing(self, context: ExecutionContext, image: Row, made: _Made) -> RowVersion | None:
        """The row in the way of `image`; 21000 if DO UPDATE would change a row for the second time."""
        for arbiter in self._arbiters:
            values = arbiter.values(image)
            if None in values:
                continue
            own = made.taken.get(arbiter.resource(values))
            found = next(arbiter.find(context.view, values), None) if own is None else RowVersion(own, None, image)
            # A row that the statement has changed is in the way where it is now.
            if found is None or (own is None and found.key in made.rows):
                continue
            if self._action.update and found.key in made.rows:
                raise errors.error(
                    errors.CARDINALITY_VIOLATION,
                    "ON CONFLICT DO UPDATE command cannot affect row a second time",
                    hint="Ensure that no rows proposed for insertion within the same command have duplicate "
                    "constrained values.",
                )
            return found
        return None

    def _update(self, context: ExecutionContext, frame: Frame, found: RowVersion, image: Row) -> Staged | None:
        updated = self._on_conflict.updated(found.values, image, frame)
        if updated is None:
            return None
        new = self._target.checked(updated, context)
        return Staged(self._target, found.key, found.base, found.values, new, self._target.key(new))


class _Made:
    """What ON CONFLICT has inserted and updated so far: the primary keys that the rows were found or put under, and
    what they have of the unique keys that it looks at."""

    def __init__(self) -> None:
        self.rows: set[bytes] = set()
        self.taken: dict[bytes, bytes] = {}

    def add(self, arbiters: Iterable[KeyLookup], key: bytes, image: Row) -> None:
        self.rows.add(key)
        for arbiter in arbiters:
            values = arbiter.values(image)
            if None not in values:
                self.taken[arbiter.resource(values)] = key


class ModifyProgram:
    """UPDATE or DELETE, compiled."""

    def __init__(self, plan: ModifyPlan, parameters: int, layouts: Layouts, rules: Rules) -> None:
        statement = plan.statement
        self.plan = plan
        self.columns = returned_columns(statement.returning)
        self._rules = rules
        self._target = rules.of(statement.target.table)
        self._layout = FrameLayout(parameters)
        nodes = NodeCompiler(self._layout, plan.subplans, layouts)
        self._source = nodes.source(plan.root)
        scope, relation = plan.root.scope, statement.target.relation
        self._position = scope.columns[relation, 0]
        self._width = len(statement.target.table.columns)
        self._key = scope.columns[relation, KEY_ORDINAL]
        self._base = scope.columns[relation, BASE_ORDINAL]
        assignments = statement.assignments if isinstance(statement, tree.Update) else None
        self._image = None if assignments is None else updated_image(nodes.compiler(scope), statement, assignments)
        self._returning = nodes.compiler(scope).row([output.expr for output in statement.returning])

    def run(self, context: ExecutionContext) -> Result:
        """Change every row that FROM and WHERE give, once, however often they give it."""
        frame = self._layout.frame(context.parameters, context.functions, context)
        position, end = self._position, self._position + self._width
        target, image = self._target, self._image
        seen: set[bytes] = set()
        changes: list[Staged] = []
        returned: list[Row] = []
        for row in self._source(frame):
            key: bytes = row[self._key]  # type: ignore[assignment]  # what an access with versions adds
            if key in seen:
                continue
            seen.add(key)
            base: int | None = row[self._base]  # type: ignore[assignment]  # likewise
            old = row[position:end]
            new = None if image is None else image(row, frame)
            new_key = key
            if new is not None:
                new = target.checked(new, context)
                new_key = target.key(new)
                row = row[:position] + new + row[end:]
            changes.append(Staged(target, key, base, old, new, new_key))
            if self.columns:
                returned.append(self._returning(row, frame))
        count = len(changes)
        finish(context, self._rules, changes)
        return Result(self.columns, returned if self.columns else None, count)


def updated_image(
    compiler: Compiler, statement: tree.Update | tree.Delete, assignments: Sequence[tuple[int, Expr]]
) -> Callable[[Row, Frame], Row]:
    """The new image of a row."""
    table: Table = statement.target.table
    given = dict(assignments)
    exprs = [
        given.get(ordinal, tree.ColumnRef(statement.target.relation, ordinal, column.type, column.name))
        for ordinal, column in enumerate(table.columns)
    ]
    return compiler.row(exprs)
