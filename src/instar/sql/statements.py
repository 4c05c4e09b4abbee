"""The statements that Instar executes itself: DDL, transaction control, settings, jobs and checks, as frozen data.

`parser.parse` yields these. Queries and DML stay syntax trees (sqlglot's nodes, see grammar/nodes.py), wrapped in
`Query` and `Dml` for the binder. So do the expressions inside DDL (defaults, checks): the binder's `freeze_check` and
`freeze_default` turn them into a descriptor's text. Names are folded already: `"Ab"` is Ab, `Ab` is ab. Positions are
1-based characters in the text given to the parser.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
from sqlglot import exp

from instar import errors
from instar.catalog.descriptors import Action, Migration
from instar.sql.generated_statement import DropExpression
from instar.sql.materialized_statements import (
    CreateMaterializedView,
    DropMaterializedView,
    RefreshMaterializedView,
    RenameMaterializedView,
)
from instar.sql.not_null_statement import NotNull
from instar.sql.transformation_statements import JoinTables, SplitTable
from instar.types import Type

# --- names -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    """A possibly qualified name of a table, view, sequence or index; `position` is for errors and is not compared."""

    name: str
    schema: str | None = None
    position: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


# --- tables ----------------------------------------------------------------------------------------------------------


class SequenceOptions(msgspec.Struct, frozen=True):
    """Options of a sequence; None: not given. `minimum`, `maximum` "none" is NO MINVALUE, NO MAXVALUE.

    `restart` (ALTER only): a value, or "start" for RESTART without one. `owned_by`: (table, column) or "none".
    """

    type: Type | None = None
    start: int | None = None
    increment: int | None = None
    minimum: int | Literal["none"] | None = None
    maximum: int | Literal["none"] | None = None
    cycle: bool | None = None
    cache: int | None = None
    restart: int | Literal["start"] | None = None
    owned_by: tuple[Name, str] | Literal["none"] | None = None


class Identity(msgspec.Struct, frozen=True):
    """GENERATED ALWAYS | BY DEFAULT AS IDENTITY [(sequence options)]."""

    always: bool
    options: SequenceOptions = SequenceOptions()


class PrimaryKey(msgspec.Struct, frozen=True):
    """`columns` of a column constraint is that column; `name` None: PostgreSQL's, `<table>_pkey`."""

    columns: tuple[str, ...]
    name: str | None = None


class Unique(msgspec.Struct, frozen=True):
    """`name` None: `<table>_<columns>_key`. `yields`, here and below: WITH (violation = 'abort change')."""

    columns: tuple[str, ...]
    name: str | None = None
    yields: bool = False


class Check(msgspec.Struct, frozen=True):
    """`column` is the column that it was written at (it decides the generated name only), None for the table's."""

    expression: exp.Expr
    name: str | None = None
    column: str | None = None
    not_valid: bool = False
    yields: bool = False


class ForeignKey(msgspec.Struct, frozen=True):
    """`parent_columns` empty: the parent's primary key."""

    columns: tuple[str, ...]
    parent: Name
    parent_columns: tuple[str, ...] = ()
    name: str | None = None
    on_delete: Action = "no action"
    on_update: Action = "no action"
    not_valid: bool = False
    yields: bool = False


