"""Bound statements to plans: what keys and indexes can drive goes to the executor, the rest to the analytic engine.

Most queries get both: a tree of plan nodes for the executor with a budget of rows, and leave to run in the analytic
engine once the budget is spent (plan.Effort). A query that only one of the two can run exactly has only that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from instar import errors
from instar.sql import tree
from instar.sql.access_paths import ordered, walks
from instar.sql.driving import driven_inputs
from instar.sql.expressions import Scope
from instar.sql.joins import (
    BOUNDED,
    DRIVEN,
    JoinPlanner,
    NotExecutable,
    Part,
    derived_part,
    effort_of,
    filtered,
    scope_of,
)
from instar.sql.plan import (
    KEY_ORDINAL,
    Access,
    Aggregate,
    CommonRows,
    Distinct,
    Effort,
    Filter,
    HashJoin,
    InsertPlan,
    Limit,
    LockedTable,
    LockRows,
    ModifyPlan,
    NestedLoop,
    Node,
    Plan,
    Project,
    QueryPlan,
    Recursive,
    Rename,
    Rows,
    SetOperation,
    Sort,
    Subplan,
    WorkingRows,
    expressions,
    node_references,
    walk_plan,
)
from instar.sql.rewrites import bare, members_sought, pull_up
from instar.sql.traversal import SUBQUERIES, children, conjuncts, is_volatile, locks_rows, references, walk, walk_level
from instar.sql.tree import Expr, FromItem, Query, Select, SortKey
from instar.types import BIGINT, Type

Engines = Literal["both", "executor", "analytic", "driven"]


def plan_statement(bound: tree.BoundStatement, engines: Engines = "both") -> Plan:
    """The plan of a bound statement. `engines` other than "both" force one of them, for tests that compare the two;
    "driven" the analytic one with all tables driven that can be.

    Errors: 0A000 if neither engine can run it.
    """
    statement = bound.statement
    planner = _Planner(engines)
    match statement:
        case tree.QueryStatement():
            return planner.query_plan(statement.query)
        case tree.Insert():
            source = planner.query_plan(statement.source)
            return InsertPlan(statement, source, planner.subplans_of(_insert_expressions(statement)))
        case tree.Update() | tree.Delete():
            try:
                return planner.modify_plan(statement)
            except NotExecutable as reason:  # in FROM or WITH
                raise errors.unsupported(f"{reason} in UPDATE or DELETE") from None


def output_types(query: Query) -> tuple[Type, ...]:
    """The types of a query's columns."""
    if isinstance(query, Select):
        return tuple(output.expr.type for output in query.outputs)
    columns = query.columns if isinstance(query, tree.SetOperation) else query.values.columns
    return tuple(type_ for _, type_ in columns)


def output_names(query: Query) -> tuple[str, ...]:
    """The names of a query's columns."""
    if isinstance(query, Select):
        return tuple(output.name for output in query.outputs)
    columns = query.columns if isinstance(query, tree.SetOperation) else query.values.columns
    return tuple(name for name, _ in columns)


def _insert_expressions(statement: tree.Insert) -> tuple[Expr, ...]:
    found = [expr for _, expr in statement.defaults]
    if statement.on_conflict is not None:
        found += [expr for _, expr in statement.on_conflict.assignments]
        found += conjuncts(statement.on_conflict.where)
    return (*found, *(output.expr for output in statement.returning))


