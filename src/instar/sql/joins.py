"""FROM and WHERE to a tree of accesses and joins, driven from the most selective key outward.

Inner joins are a list of items and a list of conjuncts; the item that the best key restricts comes first, then always
the one that the rows so far reach best: an index nested loop where they name a key of it, a hash join where they only
equal something in it. An outer join is one item of such a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from instar.sql import tree
from instar.sql.access_paths import NARROW, Candidate, Restriction, best_candidate, candidates, restrictions
from instar.sql.expressions import ColumnKey, Scope
from instar.sql.failing import under
from instar.sql.plan import (
    BASE_ORDINAL,
    KEY_ORDINAL,
    Access,
    Effort,
    Filter,
    FunctionRows,
    HashJoin,
    JoinKind,
    NestedLoop,
    Node,
    Rows,
    SystemRows,
    WorkingRows,
    node_references,
)
from instar.sql.traversal import conjuncts, free_relations
from instar.sql.tree import Expr, FromItem

Relations = frozenset[int]
Rank = tuple[int, int, int]

# As those of access_paths.py: what keys drive, or is few, comes before a walk over a table, which it may drive in turn.
_FEW: Rank = (2, 0, 2)
_DRIVEN: Rank = (4, 0, 2)
_NO_KEY: Rank = (6, 0, 0)
BOUNDED = Effort(True, False)
DRIVEN = Effort(False, False)


class NotExecutable(Exception):
    """The executor has no plan for this; the message is the noun phrase that says why."""


class Part(msgspec.Struct, frozen=True):
    """A plan of some FROM items: `relations` are theirs, `rank` says how selective it is (smaller is better), and
    `used` are the positions of the offered conjuncts that it has taken care of."""

    node: Node
    effort: Effort
    relations: Relations
    rank: Rank = _NO_KEY
    used: frozenset[int] = frozenset()


def derived_part(node: Node, effort: Effort, relations: Relations) -> Part:
    """The part that a subquery is."""
    return Part(node, effort, relations, _NO_KEY if effort.scans else _DRIVEN)


def effort_of(*efforts: Effort) -> Effort:
    """What parts cost together."""
    return Effort(all(effort.bounded for effort in efforts), any(effort.scans for effort in efforts))


def scope_of(columns: Sequence[ColumnKey], not_null: frozenset[ColumnKey] = frozenset()) -> Scope:
    """The scope of rows with these columns in this order."""
    return Scope({column: position for position, column in enumerate(columns)}, not_null)


def relations_of(item: FromItem) -> Relations:
    """The relations whose columns a FROM item gives."""
    if isinstance(item, tree.Join):
        return relations_of(item.left) | relations_of(item.right)
    return frozenset({item.relation})


def filtered(node: Node, conditions: Sequence[Expr]) -> Node:
    """`node` with only the rows that meet the conditions."""
    if not conditions:
        return node
    if isinstance(node, Access):
        return replace(node, filter=(*node.filter, *conditions))
    return Filter(node.scope, node, tuple(conditions))


class _Conjuncts:
    """Conjuncts not yet applied, with the relations that each mentions."""

    def __init__(self, exprs: Sequence[Expr]) -> None:
        self._items = [(expr, free_relations(expr)) for expr in exprs]

    @property
    def exprs(self) -> list[Expr]:
        return [expr for expr, _ in self._items]

    def drop(self, positions: frozenset[int]) -> None:
        self._items = [item for position, item in enumerate(self._items) if position not in positions]

    def take_without(self, absent: Relations) -> list[Expr]:
        """Remove and return those that mention none of these relations."""
        taken = [expr for expr, mentioned in self._items if not mentioned & absent]
        self._items = [item for item in self._items if item[1] & absent]
        return taken


class JoinPlanner:
    """Plans the FROM items of one query level. `needed` are the columns that the level reads anywhere."""

    def __init__(
        self,
        needed: frozenset[ColumnKey],
        derived: Callable[[tree.Derived], Part],
        *,
        target: int | None = None,
        preferred: int | None = None,
        locked: Relations = frozenset(),
    ) -> None:
        self._needed = needed
        self._derived = derived
        self._target = target  # the relation that DML changes: all its columns, key and base are wanted
        self._locked = locked  # the relations whose rows are locked: their keys are wanted
        self._preferred = preferred  # the relation to begin with where nothing else decides

    def plan(self, items: Sequence[FromItem], conditions: Sequence[Expr]) -> Part:
        """All items inner-joined under the conditions. Relations of no item are taken to be in the frame."""
        flat: list[FromItem] = []
        extra: list[Expr] = []
        for item in items:
            _flatten(item, flat, extra)
        pending = _Conjuncts([*extra, *conditions])
        missing: Relations = frozenset().union(*(relations_of(item) for item in flat))
        part = Part(Rows(Scope({}), ((),)), BOUNDED, frozenset())
        if not flat:
            return replace(part, node=filtered(part.node, pending.exprs))
        first = True
        while flat:
            found, item = self._best(flat, pending.exprs, missing)
            flat.remove(item)
            pending.drop(found.used)
            missing -= found.relations
            own = pending.take_without(missing | part.relations)
            found = replace(found, node=filtered(found.node, own))
            if first:
                part, first = found, False
                continue
            between = pending.take_without(missing)
            node = join_node("inner", part.node, found.node, between)
            part = Part(node, effort_of(part.effort, found.effort), part.relations | found.relations, part.rank)
        return part

    def _best(self, flat: Sequence[FromItem], conditions: Sequence[Expr], missing: Relations) -> tuple[Part, FromItem]:
        """The item that the keys restrict best where `missing` are the relations not yet joined, its own included."""
        found: list[tuple[Part, FromItem]] = []
        for item in flat:
            others = missing - relations_of(item)
            if not free_relations(item) & others:
                found.append((self._item(item, conditions, others), item))
        if not found:
            raise NotExecutable("this nesting of LATERAL")
        return min(found, key=lambda pair: (pair[0].rank, self._preferred not in pair[0].relations))

    def _item(self, item: FromItem, conditions: Sequence[Expr], missing: Relations) -> Part:
        match item:
            case tree.TableScan():
                return self._table(item, conditions, missing)
            case tree.Derived():
                return self._derived(item)
            case tree.ValuesList():
                scope = scope_of([(item.relation, ordinal) for ordinal in range(len(item.columns))])
                return Part(Rows(scope, item.rows), BOUNDED, frozenset({item.relation}), _FEW)
            case tree.SystemScan():
                wanted = self._ordinals(item.relation)
                scope = scope_of([(item.relation, ordinal) for ordinal in wanted])
                return Part(SystemRows(scope, item.view, wanted), DRIVEN, frozenset({item.relation}))
            case tree.FunctionScan():
                scope = scope_of([(item.relation, ordinal) for ordinal in range(len(item.columns))])
                return derived_part(FunctionRows(scope, item), DRIVEN, frozenset({item.relation}))
            case tree.RecursiveRef():
                scope = scope_of([(item.relation, ordinal) for ordinal in range(len(item.columns))])
                return derived_part(WorkingRows(scope, item.cte, item.alias), DRIVEN, frozenset({item.relation}))
            case tree.Join():
                return self._outer(item, conditions, missing)

    def _ordinals(self, relation: int) -> tuple[int, ...]:
        return tuple(sorted(ordinal for owner, ordinal in self._needed if owner == relation and ordinal >= 0))

    def _table(self, item: tree.TableScan, conditions: Sequence[Expr], missing: Relations) -> Part:
        table, relation = item.table, item.relation
        unknown = missing | {relation}

        def find(exprs: Sequence[Expr]) -> list[Restriction]:
            return restrictions(relation, exprs, lambda expr: not free_relations(expr) & unknown)

        best = best_candidate(table, conditions, find)
        if self._is_better_hashed(best, relation, conditions, missing):
            best = next(candidates(table, []))
        versions = relation == self._target or relation in self._locked
        reads = self._ordinals(relation)
        ordinals = tuple(range(len(table.columns))) if relation == self._target else reads
        columns = [(relation, ordinal) for ordinal in ordinals]
        not_null = frozenset(column for column in columns if not table.columns[column[1]].nullable)
        if versions:
            columns += [(relation, KEY_ORDINAL), (relation, BASE_ORDINAL)]
        scope = scope_of(columns, not_null)
        node = Access(
            scope, relation, table, item.alias, ordinals, best.path, (), versions, reads, item.level, best.others
        )
        level = best.rank[0]
        compared = [values[0] for path in (best.path, *best.others) for values in path.equal]
        bounded = level <= 1 and not any(isinstance(value, tree.InSubquery) for value in compared)
        return Part(node, Effort(bounded, level == 5), frozenset({relation}), best.rank, best.used)

    @staticmethod
    def _is_better_hashed(best: Candidate, relation: int, conditions: Sequence[Expr], missing: Relations) -> bool:
        """Whether a path is bounded by one column of the rows so far, whereas these equal something in the table."""
        others = frozenset().union(*(free_relations(expr) for expr in best.path.next_to)) - {relation}
        if best.rank[0] <= NARROW or not others:
            return False
        mentioned = frozenset().union(*(free_relations(expr) for expr in conditions)) - missing - {relation}
        return any(equated(condition, frozenset({relation}), mentioned) is not None for condition in conditions)

    def _outer(self, join: tree.Join, conditions: Sequence[Expr], missing: Relations) -> Part:
        left_item, right_item = (join.right, join.left) if join.kind == "right" else (join.left, join.right)
        on = guarded_on(join)
        relations = relations_of(join)
        if join.kind == "full":
            left, right = self.plan([left_item], []), self.plan([right_item], [])
            node = join_node("full", left.node, right.node, on)
            return Part(node, effort_of(left.effort, right.effort), relations, left.rank)
        # What WHERE says of the preserved side alone holds below the join as well.
        outside = missing | relations_of(right_item)
        own = relations_of(left_item)
        mentioned = [free_relations(expr) for expr in conditions]
        used = frozenset(number for number, found in enumerate(mentioned) if found & own and not found & outside)
        left = self.plan([left_item], [conditions[number] for number in sorted(used)])
        right, residual = self._nullable(right_item, on, own)
        node = join_node("left", left.node, right.node, residual)
        return Part(node, effort_of(left.effort, right.effort), relations, left.rank, used)

    def _nullable(self, item: FromItem, on: Sequence[Expr], left: Relations) -> tuple[Part, list[Expr]]:
        """The nullable side under the ON conjuncts that it can decide, and the others: driven by the left rows if they
        name a key, else on its own."""
        own = relations_of(item)
        inside = [expr for expr in on if free_relations(expr) & own]
        part = self.plan([item], inside)
        if part.effort.scans:
            inside = [expr for expr in inside if not free_relations(expr) & left]
            part = self.plan([item], inside)
        return part, [expr for expr in on if not any(expr is found for found in inside)]


def guarded_on(join: tree.Join) -> list[Expr]:
    """The conjuncts of an outer join's ON. What one side is compared with, or hashed by, is evaluated for the rows of
    the other alone: where that may fail, only for those that the conjuncts before say nothing against."""
    found = conjuncts(join.condition)
    return [_guarded(condition, found[:number]) for number, condition in enumerate(found)]


def _guarded(condition: Expr, before: Sequence[Expr]) -> Expr:
    def guarded(arg: Expr) -> Expr:
        own = free_relations(arg)
        said = tuple([earlier for earlier in before if free_relations(earlier) <= own])
        return under(tree.And(said) if said else None, arg)

    if before and isinstance(condition, tree.InList) and not condition.negated:
        return replace(condition, items=tuple([guarded(item) for item in condition.items]))
    if before and isinstance(condition, tree.Call) and condition.function.operator and condition.function.strict:
        return replace(condition, args=tuple([guarded(arg) for arg in condition.args]))
    return condition


def _flatten(item: FromItem, flat: list[FromItem], extra: list[Expr]) -> None:
    if isinstance(item, tree.Join) and item.kind in ("inner", "cross"):
        _flatten(item.left, flat, extra)
        _flatten(item.right, flat, extra)
        extra.extend(conjuncts(item.condition))
    else:
        flat.append(item)


def _joined_scope(left: Scope, right: Scope, kind: JoinKind) -> Scope:
    """The scope of left rows with right rows appended; an outer join makes the other side's columns nullable."""
    width = len(left.columns)
    columns = dict(left.columns) | {column: width + position for column, position in right.columns.items()}
    not_null = left.not_null if kind in ("inner", "left") else frozenset()
    return Scope(columns, not_null | right.not_null if kind == "inner" else not_null)


