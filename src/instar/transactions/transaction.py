"""A transaction: isolation level, snapshot, buffer, savepoints, and whether it has failed."""

from __future__ import annotations

import enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from instar import errors
from instar.store.engine import RangeUnchanged
from instar.transactions.buffer import DEFAULT_MAX_ROWS, Buffer
from instar.transactions.reads import ReadSet


class Isolation(enum.Enum):
    """The levels that can be asked for; the value is how SQL names it."""

    READ_UNCOMMITTED = "read uncommitted"
    READ_COMMITTED_LOCK = "read committed lock"
    READ_COMMITTED = "read committed"
    REPEATABLE_READ = "repeatable read"
    SERIALIZABLE = "serializable"

    @property
    def is_locking(self) -> bool:
        """Whether it is one of the two levels without snapshots (MD-MVCC §3.5): rows are read as they are when they are
        come to, and the schema stays as it is meanwhile, by SCH-S."""
        return self is Isolation.READ_UNCOMMITTED or self is Isolation.READ_COMMITTED_LOCK

    @property
    def keeps_snapshot(self) -> bool:
        """Whether all statements of a transaction see one snapshot."""
        return self is Isolation.REPEATABLE_READ or self is Isolation.SERIALIZABLE


class Catalog(Protocol):
    """A catalog snapshot, of which this package knows the version only."""

    version: int


class Change(Protocol):
    """A catalog change that is not committed yet."""

    def __bool__(self) -> bool: ...


C = TypeVar("C", bound=Catalog)
D = TypeVar("D", bound=Change)
T = TypeVar("T")
K = TypeVar("K")


class Snapshot(Generic[C]):
    """What a statement reads: everything committed up to `timestamp`, under the schema of `catalog` (rule 18)."""

    __slots__ = ("catalog", "timestamp")

    def __init__(self, timestamp: int, catalog: C) -> None:
        self.timestamp = timestamp
        self.catalog = catalog


class Savepoint(Generic[D, T, K]):
    """A point to go back to: a mark of the buffer, and the catalog change, enlisted tables and mode as they stood;
    `kept` is what else the session restores."""

    __slots__ = ("ddl", "enlisted", "kept", "mark", "name", "read_only")

    def __init__(
        self, name: str, mark: int, ddl: D | None, enlisted: dict[int, T], kept: K, *, read_only: bool
    ) -> None:
        self.name = name
        self.mark = mark
        self.ddl = ddl
        self.enlisted = enlisted
        self.kept = kept
        self.read_only = read_only


class Judged(NamedTuple, Generic[C]):
    """What one statement has read that must still be so at the commit; `mark`: of the buffer, where it began."""

    mark: int
    snapshot: Snapshot[C]
    reads: ReadSet


