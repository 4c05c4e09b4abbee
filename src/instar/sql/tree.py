"""The typed tree: what the binder makes of a statement at one schema version, and what planner and analytic read.

Names are gone: a column reference is (relation, ordinal), where every FROM item of a statement, at whatever depth,
has a relation number of its own; so an outer (correlated) reference is one whose relation is not in the subquery.
Every expression bears its type, every implicit conversion is an explicit Cast, every function is an entry of
`functions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING
from typing import Literal as Choice

import msgspec
from msgspec.structs import astuple, force_setattr

from instar.catalog.descriptors import Index, Table, View
from instar.store.lock_modes import Mode
from instar.transactions.transaction import Isolation
from instar.types import BOOLEAN, INTEGER, Type

if TYPE_CHECKING:
    from instar.sql.functions import Aggregate, Function, WindowFunction


class Node(msgspec.Struct, frozen=True):
    """What trees, and the plans of them, are made of.

    Its hash is Python's own recursion, which has an end (RecursionError, so 54001): msgspec's would go down a tree of
    whatever depth until the stack is used up.
    """

    def __hash__(self) -> int:
        return hash(astuple(self))


# --- expressions -----------------------------------------------------------------------------------------------------


class Literal(Node, frozen=True, eq=False):
    """A constant: `value` is an internal value of `type` (types.py), None is NULL.

    Two are the same expression if they are written alike: 1.5 and 1.50 are equal numbers that make others of what they
    are multiplied by, and so are 0.0 and -0.0. One NaN is as good as another.
    """

    value: object
    type: Type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Type, object]:
        return self.type, str(self.value) if isinstance(self.value, float | Decimal) else self.value


class Parameter(Node, frozen=True):
    """The `index`-th parameter, 0-based, converted to `type` when the statement is executed."""

    index: int
    type: Type


class ColumnRef(Node, frozen=True):
    """Column `ordinal` of the output of FROM item `relation`."""

    relation: int
    ordinal: int
    type: Type
    name: str


class Call(Node, frozen=True):
    """A function or operator that has no special evaluation order; strictness is the function's property."""

    function: Function
    args: tuple[Expr, ...]
    type: Type


class Cast(Node, frozen=True):
    """A conversion; `explicit` ones may truncate (varchar), implicit ones raise 22001."""

    operand: Expr
    type: Type
    explicit: bool


class And(Node, frozen=True):
    args: tuple[Expr, ...]
    type: Type = BOOLEAN


class Or(Node, frozen=True):
    args: tuple[Expr, ...]
    type: Type = BOOLEAN


class Not(Node, frozen=True):
    operand: Expr
    type: Type = BOOLEAN


class IsNull(Node, frozen=True):
    operand: Expr
    negated: bool
    type: Type = BOOLEAN


class IsTruth(Node, frozen=True):
    """IS [NOT] TRUE, FALSE, UNKNOWN."""

    operand: Expr
    truth: bool | None
    negated: bool
    type: Type = BOOLEAN


class IsDistinct(Node, frozen=True):
    """IS [NOT] DISTINCT FROM; both sides have one type."""

    left: Expr
    right: Expr
    negated: bool
    type: Type = BOOLEAN


class InList(Node, frozen=True):
    """operand [NOT] IN (items): all of one type."""

    operand: Expr
    items: tuple[Expr, ...]
    negated: bool
    type: Type = BOOLEAN


class Case(Node, frozen=True):
    """Searched CASE (a simple one is bound into this form); without ELSE, `default` is a NULL literal."""

    whens: tuple[tuple[Expr, Expr], ...]
    default: Expr
    type: Type


class Coalesce(Node, frozen=True):
    args: tuple[Expr, ...]
    type: Type


class SortKey(Node, frozen=True):
    """NULLS LAST is the default ascending, NULLS FIRST descending, as in PostgreSQL; always spelled out here."""

    expr: Expr
    descending: bool
    nulls_first: bool


class AggregateCall(Node, frozen=True):
    aggregate: Aggregate
    args: tuple[Expr, ...]  # empty: count(*)
    distinct: bool
    filter: Expr | None
    order_by: tuple[SortKey, ...]
    type: Type


class GroupingCall(Node, frozen=True):
    """GROUPING: a bit for each argument, the last one's the lowest, that is 1 in the rows of the grouping sets without
    it. The arguments are grouping expressions of the query that it stands in."""

    args: tuple[Expr, ...]
    type: Type = INTEGER


