"""Plan nodes: what the planner decides, as frozen data that the executor compiles and EXPLAIN prints.

Every node says in `scope` where the columns and expressions of its rows stand. A node's expressions are typed
expressions of the tree; a column that is in no row of the node's children is a column of a row further out, which
the executor finds in the frame (correlated subqueries, LATERAL, and the inner side of an index nested loop alike).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from instar.catalog.descriptors import Index, Table
from instar.sql import tree
from instar.sql.expressions import ColumnKey, Scope
from instar.sql.traversal import references
from instar.sql.tree import AggregateCall, Expr, SortKey
from instar.transactions.transaction import Isolation
from instar.types import Type

# Positions that a scan for DML adds to a row, as ordinals of the target's relation.
KEY_ORDINAL = -1  # the encoded primary key
BASE_ORDINAL = -2  # the commit timestamp of the stored version

JoinKind = Literal["inner", "left", "right", "full"]


class Bound(NamedTuple):
    expr: Expr
    inclusive: bool


class KeyPath(tree.Node, frozen=True):
    """A range of the primary key, or of `index`: equality on leading columns, then bounds on the next one, or as what
    is LIKE a pattern begins.

    `equal` has alternatives per column: one for `=`, several for IN, the InSubquery itself for IN (SELECT ...): see
    `is_single`. `unique`: at most one row per combination.
    `reverse` walks the range from its end.
    """

    index: Index | None
    columns: tuple[int, ...]  # ordinals of the key's columns, all of them
    equal: tuple[tuple[Expr, ...], ...]
    low: Bound | None = None
    high: Bound | None = None
    unique: bool = False
    reverse: bool = False
    like: Expr | None = None

    @property
    def restricts(self) -> bool:
        """Whether it is less than a walk over everything."""
        return bool(self.equal or self.next_to)

    @property
    def next_to(self) -> tuple[Expr, ...]:
        """What the column behind the equal ones is compared with."""
        bounds = [bound.expr for bound in (self.low, self.high) if bound is not None]
        return (*bounds, self.like) if self.like is not None else tuple(bounds)

    @property
    def compared(self) -> tuple[Expr, ...]:
        """What its columns are compared with."""
        return (*(value for values in self.equal for value in values), *self.next_to)


def is_single(values: tuple[Expr, ...]) -> bool:
    """Whether the alternatives of a column are one value."""
    return len(values) == 1 and not isinstance(values[0], tree.InSubquery)


class Access(tree.Node, frozen=True):
    """Rows of a base table by `path`; `filter` is evaluated on the fetched columns. `versions`: see KEY_ORDINAL; they
    are to be locked by the statement. `level`: as in `TableScan`.

    `reads` are those of `ordinals` that the statement looks at; DML fetches all columns to carry them along. `others`:
    by these paths too, each row once, in no order: the arguments of an OR, which `filter` still has. `early`: whoever
    reads it may stop after a few rows.
    """

    scope: Scope
    relation: int
    table: Table
    alias: str
    ordinals: tuple[int, ...]
    path: KeyPath
    filter: tuple[Expr, ...] = ()
    versions: bool = False
    reads: tuple[int, ...] | None = None  # None: all of them
    level: Isolation | None = None
    others: tuple[KeyPath, ...] = ()
    early: bool = False


class SystemRows(tree.Node, frozen=True):
    """A system view, made as rows when it is read."""

    scope: Scope
    view: str
    columns: tuple[int, ...]


class Rows(tree.Node, frozen=True):
    """VALUES; or one empty row, for SELECT without FROM."""

    scope: Scope
    rows: tuple[tuple[Expr, ...], ...]


class FunctionRows(tree.Node, frozen=True):
    scope: Scope
    call: tree.FunctionScan


class Rename(tree.Node, frozen=True):
    """A derived table: the same rows under other names."""

    scope: Scope
    child: Node
    alias: str


class CommonRows(tree.Node, frozen=True):
    """A common table expression: computed at its first reference, kept for the execution."""

    scope: Scope
    child: Node
    cte: int
    alias: str


class Filter(tree.Node, frozen=True):
    scope: Scope
    child: Node
    conjuncts: tuple[Expr, ...]


class NestedLoop(tree.Node, frozen=True):
    """For every left row, the right rows. `lateral` are the left columns that the right side reads; empty: the right
    side is computed once."""

    scope: Scope
    kind: JoinKind
    left: Node
    right: Node
    condition: tuple[Expr, ...]
    lateral: tuple[ColumnKey, ...]


class HashJoin(tree.Node, frozen=True):
    """Right rows hashed by `right_keys`, probed with `left_keys`; `residual` is what else the condition says."""

    scope: Scope
    kind: JoinKind
    left: Node
    right: Node
    left_keys: tuple[Expr, ...]
    right_keys: tuple[Expr, ...]
    residual: tuple[Expr, ...]


class Aggregate(tree.Node, frozen=True):
    """Groups, then aggregates. `sets` are positions in `groups`; one set of all of them is plain GROUP BY, one empty
    set no grouping (one row even for no input). `groupings`: for each GROUPING its arguments' positions in `groups`."""

    scope: Scope
    child: Node
    groups: tuple[Expr, ...]
    sets: tuple[tuple[int, ...], ...]
    calls: tuple[AggregateCall, ...]
    groupings: tuple[tuple[int, ...], ...]


class Project(tree.Node, frozen=True):
    scope: Scope
    child: Node
    outputs: tuple[Expr, ...]


class Sort(tree.Node, frozen=True):
    scope: Scope
    child: Node
    keys: tuple[SortKey, ...]


class Distinct(tree.Node, frozen=True):
    """One row per value of `on` (empty: of the whole row, whose types are `types`), the first one met."""

    scope: Scope
    child: Node
    on: tuple[Expr, ...]
    types: tuple[Type, ...]


