"""Wanted actions: what one DDL statement asks for, with names resolved to nothing yet but their text.

The SQL layer makes them of its syntax tree and hands over expressions as `Freezer`s: functions that turn the
expression into a descriptor's text (columns by id) once the planner has made the table that it refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

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


class SequenceOptions(msgspec.Struct, frozen=True):
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


class Default(msgspec.Struct, frozen=True):
    """A column's default. `volatile` ones have another value in every row; `value` is that of the others, evaluated
    once, now: canonical text for rows that are there already (None: NULL)."""

    freeze: Freezer
    volatile: bool
    value: str | None


class Unique(msgspec.Struct, frozen=True):
    """`yields`, here and below: writes that violate it while it is pending abort the change, and are not refused."""

    columns: tuple[str, ...]
    name: str | None = None
    yields: bool = False


class Check(msgspec.Struct, frozen=True):
    """`column`: the column it was written at, for the generated name only."""

    freeze: Freezer
    name: str | None = None
    column: str | None = None
    not_valid: bool = False
    yields: bool = False


class ForeignKey(msgspec.Struct, frozen=True):
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


class NewColumn(msgspec.Struct, frozen=True):
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


class CreateTable(msgspec.Struct, frozen=True):
    """`primary_key` None: rows are identified by a hidden row id."""

    name: str
    columns: tuple[NewColumn, ...]
    primary_key: tuple[str, ...] | None = None
    primary_key_name: str | None = None
    constraints: tuple[Constraint, ...] = ()


class DropTables(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    cascade: bool = False


class UndropTables(msgspec.Struct, frozen=True):
    """`tables`: (name, the name that it is to have, if another). `as_of`: a timestamp at which they had those names;
    None: those dropped last. `cascade`: do without what is gone."""

    tables: tuple[tuple[str, str | None], ...]
    as_of: int | None = None
    cascade: bool = False


class Truncate(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    restart_identity: bool = False
    cascade: bool = False


class Place(msgspec.Struct, frozen=True):
    """Of a column among the others: after the one of that name, or (None) the first."""

    after: str | None


class AddColumn(msgspec.Struct, frozen=True):
    """`place` None: the last."""

    table: str
    column: NewColumn
    constraints: tuple[Constraint, ...] = ()
    place: Place | None = None


class MoveColumn(msgspec.Struct, frozen=True):
    table: str
    column: str
    place: Place


class DropColumn(msgspec.Struct, frozen=True):
    table: str
    column: str
    cascade: bool = False


class UndropColumn(msgspec.Struct, frozen=True):
    """`new`: the name that it is to have, if another. `cascade`: without its NOT NULL, and a default that needs what is
    gone."""

    table: str
    column: str
    new: str | None = None
    cascade: bool = False


class RenameColumn(msgspec.Struct, frozen=True):
    table: str
    old: str
    new: str


class RenameObject(msgspec.Struct, frozen=True):
    """A table, view or sequence. `kind` is the word of the statement: ALTER TABLE may rename any of them."""

    kind: Literal["table", "view", "sequence", "materialized view"]
    old: str
    new: str


class SetDefault(msgspec.Struct, frozen=True):
    """`default` None: DROP DEFAULT."""

    table: str
    column: str
    default: Default | None


class DropNotNull(msgspec.Struct, frozen=True):
    table: str
    column: str


class SetNotNull(msgspec.Struct, frozen=True):
    """SET NOT NULL, or (`adds`) ADD [CONSTRAINT `name`] NOT NULL. `anew`: it takes the place of one that the same
    statement drops."""

    table: str
    column: str
    yields: bool = False
    name: str | None = None
    not_valid: bool = False
    adds: bool = False
    anew: bool = False


class ValidateConstraint(msgspec.Struct, frozen=True):
    table: str
    name: str


class SetType(msgspec.Struct, frozen=True):
    table: str
    column: str
    type: Type


class NewType(msgspec.Struct, frozen=True):
    """A column is of a type that its values have to be converted to. `plain`: by an assignment of the value itself.
    `default`: None if it is to have none."""

    column: str
    type: Type
    plain: bool
    conversion: Conversion
    default: Freezer | None


class ConvertColumns(msgspec.Struct, frozen=True):
    """ALTER COLUMN TYPE of columns of one table. `check`: a check of it as one of the table as it will be."""

    table: str
    columns: tuple[NewType, ...]
    check: Callable[[Check_, Table, Table], Frozen]


class AddConstraint(msgspec.Struct, frozen=True):
    table: str
    constraint: Constraint


class DropConstraint(msgspec.Struct, frozen=True):
    table: str
    name: str
    cascade: bool = False


class RenameConstraint(msgspec.Struct, frozen=True):
    table: str
    old: str
    new: str


class AddIdentity(msgspec.Struct, frozen=True):
    table: str
    column: str
    identity: IdentityKind
    sequence: SequenceOptions


class DropIdentity(msgspec.Struct, frozen=True):
    table: str
    column: str


class DropExpression(msgspec.Struct, frozen=True):
    table: str
    column: str


class AlterPrimaryKey(msgspec.Struct, frozen=True):
    """These columns are the primary key in the place of the one that there is, if any. `name` None: the name that there
    is, or a generated one. `adds`: there must be none yet but the hidden row id."""

    table: str
    columns: tuple[str, ...]
    name: str | None = None
    adds: bool = False


class AddLock(msgspec.Struct, frozen=True):
    table: str
    name: str
    columns: tuple[str, ...]


class AlterLock(msgspec.Struct, frozen=True):
    """The lock covers these columns, and no others."""

    table: str
    name: str
    columns: tuple[str, ...]


class DropLock(msgspec.Struct, frozen=True):
    table: str
    name: str


class CreateIndex(msgspec.Struct, frozen=True):
    """`columns`: (name, descending)."""

    table: str
    columns: tuple[tuple[str, bool], ...]
    name: str | None = None
    unique: bool = False
    yields: bool = False


class DropIndexes(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    cascade: bool = False


class RenameIndex(msgspec.Struct, frozen=True):
    old: str
    new: str


class CreateSequence(msgspec.Struct, frozen=True):
    name: str
    options: SequenceOptions


class AlterSequence(msgspec.Struct, frozen=True):
    name: str
    options: SequenceOptions


class DropSequences(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    cascade: bool = False


class CreateView(msgspec.Struct, frozen=True):
    """`query` is SQL text with tables and columns by id."""

    name: str
    query: str
    columns: tuple[tuple[str, Type], ...]
    depends_on: tuple[tuple[int, tuple[int, ...]], ...]
    replace: bool = False


class DropViews(msgspec.Struct, frozen=True):
    """`materialized`: DROP MATERIALIZED VIEW, which means no other ones."""

    names: tuple[str, ...]
    cascade: bool = False
    materialized: bool = False


class GroupedOutput(msgspec.Struct, frozen=True):
    """A column of a grouping: a value that it groups by, the number of its rows, or what it makes of values; `place`
    in the listing of either."""

    what: Literal["group", "rows", "count", "sum", "avg"]
    place: int = 0


class Grouped(msgspec.Struct, frozen=True):
    """A grouping of one table, by ids of columns. `values`: those that it counts, and whether it sums them up, too;
    `condition` and the columns that it `reads` as of a check."""

    groups: tuple[int, ...]
    values: tuple[tuple[int, bool], ...]
    outputs: tuple[GroupedOutput, ...]
    condition: str | None = None
    reads: tuple[int, ...] = ()


class Joined(msgspec.Struct, frozen=True):
    """A join of two tables. `on`: pairs of columns' names, the first table's and the second's; `outputs`: for each
    column of the view the first that is not NULL of these: (0 or 1 for the table, the column's id)."""

    kind: Literal["inner", "left", "right", "full"]
    on: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[tuple[int, int], ...], ...]