class Frame(Node, frozen=True):
    """A window frame; a bound is (kind, offset expression or None)."""

    unit: Choice["rows", "range", "groups"]
    start: tuple[Choice["unbounded preceding", "preceding", "current row", "following"], Expr | None]
    end: tuple[Choice["preceding", "current row", "following", "unbounded following"], Expr | None]


class WindowCall(Node, frozen=True):
    function: WindowFunction | Aggregate
    args: tuple[Expr, ...]
    filter: Expr | None
    partition_by: tuple[Expr, ...]
    order_by: tuple[SortKey, ...]
    frame: Frame | None
    type: Type


class ScalarSubquery(Node, frozen=True):
    """At most one row (21000 otherwise), one column; no row is NULL."""

    query: Query
    type: Type


class Exists(Node, frozen=True):
    query: Query
    negated: bool
    type: Type = BOOLEAN


class InSubquery(Node, frozen=True):
    operands: tuple[Expr, ...]
    query: Query
    negated: bool
    type: Type = BOOLEAN


class NextValue(Node, frozen=True):
    """nextval of a sequence; volatile, evaluated by the executor, never by DuckDB."""

    sequence: int
    type: Type


class CurrentValue(Node, frozen=True):
    """currval of a sequence; lastval where there is none. What the session has drawn: volatile, as nextval is."""

    sequence: int | None
    type: Type


class SetValue(Node, frozen=True):
    """setval of a sequence; `called`: whether the next value follows `value`, or is it. Volatile, as nextval is."""

    sequence: int
    value: Expr
    called: Expr
    type: Type


class Keep(Node, frozen=True):
    """A volatile operand, evaluated here, and kept for the `Kept` of that number behind it in the same CASE."""

    number: int
    operand: Expr
    type: Type


class Kept(Node, frozen=True):
    """The value that the `Keep` of that number has kept."""

    number: int
    type: Type


class DefaultValue(Node, frozen=True):
    """DEFAULT in VALUES or SET: the column's default, or NULL, is put in its place by the binder of the statement."""

    type: Type


Expr = (
    Literal | Parameter | ColumnRef | Call | Cast | And | Or | Not | IsNull | IsTruth | IsDistinct | InList | Case
    | Coalesce | AggregateCall | GroupingCall | WindowCall | ScalarSubquery | Exists | InSubquery | NextValue
    | CurrentValue | SetValue | Keep | Kept | DefaultValue
)  # fmt: skip

OfSequence = NextValue | CurrentValue | SetValue

# --- FROM items ------------------------------------------------------------------------------------------------------


class TableScan(Node, frozen=True):
    """A base table; ordinals are positions in `table.columns` (public ones, the hidden row id too).

    `level`: at which it is to be read, by a table hint; None: at the transaction's. `kept`: it is a kept view that DML
    writes to, by its query; `table` is what it stands for then, which is no table any more.
    """

    relation: int
    table: Table
    alias: str
    level: Isolation | None = None
    kept: Derived | None = None


class SystemScan(Node, frozen=True):
    """A system view (`instar.*`, information_schema, pg_catalog): rows are made by catalog/system_tables.py."""

    relation: int
    view: str
    columns: tuple[tuple[str, Type], ...]
    alias: str


class Derived(Node, frozen=True):
    """A subquery, view or CTE body in FROM (CTEs are named by `cte`, and then `query` is the shared object).

    `view` is the id of the view whose query it is.
    """

    relation: int
    query: Query
    alias: str
    lateral: bool = False
    cte: int | None = None
    view: int | None = None


class RecursiveRef(Node, frozen=True):
    """The reference of a recursive CTE to itself."""

    relation: int
    cte: int
    columns: tuple[tuple[str, Type], ...]
    alias: str


class ValuesList(Node, frozen=True, eq=False):
    """VALUES in FROM. `computed`, which is not given but found, are those of the rows that hold more than literals:
    what a walk looks into, since there may be a great many rows. It says nothing that the rows do not, and is neither
    compared nor shown: each VALUES within another would be gone through twice, and so on."""

    relation: int
    rows: tuple[tuple[Expr, ...], ...]
    columns: tuple[tuple[str, Type], ...]
    alias: str
    computed: tuple[tuple[Expr, ...], ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "computed", tuple([row for row in self.rows if not is_literal(row)]))

    def _said(self) -> tuple[object, ...]:
        return self.relation, self.rows, self.columns, self.alias

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValuesList) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def __repr__(self) -> str:
        return f"ValuesList{self._said()!r}"


def is_literal(row: Sequence[Expr]) -> bool:
    """Whether all of these are literals."""
    return {Literal}.issuperset(map(type, row))