def join_node(kind: JoinKind, left: Node, right: Node, conditions: Sequence[Expr]) -> Node:
    """A nested loop if the right side reads left columns, a hash join if an equality connects the two."""
    scope = _joined_scope(left.scope, right.scope, kind)
    lateral = tuple(sorted(node_references(right) & left.scope.columns.keys()))
    if lateral:
        return NestedLoop(scope, kind, left, right, tuple(conditions), lateral)
    left_keys: list[Expr] = []
    right_keys: list[Expr] = []
    residual: list[Expr] = []
    owners = [frozenset(relation for relation, _ in side.scope.columns) for side in (left, right)]
    for condition in conditions:
        sides = equated(condition, *owners)
        if sides is None:
            residual.append(condition)
        else:
            left_keys.append(sides[0])
            right_keys.append(sides[1])
    if not left_keys:
        return NestedLoop(scope, kind, left, right, tuple(residual), ())
    return HashJoin(scope, kind, left, right, tuple(left_keys), tuple(right_keys), tuple(residual))


def equated(condition: Expr, left: Relations, right: Relations) -> tuple[Expr, Expr] | None:
    """(left expression, right expression) of an equality between the two sides."""
    if not (isinstance(condition, tree.Call) and condition.function.operator and condition.function.name == "="):
        return None
    a, b = condition.args
    used_a, used_b = free_relations(a), free_relations(b)
    if used_a & left and not used_a & right and used_b & right and not used_b & left:
        return a, b
    if used_a & right and not used_a & left and used_b & left and not used_b & right:
        return b, a
    return None