class CreateMaterializedView(msgspec.Struct, frozen=True):
    """CREATE MATERIALIZED VIEW ... WITH (refresh = 'log'). `definition` and `depends_on` as of a view; `tables`: the
    names of those that it reads."""

    name: str
    tables: tuple[str, ...]
    definition: str
    columns: tuple[tuple[str, Type], ...]
    depends_on: tuple[tuple[int, tuple[int, ...]], ...]
    made_by: Grouped | Joined


class PopulateAnew(msgspec.Struct, frozen=True):
    """Populate the materialized view of that name anew: REFRESH MATERIALIZED VIEW of one that cannot follow the log
    any more."""

    name: str


class SetMigration(msgspec.Struct, frozen=True):
    table: str
    policy: Migration


class SetCompaction(msgspec.Struct, frozen=True):
    table: str
    share: float


class CompactTable(msgspec.Struct, frozen=True):
    table: str


class TransformationOptions(msgspec.Struct, frozen=True):
    """As of `MadeBySplit`. `keep_views`: names of the tables stay, as views that can be written to."""

    repair: Repair = "fail"
    pause_rows: int = 100
    strategy: Strategy = "abort"
    grace: int = 10_000_000
    keep_views: bool = False
    priority: int = 0


class NewTable(msgspec.Struct, frozen=True):
    """A target of a split: its name, and the names of the source's columns that it has."""

    name: str
    columns: tuple[str, ...]


class SplitTable(msgspec.Struct, frozen=True):
    """ALTER TABLE ... SPLIT [IN PLACE] INTO r (...), s (...) ON (...)."""

    table: str
    r: NewTable
    s: NewTable
    on: tuple[str, ...]
    options: TransformationOptions = TransformationOptions()
    in_place: bool = False


class JoinedColumn(msgspec.Struct, frozen=True):
    """A column of the target of a join: of R, or of S, or of both where it is a pair of join columns."""

    name: str
    r: str | None = None
    s: str | None = None


class JoinTables(msgspec.Struct, frozen=True):
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
