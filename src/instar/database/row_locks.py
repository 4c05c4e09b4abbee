"""Row locks of a session: what a statement writes or selects FOR UPDATE is locked before its result is given out.

A statement runs on its snapshot and asks for its locks when it has run, all of them, in the order of their keys. If a
row is another's, the statement is taken back, waits for that transaction to end, and runs again; if a row has moved
between the snapshot and the lock, it is taken back and runs again too, on a new snapshot, keeping the locks that it
has. So it comes to an end: what it found the last time cannot move any more. Only then may anybody see its result, and
nothing that it wrote can be refused at COMMIT.

Transactions that keep a snapshot (REPEATABLE READ, SERIALIZABLE) lock what they select FOR UPDATE; what they write is
judged at their commit, which waits for the locks of others. Statements in autocommit commit at once and lock nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from instar import errors
from instar.catalog.descriptors import Table
from instar.database.closing import Closed, is_closing
from instar.database.commit import SessionTransaction
from instar.database.lock_names import shown_cycle
from instar.database.settings import duration_us
from instar.sql.tree import RowLock
from instar.store.apply import is_live, judge_locked
from instar.store.engine import PreconditionFailed, RangeUnchanged
from instar.store.lock_modes import Mode
from instar.store.lock_table import Deadlock, Locked, Wait
from instar.store.row_locks import Demand
from instar.tables.locks import Image, merged
from instar.tables.row_locks import Needs, has_moved, is_behind, of_selected, of_written
from instar.tables.writes import row_conflict
from instar.transactions.buffer import Change, TableBuffer
from instar.transactions.commit import Conflict

if TYPE_CHECKING:
    from instar.database.session import Session
    from instar.tables.writes import TableWriter

# How often a statement runs again because rows have moved, before that is reported after all. (How often it waits is
# bounded by nothing but lock_timeout.)
MAX_RESTARTS = 50
# A statement in autocommit that others are faster than so many times in a row locks what it writes.
RESTARTS_WITHOUT_LOCKS = 3
# So many locks are taken at once in the store's atomic section, or rows looked at by one reader.
_BATCH = 1000
# So many are looked at in the section as well: a reader of their own would cost more than it spares others.
_FEW = 8
# A waiting session looks again after so many seconds, at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.005

T = TypeVar("T")


class Moved(Exception):
    """A row, or a table's schema, has changed between the statement's snapshot and its lock."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__()
        self.conflict = conflict


class _Selected(NamedTuple):
    """A row that a query has selected FOR UPDATE or the like."""

    lock: RowLock
    table: Table
    key: bytes