class Transaction(Generic[C, D, T, K]):
    """One transaction of one session.

    `snapshot` is taken by each statement, under REPEATABLE READ and SERIALIZABLE by the first for all. `queried`: a
    statement was executed without one, on the newest state. `reads` is what a SERIALIZABLE transaction that may write
    has read. `began_under` is the schema of the moment in which a transaction of several statements began.
    `explicit`: begun by BEGIN (or by the DB-API), so an error leaves it failed until ROLLBACK. `enlisted` are the
    descriptors, by table id, under which the buffered changes were meant (I). `rests_on`: what must be unchanged at the
    commit, since changes were made others by it. `behind`: tables of which the buffered changes have been brought to
    another schema, as they were before, until their rows are locked by that.
    """

    def __init__(
        self, isolation: Isolation, *, read_only: bool = False, explicit: bool, max_rows: int = DEFAULT_MAX_ROWS
    ) -> None:
        self.isolation = isolation
        self.read_only = read_only
        self.explicit = explicit
        self.buffer = Buffer(max_rows)
        self.snapshot: Snapshot[C] | None = None
        self.began_under: C | None = None
        self.queried = False
        self.seen_version = 0  # of the catalog, by queries that have left no snapshot
        self.reads: ReadSet | None = None
        self.ddl: D | None = None
        self.enlisted: dict[int, T] = {}
        self.behind: dict[int, T] = {}
        self.rests_on: list[RangeUnchanged] = []
        self.failed = False
        self.started_us = 0
        self._savepoints: list[Savepoint[D, T, K]] = []
        self._judged: list[Judged[C]] = []

    def judged_reads(self) -> ReadSet:
        """Where the statement that runs remembers reads which must still be so at the commit, at whichever level."""
        if self.reads is not None or self.snapshot is None:
            return ReadSet() if self.reads is None else self.reads  # an empty one is as false as none
        mark = self.buffer.mark()
        self._judged = [found for found in self._judged if found.mark < mark]  # of others the writes were taken back
        self._judged.append(Judged(mark, self.snapshot, ReadSet()))
        return self._judged[-1].reads

    def validated(self) -> list[tuple[Snapshot[C], ReadSet]]:
        """All that must be at the commit as the transaction has read it, by the snapshots that it was read at."""
        found = [] if not self.reads or self.snapshot is None else [(self.snapshot, self.reads)]
        mark = self.buffer.mark()
        return found + [(one.snapshot, one.reads) for one in self._judged if one.mark < mark and one.reads]

    @property
    def has_written(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.buffer) or bool(self.ddl)

    @property
    def keeps_snapshot(self) -> bool:
        """Whether all statements see one snapshot."""
        return self.isolation.keeps_snapshot

    @property
    def has_begun(self) -> bool:
        """Whether a statement has read something: the isolation level is fixed from then on."""
        return self.snapshot is not None or self.queried

    @property
    def is_plain(self) -> bool:
        """Whether a statement sees the newest committed state, and what the transaction has buffered itself."""
        return self.isolation is Isolation.READ_COMMITTED and not (self.failed or self.behind) and self.ddl is None

    @property
    def is_unconditional(self) -> bool:
        """Whether all that its commit depends on is what it writes, and what that demands."""
        return self.is_plain and self.reads is None and not (self.rests_on or self._judged)

    def is_at(self, version: int) -> bool:
        """Whether the last snapshot was of this version of the catalog."""
        return self.snapshot is not None and self.snapshot.catalog.version == version

    def hides(self, version: int, table: int, key: bytes | None) -> bool:
        """Whether a statement under this catalog version may have to see something else at a key (None: at any key of
        the table) than what is committed: changes of the row, or what is buffered under another schema still."""
        if not self.enlisted:
            return False
        if not self.is_at(version) or self.behind:
            return True
        own = self.buffer.tables.get(table)
        return own is not None and (bool(own.changes) if key is None else key in own.changes)

    def mark(self, ddl: D | None, kept: K, name: str = "") -> Savepoint[D, T, K]:
        """Where the transaction stands now; `ddl` is a copy of the catalog change that nobody else changes."""
        return Savepoint(name, self.buffer.mark(), ddl, dict(self.enlisted), kept, read_only=self.read_only)

    def restore(self, point: Savepoint[D, T, K]) -> None:
        """Undo everything since `point` (the caller restores the catalog change and what it has kept)."""
        self.buffer.rollback(point.mark)
        if self.reads is not None:
            self.reads.keep_probes()
        self.enlisted = dict(point.enlisted)
        self.read_only = point.read_only

    @property
    def has_savepoints(self) -> bool:
        """Whether there is one to go back to."""
        return bool(self._savepoints)

    def savepoint(self, name: str, ddl: D | None, kept: K) -> None:
        """Set a savepoint; an older one of the same name is hidden, not replaced, as in PostgreSQL."""
        self._savepoints.append(self.mark(ddl, kept, name))

    def rollback_to(self, name: str) -> Savepoint[D, T, K]:
        """Undo everything since the savepoint, which stays."""
        index = self._find(name)
        del self._savepoints[index + 1 :]
        point = self._savepoints[index]
        self.restore(point)
        self.failed = False
        return point

    def release(self, name: str) -> None:
        """Forget the savepoint and those set after it, keeping what was done, but for the mode."""
        index = self._find(name)
        self.read_only = self._savepoints[index].read_only
        del self._savepoints[index:]

    def require_writable(self, what: str) -> None:
        """25006 if the transaction is read only; `what` is the statement's name."""
        if self.read_only:
            raise errors.error(errors.READ_ONLY_TRANSACTION, f"cannot execute {what} in a read-only transaction")

    def _find(self, name: str) -> int:
        for index in range(len(self._savepoints) - 1, -1, -1):
            if self._savepoints[index].name == name:
                return index
        raise errors.error(errors.INVALID_SAVEPOINT, f'savepoint "{name}" does not exist')