class _Planner:
    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._common: dict[int, tuple[Node, Effort]] = {}  # plans of CTEs by id

    # --- statements ---------------------------------------------------------------------------------------------------

    def query_plan(self, query: Query) -> QueryPlan:
        """The plan of a whole query."""
        analytic = self._engines != "executor" and not is_volatile(query) and not locks_rows(query)
        root: Node | None = None
        effort = BOUNDED
        subplans: dict[int, Subplan] = {}
        if self._engines in ("both", "executor"):
            try:
                root, effort = self._query(query)
                subplans, nested = self._subplans(root)
                effort = effort_of(effort, nested)
            except NotExecutable as reason:
                if not analytic:
                    raise errors.unsupported(f"{reason} in a query that the executor must run") from None
                root = None
        if root is not None and effort.bounded and self._engines == "both":
            analytic = False
        driven = driven_inputs(query) if root is None and self._engines != "analytic" else ()
        return QueryPlan(query, output_names(query), output_types(query), root, effort, analytic, subplans, driven)

    def modify_plan(self, statement: tree.Update | tree.Delete) -> ModifyPlan:
        """The plan of UPDATE or DELETE: the target is one of the joined items, read with its key and version."""
        if statement.target.kept is not None:
            return self._kept_plan(statement, statement.target.kept)
        items: list[FromItem] = [statement.target]
        other = statement.from_ if isinstance(statement, tree.Update) else statement.using
        if other is not None:
            items.append(other)
        for common in statement.ctes:
            self._common_table(common)
        assignments = statement.assignments if isinstance(statement, tree.Update) else ()
        read = (*items, *conjuncts(statement.where), *(expr for _, expr in assignments), *statement.returning)
        target = statement.target.relation
        # What is assigned counts as read: whether that changes anything depends on what was there.
        assigned = {(target, ordinal) for ordinal, _ in assignments}
        joins = JoinPlanner(references(read).columns | assigned, self._derived, target=target)
        part = joins.plan(items, conjuncts(statement.where))
        written = (*(expr for _, expr in assignments), *(output.expr for output in statement.returning))
        subplans, _ = self._subplans(part.node)
        return ModifyPlan(statement, part.node, subplans | self.subplans_of(written))

    def _kept_plan(self, statement: tree.Update | tree.Delete, target: tree.Derived) -> ModifyPlan:
        """The plan of UPDATE or DELETE of a kept view: a query for the rows of the view and what else is looked at."""
        other = statement.from_ if isinstance(statement, tree.Update) else statement.using
        assignments = statement.assignments if isinstance(statement, tree.Update) else ()
        written = (*(expr for _, expr in assignments), *(output.expr for output in statement.returning))
        names = {(target.relation, ordinal): column for ordinal, column in enumerate(statement.target.table.columns)}
        wanted = {column: tree.ColumnRef(*column, found.type, found.name) for column, found in names.items()}
        free = references(written).free
        wanted |= {
            (found.relation, found.ordinal): found
            for found in walk(written)
            if isinstance(found, tree.ColumnRef) and (found.relation, found.ordinal) in free
        }
        from_: FromItem = target if other is None else tree.Join("cross", target, other, None)
        outputs = tuple(tree.Output(found.name, found) for found in wanted.values())
        query = Select(
            outputs, from_, statement.where, (), None, None, False, False, (), (), None, None, statement.ctes
        )  # fmt: skip
        node, _ = self._query(query)
        subplans, _ = self._subplans(node)
        root = Rename(scope_of(list(wanted)), node, target.alias)
        return ModifyPlan(statement, root, subplans | self.subplans_of(written))

    def subplans_of(self, exprs: tuple[Expr, ...]) -> dict[int, Subplan]:
        """The plans of the subqueries in expressions that stand outside of a plan's tree."""
        try:
            return self._expression_subplans(exprs)[0]
        except NotExecutable as reason:
            raise errors.unsupported(f"{reason} in this place") from None

    def _subplans(self, root: Node) -> tuple[dict[int, Subplan], Effort]:
        return self._expression_subplans(tuple(expr for node in walk_plan(root) for expr in expressions(node)))

    def _expression_subplans(self, exprs: tuple[Expr, ...]) -> tuple[dict[int, Subplan], Effort]:
        found: dict[int, Subplan] = {}
        effort = BOUNDED
        for expr in walk_level(exprs):
            if isinstance(expr, SUBQUERIES):
                node, own = self._query(bare(expr.query) if isinstance(expr, tree.Exists) else expr.query)
                sought: tuple[Expr, ...] = ()
                if isinstance(expr, tree.Exists) and own.scans and (among := members_sought(expr.query)) is not None:
                    query, sought = among
                    node, own = self._query(query)
                free = tuple(sorted(node_references(node)))
                nested, below = self._subplans(node)
                outside = {column for plan in nested.values() for column in plan.free}
                made = {column for inner in walk_plan(node) for column in inner.scope.columns}
                free = tuple(sorted({*free, *(outside - made)}))
                found |= nested
                found[id(expr.query)] = Subplan(expr.query, node, free, is_volatile(expr.query), sought)
                effort = effort_of(effort, own, below)
        return found, effort

    # --- queries ------------------------------------------------------------------------------------------------------

    def _query(self, query: Query) -> tuple[Node, Effort]:
        if isinstance(query, Select):
            return self._select(query)
        if isinstance(query, tree.SetOperation):
            return self._set_operation(query)
        values = query.values
        scope = scope_of([(values.relation, ordinal) for ordinal in range(len(values.columns))])
        return self._finished(Rows(scope, values.rows), query.order_by, query.limit, query.offset), BOUNDED

    def _set_operation(self, query: tree.SetOperation) -> tuple[Node, Effort]:
        for common in query.ctes:
            self._common_table(common)
        left, left_effort = self._query(query.left)
        right, right_effort = self._query(query.right)
        scope = scope_of([(query.relation, ordinal) for ordinal in range(len(query.columns))])
        types = tuple(type_ for _, type_ in query.columns)
        node = SetOperation(scope, query.kind, query.all, left, right, types)
        return self._finished(node, query.order_by, query.limit, query.offset), effort_of(left_effort, right_effort)

    def _finished(self, node: Node, order_by: Sequence[SortKey], limit: Expr | None, offset: Expr | None) -> Node:
        if order_by:
            node = Sort(node.scope, node, tuple(order_by))
        if limit is not None or offset is not None:
            node = Limit(node.scope, node, limit, offset)
        return node

    def _common_table(self, common: tree.CommonTable) -> None:
        self._common[common.id] = self._recursive(common) if common.recursive else self._query(common.query)

    def _recursive(self, common: tree.CommonTable) -> tuple[Node, Effort]:
        query = common.query
        if not isinstance(query, tree.SetOperation) or query.order_by or query.limit or query.offset or query.ctes:
            raise NotExecutable("this form of a recursive common table expression")
        left, left_effort = self._query(query.left)
        right, right_effort = self._query(query.right)
        scope = scope_of([(query.relation, ordinal) for ordinal in range(len(query.columns))])
        types = tuple(type_ for _, type_ in query.columns)
        node = Recursive(scope, common.id, query.all, left, right, types)
        return node, effort_of(DRIVEN, left_effort, right_effort)

    def _derived(self, item: tree.Derived) -> Part:
        width = len(output_types(item.query))
        scope = scope_of([(item.relation, ordinal) for ordinal in range(width)])
        relations = frozenset({item.relation})
        if item.cte is not None:
            if item.cte not in self._common:
                raise NotExecutable("a common table expression that is listed later")
            node, effort = self._common[item.cte]
            if not node_references(node) and not _is_of_a_round(node):
                return derived_part(CommonRows(scope, node, item.cte, item.alias), effort, relations)
        else:
            node, effort = self._query(item.query)
        return derived_part(Rename(scope, node, item.alias), effort, relations)

    def _select(self, query: Select) -> tuple[Node, Effort]:
        if any(isinstance(found, tree.WindowCall) for found in walk_level((query.outputs, query.order_by))):
            raise NotExecutable("a window function")
        for common in query.ctes:
            self._common_table(common)
        query = pull_up(query)
        conditions = conjuncts(query.where)
        sorted_by = _single_relation(query.order_by)
        locked = frozenset(lock.relation for lock in query.locking)
        joins = JoinPlanner(references(query).columns, self._derived, preferred=sorted_by, locked=locked)
        part = joins.plan([] if query.from_ is None else [query.from_], conditions)
        node, order_by = part.node, query.order_by
        if query.aggregated or query.group_exprs:
            node = self._aggregate(_first_of_walk(node, query) or node, query)
        elif sorted_by is not None and not query.distinct and not query.distinct_on:
            walked = in_order(node, query.order_by, sorted_by, early=query.limit is not None)
            if walked is not None:
                node, order_by = walked, ()
        return self._projected(node, query, order_by), part.effort

    def _projected(self, node: Node, query: Select, order_by: Sequence[SortKey]) -> Node:
        outputs = tuple(output.expr for output in query.outputs)
        types = tuple(expr.type for expr in outputs)
        result = Scope({}, exprs={expr: position for position, expr in reversed(list(enumerate(outputs)))})
        if query.distinct:
            # ORDER BY of SELECT DISTINCT names outputs only, so it comes after the projection.
            node = Distinct(result, Project(result, node, outputs), (), types)
            return self._finished(node, order_by, query.limit, query.offset)
        if order_by:
            node = Sort(node.scope, node, tuple(order_by))
        if query.locking:
            node = LockRows(node.scope, node, _locked_tables(node, query))
        if query.distinct_on:
            node = Distinct(node.scope, node, query.distinct_on, tuple(expr.type for expr in query.distinct_on))
        if query.limit is not None or query.offset is not None:
            node = Limit(node.scope, node, query.limit, query.offset)
        return Project(result, node, outputs)

    def _aggregate(self, node: Node, query: Select) -> Node:
        groups = list(query.group_exprs)
        having = _conjuncts_of_groups(query.having, groups)
        read = (tuple(output.expr for output in query.outputs), tuple(having), query.order_by, query.distinct_on)
        calls: list[tree.AggregateCall] = []
        groupings: list[tree.GroupingCall] = []
        for expr in _outside_of(groups, read):
            if isinstance(expr, tree.AggregateCall) and expr not in calls:
                calls.append(expr)
            elif isinstance(expr, tree.GroupingCall):
                groupings.append(expr)
            elif isinstance(expr, tree.ColumnRef) and (expr.relation, expr.ordinal) in node.scope.columns:
                # Functionally dependent on the groups, as the binder made sure: the same for the whole group.
                groups.append(expr)
        sets = query.grouping_sets if query.grouping_sets is not None else (tuple(range(len(groups))),)
        positions = {expr: position for position, expr in reversed(list(enumerate([*groups, *calls, *groupings])))}
        columns = {
            (expr.relation, expr.ordinal): position
            for expr, position in positions.items()
            # A column of an outer query may be a group, too, but is still that query's to give.
            if isinstance(expr, tree.ColumnRef) and (expr.relation, expr.ordinal) in node.scope.columns
        }
        scope = Scope(columns, frozenset(), positions)
        marked = tuple(tuple(groups.index(arg) for arg in call.args) for call in groupings)
        node = Aggregate(scope, node, tuple(groups), sets, tuple(calls), marked)
        return filtered(node, having)