class FunctionScan(Node, frozen=True):
    """A set-returning function in FROM (generate_series, unnest ... as functions.py lists them)."""

    relation: int
    function: Function
    args: tuple[Expr, ...]
    columns: tuple[tuple[str, Type], ...]
    alias: str


class Join(Node, frozen=True):
    """USING and NATURAL are bound into `condition` and into the outputs of the query that holds the join."""

    kind: Choice["inner", "left", "right", "full", "cross"]
    left: FromItem
    right: FromItem
    condition: Expr | None


FromItem = TableScan | SystemScan | Derived | RecursiveRef | ValuesList | FunctionScan | Join

# --- queries ---------------------------------------------------------------------------------------------------------


class Output(Node, frozen=True):
    """A column of a result."""

    name: str
    expr: Expr


class CommonTable(Node, frozen=True):
    """A CTE. `query` of a recursive one is a SetOperation whose right side holds RecursiveRef."""

    id: int
    name: str
    query: Query
    recursive: bool
    materialized: bool | None


class RowLock(Node, frozen=True):
    """FOR UPDATE and its like, of one base table in FROM."""

    relation: int
    mode: Mode
    wait: Choice["wait", "skip", "nowait"]


class Select(Node, frozen=True):
    """One SELECT. `group_by` None: no grouping; grouping sets are lists of positions in `group_exprs`.

    ORDER BY expressions are bound in the scope of the input; a name or position of an output is replaced by its
    expression.
    """

    outputs: tuple[Output, ...]
    from_: FromItem | None
    where: Expr | None
    group_exprs: tuple[Expr, ...]
    grouping_sets: tuple[tuple[int, ...], ...] | None
    having: Expr | None
    aggregated: bool
    distinct: bool
    distinct_on: tuple[Expr, ...]
    order_by: tuple[SortKey, ...]
    limit: Expr | None
    offset: Expr | None
    ctes: tuple[CommonTable, ...] = ()
    locking: tuple[RowLock, ...] = ()


class SetOperation(Node, frozen=True):
    """UNION, INTERSECT, EXCEPT; both sides have the same number of columns and, after casts, the same types.

    ORDER BY keys are ColumnRef to relation `relation`, the set operation's own output.
    """

    relation: int
    kind: Choice["union", "intersect", "except"]
    all: bool
    left: Query
    right: Query
    columns: tuple[tuple[str, Type], ...]
    order_by: tuple[SortKey, ...]
    limit: Expr | None
    offset: Expr | None
    ctes: tuple[CommonTable, ...] = ()


class ValuesQuery(Node, frozen=True):
    """VALUES as a query of its own."""

    values: ValuesList
    order_by: tuple[SortKey, ...]
    limit: Expr | None
    offset: Expr | None


Query = Select | SetOperation | ValuesQuery

# --- statements ------------------------------------------------------------------------------------------------------


class QueryStatement(Node, frozen=True):
    query: Query


class ConflictAction(Node, frozen=True):
    """ON CONFLICT. `target`: the primary key (None) or a unique index; `any_target`: DO NOTHING without a target.

    For DO UPDATE: `assignments` are (ordinal in table.columns, expression over the table's relation and `excluded`).
    """

    any_target: bool
    index: Index | None
    update: bool
    excluded: int  # relation number of EXCLUDED
    assignments: tuple[tuple[int, Expr], ...]
    where: Expr | None


class Insert(Node, frozen=True):
    """`source` yields, per row, one value for each of `columns` (ordinals); `defaults` fills every other column.

    Expressions in `defaults` and `source` are already cast to the column's type by assignment rules.
    """

    target: TableScan
    columns: tuple[int, ...]
    source: Query
    defaults: tuple[tuple[int, Expr], ...]
    on_conflict: ConflictAction | None
    returning: tuple[Output, ...]


class Update(Node, frozen=True):
    target: TableScan
    assignments: tuple[tuple[int, Expr], ...]
    from_: FromItem | None
    where: Expr | None
    returning: tuple[Output, ...]
    ctes: tuple[CommonTable, ...] = ()


class Delete(Node, frozen=True):
    target: TableScan
    using: FromItem | None
    where: Expr | None
    returning: tuple[Output, ...]
    ctes: tuple[CommonTable, ...] = ()


Bound = QueryStatement | Insert | Update | Delete


class BoundStatement(Node, frozen=True):
    """A bound statement with its parameters' types, in order; and the tables and views that it depends on. `by_value`:
    the parameters whose types may be others for values of other classes, NULL among them."""

    statement: Bound
    parameters: tuple[Type, ...]
    tables: tuple[Table, ...]
    views: tuple[View, ...]
    by_value: frozenset[int] = frozenset()
