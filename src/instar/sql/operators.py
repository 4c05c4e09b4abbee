"""Plan nodes compiled: each becomes a generator function from a frame to rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from instar import errors
from instar.catalog.layouts import Layouts
from instar.sql import plan, tree
from instar.sql.accesses import Source, access_source
from instar.sql.aggregation import aggregate_source
from instar.sql.execution import ExecutionContext, Row
from instar.sql.expressions import Compiler, Frame, FrameLayout, RowFunction, Scope
from instar.sql.plan import Access, Node, Subplan
from instar.sql.sorting import hashable, sort_passes, sort_rows
from instar.sql.subqueries import SubqueryCompiler
from instar.sql.tree import Expr

RowKey = Callable[[Row], object]


class NodeCompiler:
    """Compiles the nodes of one plan; subplans are compiled where an expression first uses them."""

    def __init__(self, layout: FrameLayout, subplans: Mapping[int, Subplan], layouts: Layouts) -> None:
        self.layout = layout
        self._layouts = layouts
        self._subqueries = SubqueryCompiler(layout, subplans, self.source)
        self._common: dict[int, Source] = {}
        self._working: dict[int, int] = {}  # slots of recursive common table expressions

    def compiler(self, scope: Scope) -> Compiler:
        """A compiler of row functions over rows of that scope."""
        return Compiler(scope, self.layout, self._subqueries)

    def source(self, node: Node) -> Source:
        """The generator function of a node."""
        match node:
            case Access() | plan.Filter():
                return self._filtered(node, None)
            case plan.Project():
                return self._filtered(node.child, node.outputs)
            case plan.Rename():
                return self.source(node.child)
            case plan.Rows():
                return self._rows(node)
            case plan.FunctionRows():
                return self._function(node)
            case plan.SystemRows():
                return self._system(node)
            case plan.CommonRows():
                return self._common_rows(node)
            case plan.NestedLoop():
                return self._lateral(node) if node.lateral else self._nested(node)
            case plan.HashJoin():
                return self._hash_join(node)
            case plan.Aggregate():
                return aggregate_source(node, self.source(node.child), self.compiler)
            case plan.Sort():
                return self._sort(node)
            case plan.Distinct():
                return self._distinct(node)
            case plan.Limit():
                return self._limit(node)
            case plan.LockRows():
                return self._lock_rows(node)
            case plan.SetOperation():
                return self._set_operation(node)
            case plan.Recursive():
                return self._recursive(node)
            case plan.WorkingRows():
                slot = self._working[node.cte]
                return lambda p: iter(p[slot])  # type: ignore[call-overload]  # rows: see `_recursive`

    # --- leaves -------------------------------------------------------------------------------------------------------

    def _filtered(self, node: Node, outputs: Sequence[Expr] | None) -> Source:
        """Filter and projection of `node` in one generated loop."""
        conditions: tuple[Expr, ...] = ()
        if isinstance(node, plan.Filter):
            conditions, node = node.conjuncts, node.child
        if isinstance(node, Access):
            below = access_source(node, self.layout, self._subqueries, self._layouts)
            conditions = (*node.filter, *conditions)
        else:
            below = self.source(node)
        if not conditions and outputs is None:
            return below
        run = self.compiler(node.scope).pipeline(conditions, outputs)
        return lambda p: run(below(p), p)

    def _rows(self, node: plan.Rows) -> Source:
        """Rows of literals are there already; there may be a great many of them."""
        rows = [_literals(row) if tree.is_literal(row) else self.compiler(Scope({})).row(row) for row in node.rows]
        return lambda p: (row if isinstance(row, tuple) else row((), p) for row in rows)

    def _function(self, node: plan.FunctionRows) -> Source:
        function, args = node.call.function, node.call.args
        arguments = self.compiler(Scope({})).row(args)
        closure = function.closure([arg.type for arg in args])
        execution = self.layout.execution

        def rows(p: Frame) -> Iterator[Row]:
            context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
            values = arguments((), p)
            if function.strict and None in values:
                return
            given: Iterable[object] = closure(context.functions, *values) if function.context else closure(*values)  # type: ignore[assignment]  # set-returning
            for value in given:
                context.touch(1)
                yield (value,)

        return rows

    def _system(self, node: plan.SystemRows) -> Source:
        execution, wanted = self.layout.execution, node.columns

        def rows(p: Frame) -> Iterator[Row]:
            context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
            for row in context.system_rows(node.view):
                yield tuple([row[ordinal] for ordinal in wanted])

        return rows

    def _common_rows(self, node: plan.CommonRows) -> Source:
        """Computed once, as far as somebody reads it: kept in the frame for the others."""
        found = self._common.get(node.cte)
        if found is None:
            slot, below = self.layout.new(), self.source(node.child)

            def kept(p: Frame) -> Iterator[Row]:
                if p[slot] is None:
                    p[slot] = _Kept(below(p))
                rows: _Kept = p[slot]  # type: ignore[assignment]  # just set
                return rows.read()

            found = self._common[node.cte] = kept
        return found

    def _recursive(self, node: plan.Recursive) -> Source:
        """Round after round, each of which counts: it may read no table, and have no end."""
        left = self.source(node.left)
        slot = self._working[node.cte] = self.layout.new()
        right, normal, execution = self.source(node.right), hashable(node.types), self.layout.execution

        def rows(p: Frame) -> Iterator[Row]:
            context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
            seen: set[object] = set()
            found = left(p)
            while True:
                working = list(found if node.all else _distinct_rows(found, normal, seen))
                if not working:
                    return
                context.check_cancel()
                context.touch(len(working))
                yield from working
                p[slot] = working
                found = right(p)

        return rows

    # --- joins --------------------------------------------------------------------------------------------------------

    def _lateral(self, node: plan.NestedLoop) -> Source:
        """The right side run anew for every left row, whose columns it finds in the frame."""
        left, right = self.source(node.left), self.source(node.right)
        slots = [(self.layout.outer(column), node.left.scope.columns[column]) for column in node.lateral]
        meets = self._condition(node.scope, node.condition)
        padding = (None,) * len(node.right.scope.columns) if node.kind == "left" else None

        def rows(p: Frame) -> Iterator[Row]:
            for outer in left(p):
                for slot, position in slots:
                    p[slot] = outer[position]
                matched = False
                for inner in right(p):
                    row = outer + inner
                    if meets is None or meets(row, p):
                        matched = True
                        yield row
                if padding is not None and not matched:
                    yield outer + padding

        return rows

    def _nested(self, node: plan.NestedLoop) -> Source:
        """The right side computed once, every pair tried."""
        left, right = self.source(node.left), self.source(node.right)
        meets = self._condition(node.scope, node.condition)
        keep_left, keep_right = node.kind in ("left", "full"), node.kind == "full"
        left_padding = (None,) * len(node.left.scope.columns)
        right_padding = (None,) * len(node.right.scope.columns)
        execution = self.layout.execution

        def rows(p: Frame) -> Iterator[Row]:
            context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
            inners = list(right(p))
            unmatched = set(range(len(inners))) if keep_right else set()
            for outer in left(p):
                context.check_cancel()
                context.touch(len(inners))
                matched = False
                for number, inner in enumerate(inners):
                    row = outer + inner
                    if meets is None or meets(row, p):
                        matched = True
                        unmatched.discard(number)
                        yield row
                if keep_left and not matched:
                    yield outer + right_padding
            for number in sorted(unmatched):
                yield left_padding + inners[number]

        return rows

    def _hash_join(self, node: plan.HashJoin) -> Source:
        left, right = self.source(node.left), self.source(node.right)
        left_key = self._key(node.left.scope, node.left_keys)
        right_key = self._key(node.right.scope, node.right_keys)
        meets = self._condition(node.scope, node.residual)
        keep_left, keep_right = node.kind in ("left", "full"), node.kind == "full"
        left_padding = (None,) * len(node.left.scope.columns)
        right_padding = (None,) * len(node.right.scope.columns)

        def rows(p: Frame) -> Iterator[Row]:
            inners = list(right(p))
            table: dict[object, list[int]] = {}
            for number, inner in enumerate(inners):
                key = right_key(inner, p)
                if key is not None:
                    table.setdefault(key, []).append(number)
            unmatched = set(range(len(inners))) if keep_right else set()
            for outer in left(p):
                key = left_key(outer, p)
                matched = False
                for number in table.get(key, ()) if key is not None else ():
                    row = outer + inners[number]
                    if meets is None or meets(row, p):
                        matched = True
                        unmatched.discard(number)
                        yield row
                if keep_left and not matched:
                    yield outer + right_padding
            for number in sorted(unmatched):
                yield left_padding + inners[number]

        return rows

    def _condition(self, scope: Scope, conjuncts: Sequence[Expr]) -> RowFunction | None:
        return self.compiler(scope).predicate(conjuncts) if conjuncts else None

    def _key(self, scope: Scope, exprs: Sequence[Expr]) -> Callable[[Row, Frame], object]:
        """What to hash in a join: None where a part is NULL, which equals nothing."""
        values = self.compiler(scope).row(exprs)
        normal = hashable([expr.type for expr in exprs])

        def key(row: Row, p: Frame) -> object:
            found = values(row, p)
            return None if None in found else normal(found)

        return key

    # --- whole results ------------------------------------------------------------------------------------------------

    def _sort(self, node: plan.Sort) -> Source:
        below = self.source(node.child)
        passes = sort_passes(lambda: self.compiler(node.child.scope), node.keys)

        def rows(p: Frame) -> Iterator[Row]:
            found = list(below(p))
            sort_rows(found, passes, p)
            yield from found

        return rows

    def _distinct(self, node: plan.Distinct) -> Source:
        below = self.source(node.child)
        normal = hashable(node.types)
        values = self.compiler(node.child.scope).row(node.on) if node.on else None

        def rows(p: Frame) -> Iterator[Row]:
            seen: set[object] = set()
            for row in below(p):
                key = normal(row if values is None else values(row, p))
                if key not in seen:
                    seen.add(key)
                    yield row

        return rows

    def _lock_rows(self, node: plan.LockRows) -> Source:
        below = self.source(node.child)
        execution, tables = self.layout.execution, node.tables

        def rows(p: Frame) -> Iterator[Row]:
            context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
            lock_row = context.lock_row
            for row in below(p):
                if all(lock_row(found.lock, found.table, row[found.key]) for found in tables):  # type: ignore[arg-type]  # a key
                    yield row

        return rows

    def _limit(self, node: plan.Limit) -> Source:
        below = self.source(node.child)
        limit = self._count(node.limit, "LIMIT", errors.INVALID_LIMIT)
        offset = self._count(node.offset, "OFFSET", errors.INVALID_OFFSET)

        def rows(p: Frame) -> Iterator[Row]:
            begin = offset(p) or 0
            count = limit(p)
            # The sum of two bigints may be more than islice takes, which is more rows than there can be.
            return islice(below(p), begin, None if count is None else min(begin + count, sys.maxsize))

        return rows

    def _count(self, expr: Expr | None, clause: str, sqlstate: str) -> Callable[[Frame], int | None]:
        if expr is None:
            return lambda p: None
        value = self.compiler(Scope({})).value(expr)

        def count(p: Frame) -> int | None:
            found = value((), p)
            if found is None:
                return None
            number: int = int(found)  # type: ignore[call-overload]  # the binder casts it to bigint
            if number < 0:
                raise errors.error(sqlstate, f"{clause} must not be negative")
            return number

        return count

    def _set_operation(self, node: plan.SetOperation) -> Source:
        left, right = self.source(node.left), self.source(node.right)
        normal = hashable(node.types)
        if node.kind == "union":
            both = _chained(left, right)
            return both if node.all else lambda p: _distinct_rows(both(p), normal, set())

        def rows(p: Frame) -> Iterator[Row]:
            counts = Counter(normal(row) for row in right(p))
            found = left(p) if node.all else _distinct_rows(left(p), normal, set())
            for row in found:
                key = normal(row)
                there = counts[key] > 0
                if there and node.all:
                    counts[key] -= 1
                if there == (node.kind == "intersect"):
                    yield row

        return rows


class _Kept:
    """Rows that several readers read, each from the first one on: made when the first of them comes to them."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rest = rows
        self._made: list[Row] = []

    def read(self) -> Iterator[Row]:
        """All rows."""
        made, number = self._made, 0
        while True:
            if number == len(made):
                row = next(self._rest, None)
                if row is None:
                    return
                made.append(row)
            yield made[number]
            number += 1


def _literals(row: tuple[Expr, ...]) -> Row:
    return tuple([expr.value for expr in row if isinstance(expr, tree.Literal)])


def _chained(left: Source, right: Source) -> Source:
    def rows(p: Frame) -> Iterator[Row]:
        yield from left(p)
        yield from right(p)

    return rows


def _distinct_rows(rows: Iterable[Row], normal: RowKey, seen: set[object]) -> Iterator[Row]:
    """Those that are not in `seen`, which are in it then."""
    for row in rows:
        key = normal(row)
        if key not in seen:
            seen.add(key)
            yield row