def _is_of_a_round(root: Node) -> bool:
    """Whether a plan reads what the last round gave of a recursion around it: then it is not the same in each."""
    nodes = list(walk_plan(root))
    own = {node.cte for node in nodes if isinstance(node, Recursive)}
    return any(isinstance(node, WorkingRows) and node.cte not in own for node in nodes)


def _conjuncts_of_groups(expr: Expr | None, groups: Sequence[Expr]) -> list[Expr]:
    """As `conjuncts`: an AND that is grouped by stays one."""
    if not isinstance(expr, tree.And) or expr in groups:
        return [] if expr is None else [expr]
    return [found for arg in expr.args for found in _conjuncts_of_groups(arg, groups)]


def _locked_tables(node: Node, query: Select) -> tuple[LockedTable, ...]:
    """Where the rows of the tables that the query locks have their keys."""
    accesses = {found.relation: found for found in walk_plan(node) if isinstance(found, Access)}
    return tuple(
        LockedTable(lock, accesses[lock.relation].table, accesses[lock.relation].alias, key)
        for lock in query.locking
        for key in [node.scope.columns[lock.relation, KEY_ORDINAL]]
    )


def _outside_of(groups: Sequence[Expr], root: object) -> Iterator[Expr]:
    """Aggregate calls, GROUPINGs and columns in `root` that are not in a group's expression or an aggregate call."""
    known = set(groups)
    stack: list[object] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            stack.extend(reversed(item))
        elif item in known:
            continue
        elif isinstance(item, (tree.AggregateCall, tree.GroupingCall, tree.ColumnRef)):
            known.add(item)
            yield item
        elif isinstance(item, SUBQUERIES):
            stack.extend(found for found in walk(item.query) if isinstance(found, tree.ColumnRef))
            if isinstance(item, tree.InSubquery):
                stack.append(item.operands)
        else:
            stack.extend(children(item))