class RowLocks:
    """The row locks of one session; those of a transaction are gone with it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store = session.database.store
        self.forked()

    def forked(self) -> None:
        """In a forked child: what is held is the parent's."""
        self.owner = b""  # of the transaction's locks; none before it needs one
        self.held: dict[bytes, Mode] = {}  # by resource
        # Tables of which rows were selected FOR UPDATE or the like, in the versions by which these were locked: a plan
        # may be of an older one.
        self.selected_of: dict[int, Table] = {}
        self._selected: list[_Selected] = []
        self.insists = False  # a statement in autocommit locks what it writes, as one of a transaction does
        self._kept_from: Locked | None = None  # what kept it from locking what has been brought to another schema

    def release(self) -> None:
        """The transaction is over: committed, perhaps, so that nothing which goes wrong here is its error."""
        self.selected_of, self._kept_from = {}, None
        if self.owner:
            try:
                self._store.locks.end(self.owner)
            except errors.Error as failed:  # a full disk
                self._session.notice(f"the transaction has ended, but others may find its locks still: {failed}")
            self.owner, self.held = b"", {}  # not before: who is interrupted does it once more

    # --- statements ---------------------------------------------------------------------------------------------------

    def run(
        self, open_: SessionTransaction, attempt: Callable[[], T], take_back: Callable[[], None], *, writes: bool
    ) -> T:
        """`attempt` a statement until its locks are held and it saw what they protect; `take_back` undoes an attempt.
        `writes`: it is an INSERT, UPDATE or DELETE. What a schema change writes is judged at its commit.

        Errors: 40001 (rows move all the time, or have moved since a snapshot that is kept), 40P01, 55P03, 57014.
        """
        try:
            return self._run(open_, attempt, take_back, writes=writes)
        finally:
            self._session.schema_locks.end_statement()

    def _run(
        self, open_: SessionTransaction, attempt: Callable[[], T], take_back: Callable[[], None], *, writes: bool
    ) -> T:
        restarts = 0
        while True:
            self._selected = []
            if restarts:
                self._catch_up(open_)
            mark = open_.buffer.mark()
            try:
                result = attempt()
                self._lock(open_, mark if writes else None)
                return result
            except Moved as moved:
                take_back()
                restarts += 1
                if open_.keeps_snapshot or restarts == MAX_RESTARTS:
                    raise moved.conflict from None
                self._session.check_cancel()
            except Locked as met:
                take_back()
                self.wait(met)
            except Closed as closed:
                take_back()
                self._outwait(partial(is_closing, self._session.database, closed.table))

    def _catch_up(self, open_: SessionTransaction) -> None:
        """Put what is buffered of rows of several parts onto these rows as they are now. Others have changed parts that
        it does not meet; the statement that runs again may be to change just those."""
        if open_.keeps_snapshot or not self._session.in_block or not open_.buffer:
            return
        catalog = self._session.catalog()
        for buffer in list(open_.buffer):
            table = open_.enlisted[buffer.table]
            if not table.locks or catalog.by_id(table.id) is not table:
                continue
            rules = self._session.database.rules(catalog).of(table)
            judge = rules.judge_by(self._session.function_context)
            for key, change in list(self._caught_up(self._writer(table.id), buffer, judge)):
                open_.buffer.rebase(table.id, key, change)

    def _caught_up(
        self, writer: TableWriter, buffer: TableBuffer, judge: Callable[[Image], None]
    ) -> Iterator[tuple[bytes, Change]]:
        """The changes that were made on other versions of their rows, as changes of these as they are."""
        for batch in _batches(buffer.changes.items()):
            with self._store.read() as reader:
                stored = [(key, change, reader.get(writer.prefix + key)) for key, change in batch]
            for key, change, now in stored:
                if now is not None and is_behind(writer, change, now):
                    with contextlib.suppress(errors.Error):  # what does not go together is refused at the commit
                        yield key, merged(writer.reader, change, now, lambda _, image: judge(image))

    def select(self, lock: RowLock, table: Table, key: bytes) -> bool:
        """A query has come to a row that it is to lock: at the end of the statement, or now, to see whether it can be
        had (False: the row is to be skipped)."""
        selected = _Selected(lock, table, key)
        if lock.wait != "skip":
            self._selected.append(selected)
            return True
        open_ = self._session.open_transaction()
        wanted: dict[bytes, Mode] = {}
        unchanged: list[RangeUnchanged] = []
        self._add(self._needs_of_selected(selected, _snapshot_of(open_)), wanted, unchanged)
        if wanted:
            try:
                self._store.lock(self.own(), sorted(wanted.items()))
            except Locked:
                return False
            self._have(open_, wanted, unchanged, [table])
        self.note_selected(self._writer(table.id).table)
        return True

    def note_selected(self, table: Table) -> None:
        """Rows of a table were selected and locked; `table` is as the locks are of."""
        self.selected_of.setdefault(table.id, table)

    def follow(self, open_: SessionTransaction) -> None:
        """Lock what has been brought to another schema: its rows may lie under other keys there, or have other parts.
        A statement does not wait for that, since it may be a query: what is another's by now is left to the next one.
        Moved: it is to run again. 40001 if others have changed such a row, which no lock kept from them."""
        if open_.keeps_snapshot or not self._session.in_block:  # its commit judges
            open_.behind.clear()
            return
        if self._kept_from is not None and self._store.locks.is_blocked(self._kept_from):
            return
        changes = {table: buffer.changes for table in open_.behind if (buffer := open_.buffer.table(table)) is not None}
        wanted, unchanged, tables = self._needs_of(open_, changes)
        try:
            self._acquire(sorted(wanted.items()), {}, ())
        except Locked as met:  # what was locked before it is found again, since it is the owner's
            self._kept_from = met
            return
        self._have(open_, wanted, unchanged, tables)
        for table, own in changes.items():
            self._require_unmoved(self._writer(table), own, open_.behind[table])
        open_.behind.clear()
        self._kept_from = None

    def _require_unmoved(self, writer: TableWriter, changes: Mapping[bytes, Change], meant: Table) -> None:
        """40001 if a row is not as it was when its change was made, as far as that meets others."""
        for batch in _batches(changes.items()):
            with self._store.read() as reader:
                for key, change in batch:
                    if has_moved(writer, change, reader.get(writer.prefix + key)):
                        raise row_conflict(writer.table, key, meant.version)

    def require_unlocked(self, resource: bytes) -> None:
        """What stands in a statement's way may be about to go: if it is another's to take away, the statement waits."""
        met = self._store.locks.met(resource, Mode.KEY_SHARE, self.owner)
        if met is not None:
            raise met

    def _lock(self, open_: SessionTransaction, mark: int | None) -> None:
        """Lock what the statement has selected, and in a transaction that goes on with new snapshots what it has
        written since `mark`, if it writes; or if it `insists`. Locked or Moved: it is to run again."""
        wanted, unchanged, tables = self._needs_of_written(open_, mark)
        if not tables and not self._selected:
            return
        since = _snapshot_of(open_)
        impatient: dict[bytes, str] = {}
        for selected in self._selected:
            self.note_selected(self._writer(selected.table.id).table)
            needs = self._needs_of_selected(selected, since)
            self._add(needs, wanted, unchanged)
            if selected.lock.wait == "nowait":
                impatient.update((resource, selected.table.name) for resource, _mode in needs.demands)
        self._take(open_, wanted, unchanged, [*tables, *(selected.table for selected in self._selected)], impatient)

    def have_change(self, open_: SessionTransaction, writer: TableWriter, key: bytes, change: Change) -> None:
        """Lock what the change of a row needs, of a statement that has selected nothing. Locked or Moved: it is to run
        again."""
        wanted: dict[bytes, Mode] = {}
        unchanged: list[RangeUnchanged] = []
        self._add(of_written(writer, key, change, _snapshot_of(open_)), wanted, unchanged)
        if wanted:
            self._take(open_, wanted, unchanged, [writer.table], {})

    def have_row(
        self, open_: SessionTransaction, writer: TableWriter, key: bytes, mode: Mode, *, arrives: bool
    ) -> None:
        """As `have_change`, of a row that needs no other lock; `arrives`: it was not there before."""
        row = writer.prefix + key
        if self.held.get(row, -1) >= mode:
            return
        self._session.check_cancel()
        unchanged = RangeUnchanged(row, row + b"\x00", _snapshot_of(open_), None, is_live if arrives else None)
        try:
            self._store.lock(self.own(), ((row, mode),), (unchanged,))
        except PreconditionFailed:
            self.held[row] = mode
            raise Moved(row_conflict(writer.table, key)) from None
        self.held[row] = mode

    def _take(
        self,
        open_: SessionTransaction,
        wanted: dict[bytes, Mode],
        unchanged: list[RangeUnchanged],
        tables: list[Table],
        impatient: dict[bytes, str],
    ) -> None:
        """`impatient`: tables by resources that NOWAIT is for."""
        few = unchanged if 0 < len(wanted) <= _BATCH and len(unchanged) <= _FEW else []
        try:
            self._acquire(sorted(wanted.items()), impatient, few)
        except PreconditionFailed as failed:
            if not open_.keeps_snapshot:
                self.held.update(wanted)
            raise Moved(self._conflict(failed.found or b"", tables)) from None
        self._have(open_, wanted, () if few else unchanged, tables)

    def _needs_of_written(
        self, open_: SessionTransaction, mark: int | None
    ) -> tuple[dict[bytes, Mode], list[RangeUnchanged], list[Table]]:
        """What is to be locked, and to be looked at then, of what was buffered since `mark`, by a transaction that goes
        on with new snapshots; and the tables."""
        stays_open = (self._session.in_block or self.insists) and not open_.keeps_snapshot
        return self._needs_of(open_, open_.buffer.changed_since(mark) if mark is not None and stays_open else {})

    def _needs_of(
        self, open_: SessionTransaction, changes: Mapping[int, Mapping[bytes, Change]]
    ) -> tuple[dict[bytes, Mode], list[RangeUnchanged], list[Table]]:
        """The same of these changes, by table and key."""
        wanted: dict[bytes, Mode] = {}
        unchanged: list[RangeUnchanged] = []
        tables = []
        for table_id, own in changes.items():
            writer = self._writer(table_id)
            tables.append(writer.table)
            for key, change in own.items():
                self._add(of_written(writer, key, change, _snapshot_of(open_)), wanted, unchanged)
        return wanted, unchanged, tables

    def _have(
        self,
        open_: SessionTransaction,
        wanted: dict[bytes, Mode],
        unchanged: Iterable[RangeUnchanged],
        tables: Iterable[Table],
    ) -> None:
        """Remember what is held. Moved if something is newer than the statement's snapshot: for the last time."""
        if not open_.keeps_snapshot:
            self.held.update(wanted)
        self._look(unchanged, tables)
        self.held.update(wanted)

    def _add(self, needs: Needs, wanted: dict[bytes, Mode], unchanged: list[RangeUnchanged]) -> None:
        """What is not held yet: a stronger mode is as good, and then nothing can have moved."""
        held = self.held
        missing = [demand for demand in needs.demands if held.get(demand[0], -1) < demand[1]]
        if missing:
            unchanged += needs.unchanged
        for resource, mode in missing:
            wanted[resource] = max(mode, wanted.get(resource, mode))

    def _needs_of_selected(self, selected: _Selected, since: int) -> Needs:
        return of_selected(self._writer(selected.table.id), selected.key, selected.lock.mode, since)

    def _writer(self, table: int) -> TableWriter:
        catalog = self._session.catalog()
        return self._session.database.writers.get(catalog.table(table), catalog)

    def own(self) -> bytes:
        """The owner of the transaction's locks."""
        if not self.owner:
            self.owner = self._store.locks.new_owner()
        return self.owner

    def _acquire(
        self, wanted: Iterable[Demand], impatient: dict[bytes, str], unchanged: Sequence[RangeUnchanged]
    ) -> None:
        """`unchanged`: what is judged in the atomic section itself, if `wanted` is no more than a batch."""
        for batch in _batches(wanted):
            self._session.check_cancel()
            try:
                self._store.lock(self.own(), batch, unchanged)
            except Locked as met:
                if met.resource in impatient:
                    what = f'could not obtain lock on row in relation "{impatient[met.resource]}"'
                    raise errors.error(errors.LOCK_NOT_AVAILABLE, what) from None
                raise

    def _look(self, unchanged: Iterable[RangeUnchanged], tables: Iterable[Table]) -> None:
        for batch in _batches(unchanged):
            with self._store.read() as reader:
                for range_ in batch:
                    try:
                        judge_locked(reader, range_)
                    except PreconditionFailed as failed:
                        raise Moved(self._conflict(failed.found or b"", tables)) from None

    def _conflict(self, found: bytes, tables: Iterable[Table]) -> Conflict:
        """40001 for a row or an index entry that has moved."""
        for table in tables:
            prefix = self._writer(table.id).prefix
            if found.startswith(prefix):
                return row_conflict(table, found[len(prefix) :])
        message = "could not serialize access due to a concurrent update"
        return Conflict(errors.error(errors.SERIALIZATION_FAILURE, message, hint="Retry the transaction."))

    # --- waiting ------------------------------------------------------------------------------------------------------

    def tell(self, reason: str) -> None:
        """Tell the client, now, what its statement waits for."""
        self._session.notice(f"waits for {reason}")
        self._session.deliver_notices()

    def wait(self, met: Locked, at_most: float | None = None) -> bool:
        """Until those who are in the way have ended: True. Or for so many microseconds: False, if they have not by
        then. Errors: 40P01, 55P03, 57014."""
        locks, owner = self._store.locks, self.own()
        try:
            locks.begin_waiting(owner, met)
            return self._outwait(partial(locks.is_blocked, met), at_most)
        except Deadlock as closed:
            raise self._deadlock(closed.cycle) from None
        finally:
            locks.end_waiting(owner)

    def wait_no_more(self) -> None:
        """A statement has failed, perhaps by an interrupt before it could say that it does not wait any more."""
        if self.owner:
            with contextlib.suppress(errors.Error):  # a full disk
                self._store.locks.end_waiting(self.owner)

    def _outwait(self, is_blocked: Callable[[], bool], at_most: float | None = None) -> bool:
        """As `wait`, for whatever is in the way."""
        session = self._session
        timeout = duration_us(session.settings.get("lock_timeout"))
        now = session.database.clock.monotonic_ns
        began, waited = now(), 0.0  # by the clock, which a test may hold, and by what has been waited
        pause = _FIRST_PAUSE
        while is_blocked():
            passed = max((now() - began) / 1e3, waited * 1e6)
            if at_most is not None and passed >= at_most:
                return False
            if timeout is not None and passed >= timeout:
                raise errors.error(errors.LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout")
            session.pause(pause)
            waited += pause
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return True

    def _deadlock(self, cycle: Sequence[Wait]) -> errors.Error:
        database = self._session.database
        with self._store.read() as reader:
            catalog = database.catalog.at(reader)
        detail = shown_cycle(self._store, catalog, cycle)
        return errors.error(errors.DEADLOCK_DETECTED, "deadlock detected", detail=detail, hint="Retry the transaction.")


def _snapshot_of(open_: SessionTransaction) -> int:
    assert open_.snapshot is not None  # a statement has run
    return open_.snapshot.timestamp


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    following = iter(items)
    while batch := list(islice(following, _BATCH)):
        yield batch