class Limit(tree.Node, frozen=True):
    scope: Scope
    child: Node
    limit: Expr | None
    offset: Expr | None


class LockedTable(tree.Node, frozen=True):
    """One table of which LockRows locks the rows: `key` is where their encoded primary key stands."""

    lock: tree.RowLock
    table: Table
    alias: str
    key: int


class LockRows(tree.Node, frozen=True):
    """The child's rows, with the tables' rows that they are made of to be locked; those that are to be skipped left
    out."""

    scope: Scope
    child: Node
    tables: tuple[LockedTable, ...]


class SetOperation(tree.Node, frozen=True):
    scope: Scope
    kind: Literal["union", "intersect", "except"]
    all: bool
    left: Node
    right: Node
    types: tuple[Type, ...]


class Recursive(tree.Node, frozen=True):
    """A recursive common table expression: the left rows, then the right side over and over, which finds what the last
    round gave in its `WorkingRows`, until it gives nothing; unless `all`, nothing new."""

    scope: Scope
    cte: int
    all: bool
    left: Node
    right: Node
    types: tuple[Type, ...]


class WorkingRows(tree.Node, frozen=True):
    """What the last round of a recursive common table expression gave."""

    scope: Scope
    cte: int
    alias: str


Node = (
    Access | SystemRows | Rows | FunctionRows | Rename | CommonRows | Filter | NestedLoop | HashJoin | Aggregate
    | Project | Sort | Distinct | Limit | LockRows | SetOperation | Recursive | WorkingRows
)  # fmt: skip


def children(node: Node) -> Iterator[Node]:
    """The nodes that `node` reads."""
    for name in ("child", "left", "right"):
        child = getattr(node, name, None)
        if child is not None:
            yield child


def walk_plan(node: Node) -> Iterator[Node]:
    """`node` and all below it."""
    yield node
    for child in children(node):
        yield from walk_plan(child)


def expressions(node: Node) -> tuple[Expr, ...]:
    """The expressions that a node itself evaluates; of VALUES those of rows that hold more than literals."""
    match node:
        case Access():
            return (*(found for path in (node.path, *node.others) for found in path.compared), *node.filter)
        case Rows():
            return tuple(value for row in node.rows if not tree.is_literal(row) for value in row)
        case FunctionRows():
            return node.call.args
        case Filter():
            return node.conjuncts
        case NestedLoop():
            return node.condition
        case HashJoin():
            return (*node.left_keys, *node.right_keys, *node.residual)
        case Aggregate():
            return (*node.groups, *node.calls)
        case Project():
            return node.outputs
        case Sort():
            return tuple(key.expr for key in node.keys)
        case Distinct():
            return node.on
        case Limit():
            return tuple(expr for expr in (node.limit, node.offset) if expr is not None)
        case SystemRows() | Rename() | CommonRows() | LockRows() | SetOperation() | Recursive() | WorkingRows():
            return ()


def node_references(root: Node) -> frozenset[ColumnKey]:
    """The columns that a plan reads and does not make: those of rows further out."""
    mentioned: set[ColumnKey] = set()
    made: set[ColumnKey] = set()
    for node in walk_plan(root):
        made.update(node.scope.columns)
        mentioned |= references(expressions(node)).free
    return frozenset(mentioned - made)


class Effort(NamedTuple):
    """What a plan touches. `bounded`: so many rows as its keys name; else `scans` says whether whole tables are read.

    The executor gives up a plan that is not bounded, and has an analytic twin, after `budget` rows.
    """

    bounded: bool
    scans: bool

    @property
    def budget(self) -> int | None:
        """Rows that may be touched before the analytic engine takes over; None: all."""
        if self.bounded:
            return None
        return SCAN_BUDGET if self.scans else DRIVEN_BUDGET


# A row costs the executor about 1.5 us and the analytic engine 0.2 us, but that one begins with about 1.5 ms. The
# budget for reading a table without a key is what costs as much as that beginning; keys and indexes are trusted longer.
SCAN_BUDGET = 1_000
DRIVEN_BUDGET = 10_000


class Subplan(tree.Node, frozen=True):
    """The plan of a subquery expression. `free`: the columns of outer rows that it reads; volatile ones run anew.

    `sought`, of EXISTS: `node` gives, for all outer rows, what these expressions of one are looked for among.
    """

    query: tree.Query
    node: Node
    free: tuple[ColumnKey, ...]
    volatile: bool
    sought: tuple[Expr, ...] = ()


class QueryPlan(tree.Node, frozen=True):
    """A query. `root` None: the analytic engine only; `analytic` False: the executor only. `driven`: what keys drive of
    the first kind's tables, which the executor reads for it, in this order; see driving.py."""

    query: tree.Query
    names: tuple[str, ...]
    types: tuple[Type, ...]
    root: Node | None
    effort: Effort
    analytic: bool
    subplans: dict[int, Subplan] = msgspec.field(default_factory=dict)  # by id() of the query in the tree
    driven: tuple[Access, ...] = ()


class InsertPlan(tree.Node, frozen=True):
    """INSERT. `source` yields `statement.columns`; `returning` is evaluated over the inserted image."""

    statement: tree.Insert
    source: QueryPlan
    subplans: dict[int, Subplan] = msgspec.field(default_factory=dict)


class ModifyPlan(tree.Node, frozen=True):
    """UPDATE or DELETE. `root` yields target rows with KEY_ORDINAL and BASE_ORDINAL beside what else FROM gives."""

    statement: tree.Update | tree.Delete
    root: Node
    subplans: dict[int, Subplan] = msgspec.field(default_factory=dict)


Plan = QueryPlan | InsertPlan | ModifyPlan
