"""The schema repository of a server that works under leases (F1 §4.3, §4.5).

It keeps the schema versions that the server may write under, each with its lease. New writes use the newest of them;
those on their way to the store finish on theirs; the store's fence turns back what has no lease any more, and it is
derived and submitted again. A lease runs from before the moment at which the canonical version was read, so that it has
run out everywhere one period after another version was committed. Half of it gone, it is renewed by whoever uses it
next: the timestamp of the canonical version is compared, and only if it has moved is the schema read.

Nobody renews for a server that is idle: its lease runs out, which hurts nobody, and its next write renews first.

Queries need no lease: they use the schema version of their snapshot (footnote 4).
"""

from __future__ import annotations

import contextlib
import threading
from typing import NamedTuple

from instar import errors
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.clock import Clock
from instar.store.engine import Lease, Reader, StaleSchema, Store
from instar.store.forks import begin_anew_in_child
from instar.store.schema_version import damaged_copies, read_version, repair

# How often a snapshot is tried anew because the lease ran out, or the schema moved on, while it was taken.
_ROUNDS = 20
# A lease that could not be renewed is tried again after this part of the period.
_RETRY_PART = 16


class LeasedSchema(NamedTuple):
    """A schema version, the commit timestamp under which it is the canonical one, and until when it may be used."""

    catalog: CatalogSnapshot
    timestamp: int
    lease: Lease


class SchemaRepository:
    """The schema versions of one process; shared by its sessions."""

    def __init__(self, store: Store, catalog: Catalog, clock: Clock) -> None:
        self._store = store
        self._catalog = catalog
        self._monotonic_ns = clock.monotonic_ns
        self._period = int(store.schema_lease * 1e9)
        self._newest: LeasedSchema | None = None
        self._older: list[LeasedSchema] = []
        self._renew_at = 0
        self.since_ns = 0  # by then the newest version that is known here was there; monotonic clock
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: leases hold there too (the clock is the host's), the lock may be held by a lost thread."""
        self._lock = threading.Lock()

    # --- what a write uses -------------------------------------------------------------------------------------------

    def schema(self, at_least: int = 0) -> LeasedSchema:
        """What a new write uses: the newest version that is known here, of catalog version `at_least` or newer.

        Renewed if half of its lease is over; an error then matters only if the lease has run out. Errors: XX001 if the
        canonical version is damaged, whatever else keeps the store from being read.
        """
        newest = self._newest
        if newest is not None and self._monotonic_ns() < self._renew_at and newest.catalog.version >= at_least:
            return newest
        return self._renew(at_least)

    def schema_for(self, reader: Reader, at_least: int) -> LeasedSchema:
        """What a write that is derived on the state of `reader` uses: the newest version that this state has seen.

        StaleSchema if none here is old enough and still leased: the state is to be read again.
        """
        newest = self._newest
        if newest is not None and at_least <= newest.catalog.version <= reader.catalog_version:
            return newest
        for known in reversed(self._older):
            if at_least <= known.catalog.version <= reader.catalog_version:
                return known
        raise StaleSchema(0, None)

    def snapshot(self, at_least: int) -> tuple[int, CatalogSnapshot]:
        """A new snapshot's timestamp, and the schema that a statement which writes uses on it (rule 17)."""
        schema = self._newest
        for _ in range(_ROUNDS):
            if schema is not None and schema.catalog.version >= at_least:
                reader = self._store.read()
                try:
                    shown = reader.catalog_version
                    if shown == schema.catalog.version:
                        self._catalog.confirm(schema.catalog, reader)
                        serves = True
                    else:
                        serves = self._serves(schema, reader)
                    # The clock is asked when the snapshot is there: a process may be stopped anywhere.
                    if serves and self._monotonic_ns() < self._renew_at and schema is self._newest:
                        return reader.timestamp, schema.catalog
                    # One that is too far ahead is caught up with; for one step it is enough to renew when it is due.
                    if not serves and shown > schema.catalog.version:
                        at_least = shown
                finally:
                    reader.close()
            schema = self.schema(at_least)
        raise errors.error(
            errors.SERIALIZATION_FAILURE,
            f"the schema lease of {self._store.schema_lease:g} s ran out {_ROUNDS} times before a snapshot was taken",
            hint="Retry the transaction; if this comes again, the lease is too short for this machine.",
        )

    @staticmethod
    def _serves(schema: LeasedSchema, reader: Reader) -> bool:
        """Whether the schema, which is not the snapshot's, may be used on it: it is the one right before, in a
        compatible step. Floors protect writes alone; what a statement reads before it writes would miss rows."""
        return reader.catalog_version - schema.catalog.version == 1 and not read_version(reader).abrupt

    # --- leases ------------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """A write was refused for its version: read the canonical version now, whatever the lease says."""
        self.outdate()
        self.schema()

    def outdate(self) -> None:
        """Have the next use renew: this server knows that the schema has moved, since it has moved it."""
        self._renew_at = 0

    def tend(self) -> None:
        """Renew if half of the lease is over; what keeps this from it shows when the lease has run out."""
        with contextlib.suppress(errors.Error):
            self.schema()

    def current(self) -> LeasedSchema | None:
        """What this server has now, with or without a lease."""
        return self._newest

    def _renew(self, at_least: int) -> LeasedSchema:
        with self._lock:
            began = self._monotonic_ns()
            newest = self._newest
            if newest is not None and began < self._renew_at and newest.catalog.version >= at_least:
                return newest  # another thread was here first
            try:
                found, damaged = self._read(newest)
            except errors.Error:
                if newest is None or newest.catalog.version < at_least or began >= newest.lease.until:
                    raise
                self._renew_at = min(began + self._period // _RETRY_PART, newest.lease.until)
                return newest
            if found is not newest:
                self._keep(newest, began)
                self._newest = found
                self.since_ns = self._monotonic_ns()
            found.lease.until = began + self._period
            self._renew_at = began + self._period // 2
            self._store.publish_schema(found.catalog.version, found.lease.until)
        if damaged:
            # Whoever comes next may mend it as well, on a disk that has room again, say.
            with contextlib.suppress(errors.Error):
                repair(self._store)
        return found

    def _read(self, newest: LeasedSchema | None) -> tuple[LeasedSchema, bool]:
        """The canonical version, and whether a copy of it is damaged; `newest` itself if its timestamp still stands."""
        with self._store.read() as reader:
            found = read_version(reader)
            damaged = bool(damaged_copies(reader))
            if newest is not None and found.timestamp == newest.timestamp:
                if reader.catalog_version == newest.catalog.version:
                    self._catalog.confirm(newest.catalog, reader)
                return newest, damaged
            return LeasedSchema(self._catalog.at(reader), found.timestamp, Lease(0)), damaged

    def _keep(self, replaced: LeasedSchema | None, now: int) -> None:
        """The version that was the newest may be used by those that use it, until its lease has run out."""
        self._older = [known for known in self._older if known.lease.until > now]
        if replaced is not None and replaced.lease.until > now:
            self._older.append(replaced)
