"""Descriptors: what the catalog says of one object at one version. Immutable; ids are never reused.

Expressions inside descriptors (defaults, checks, views) are SQL text in which tables and columns are named by id:
the identifier `"#12"` is the table, or within a table the column, of id 12. So renames touch nothing.

Nothing here refers back to what it is part of. The parts of which a table has many are kept from the garbage collector
(`gc=False`), which would look at them again and again as versions come and go, and free none.
"""

from __future__ import annotations

import enum
import re
from typing import Literal

import msgspec

from instar.types import Type


class State(enum.Enum):
    """The states of an element (F1 §3.1); what is absent is not listed.

    A column that is write-only is part of new rows, and no statement can name it. A constraint that is write-only holds
    for new writes, and nobody relies on it yet; one that is delete-only is on record and holds for nobody.
    """

    DELETE_ONLY = "delete-only"
    WRITE_ONLY = "write-only"
    PUBLIC = "public"


class Derivation(msgspec.Struct, frozen=True, kw_only=True):
    """What a column that is computed of others has in rows that were written without it: one that takes the place of
    another (ALTER COLUMN TYPE), or a generated one.

    `expression` is SQL text over `sources`, the columns that it reads as they were then; its value is assigned to
    `type`. What it reads of time and session is pinned: `now`, microseconds since 1970 UTC, and the time zone.
    """

    expression: str
    type: Type
    sources: tuple[Column, ...]
    now: int
    zone: str