Constraint = PrimaryKey | Unique | Check | ForeignKey | NotNull


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A column as CREATE TABLE and ADD COLUMN write it; its PRIMARY KEY, UNIQUE, CHECK, REFERENCES are `constraints`.

    `serial`: the pseudo-types smallserial, serial, bigserial; `type` is then the integer type and the column NOT NULL.
    """

    name: str
    type: Type
    nullable: bool = True
    default: exp.Expr | None = None
    identity: Identity | None = None
    serial: bool = False
    constraints: tuple[Constraint, ...] = ()
    position: int | None = field(default=None, compare=False)
    not_null_name: str | None = None
    generated: exp.Expr | None = None  # GENERATED ALWAYS AS (...) STORED


class CreateTable(msgspec.Struct, frozen=True):
    """CREATE TABLE; `constraints` are the table's and the columns' together, in the order written.

    CREATE TABLE AS: `as_query` is the query, `columns` is empty, `column_names` the optional list of names, and
    `with_data` False is WITH NO DATA.
    """

    name: Name
    columns: tuple[ColumnDef, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    if_not_exists: bool = False
    as_query: Query | None = None
    column_names: tuple[str, ...] = ()
    with_data: bool = True


class DropTable(msgspec.Struct, frozen=True):
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


class Truncate(msgspec.Struct, frozen=True):
    names: tuple[Name, ...]
    restart_identity: bool = False
    cascade: bool = False


# --- ALTER TABLE -----------------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """FIRST (None), or AFTER a column."""

    after: str | None


class AddColumn(msgspec.Struct, frozen=True):
    column: ColumnDef
    if_not_exists: bool = False
    place: Place | None = None


class MoveColumn(msgspec.Struct, frozen=True):
    column: str
    place: Place


class DropColumn(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False
    cascade: bool = False


class UndropColumn(msgspec.Struct, frozen=True):
    name: str
    new: str | None = None
    cascade: bool = False


class SetMigration(msgspec.Struct, frozen=True):
    policy: Migration


class SetCompaction(msgspec.Struct, frozen=True):
    share: float


class RenameColumn(msgspec.Struct, frozen=True):
    old: str
    new: str


class RenameTable(msgspec.Struct, frozen=True):
    new: str


class RenameConstraint(msgspec.Struct, frozen=True):
    old: str
    new: str


class SetDefault(msgspec.Struct, frozen=True):
    column: str
    default: exp.Expr


class DropDefault(msgspec.Struct, frozen=True):
    column: str


class ValidateConstraint(msgspec.Struct, frozen=True):
    name: str


class SetNotNull(msgspec.Struct, frozen=True):
    column: str
    yields: bool = False


class DropNotNull(msgspec.Struct, frozen=True):
    column: str


class SetType(msgspec.Struct, frozen=True):
    column: str
    type: Type
    using: exp.Expr | None = None


class AddIdentity(msgspec.Struct, frozen=True):
    column: str
    identity: Identity


class DropIdentity(msgspec.Struct, frozen=True):
    column: str
    if_exists: bool = False


class AddConstraint(msgspec.Struct, frozen=True):
    constraint: Constraint


class DropConstraint(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False
    cascade: bool = False


class AlterPrimaryKey(msgspec.Struct, frozen=True):
    columns: tuple[str, ...]


class AddLock(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[str, ...]


class AlterLock(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[str, ...]


class DropLock(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False


AlterAction = (
    AddColumn | DropColumn | RenameColumn | RenameTable | RenameConstraint | SetDefault | DropDefault | SetNotNull
    | ValidateConstraint | DropNotNull | SetType | AddIdentity | DropIdentity | AddConstraint | DropConstraint
    | AddLock | AlterLock | DropLock | AlterPrimaryKey | UndropColumn | MoveColumn | DropExpression | SetMigration
    | SetCompaction
)  # fmt: skip


class AlterTable(msgspec.Struct, frozen=True):
    """The renames stand alone, as in PostgreSQL; every other action may be one of several."""

    name: Name
    actions: tuple[AlterAction, ...]
    if_exists: bool = False


# --- indexes, sequences, views ---------------------------------------------------------------------------------------


class IndexColumn(msgspec.Struct, frozen=True):
    name: str
    descending: bool = False


class CreateIndex(msgspec.Struct, frozen=True):
    """`name` None: PostgreSQL's, `<table>_<columns>_idx`. CONCURRENTLY is accepted: every index is built online."""

    name: str | None
    table: Name
    columns: tuple[IndexColumn, ...]
    unique: bool = False
    if_not_exists: bool = False
    yields: bool = False


class RenameIndex(msgspec.Struct, frozen=True):
    name: Name
    new: str
    if_exists: bool = False


class DropIndex(msgspec.Struct, frozen=True):
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


class CreateSequence(msgspec.Struct, frozen=True):
    name: Name
    options: SequenceOptions = SequenceOptions()
    if_not_exists: bool = False


class AlterSequence(msgspec.Struct, frozen=True):
    """Either options or a new name."""

    name: Name
    options: SequenceOptions = SequenceOptions()
    rename: str | None = None
    if_exists: bool = False


class DropSequence(msgspec.Struct, frozen=True):
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


class CreateView(msgspec.Struct, frozen=True):
    """`column_names` empty: the query's own."""

    name: Name
    query: Query
    column_names: tuple[str, ...] = ()
    or_replace: bool = False


class RenameView(msgspec.Struct, frozen=True):
    name: Name
    new: str
    if_exists: bool = False


class DropView(msgspec.Struct, frozen=True):
    names: tuple[Name, ...]
    if_exists: bool = False
    cascade: bool = False


# --- transactions and settings ---------------------------------------------------------------------------------------

Isolation = Literal["read uncommitted", "read committed", "read committed lock", "repeatable read", "serializable"]


class TransactionModes(msgspec.Struct, frozen=True):
    """None: not given. DEFERRABLE is accepted and means nothing outside SERIALIZABLE READ ONLY, as in PostgreSQL."""

    isolation: Isolation | None = None
    read_only: bool | None = None
    deferrable: bool | None = None