def _single_relation(keys: Sequence[SortKey]) -> int | None:
    """The relation whose columns alone the keys are, if there is one."""
    relations = {key.expr.relation if isinstance(key.expr, tree.ColumnRef) else None for key in keys}
    return relations.pop() if len(relations) == 1 else None


def in_order(node: Node, keys: Sequence[SortKey], relation: int, *, early: bool) -> Node | None:
    """`node` changed so that its rows come in the order of `keys`, by the path that drives it; None if it cannot.

    `early`: the reader stops early, so walking another index in the right order beats reading everything.
    """
    match node:
        case Access(relation=owner, table=table, path=path, others=()) if owner == relation:
            found = ordered(table, path, keys, relation)
            if found is None and early and not path.restricts:
                others = (ordered(table, other, keys, relation) for other in walks(table))
                found = next((other for other in others if other is not None), None)
            return None if found is None else replace(node, path=found, early=early)
        case Filter(child=child):
            walked = in_order(child, keys, relation, early=early)
            return None if walked is None else replace(node, child=walked)
        case NestedLoop(kind="inner" | "left", left=left) | HashJoin(kind="inner" | "left", left=left):
            walked = in_order(left, keys, relation, early=early)
            return None if walked is None else replace(node, left=walked)
        case _:
            return None


def _first_of_walk(node: Node, query: Select) -> Node | None:
    """For `SELECT min(column)` or max: the walk that meets it first, cut after one row; None for anything else."""
    calls = [found for found in walk(query.outputs) if isinstance(found, tree.AggregateCall)]
    if query.group_exprs or query.grouping_sets or query.having is not None or len(calls) != 1:
        return None
    call = calls[0]
    if call.aggregate.name not in ("min", "max") or call.filter is not None or not isinstance(node, Access):
        return None
    column = call.args[0]
    if not isinstance(column, tree.ColumnRef) or column.relation != node.relation:
        return None
    last = call.aggregate.name == "max"
    known = filtered(node, [tree.IsNull(column, negated=True)])
    walked = in_order(known, [SortKey(column, last, last)], node.relation, early=True)
    return None if walked is None else Limit(walked.scope, walked, tree.Literal(1, BIGINT), None)
