"""Schema locks of a session, and what its statements read by at each isolation level (MD-MVCC §3.3 to §3.5).

A statement is compiled under one snapshot: that of its transaction, or its own, at the locking levels too. Before it
runs, it is seen to that what it reads is what it was compiled for (`stabilise`):

* What is read at a locking level, by the transaction's level or by a table hint, is locked with SCH-S first; from then
  on its newest version stays. That one has to be the version which the snapshot sees.
* What a hint has read by another snapshot has to be of one version in both (§3.5.2, table 2).

If not, a statement with a snapshot of its own is compiled again under another one: nobody has seen a row of it yet. A
transaction that keeps its snapshot gets 40001.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Object, StepKind, Table
from instar.catalog.descriptors import View as ViewDescriptor
from instar.catalog.schema_locks import resource_of
from instar.database.row_locks import Moved
from instar.sql.plan_cache import Prepared
from instar.store.lock_modes import Mode
from instar.store.lock_table import Locked
from instar.store.row_locks import Demand
from instar.tables.guard import ReadGuard
from instar.tables.view import NEWEST, View
from instar.transactions.commit import Conflict
from instar.transactions.transaction import Isolation, Snapshot

if TYPE_CHECKING:
    from instar.database.session import Session


class SchemaLocks:
    """The schema locks of one session; those of a transaction are gone with it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store = session.database.store
        self.forked()

    def forked(self) -> None:
        """In a forked child: what is held is the parent's."""
        self._lasting: set[Demand] = set()  # to the end of the transaction
        self._passing: set[Demand] = set()  # to the end of the statement
        # What WITH (SNAPSHOT) reads by, where the transaction has no snapshot: that of the first statement with it.
        self._kept: Snapshot[CatalogSnapshot] | None = None
        self._kept_token: object | None = None
        self._kept_now = False  # whether it was taken by the running statement
        # What WITH (READCOMMITTED) reads by, where the transaction keeps a snapshot.
        self._fresh: Snapshot[CatalogSnapshot] | None = None
        self._fresh_token: object | None = None

    # --- statements ---------------------------------------------------------------------------------------------------

    def stabilise(self, prepared: Prepared) -> None:
        """Have a statement that was compiled under its snapshot read tables of just those versions, while it runs.

        Errors: Locked and Moved, which have it run again; 40001 in Conflict or Moved; 0A000.
        """
        open_ = self._session.open_transaction()
        own = open_.isolation
        if not own.is_locking and not prepared.hints:
            return
        seen = open_.snapshot
        assert seen is not None  # it was compiled under it
        for table, _level in prepared.hints:
            if open_.ddl and open_.ddl.changes(table.id):
                raise errors.unsupported(f'a hint for table "{table.name}", which the transaction has changed')
        locked: dict[int, Object] = {table.id: table for table, level in prepared.hints if level.is_locking}
        if own.is_locking:
            locked |= {found.id: found for found in prepared.unhinted if isinstance(found, Table | ViewDescriptor)}
        lasting = own.is_locking and not prepared.is_query
        self._hold([(resource_of(number), Mode.SCH_S) for number in sorted(locked)], lasting=lasting)
        with self._store.read() as reader:
            newest = Snapshot(reader.timestamp, self._session.database.catalog.at(reader))
        try:
            for number in locked:
                if not (open_.ddl and open_.ddl.changes(number)):
                    _require_same(number, seen.catalog, newest.catalog)
            self._compare(prepared.hints, own, seen, newest)
        except Moved:
            repository = self._session.database.repository
            if repository is not None:  # a schema that is merely leased may be the reason
                repository.reload()
            raise

    def _compare(
        self,
        hints: Iterable[tuple[Table, Isolation]],
        own: Isolation,
        seen: Snapshot[CatalogSnapshot],
        newest: Snapshot[CatalogSnapshot],
    ) -> None:
        """Table 2 for hints that name a level with snapshots. READ COMMITTED at a locking level goes by the snapshot
        that the statement was compiled under, so there is nothing to compare."""
        for table, level in hints:
            if level is Isolation.READ_COMMITTED and own.keeps_snapshot:
                if self._fresh is None:
                    self._fresh, self._fresh_token = newest, self._store.register_snapshot(newest.timestamp)
                _require_same(table.id, seen.catalog, self._fresh.catalog)
            elif level.keeps_snapshot and not own.keeps_snapshot:
                try:
                    _require_same(table.id, self._keep(seen).catalog, seen.catalog)
                except Moved as moved:  # another snapshot for the statement would not make the older one newer
                    raise moved.conflict from None

    def _keep(self, seen: Snapshot[CatalogSnapshot]) -> Snapshot[CatalogSnapshot]:
        """The snapshot of the transaction's hints; the statement that takes it may yet be run again on a newer one."""
        if self._kept is None or (self._kept_now and self._kept is not seen):
            self._release_kept()
            self._kept, self._kept_token = seen, self._store.register_snapshot(seen.timestamp)
            self._kept_now = True
        return self._kept

    def end_statement(self) -> None:
        """The statement has ended, or failed."""
        if self._passing:
            if self._session.in_block:
                self._store.locks.release(self._session.locks.owner, self._passing)
            self._passing = set()
        if self._fresh is not None:
            self._store.release_snapshot(self._fresh_token)
            self._fresh = self._fresh_token = None
        self._kept_now = False

    def forget(self) -> None:
        """The transaction is over; its locks end with their owner."""
        if self._lasting:
            self._lasting = set()
        self._release_kept()

    def _release_kept(self) -> None:
        if self._kept is not None:
            self._store.release_snapshot(self._kept_token)
            self._kept = self._kept_token = None

    # --- schema changes -----------------------------------------------------------------------------------------------

    def hold_change(self, change: CatalogChange) -> None:
        """At a locking level a schema change holds its locks from its statement on: what it was planned on stays. At
        the others its commit is judged against those of others. Locked, Moved: it is to be planned again."""
        open_ = self._session.open_transaction()
        if not open_.isolation.is_locking or not self._hold(change.schema_locks(), lasting=True):
            return
        assert open_.snapshot is not None  # it was planned on it
        with self._store.read() as reader:
            version = reader.catalog_version
        if version != open_.snapshot.catalog.version:
            message = "the schema was changed again and again while a schema change was planned"
            raise Moved(Conflict(errors.error(errors.SERIALIZATION_FAILURE, message, hint="Retry the transaction.")))

    def _hold(self, wanted: Sequence[Demand], *, lasting: bool) -> bool:
        """Hold these locks, given in the order of resources; whether that took any. Locked: those before are held."""
        missing = [demand for demand in wanted if demand not in self._lasting and demand not in self._passing]
        had: list[Demand] = []
        try:
            if missing:
                self._store.lock(self._session.locks.own(), missing)
            had = missing
        except Locked as met:
            had = [demand for demand in missing if demand[0] < met.resource]
            raise
        finally:
            self._passing.update(had)
            if lasting:
                passing = self._passing.intersection(wanted)
                self._lasting |= passing
                self._passing -= passing
        return bool(missing)

    # --- what is read -------------------------------------------------------------------------------------------------

    def newest_view(self, base: View, level: Isolation) -> View:
        """What is read at a locking level: `base` but for its snapshot."""
        guard = None
        if level is Isolation.READ_COMMITTED_LOCK:
            locks = self._session.locks
            guard = ReadGuard(self._store.locks, lambda: locks.owner, locks.wait)
        return View(base.store, NEWEST, base.buffer, base.layouts, None, guard)

    def view_at(self, base: View, level: Isolation) -> View:
        """What a table is read by that a hint has at `level`, in a statement that reads by `base`."""
        open_ = self._session.open_transaction()
        own = open_.isolation
        if level is own or (level.keeps_snapshot and own.keeps_snapshot):
            return base
        if level.is_locking:
            return self.newest_view(base, level)
        if level.keeps_snapshot:
            found = self._kept
        else:
            found = self._fresh if own.keeps_snapshot else open_.snapshot
        assert found is not None  # `stabilise` has seen to it
        return View(base.store, found.timestamp, base.buffer, base.layouts)


def _require_same(number: int, older: CatalogSnapshot, newer: CatalogSnapshot) -> None:
    """Moved, with 40001, if an object is of another version in the newer of two schemas than in the older one."""
    before, after = older.by_id(number), newer.by_id(number)
    if before is after or before is None:
        return
    if isinstance(before, Table) and isinstance(after, Table):
        if before.version == after.version:
            return
        step = next((step for step in after.steps if step.version > before.version), None)
        kind = "schema change"
        if step is not None and step.kind is not StepKind.ELEMENT_STATE:  # whose statement says more
            kind = step.kind.value
        detail = f"The snapshot has its version {before.version}, and version {after.version} is to be read."
        if step is not None and step.statement:
            detail += f" The change was: {step.statement}"
    elif before == after:
        return
    else:
        kind, detail = ("drop" if after is None else "schema change"), None
        if after is None and isinstance(before, Table):
            detail = f"The snapshot has its version {before.version}, which was the last."
    raise Moved(
        Conflict(
            errors.error(
                errors.SERIALIZATION_FAILURE,
                f'"{before.name}" was changed by a concurrent {kind} after the snapshot was taken',
                detail=detail,
                hint="Retry the transaction.",
            )
        )
    )