class Column(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A column. `missing` is the canonical text (values.py) of what rows in layouts without the column have in it;
    `per_row`: they have nothing, and a job gives each a value of the default before anybody sees the column.

    `replaces` is the id of the column whose place it takes, or took, with another type; `derived` what rows in layouts
    without it have then: whoever reads them computes it, or, with `per_row`, a job has stored it. `generated`: rows
    have never anything else in it (GENERATED ALWAYS AS ... STORED).
    """

    id: int
    name: str
    type: Type
    nullable: bool = True
    default: str | None = None  # SQL text, evaluated per statement or row
    missing: str | None = None
    per_row: bool = False
    identity: Literal["always", "by default"] | None = None
    sequence: int | None = None  # id of the sequence that identity or serial owns
    state: State = State.PUBLIC
    hidden: bool = False  # the row id of a table without a primary key
    not_null: State | None = None  # of a NOT NULL that came to a table with rows; `nullable` until it is public
    not_null_yields: bool = False  # as `yields` of a check
    not_null_not_valid: bool = False  # as `not_valid` of a check
    not_null_name: str | None = None  # of the NOT NULL; None: the one that naming.py generates
    derived: Derivation | None = None
    replaces: int | None = None
    generated: bool = False

    @property
    def generated_always(self) -> bool:
        return self.identity == "always"

    @property
    def visible(self) -> bool:
        """Whether statements can name the column."""
        return self.state is State.PUBLIC and not self.hidden

    @property
    def is_being_given(self) -> bool:
        """Whether a job is at giving rows values of the column: who writes a row that has none gives it one."""
        return self.per_row and self.derived is None and self.state is not State.PUBLIC

    @property
    def is_derived(self) -> bool:
        """Whether whoever writes a row makes the column's value of the others: a generated one's, and that of one which
        is to take another one's place."""
        return self.derived is not None and (self.generated or self.state is not State.PUBLIC)

    @property
    def is_unproven(self) -> bool:
        """Whether there may be rows that the column's value cannot be computed of."""
        return self.derived is not None and self.state is not State.PUBLIC

    def takes_from(self, sequence: int) -> bool:
        """Whether new rows may take values of the sequence of this id."""
        return self.sequence == sequence or bool(self.default and re.search(rf"#{sequence}\b", self.default))

    @property
    def refuses_null(self) -> bool:
        """Whether a write of NULL is refused; rows that are there may have it still (see `nullable`)."""
        return not self.nullable or (self.not_null is not None and not self.not_null_yields)

    @property
    def tells_null(self) -> bool:
        """Whether a write of NULL is told to the change that brings a NOT NULL."""
        return self.not_null is not None and self.not_null_yields


class IndexColumn(msgspec.Struct, frozen=True, gc=False, array_like=True):
    column: int
    descending: bool = False


class Index(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A secondary index. Its entries' keys are the index columns, then the primary key."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    unique: bool = False
    constraint: bool = False  # made by UNIQUE in a table definition: DROP INDEX refuses it
    rowset: int
    state: State = State.PUBLIC
    yields: bool = False  # as of a check: to two rows of one key


class Check(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A CHECK. `yields`, until it is public: a write that violates it is committed, and the change that brings it
    aborted for that."""

    id: int
    name: str
    expression: str  # SQL text, columns by id
    columns: tuple[int, ...]
    state: State = State.PUBLIC
    not_valid: bool = False  # NOT VALID: write-only until somebody asks for its validation
    yields: bool = False

    @property
    def enforced(self) -> bool:
        """Whether writes are held to it."""
        return self.state is not State.DELETE_ONLY and not self.yields


# When rows in older layouts are put into the newest: as they are written, or when a query reads them, too.
Migration = Literal["write", "read"]
# The share of rows in older layouts from which on the worker compacts a table at rest.
COMPACTION_SHARE = 0.1
Action = Literal["no action", "restrict", "cascade", "set null", "set default"]


class ForeignKey(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A foreign key, kept with the child; the parent lists the child in `referenced_by`.

    `parent_index` is the unique index of the parent that is probed (None: its primary key); `child_index` the index
    on the child's columns that cascades use (rule 27), owned by the constraint if `owns_index`.
    """

    id: int
    name: str
    columns: tuple[int, ...]
    parent: int
    parent_columns: tuple[int, ...]
    parent_index: int | None = None
    child_index: int | None = None
    owns_index: bool = False
    on_delete: Action = "no action"
    on_update: Action = "no action"
    state: State = State.PUBLIC
    not_valid: bool = False  # as of a check
    yields: bool = False  # as of a check

    @property
    def enforced(self) -> bool:
        """Whether writes are held to it, and followed by its actions."""
        return self.state is not State.DELETE_ONLY and not self.yields

    @property
    def judged(self) -> bool:
        """Whether a commit finds out what violates it."""
        return self.state is not State.DELETE_ONLY


class Layout(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The physical row layout of one version: columns in storage order. Found by id, outside any version (rule 26).

    `locks` are the ids of the locks whose timestamps each row stores, in their order; none where the table has one lock
    only, whose timestamp is the row's own. `left` are the columns that the layout before had and this one has not, as
    they were last. So what a table has lost since some layout is told by the records of those since (layouts.py), and a
    descriptor does not grow with it.

    `has_wide`: beside this layout there is a wide one, under the id before it, which has all columns too that the table
    has lost. A job that gives rows values puts those into it that older snapshots may yet be asked for such a column
    of.
    """

    id: int
    columns: tuple[tuple[int, Type], ...]  # (column id, type as stored)
    locks: tuple[int, ...] = ()
    left: tuple[Column, ...] = ()
    has_wide: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """Its own, and that of the one beside it."""
        return (self.id - 1, self.id) if self.has_wide else (self.id,)


DEFAULT_LOCK = 0  # the id of the lock that covers what no other one does; it has no descriptor
DEFAULT_LOCK_NAME = "default"


class Lock(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An optimistic lock (F1 §2.5): concurrent changes of one row conflict if they change columns that it covers."""

    id: int
    name: str
    columns: tuple[int, ...]
    state: State = State.PUBLIC


class CoverageChange(msgspec.Struct, frozen=True, kw_only=True):
    """Columns on their way to another lock (F1 §3.4): until the change is complete, the one that covers them and the
    one to come are both read, validated and updated. `covers` are (column, lock to come); `drops` are locks that go
    then."""

    id: int
    covers: tuple[tuple[int, int], ...]
    drops: tuple[int, ...] = ()


class NextKey(msgspec.Struct, frozen=True, kw_only=True):
    """A primary key on its way in: `rowset` has each row once more, whole, under the new key, and for each index there
    is a rowset whose entries end in that key. They take the place of the table's own at the end."""

    id: int
    name: str
    columns: tuple[int, ...]
    rowset: int
    indexes: tuple[tuple[int, int], ...]  # (index id, rowset)
    state: State

    @property
    def rowsets(self) -> tuple[int, ...]:
        """All rowsets that are filled for it."""
        return (self.rowset, *(rowset for _, rowset in self.indexes))


# What S has of rows with one split value that contradict each other.
Repair = Literal["fail", "most frequent", "newest"]
# What becomes of transactions that are under way at the switch of a join or split: they are refused, or go on and are
# translated, or are let end, while others wait.
Strategy = Literal["abort", "commit", "block"]


class MadeBySplit(msgspec.Struct, frozen=True, kw_only=True, tag_field="by", tag="split"):
    """A table on its way to be split in two (transformations/split.py). Columns of R and S bear the ids that they have
    in the source; R has its primary key, S is known by the split columns `on`, and both have these. S has two hidden
    columns: `counter`, how many rows of the source contribute to a row of S, and `consistent`, whether they are known
    to agree (flag C). The timestamp of a record of either is that of its row."""

    source: int  # table ids
    r: int
    s: int
    on: tuple[int, ...]
    counter: int
    consistent: int
    repair: Repair
    pause_rows: int  # of the targets, that the commit of the switch may write, about
    # In place: what the source is called when it has become R itself, by losing the columns that are S's alone. What is
    # made as R has keys, split values and timestamps only, and goes with the switch.
    becomes: str | None = None
    strategy: Strategy = "abort"
    grace: int = 10_000_000  # microseconds, for transactions that are let end

    @property
    def sources(self) -> tuple[int, ...]:
        """The tables that it is made of."""
        return (self.source,)

    @property
    def targets(self) -> tuple[int, ...]:
        """The tables that are made."""
        return (self.r, self.s)


class MadeByJoin(msgspec.Struct, frozen=True, kw_only=True, tag_field="by", tag="join"):
    """Two tables on their way to be their full outer join (transformations/full_outer_join.py, many_to_many.py).

    `r_columns`, `s_columns`: (column of the source, column of T), as far as T has them: keys and join columns always;
    a pair of join columns that T has as one column is in both. `on`: pairs of columns that are equal. T's key is a
    hidden row id; its hidden column `parts` says whose parts a row has: 1 R's, 2 S's, 3 both. The parts' timestamps are
    those of T's locks `r_lock` and `s_lock` (0: no such part). T's indexes, by their ids: on R's primary key, on S's,
    and those on the join columns of either part (one if T has them once).
    """

    r: int  # table ids
    s: int
    target: int
    r_columns: tuple[tuple[int, int], ...]
    s_columns: tuple[tuple[int, int], ...]
    on: tuple[tuple[int, int], ...]
    unique: bool  # no two rows of S have the same join value: one-to-many
    parts: int
    r_lock: int
    s_lock: int
    r_index: int
    s_index: int
    on_indexes: tuple[int, ...]
    pause_rows: int  # as of a split, as are these
    strategy: Strategy = "abort"
    grace: int = 10_000_000

    @property
    def sources(self) -> tuple[int, ...]:
        """The tables that it is made of."""
        return (self.r, self.s)

    @property
    def targets(self) -> tuple[int, ...]:
        """The tables that are made."""
        return (self.target,)


class GroupedValue(msgspec.Struct, frozen=True, array_like=True):
    """What a grouping's target has of a column of the source: in which column it counts the values that are not NULL,
    and, where they are summed up, in which it has the sum of those that are not NaN, how many are NaN, and, of a
    numeric without modifiers, how many of the others have which scale (a JSON object); of a numeric whose average is
    asked for, that of the others."""

    column: int
    count: int
    total: int | None = None
    nans: int | None = None
    scales: int | None = None
    mean: int | None = None


class MadeByGrouping(msgspec.Struct, frozen=True, kw_only=True, tag_field="by", tag="grouping"):
    """A table that has a row for each group of rows of another one (transformations/grouping.py).

    `groups`: (column of the source, column of the target). The target's key is a hidden column with the encoded values
    of these, in which NULL is a value as any other. Its column `counter` says how many rows are in a group.
    `condition`: of the rows that are grouped, SQL text as of a check, and `reads` the columns in it.
    """

    source: int  # table ids
    target: int
    groups: tuple[tuple[int, int], ...]
    values: tuple[GroupedValue, ...]
    counter: int
    condition: str | None = None
    reads: tuple[int, ...] = ()
    pause_rows: int = 1_000  # propagation has caught up when no more is left than comes to so many rows

    @property
    def sources(self) -> tuple[int, ...]:
        """The tables that it is made of."""
        return (self.source,)

    @property
    def targets(self) -> tuple[int, ...]:
        """The tables that are made."""
        return (self.target,)


class Unseen(msgspec.Struct, frozen=True, kw_only=True):
    """Of a table that nobody sees yet: what it is made by. `shown`: the columns that it has once it is seen; `takes`:
    the names that it bears then and that its sources bear still. `nameless`: it has the rows of a materialized view,
    through which alone they are read, and takes no name."""

    made: MadeBySplit | MadeByJoin | MadeByGrouping
    shown: tuple[int, ...]
    takes: tuple[str, ...] = ()
    nameless: bool = False


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is still known of a join or split after its switch, for as long as changes of the sources, which are tables
    no more, are made changes of the targets: the tables as they were."""

    made: MadeBySplit | MadeByJoin
    sources: tuple[Table, ...]  # in the order of `made.sources`


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """Of a table that was made of others, while transactions that have written to these may still commit: the element
    of that, and what makes their changes changes of this table."""

    id: int
    kept: Kept


class Transformed(msgspec.Struct, frozen=True, kw_only=True):
    """Of a table that others are made of (online join and split): the element of that, and those tables. Meanwhile the
    log has its rows as they were before and as they are after each change (rule 3). `closing`: those who have not
    written to any of the sources yet wait until it is over."""

    id: int
    targets: tuple[int, ...]
    state: State = State.WRITE_ONLY
    closing: bool = False
    kept: bool = False  # the targets go on following this table when they are there: a materialized view's


class StepKind(enum.Enum):
    """What a direct step did: what the validators of IEP-110 vote on."""

    CREATE_TABLE = "create table"
    ADD_COLUMN = "add column"
    ADD_REQUIRED_COLUMN = "add required column"  # without a value for rows of older writers: the table was empty
    DROP_COLUMN = "drop column"
    UNDROP_COLUMN = "undrop column"  # with the values that rows had
    RENAME_COLUMN = "rename column"
    MOVE_COLUMN = "move column"  # to another place among the others
    RENAME_TABLE = "rename table"
    RENAME_INDEX = "rename index"
    RENAME_CONSTRAINT = "rename constraint"
    SET_DEFAULT = "set default"
    DROP_DEFAULT = "drop default"
    DROP_NOT_NULL = "drop not null"
    DROP_EXPRESSION = "drop expression"  # of a generated column, which is set like any other from then on
    WIDEN_TYPE = "widen type"
    CHANGE_TYPE = "change type"  # rows of older writers may have no value of the new type
    CHANGE_TYPE_TO_TEXT = "change type to text"  # every value has a text, so what was written is converted
    TRUNCATE = "truncate"
    DROP_TABLE = "drop table"
    UNDROP_TABLE = "undrop table"  # its rows, and all else that is judged at a commit, as they were at the drop
    SET_MIGRATION = "set migration"  # or what the worker compacts the table for
    COMPACT = "compact"  # no row is in an older layout any more
    ELEMENT_STATE = "element state"  # a step of a path: no vote, writes are derived anew


class Step(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One direct step from version - 1 to `version` of a table."""

    version: int
    kind: StepKind
    columns: tuple[int, ...] = ()
    statement: str = ""  # named to a transaction that this step dooms


class Table(msgspec.Struct, frozen=True, kw_only=True, weakref=True, tag_field="object", tag="table"):
    """A table at one version."""

    id: int
    name: str
    version: int
    columns: tuple[Column, ...]
    primary_key: tuple[int, ...]  # column ids
    primary_key_name: str  # empty: the key is the hidden row id, which takes no name
    rowset: int
    layout: Layout  # the one in which this version writes
    oldest_layout: int  # no row is in a layout below it: == layout.id means the one-layout fast path
    indexes: tuple[Index, ...] = ()
    checks: tuple[Check, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    referenced_by: tuple[int, ...] = ()  # ids of tables whose foreign keys point here
    steps: tuple[Step, ...] = ()  # the newest ones
    forgotten: Step | None = None  # the last that is not listed any more and lets nobody through who wrote before it
    next_id: int  # next column, index or constraint id of this table
    checks_version: int = 0
    locks: tuple[Lock, ...] = ()  # beside the default lock; empty for nearly every table
    coverage_changes: tuple[CoverageChange, ...] = ()
    next_key: NextKey | None = None  # while ALTER PRIMARY KEY is under way
    migration: Migration = "write"
    compaction_share: float = COMPACTION_SHARE
    transformed: Transformed | None = None  # while it is being joined or split
    followed_by: tuple[int, ...] = ()  # ids of the tables that materialized views on it have their rows in
    unseen: Unseen | None = None  # while it is being made of others
    crossing: Crossing | None = None  # for a while after that
    older_rows: bool = False  # it was made of others: its rows bear timestamps from before it was seen

    @property
    def logged_whole(self) -> bool:
        """Whether the log gets the table's rows as they are after each change, too (rule 3)."""
        return self.transformed is not None or bool(self.followed_by)

    @property
    def has_followers(self) -> bool:
        """Whether materialized views follow it, or one will that may have been shown since."""
        return bool(self.followed_by) or (self.transformed is not None and self.transformed.kept)

    def covering(self, column: int) -> tuple[int, ...]:
        """The locks that cover a column: one, or more while its coverage changes."""
        own = next((lock.id for lock in self.locks if column in lock.columns), DEFAULT_LOCK)
        coming = [lock for change in self.coverage_changes for found, lock in change.covers if found == column]
        return (own, *(lock for lock in coming if lock != own))


class Materialized(msgspec.Struct, frozen=True, kw_only=True):
    """Of a view: that it is materialized. `storage` is the id of the table, which nobody else can name, that has its
    rows; `definition` the query that it was created with, SQL text as a view's."""

    storage: int
    definition: str


class View(msgspec.Struct, frozen=True, kw_only=True, weakref=True, tag_field="object", tag="view"):
    """A view. That of a materialized one is `query`, too: on the table that has its rows. Of a *kept* one `kept` says
    what join or split has taken the place of the table of id `source`, whose name it is: it has that table's columns,
    and what is written to it is written to the new tables."""

    id: int
    name: str
    version: int
    query: str  # SQL text, tables and columns by id
    columns: tuple[tuple[str, Type], ...]
    depends_on: tuple[tuple[int, tuple[int, ...]], ...]  # (table or view id, column ids)
    materialized: Materialized | None = None
    kept: Kept | None = None
    source: int = 0

    @property
    def kind(self) -> str:
        """What messages call it."""
        return "view" if self.materialized is None else "materialized view"

    @property
    def stands_for(self) -> Table | None:
        """The table that a kept view stands for, as it was, by the view's name."""
        if self.kept is None:
            return None
        found = next(table for table in self.kept.sources if table.id == self.source)
        return found if found.name == self.name else msgspec.structs.replace(found, name=self.name)


class Sequence(msgspec.Struct, frozen=True, kw_only=True, weakref=True, tag_field="object", tag="sequence"):
    """A sequence; its value is outside MVCC, handed out in blocks per process.

    The value lies in a counter: the one of the sequence's own id (`counter` is 0) until it is restarted, which is to
    count by another one, new and never used, that begins with `first` (None: `start`). So the commit that publishes the
    descriptor restarts the sequence, and a rollback leaves it where it was.
    """

    id: int
    name: str
    version: int
    type: Type
    start: int = 1
    increment: int = 1
    minimum: int = 1
    maximum: int = 2**63 - 1
    cycle: bool = False
    cache: int = 1
    owned_by: tuple[int, int] | None = None  # (table id, column id)
    counter: int = 0
    first: int | None = None

    @property
    def counts_by(self) -> int:
        """The id of its counter."""
        return self.counter or self.id

    @property
    def numbers_rows(self) -> bool:
        """Whether it gives row ids: such a one has no name, and nobody can ask for it."""
        return not self.name


Object = Table | View | Sequence


def is_seen(found: Object) -> bool:
    """Whether statements can name the object: it is not a table that is only being made of others."""
    return not isinstance(found, Table) or found.unseen is None


def changes_since(table: Table, since: int) -> str:
    """The changes that have brought a table from its version `since` to this one, in words; "" if there are none."""
    made = list(dict.fromkeys(step.statement for step in table.steps if step.version > since and step.statement))
    return f"{'The changes since were' if made[1:] else 'The change was'}: {'; '.join(made)}" if made else ""


def transformation_of(table: Table) -> str:
    """The statement by which a table is joined or split, or was; empty for any other."""
    number = None if table.transformed is None else table.transformed.id
    return next((step.statement for step in table.steps if number in step.columns), "")
