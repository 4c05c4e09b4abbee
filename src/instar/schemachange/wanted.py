"""Wanted actions: what one DDL statement asks for, with names resolved to nothing yet but their text.

The SQL layer makes them of its syntax tree and hands over expressions as `Freezer`s: functions that turn the
expression into a descriptor's text (columns by id) once the planner has made the table that it refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from instar.catalog.descriptors import Action, Migration, Repair, Strategy, Table
from instar.catalog.descriptors import Check as Check_
from instar.types import Type


class Frozen(NamedTuple):
    """An expression as a descriptor keeps it: SQL text by ids, and the ids of the columns that it uses."""

    text: str
    columns: tuple[int, ...]


class Conversion(NamedTuple):
    """What ALTER COLUMN TYPE makes of a row: an expression as above. `volatile`: it is another each time. `now`
    (microseconds since 1970 UTC) and `zone` are what it reads of the time and the session."""

    text: str
    columns: tuple[int, ...]
    volatile: bool
    now: int
    zone: str


Freezer = Callable[[Table], Frozen]
IdentityKind = Literal["always", "by default"]


@dataclass(frozen=True)
class SequenceOptions:
    """Options of a sequence; None: not given. `minimum`, `maximum` "none" is NO MINVALUE, NO MAXVALUE."""

    type: Type | None = None
    start: int | None = None
    increment: int | None = None
    minimum: int | Literal["none"] | None = None
    maximum: int | Literal["none"] | None = None
    cycle: bool | None = None
    cache: int | None = None
    restart: int | Literal["start"] | None = None
    owned_by: tuple[str, str] | Literal["none"] | None = None


@dataclass(frozen=True)
class Default:
    """A column's default. `volatile` ones have another value in every row; `value` is that of the others, evaluated
    once, now: canonical text for rows that are there already (None: NULL)."""

    freeze: Freezer
    volatile: bool
    value: str | None


@dataclass(frozen=True)
class Unique:
    """`yields`, here and below: writes that violate it while it is pending abort the change, and are not refused."""

    columns: tuple[str, ...]
    name: str | None = None
    yields: bool = False


@dataclass(frozen=True)
class Check:
    """`column`: the column it was written at, for the generated name only."""

    freeze: Freezer
    name: str | None = None
    column: str | None = None
    not_valid: bool = False
    yields: bool = False


@dataclass(frozen=True)
class ForeignKey:
    """`parent_columns` empty: the parent's primary key. `parent` is the parent's name."""

    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...] = ()
    name: str | None = None
    on_delete: Action = "no action"
    on_update: Action = "no action"
    not_valid: bool = False
    yields: bool = False


Constraint = Unique | Check | ForeignKey


@dataclass(frozen=True)
class NewColumn:
    """`sequence` is given for identity and serial columns, which own one; `generated` is what a generated column is
    made of."""

    name: str
    type: Type
    nullable: bool = True
    default: Default | None = None
    identity: IdentityKind | None = None
    sequence: SequenceOptions | None = None
    not_null_name: str | None = None
    generated: Freezer | None = None

    @property
    def is_per_row(self) -> bool:
        """Whether each row has a value of its own, so that rows which are there have to be given one."""
        return self.sequence is not None or (self.default is not None and self.default.volatile)


@dataclass(frozen=True)
class CreateTable:
    """`primary_key` None: rows are identified by a hidden row id."""

    name: str
    columns: tuple[NewColumn, ...]
    primary_key: tuple[str, ...] | None = None
    primary_key_name: str | None = None
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class DropTables:
    names: tuple[str, ...]
    cascade: bool = False


@dataclass(frozen=True)
class UndropTables:
    """`tables`: (name, the name that it is to have, if another). `as_of`: a timestamp at which they had those names;
    None: those dropped last. `cascade`: do without what is gone."""

    tables: tuple[tuple[str, str | None], ...]
    as_of: int | None = None
    cascade: bool = False


@dataclass(frozen=True)
class Truncate:
    names: tuple[str, ...]
    restart_identity: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class Place:
    """Of a column among the others: after the one of that name, or (None) the first."""

    after: str | None


@dataclass(frozen=True)
class AddColumn:
    """`place` None: the last."""

    table: str
    column: NewColumn
    constraints: tuple[Constraint, ...] = ()
    place: Place | None = None


@dataclass(frozen=True)
class MoveColumn:
    table: str
    column: str
    place: Place


@dataclass(frozen=True)
class DropColumn:
    table: str
    column: str
    cascade: bool = False


@dataclass(frozen=True)
class UndropColumn:
    """`new`: the name that it is to have, if another. `cascade`: without its NOT NULL, and a default that needs what is
    gone."""

    table: str
    column: str
    new: str | None = None
    cascade: bool = False


@dataclass(frozen=True)
class RenameColumn:
    table: str
    old: str
    new: str


@dataclass(frozen=True)
class RenameObject:
    """A table, view or sequence. `kind` is the word of the statement: ALTER TABLE may rename any of them."""

    kind: Literal["table", "view", "sequence", "materialized view"]
    old: str
    new: str


@dataclass(frozen=True)
class SetDefault:
    """`default` None: DROP DEFAULT."""

    table: str
    column: str
    default: Default | None


@dataclass(frozen=True)
class DropNotNull:
    table: str
    column: str


@dataclass(frozen=True)
class SetNotNull:
    """SET NOT NULL, or (`adds`) ADD [CONSTRAINT `name`] NOT NULL. `anew`: it takes the place of one that the same
    statement drops."""

    table: str
    column: str
    yields: bool = False
    name: str | None = None
    not_valid: bool = False
    adds: bool = False
    anew: bool = False


@dataclass(frozen=True)
class ValidateConstraint:
    table: str
    name: str


@dataclass(frozen=True)
class SetType:
    table: str
    column: str
    type: Type


@dataclass(frozen=True)
class NewType:
    """A column is of a type that its values have to be converted to. `plain`: by an assignment of the value itself.
    `default`: None if it is to have none."""

    column: str
    type: Type
    plain: bool
    conversion: Conversion
    default: Freezer | None


@dataclass(frozen=True)
class ConvertColumns:
    """ALTER COLUMN TYPE of columns of one table. `check`: a check of it as one of the table as it will be."""

    table: str
    columns: tuple[NewType, ...]
    check: Callable[[Check_, Table, Table], Frozen]


@dataclass(frozen=True)
class AddConstraint:
    table: str
    constraint: Constraint


@dataclass(frozen=True)
class DropConstraint:
    table: str
    name: str
    cascade: bool = False


@dataclass(frozen=True)
class RenameConstraint:
    table: str
    old: str
    new: str


@dataclass(frozen=True)
class AddIdentity:
    table: str
    column: str
    identity: IdentityKind
    sequence: SequenceOptions


@dataclass(frozen=True)
class DropIdentity:
    table: str
    column: str


@dataclass(frozen=True)
class DropExpression:
    table: str
    column: str


@dataclass(frozen=True)
class AlterPrimaryKey:
    """These columns are the primary key in the place of the one that there is, if any. `name` None: the name that there
    is, or a generated one. `adds`: there must be none yet but the hidden row id."""

    table: str
    columns: tuple[str, ...]
    name: str | None = None
    adds: bool = False


@dataclass(frozen=True)
class AddLock:
    table: str
    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class AlterLock:
    """The lock covers these columns, and no others."""

    table: str
    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class DropLock:
    table: str
    name: str


@dataclass(frozen=True)
class CreateIndex:
    """`columns`: (name, descending)."""

    table: str
    columns: tuple[tuple[str, bool], ...]
    name: str | None = None
    unique: bool = False
    yields: bool = False


@dataclass(frozen=True)
class DropIndexes:
    names: tuple[str, ...]
    cascade: bool = False


@dataclass(frozen=True)
class RenameIndex:
    old: str
    new: str


@dataclass(frozen=True)
class CreateSequence:
    name: str
    options: SequenceOptions


@dataclass(frozen=True)
class AlterSequence:
    name: str
    options: SequenceOptions


@dataclass(frozen=True)
class DropSequences:
    names: tuple[str, ...]
    cascade: bool = False


@dataclass(frozen=True)
class CreateView:
    """`query` is SQL text with tables and columns by id."""

    name: str
    query: str
    columns: tuple[tuple[str, Type], ...]
    depends_on: tuple[tuple[int, tuple[int, ...]], ...]
    replace: bool = False


@dataclass(frozen=True)
class DropViews:
    """`materialized`: DROP MATERIALIZED VIEW, which means no other ones."""

    names: tuple[str, ...]
    cascade: bool = False
    materialized: bool = False


@dataclass(frozen=True)
class GroupedOutput:
    """A column of a grouping: a value that it groups by, the number of its rows, or what it makes of values; `place`
    in the listing of either."""

    what: Literal["group", "rows", "count", "sum", "avg"]
    place: int = 0


@dataclass(frozen=True)
class Grouped:
    """A grouping of one table, by ids of columns. `values`: those that it counts, and whether it sums them up, too;
    `condition` and the columns that it `reads` as of a check."""

    groups: tuple[int, ...]
    values: tuple[tuple[int, bool], ...]
    outputs: tuple[GroupedOutput, ...]
    condition: str | None = None
    reads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Joined:
    """A join of two tables. `on`: pairs of columns' names, the first table's and the second's; `outputs`: for each
    column of the view the first that is not NULL of these: (0 or 1 for the table, the column's id)."""

    kind: Literal["inner", "left", "right", "full"]
    on: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class CreateMaterializedView:
    """CREATE MATERIALIZED VIEW ... WITH (refresh = 'log'). `definition` and `depends_on` as of a view; `tables`: the
    names of those that it reads."""

    name: str
    tables: tuple[str, ...]
    definition: str
    columns: tuple[tuple[str, Type], ...]
    depends_on: tuple[tuple[int, tuple[int, ...]], ...]
    made_by: Grouped | Joined


@dataclass(frozen=True)
class PopulateAnew:
    """Populate the materialized view of that name anew: REFRESH MATERIALIZED VIEW of one that cannot follow the log
    any more."""

    name: str


@dataclass(frozen=True)
class SetMigration:
    table: str
    policy: Migration


@dataclass(frozen=True)
class SetCompaction:
    table: str
    share: float


@dataclass(frozen=True)
class CompactTable:
    table: str


@dataclass(frozen=True)
class TransformationOptions:
    """As of `MadeBySplit`. `keep_views`: names of the tables stay, as views that can be written to."""

    repair: Repair = "fail"
    pause_rows: int = 100
    strategy: Strategy = "abort"
    grace: int = 10_000_000
    keep_views: bool = False
    priority: int = 0


@dataclass(frozen=True)
class NewTable:
    """A target of a split: its name, and the names of the source's columns that it has."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class SplitTable:
    """ALTER TABLE ... SPLIT [IN PLACE] INTO r (...), s (...) ON (...)."""

    table: str
    r: NewTable
    s: NewTable
    on: tuple[str, ...]
    options: TransformationOptions = TransformationOptions()
    in_place: bool = False


@dataclass(frozen=True)
class JoinedColumn:
    """A column of the target of a join: of R, or of S, or of both where it is a pair of join columns."""

    name: str
    r: str | None = None
    s: str | None = None


@dataclass(frozen=True)
class JoinTables:
    """ALTER TABLE r JOIN s ON ... INTO t (...). `on`: pairs of columns, R's and S's, that are equal."""

    r: str
    s: str
    on: tuple[tuple[str, str], ...]
    into: str
    columns: tuple[JoinedColumn, ...]
    options: TransformationOptions = TransformationOptions()


Wanted = (
    CreateTable | DropTables | Truncate | AddColumn | DropColumn | MoveColumn | RenameColumn | RenameObject | SetDefault
    | DropNotNull | SetNotNull | ValidateConstraint | SetType | AddConstraint | DropConstraint | RenameConstraint
    | AddIdentity | DropIdentity | CreateIndex | DropIndexes | RenameIndex | CreateSequence | AlterSequence
    | DropSequences | CreateView | DropViews | AddLock | AlterLock | DropLock | AlterPrimaryKey
    | CompactTable | UndropTables | UndropColumn | SetMigration | SetCompaction | ConvertColumns | SplitTable
    | JoinTables | CreateMaterializedView | PopulateAnew | DropExpression
)  # fmt: skip