class Begin(msgspec.Struct, frozen=True):
    modes: TransactionModes = TransactionModes()


class Commit(msgspec.Struct, frozen=True):
    """COMMIT and END; `chain` is AND CHAIN."""

    chain: bool = False


class Rollback(msgspec.Struct, frozen=True):
    """ROLLBACK and ABORT."""

    chain: bool = False


class Savepoint(msgspec.Struct, frozen=True):
    name: str


class ReleaseSavepoint(msgspec.Struct, frozen=True):
    name: str


class RollbackTo(msgspec.Struct, frozen=True):
    name: str


class SetTransaction(msgspec.Struct, frozen=True):
    """SET TRANSACTION, or with `session` SET SESSION CHARACTERISTICS AS TRANSACTION."""

    modes: TransactionModes
    session: bool = False


class SetVariable(msgspec.Struct, frozen=True):
    """SET [SESSION | LOCAL] name = values; `values` None is DEFAULT. Values are text as written, unquoted."""

    name: str
    values: tuple[str, ...] | None
    local: bool = False


class ShowVariable(msgspec.Struct, frozen=True):
    """SHOW name; name "all" shows every setting."""

    name: str


class ResetVariable(msgspec.Struct, frozen=True):
    """RESET name; name "all" resets every setting."""

    name: str


# --- explanation, jobs, maintenance ----------------------------------------------------------------------------------


class Explain(msgspec.Struct, frozen=True):
    """EXPLAIN [ANALYZE] of a query or DML; with `ddl` (EXPLAIN (DDL)) the stages of a schema change. What is explained
    begins at `position`."""

    statement: Statement
    position: int
    ddl: bool = False
    analyze: bool = False
    verbose: bool = False


class ShowJobs(msgspec.Struct, frozen=True):
    pass


class JobControl(msgspec.Struct, frozen=True):
    action: Literal["pause", "resume", "cancel"]
    job: int


class AlterJob(msgspec.Struct, frozen=True):
    job: int
    options: tuple[tuple[str, str | None], ...]  # None: DEFAULT


class CheckTable(msgspec.Struct, frozen=True):
    name: Name


class CheckDatabase(msgspec.Struct, frozen=True):
    pass


class CompactTable(msgspec.Struct, frozen=True):
    name: Name


class UndropTable(msgspec.Struct, frozen=True):
    """`tables`: (name, the name that it is to have, if another); `as_of`: when they had those names."""

    tables: tuple[tuple[Name, str | None], ...]
    as_of: AsOf | None = None
    cascade: bool = False


# --- what the binder takes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AsOf:
    """AS OF SYSTEM TIME moment [WITH CURRENT SCHEMA]; `position` is where it stands."""

    moment: exp.Expr
    current_schema: bool
    position: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Query:
    """SELECT, VALUES, TABLE or a set operation of them. `text` is all that was parsed, to which positions refer.

    `parameters` is the number of `?`, or the highest n of `$n`. `as_of`: when it reads, if not now.
    """

    expression: exp.Expr
    text: str = field(compare=False)
    parameters: int = 0
    as_of: AsOf | None = None


@dataclass(frozen=True, slots=True)
class Dml:
    """INSERT, UPDATE or DELETE; `text` and `parameters` as in Query."""

    expression: exp.Insert | exp.Update | exp.Delete
    text: str = field(compare=False)
    parameters: int = 0
    overriding: Literal["system", "user"] | None = None  # INSERT ... OVERRIDING SYSTEM | USER VALUE


TableStatement = CreateTable | DropTable | AlterTable | Truncate | CreateIndex | DropIndex | RenameIndex
Ddl = (
    TableStatement | CreateSequence | AlterSequence | DropSequence | CreateView | RenameView | DropView | CompactTable
    | UndropTable | SplitTable | JoinTables | CreateMaterializedView | RenameMaterializedView | DropMaterializedView
)  # fmt: skip
TransactionStatement = Begin | Commit | Rollback | Savepoint | ReleaseSavepoint | RollbackTo | SetTransaction
Utility = (
    SetVariable | ShowVariable | ResetVariable | Explain | ShowJobs | JobControl | AlterJob | CheckTable | CheckDatabase
    | RefreshMaterializedView
)  # fmt: skip
Statement = Query | Dml | Ddl | TransactionStatement | Utility


def require_parameters(takes: int, given: int) -> None:
    """08P01 unless a statement is given as many parameters as it takes."""
    if takes != given:
        raise errors.error(errors.PROTOCOL_VIOLATION, f"the statement takes {takes} parameters, but {given} were given")
